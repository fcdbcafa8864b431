//! Bounded staleness: a Get takes up the clocks of its rows, and waits while a row has more Gets
//! outstanding than the table's bound.
//!
//! A batch acquires all of its rows or none. If some are blocked, it gives back the others before
//! it waits, so two batches never wait for each other's rows while they hold their own. Then:
//!
//! - The Get waits for one blocked row: it takes a release ticket, looks at the clock, and parks if
//!   the clock is still too high. A release between look and parking makes the ticket stale, so no
//!   wake-up is lost. A release of another row of the same stripe wakes the Get for one more look
//!   at the clock, not for a whole attempt.
//! - A Get that has waited long reserves its rows, and later Gets of these rows queue behind it
//!   (`waiting_line`).
//! - Batches that were blocked once make their next attempts one at a time (`retry_turn`).
//!   Otherwise two of them could block each other again and again with rows that both give back. No
//!   thread waits for a clock while it has the turn.
//!
//! A lease that is never ended would block its rows for ever. With the bank's `lease_timeout`, a
//! waiting Get looks for older leases, at once and again when the next one comes of age, and gives
//! their counts back (`registry`; `embank_kv`'s `leases` says why that happens once).
//!
//! In a table with admission, the rows of admitted keys are a second part of the attempt. If one of
//! them is blocked, the Get gives back both parts (`admission`).
//!
//! Every wait for a clock ends at the deadline. The wait for a burst of the lookahead, before the
//! first attempt, ends with that burst (`lookahead`). A batch does not wait for itself, because its
//! keys are distinct. A thread that itself holds more leases on the row than the bound allows would
//! wait for itself, so it gets an error in place of the wait (`registry` says which leases count as
//! its own). Leases of other threads do not matter for that: their ends would not let it through.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use embank_kv::interrupt::Checks;

use crate::error::{Error, Result};
use crate::lease::get::Attempt;
use crate::registry::deadline::deadline_after;
use crate::registry::turnstile::Entered;
use crate::registry::waiting_line::{PATIENCE, Place, Reserved};
use crate::registry::{LeaseRegistry, info_of};
use crate::stats::WaitCounters;
use crate::table::Table;
use crate::table::operations::GetRows;

/// Interval at which a waiting Get tries to give back counts that a full disk has held up.
const OWED_LOOK: Duration = Duration::from_millis(100);

impl Table {
    /// Waits for `first`, and for every later obstacle, and executes `get` as
    /// [`acquire`](Self::acquire) does.
    #[cold]
    pub(super) fn acquire_waiting(
        &self,
        get: &mut GetRows<'_>,
        first: Obstacle,
    ) -> Result<Entered<'_>> {
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

    /// Waits for one obstacle after the other, until an attempt meets no obstacle.
    fn acquire_by_turns<'t>(
        &'t self,
        get: &mut GetRows<'_>,
        first: Obstacle,
        wait: &mut Wait<'t>,
    ) -> Result<Entered<'t>> {
        let mut obstacle = first;
        // The loop ends: each wait ends at the deadline.
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
            // The loop ends at the deadline.
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

    /// The reservation that a Get of `keys` queues behind. A thread that holds a lease on a
    /// reserved row passes it, because the reservation waits for that lease.
    pub(super) fn place_ahead(
        &self,
        keys: &[u64],
        own: Option<&Reserved<'_>>,
    ) -> Option<Arc<Place>> {
        let leases = &self.shared.leases;
        self.shared.line.ahead(keys, own, |place| leases.is_taken_here(&place.keys))
    }

    /// As `place_ahead`, for a Get that waits: it passes the reservation after its time in the
    /// queue.
    fn place_ahead_of(&self, keys: &[u64], wait: &Wait<'_>) -> Option<Arc<Place>> {
        if self.shared.line.is_empty() || Instant::now() >= wait.queues_until {
            return None;
        }
        self.place_ahead(keys, wait.reserved.as_ref())
    }

    /// Waits until `place` has left the line, or the Get no longer has to queue behind it. Returns
    /// false at the deadline.
    fn wait_in_line<'t>(
        &'t self,
        place: &Arc<Place>,
        keys: &[u64],
        wait: &mut Wait<'t>,
    ) -> Result<bool> {
        // The loop ends: `queues_until` is not after the deadline.
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

    /// Waits until the row admits a Get. Returns false if it does not until the deadline.
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
            // A store that can't write gives no count back, so the wait would not end.
            store.check_writable()?;
            // After the ticket was taken: a release by this call or by another thread ends the wait
            // at once.
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
                // Looks once more, because the bound may have changed too.
                let outstanding = self.outstanding(key)?.unwrap_or(0);
                return Ok(self.staleness_bound().is_none_or(|bound| outstanding <= bound));
            }
        }
    }

    /// Fails if only leases of this thread block the row, so that a wait for it would not end.
    fn check_not_self_blocked(&self, key: u64, deadline: Instant) -> Result<()> {
        let Some(bound) = self.staleness_bound() else { return Ok(()) };
        // Relaxed: as in `Lease::note_end`.
        if self.context().leases_change_hands.load(Ordering::Relaxed) {
            return Ok(());
        }
        let leases = &self.shared.leases;
        let own = leases.blocking_their_taker(key, self.context().lease_timeout, deadline);
        match own.first() {
            // Read again, because the first lease that changes hands may have done so while the
            // leases were listed. Relaxed: no other data depends on the flag.
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

    /// The error of a Get whose deadline has passed.
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

    /// Adds to the counters of the table and of the bank. Only Gets that wait pay for this.
    pub(super) fn count_wait(&self, count: impl Fn(&WaitCounters)) {
        count(&self.shared.counters.waiting);
        count(&self.context().waiting);
    }
}

/// A Get that waits.
struct Wait<'t> {
    started: Instant,
    deadline: Instant,
    /// The time at which it stops queueing behind reservations.
    queues_until: Instant,
    /// When it reserves its rows.
    reserves_at: Instant,
    checks: Checks,
    reserved: Option<Reserved<'t>>,
    /// The last row that it waited for.
    last_key: u64,
}

/// What a Get waits for.
pub(super) enum Obstacle {
    /// The clock of this row.
    Row(u64),
    /// A Get that is ahead of it in the line.
    Line(Arc<Place>),
}
