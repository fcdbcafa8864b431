//! What the store counts.
//!
//! A batch counts for itself (its tally) and adds that once, at its end. Even once a batch is often when a
//! batch is a single key: two threads that add to one counter then pass its cache line back and forth,
//! some 50 ns each time. So a [`BatchCounter`] has a cell for each thread, on a cache line of its own, and a
//! reader sums them. The first [`CELLS`] threads of the process that live at a time have their cells to
//! themselves and add without a locked instruction; further ones share a last cell.

pub mod metrics;
pub(crate) mod space_holder;

use std::time::Duration;

use crate::sync::{AtomicU32, CountingU64, Ordering, global, thread_local};

/// Threads with a cell of their own.
const CELLS: usize = 16;

global! {
    /// Which of the first [`CELLS`] cells are taken, a bit each. An atomic, because a lock that another thread holds
    /// at a fork is never released in the child. Cells of threads that a child does not have stay taken there.
    static TAKEN: AtomicU32 = AtomicU32::new(0);
}

const _: () = assert!(CELLS <= 32);

/// A thread's cell, given back when the thread ends.
struct OwnCell(usize);

impl OwnCell {
    fn take() -> Self {
        let with_next = |taken: u32| {
            let cell = taken.trailing_ones();
            (cell < CELLS as u32).then(|| taken | 1 << cell)
        };
        // Acquire: pairs with the Release of the drop, so that this thread adds to what the last owner counted.
        let before = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, with_next);
        OwnCell(before.map_or(CELLS, |taken| taken.trailing_ones() as usize))
    }
}

impl Drop for OwnCell {
    fn drop(&mut self) {
        if self.0 < CELLS {
            // Release: pairs with the Acquire of `take`. The bit is set, so this clears it alone.
            TAKEN.fetch_sub(1 << self.0, Ordering::Release);
        }
    }
}

thread_local! {
    static OWN_CELL: OwnCell = OwnCell::take();
}

/// The cell in which this thread counts; [`CELLS`] for the shared one.
#[inline]
fn own_cell() -> usize {
    // A batch in the destructor of another thread local may come after this one's.
    OWN_CELL.try_with(|cell| cell.0).unwrap_or(CELLS)
}

/// A number alone on its cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell(CountingU64);

/// A counter that batches add to, once each.
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
        // Relaxed, all of them: counters order nothing.
        if place < CELLS {
            // Nobody else writes here.
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
        } else {
            cell.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().fold(0, |sum, cell| sum.wrapping_add(cell.0.load(Ordering::Relaxed)))
    }
}

/// A counter for what happens seldom.
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

    /// Raises a gauge of the most that was seen.
    pub(crate) fn raise(&self, value: u64) {
        if value > self.get() {
            self.0.fetch_max(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Something that batches wait for: how often, how long together, how long at most.
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

/// Batches of one key that took the short way, by what they did and where they found the row. All but
/// peeks find it in the mutable region. One counter each, because adding to five would cost as much as the
/// rest of such a batch.
#[derive(Debug, Default)]
pub(crate) struct Singles<T = BatchCounter> {
    pub(crate) peek_mutable: T,
    pub(crate) peek_read_only: T,
    pub(crate) get: T,
    pub(crate) update: T,
    /// Updates that change no value.
    pub(crate) touch: T,
    pub(crate) put: T,
}

impl Singles {
    pub(crate) fn get(&self) -> Singles<u64> {
        Singles {
            peek_mutable: self.peek_mutable.get(),
            peek_read_only: self.peek_read_only.get(),
            get: self.get.get(),
            update: self.update.get(),
            touch: self.touch.get(),
            put: self.put.get(),
        }
    }
}

impl Singles<u64> {
    pub(crate) fn all(&self) -> u64 {
        self.peek_mutable + self.peek_read_only + self.get + self.update + self.touch + self.put
    }
}

/// The live counters behind [`StoreStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) singles: Singles,
    pub(crate) batches: BatchCounter,
    pub(crate) peek_keys: BatchCounter,
    pub(crate) get_keys: BatchCounter,
    pub(crate) update_keys: BatchCounter,
    pub(crate) put_keys: BatchCounter,
    pub(crate) delete_keys: BatchCounter,
    pub(crate) changed: BatchCounter,
    pub(crate) deleted: BatchCounter,
    pub(crate) tables_dropped: Counter,
    pub(crate) hits_mutable: BatchCounter,
    pub(crate) hits_read_only: BatchCounter,
    pub(crate) hits_disk: BatchCounter,
    pub(crate) hits_cache: BatchCounter,
    pub(crate) missing: BatchCounter,
    pub(crate) inserted: BatchCounter,
    pub(crate) records_appended: BatchCounter,
    pub(crate) copied_to_tail: BatchCounter,
    pub(crate) disk_reads: BatchCounter,
    pub(crate) disk_reads_joined: BatchCounter,
    pub(crate) disk_queue_depth_max: Counter,
    pub(crate) disk_read_bytes: BatchCounter,
    pub(crate) disk_write_bytes: Counter,
    pub(crate) retained: BatchCounter,
    pub(crate) promoted: BatchCounter,
    pub(crate) promoted_used: BatchCounter,
    pub(crate) promoted_wasted: Counter,
    pub(crate) overtaken: BatchCounter,
    pub(crate) page_waits: Stalls,
    pub(crate) growth_steps: Stalls,
    pub(crate) growth_steps_cpu_us_max: Counter,
    pub(crate) checkpoint_pauses: Stalls,
    pub(crate) checkpoints: Counter,
    pub(crate) compacted_bytes: Counter,
    pub(crate) compaction_copied_bytes: Counter,
    pub(crate) compaction_us: Counter,
    pub(crate) compaction_waits: Stalls,
    pub(crate) freed_bytes: Counter,
    pub(crate) segments_freed: Counter,
    pub(crate) last_checkpoint_us: Counter,
    pub(crate) last_checkpoint_pause_us: Counter,
    /// The newest checkpoint's number; 0 for none.
    pub(crate) newest_checkpoint: Counter,
    /// Changes of rows that were counted before it began.
    pub(crate) changed_at_checkpoint: Counter,
}

impl Counters {
    /// Changes of rows since the store was opened, those of single keys included.
    pub(crate) fn changes(&self) -> u64 {
        self.changed.get() + self.singles.update.get() + self.singles.put.get()
    }

    /// Whether rows that lookahead brought in may still wait for their first use.
    pub(crate) fn promoted_waiting(&self) -> bool {
        self.promoted.get() > self.promoted_used.get() + self.promoted_wasted.get()
    }
}

/// A snapshot of a store's counters and gauges. Counters count since the bank was opened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// The device in use: `"io_uring"`, `"threads"` or `"memory"`.
    pub device: &'static str,
    /// Why the preferred device or direct I/O is not in use; empty if it is.
    pub device_notes: Vec<String>,
    /// Batches run.
    pub batches: u64,
    /// Keys of peeks.
    pub peek_keys: u64,
    /// Keys of gets.
    pub get_keys: u64,
    /// Keys of updates.
    pub update_keys: u64,
    /// Keys of puts.
    pub put_keys: u64,
    /// Keys of deletions.
    pub delete_keys: u64,
    /// Rows changed: updated, put, inserted by a get, deleted.
    pub changed: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Rows found in the mutable region.
    pub hits_mutable: u64,
    /// Rows found in the read-only region.
    pub hits_read_only: u64,
    /// Rows found on disk and read from there.
    pub hits_disk: u64,
    /// Rows found in the row cache, which holds copies of rows on disk.
    pub hits_cache: u64,
    /// Rows looked for and missing, those then inserted included.
    pub missing: u64,
    /// Rows inserted.
    pub inserted: u64,
    /// Records appended to the log, for whatever reason.
    pub records_appended: u64,
    /// Records appended because a row of the read-only region or of the disk was used.
    pub copied_to_tail: u64,
    /// Read requests to the device, after coalescing.
    pub disk_reads: u64,
    /// Rows on disk that came with the read of another.
    pub disk_reads_joined: u64,
    /// Gauge: the most reads that one batch had in flight at once.
    pub disk_queue_depth_max: u64,
    /// Bytes read from the device.
    pub disk_read_bytes: u64,
    /// Bytes written to the device.
    pub disk_write_bytes: u64,
    /// Rows copied to the tail before their page left memory, because they are used often.
    pub retained: u64,
    /// Rows brought into memory by `promote`.
    pub promoted: u64,
    /// Promoted rows that were then used from memory.
    pub promoted_used: u64,
    /// Promoted rows that left memory unused.
    pub promoted_wasted: u64,
    /// Rows that an operation had brought in before `promote` could.
    pub overtaken: u64,
    /// Times that a batch waited for a free frame.
    pub page_waits: u64,
    /// How long those waits took together, in microseconds.
    pub page_waits_us: u64,
    /// The longest of them, in microseconds.
    pub page_waits_us_max: u64,
    /// Times that a batch split buckets of the index after its inserts.
    pub growth_steps: u64,
    /// How long that took together, in microseconds.
    pub growth_steps_us: u64,
    /// The longest of them, in microseconds.
    pub growth_steps_us_max: u64,
    /// The most processor time that one of them took, in microseconds: what it cost itself, however long the
    /// thread was off the processor meanwhile. Of batches that insert 64 rows or more; less is not worth
    /// asking the system for.
    pub growth_steps_cpu_us_max: u64,
    /// How long checkpoints held batches, all together, in microseconds.
    pub checkpoint_pauses_us: u64,
    /// The longest of these pauses, in microseconds.
    pub checkpoint_pauses_us_max: u64,
    /// Gauge: the memory budget, in bytes.
    pub memory_budget_bytes: u64,
    /// Gauge: log frames in memory, in bytes.
    pub memory_frames_bytes: u64,
    /// Gauge: index, in bytes.
    pub memory_index_bytes: u64,
    /// Gauge: row cache, in bytes.
    pub memory_cache_bytes: u64,
    /// Gauge: read and write buffers, in bytes.
    pub memory_buffers_bytes: u64,
    /// Gauge: index slots in use.
    pub index_entries: u64,
    /// Gauge: rows that are there.
    pub live_rows: u64,
    /// Gauge: bytes of their records, headers included.
    pub live_bytes: u64,
    /// Gauge: bytes of log on disk.
    pub log_disk_bytes: u64,
    /// Gauge: bytes of those that are held only because checkpoints that are kept or read, or scans, name them.
    pub log_held_bytes: u64,
    /// Bytes of log that compaction went through.
    pub compacted_bytes: u64,
    /// Bytes of rows that it copied to the tail.
    pub compaction_copied_bytes: u64,
    /// Time that it took, in microseconds, without waits for work or for the throttle.
    pub compaction_us: u64,
    /// Times that a batch waited for compaction to make room.
    pub compaction_waits: u64,
    /// How long they waited together, in microseconds.
    pub compaction_waits_us: u64,
    /// The longest of these waits, in microseconds.
    pub compaction_waits_us_max: u64,
    /// Why compaction stopped; none while it works. [`Store::compact`](crate::Store::compact) tries again.
    pub compaction_stopped: Option<String>,
    /// What could not be cleared away of removed or unfinished checkpoints and of the log, a line each with path and
    /// reason. Each checkpoint tries again. Empty while clean-up works.
    pub not_removed: Vec<String>,
    /// Bytes given back to the file system.
    pub freed_bytes: u64,
    /// Segment files removed.
    pub segments_freed: u64,
    /// Gauge: where the log begins, in bytes.
    pub log_begin: u64,
    /// Gauge: where the part in memory begins, in bytes.
    pub log_head: u64,
    /// Gauge: where the mutable region begins, in bytes.
    pub log_read_only: u64,
    /// Gauge: where the log ends, in bytes.
    pub log_tail: u64,
    /// The size of a log page, in bytes.
    pub page_size_bytes: u64,
    /// Gauge: bytes of log that can be appended before the bank's addresses are used up. At 0 the bank takes no more
    /// writes. 512 TiB in a new bank, or 4,294,967,294 pages if that is less.
    pub log_address_left_bytes: u64,
    /// A warning, `None` until at most a sixteenth of the addresses is left.
    pub log_address_warning: Option<String>,
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// Gauge: duration of the last checkpoint, in microseconds.
    pub last_checkpoint_us: u64,
    /// Gauge: how long the last checkpoint held batches, in microseconds.
    pub last_checkpoint_pause_us: u64,
    /// Gauge: the newest checkpoint's number, whether it was taken since the store was opened or found then. 0 if there
    /// is none, or if the store is opened to read only.
    pub newest_checkpoint: u64,
    /// Gauge: how much of [`changed`](Self::changed) came after the newest checkpoint, or after the open where none was
    /// taken since: what closing the store now would lose. A row that changed twice counts twice, and rows of
    /// vocabularies count too. Changes that other threads make while a checkpoint begins may be in the checkpoint and
    /// still count here.
    pub changed_since_checkpoint: u64,
}

impl StoreStats {
    /// Bytes written to the device for each row changed since the bank was opened; zero if none was.
    ///
    /// A row that is changed often while it is in mutable memory is written once, so this may be far below
    /// the length of a record. What memory still holds unwritten is not in it.
    #[must_use]
    pub fn written_bytes_per_changed_row(&self) -> f64 {
        if self.changed == 0 { 0.0 } else { self.disk_write_bytes as f64 / self.changed as f64 }
    }

    /// Bytes of log on disk over bytes of rows; rows that are in memory only count as rows. 0 for a log
    /// of which nothing is on disk, infinite for one without rows.
    #[must_use]
    pub fn space_amplification(&self) -> f64 {
        if self.log_disk_bytes == 0 {
            0.0
        } else {
            self.log_disk_bytes as f64 / self.live_bytes as f64
        }
    }

    /// Bytes of log that compaction went through in each second of its work.
    #[must_use]
    pub fn compaction_bytes_per_s(&self) -> f64 {
        self.compacted_bytes as f64 * 1e6 / self.compaction_us.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_lose_no_count() {
        // More threads than cells, so that some share the last; and in two waves, so that cells change owner.
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

    #[test]
    fn a_store_that_changed_nothing_has_written_nothing_a_row() {
        assert_eq!(StoreStats::default().written_bytes_per_changed_row(), 0.0);
    }
}
