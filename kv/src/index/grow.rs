//! Grows the index: the batch that inserts rows splits one bucket at a time. `fold` undoes splits.

use super::bucket::{Bucket, Meta};
use super::entry::Entry;
use super::overflow::overflow_buckets_for;
use super::{BUCKET_BYTES, Index, LockedBucket, blank};
use crate::memory::budget::Budget;
use crate::record::address::Address;
use crate::sync::{Backoff, Ordering, Planted, planted};

/// Load at which the next bucket is split, in used slots per primary bucket. At 5, a sixth of the
/// buckets have an overflow bucket, and an entry costs 14 to 15 bytes (measured by the tests).
pub(super) const LOAD: u64 = 5;
/// Largest number of splits of one `grow` call, so that a batch does not pay for the inserts of
/// many other batches.
const SPLITS_PER_CALL: usize = 4096;
/// Largest number of attempts of a split to lock its bucket. The attempts do not yield the
/// processor, and the lock holder may not be running. After the last attempt, the split is left to
/// the next call of `grow`.
const LOCK_TRIES: usize = 7;
/// Largest number of records of a chain that a split reads to find the bucket that each record
/// belongs to.
const RECORDS_SEEN_MAX: usize = 32;

/// The memory charged for primary buckets, and the buffers of the thread that splits or folds
/// buckets.
#[derive(Debug, Default)]
pub(super) struct Growth {
    pub(super) charged_bytes: u64,
    /// An address above the heads of all entries that splits have copied to both buckets. A record
    /// at or above this address is only in chains of its own bucket, and matches their tags.
    pub(super) copies_end: u64,
    /// True from the first portion of a fold of the index to the last.
    pub(super) is_folding: bool,
    pub(super) low: Vec<Entry>,
    pub(super) high: Vec<Entry>,
    pub(super) numbers: Vec<u32>,
    hashes: Vec<u64>,
}

/// The two buckets of a split: the split bucket and the new one.
#[derive(Debug, Clone, Copy)]
struct Sides {
    split: u64,
    upper: u64,
    /// Depth of both buckets after the split, in hash bits.
    depth: u32,
}

impl Growth {
    /// Divides the entries of a locked bucket between the two buckets of the split. Returns the
    /// number of entries that the bucket had, and how many of them had no tag bits.
    fn divide(
        &mut self,
        locked: &LockedBucket<'_>,
        sides: Sides,
        look: &impl Fn(Address) -> Look,
    ) -> (u64, u64) {
        let Growth { low, high, hashes, copies_end, .. } = self;
        low.clear();
        high.clear();
        let mut entries = 0;
        let mut blank_entries = 0;
        for slot in locked.chain().flat_map(Bucket::slots) {
            // Acquire: sees the record that the slot's Release store published.
            let entry = Entry(slot.load(Ordering::Acquire));
            if entry.is_empty() {
                continue;
            }
            entries += 1;
            blank_entries += blank(entry);
            let divided = low.len() + high.len();
            if entry.knows_nothing() && hashes_of(entry, look, hashes) {
                let side = |number| {
                    let narrowed = entry.narrowed(number, sides.depth, hashes.iter().copied());
                    (!narrowed.is_empty()).then_some(narrowed)
                };
                low.extend(side(sides.split));
                high.extend(side(sides.upper));
            } else {
                let (to_low, to_high) = entry.split();
                low.extend(to_low);
                high.extend(to_high);
            }
            if low.len() + high.len() == divided + 2 {
                *copies_end = (entry.address().raw() + 1).max(*copies_end);
            }
        }
        (entries, blank_entries)
    }
}

/// The information that a split can get about a record without reading the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Look {
    /// The record is in memory: its hash, and the address of the chain's next record.
    Record(u64, Address),
    /// The address is below the log's beginning, so the chain has ended.
    Nowhere,
    /// The record is on disk.
    Unseen,
}

/// Lists the hashes of an entry's records. Returns false if a record is on disk, or if there are
/// more than `RECORDS_SEEN_MAX`.
fn hashes_of(entry: Entry, look: &impl Fn(Address) -> Look, hashes: &mut Vec<u64>) -> bool {
    hashes.clear();
    let mut address = entry.address();
    while !address.is_none() {
        match look(address) {
            Look::Record(..) if hashes.len() == RECORDS_SEEN_MAX => return false,
            Look::Record(hash, previous) => {
                hashes.push(hash);
                address = if planted(Planted::SplitByHead) { Address::NONE } else { previous };
            }
            Look::Nowhere => break,
            Look::Unseen => return false,
        }
    }
    true
}

impl Index {
    /// True if the index has more entries than its buckets should hold.
    pub(crate) fn wants_growth(&self) -> bool {
        // Entries without tag bits don't count: a split copies them to both buckets, so counting
        // them would make the index grow forever.
        self.divisible_count() > self.bucket_count() * LOAD
    }

    /// Splits buckets until the load is at its target, but at most `SPLITS_PER_CALL` buckets.
    /// Batches call this after inserts. Does nothing while another thread splits. Stops if the
    /// budget has no memory; a later call continues. Until then, new keys go to overflow buckets,
    /// and then share slots (see `insert`). Returns true if it has split a bucket. `look` returns
    /// the hash and the previous address of a record in memory.
    pub(crate) fn grow(&self, budget: &Budget, look: impl Fn(Address) -> Look) -> bool {
        if !self.wants_growth() {
            return false;
        }
        let Some(mut growth) = self.growth.try_lock() else { return false };
        self.charge_overflow_ahead(budget);
        for done in 0..SPLITS_PER_CALL {
            if !self.wants_growth() || !self.split_next(budget, &mut growth, &look) {
                return done > 0;
            }
        }
        true
    }

    /// Charges memory until it suffices for `buckets` primary buckets. Returns false if the budget
    /// has no memory.
    pub(super) fn reserve_buckets(
        &self,
        budget: &Budget,
        growth: &mut Growth,
        buckets: u64,
    ) -> bool {
        let wanted = buckets * BUCKET_BYTES as u64;
        while growth.charged_bytes < wanted {
            let next = growth.charged_bytes + self.granule_bytes;
            if next > self.buckets.len() as u64 || !budget.try_charge_index(self.granule_bytes) {
                return false;
            }
            growth.charged_bytes = next;
        }
        true
    }

    /// Splits the bucket at the split pointer. Returns false if there is no memory, or if another
    /// thread holds the bucket's lock.
    fn split_next(
        &self,
        budget: &Budget,
        growth: &mut Growth,
        look: &impl Fn(Address) -> Look,
    ) -> bool {
        let (level, split) = self.state();
        let upper = split + (1 << level);
        if !self.reserve_buckets(budget, growth, upper + 1) {
            return false;
        }
        let bucket = self.bucket(split);
        let mut backoff = Backoff::new();
        let locked = (0..LOCK_TRIES).find_map(|_| {
            let meta = Meta(bucket.meta().load(Ordering::Acquire));
            self.try_lock_bucket(split, bucket, meta).or_else(|| {
                backoff.snooze();
                None
            })
        });
        let Some(mut locked) = locked else { return false };
        let sides = Sides { split, upper, depth: level + 1 };
        let (entries_before, blank_before) = growth.divide(&locked, sides, look);
        let Growth { low, high, numbers, .. } = growth;
        numbers.clear();
        let before = self.overflow_numbers(locked.meta.overflow(), numbers);
        let wanted = overflow_buckets_for(low.len()) + overflow_buckets_for(high.len());
        while numbers.len() < wanted {
            let Some(number) = self.take_overflow(budget) else {
                self.give_back_overflow(&numbers[before..]);
                return false;
            };
            numbers.push(number);
        }
        locked.will_change();
        // An entry that was copied to both buckets must count twice, because both copies are
        // removed later.
        if !planted(Planted::SplitUncounted) {
            let entries = (low.len() + high.len()) as u64;
            let blank_after: u64 = low.iter().chain(&*high).map(|&entry| blank(entry)).sum();
            self.count(
                entries.wrapping_sub(entries_before),
                blank_after.wrapping_sub(blank_before),
            );
        }
        // From here on entries move. Each slot store below is a Release store after this store of
        // `SPLITTING`. A lookup that reads a moved slot therefore also sees the bit, or the version
        // after it.
        if !planted(Planted::SplitUntold) {
            bucket.meta().store(locked.meta.splitting().0, Ordering::Relaxed);
        }
        let (low_numbers, rest) = numbers.split_at(overflow_buckets_for(low.len()));
        let (high_numbers, unused) = rest.split_at(overflow_buckets_for(high.len()));
        let target = self.bucket(upper);
        let high_head = self.fill(target, high, high_numbers);
        // Release: the bucket must be complete before the lower bucket's new depth leads other
        // threads to it.
        let meta = self.changed_now(Meta::new(level + 1, 0, high_head));
        target.meta().store(meta.0, Ordering::Release);
        let low_head = self.fill(bucket, low, low_numbers);
        let version = locked.meta.version() + 1;
        locked.unlock(self.changed_now(Meta::new(level + 1, version, low_head)));
        self.give_back_overflow(unused);
        let next = split + 1;
        if next == 1 << level {
            self.set_state(level + 1, 0)
        } else {
            self.set_state(level, next)
        }
        true
    }

    /// Stores entries in a bucket and its overflow buckets, followed by empty slots. Returns the
    /// number of the first overflow bucket, which the caller stores in the bucket's meta word.
    /// Returns 0 if there is no overflow bucket.
    pub(super) fn fill(&self, bucket: &Bucket, entries: &[Entry], numbers: &[u32]) -> u32 {
        debug_assert_eq!(numbers.len(), overflow_buckets_for(entries.len()));
        let mut entries = entries.iter().map(|entry| entry.0).chain(std::iter::repeat(0));
        let mut store = |bucket: &Bucket| {
            for (slot, entry) in bucket.slots().iter().zip(&mut entries) {
                slot.store(entry, Ordering::Release);
            }
        };
        store(bucket);
        for (i, &number) in numbers.iter().enumerate() {
            let bucket = self.overflow_bucket(number);
            store(bucket);
            let next = numbers.get(i + 1).copied().unwrap_or(0);
            bucket.meta().store(Meta::new(0, 0, next).0, Ordering::Release);
        }
        numbers.first().copied().unwrap_or(0)
    }

    /// Sets a bucket's content while no other thread uses the index. Returns false if the budget
    /// has no memory.
    pub(super) fn load_bucket(
        &self,
        budget: &Budget,
        i: u64,
        depth: u32,
        entries: &[Entry],
    ) -> bool {
        let numbers: Option<Vec<u32>> =
            (0..overflow_buckets_for(entries.len())).map(|_| self.take_overflow(budget)).collect();
        let Some(numbers) = numbers else { return false };
        let head = self.fill(self.bucket(i), entries, &numbers);
        self.bucket(i).meta().store(Meta::new(depth, 0, head).0, Ordering::Release);
        self.count(entries.len() as u64, entries.iter().map(|&entry| blank(entry)).sum());
        true
    }
}
