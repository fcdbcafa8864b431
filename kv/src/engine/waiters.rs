//! Parks threads until a row has fewer outstanding Gets.
//!
//! Rows are distributed over stripes. While a thread waits in any stripe, each stripe counts the
//! releases of its rows. A thread that must wait takes a ticket with the stripe's count, and tries
//! its Get once more. If that fails, the thread parks until the count differs from the ticket's
//! count. No wake-up is lost: the second try sees a release that came before the ticket, and a
//! later release changes the count. While no thread waits, a batch pays one load.

use std::time::Instant;

use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;
use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, Planted, fence, planted};

const STRIPES: usize = 64;

/// The threads that wait for a row's release, by stripe.
#[derive(Debug)]
pub(crate) struct Waiters {
    key_hash: KeyHash,
    tickets: AtomicUsize,
    stripes: Box<[Stripe]>,
}

#[derive(Debug, Default)]
struct Stripe {
    releases: Mutex<u64>,
    released: Condvar,
}

/// The number of releases that a row's stripe had counted before an attempt to get the row. See
/// [`Store::release_ticket`](crate::Store::release_ticket).
#[derive(Debug)]
#[must_use]
pub struct ReleaseTicket<'a> {
    waiters: &'a Waiters,
    stripe: &'a Stripe,
    releases: u64,
}

impl Waiters {
    /// Makes the stripes. `key_hash` is the bank's secret hash; it chooses the stripe of a key, so
    /// no caller can choose keys that share a stripe.
    pub(crate) fn new(key_hash: KeyHash) -> Self {
        Waiters {
            key_hash,
            tickets: AtomicUsize::new(0),
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
        }
    }

    fn stripe(&self, table: TableNumber, key: u64) -> &Stripe {
        &self.stripes[(self.key_hash.of(table, key) >> 58) as usize % STRIPES]
    }

    pub(crate) fn ticket(&self, table: TableNumber, key: u64) -> ReleaseTicket<'_> {
        self.tickets.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `released`. Either the releasing batch sees this ticket, or the
        // ticket's owner sees the lower clock when it tries again.
        fence(Ordering::SeqCst);
        let stripe = self.stripe(table, key);
        ReleaseTicket { waiters: self, stripe, releases: *stripe.releases.lock() }
    }

    /// Wakes the threads that wait for these rows or for rows of the same stripes. Must be called
    /// after the clocks of the rows were lowered.
    pub(crate) fn released(&self, table: TableNumber, keys: &[u64]) {
        fence(Ordering::SeqCst);
        if self.tickets.load(Ordering::SeqCst) == 0 {
            return;
        }
        for &key in keys {
            let stripe = self.stripe(table, key);
            *stripe.releases.lock() += u64::from(!planted(Planted::ReleaseUncounted));
            stripe.released.notify_all();
        }
    }
}

impl Waiters {
    /// Wakes all waiting threads. Each of them tries its Get again.
    pub(crate) fn wake_all(&self) {
        for stripe in &self.stripes {
            *stripe.releases.lock() += 1;
            stripe.released.notify_all();
        }
    }
}

impl ReleaseTicket<'_> {
    /// Parks until a row of the stripe is released after the ticket was taken. Returns false at the
    /// deadline.
    pub(crate) fn wait(self, deadline: Instant) -> bool {
        let mut releases = self.stripe.releases.lock();
        while *releases == self.releases {
            if self.stripe.released.wait_until(&mut releases, deadline).timed_out() {
                return *releases != self.releases;
            }
        }
        true
    }
}

impl Drop for ReleaseTicket<'_> {
    fn drop(&mut self) {
        self.waiters.tickets.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TABLE: TableNumber = TableNumber(3);

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_release_since_the_ticket_ends_the_wait_and_one_before_does_not() {
        let waiters = Waiters::new(KeyHash::new(7));
        waiters.released(TABLE, &[5]);
        let ticket = waiters.ticket(TABLE, 5);
        assert!(!ticket.wait(Instant::now()), "the release was before the ticket");
        let ticket = waiters.ticket(TABLE, 5);
        waiters.released(TABLE, &[4, 5, 6]);
        assert!(ticket.wait(soon()));
    }

    #[test]
    fn a_release_in_another_stripe_does_not_end_the_wait() {
        let waiters = Waiters::new(KeyHash::new(7));
        let ticket = waiters.ticket(TABLE, 0);
        let elsewhere =
            (1..).find(|&key| !std::ptr::eq(waiters.stripe(TABLE, key), ticket.stripe)).unwrap();
        waiters.released(TABLE, &[elsewhere]);
        assert!(!ticket.wait(Instant::now()));
    }

    #[test]
    fn tickets_are_counted_as_long_as_they_live() {
        let waiters = Waiters::new(KeyHash::new(7));
        let tickets: Vec<_> = (0..10).map(|key| waiters.ticket(TABLE, key)).collect();
        assert_eq!(waiters.tickets.load(Ordering::SeqCst), 10);
        drop(tickets);
        assert!(!waiters.ticket(TABLE, 1).wait(Instant::now()));
        assert_eq!(waiters.tickets.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn every_waiter_of_a_stripe_is_woken() {
        let waiters = Waiters::new(KeyHash::new(7));
        let tickets: Vec<_> = (0..3).map(|_| waiters.ticket(TABLE, 9)).collect();
        std::thread::scope(|s| {
            let waits: Vec<_> =
                tickets.into_iter().map(|ticket| s.spawn(|| ticket.wait(soon()))).collect();
            waiters.released(TABLE, &[9]);
            assert!(waits.into_iter().all(|wait| wait.join().unwrap()));
        });
    }
}
