//! The pool of overflow buckets, with which the chains of full buckets go on.
//!
//! A chain takes the free bucket with the lowest number. So after most chains have become shorter,
//! the pool's upper part is free, and a fold gives its memory back (`trim_overflow`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::bucket::{Meta, SLOTS};
use super::{BUCKET_BYTES, Index};
use crate::memory::budget::Budget;
use crate::sync::Ordering;

/// Memory for overflow buckets is charged before inserts need it: at least a budget unit divided by
/// this number. If no memory is left for an overflow bucket, an insert makes its key share a slot
/// for good. If no memory is left for a split, the split only comes later.
const HEADROOM_PART_OF_UNIT: u64 = 4;
/// Memory for overflow buckets is charged before inserts need it: at least a page divided by this
/// number. While page frames shrink for the read cache or a scan, the budget refuses memory to the
/// index. Batches may fill one more page with new rows during that time.
const HEADROOM_PART_OF_PAGE: u64 = 16;

/// The overflow buckets. Number 0 means "no bucket" and is never taken.
#[derive(Debug, Default)]
pub(super) struct OverflowPool {
    /// The highest bucket number that is in use or free. No bucket has a higher number.
    taken: u32,
    /// Number of buckets in use.
    in_use: u32,
    charged_bytes: u64,
    /// The free buckets, lowest number first. Numbers above `taken` are no longer free: the pool
    /// has given up these buckets.
    free: BinaryHeap<Reverse<u32>>,
}

impl OverflowPool {
    #[cfg(test)]
    pub(super) fn charged_bytes(&self) -> u64 {
        self.charged_bytes
    }

    /// Asserts that each bucket is either free or one of `in_use`. Returns the number of both.
    #[cfg(test)]
    pub(super) fn assert_whole(&self, in_use: &std::collections::BTreeSet<u32>) -> u32 {
        let free = self.free.iter().map(|free| free.0).filter(|&number| number <= self.taken);
        let all: Vec<u32> = free.chain(in_use.iter().copied()).collect();
        let known: std::collections::BTreeSet<u32> = all.iter().copied().collect();
        assert_eq!((known.len(), all.len()), (self.taken as usize, self.taken as usize));
        assert!(known.last().is_none_or(|&last| last == self.taken));
        assert_eq!(self.in_use as usize, in_use.len());
        self.taken
    }

    fn take_free(&mut self) -> Option<u32> {
        let Reverse(lowest) = self.free.pop()?;
        if lowest > self.taken {
            // So all numbers in the heap are above `taken`. They go before the pool grows past
            // them, because each would be free and in use then.
            self.free.clear();
            return None;
        }
        Some(lowest)
    }
}

pub(super) fn overflow_buckets_for(entries: usize) -> usize {
    entries.saturating_sub(SLOTS).div_ceil(SLOTS)
}

impl Index {
    /// Takes an overflow bucket with empty slots. `None` if the budget has no memory for it.
    pub(super) fn take_overflow(&self, budget: &Budget) -> Option<u32> {
        let mut pool = self.pool.lock();
        let number = match pool.take_free() {
            Some(number) => number,
            None => {
                let end = (u64::from(pool.taken) + 2) * BUCKET_BYTES as u64;
                if end > pool.charged_bytes && !self.charge_overflow(budget, &mut pool) {
                    return None;
                }
                pool.taken = pool.taken.checked_add(1)?;
                pool.taken
            }
        };
        pool.in_use += 1;
        // Release: as in `give_back_overflow`, whose mark this store removes.
        self.overflow_bucket(number).meta().store(0, Ordering::Release);
        Some(number)
    }

    /// Charges one more unit of memory for overflow buckets. Returns false if the budget has no
    /// memory.
    fn charge_overflow(&self, budget: &Budget, pool: &mut OverflowPool) -> bool {
        let next = pool.charged_bytes + self.granule_bytes;
        let charged =
            next <= self.overflow.len() as u64 && budget.try_charge_index(self.granule_bytes);
        if charged {
            pool.charged_bytes = next;
        }
        charged
    }

    pub(super) fn charge_overflow_ahead(&self, budget: &Budget) {
        let mut pool = self.pool.lock();
        let used = (u64::from(pool.in_use) + 1) * BUCKET_BYTES as u64;
        let wanted = used + self.overflow_headroom(budget);
        while pool.charged_bytes < wanted && self.charge_overflow(budget, &mut pool) {}
    }

    fn overflow_headroom(&self, budget: &Budget) -> u64 {
        let of_unit = self.granule_bytes / HEADROOM_PART_OF_UNIT;
        of_unit.max(budget.page_bytes() / HEADROOM_PART_OF_PAGE)
    }

    /// Returns the number of overflow buckets in use.
    pub(super) fn overflow_count(&self) -> u64 {
        u64::from(self.pool.lock().in_use)
    }

    pub(super) fn give_back_overflow(&self, numbers: &[u32]) {
        if numbers.is_empty() {
            return;
        }
        for &number in numbers {
            let bucket = self.overflow_bucket(number);
            bucket.meta().store(Meta::free_overflow().0, Ordering::Release);
            for slot in bucket.slots() {
                slot.store(0, Ordering::Release);
            }
        }
        let mut pool = self.pool.lock();
        pool.in_use -= numbers.len() as u32;
        pool.free.extend(numbers.iter().map(|&number| Reverse(number)));
    }

    /// Appends the numbers of a chain's overflow buckets to `numbers`. Returns how many `numbers`
    /// then has.
    pub(super) fn overflow_numbers(&self, head: u32, numbers: &mut Vec<u32>) -> usize {
        let mut next = head;
        while next != 0 {
            numbers.push(next);
            next = Meta(self.overflow_bucket(next).meta().load(Ordering::Relaxed)).overflow();
        }
        numbers.len()
    }

    /// True if the pool's last bucket is free.
    pub(super) fn overflow_end_is_free(&self) -> bool {
        let taken = self.pool.lock().taken;
        taken > 0 && self.is_free_overflow(taken)
    }

    fn is_free_overflow(&self, number: u32) -> bool {
        // Relaxed: the lock of the pool orders this load after the store of a thread that has given
        // the bucket back. A thread that takes the bucket stores under the lock.
        let meta = Meta(self.overflow_bucket(number).meta().load(Ordering::Relaxed));
        meta.is_free_overflow()
    }

    /// Gives up free buckets at the pool's end, at most `most`. Gives memory beyond the pool to the
    /// system and the budget, in whole units, and keeps what inserts may need soon. Returns the
    /// number of buckets and of bytes.
    ///
    /// Must be called while no thread is pinned: threads that were pinned before may have followed
    /// a link to such a bucket, and threads that pin later follow only links to other buckets.
    pub(super) fn trim_overflow(&self, budget: &Budget, most: u64) -> (u64, u64) {
        let mut pool = self.pool.lock();
        let mut trimmed = 0;
        while trimmed < most && pool.taken > 0 && self.is_free_overflow(pool.taken) {
            pool.taken -= 1;
            trimmed += 1;
        }
        let used = (u64::from(pool.taken) + 2) * BUCKET_BYTES as u64;
        let kept = used + self.overflow_headroom(budget);
        let kept = kept.next_multiple_of(self.granule_bytes);
        let freed = pool.charged_bytes.saturating_sub(kept);
        if freed > 0 {
            // SAFETY: the duty is that no thread refers to the range, and that its content is not
            // needed. No thread is pinned, no chain has a bucket in the range, and the lock of the
            // pool keeps other threads from taking one. The range was charged, so it is inside the
            // region.
            unsafe { self.overflow.release(kept as usize, freed as usize) };
            pool.charged_bytes = kept;
            budget.uncharge_index(freed);
        }
        (trimmed, freed)
    }
}
