//! Bounded staleness: a Get raises the clocks of its rows, and waits while a row has more
//! outstanding Gets than the table's bound.
//!
//! A batch acquires all of its rows or none. If some of its rows are blocked, the batch gives its
//! acquired rows back before it waits. Two batches therefore never wait for each other while they
//! hold rows. In detail:
//!
//! - The Get waits for one blocked row. It takes a release ticket, reads the clock, and parks if
//!   the clock is still too high. A release after the ticket was taken makes the ticket stale, so
//!   no wake-up is lost. A release of another row of the same stripe only makes the Get read the
//!   clock once more.
//! - A Get that has waited for a long time reserves its rows. Later Gets of these rows queue behind
//!   it (`waiting_line`).
//! - Batches that were blocked once make further attempts one at a time (`retry_turn`). Otherwise
//!   two batches could block each other again and again: both would raise the clocks of some rows
//!   and lower them again. No thread waits for a clock while it has the turn.
//!
//! A lease that never ends would block its rows forever. With the bank's `lease_timeout`, a waiting
//! Get looks for expired leases, first at once and then whenever another lease may expire. The Get
//! then ends these leases: it lowers the clocks that their Gets have raised (`registry`). The essay
//! of `leases` in `embank_kv` explains why a lease ends only once.
//!
//! In a table with admission, an attempt acquires rows twice: first the rows that exist, then the
//! rows of missing keys that admission accepts. If a row of the second acquisition is blocked, the
//! Get lowers the clocks of both (`admission`).
//!
//! Every wait for a clock ends at the deadline. Deadlines are points of [`RunningTime`], so a
//! suspension of the process ends no wait; a waiting Get therefore looks at the time regularly
//! ([`Wait::look_by`]). The wait for a lookahead burst, before the first
//! attempt, ends with that burst (`lookahead`). A batch never waits for itself, because its keys
//! are distinct. If a thread's own leases on a row exceed the bound, its Get would wait for itself,
//! so it fails instead. A Get ahead is the Get of the thread that waits for it, if one does
//! (`ahead`). `registry` says which leases count as the thread's own. Leases of other
//! threads do not matter here: even if they all ended, the Get would stay blocked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use embank_kv::RunningTime;
use embank_kv::interrupt::Checks;

use crate::error::{Error, Result};
use crate::lease::ahead::Ahead;
use crate::lease::get::Attempt;
use crate::registry::turnstile::Entered;
use crate::registry::waiting_line::{PATIENCE, Place, Reserved};
use crate::registry::{self, LeaseRegistry, TakerNumber, info_of};
use crate::stats::WaitCounters;
use crate::table::Table;
use crate::table::operations::GetRows;

impl Table {
    /// Waits for the obstacle `first`, and then attempts `get`. Waits and attempts again for each
    /// further obstacle, at most for `timeout` in all.
    #[cold]
    pub(super) fn acquire_waiting(
        &self,
        get: &mut GetRows<'_>,
        first: Obstacle,
        timeout: Duration,
        ahead: Option<Ahead<'_>>,
    ) -> Result<Entered<'_>> {
        let waiter = match ahead {
            Some(ahead) => Waiter::Ahead { ahead, thread: None },
            None => Waiter::ThisThread(registry::this_number(), Checks::new()),
        };
        let mut wait = Wait {
            started: Instant::now(),
            timeout,
            limits: Limits::from(RunningTime::now(), timeout),
            waiter,
            reserved: None,
            last_key: get.keys.first().copied().unwrap_or_default(),
        };
        wait.renew_limits();
        self.count_wait(|counters| counters.waits.add(1));
        let acquired = self.acquire_by_turns(get, first, &mut wait);
        wait.renew_limits();
        let waited_us = wait.started.elapsed().as_micros() as u64;
        self.count_wait(|counters| counters.wait_us.add(waited_us));
        acquired
    }

    /// Waits for one obstacle after another, until an attempt acquires all rows.
    fn acquire_by_turns<'t>(
        &'t self,
        get: &mut GetRows<'_>,
        first: Obstacle,
        wait: &mut Wait<'t, '_>,
    ) -> Result<Entered<'t>> {
        let mut obstacle = first;
        // The loop ends: every wait ends at the deadline.
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
                // A Get that waits for its turn does not reserve. Only the deadline and the checks
                // for interrupts wake it.
                wait.renew_limits();
                let until = wait.check_by(wait.limits.deadline.look_by());
                if let Some(turn) = self.shared.retry_turn.take_until(until) {
                    break turn;
                }
                self.check_interrupted(wait)?;
                if wait.is_over() {
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

    /// Returns the reservation that a Get of `keys` must queue behind. `thread` is the thread that
    /// waits for the Get. If it holds a lease on a reserved row, the Get does not queue, because
    /// the reservation waits for that lease.
    pub(super) fn place_ahead(
        &self,
        keys: &[u64],
        own: Option<&Reserved<'_>>,
        thread: Option<TakerNumber>,
    ) -> Option<Arc<Place>> {
        let leases = &self.shared.leases;
        let passes =
            |place: &Place| thread.is_some_and(|thread| leases.is_taken_by(thread, &place.keys));
        self.shared.line.ahead(keys, own, passes)
    }

    /// Returns the reservation that a waiting Get must queue behind, like `place_ahead`. Returns
    /// `None` once the Get has queued for the longest allowed time.
    fn place_ahead_of(&self, keys: &[u64], wait: &mut Wait<'_, '_>) -> Option<Arc<Place>> {
        wait.renew_limits();
        if self.shared.line.is_empty() || wait.has_queued() {
            return None;
        }
        self.place_ahead(keys, wait.reserved.as_ref(), wait.thread())
    }

    /// Waits until `place` has left the line, or until the Get may stop queueing. Returns false at
    /// the deadline.
    fn wait_in_line<'t>(
        &'t self,
        place: &Arc<Place>,
        keys: &[u64],
        wait: &mut Wait<'t, '_>,
    ) -> Result<bool> {
        // The loop ends: `queues_until` is never after the deadline. If no thread waits for the
        // Get, the loop ends when the place leaves the line.
        loop {
            self.context().store.check_writable()?;
            wait.renew_limits();
            self.reserve_if_due(keys, wait);
            let until = wait.limits.queues_until.min(wait.limits.deadline);
            if self.shared.line.wait_left(place, wait.look_by(until)) {
                return Ok(true);
            }
            self.check_interrupted(wait)?;
            if wait.is_over() {
                return Ok(false);
            }
            if wait.has_queued() {
                return Ok(true);
            }
        }
    }

    /// Reserves the rows of a Get that has waited until `reserves_at`.
    fn reserve_if_due<'t>(&'t self, keys: &[u64], wait: &mut Wait<'t, '_>) {
        if wait.reserved.is_none() && wait.has_passed(wait.limits.reserves_at) {
            wait.reserved = Some(self.shared.line.reserve(keys));
        }
    }

    /// Fails if the program's check for interrupts ends the wait, or if the result of a Get ahead
    /// is no longer wanted.
    fn check_interrupted(&self, wait: &mut Wait<'_, '_>) -> Result<()> {
        let ends = match &mut wait.waiter {
            Waiter::ThisThread(_, checks) => checks.due().is_some_and(|check| check()),
            Waiter::Ahead { ahead, .. } => ahead.is_cancelled(),
        };
        if !ends {
            return Ok(());
        }
        let table = self.name().to_owned();
        let key = wait.last_key;
        let waited = wait.started.elapsed();
        Err(Error::Interrupted { table, key, waited })
    }

    /// Waits until the row's clock is within the bound. Returns false if the deadline passes first.
    fn wait_admitted<'t>(
        &'t self,
        key: u64,
        keys: &[u64],
        wait: &mut Wait<'t, '_>,
    ) -> Result<bool> {
        let store = &self.context().store;
        loop {
            wait.renew_limits();
            let deadline = wait.limits.deadline;
            self.reserve_if_due(keys, wait);
            let ticket = store.release_ticket(self.shared.id, key);
            let outstanding = self.outstanding(key)?.unwrap_or(0);
            if self.staleness_bound().is_none_or(|bound| outstanding <= bound) {
                return Ok(true);
            }
            // If the store can't write, no clock can fall, and the Get would only wait until its
            // deadline.
            store.check_writable()?;
            // The ticket was taken before this call. If the call expires a lease on the row, or
            // another thread releases the row meanwhile, the wait below ends at once.
            let next_look = self.expire_due_leases().map_or(deadline, LeaseRegistry::next_look);
            if let Some(thread) = wait.thread() {
                self.check_not_self_blocked(thread, key, deadline)?;
            }
            // This also limits the wait if the table owes counts: no signal reports that the disk
            // has room again, so the Get tries to lower the clocks at each look.
            let until = wait.look_by(deadline.min(next_look));
            let woken = store.wait_released(ticket, until);
            self.check_interrupted(wait)?;
            if !woken && wait.is_over() {
                // Checks the clock once more at the deadline, because the clock or the bound may
                // have changed without a wake-up.
                let outstanding = self.outstanding(key)?.unwrap_or(0);
                return Ok(self.staleness_bound().is_none_or(|bound| outstanding <= bound));
            }
        }
    }

    /// Fails if the leases of `thread`, which waits for the Get, block the row. They can't end
    /// while the thread waits.
    fn check_not_self_blocked(
        &self,
        thread: TakerNumber,
        key: u64,
        deadline: RunningTime,
    ) -> Result<()> {
        let Some(bound) = self.staleness_bound() else { return Ok(()) };
        // Relaxed: no other data depends on the flag; see `Lease::note_end`.
        if self.context().leases_change_hands.load(Ordering::Relaxed) {
            return Ok(());
        }
        let leases = &self.shared.leases;
        let timeout = self.context().lease_timeout;
        let own = leases.blocking_their_taker(thread, key, timeout, deadline);
        match own.first() {
            // Reads the flag again. It may have been set while this thread listed its leases:
            // another thread may have ended a lease that it had not taken. Relaxed: no other data
            // depends on the flag.
            Some(oldest)
                if own.len() > bound as usize
                    && !self.context().leases_change_hands.load(Ordering::Relaxed) =>
            {
                Err(Error::SelfBlocked {
                    table: self.name().to_owned(),
                    key,
                    held: own.len() as u32,
                    bound,
                    oldest: Box::new(info_of(self.name(), oldest)),
                })
            }
            _ => Ok(()),
        }
    }

    /// Makes the error of a Get whose deadline has passed.
    fn timeout(&self, wait: &Wait<'_, '_>) -> Result<Error> {
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
                .list(self.name(), Some(key))
                .into_iter()
                .next()
                .map(Box::new),
        })
    }

    /// Adds to the counters of the table and of the bank. Only waiting Gets pay for this.
    pub(super) fn count_wait(&self, count: impl Fn(&WaitCounters)) {
        count(&self.shared.counters.waiting);
        count(&self.context().waiting);
    }
}

/// The state of a waiting Get.
struct Wait<'t, 'a> {
    /// When the thread that waits for the Get began to wait.
    started: Instant,
    timeout: Duration,
    limits: Limits,
    waiter: Waiter<'a>,
    reserved: Option<Reserved<'t>>,
    /// The last key that the Get waited for.
    last_key: u64,
}

/// The time limits of a wait.
struct Limits {
    deadline: RunningTime,
    /// Time at which the Get stops queueing behind reservations.
    queues_until: RunningTime,
    /// Time at which the Get reserves its rows.
    reserves_at: RunningTime,
}

impl Limits {
    fn from(begin: RunningTime, timeout: Duration) -> Self {
        Self {
            deadline: begin + timeout,
            queues_until: begin + timeout / 4,
            reserves_at: begin + PATIENCE,
        }
    }
}

/// What waits for a Get.
enum Waiter<'a> {
    /// The calling thread, which also checks for interrupts.
    ThisThread(TakerNumber, Checks),
    /// A thread that may come later. `thread` is its number, once it has come.
    Ahead { ahead: Ahead<'a>, thread: Option<TakerNumber> },
}

impl Wait<'_, '_> {
    /// Returns the number of the thread that waits for the Get. `None` if no thread waits yet.
    fn thread(&self) -> Option<TakerNumber> {
        match &self.waiter {
            Waiter::ThisThread(number, _) => Some(*number),
            Waiter::Ahead { thread, .. } => *thread,
        }
    }

    /// Looks whether a thread waits for a Get ahead. The limits begin when the thread began to
    /// wait. Without such a thread there are no limits and no reservation.
    fn renew_limits(&mut self) {
        let Waiter::Ahead { ahead, thread } = &mut self.waiter else { return };
        match ahead.waiter() {
            Some(waiter) => {
                *thread = Some(waiter.thread);
                self.started = waiter.started;
                self.limits = Limits::from(waiter.since, self.timeout);
            }
            None => {
                *thread = None;
                self.started = Instant::now();
                self.limits = Limits::from(RunningTime::now(), Duration::MAX);
                self.reserved = None;
            }
        }
    }

    /// True if `limit` has passed. The limits of a Get that no thread waits for never pass.
    fn has_passed(&self, limit: RunningTime) -> bool {
        self.thread().is_some() && RunningTime::now() >= limit
    }

    fn is_over(&self) -> bool {
        self.has_passed(self.limits.deadline)
    }

    /// True if the Get has queued behind reservations for the longest allowed time.
    fn has_queued(&self) -> bool {
        self.has_passed(self.limits.queues_until)
    }

    /// Returns the time at which the Get must wake up: when the running time may be `until`, when
    /// the Get may reserve its rows, or when a check is due.
    fn look_by(&self, until: RunningTime) -> Instant {
        let reserves_at = self.limits.reserves_at;
        let until = if self.reserved.is_none() { until.min(reserves_at) } else { until };
        self.check_by(until.look_by())
    }

    /// Returns `until`, or the time of the next check if that is earlier. A Get ahead looks after
    /// [`PATIENCE`] whether a thread waits for it, and whether it is still wanted.
    fn check_by(&self, until: Instant) -> Instant {
        match &self.waiter {
            Waiter::ThisThread(_, checks) => checks.until(until),
            Waiter::Ahead { .. } => until.min(Instant::now() + PATIENCE),
        }
    }
}

/// The cause of a Get's wait.
pub(super) enum Obstacle {
    /// The row of this key has a clock above the bound.
    Row(u64),
    /// An earlier Get in the waiting line has reserved one of the Get's rows.
    Line(Arc<Place>),
}
