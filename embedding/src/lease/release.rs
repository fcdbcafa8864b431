//! Lowers the staleness clocks of a lease's rows when the lease ends or expires without an update.
//! If the disk is full at that time, a later Get lowers the clocks.

use std::time::Duration;

use embank_kv::{Clock, Hints, RunningTime};

use crate::error::{Error, Result, StoreError};
use crate::registry::turnstile::Entered;
use crate::registry::{LeaseRegistry, LeasedRows};
use crate::table::Table;
use crate::table::operations::{Reached, TouchClocks};

impl Table {
    /// Ends the leases that are older than the bank's `lease_timeout`. Also lowers the clocks that
    /// an earlier call could not lower because the disk was full. A Get calls this method before it
    /// starts and while it waits. Returns the registry, which knows when to look for old leases
    /// next, or `None` if leases do not expire.
    pub(crate) fn expire_due_leases(&self) -> Option<&LeaseRegistry> {
        if self.shared.leases.owes() {
            self.give_back_owed();
        }
        let timeout = self.context().lease_timeout?;
        let leases = &self.shared.leases;
        if leases.look_is_due(RunningTime::now()) {
            self.expire_leases(timeout);
        }
        Some(leases)
    }

    /// Lowers the clocks that an earlier call could not lower because the disk was full. Stops when
    /// an attempt fails again.
    #[cold]
    fn give_back_owed(&self) {
        let leases = &self.shared.leases;
        let entered = leases.enter();
        // The loop ends: each round takes one lease, and stops if that lease is owed again.
        for _ in 0..leases.owed_count() {
            let before = leases.owed_count();
            let Some(lease) = leases.take_owed() else { return };
            self.release_held(&lease.what().held(&entered), &entered);
            leases.end(&lease);
            if leases.owed_count() >= before {
                return;
            }
        }
    }

    /// Ends the leases that are older than `timeout`: lowers the clocks of their rows, without an
    /// update.
    #[cold]
    fn expire_leases(&self, timeout: Duration) {
        let leases = &self.shared.leases;
        let entered = leases.enter();
        for lease in leases.expire(timeout, RunningTime::now(), &entered) {
            self.count_wait(|counters| counters.leases_expired.add(1));
            self.release_held(&lease.what().held(&entered), &entered);
        }
    }

    /// Lowers the clock of each of `keys`, which must be distinct, by one count. Skips missing
    /// rows. Does nothing if the table was dropped, because its clocks are gone. The clock of a row
    /// that can't be read stays. If the disk is full or no file descriptor is free, a later
    /// Get lowers the remaining clocks (`LeaseRegistry::owe`).
    ///
    /// `hints` says where the rows were in the store after the Get.
    pub(crate) fn release(
        &self,
        keys: &[u64],
        hints: Option<Hints<'_>>,
        entered: &Entered<'_>,
    ) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut touch = TouchClocks { hints, reached: Reached::none_of(keys.len()) };
        let Err(first_error) = self.try_release(keys, &mut touch) else { return Ok(()) };
        if matches!(first_error, Error::Store(StoreError::Poisoned { .. })) {
            // The store can't write any more, so the clocks stay raised. This call wakes the
            // waiting Gets, which then fail; otherwise they would wait until their deadline.
            self.context().store.wake_waiters();
            return Err(first_error);
        }
        let left = places_keys(keys, |place| !touch.reached.contains(place));
        if matches!(&first_error, Error::Store(error) if error.is_shortage()) {
            self.shared.leases.owe(&left, entered);
            return Ok(());
        }
        let mut released = Ok(());
        for key in left {
            let mut touch = TouchClocks { hints: None, reached: Reached::none_of(1) };
            released = released.and(self.try_release(&[key], &mut touch));
        }
        released
    }

    fn try_release(&self, keys: &[u64], touch: &mut TouchClocks<'_>) -> Result<()> {
        match self.execute_in_parts(keys, Clock::Release, touch) {
            Ok(_) | Err(Error::TableDropped { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Calls [`release`](Self::release), and only counts a failure. For callers that already have
    /// another error to return, or that can't return an error.
    pub(crate) fn release_or_count(&self, keys: &[u64], entered: &Entered<'_>) {
        self.count_failure(self.release(keys, None, entered));
    }

    /// Lowers clocks like [`release_or_count`](Self::release_or_count), for the rows of a lease.
    pub(crate) fn release_held(&self, held: &LeasedRows<'_>, entered: &Entered<'_>) {
        self.count_failure(self.release(held.keys(), held.hints(), entered));
    }

    fn count_failure(&self, released: Result<()>) {
        if released.is_err() {
            self.count_wait(|counters| counters.release_failures.add(1));
        }
    }

    /// Lowers the clocks of the rows that a batch with [`Clock::Release`] did not reach. Called
    /// after such a batch has failed halfway.
    pub(crate) fn release_unreached(&self, keys: &[u64], reached: &Reached, entered: &Entered<'_>) {
        self.release_or_count(&places_keys(keys, |place| !reached.contains(place)), entered);
    }
}

pub(super) fn places_keys(keys: &[u64], chosen: impl Fn(usize) -> bool) -> Vec<u64> {
    let places = keys.iter().enumerate().filter(|&(place, _)| chosen(place));
    places.map(|(_, &key)| key).collect()
}
