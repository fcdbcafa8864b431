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

use crate::statistics;
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

    /// Counts a checkpoint that took so long, and held batches for so long.
    pub(crate) fn note_checkpoint(&self, taken: Duration, paused: Duration) {
        self.checkpoints.add(1);
        self.last_checkpoint_us.set(taken.as_micros() as u64);
        self.last_checkpoint_pause_us.set(paused.as_micros() as u64);
        self.checkpoint_pauses.note(paused);
    }

    /// Whether rows that lookahead brought in may still wait for their first use.
    pub(crate) fn promoted_waiting(&self) -> bool {
        self.promoted.get() > self.promoted_used.get() + self.promoted_wasted.get()
    }
}

statistics! {
    /// A snapshot of a store's counters and gauges. Counters count since the bank was opened.
    #[derive(Debug, Default, Clone, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct StoreStats counted by Counters {
        /// Batches run.
        batches: Counter Count in operations.batches
            as "embank_batches" "Batches run"
            from |c| c.batches.get();
        /// Keys of peeks.
        peek_keys: Counter Count in operations.peek_keys
            as "embank_keys" { operation: "peek" } "Keys of batches"
            from |c| c.peek_keys.get();
        /// Keys of gets.
        get_keys: Counter Count in operations.get_keys
            as "embank_keys" { operation: "get" } "Keys of batches"
            from |c| c.get_keys.get();
        /// Keys of updates.
        update_keys: Counter Count in operations.update_keys
            as "embank_keys" { operation: "update" } "Keys of batches"
            from |c| c.update_keys.get();
        /// Keys of puts.
        put_keys: Counter Count in operations.put_keys
            as "embank_keys" { operation: "put" } "Keys of batches"
            from |c| c.put_keys.get();
        /// Keys of deletions.
        delete_keys: Counter Count in operations.delete_keys
            as "embank_keys" { operation: "delete" } "Keys of batches"
            from |c| c.delete_keys.get();
        /// Rows found in the mutable region.
        hits_mutable: Counter Count in hits.mutable
            as "embank_hits" { region: "mutable" } "Rows found"
            from |c| c.hits_mutable.get();
        /// Rows found in the read-only region.
        hits_read_only: Counter Count in hits.read_only
            as "embank_hits" { region: "read_only" } "Rows found"
            from |c| c.hits_read_only.get();
        /// Rows found on disk and read from there.
        hits_disk: Counter Count in hits.disk
            as "embank_hits" { region: "disk" } "Rows found"
            from |c| c.hits_disk.get();
        /// Rows found in the row cache, which holds copies of rows on disk.
        hits_cache: Counter Count in hits.cache
            as "embank_hits" { region: "cache" } "Rows found"
            from |c| c.hits_cache.get();
        /// Rows looked for and missing, those then inserted included.
        missing: Counter Count in hits.missing
            as "embank_missing" "Rows looked for and missing"
            from |c| c.missing.get();
        /// Rows inserted.
        inserted: Counter Count in inserted
            as "embank_inserted" "Rows inserted"
            from |c| c.inserted.get();
        /// Rows changed: updated, put, inserted by a get, deleted.
        changed: Counter Count in operations.changed
            as "embank_changed" "Rows changed, inserted or deleted"
            from |c| c.changes();
        /// Gauge: how much of [`changed`](Self::changed) came after the newest checkpoint, or after the open where none was
        /// taken since: what closing the store now would lose. A row that changed twice counts twice, and rows of
        /// vocabularies count too. Changes that other threads make while a checkpoint begins may be in the checkpoint and
        /// still count here.
        changed_since_checkpoint: Gauge Count in changed_since_checkpoint
            as "embank_changed_since_checkpoint" "Changes of rows since the newest checkpoint";
        /// Rows deleted.
        deleted: Counter Count in operations.deleted
            as "embank_deleted" "Rows deleted"
            from |c| c.deleted.get();
        /// Records appended to the log, for whatever reason.
        records_appended: Counter Count in records_appended
            as "embank_records" "Records appended"
            from |c| c.records_appended.get();
        /// Records appended because a row of the read-only region or of the disk was used.
        copied_to_tail: Counter Count in copied_to_tail
            as "embank_copied" "Records copied to the tail"
            from |c| c.copied_to_tail.get();
        /// Rows copied to the tail before their page left memory, because they are used often.
        retained: Counter Count in retained
            as "embank_retained" "Rows kept from leaving memory because they are used often"
            from |c| c.retained.get();
        /// Rows brought into memory by `promote`.
        promoted: Counter Count
            as "embank_promoted_rows" { fate: "all" } "Rows brought into memory ahead"
            from |c| c.promoted.get();
        /// Promoted rows that were then used from memory.
        promoted_used: Counter Count
            as "embank_promoted_rows" { fate: "used" } "Rows brought into memory ahead"
            from |c| c.promoted_used.get();
        /// Promoted rows that left memory unused.
        promoted_wasted: Counter Count
            as "embank_promoted_rows" { fate: "wasted" } "Rows brought into memory ahead"
            from |c| c.promoted_wasted.get();
        /// Rows that an operation had brought in before `promote` could.
        overtaken: Counter Count
            as "embank_promoted_rows" { fate: "overtaken" } "Rows brought into memory ahead"
            from |c| c.overtaken.get();
        /// Read requests to the device, after coalescing.
        disk_reads: Counter Count in disk.reads
            as "embank_disk_reads" "Read requests to the device"
            from |c| c.disk_reads.get();
        /// Rows on disk that came with the read of another.
        disk_reads_joined: Counter Count in disk.reads_joined
            as "embank_disk_reads_joined" "Rows that came with the read of another"
            from |c| c.disk_reads_joined.get();
        /// Gauge: the most reads that one batch had in flight at once.
        disk_queue_depth_max: Gauge Count in disk.queue_depth_max
            as "embank_disk_queue_depth_max" "The most reads that one batch had in flight"
            from |c| c.disk_queue_depth_max.get();
        /// Bytes read from the device.
        disk_read_bytes: Counter Bytes in disk.read_bytes
            as "embank_disk_read_bytes" "Bytes read"
            from |c| c.disk_read_bytes.get();
        /// Bytes written to the device.
        disk_write_bytes: Counter Bytes in disk.write_bytes
            as "embank_disk_write_bytes" "Bytes written"
            from |c| c.disk_write_bytes.get();
        /// Gauge: rows that are there.
        live_rows: Gauge Count in space.live_rows
            as "embank_live_rows" "Rows that are there";
        /// Gauge: bytes of their records, headers included.
        live_bytes: Gauge Bytes in space.live_bytes
            as "embank_live_bytes" "Bytes of their records";
        /// Gauge: bytes of log on disk.
        log_disk_bytes: Gauge Bytes in space.log_disk_bytes
            as "embank_log_disk_bytes" "Bytes of log on disk";
        /// Gauge: bytes of log on disk that are held only because checkpoints that are kept or read, or scans, name them.
        log_held_bytes: Gauge Bytes in space.log_held_bytes
            as "embank_log_held_bytes" "Bytes held for checkpoints";
        /// Bytes of log that compaction went through.
        compacted_bytes: Counter Bytes in compaction.compacted_bytes
            as "embank_compacted_bytes" "Log compacted"
            from |c| c.compacted_bytes.get();
        /// Bytes of rows that it copied to the tail.
        compaction_copied_bytes: Counter Bytes in compaction.copied_bytes
            as "embank_compaction_copied_bytes" "Rows copied"
            from |c| c.compaction_copied_bytes.get();
        /// Time that it took, in microseconds, without waits for work or for the throttle.
        compaction_us: Counter Microseconds in compaction.us
            as "embank_compaction_seconds" "Time it took"
            from |c| c.compaction_us.get();
        /// Bytes given back to the file system.
        freed_bytes: Counter Bytes in space.freed_bytes
            as "embank_freed_bytes" "Bytes given back"
            from |c| c.freed_bytes.get();
        /// Segment files removed.
        segments_freed: Counter Count in space.segments_freed
            as "embank_freed_segments" "Segment files removed"
            from |c| c.segments_freed.get();
        /// Times that a batch waited for a free frame.
        page_waits: Counter Count in stalls.page_waits
            as "embank_stalls" { cause: "page" } "Times that batches stood still"
            from |c| c.page_waits.count();
        /// Times that a batch waited for compaction to make room.
        compaction_waits: Counter Count in stalls.compaction_waits
            as "embank_stalls" { cause: "compaction" } "Times that batches stood still"
            from |c| c.compaction_waits.count();
        /// Times that a batch split buckets of the index after its inserts.
        growth_steps: Counter Count in stalls.growth_steps
            as "embank_stalls" { cause: "growth" } "Times that batches stood still"
            from |c| c.growth_steps.count();
        /// Checkpoints taken.
        checkpoints: Counter Count in checkpoints
            as "embank_stalls" { cause: "checkpoint" } "Times that batches stood still"
            from |c| c.checkpoints.get();
        /// How long those waits took together, in microseconds.
        page_waits_us: Counter Microseconds in stalls.page_waits_us
            as "embank_stalls_seconds" { cause: "page" } "How long they stood still"
            from |c| c.page_waits.total_us();
        /// How long they waited together, in microseconds.
        compaction_waits_us: Counter Microseconds in stalls.compaction_waits_us
            as "embank_stalls_seconds" { cause: "compaction" } "How long they stood still"
            from |c| c.compaction_waits.total_us();
        /// How long that took together, in microseconds.
        growth_steps_us: Counter Microseconds in stalls.growth_steps_us
            as "embank_stalls_seconds" { cause: "growth" } "How long they stood still"
            from |c| c.growth_steps.total_us();
        /// How long checkpoints held batches, all together, in microseconds.
        checkpoint_pauses_us: Counter Microseconds in stalls.checkpoint_pauses_us
            as "embank_stalls_seconds" { cause: "checkpoint" } "How long they stood still"
            from |c| c.checkpoint_pauses.total_us();
        /// The longest of them, in microseconds.
        page_waits_us_max: Gauge Microseconds in stalls.page_waits_us_max
            as "embank_stall_longest_seconds" { cause: "page" } "The longest of them"
            from |c| c.page_waits.longest_us();
        /// The longest of these waits, in microseconds.
        compaction_waits_us_max: Gauge Microseconds in stalls.compaction_waits_us_max
            as "embank_stall_longest_seconds" { cause: "compaction" } "The longest of them"
            from |c| c.compaction_waits.longest_us();
        /// The longest of them, in microseconds.
        growth_steps_us_max: Gauge Microseconds in stalls.growth_steps_us_max
            as "embank_stall_longest_seconds" { cause: "growth" } "The longest of them"
            from |c| c.growth_steps.longest_us();
        /// The most processor time that one of them took, in microseconds: what it cost itself, however long the
        /// thread was off the processor meanwhile. Of batches that insert 64 rows or more; less is not worth
        /// asking the system for.
        growth_steps_cpu_us_max: Gauge Microseconds in stalls.growth_steps_cpu_us_max
            as "embank_stall_longest_seconds" { cause: "growth (processor time)" } "The longest of them"
            from |c| c.growth_steps_cpu_us_max.get();
        /// The longest of these pauses, in microseconds.
        checkpoint_pauses_us_max: Gauge Microseconds in stalls.checkpoint_pauses_us_max
            as "embank_stall_longest_seconds" { cause: "checkpoint" } "The longest of them"
            from |c| c.checkpoint_pauses.longest_us();
        /// Gauge: duration of the last checkpoint, in microseconds.
        last_checkpoint_us: Gauge Microseconds in last_checkpoint_us
            as "embank_last_checkpoint_seconds" "Duration of the last checkpoint"
            from |c| c.last_checkpoint_us.get();
        /// Gauge: how long the last checkpoint held batches, in microseconds.
        last_checkpoint_pause_us: Gauge Microseconds in last_checkpoint_pause_us
            as "embank_last_checkpoint_pause_seconds" "How long the last checkpoint held batches"
            from |c| c.last_checkpoint_pause_us.get();
        /// Gauge: the newest checkpoint's number, whether it was taken since the store was opened or found then. 0 if there
        /// is none, or if the store is opened to read only.
        newest_checkpoint: Gauge Count in newest_checkpoint
            as "embank_newest_checkpoint" "The newest checkpoint's number"
            from |c| c.newest_checkpoint.get();
        /// Gauge: the memory budget, in bytes.
        memory_budget_bytes: Gauge Bytes
            as "embank_memory_budget_bytes" "The store's memory budget";
        /// Gauge: log frames in memory, in bytes.
        memory_frames_bytes: Gauge Bytes in memory.frames_bytes
            as "embank_memory_bytes" { part: "frames" } "Memory in use";
        /// Gauge: index, in bytes.
        memory_index_bytes: Gauge Bytes in memory.index_bytes
            as "embank_memory_bytes" { part: "index" } "Memory in use";
        /// Gauge: row cache, in bytes.
        memory_cache_bytes: Gauge Bytes in memory.cache_bytes
            as "embank_memory_bytes" { part: "cache" } "Memory in use";
        /// Gauge: read and write buffers, in bytes.
        memory_buffers_bytes: Gauge Bytes in memory.buffers_bytes
            as "embank_memory_bytes" { part: "buffers" } "Memory in use";
        /// Gauge: index slots in use.
        index_entries: Gauge Count in index_entries
            as "embank_index_entries" "Index slots in use";
        /// Gauge: where the log begins, in bytes.
        log_begin: Gauge Bytes in log.begin
            as "embank_log_address" { boundary: "begin" } "Boundaries of the log, in bytes";
        /// Gauge: where the part in memory begins, in bytes.
        log_head: Gauge Bytes in log.head
            as "embank_log_address" { boundary: "head" } "Boundaries of the log, in bytes";
        /// Gauge: where the mutable region begins, in bytes.
        log_read_only: Gauge Bytes in log.read_only
            as "embank_log_address" { boundary: "read_only" } "Boundaries of the log, in bytes";
        /// Gauge: where the log ends, in bytes.
        log_tail: Gauge Bytes in log.tail
            as "embank_log_address" { boundary: "tail" } "Boundaries of the log, in bytes";
        /// Gauge: bytes of log that can be appended before the bank's addresses are used up. At 0 the bank takes no more
        /// writes. 512 TiB in a new bank, or 4,294,967,294 pages if that is less.
        log_address_left_bytes: Gauge Bytes in log.address_left_bytes
            as "embank_log_address_left_bytes" "Bytes of log that can be appended before the bank's addresses are used up";
        /// The size of a log page, in bytes.
        page_size_bytes: Gauge Bytes in log.page_size_bytes
            as "embank_page_bytes" "Size of a log page";
    } and {
        /// The device in use: `"io_uring"`, `"threads"` or `"memory"`.
        pub device: &'static str,
        /// Why the preferred device or direct I/O is not in use; empty if it is.
        pub device_notes: Vec<String>,
        /// Why compaction stopped; none while it works. [`Store::compact`](crate::Store::compact) tries again.
        pub compaction_stopped: Option<String>,
        /// What could not be cleared away of removed or unfinished checkpoints and of the log, a line each with path and
        /// reason. Each checkpoint tries again. Empty while clean-up works.
        pub not_removed: Vec<String>,
        /// A warning, `None` until at most a sixteenth of the addresses is left.
        pub log_address_warning: Option<String>,
    }
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
