//! Bounded staleness: a Get takes the clocks of its rows up, and waits while a row has more Gets
//! outstanding than the table's bound.
//!
//! A batch acquires all of its rows or none. When some are blocked it gives back the others before it
//! waits, so that two batches never wait for each other's rows while holding their own. Then:
//!
//! - It waits for one blocked row: take a release ticket, look at the clock, park if it is still too
//!   high. A release between look and parking makes the ticket stale, so no wake-up is lost; a release
//!   of another row of the same stripe wakes it for one more look at the clock, not for a whole attempt.
//! - Batches that were blocked once make their next attempts one at a time (`retry_turn`), so that two
//!   of them can't block each other over and over with rows that both give back again. Nobody
//!   waits for a clock while holding the turn.
//!
//! A lease that is never ended would block its rows for ever. With the bank's `lease_timeout`, who waits looks for
//! leases that are older, at once and again when the next one comes of age, and gives their counts back
//! (`holders`; why that happens once: `embank_kv`'s `leases`).
//!
//! Where not every key is admitted, the rows of those that are make a second part of the attempt; when one of them is
//! blocked, both parts are given back (`admission`).
//!
//! Every wait ends at the deadline. A batch does not wait on itself, for its keys are distinct; a thread
//! that holds a lease on the same row does, and gets the timeout.

use std::time::{Duration, Instant};

use embank_kv::Clock;

use crate::error::{Error, Result};
use crate::operations::{GetRows, Reached, TouchClocks};
use crate::seen::SeenClocks;
use crate::stats::WaitCounters;
use crate::table::Table;

/// Where a deadline lies that the clock can't represent.
const FAR_OFF: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The time `wait` from now.
pub(crate) fn deadline_after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + FAR_OFF)
}

impl Table {
    /// Executes `get` with the clocks of all its rows taken up by one, and waits if it must. `get.keys`
    /// are distinct.
    ///
    /// # Errors
    /// A failure of the store or the wait's timeout; no count is held then.
    pub(crate) fn acquire(&self, get: &mut GetRows<'_>) -> Result<()> {
        match self.try_acquire(get)? {
            None => Ok(()),
            Some(blocked) => self.acquire_waiting(get, blocked),
        }
    }

    #[cold]
    fn acquire_waiting(&self, get: &mut GetRows<'_>, mut blocked: u64) -> Result<()> {
        let started = Instant::now();
        let deadline = deadline_after(self.bank.wait_timeout);
        self.count_wait(|counters| counters.waits.add(1));
        let acquired = loop {
            if !self.wait_admitted(blocked, deadline)? {
                break self.timeout(blocked, started);
            }
            let Some(turn) = self.shared.retry_turn.try_lock_until(deadline) else {
                break self.timeout(blocked, started);
            };
            let attempt = self.try_acquire(get);
            drop(turn);
            match attempt {
                Ok(None) => break Ok(()),
                Ok(Some(key)) => blocked = key,
                Err(error) => break Err(error),
            }
        };
        let waited_us = started.elapsed().as_micros() as u64;
        self.count_wait(|counters| counters.wait_us.add(waited_us));
        acquired
    }

    /// One attempt. `Some(key)`: that row is blocked, and nothing is held (but what could not be given
    /// back, which is counted).
    fn try_acquire(&self, get: &mut GetRows<'_>) -> Result<Option<u64>> {
        let clock = Clock::Acquire { bound: self.staleness_bound() };
        let keys = get.keys;
        let outcome = match self.execute(keys, clock, get) {
            Ok(outcome) => outcome,
            Err(error) => {
                self.release_or_count(&places_keys(keys, |place| get.reached.contains(place)));
                return Err(error);
            }
        };
        self.shared.counters.disk_reads.add(outcome.disk_reads);
        let first_blocked = outcome.blocked.iter().min().map(|&first| keys[first as usize]);
        if first_blocked.is_none() && outcome.missing.is_empty() {
            return Ok(None);
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
            Some(key) => Ok(Some(key)),
            None => self.admit(get, &outcome.missing),
        };
        if let Ok(None) = blocked {
            return Ok(None);
        }
        for &place in &outcome.missing {
            held[place as usize] = get.reached.contains(place as usize);
        }
        get.reached.forget();
        get.seen = SeenClocks::default();
        self.release_or_count(&places_keys(keys, |place| held[place]));
        blocked
    }

    /// Waits until the row admits a Get; false if it does not before the deadline.
    fn wait_admitted(&self, key: u64, deadline: Instant) -> Result<bool> {
        let store = &self.bank.store;
        loop {
            let ticket = store.release_ticket(self.shared.id, key);
            let outstanding = self.outstanding(key)?.unwrap_or(0);
            if self.staleness_bound().is_none_or(|bound| outstanding <= bound) {
                return Ok(true);
            }
            // After the ticket: what this gives back, and what others do, ends the wait at once.
            let next_look = self.expire_leases().unwrap_or(deadline);
            let woken = store.wait_released(ticket, deadline.min(next_look));
            if !woken && Instant::now() >= deadline {
                // Not without a last look: the bound, too, may have changed.
                let outstanding = self.outstanding(key)?.unwrap_or(0);
                return Ok(self.staleness_bound().is_none_or(|bound| outstanding <= bound));
            }
        }
    }

    fn timeout(&self, key: u64, started: Instant) -> Result<()> {
        self.count_wait(|counters| counters.timeouts.add(1));
        Err(Error::StalenessTimeout {
            table: self.name().to_owned(),
            key,
            outstanding: self.outstanding(key)?.unwrap_or(0),
            bound: self.staleness_bound().unwrap_or(u32::MAX),
            waited: started.elapsed(),
            oldest: self
                .shared
                .holders
                .list(self.name(), Some(key), Instant::now())
                .into_iter()
                .next()
                .map(Box::new),
        })
    }

    /// Before a Get: gives back the counts of leases that have come of age.
    pub(crate) fn expire_due_leases(&self) {
        if self.bank.lease_timeout.is_some() && self.shared.holders.look_is_due(Instant::now()) {
            self.expire_leases();
        }
    }

    /// Gives back the counts of leases that are older than the bank's `lease_timeout`. Returns when to look again;
    /// none if leases do not expire.
    #[cold]
    fn expire_leases(&self) -> Option<Instant> {
        let timeout = self.bank.lease_timeout?;
        let (expired, next_look) = self.shared.holders.expire(timeout, Instant::now());
        for lease in &expired {
            self.count_wait(|counters| counters.leases_expired.add(1));
            self.release_or_count(lease.what().held_keys());
        }
        Some(next_look)
    }

    /// Gives back one count of each of `keys`, which are distinct. Rows deleted meanwhile are passed over,
    /// as is a table that was dropped: its counts went with its rows.
    pub(crate) fn release(&self, keys: &[u64]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        match self.execute(keys, Clock::Release, &mut TouchClocks) {
            Ok(_) | Err(Error::TableDropped { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// [`release`](Self::release) where another error is already on its way or nobody listens.
    pub(crate) fn release_or_count(&self, keys: &[u64]) {
        if self.release(keys).is_err() {
            self.count_wait(|counters| counters.release_failures.add(1));
        }
    }

    /// Counts for the table and for the bank. Seldom: nothing that a get without a wait does.
    fn count_wait(&self, count: impl Fn(&WaitCounters)) {
        count(&self.shared.counters.waiting);
        count(&self.bank.waiting);
    }

    /// After a batch with [`Clock::Release`] failed halfway: gives back the counts of the rest.
    pub(crate) fn release_unreached(&self, keys: &[u64], reached: &Reached) {
        self.release_or_count(&places_keys(keys, |place| !reached.contains(place)));
    }
}

fn places_keys(keys: &[u64], chosen: impl Fn(usize) -> bool) -> Vec<u64> {
    let places = keys.iter().enumerate().filter(|&(place, _)| chosen(place));
    places.map(|(_, &key)| key).collect()
}
