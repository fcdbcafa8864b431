//! How much of the memory the cache gets.
//!
//! Log and cache share what index and buffers leave. Which of them should have the next shard's worth of
//! memory shows in what either just missed:
//!
//! - The log's gain: rows wanted for training whose records lie *just below the head*, within as many bytes
//!   as the cache has. With that memory they would still be in their frames. The log's order of
//!   addresses tells it for nothing. Peeks do not count: what they want again the cache keeps, one
//!   record at a time, where the log would keep whole pages for it. (Counted, they made memory wander to and
//!   fro: each page that left took hot rows along, each of which then missed once.)
//! - The cache's gain: rows that had to be read and whose marks still stood (`shard`): with as much
//!   memory again they would still have been there.
//!
//! Both are counted over windows of lookups and stand for about the same number of bytes; the memory moves
//! to where it would have met more. Peeks alone so get nearly all of it for the cache; training, whose
//! rows go through the log and never into the cache, nearly all for the log. Memory that the log does not
//! use yet is the cache's at once, and comes back to the log by the same comparison.
//!
//! The cache never has so much that the log would be left with less than a sixteenth of what they share
//! (`Budget::cache_bytes_max`); when the index grows or a scan begins, first the cache gives way, then the log.

use super::{RowCache, SLOTS};
use crate::log::Log;
use crate::sync::Ordering;
use crate::testing::mechanisms::{Mechanism, is_on};

/// Lookups below the head between two decisions, at least.
const WINDOW_LOOKUPS: u64 = 4096;
/// Misses that show a need, at least; fewer are chance.
const MISSES_MIN: u64 = 32;
/// Below the head, at least so many shards' worth of addresses count as just missed.
const NEAR_SHARDS_MIN: u64 = 2;
/// A cache that is full while the log leaves memory unused grows by this factor.
const GROWTH: usize = 4;

/// The log gets memory back if it gains so many times what the cache would lose. Above 1, so that memory does
/// not wander to and fro; to the cache's disadvantage it is 1, because what it takes is peeked at just now.
const SHRINK_GAIN_MIN: f64 = 1.25;

/// Without sizing, the cache has one part in this number of its most.
const FIXED_PART: usize = 32;

/// Shards to move at once, for `open` of them and one side that gains so many times what the other loses.
fn step(open: usize, gain: f64) -> usize {
    if gain > 2.0 { open.div_ceil(2) } else { open.div_ceil(8) }
}

/// What batches report.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Demand {
    /// Lookups of addresses below the head.
    pub(crate) lookups: u64,
    /// Those just below it for rows that then moved to the tail.
    pub(crate) near_head: u64,
    /// Insertions that pushed another row out, or found no memory.
    pub(crate) evicted: u64,
    /// Insertions of rows that had been in the cache not long ago.
    pub(crate) returned: u64,
    /// The length of a record, to lay shards out for.
    pub(crate) record_bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Sizing {
    window: Demand,
    /// Shards with slots.
    open: usize,
    /// Shards that the budget has been charged for and the log has not yet made room for.
    pending: usize,
}

impl RowCache {
    /// Bytes below the head whose rows count as just missed by the log.
    pub(crate) fn near_bytes(&self) -> u64 {
        self.bytes().max(NEAR_SHARDS_MIN * self.shard_bytes as u64)
    }

    /// Bytes of memory that the cache has.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a gauge.
        self.open_bytes.load(Ordering::Relaxed)
    }

    fn set_open(&self, sizing: &mut Sizing, open: usize) {
        sizing.open = open;
        self.open_bytes.store((open * self.shard_bytes) as u64, Ordering::Relaxed);
    }

    /// Takes note of what a batch met, and now and then moves memory. The caller is not pinned. Never waits:
    /// while another thread decides, this one's counts are dropped.
    pub(crate) fn resize(&self, demand: &Demand, log: &Log) {
        if self.shards.is_empty() || demand.lookups == 0 {
            return;
        }
        let Some(mut sizing) = self.sizing.try_lock() else { return };
        sizing.add(demand);
        if sizing.pending > 0 {
            if log.is_within_allowance() {
                self.open_pending(&mut sizing, log);
            }
            return;
        }
        let wants = sizing.window.evicted > 0;
        let free = log.frames_unused() * self.budget.page_bytes() / self.shard_bytes as u64;
        if !is_on(Mechanism::CacheSizing) {
            let fixed = (self.shards.len() / FIXED_PART).max(1);
            if wants && sizing.open < fixed {
                let growth = fixed - sizing.open;
                self.grow(&mut sizing, growth, log);
            }
            return;
        }
        if wants && (free > 0 || sizing.open == 0) {
            let growth = (sizing.open.max(1) * (GROWTH - 1)).min(free.max(1) as usize);
            self.grow(&mut sizing, growth, log);
            return;
        }
        if sizing.window.lookups < WINDOW_LOOKUPS.max(self.rows_of_a_shard(&sizing)) {
            return;
        }
        let open = sizing.open;
        let window = std::mem::take(&mut sizing.window);
        sizing.window.record_bytes = window.record_bytes;
        // Hits per byte; the marks reach as far back as the cache is large.
        let log_gain = window.near_head as f64 / self.near_bytes() as f64;
        let cache_gain = window.returned as f64 / self.bytes().max(1) as f64;
        if wants && window.returned >= MISSES_MIN && cache_gain > log_gain {
            self.grow(&mut sizing, step(open, cache_gain / log_gain), log);
        } else if window.near_head >= MISSES_MIN
            && log_gain > SHRINK_GAIN_MIN * cache_gain
            && log.frames_unused() == 0
        {
            // The last shard stays, to show what more would bring.
            let steps = step(open, log_gain / cache_gain).min(open.saturating_sub(1));
            self.shrink(&mut sizing, steps, log);
        }
    }

    /// Gives memory back if index or scans have grown into it. The caller is not pinned.
    ///
    /// The log's writer calls it on behalf of all who wait for a frame, so nobody waits for the log or for the
    /// gate while holding the sizing's lock.
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
        // The frames that are left on a full disk are for what gives space back.
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
                // The system has no memory to map: the cache stays as it is.
                self.budget.uncharge_cache(((end - number) * self.shard_bytes) as u64);
                log.allowance_changed();
                break;
            }
            self.set_open(sizing, number + 1);
        }
        self.deal_slots(sizing.open);
        sizing.window = Demand { record_bytes: sizing.window.record_bytes, ..Demand::default() };
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

    /// Shares the slots out among the first `open` shards, moving as few as it can.
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
            // Relaxed, here and below: see `shard`.
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
        self.window.near_head += demand.near_head;
        self.window.evicted += demand.evicted;
        self.window.returned += demand.returned;
        if demand.record_bytes > 0 {
            self.window.record_bytes = demand.record_bytes;
        }
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
    use crate::log::Extent;
    use crate::memory::budget::{Budget, SCAN_PAGES};
    use crate::record::address::Address;
    use crate::stats::Counters;

    const BUDGET_BYTES: u64 = 4 << 20;

    /// A log and a cache that has all it may have.
    fn full_cache() -> (Log, RowCache) {
        let page_bytes = Budget::page_bytes_for(BUDGET_BYTES);
        let budget = Arc::new(Budget::new(BUDGET_BYTES, page_bytes).unwrap());
        let device = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
        let counters = Arc::new(Counters::default());
        let extent = Extent { page_bits: page_bytes.ilog2(), begin: 0, tail_page: 0 };
        let lineage = crate::checkpoint::lineage::Lineage::new(1, page_bytes.ilog2(), Vec::new());
        let log = Log::new(Arc::clone(&budget), device, counters, lineage, extent, Arc::default())
            .unwrap();
        let cache = RowCache::new(Arc::clone(&budget));
        let demand = Demand { lookups: 1, evicted: 1, record_bytes: 96, ..Demand::default() };
        for _ in 0..20 {
            cache.resize(&demand, &log);
        }
        assert!(budget.cache_bytes() + cache.shard_bytes as u64 > budget.cache_bytes_max());
        assert_eq!(cache.bytes(), budget.cache_bytes());
        (log, cache)
    }

    /// Above it, shards had memory and no slot that led to them.
    #[test]
    fn every_shard_of_the_largest_budget_has_a_slot() {
        let budget = Budget::new(4 << 40, 4 << 20).unwrap();
        let cache = RowCache::new(Arc::new(budget));
        assert_eq!(cache.shards.len(), SLOTS);
        cache.deal_slots(cache.shards.len());
        let mut dealt: Vec<u32> =
            cache.slots.iter().map(|slot| slot.load(Ordering::Relaxed)).collect();
        dealt.sort_unstable();
        assert!(dealt.into_iter().eq(0..SLOTS as u32));
    }

    /// A closed cache is not opened for records that it could never take.
    #[test]
    fn records_too_long_for_a_shard_show_no_need_of_one() {
        let page_bytes = Budget::page_bytes_for(BUDGET_BYTES);
        let budget = Budget::new(BUDGET_BYTES, page_bytes).unwrap();
        let cache = RowCache::new(Arc::new(budget));
        for (bytes, evicted) in [(96, 1), (cache.shard_bytes / 2, 0)] {
            let mut demand = Demand::default();
            cache.insert(Address::new(4096), &vec![0; bytes], &mut demand);
            assert_eq!(demand.evicted, evicted, "{bytes} bytes");
        }
    }

    /// Nobody but the writer may be needed to make the cache give way: turning pages, then a checkpoint's
    /// settling, then a wait for the log to give way, by a thread that never asks the cache.
    fn the_log_gets_its_frames(log: &Log, cache: &RowCache) {
        let budget = &cache.budget;
        assert!(budget.frames_allowed() < 2, "{} are left", budget.frames_allowed());
        let (tell, told) = channel();
        let ended = std::thread::scope(|s| {
            s.spawn(|| log.run_writer(|| cache.give_way(log)));
            s.spawn(move || {
                for _ in 0..60 {
                    // A page without a record.
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

    /// A hang: the index leaves the frames their least, and the cache had it.
    #[test]
    fn the_cache_gives_way_when_the_index_has_taken_the_last_frames() {
        let (log, cache) = full_cache();
        while cache.budget.try_charge_index(4096) {}
        the_log_gets_its_frames(&log, &cache);
    }

    /// The same with what many scans borrow.
    #[test]
    fn the_cache_gives_way_when_scans_have_borrowed_the_last_frames() {
        let (log, cache) = full_cache();
        while cache.budget.lend(SCAN_PAGES * log.page_bytes()).is_ok() {}
        the_log_gets_its_frames(&log, &cache);
    }
}
