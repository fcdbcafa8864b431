//! How threads count.
//!
//! A batch counts in a tally of its own and adds the tally to the store's counters once, at its
//! end. A batch of one key is so short that even one addition to a shared counter costs too much.
//! Two threads that add to one counter pass its cache line back and forth, and each transfer takes
//! about 50 ns.
//!
//! A [`BatchCounter`] therefore has [`CELLS`] cells for one thread each, and each cell is on a
//! cache line of its own. A thread takes a free cell when it first counts, and adds to it without a
//! locked instruction. If no cell is free, the thread adds to one more cell, which all such threads
//! share. A reader sums the cells.

use std::time::Duration;

use crate::sync::{AtomicU32, CountingU64, Ordering, global, thread_local};

/// Number of cells for one thread each. At most 32, because a mask of 32 bits records which cells
/// are taken.
const CELLS: usize = 16;

global! {
    /// Which of the [`CELLS`] cells are taken, one bit each. The bits are an atomic and not a value
    /// under a lock: a lock that another thread holds during a fork stays locked in the child.
    /// Cells of the parent's other threads stay taken in the child, although the child does not
    /// have these threads.
    static TAKEN: AtomicU32 = AtomicU32::new(0);
}

const _: () = assert!(CELLS <= 32);

/// A thread's claim on one cell of the counters. It is dropped when the thread ends, and the cell
/// is then free for another thread.
struct OwnCell(usize);

impl OwnCell {
    fn take() -> Self {
        let with_next = |taken: u32| {
            let cell = taken.trailing_ones();
            (cell < CELLS as u32).then(|| taken | 1 << cell)
        };
        // Acquire: pairs with the Release in `drop`, so that this thread adds to the count that the
        // cell's last owner left.
        let before = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, with_next);
        OwnCell(before.map_or(CELLS, |taken| taken.trailing_ones() as usize))
    }
}

impl Drop for OwnCell {
    fn drop(&mut self) {
        if self.0 < CELLS {
            // Release: pairs with the Acquire in `take`. The bit is set, so the subtraction clears
            // only this bit.
            TAKEN.fetch_sub(1 << self.0, Ordering::Release);
        }
    }
}

thread_local! {
    static OWN_CELL: OwnCell = OwnCell::take();
}

/// The number of the cell in which this thread counts, or [`CELLS`] for the shared cell.
#[inline]
fn own_cell() -> usize {
    // `OWN_CELL` can already be destroyed, because the destructor of another thread local may run a
    // batch later. The thread then counts in the shared cell.
    OWN_CELL.try_with(|cell| cell.0).unwrap_or(CELLS)
}

/// A number alone on its cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell(CountingU64);

/// A counter that every batch adds to once.
#[derive(Debug, Default)]
pub(crate) struct BatchCounter([Cell; CELLS + 1]);

impl BatchCounter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        if count == 0 {
            return;
        }
        let place = own_cell();
        let cell = &self.0[place].0;
        // Relaxed for every access: a counter orders no other memory.
        if place < CELLS {
            // No other thread writes to this cell.
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
        } else {
            cell.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().fold(0, |sum, cell| sum.wrapping_add(cell.0.load(Ordering::Relaxed)))
    }
}

/// A counter for rare events.
#[derive(Debug, Default)]
pub(crate) struct Counter(CountingU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        if count != 0 {
            // Relaxed: counters order nothing.
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets a gauge of the largest value to `value` if `value` is larger.
    pub(crate) fn raise(&self, value: u64) {
        if value > self.get() {
            self.0.fetch_max(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The waits of batches for one cause: their number, their total time and the longest one.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    count: CountingU64,
    total_ns: CountingU64,
    longest_ns: CountingU64,
}

impl Stalls {
    pub(crate) fn note(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: counters order nothing.
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(took_ns, Ordering::Relaxed);
        self.longest_ns.fetch_max(took_ns, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn total_us(&self) -> u64 {
        self.total_ns.load(Ordering::Relaxed) / 1_000
    }

    pub(crate) fn longest_us(&self) -> u64 {
        self.longest_ns.load(Ordering::Relaxed).div_ceil(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_lose_no_count() {
        // The test has more threads than cells, so that some threads share the last cell. It starts
        // the threads twice, so that cells get new owners.
        let counter = BatchCounter::default();
        for _ in 0..2 {
            std::thread::scope(|scope| {
                for _ in 0..2 * CELLS {
                    scope.spawn(|| (0..1_000).for_each(|_| counter.add(3)));
                }
            });
        }
        assert_eq!(counter.get(), 2 * 2 * CELLS as u64 * 3_000);
    }

    #[test]
    fn stalls_keep_their_number_sum_and_longest() {
        let stalls = Stalls::default();
        for ms in [2, 5, 3] {
            stalls.note(Duration::from_millis(ms));
        }
        assert_eq!((stalls.count(), stalls.total_us(), stalls.longest_us()), (3, 10_000, 5_000));
    }
}
