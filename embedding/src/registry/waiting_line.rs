//! The line of Gets that have waited for a long time. Each Get in the line keeps later Gets away
//! from its rows.
//!
//! **Problem.** A Get takes all of its rows or none. If many small Gets come and go, at every
//! attempt some row of a large Get is at its bound. The large Get then never succeeds, although
//! every lease is short.
//!
//! **Approach.** A Get that has waited for [`PATIENCE`] enters the table's line, which reserves its
//! rows. A Get that needs a row of an earlier reservation queues behind it and takes nothing.
//! Reserved rows therefore get no new leases. The first Get in line succeeds once the present
//! leases on its rows have ended, and leaves the line. A Get's wait is at most `PATIENCE`, plus the
//! longest lease once for itself and once for each Get ahead of it. Two large Gets in the line
//! proceed one after the other, so they can't block each other.
//!
//! **Gets that pass the line.** Queueing must not make a cycle. A reservation waits for leases, so
//! the threads of these leases must not wait for the reservation.
//! - A Get passes at once if its thread has a lease on a reserved row. A thread that gets its next
//!   batch before it ends the last lease can therefore still delay a large Get.
//! - Any other Get queues for at most a quarter of `wait_timeout`, and then passes. That ends
//!   cycles over several tables.
//!
//! While the line is empty, it costs a Get one atomic load.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use embank_kv::locks::{Condvar, Mutex};

/// Time that a Get waits before it reserves its rows. Shorter waits are normal with a staleness
/// bound. A reservation has a cost: it also keeps other Gets from those of its rows that are free.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// The Gets of a table that have reserved their rows, in order of reservation.
#[derive(Debug, Default)]
pub(crate) struct WaitingLine {
    len: AtomicUsize,
    places: Mutex<Line>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    next_number: u64,
    places: Vec<Arc<Place>>,
}

/// A Get's place in the line.
#[derive(Debug)]
pub(crate) struct Place {
    number: u64,
    pub(crate) keys: HashSet<u64>,
}

/// Guard of a place in the line. Dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    line: &'a WaitingLine,
    place: Arc<Place>,
}

impl WaitingLine {
    /// True if no Get is in the line.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a Get that misses a new reservation only takes the reserved rows first. The
        // reservation then waits for that Get's lease.
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Enters the line at its end and reserves the rows of `keys`.
    pub(crate) fn reserve(&self, keys: &[u64]) -> Reserved<'_> {
        let keys = keys.iter().copied().collect();
        let mut line = self.places.lock();
        let place = Arc::new(Place { number: line.next_number, keys });
        line.next_number += 1;
        line.places.push(Arc::clone(&place));
        self.len.store(line.places.len(), Ordering::Relaxed);
        Reserved { line: self, place }
    }

    /// Returns the first place in the line that blocks the caller: it has reserved a row of `keys`,
    /// and `passes(place)` is false. If the caller has its own place, only places before it count.
    pub(crate) fn ahead(
        &self,
        keys: &[u64],
        own: Option<&Reserved<'_>>,
        passes: impl Fn(&Place) -> bool,
    ) -> Option<Arc<Place>> {
        let line = self.places.lock();
        let before = |place: &&Arc<Place>| own.is_none_or(|own| place.number < own.place.number);
        let mut ahead = line.places.iter().take_while(before);
        let in_the_way =
            |place: &&Arc<Place>| keys.iter().any(|key| place.keys.contains(key)) && !passes(place);
        ahead.find(in_the_way).cloned()
    }

    /// Waits until `place` has left the line. Returns false if it has not left by `until`.
    pub(crate) fn wait_left(&self, place: &Arc<Place>, until: Instant) -> bool {
        let mut line = self.places.lock();
        // The loop ends when `place` has left, or at the deadline.
        while line.places.iter().any(|other| Arc::ptr_eq(other, place)) {
            if self.left.wait_until(&mut line, until).timed_out() {
                return !line.places.iter().any(|other| Arc::ptr_eq(other, place));
            }
        }
        true
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut line = self.line.places.lock();
        line.places.retain(|place| !Arc::ptr_eq(place, &self.place));
        self.line.len.store(line.places.len(), Ordering::Relaxed);
        drop(line);
        self.line.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_queues_behind_earlier_reservations_of_its_rows_alone() {
        let line = WaitingLine::default();
        assert!(line.is_empty());
        let first = line.reserve(&[1, 2]);
        let second = line.reserve(&[2, 3]);
        let none_passes = |_: &Place| false;
        let number = |place: Option<Arc<Place>>| place.map(|place| place.number);
        assert_eq!(number(line.ahead(&[9, 2], None, none_passes)), Some(0));
        assert_eq!(number(line.ahead(&[3], None, none_passes)), Some(1));
        assert_eq!(number(line.ahead(&[4], None, none_passes)), None);
        assert_eq!(number(line.ahead(&[2, 3], Some(&second), none_passes)), Some(0));
        assert_eq!(number(line.ahead(&[1, 2], Some(&first), none_passes)), None);
        assert_eq!(number(line.ahead(&[2], None, |place| place.number == 0)), Some(1));
        let ahead = line.ahead(&[2, 3], Some(&second), none_passes).unwrap();
        assert!(!line.wait_left(&ahead, Instant::now()));
        drop(first);
        assert!(line.wait_left(&ahead, Instant::now()));
        assert_eq!(number(line.ahead(&[2, 3], Some(&second), none_passes)), None);
        drop(second);
        assert!(line.is_empty());
    }

    #[test]
    fn a_place_that_is_left_wakes_those_behind_it() {
        let line = WaitingLine::default();
        let first = line.reserve(&[1]);
        let ahead = line.ahead(&[1], None, |_| false).unwrap();
        let far = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let behind = scope.spawn(|| line.wait_left(&ahead, far));
            drop(first);
            assert!(behind.join().unwrap());
        });
    }
}
