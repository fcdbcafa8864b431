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
//! so it fails instead. `registry` says which leases count as the thread's own. Leases of other
//! threads do not matter here: even if they all ended, the Get would stay blocked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use embank_kv::RunningTime;
use embank_kv::interrupt::Checks;

use crate::error::{Error, Result};
use crate::lease::get::Attempt;
use crate::registry::turnstile::Entered;
use crate::registry::waiting_line::{PATIENCE, Place, Reserved};
use crate::registry::{LeaseRegistry, info_of};
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
    ) -> Result<Entered<'_>> {
        let started = Instant::now();
        let now = RunningTime::now();
        let mut wait = Wait {
            started,
            deadline: now + timeout,
            queues_until: now + timeout / 4,
            reserves_at: now + PATIENCE,
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

    /// Waits for one obstacle after another, until an attempt acquires all rows.
    fn acquire_by_turns<'t>(
        &'t self,
        get: &mut GetRows<'_>,
        first: Obstacle,
        wait: &mut Wait<'t>,
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
                let until = wait.checks.until(wait.deadline.look_by());
                if let Some(turn) = self.shared.retry_turn.take_until(until) {
                    break turn;
                }
                self.check_interrupted(wait)?;
                if RunningTime::now() >= wait.deadline {
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

    /// Returns the reservation that a Get of `keys` must queue behind. A thread that holds a lease
    /// on a reserved row does not queue, because the reservation waits for that lease.
    pub(super) fn place_ahead(
        &self,
        keys: &[u64],
        own: Option<&Reserved<'_>>,
    ) -> Option<Arc<Place>> {
        let leases = &self.shared.leases;
        self.shared.line.ahead(keys, own, |place| leases.is_taken_here(&place.keys))
    }

    /// Returns the reservation that a waiting Get must queue behind, like `place_ahead`. Returns
    /// `None` once the Get has queued for the longest allowed time.
    fn place_ahead_of(&self, keys: &[u64], wait: &Wait<'_>) -> Option<Arc<Place>> {
        if self.shared.line.is_empty() || RunningTime::now() >= wait.queues_until {
            return None;
        }
        self.place_ahead(keys, wait.reserved.as_ref())
    }

    /// Waits until `place` has left the line, or until the Get may stop queueing. Returns false at
    /// the deadline.
    fn wait_in_line<'t>(
        &'t self,
        place: &Arc<Place>,
        keys: &[u64],
        wait: &mut Wait<'t>,
    ) -> Result<bool> {
        // The loop ends: `queues_until` is never after the deadline.
        loop {
            self.context().store.check_writable()?;
            self.reserve_if_due(keys, wait);
            let until = wait.queues_until.min(wait.deadline);
            if self.shared.line.wait_left(place, wait.look_by(until)) {
                return Ok(true);
            }
            self.check_interrupted(wait)?;
            let now = RunningTime::now();
            if now >= wait.deadline {
                return Ok(false);
            }
            if now >= wait.queues_until {
                return Ok(true);
            }
        }
    }

    /// Reserves the rows of a Get that has waited until `reserves_at`.
    fn reserve_if_due<'t>(&'t self, keys: &[u64], wait: &mut Wait<'t>) {
        if wait.reserved.is_none() && RunningTime::now() >= wait.reserves_at {
            wait.reserved = Some(self.shared.line.reserve(keys));
        }
    }

    /// Fails if the program's check for interrupts ends the wait.
    fn check_interrupted(&self, wait: &mut Wait<'_>) -> Result<()> {
        if !wait.checks.due().is_some_and(|check| check()) {
            return Ok(());
        }
        let table = self.name().to_owned();
        let key = wait.last_key;
        let waited = wait.started.elapsed();
        Err(Error::Interrupted { table, key, waited })
    }

    /// Waits until the row's clock is within the bound. Returns false if the deadline passes first.
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
            // If the store can't write, no clock can fall, and the Get would only wait until its
            // deadline.
            store.check_writable()?;
            // The ticket was taken before this call. If the call expires a lease on the row, or
            // another thread releases the row meanwhile, the wait below ends at once.
            let next_look = self.expire_due_leases().map_or(deadline, LeaseRegistry::next_look);
            self.check_not_self_blocked(key, deadline)?;
            // This also limits the wait if the table owes counts: no signal reports that the disk
            // has room again, so the Get tries to lower the clocks at each look.
            let until = wait.look_by(deadline.min(next_look));
            let woken = store.wait_released(ticket, until);
            self.check_interrupted(wait)?;
            if !woken && RunningTime::now() >= deadline {
                // Checks the clock once more at the deadline, because the clock or the bound may
                // have changed without a wake-up.
                let outstanding = self.outstanding(key)?.unwrap_or(0);
                return Ok(self.staleness_bound().is_none_or(|bound| outstanding <= bound));
            }
        }
    }

    /// Fails if this thread's own leases block the row, because they can't end while this thread
    /// waits.
    fn check_not_self_blocked(&self, key: u64, deadline: RunningTime) -> Result<()> {
        let Some(bound) = self.staleness_bound() else { return Ok(()) };
        // Relaxed: no other data depends on the flag; see `Lease::note_end`.
        if self.context().leases_change_hands.load(Ordering::Relaxed) {
            return Ok(());
        }
        let leases = &self.shared.leases;
        let own = leases.blocking_their_taker(key, self.context().lease_timeout, deadline);
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
struct Wait<'t> {
    started: Instant,
    deadline: RunningTime,
    /// Time at which the Get stops queueing behind reservations.
    queues_until: RunningTime,
    /// Time at which the Get reserves its rows.
    reserves_at: RunningTime,
    checks: Checks,
    reserved: Option<Reserved<'t>>,
    /// The last key that the Get waited for.
    last_key: u64,
}

impl Wait<'_> {
    /// Returns the time at which the Get must wake up: when the running time may be `until`, when
    /// the Get may reserve its rows, or when a check for interrupts is due.
    fn look_by(&self, until: RunningTime) -> Instant {
        let until = if self.reserved.is_none() { until.min(self.reserves_at) } else { until };
        self.checks.until(until.look_by())
    }
}

/// The cause of a Get's wait.
pub(super) enum Obstacle {
    /// The row of this key has a clock above the bound.
    Row(u64),
    /// An earlier Get in the waiting line has reserved one of the Get's rows.
    Line(Arc<Place>),
}
