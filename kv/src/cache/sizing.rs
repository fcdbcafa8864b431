//! Decides how much memory the cache has.
//!
//! Log and cache share the memory that index and buffers leave. Training needs memory for the log,
//! because rows that training uses never enter the cache. Peeks need memory for the cache, because
//! they write nothing to the log. The cache therefore takes the log's growth as a sign that
//! training runs. Copies by compaction also count as growth. The cache checks the log's growth
//! after each batch that looks for rows below the log's head.
//!
//! - While the log grows by less than a shard's memory, the cache doubles repeatedly. It does so
//!   each time that peeks have looked for as many rows below the head as the cache holds. The cache
//!   can't fill with fewer lookups than that.
//! - If the cache is full and the log has not grown since the last check, the cache takes frames
//!   that the log does not use.
//! - Each time that the log has grown by a shard's memory, the cache gives a shard back to the log.
//!   It keeps one part in [`LEAST_PART`] of its maximum, and gives nothing back while the log has
//!   unused frames.
//!
//! The log always keeps at least a sixteenth of the shared memory (`Budget::cache_bytes_max`). When
//! the index grows or a scan begins, the cache shrinks first, then the log.

use super::{ReadCache, SLOTS};
use crate::log::Log;
use crate::sync::Ordering;
use crate::testing::mechanisms::{Mechanism, is_on};

/// The cache keeps at least one part in this number of its maximum, so that rows peeked at between
/// updates can be cached.
const LEAST_PART: usize = 32;

/// Largest factor by which a full cache grows into unused frames in one step. Each step loses the
/// rows of moved slots, so a larger factor loses fewer rows while the cache is small.
const GROWTH: usize = 4;

/// Counts that batches report to the cache.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Demand {
    /// Peeks at addresses below the log's head.
    pub(crate) lookups: u64,
    /// Insertions that evicted another row, or whose shard has no memory yet.
    pub(crate) evicted: u64,
    /// Length of a recent record, which determines the layout of new shards.
    pub(crate) record_bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Sizing {
    /// The demand since the window began. A window begins when the cache has grown, and when the
    /// log has grown by a shard's memory.
    window: Demand,
    /// The log's tail at the last check that found the log grown by a shard's memory. The value is
    /// 0 before the first batch.
    tail: u64,
    /// The log's tail at the last check.
    last_tail: u64,
    /// Number of shards that have slots.
    open: usize,
    /// Number of shards that will open next. The budget was charged for their memory, but the log
    /// has not freed that memory yet.
    pending: usize,
}

/// The log's growth, as one check finds it.
struct Growth {
    /// Bytes by which the log has grown since `Sizing::tail`, divided by a shard's bytes and
    /// rounded down.
    shards: usize,
    /// True if the log has not grown since the last check.
    rests: bool,
}

impl ReadCache {
    /// Returns the bytes of the cache's open shards.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: the value is only reported.
        self.open_bytes.load(Ordering::Relaxed)
    }

    fn set_open(&self, sizing: &mut Sizing, open: usize) {
        sizing.open = open;
        self.open_bytes.store((open * self.shard_bytes) as u64, Ordering::Relaxed);
    }

    /// Records a batch's demand, and resizes the cache if needed. The caller must not be pinned.
    /// The call never waits: if another thread is resizing, this batch's counts are dropped.
    pub(crate) fn resize(&self, demand: &Demand, log: &Log) {
        if self.shards.is_empty() {
            return;
        }
        let Some(mut sizing) = self.sizing.try_lock() else { return };
        let growth = self.log_growth(&mut sizing, log);
        // `log_growth` may begin a new window, for which lookups and evictions are counted from 0.
        // This batch's counts belong to the new window, so they are added afterwards.
        sizing.add(demand);
        if sizing.pending > 0 {
            if log.is_within_allowance() {
                self.open_pending(&mut sizing, log);
            }
            return;
        }
        let least = (self.shards.len() / LEAST_PART).max(1);
        let open = sizing.open;
        let moves = is_on(Mechanism::CacheSizing);
        if moves && growth.shards > 0 && open > least {
            if log.frames_unused() == 0 {
                self.shrink(&mut sizing, growth.shards.min(open - least), log);
            }
            return;
        }
        if sizing.window.evicted == 0 {
            return;
        }
        let rows = self.rows_of_a_shard(&sizing) * open as u64;
        let unused = if growth.rests { self.unused_shards(log) } else { 0 };
        if open < least {
            self.grow(&mut sizing, least - open, log);
        } else if moves && unused > 0 {
            self.grow(&mut sizing, unused.min(open * (GROWTH - 1)), log);
        } else if moves && sizing.window.lookups >= rows {
            self.grow(&mut sizing, open, log);
        }
    }

    /// Reads the log's growth. Begins a new window if the log has grown by a shard's memory.
    fn log_growth(&self, sizing: &mut Sizing, log: &Log) -> Growth {
        let tail = log.tail_address();
        if sizing.tail == 0 {
            (sizing.tail, sizing.last_tail) = (tail, tail);
        }
        let rests = tail == std::mem::replace(&mut sizing.last_tail, tail);
        let shards = ((tail - sizing.tail) / self.shard_bytes as u64) as usize;
        if shards > 0 {
            sizing.tail = tail;
            sizing.restart_window();
        }
        Growth { shards, rests }
    }

    /// Returns the memory of the log's unused frames, in whole shards.
    fn unused_shards(&self, log: &Log) -> usize {
        (log.frames_unused() * self.budget.page_bytes() / self.shard_bytes as u64) as usize
    }

    /// Gives memory back to the log if the index or scans have taken a part of the cache's share.
    /// The caller must not be pinned.
    ///
    /// The log's writer thread calls this function for all threads that wait for a frame. A thread
    /// that holds the lock `sizing` must therefore never wait for the log or for a checkpoint's
    /// pause (`Gate`).
    pub(crate) fn give_way(&self, log: &Log) {
        if self.budget.cache_bytes_over() == 0 {
            return;
        }
        let mut sizing = self.sizing.lock();
        let over = self.budget.cache_bytes_over();
        let steps = over.div_ceil(self.shard_bytes as u64) as usize;
        let unopened = steps.min(sizing.pending);
        sizing.pending -= unopened;
        self.budget.uncharge_cache((unopened * self.shard_bytes) as u64);
        let steps = (steps - unopened).min(sizing.open);
        self.shrink(&mut sizing, steps, log);
    }

    fn rows_of_a_shard(&self, sizing: &Sizing) -> u64 {
        (self.shard_bytes / sizing.window.record_bytes.max(32)) as u64
    }

    fn grow(&self, sizing: &mut Sizing, shards: usize, log: &Log) {
        let most = (self.budget.cache_bytes_max() / self.shard_bytes as u64) as usize;
        let shards = shards.min(most.min(self.shards.len()).saturating_sub(sizing.open));
        // On a full disk, the remaining frames are reserved for the work that frees disk space.
        if shards == 0 || log.is_disk_full() {
            return;
        }
        if !self.budget.try_charge_cache((shards * self.shard_bytes) as u64) {
            return;
        }
        sizing.pending = shards;
        log.allowance_changed();
        if log.is_within_allowance() {
            self.open_pending(sizing, log);
        }
    }

    fn open_pending(&self, sizing: &mut Sizing, log: &Log) {
        let end = sizing.open + sizing.pending;
        sizing.pending = 0;
        for number in sizing.open..end {
            let record_bytes = sizing.window.record_bytes.max(32);
            let huge = self.budget.huge_pages();
            let opened = self.shards[number].lock().open(self.shard_bytes, record_bytes, huge);
            if opened.is_err() {
                // The system could not map the memory, so the cache stops growing here.
                self.budget.uncharge_cache(((end - number) * self.shard_bytes) as u64);
                log.allowance_changed();
                break;
            }
            self.set_open(sizing, number + 1);
        }
        self.deal_slots(sizing.open);
        sizing.restart_window();
    }

    fn shrink(&self, sizing: &mut Sizing, shards: usize, log: &Log) {
        let open = sizing.open - shards;
        self.deal_slots(open);
        for shard in &self.shards[open..sizing.open] {
            shard.lock().close();
        }
        self.set_open(sizing, open);
        self.budget.uncharge_cache((shards * self.shard_bytes) as u64);
        log.allowance_changed();
    }

    /// Distributes the slots evenly among the first `open` shards, and moves as few slots as
    /// possible.
    fn deal_slots(&self, open: usize) {
        if open == 0 {
            return;
        }
        let each = SLOTS / open;
        let larger = SLOTS % open;
        let mut room: Vec<usize> =
            (0..open).map(|shard| each + usize::from(shard < larger)).collect();
        let mut homeless = Vec::new();
        for (i, slot) in self.slots.iter().enumerate() {
            // Relaxed, here and below: a stale slot is harmless, as the essay of `cache` explains.
            match room.get_mut(slot.load(Ordering::Relaxed) as usize) {
                Some(room) if *room > 0 => *room -= 1,
                _ => homeless.push(i),
            }
        }
        for (shard, room) in room.into_iter().enumerate() {
            for _ in 0..room {
                let slot = homeless.pop().expect("as many slots as places");
                self.slots[slot].store(shard as u32, Ordering::Relaxed);
            }
        }
    }
}

impl Sizing {
    fn add(&mut self, demand: &Demand) {
        self.window.lookups += demand.lookups;
        self.window.evicted += demand.evicted;
        if demand.record_bytes > 0 {
            self.window.record_bytes = demand.record_bytes;
        }
    }

    fn restart_window(&mut self) {
        self.window = Demand { record_bytes: self.window.record_bytes, ..Demand::default() };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::device::{DeviceOptions, MemoryDevice};
    use crate::error::Error;
    use crate::limits::Limits;
    use crate::log::Extent;
    use crate::memory::budget::{Budget, SCAN_PAGES};
    use crate::record::address::Address;
    use crate::stats::Counters;

    const BUDGET_BYTES: u64 = 4 << 20;

    /// Returns a log without pages and a cache without memory.
    fn log_and_cache() -> (Log, ReadCache) {
        let page_bytes = Budget::page_bytes_for(BUDGET_BYTES);
        let budget = Arc::new(Budget::new(BUDGET_BYTES, page_bytes, Limits::PRODUCT).unwrap());
        let device = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
        let counters = Arc::new(Counters::default());
        let extent = Extent { page_bits: page_bytes.ilog2(), begin: 0, tail_page: 0 };
        let lineage = crate::checkpoint::lineage::Lineage::new(1, page_bytes.ilog2(), Vec::new());
        let log = Log::new(Arc::clone(&budget), device, counters, lineage, extent, Arc::default())
            .unwrap();
        (log, ReadCache::new(budget))
    }

    /// Returns the demand of a batch that peeked at `lookups` rows and evicted one row.
    fn peeks(lookups: u64) -> Demand {
        Demand { lookups, evicted: 1, record_bytes: 96 }
    }

    /// Returns a log and a cache of the largest size.
    fn full_cache() -> (Log, ReadCache) {
        let (log, cache) = log_and_cache();
        let budget = &cache.budget;
        for _ in 0..20 {
            cache.resize(&peeks(1 << 20), &log);
        }
        assert!(budget.cache_bytes() + cache.shard_bytes as u64 > budget.cache_bytes_max());
        assert_eq!(cache.bytes(), budget.cache_bytes());
        (log, cache)
    }

    /// Ends the log's newest page, so the log grows by at least a shard's memory. The log has free
    /// frames, so the test needs no writer thread.
    fn grow_by_a_page(log: &Log) {
        let full = log.allocate(log.page_bytes() as usize).unwrap_err();
        log.turn_page(full, crate::log::TurnFor::Rows).unwrap();
    }

    /// Shows that the cache opens even if the log grows before each batch. A batch's peeks must
    /// count in the window that this growth begins.
    #[test]
    fn peeks_between_writes_find_a_place() {
        let (log, cache) = log_and_cache();
        assert!(cache.shard_bytes as u64 <= log.page_bytes());
        for _ in 0..4 {
            grow_by_a_page(&log);
            cache.resize(&peeks(1), &log);
        }
        let least = (cache.shards.len() / LEAST_PART).max(1) * cache.shard_bytes;
        assert_eq!(cache.bytes(), least as u64);
    }

    #[test]
    fn a_full_cache_takes_unused_frames_only_while_the_log_rests() {
        let (log, cache) = log_and_cache();
        cache.resize(&peeks(1), &log);
        let least = cache.bytes();
        grow_by_a_page(&log);
        cache.resize(&peeks(1), &log);
        assert_eq!(cache.bytes(), least, "the log has just grown");
        cache.resize(&peeks(1), &log);
        assert_eq!(cache.bytes(), GROWTH as u64 * least);
    }

    /// Shows that the largest cache has a slot for each shard. Without the limit of `SLOTS` shards,
    /// some shards would have memory but no slot.
    #[test]
    fn every_shard_of_the_largest_budget_has_a_slot() {
        let budget = Budget::new(4 << 40, 4 << 20, Limits::PRODUCT).unwrap();
        let cache = ReadCache::new(Arc::new(budget));
        assert_eq!(cache.shards.len(), SLOTS);
        cache.deal_slots(cache.shards.len());
        let mut dealt: Vec<u32> =
            cache.slots.iter().map(|slot| slot.load(Ordering::Relaxed)).collect();
        dealt.sort_unstable();
        assert!(dealt.into_iter().eq(0..SLOTS as u32));
    }

    /// Shows that records that are too long for any shard do not open a closed cache.
    #[test]
    fn records_too_long_for_a_shard_show_no_need_of_one() {
        let page_bytes = Budget::page_bytes_for(BUDGET_BYTES);
        let budget = Budget::new(BUDGET_BYTES, page_bytes, Limits::PRODUCT).unwrap();
        let cache = ReadCache::new(Arc::new(budget));
        for (bytes, evicted) in [(96, 1), (cache.shard_bytes / 2, 0)] {
            let mut demand = Demand::default();
            cache.insert(Address::new(4096), &vec![0; bytes], &mut demand);
            assert_eq!(demand.evicted, evicted, "{bytes} bytes");
        }
    }

    /// Checks that the log's writer thread alone can make the cache shrink. A second thread ends
    /// pages, waits for a flush as a checkpoint does, and waits for frames, but never calls the
    /// cache.
    fn the_log_gets_its_frames(log: &Log, cache: &ReadCache) {
        let budget = &cache.budget;
        assert!(budget.frames_allowed() < 2, "{} are left", budget.frames_allowed());
        let (tell, told) = channel();
        let ended = std::thread::scope(|s| {
            s.spawn(|| log.run_writer(|| cache.give_way(log)));
            s.spawn(move || {
                for _ in 0..60 {
                    // Ends the page without adding a record.
                    let full = log.allocate(log.page_bytes() as usize).unwrap_err();
                    log.turn_page(full, crate::log::TurnFor::Rows)?;
                }
                let end = log.cut(log.reserve_frame()?)?;
                log.await_flushed(end)?;
                log.give_way()?;
                tell.send(()).expect("the test waits");
                Ok::<_, Error>(())
            });
            let ended = told.recv_timeout(Duration::from_secs(60));
            if ended.is_err() {
                log.poison(&Error::Poisoned { reason: "the log hangs".into() });
            }
            log.shut_down();
            ended
        });
        ended.expect("a log that turns its pages");
        assert_eq!(budget.cache_bytes_over(), 0);
        let used = budget.cache_bytes() + budget.index_bytes() + budget.buffer_bytes();
        assert!(log.frame_bytes() + used <= budget.total_bytes());
    }

    /// Shows that the log does not hang after the index has grown to its limit. The index leaves
    /// memory for the minimum of frames, but the cache has that memory.
    #[test]
    fn the_cache_gives_way_when_the_index_has_taken_the_last_frames() {
        let (log, cache) = full_cache();
        while cache.budget.try_charge_index(4096) {}
        the_log_gets_its_frames(&log, &cache);
    }

    /// Shows that the log does not hang while many scans have borrowed memory.
    #[test]
    fn the_cache_gives_way_when_scans_have_borrowed_the_last_frames() {
        let (log, cache) = full_cache();
        while cache.budget.lend(SCAN_PAGES * log.page_bytes()).is_ok() {}
        the_log_gets_its_frames(&log, &cache);
    }
}
