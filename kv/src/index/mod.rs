//! Key hash -> newest record. A linear hash table that grows one bucket at a time.
//!
//! **Problem.** Nobody knows their key count in advance; the index must stay at 16 bytes a row from a
//! thousand rows to a billion, inside one memory budget with everything else, without a pause to
//! rehash, and without reading the rows that are on disk.
//!
//! **Approach.** *Linear hashing* (Litwin 1980): level L and a split pointer s say that buckets below s
//! have already been split for the next level. Every few inserts one more bucket is split, so the load
//! stays constant, memory grows 64 bytes at a time, and no operation ever waits for a doubling. A
//! bucket is one cache line: seven slots and a meta word. Full buckets chain to overflow buckets.
//! *Sliding tags* (see `entry`): a slot keeps the 16 hash bits that follow its bucket's, so a split
//! needs no record. Several keys may share a slot; their records are then chained by their previous
//! addresses, newest first.
//!
//! **Who may do what.** Lookups take no latch and write nothing: they read the meta word, the slots and,
//! when they found nothing, the meta word again; its version tells of a split in between. Operations
//! that change a row in place never change the index. Changing a slot (a new key, a record that
//! moved to the tail) takes the bucket's lock bit for a handful of instructions; FASTER's latch-free
//! two-phase insert does without, but can't tell apart prefix tags or split a bucket under it.
//!
//! **Invariants.**
//! 1. A key's records are in the chain of exactly one slot of its bucket, newest first. A slot's known tag bits agree
//!    with every key of its chain.
//! 2. A slot changes only under its bucket's lock. An insert compares the matching slots with those
//!    that its caller searched, so nobody adds a key twice.
//! 3. Before a bucket's entries change, its lock held, `will_change` notes it for the next checkpoint (`cut`).
//! 4. A bucket's depth only grows, its version changes with every split, and moves between buckets
//!    happen only while `SPLITTING` is set.

mod bucket;
pub(crate) mod cut;
mod entry;
mod grow;
pub(crate) mod image;
mod purge;
#[cfg(all(target_arch = "x86_64", not(any(miri, embank_shuttle, embank_tsan))))]
mod simd;
#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::memory::budget::Budget;
use crate::memory::region::{HUGE_PAGE_BYTES, Region};
use crate::record::address::Address;
use crate::sync::{AtomicU64, Backoff, Mutex, Ordering, Planted, fence, planted};

use bucket::{Bucket, Meta, SLOTS};
use cut::Eras;
use entry::TAG_BITS;
pub(crate) use entry::{ADDRESS_LIMIT, Entry, Probe};
pub(crate) use grow::Look;
use grow::{Growth, OverflowPool};

const BUCKET_BYTES: usize = 64;
/// Level of an empty index: its buckets take 16 KiB.
pub(crate) const INITIAL_LEVEL: u32 = 8;

/// The slots of a bucket that may lead to a key, in slot order; rarely more than one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    first: Option<Entry>,
    more: Vec<Entry>,
}

impl Candidates {
    pub(crate) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }

    fn push(&mut self, entry: Entry) {
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            self.more.push(entry);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.first.into_iter().chain(self.more.iter().copied())
    }
}

/// The index as of one look at its state: what finding a bucket takes. One copy serves a whole batch;
/// buckets that were split since tell by their depth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outline<'a> {
    index: &'a Index,
    level: u32,
    split: u64,
}

impl<'a> Outline<'a> {
    /// Where a hash's bucket should be, and its depth.
    #[inline]
    fn guess(self, hash: u64) -> (u64, u32) {
        let narrow = low_bits(hash, self.level);
        let deeper = narrow < self.split;
        let wide = low_bits(hash, self.level + 1);
        (if deeper { wide } else { narrow }, self.level + u32::from(deeper))
    }

    /// The hash's bucket with a meta word that is good for it, however old the outline is. Bounded: each step
    /// goes one bit deeper at least, of 64.
    ///
    /// A bucket may have been split several times since. Which of its hashes went elsewhere then is told by the
    /// first of these splits at which this one did: that bucket is there. Where the hash would go at the bucket's
    /// present depth, there need not be one yet, as the other bucket has splits of its own.
    #[inline]
    fn find_bucket(self, hash: u64) -> (u64, &'a Bucket, Meta) {
        let (mut i, mut depth) = self.guess(hash);
        loop {
            let bucket = self.index.bucket(i);
            // Acquire: sees the slots as of this version (Release in `unlock`).
            let meta = Meta(bucket.meta().load(Ordering::Acquire));
            if low_bits(hash, meta.depth()) == i {
                return (i, bucket, meta);
            }
            depth += (hash >> depth).trailing_zeros() + 1;
            i = low_bits(hash, depth);
        }
    }

    /// Brings a hash's bucket into the second-level cache.
    #[inline]
    pub(crate) fn prefetch(self, hash: u64) {
        self.prefetch_into::<false>(hash);
    }

    /// Brings a hash's bucket into the first-level cache if `NEAR`, else into the second-level cache.
    #[inline]
    pub(crate) fn prefetch_into<const NEAR: bool>(self, hash: u64) {
        crate::memory::cpu_hint::line_into::<NEAR, _>(self.index.bucket(self.guess(hash).0));
    }

    /// The first slot of the hash's bucket that may lead to it, without regard to a split under way: a
    /// hint that the caller confirms by the record's key. `EMPTY` if there is none; `BEYOND` if the search
    /// goes on in an overflow bucket, which is then on its way into the cache.
    #[inline]
    pub(crate) fn first_match(self, hash: u64) -> Entry {
        let (number, depth) = self.guess(hash);
        let bucket = self.index.bucket(number);
        // Acquire: sees the slots as of this version (Release in `unlock`).
        let meta = Meta(bucket.meta().load(Ordering::Acquire));
        let matching = bucket.matching(Probe::new(hash, depth));
        if matching == 0 || meta.depth() != depth {
            return self.index.first_match_slowly(hash);
        }
        // Acquire: sees the record that the Release store of this slot published. If the slot changed
        // since, its record will not carry the key, or be just as good.
        Entry(bucket.slot(matching.trailing_zeros() as usize).load(Ordering::Acquire))
    }
}

/// What became of an insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The record is found from now on.
    Yes,
    /// The matching slots are not those that were searched, or hold newer records than the new one only: search again,
    /// and begin another record.
    Changed,
}

/// The index of a store. See the module's essay.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Region,
    overflow: Region,
    /// Level in the upper 8 bits, split pointer below.
    state: AtomicU64,
    /// Slots in use. Every change of a slot goes through `set_slot`, which counts, or through a split, which counts too.
    entries: AtomicU64,
    /// Slots in use whose entry knows no bit. A split makes two of each, so more buckets don't make them fewer a bucket.
    blank_entries: AtomicU64,
    /// Held by the one thread that splits buckets.
    growth: Mutex<Growth>,
    pool: Mutex<OverflowPool>,
    eras: Eras,
    /// Bytes in which memory is charged to the budget.
    granule_bytes: u64,
}

/// A bucket's lock bit, held.
struct LockedBucket<'a> {
    index: &'a Index,
    number: u64,
    bucket: &'a Bucket,
    /// What unlocking leaves in the meta word.
    meta: Meta,
}

/// What the slots of a locked bucket offer to a new record.
struct Survey<'a> {
    /// All entries that match the record's tag, as far as they know theirs.
    matching: Candidates,
    /// The one of them whose tag agrees longest.
    first: Option<(&'a AtomicU64, Entry)>,
    empty: Option<&'a AtomicU64>,
    /// Of the entries that do not match and lead to older records, the one whose tag agrees longest, in bits.
    closest: Option<(u32, &'a AtomicU64, Entry)>,
    /// The last bucket of the chain.
    last: &'a Bucket,
}

impl<'a> Survey<'a> {
    fn of(locked: &LockedBucket<'a>, probe: Probe, new: Address) -> Self {
        let mut matching = Candidates::default();
        let mut first: Option<(&AtomicU64, Entry)> = None;
        let mut empty = None;
        let mut closest: Option<(u32, &AtomicU64, Entry)> = None;
        let mut last = locked.bucket;
        for bucket in locked.chain() {
            last = bucket;
            for slot in bucket.slots() {
                let entry = Entry(slot.load(Ordering::Relaxed));
                if entry.is_empty() {
                    empty = empty.or(Some(slot));
                } else if entry.matches(probe) {
                    if first.is_none_or(|(_, best)| best.agreement(probe) < entry.agreement(probe))
                    {
                        first = Some((slot, entry));
                    }
                    matching.push(entry);
                } else if entry.address() < new
                    && closest.is_none_or(|(bits, ..)| bits < entry.agreement(probe))
                {
                    closest = Some((entry.agreement(probe), slot, entry));
                }
            }
        }
        Survey { matching, first, empty, closest, last }
    }
}

impl<'a> LockedBucket<'a> {
    fn unlock(self, meta: Meta) {
        // Release: pairs with the Acquire of the next lock and of lookups.
        self.bucket.meta().store(meta.unlocked().0, Ordering::Release);
        std::mem::forget(self);
    }

    /// The bucket and its overflow buckets.
    fn chain(&self) -> impl Iterator<Item = &'a Bucket> + use<'a> {
        self.index.chain(self.bucket, self.meta)
    }
}

impl Drop for LockedBucket<'_> {
    fn drop(&mut self) {
        self.bucket.meta().store(self.meta.unlocked().0, Ordering::Release);
    }
}

/// 1 for a slot's content that knows no bit.
fn blank(entry: Entry) -> u64 {
    u64::from(entry.knows_nothing())
}

fn low_bits(hash: u64, bits: u32) -> u64 {
    hash & ((1 << bits) - 1)
}

impl Index {
    pub(crate) fn new(budget: &Budget) -> Result<Self> {
        let index = Self::unallocated(budget)?;
        let level = budget.limits().initial_level;
        index.reserve_buckets(budget, &mut index.growth.lock(), 1 << level);
        for i in 0..1 << level {
            index.bucket(i).meta().store(Meta::new(level, 0, 0).0, Ordering::Relaxed);
        }
        index.set_state(level, 0);
        Ok(index)
    }

    fn unallocated(budget: &Budget) -> Result<Self> {
        let most = budget.index_bytes_max().next_multiple_of(HUGE_PAGE_BYTES as u64) as usize;
        let huge = budget.huge_pages();
        Ok(Index {
            buckets: Region::reserve(most, huge)?,
            overflow: Region::reserve(most, huge)?,
            state: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            blank_entries: AtomicU64::new(0),
            growth: Mutex::new(Growth::default()),
            pool: Mutex::new(OverflowPool::default()),
            eras: Eras::new(budget.saved_bytes_max()),
            granule_bytes: budget.index_unit_bytes(),
        })
    }

    fn state(&self) -> (u32, u64) {
        // Acquire: sees the buckets that the Release store in `set_state` counts in.
        let state = self.state.load(Ordering::Acquire);
        ((state >> 56) as u32, state & ((1 << 56) - 1))
    }

    fn set_state(&self, level: u32, split: u64) {
        self.state.store(u64::from(level) << 56 | split, Ordering::Release);
    }

    /// Primary buckets in use.
    pub(crate) fn bucket_count(&self) -> u64 {
        let (level, split) = self.state();
        (1 << level) + split
    }

    /// Slots in use; a row needs one, or shares one.
    pub(crate) fn entry_count(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Slots in use that a split of their bucket sends to one side.
    fn divisible_count(&self) -> u64 {
        // Relaxed: both may be off by what is under way. Then a bucket is split a little sooner or later.
        self.entry_count().saturating_sub(self.blank_entries.load(Ordering::Relaxed))
    }

    /// Changes a slot of a locked bucket and the counts.
    fn set_slot(&self, slot: &AtomicU64, old: Entry, new: Entry) {
        // Release: publishes the record; pairs with the Acquire loads of slots.
        slot.store(new.0, Ordering::Release);
        let in_use = |entry: Entry| u64::from(!entry.is_empty());
        self.count(in_use(new).wrapping_sub(in_use(old)), blank(new).wrapping_sub(blank(old)));
    }

    /// Adds to the counts, wrapping.
    fn count(&self, entries: u64, blank: u64) {
        // Relaxed: counts of their own, which order nothing.
        if entries != 0 {
            self.entries.fetch_add(entries, Ordering::Relaxed);
        }
        if blank != 0 {
            self.blank_entries.fetch_add(blank, Ordering::Relaxed);
        }
    }

    #[inline]
    fn bucket(&self, i: u64) -> &Bucket {
        debug_assert!((i as usize + 1) * BUCKET_BYTES <= self.buckets.len());
        // SAFETY: `i` is below the bucket count, which never exceeds the region (`grow`); a bucket
        // is eight atomics, valid for any content; the region outlives `self`.
        unsafe { &*self.buckets.as_ptr().cast::<Bucket>().add(i as usize) }
    }

    fn overflow_bucket(&self, number: u32) -> &Bucket {
        debug_assert!((number as usize + 1) * BUCKET_BYTES <= self.overflow.len());
        // SAFETY: as in `bucket`; numbers come from the pool, which stays inside the region.
        unsafe { &*self.overflow.as_ptr().cast::<Bucket>().add(number as usize) }
    }

    fn chain<'a>(&'a self, bucket: &'a Bucket, meta: Meta) -> impl Iterator<Item = &'a Bucket> {
        let mut next = meta.overflow();
        let mut first = Some(bucket);
        // Ends: overflow numbers form a list without cycles; a reader that races with a split could
        // be led astray, but only along buckets in the pool, and each step then re-reads memory
        // that the split leaves as a proper list again.
        std::iter::from_fn(move || {
            if let Some(bucket) = first.take() {
                return Some(bucket);
            }
            if next == 0 {
                return None;
            }
            let bucket = self.overflow_bucket(next);
            // Acquire: sees the slots written before this link.
            next = Meta(bucket.meta().load(Ordering::Acquire)).overflow();
            Some(bucket)
        })
    }

    /// The index as it stands now.
    #[inline]
    pub(crate) fn outline(&self) -> Outline<'_> {
        let (level, split) = self.state();
        Outline { index: self, level, split }
    }

    /// Takes all tag bits from all entries, as many splits do.
    #[cfg(test)]
    pub(crate) fn forget_tags(&self) {
        for number in 0..self.bucket_count() {
            let mut locked = self.lock_number(number);
            locked.will_change();
            for slot in locked.chain().flat_map(Bucket::slots) {
                let entry = Entry(slot.load(Ordering::Relaxed));
                if !entry.is_empty() {
                    self.set_slot(slot, entry, entry.widened(0));
                }
            }
        }
    }

    /// Slots in use, and those of them whose entry knows no bit, by a look at all of them.
    #[cfg(test)]
    pub(crate) fn recount(&self) -> (u64, u64) {
        let mut entries = 0;
        let mut blank_entries = 0;
        for number in 0..self.bucket_count() {
            let locked = self.lock_number(number);
            for slot in locked.chain().flat_map(Bucket::slots) {
                let entry = Entry(slot.load(Ordering::Relaxed));
                entries += u64::from(!entry.is_empty());
                blank_entries += blank(entry);
            }
        }
        (entries, blank_entries)
    }

    /// What the counts say of `recount`.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.entry_count(), self.blank_entries.load(Ordering::Relaxed))
    }

    /// The hash's bucket with a meta word that is good for it.
    #[inline]
    fn find_bucket(&self, hash: u64) -> (u64, &Bucket, Meta) {
        self.outline().find_bucket(hash)
    }

    #[inline(never)]
    fn first_match_slowly(&self, hash: u64) -> Entry {
        let (_, bucket, meta) = self.find_bucket(hash);
        let probe = Probe::new(hash, meta.depth());
        // Acquire: as above.
        let slots = bucket.slots().iter().map(|slot| Entry(slot.load(Ordering::Acquire)));
        match { slots }.find(|entry| entry.matches(probe)) {
            Some(entry) => entry,
            None if meta.overflow() == 0 => Entry::EMPTY,
            None => {
                crate::memory::cpu_hint::line(self.overflow_bucket(meta.overflow()));
                Entry::BEYOND
            }
        }
    }

    /// Goes on where `first_match` said `BEYOND`.
    pub(crate) fn first_match_beyond(&self, hash: u64) -> Entry {
        let (_, bucket, meta) = self.find_bucket(hash);
        let probe = Probe::new(hash, meta.depth());
        self.chain(bucket, meta)
            .take(MAX_CHAIN)
            .flat_map(Bucket::slots)
            // Acquire: as in `first_match`.
            .map(|slot| Entry(slot.load(Ordering::Acquire)))
            .find(|entry| entry.matches(probe))
            .unwrap_or(Entry::EMPTY)
    }

    /// Every slot that may lead to the hash, as of one moment with regard to splits.
    pub(crate) fn candidates(&self, hash: u64, found: &mut Candidates) {
        let mut backoff = Backoff::new();
        loop {
            found.clear();
            let (_, bucket, meta) = self.find_bucket(hash);
            if !meta.is_splitting() {
                let probe = Probe::new(hash, meta.depth());
                for slot in self.chain(bucket, meta).take(MAX_CHAIN).flat_map(Bucket::slots) {
                    // Acquire: sees the record that the slot's Release store published.
                    let entry = Entry(slot.load(Ordering::Acquire));
                    if entry.matches(probe) {
                        found.push(entry);
                    }
                }
                // Acquire fence: the slots were read before the second look at the meta word. If
                // any of them came from a split, that split's `SPLITTING` or version shows here.
                fence(Ordering::Acquire);
                let after = Meta(bucket.meta().load(Ordering::Relaxed));
                if after.same_layout_as(meta) || planted(Planted::LookupOnce) {
                    return;
                }
            }
            backoff.snooze();
        }
    }

    fn lock(&self, hash: u64) -> LockedBucket<'_> {
        let mut backoff = Backoff::new();
        loop {
            let (number, bucket, meta) = self.find_bucket(hash);
            if let Some(locked) = self.try_lock_bucket(number, bucket, meta) {
                return locked;
            }
            backoff.snooze();
        }
    }

    fn try_lock_bucket<'a>(
        &'a self,
        number: u64,
        bucket: &'a Bucket,
        meta: Meta,
    ) -> Option<LockedBucket<'a>> {
        if meta.is_locked() {
            return None;
        }
        // Acquire: sees everything that the last holder did. The depth can't have changed: the
        // whole word was compared.
        bucket
            .meta()
            .compare_exchange(meta.0, meta.locked().0, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| LockedBucket { index: self, number, bucket, meta })
    }

    /// Lets the slot that holds `old` point to `new`. False if no slot of the hash's bucket holds
    /// exactly `old` any more. With `alone` no record follows `new`, and the tag is renewed.
    pub(crate) fn replace(&self, hash: u64, old: Entry, new: Address, alone: bool) -> bool {
        self.replace_if(hash, old, new, alone, || true)
    }

    /// As `replace`, and only if `still` says so while the hash's bucket is locked: of this and an insert of
    /// the same key, into whatever slot, the later one sees all that the earlier one saw.
    pub(crate) fn replace_if(
        &self,
        hash: u64,
        old: Entry,
        new: Address,
        alone: bool,
        still: impl FnOnce() -> bool,
    ) -> bool {
        let mut locked = self.lock(hash);
        let replacement = if alone {
            Entry::new(Probe::new(hash, locked.meta.depth()), new)
        } else {
            old.chained_to(new)
        };
        let slot = locked
            .chain()
            .flat_map(Bucket::slots)
            .find(|slot| slot.load(Ordering::Relaxed) == old.0)
            .filter(|_| still());
        if let Some(slot) = slot {
            locked.will_change();
            self.set_slot(slot, old, replacement);
        }
        slot.is_some()
    }

    /// Adds a key whose record at `new` is complete but for its previous address, which `link` sets.
    /// `searched` are the slots whose chains do not hold the key.
    pub(crate) fn insert(
        &self,
        budget: &Budget,
        hash: u64,
        searched: &Candidates,
        new: Address,
        link: impl FnOnce(Address),
    ) -> Inserted {
        let mut locked = self.lock(hash);
        let probe = Probe::new(hash, locked.meta.depth());
        let Survey { matching, first, empty, closest, last } = Survey::of(&locked, probe, new);
        if matching != *searched && !planted(Planted::InsertUnchecked) {
            return Inserted::Changed;
        }
        locked.will_change();
        let fresh = Entry::new(probe, new);
        // Each store below is a Release (`set_slot`) that publishes the record, `link`'s write included.
        let same_tag = first.filter(|(_, entry)| entry.agreement(probe) == TAG_BITS);
        if let Some((slot, entry)) = same_tag {
            link(entry.address());
            self.set_slot(slot, entry, entry.chained_to(new));
            return Inserted::Yes;
        }
        // A match by a shortened tag is most likely another key: a slot of its own keeps chains short.
        if let Some(slot) = empty {
            link(Address::NONE);
            self.set_slot(slot, Entry::EMPTY, fresh);
            return Inserted::Yes;
        }
        if let Some(number) = self.take_overflow(budget) {
            link(Address::NONE);
            self.set_slot(self.overflow_bucket(number).slot(0), Entry::EMPTY, fresh);
            if std::ptr::eq(last, locked.bucket) {
                let meta = locked.meta.with_overflow(number);
                locked.unlock(meta);
            } else {
                last.meta().store(Meta::new(0, 0, number).0, Ordering::Release);
            }
            return Inserted::Yes;
        }
        // No memory for another slot: share one that matches, or the one whose tag agrees longest.
        if let Some((slot, entry)) = first {
            link(entry.address());
            self.set_slot(slot, entry, entry.chained_to(new));
            return Inserted::Yes;
        }
        // Chains go back. Heads that its caller searched are older than its record; others need not be.
        let Some((bits, slot, entry)) = closest else { return Inserted::Changed };
        link(entry.address());
        self.set_slot(slot, entry, entry.widened(bits).chained_to(new));
        Inserted::Yes
    }
}

/// Overflow buckets that a lookup follows at most: far above what the load gives, and a bound for a
/// lookup that races with a split.
const MAX_CHAIN: usize = 1 << 16;

const _: () = assert!(size_of::<Bucket>() == BUCKET_BYTES && SLOTS == 7);
