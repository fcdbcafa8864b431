//! Folds the index: the inverse of linear hashing's split. The memory of the upper buckets goes
//! back to the budget.
//!
//! **Problem.** A bank begins in one tier, with an entry for each row. Once it has two tiers, most
//! rows leave the log, and their entries go. The index would keep buckets for all of them.
//!
//! **Approach.** A step undoes the last split: it merges the last bucket into the bucket that it
//! was split from, and moves the split pointer back. Each entry knows its side from the bucket that
//! it comes from, so a step reads no record. Compaction folds some portions of buckets after each
//! spill.
//!
//! **In a pause.** Lookups rely on buckets whose depth only grows, and hold copies of the split
//! pointer (`Outline`). A lookup that took part in folds would have to check more on its fast path.
//! So a portion runs while no thread is pinned, in a pause of the gate as for a checkpoint. It is
//! short, and batches run for three times as long before the next one ([`Folded::rest`]). A search
//! that waits for the disk is not pinned and keeps entries from before the pause. It uses them only
//! to compare them with those of the bucket, under the bucket's lock. An entry that is equal after
//! a fold leads to the same records, because no other entry has its head.
//!
//! **Why a folded entry is right.** Splits have put some entries into both of their buckets: those
//! without tag bits whose records they could not read, and those whose chains have records for both
//! (`Growth::divide`). The chain of such a copy has *foreign* records, which belong to the bucket
//! of the other copy. While the buckets are apart, no search for a foreign record's key meets it.
//! In a merged bucket the tag would have to keep such searches away, and a tag loses bits: its
//! highest one in a fold, and more if keys share slots. A search could then find a superseded
//! value. A scan and `inspect` would take a copy that stands alone, with a foreign head, for a row
//! or for damage. So the index folds only once the log's beginning has passed the heads of all
//! copies (`Growth::copies_end`). A foreign record is at or below the head that was copied, so it
//! then lies below the beginning and counts as absent. From this follows:
//! 1. Each record of a chain belongs to the bucket and matches the tag's known bits. Its hash has
//!    the side as its next lower bit. So the folded entry matches it too, and an entry without tag
//!    bits may learn its side. If such an entry is not chained, it stands alone afterwards,
//!    rightly.
//! 2. Keys of the upper bucket have a 1 as this bit, and folded entries of the lower bucket know a
//!    0. So no entry of one bucket matches a key of the other. A key stays in the chain of exactly
//!    one slot, and that slot matches it.
//! 3. A tag that loses its highest bit matches keys that its chain does not have. A search for such
//!    a key reads the chain and goes on, as for any two keys with equal tags.
//! 4. No two entries of the merged bucket have one head: only copies do. Entries that lead below
//!    the beginning are left out, as `purge` would do, and no other copies exist.
//!
//! **Overflow buckets.** A merged chain takes the free overflow buckets with the lowest numbers. A
//! fold that goes far merges all buckets, so the end of the pool becomes free and gives its memory
//! back (`overflow`). If other chains hold buckets at the end, that memory stays with the index.
//!
//! **Images.** See invariant 4 of `cut`. After a fold, the next image is whole.
//!
//! **Hysteresis.** The index splits at a load of 5 entries a bucket. It begins to fold below half
//! of this load, and ends at three quarters of it. The number of entries must then grow or fall by
//! a third before the index changes again. A spill changes it by a few percent. The memory that
//! comes free makes the log longer, so the index may split some buckets again.
//!
//! **Lock order.** Compaction (`Space::pass`), then `numbers`, `growth`, the gate's pause, and in
//! it the overflow pool and the budget. The checkpoint takes `Store::newest`, then `numbers`, then
//! pauses, and in the pause takes the locks of the log, the tables, the pins and the cold tier. A
//! fold only tries `numbers`, so the compactor never waits for a checkpoint's image. A checkpoint
//! waits for `numbers` as long as a portion takes. It never takes the compaction lock or `growth`.
//! Pinned threads only try `growth`. They wait for pool and budget, whose holders do not wait. The
//! compactor does not hold a lock that the checkpoint takes in its pause.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::bucket::{Bucket, Meta};
use super::entry::Entry;
use super::grow::{Growth, LOAD};
use super::overflow::overflow_buckets_for;
use super::{BUCKET_BYTES, Index, blank};
use crate::epoch::{self, Gate};
use crate::memory::budget::Budget;
use crate::sync::{Ordering, Planted, planted};

/// Number of buckets that are folded in one pause. Batches wait as long as this takes, a few tenths
/// of a millisecond.
const BUCKETS_PER_PAUSE: u64 = 1024;
/// Number of overflow buckets that a pause gives up at most.
const OVERFLOW_PER_PAUSE: u64 = 2048;
/// The index begins to fold when its load is below this number of quarters of [`LOAD`].
const FOLDS_BELOW_QUARTERS: u64 = 2;
/// The index folds until its load is this number of quarters of [`LOAD`].
const FOLDED_QUARTERS: u64 = 3;
/// After a spill, the index folds its buckets divided by this number. The memory of a large index
/// is then free after some 50 spills, in which the log has grown by one and a half budgets.
const PART_PER_SPILL: u64 = 32;
/// Batches run between two portions for the length of a portion's pause times this number.
const REST: u32 = 3;
/// Longest rest between two portions. A pause seems long if the process was suspended in it.
const REST_MAX: Duration = Duration::from_millis(50);

/// What a portion of a fold has done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Folded {
    /// Bytes that have gone back to the budget. If this is not 0, the caller calls
    /// `Log::allowance_changed`.
    pub(crate) freed_bytes: u64,
    /// How long batches were paused.
    pub(crate) paused: Duration,
}

impl Folded {
    /// Returns how long the caller should let batches run before the next portion.
    pub(crate) fn rest(self) -> Duration {
        (self.paused * REST).min(REST_MAX)
    }
}

impl Index {
    /// Returns the number of portions to fold after a spill.
    pub(crate) fn portions_per_spill(&self) -> u64 {
        (self.bucket_count() / PART_PER_SPILL / BUCKETS_PER_PAUSE).max(1)
    }

    /// Folds a portion of the buckets, if the index has far more of them than its entries need.
    /// `begin` is the log's beginning; only the caller moves it. Returns `None` if there is nothing
    /// to fold now: the load is high enough, no unit of memory would come free, a checkpoint writes
    /// the index, a batch splits a bucket, or the log has records that splits have left in chains
    /// of other buckets.
    pub(crate) fn fold(&self, budget: &Budget, gate: &Gate, begin: u64) -> Option<Folded> {
        // The pause would wait for a callback's own batch.
        if epoch::is_pinned() {
            return None;
        }
        let _numbers = self.numbers.try_lock()?;
        let mut growth = self.growth.try_lock()?;
        let goal = self.goal(budget, &mut growth)?;
        if begin < growth.copies_end {
            return None;
        }
        let began = Instant::now();
        let pause = (!planted(Planted::FoldUnpaused)).then(|| gate.pause());
        let mut folded = 0;
        // The loop ends: each step removes a bucket.
        while folded < BUCKETS_PER_PAUSE
            && self.bucket_count() > goal
            && self.fold_last(budget, &mut growth, begin)
        {
            folded += 1;
        }
        if folded > 0 {
            self.note_folded();
        }
        let (trimmed, trimmed_bytes) = self.trim_overflow(budget, OVERFLOW_PER_PAUSE);
        drop(pause);
        let paused = began.elapsed();
        let freed_bytes = self.release_buckets(budget, &mut growth) + trimmed_bytes;
        let has_worked = folded > 0 || trimmed > 0 || freed_bytes > 0;
        has_worked.then_some(Folded { freed_bytes, paused })
    }

    /// Returns the number of buckets to which the index should fold. `None` if it has few enough,
    /// and the pool of overflow buckets has no free end after a fold.
    fn goal(&self, budget: &Budget, growth: &mut Growth) -> Option<u64> {
        let entries = self.entry_count();
        let buckets = self.bucket_count();
        let least = 1 << budget.limits().initial_level;
        let goal = (entries * 4).div_ceil(FOLDED_QUARTERS * LOAD).max(least);
        if !growth.is_folding {
            let frees = self.bytes_charged_for(goal) < growth.charged_bytes;
            let has_low_load = entries * 4 < buckets * FOLDS_BELOW_QUARTERS * LOAD;
            growth.is_folding = frees && has_low_load;
        }
        growth.is_folding &= buckets > goal || self.overflow_end_is_free();
        growth.is_folding.then_some(goal)
    }

    /// Returns the bytes that are charged for this number of primary buckets.
    fn bytes_charged_for(&self, buckets: u64) -> u64 {
        (buckets * BUCKET_BYTES as u64).next_multiple_of(self.granule_bytes)
    }

    /// Undoes the last split. Must be called while no thread is pinned, by a thread that has the
    /// lock `numbers`: no thread then reads, locks or changes a bucket. Returns false if there is
    /// no memory for an overflow bucket.
    fn fold_last(&self, budget: &Budget, growth: &mut Growth, begin: u64) -> bool {
        let (level, split) = match self.state() {
            (level, 0) => (level - 1, 1 << (level - 1)),
            state => state,
        };
        let lower_number = split - 1;
        let lower = self.bucket(lower_number);
        let upper = self.bucket(lower_number + (1 << level));
        let Growth { low: entries, numbers, .. } = growth;
        entries.clear();
        numbers.clear();
        let (mut entries_before, mut blank_before) = (0, 0);
        // Relaxed, here and below: the begin of the pause orders the accesses of the former pins
        // before these, and its end orders these before the later pins.
        let meta_of = |bucket: &Bucket| Meta(bucket.meta().load(Ordering::Relaxed));
        for (bucket, is_upper) in [(lower, false), (upper, true)] {
            let meta = meta_of(bucket);
            debug_assert!(!meta.is_locked() || planted(Planted::FoldUnpaused));
            debug_assert_eq!(meta.depth(), level + 1);
            for slot in self.chain(bucket, meta).flat_map(Bucket::slots) {
                let entry = Entry(slot.load(Ordering::Relaxed));
                if entry.is_empty() {
                    continue;
                }
                entries_before += 1;
                blank_before += blank(entry);
                if entry.address().raw() >= begin {
                    entries.push(entry.folded(is_upper));
                }
            }
            self.overflow_numbers(meta.overflow(), numbers);
        }
        let chained = numbers.len();
        let needed = overflow_buckets_for(entries.len());
        while numbers.len() < needed {
            let Some(number) = self.take_overflow(budget) else {
                self.give_back_overflow(&numbers[chained..]);
                return false;
            };
            numbers.push(number);
        }
        // The chain gets the lowest free buckets, so that the pool's end becomes free. They are
        // there, and no other thread takes them: threads take buckets while they are pinned.
        self.give_back_overflow(numbers);
        numbers.clear();
        numbers.extend((0..needed).map_while(|_| self.take_overflow(budget)));
        self.count(
            (entries.len() as u64).wrapping_sub(entries_before),
            0_u64.wrapping_sub(blank_before),
        );
        let head = self.fill(lower, entries, numbers);
        // A new version, as after a split. Only the present era's bit: the next image is whole.
        let version = meta_of(lower).version() + 1;
        let meta = self.changed_now(Meta::new(level, version, head));
        lower.meta().store(meta.0, Ordering::Relaxed);
        // The bucket is as one that no split has filled yet, also if the system keeps its page.
        self.fill(upper, &[], &[]);
        upper.meta().store(0, Ordering::Relaxed);
        self.set_state(level, lower_number);
        true
    }

    /// Gives the memory of buckets that are folded to the system and the budget, in whole units.
    /// Returns the number of bytes. The caller has the locks `numbers` and `growth`. Batches may
    /// run: without the lock `growth`, none splits a bucket.
    fn release_buckets(&self, budget: &Budget, growth: &mut Growth) -> u64 {
        let kept = self.bytes_charged_for(self.bucket_count());
        let freed = growth.charged_bytes.saturating_sub(kept);
        if freed > 0 {
            // SAFETY: the duty is that no thread refers to the range, and that its content is not
            // needed. The range lies beyond the last bucket, and is inside the region as long as it
            // was charged. Threads that have pinned since the pause use only buckets that exist,
            // and no thread is pinned longer. The lock `numbers` keeps the checkpoint away. A
            // thread without a pin may prefetch an old bucket, which accesses nothing.
            unsafe { self.buckets.release(kept as usize, freed as usize) };
            growth.charged_bytes = kept;
            budget.uncharge_index(freed);
        }
        freed
    }
}
