//! Bounded staleness: a Get takes the clocks of its rows up, and waits while a row has more Gets
//! outstanding than the table's bound.
//!
//! A batch acquires all of its rows or none. When some are blocked it gives back the others before it
//! waits, so that two batches never wait for each other's rows while holding their own. Then:
//!
//! - It waits for one blocked row: take a release ticket, look at the clock, park if it is still too
//!   high. A release between look and parking makes the ticket stale, so no wake-up is lost; a release
//!   of another row of the same stripe wakes it for one more look at the clock, not for a whole attempt.
//! - A Get that has waited long reserves its rows, and Gets that come later queue behind it (`waiting_line`).
//! - Batches that were blocked once make their next attempts one at a time (`retry_turn`), so that two
//!   of them can't block each other over and over with rows that both give back again. Nobody
//!   waits for a clock while holding the turn.
//!
//! A lease that is never ended would block its rows for ever. With the bank's `lease_timeout`, who waits looks for
//! leases that are older, at once and again when the next one comes of age, and gives their counts back
//! (`registry`; why that happens once: `embank_kv`'s `leases`).
//!
//! Where not every key is admitted, the rows of those that are make a second part of the attempt; when one of them is
//! blocked, both parts are given back (`admission`).
//!
//! Every wait for a clock ends at the deadline; one for a burst of the lookahead, before the first attempt, ends with
//! that (`lookahead`). A batch does not wait on itself, for its keys are distinct. A thread whose own leases on the row
//! are more than the bound would wait for itself: it gets an error in place of the wait (`registry` says which leases
//! count as its own). Other threads' leases play no part in that: their ends would not let it through.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use embank_kv::Clock;
use embank_kv::interrupt::Checks;

use crate::error::{Error, Result};
use crate::registry::deadline::deadline_after;
use crate::registry::turnstile::Entered;
use crate::registry::waiting_line::{PATIENCE, Place, Reserved};
use crate::registry::{LeaseRegistry, info_of};
use crate::stats::WaitCounters;
use crate::stats::seen::SeenClocks;
use crate::table::Table;
use crate::table::operations::{GetRows, Reached, TouchClocks};

/// How often a waiting Get tries to give back counts that a full disk kept from it.
const OWED_LOOK: Duration = Duration::from_millis(100);

impl Table {
    /// Executes `get` with the clocks of all its rows taken up by one, and waits if it must. `get.keys`
    /// are distinct. What it returns is to be held until the lease is registered.
    ///
    /// # Errors
    /// A failure of the store or the wait's timeout; no count is held then.
    pub(crate) fn acquire(&self, get: &mut GetRows<'_>) -> Result<Entered<'_>> {
        // While nothing is held: it may wait for a read.
        self.context().lookahead.make_way(self.shared.id, get.keys);
        if !self.shared.line.is_empty()
            && let Some(place) = self.place_ahead(get.keys, None)
        {
            return self.acquire_waiting(get, Obstacle::Line(place));
        }
        match self.try_acquire(get)? {
            Attempt::Acquired(entered) => Ok(entered),
            Attempt::Blocked(key) => self.acquire_waiting(get, Obstacle::Row(key)),
        }
    }

    /// As `acquire`, without a wait; `None` if a row is at its bound, or reserved.
    ///
    /// # Errors
    /// A failure of the store; no count is held then.
    pub(crate) fn acquire_at_once(&self, get: &mut GetRows<'_>) -> Result<Option<Entered<'_>>> {
        self.context().lookahead.make_way(self.shared.id, get.keys);
        if !self.shared.line.is_empty() && self.place_ahead(get.keys, None).is_some() {
            return Ok(None);
        }
        match self.try_acquire(get)? {
            Attempt::Acquired(entered) => Ok(Some(entered)),
            Attempt::Blocked(_) => Ok(None),
        }
    }

    #[cold]
    fn acquire_waiting(&self, get: &mut GetRows<'_>, first: Obstacle) -> Result<Entered<'_>> {
        let started = Instant::now();
        let mut wait = Wait {
            started,
            deadline: deadline_after(self.wait_timeout),
            queues_until: deadline_after(self.wait_timeout / 4),
            reserves_at: started + PATIENCE,
            checks: Checks::new(),
            reserved: None,
            last_key: get.keys.first().copied().unwrap_or_default(),
        };
        self.count_wait(|counters| counters.waits.add(1));
        let acquired = self.acquire_by_turns(get, first, &mut wait);
        let waited_us = started.elapsed().as_micros() as u64;
        self.count_wait(|counters| counters.wait_us.add(waited_us));
        acquired
    }

    /// Waits for one obstacle after the other, until an attempt meets none.
    fn acquire_by_turns<'t>(
        &'t self,
        get: &mut GetRows<'_>,
        first: Obstacle,
        wait: &mut Wait<'t>,
    ) -> Result<Entered<'t>> {
        let mut obstacle = first;
        // Ends: each wait ends at the deadline.
        loop {
            let is_gone = match &obstacle {
                Obstacle::Row(key) => {
                    wait.last_key = *key;
                    self.wait_admitted(*key, get.keys, wait)?
                }
                Obstacle::Line(place) => self.wait_in_line(place, get.keys, wait)?,
            };
            if !is_gone {
                return self.timeout(wait).and_then(Err);
            }
            if let Some(place) = self.place_ahead_of(get.keys, wait) {
                obstacle = Obstacle::Line(place);
                continue;
            }
            // Ends: at the deadline.
            let turn = loop {
                let until = wait.checks.until(wait.deadline);
                if let Some(turn) = self.shared.retry_turn.take_until(until) {
                    break turn;
                }
                self.check_interrupted(wait)?;
                if Instant::now() >= wait.deadline {
                    return self.timeout(wait).and_then(Err);
                }
            };
            let attempt = self.try_acquire(get);
            drop(turn);
            match attempt? {
                Attempt::Acquired(entered) => return Ok(entered),
                Attempt::Blocked(key) => obstacle = Obstacle::Row(key),
            }
        }
    }

    /// The reservation that a Get of `keys` queues behind. A thread that has a lease on a reserved row passes: the
    /// reservation waits for it.
    fn place_ahead(&self, keys: &[u64], own: Option<&Reserved<'_>>) -> Option<Arc<Place>> {
        let leases = &self.shared.leases;
        self.shared.line.ahead(keys, own, |place| leases.is_taken_here(&place.keys))
    }

    /// As `place_ahead`, for a Get that waits: after its time in the queue it passes.
    fn place_ahead_of(&self, keys: &[u64], wait: &Wait<'_>) -> Option<Arc<Place>> {
        if self.shared.line.is_empty() || Instant::now() >= wait.queues_until {
            return None;
        }
        self.place_ahead(keys, wait.reserved.as_ref())
    }

    /// Waits until `place` has left the line or need not be queued behind any more; false after the deadline.
    fn wait_in_line<'t>(
        &'t self,
        place: &Arc<Place>,
        keys: &[u64],
        wait: &mut Wait<'t>,
    ) -> Result<bool> {
        // Ends: `queues_until` is not after the deadline.
        loop {
            self.context().store.check_writable()?;
            self.reserve_if_due(keys, wait);
            let mut until = wait.queues_until.min(wait.deadline);
            if wait.reserved.is_none() {
                until = until.min(wait.reserves_at);
            }
            if self.shared.line.wait_left(place, wait.checks.until(until)) {
                return Ok(true);
            }
            self.check_interrupted(wait)?;
            let now = Instant::now();
            if now >= wait.deadline {
                return Ok(false);
            }
            if now >= wait.queues_until {
                return Ok(true);
            }
        }
    }

    /// Reserves the rows of a Get that has waited long.
    fn reserve_if_due<'t>(&'t self, keys: &[u64], wait: &mut Wait<'t>) {
        if wait.reserved.is_none() && Instant::now() >= wait.reserves_at {
            wait.reserved = Some(self.shared.line.reserve(keys));
        }
    }

    /// Fails if the program's own check ends the wait.
    fn check_interrupted(&self, wait: &mut Wait<'_>) -> Result<()> {
        if !wait.checks.due().is_some_and(|check| check()) {
            return Ok(());
        }
        let table = self.name().to_owned();
        let key = wait.last_key;
        let waited = wait.started.elapsed();
        Err(Error::Interrupted { table, key, waited })
    }

    /// One attempt. After one that is blocked, nothing is held (but what could not be given back, which is counted).
    fn try_acquire(&self, get: &mut GetRows<'_>) -> Result<Attempt<'_>> {
        let entered = self.shared.leases.enter();
        let clock = Clock::Acquire { bound: self.staleness_bound() };
        let keys = get.keys;
        let outcome = match self.execute(keys, clock, get) {
            Ok(outcome) => outcome,
            Err(error) => {
                let taken = places_keys(keys, |place| get.reached.contains(place));
                self.release_or_count(&taken, &entered);
                return Err(error);
            }
        };
        self.shared.counters.disk_reads.add(outcome.disk_reads);
        let first_blocked = outcome.blocked.iter().min().map(|&first| keys[first as usize]);
        if first_blocked.is_none() && outcome.missing.is_empty() {
            return Ok(Attempt::Acquired(entered));
        }
        let mut held = vec![true; keys.len()];
        for &place in outcome.blocked.iter().chain(&outcome.missing) {
            held[place as usize] = false;
        }
        for &place in &outcome.missing {
            // A look before the last one may have found it.
            get.reached.unmark(place as usize);
        }
        let blocked = match first_blocked {
            Some(key) => Ok(key),
            None => match self.admit(get, &outcome.missing) {
                Ok(None) => return Ok(Attempt::Acquired(entered)),
                Ok(Some(key)) => Ok(key),
                Err(error) => Err(error),
            },
        };
        for &place in &outcome.missing {
            held[place as usize] = get.reached.contains(place as usize);
        }
        get.reached.forget();
        get.seen = SeenClocks::default();
        self.release_or_count(&places_keys(keys, |place| held[place]), &entered);
        blocked.map(Attempt::Blocked)
    }

    /// Waits until the row admits a Get; false if it does not before the deadline.
    fn wait_admitted<'t>(&'t self, key: u64, keys: &[u64], wait: &mut Wait<'t>) -> Result<bool> {
        let store = &self.context().store;
        let deadline = wait.deadline;
        loop {
            self.reserve_if_due(keys, wait);
            let ticket = store.release_ticket(self.shared.id, key);
            let outstanding = self.outstanding(key)?.unwrap_or(0);
            if self.staleness_bound().is_none_or(|bound| outstanding <= bound) {
                return Ok(true);
            }
            // A store that can't write gives no count back.
            store.check_writable()?;
            // After the ticket: what this gives back, and what others do, ends the wait at once.
            let next_look = self.expire_due_leases().map_or(deadline, LeaseRegistry::next_look);
            self.check_not_self_blocked(key, deadline)?;
            let mut until = wait.checks.until(deadline.min(next_look));
            if wait.reserved.is_none() {
                until = until.min(wait.reserves_at);
            }
            if self.shared.leases.owes() {
                // Room on the disk comes without a signal.
                until = until.min(Instant::now() + OWED_LOOK);
            }
            let woken = store.wait_released(ticket, until);
            self.check_interrupted(wait)?;
            if !woken && Instant::now() >= deadline {
                // Not without a last look: the bound, too, may have changed.
                let outstanding = self.outstanding(key)?.unwrap_or(0);
                return Ok(self.staleness_bound().is_none_or(|bound| outstanding <= bound));
            }
        }
    }

    /// Fails if leases of this thread alone block the row, so that a wait for it would not end.
    fn check_not_self_blocked(&self, key: u64, deadline: Instant) -> Result<()> {
        let Some(bound) = self.staleness_bound() else { return Ok(()) };
        // Relaxed: as in `Lease::note_end`.
        if self.context().leases_change_hands.load(Ordering::Relaxed) {
            return Ok(());
        }
        let leases = &self.shared.leases;
        let own = leases.blocking_their_taker(key, self.context().lease_timeout, deadline);
        match own.first() {
            // Looked at again: the first lease that changes hands may have done so while the leases were listed.
            // Relaxed: as above.
            Some(oldest)
                if own.len() > bound as usize
                    && !self.context().leases_change_hands.load(Ordering::Relaxed) =>
            {
                Err(Error::SelfBlocked {
                    table: self.name().to_owned(),
                    key,
                    held: own.len() as u32,
                    bound,
                    oldest: Box::new(info_of(self.name(), oldest, Instant::now())),
                })
            }
            _ => Ok(()),
        }
    }

    /// The error of a Get whose time is up.
    fn timeout(&self, wait: &Wait<'_>) -> Result<Error> {
        self.count_wait(|counters| counters.timeouts.add(1));
        let key = wait.last_key;
        let started = wait.started;
        Ok(Error::StalenessTimeout {
            table: self.name().to_owned(),
            key,
            outstanding: self.outstanding(key)?.unwrap_or(0),
            bound: self.staleness_bound().unwrap_or(u32::MAX),
            waited: started.elapsed(),
            oldest: self
                .shared
                .leases
                .list(self.name(), Some(key), Instant::now())
                .into_iter()
                .next()
                .map(Box::new),
        })
    }

    /// Before a Get and while it waits: gives back the counts of leases that have come of age, and those that are owed.
    /// Returns who knows when to look again; none if leases do not expire.
    pub(crate) fn expire_due_leases(&self) -> Option<&LeaseRegistry> {
        if self.shared.leases.owes() {
            self.give_back_owed();
        }
        let timeout = self.context().lease_timeout?;
        let leases = &self.shared.leases;
        if leases.look_is_due(Instant::now()) {
            self.expire_leases(timeout);
        }
        Some(leases)
    }

    /// Gives back the counts that a full disk kept from it, until an attempt fails again.
    #[cold]
    fn give_back_owed(&self) {
        let leases = &self.shared.leases;
        let entered = leases.enter();
        // Ends: each round takes one, and one that is owed again ends it.
        for _ in 0..leases.owed_count() {
            let before = leases.owed_count();
            let Some(lease) = leases.take_owed() else { return };
            self.release_or_count(lease.what().held(&entered).keys(), &entered);
            leases.end(&lease);
            if leases.owed_count() >= before {
                return;
            }
        }
    }

    /// Gives back the counts of leases that are older than `timeout`.
    #[cold]
    fn expire_leases(&self, timeout: Duration) {
        let leases = &self.shared.leases;
        let entered = leases.enter();
        for lease in leases.expire(timeout, Instant::now(), &entered) {
            self.count_wait(|counters| counters.leases_expired.add(1));
            self.release_or_count(lease.what().held(&entered).keys(), &entered);
        }
    }

    /// Gives back one count of each of `keys`, which are distinct. Rows that are missing are passed over,
    /// as is a table that was dropped: its counts went with its rows. A row that can't be read keeps its count, and
    /// no other does. Counts that a full disk keeps from coming down are owed: a later Get gives them back.
    pub(crate) fn release(&self, keys: &[u64], entered: &Entered<'_>) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut touch = TouchClocks { reached: Reached::none_of(keys.len()) };
        let Err(first_error) = self.try_release(keys, &mut touch) else { return Ok(()) };
        if matches!(first_error, Error::Poisoned { .. }) {
            // The counts stay: Gets that wait for them would wait for nothing.
            self.context().store.wake_waiters();
            return Err(first_error);
        }
        let left = places_keys(keys, |place| !touch.reached.contains(place));
        if matches!(first_error, Error::DiskFull { .. }) {
            self.shared.leases.owe(&left, entered);
            return Ok(());
        }
        let mut released = Ok(());
        for key in left {
            let mut touch = TouchClocks { reached: Reached::none_of(1) };
            released = released.and(self.try_release(&[key], &mut touch));
        }
        released
    }

    fn try_release(&self, keys: &[u64], touch: &mut TouchClocks) -> Result<()> {
        match self.execute(keys, Clock::Release, touch) {
            Ok(_) | Err(Error::TableDropped { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// [`release`](Self::release) where another error is already on its way or nobody listens.
    pub(crate) fn release_or_count(&self, keys: &[u64], entered: &Entered<'_>) {
        if self.release(keys, entered).is_err() {
            self.count_wait(|counters| counters.release_failures.add(1));
        }
    }

    /// Counts for the table and for the bank. Seldom: nothing that a get without a wait does.
    fn count_wait(&self, count: impl Fn(&WaitCounters)) {
        count(&self.shared.counters.waiting);
        count(&self.context().waiting);
    }

    /// After a batch with [`Clock::Release`] failed halfway: gives back the counts of the rest.
    pub(crate) fn release_unreached(&self, keys: &[u64], reached: &Reached, entered: &Entered<'_>) {
        self.release_or_count(&places_keys(keys, |place| !reached.contains(place)), entered);
    }
}

/// A Get that waits.
struct Wait<'t> {
    started: Instant,
    deadline: Instant,
    /// Until when it queues behind reservations.
    queues_until: Instant,
    /// When it reserves its rows.
    reserves_at: Instant,
    checks: Checks,
    reserved: Option<Reserved<'t>>,
    /// The row that it waited for last.
    last_key: u64,
}

/// What a Get waits for.
enum Obstacle {
    /// This row's clock to come down.
    Row(u64),
    /// A Get that is before it in line.
    Line(Arc<Place>),
}

/// What came of an attempt to acquire.
enum Attempt<'a> {
    Acquired(Entered<'a>),
    /// This row is blocked.
    Blocked(u64),
}

fn places_keys(keys: &[u64], chosen: impl Fn(usize) -> bool) -> Vec<u64> {
    let places = keys.iter().enumerate().filter(|&(place, _)| chosen(place));
    places.map(|(_, &key)| key).collect()
}
