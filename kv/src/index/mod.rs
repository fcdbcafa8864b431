//! The index: maps a key's hash to the key's newest record. A linear hash table that grows one
//! bucket at a time.
//!
//! **Problem.** No user knows the number of keys in advance. The index must take 16 bytes a row
//! from a thousand rows to a billion. It shares one memory budget with all other parts. It must not
//! pause to rehash, and must not read rows that are on disk.
//!
//! **Approach.** *Linear hashing* (Litwin 1980). At level L the index has 2^L buckets, and it
//! splits them one after another, lowest number first. The split pointer s is the number of the
//! next bucket to split: the buckets below s and the s new buckets already have depth L + 1. After
//! every few inserts, one more bucket is split. The load therefore stays constant, memory grows 64
//! bytes at a time, and no operation waits for a doubling. A bucket is one cache line: seven slots
//! and a meta word. Full buckets chain to overflow buckets. *Sliding tags* (see `entry`): a slot
//! keeps the 16 hash bits that follow the bits of its bucket's number, so a split reads no record.
//! Several keys may share a slot. Their records are then chained by their previous addresses,
//! newest first. In a bank with two tiers, most rows leave the log and lose their entries. The
//! index then *folds*: it undoes splits, and gives the memory back (see `fold`).
//!
//! **Concurrency.** A lookup takes no latch and writes nothing. It reads the meta word, the slots
//! and, if it found no match, the meta word again. A changed version in the meta word shows that
//! the bucket was split in between. Operations that change a row in place never change the index. A
//! change of a slot (a new key, or a record that moved to the tail) takes the bucket's lock bit for
//! a few instructions. FASTER inserts without a lock, in two phases. This index cannot do so: the
//! two-phase insert can't distinguish tags of different lengths, and no bucket can be split during
//! it.
//!
//! **Invariants.**
//! 1. A key's records are in the chain of exactly one slot of its bucket, newest first. The tag
//!    bits that a slot knows agree with the hash of every key in its chain.
//! 2. A slot changes only under its bucket's lock. An insert compares the matching slots with the
//!    slots that its caller searched, so no key is added twice.
//! 3. Before the entries of a locked bucket change, `will_change` marks the bucket for the next
//!    checkpoint (see `cut`).
//! 4. While a thread is pinned, a bucket's depth only grows, its version changes with every split,
//!    and entries move between buckets only while `SPLITTING` is set. A fold happens while no
//!    thread is pinned. So an outline serves only the pin under which it was copied.

mod bucket;
pub(crate) mod cut;
mod entry;
mod fold;
mod grow;
pub(crate) mod image;
mod overflow;
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
use grow::Growth;
pub(crate) use grow::Look;
use overflow::OverflowPool;

const BUCKET_BYTES: usize = 64;
/// Level of an empty index: 2^8 buckets, which take 16 KiB.
pub(crate) const INITIAL_LEVEL: u32 = 8;

/// The entries of a bucket's slots that may lead to a key, in slot order. There is rarely more than
/// one.
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

/// A copy of the index's level and split pointer, which a thread needs to find buckets. One copy
/// serves all lookups under a pin. If a bucket is split after the copy was made, the depth in the
/// bucket's meta word shows the split. A thread without a pin may only prefetch: a fold may remove
/// the bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outline<'a> {
    index: &'a Index,
    level: u32,
    split: u64,
}

impl<'a> Outline<'a> {
    /// Returns the number and the depth that a hash's bucket had when the outline was copied.
    #[inline]
    fn guess(self, hash: u64) -> (u64, u32) {
        let narrow = low_bits(hash, self.level);
        let deeper = narrow < self.split;
        let wide = low_bits(hash, self.level + 1);
        (if deeper { wide } else { narrow }, self.level + u32::from(deeper))
    }

    /// Returns the hash's bucket and its meta word, even if buckets were split since the outline
    /// was copied. The loop ends: each step goes at least one bit deeper, and a hash has 64 bits.
    ///
    /// A bucket of depth d holds the hashes that agree in the lowest d bits. A split moves the
    /// hashes whose next bit is 1 to a new bucket. The guessed bucket may have been split several
    /// times. A step skips the splits that left the hash in place (next bit 0), and continues at
    /// the bucket that the first split with a 1 bit filled. That bucket exists. The bucket for the
    /// guessed bucket's present depth may not exist, because the filled bucket has its own later
    /// splits.
    #[inline]
    fn find_bucket(self, hash: u64) -> (u64, &'a Bucket, Meta) {
        let (mut i, mut depth) = self.guess(hash);
        loop {
            let bucket = self.index.bucket(i);
            // Acquire: pairs with the Release store in `unlock`, and so sees the slots of this
            // version.
            let meta = Meta(bucket.meta().load(Ordering::Acquire));
            if low_bits(hash, meta.depth()) == i {
                return (i, bucket, meta);
            }
            depth += (hash >> depth).trailing_zeros() + 1;
            i = low_bits(hash, depth);
        }
    }

    /// Prefetches a hash's bucket into the second-level cache.
    #[inline]
    pub(crate) fn prefetch(self, hash: u64) {
        self.prefetch_into::<false>(hash);
    }

    /// Prefetches a hash's bucket into the first-level cache if `NEAR`, else into the second-level
    /// cache.
    #[inline]
    pub(crate) fn prefetch_into<const NEAR: bool>(self, hash: u64) {
        crate::memory::cpu_hint::line_into::<NEAR, _>(self.index.bucket(self.guess(hash).0));
    }

    /// Returns the first entry of the hash's bucket that may lead to the hash. Returns `EMPTY` if
    /// no slot matches. Returns `BEYOND` if the search continues in an overflow bucket, which the
    /// call prefetches. Ignores a split in progress: the result is a hint, and the caller compares
    /// the record's key.
    #[inline]
    pub(crate) fn first_match(self, hash: u64) -> Entry {
        self.first_match_by(hash, Bucket::matching)
    }

    /// Writes the [`first_match`](Self::first_match) of each hash to the element of `to` with the
    /// same position. `to` has at least as many elements as `hashes`.
    pub(crate) fn first_matches(self, hashes: &[u64], to: &mut [Entry]) {
        #[cfg(all(target_arch = "x86_64", not(any(miri, embank_shuttle, embank_tsan))))]
        if simd::is_wide() {
            // SAFETY: the duty is that the processor has the instructions, and `is_wide` says so.
            return unsafe { self.first_matches_wide(hashes, to) };
        }
        for (to, &hash) in to.iter_mut().zip(hashes) {
            *to = self.first_match(hash);
        }
    }

    /// Implements [`first_matches`](Self::first_matches) for processors with AVX2, BMI1 and BMI2.
    #[cfg(all(target_arch = "x86_64", not(any(miri, embank_shuttle, embank_tsan))))]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn first_matches_wide(self, hashes: &[u64], to: &mut [Entry]) {
        for (to, &hash) in to.iter_mut().zip(hashes) {
            *to = self.first_match_by(hash, |bucket, probe| simd::matching_wide(bucket, probe));
        }
    }

    /// Implements `first_match`. `matching` is [`Bucket::matching`] or a faster function with the
    /// same results.
    #[inline(always)]
    fn first_match_by(self, hash: u64, matching: impl Fn(&Bucket, Probe) -> u32) -> Entry {
        let (number, depth) = self.guess(hash);
        let bucket = self.index.bucket(number);
        // Acquire: pairs with the Release store in `unlock`, and so sees the slots of this version.
        let meta = Meta(bucket.meta().load(Ordering::Acquire));
        let matching = matching(bucket, Probe::new(hash, depth));
        if meta.depth() != depth {
            return self.index.first_match_slowly(hash);
        }
        if matching == 0 {
            return self.index.after_bucket(meta);
        }
        // Acquire: sees the record that the Release store of this slot published. If the slot has
        // changed since the comparison, the caller notices a wrong record by its key.
        Entry(bucket.slot(matching.trailing_zeros() as usize).load(Ordering::Acquire))
    }
}

/// The result of an insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The index now leads to the record.
    Yes,
    /// Another thread changed the matching slots after the search, or the caller's condition is
    /// false. Or memory is too short for
    /// another slot, and every slot that the new record could share leads to a newer record. The
    /// caller searches again and writes a new record.
    Changed,
}

/// The index of a store.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Region,
    overflow: Region,
    /// The level in the upper 8 bits, the split pointer in the lower 56.
    state: AtomicU64,
    /// Number of slots in use. Only `set_slot` and splits change slots, and both update this
    /// number.
    entries: AtomicU64,
    /// Number of slots in use whose entry knows no tag bit. A split that cannot read the records of
    /// such an entry copies it to both buckets, so splits do not lower their number per bucket.
    blank_entries: AtomicU64,
    /// Locked by the thread that splits or folds buckets.
    growth: Mutex<Growth>,
    pool: Mutex<OverflowPool>,
    /// Locked while all buckets must keep their numbers, and by the thread that folds buckets.
    numbers: Mutex<()>,
    eras: Eras,
    /// Unit in which memory is charged to the budget, in bytes.
    granule_bytes: u64,
}

/// A guard that holds a bucket's lock bit until the guard is dropped.
struct LockedBucket<'a> {
    index: &'a Index,
    number: u64,
    bucket: &'a Bucket,
    /// The meta word to store when the lock is released.
    meta: Meta,
}

/// The slots of a locked bucket that an insert could use.
struct Survey<'a> {
    /// All entries whose known tag bits match the hash.
    matching: Candidates,
    /// The matching entry whose tag agrees with the hash in the most bits.
    first: Option<(&'a AtomicU64, Entry)>,
    empty: Option<&'a AtomicU64>,
    /// The best slot to share if no entry matches: the number of tag bits that agree with the hash,
    /// the slot and its entry. Only entries whose chain begins with an older record than the new
    /// one count.
    closest: Option<(u32, &'a AtomicU64, Entry)>,
    /// The last bucket of the overflow chain.
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
        // Release: pairs with the Acquire loads of the next lock and of lookups.
        self.bucket.meta().store(meta.unlocked().0, Ordering::Release);
        std::mem::forget(self);
    }

    /// Returns the bucket and its overflow buckets.
    fn chain(&self) -> impl Iterator<Item = &'a Bucket> + use<'a> {
        self.index.chain(self.bucket, self.meta)
    }
}

impl Drop for LockedBucket<'_> {
    fn drop(&mut self) {
        self.bucket.meta().store(self.meta.unlocked().0, Ordering::Release);
    }
}

/// Returns 1 if the entry knows no tag bit, else 0.
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
            numbers: Mutex::default(),
            eras: Eras::new(budget.saved_bytes_max()),
            granule_bytes: budget.index_unit_bytes(),
        })
    }

    fn state(&self) -> (u32, u64) {
        // Acquire: pairs with the Release store in `set_state`, and so sees the buckets that the
        // state counts.
        let state = self.state.load(Ordering::Acquire);
        ((state >> 56) as u32, state & ((1 << 56) - 1))
    }

    fn set_state(&self, level: u32, split: u64) {
        self.state.store(u64::from(level) << 56 | split, Ordering::Release);
    }

    /// Returns the number of primary buckets.
    pub(crate) fn bucket_count(&self) -> u64 {
        let (level, split) = self.state();
        (1 << level) + split
    }

    /// Returns the number of slots in use. Several rows may share a slot.
    pub(crate) fn entry_count(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns the number of slots in use whose entry knows a tag bit. A split moves such an entry
    /// to one of the two buckets, and never copies it.
    fn divisible_count(&self) -> u64 {
        // Relaxed: the counts may miss concurrent changes. A bucket is then split slightly earlier
        // or later.
        self.entry_count().saturating_sub(self.blank_entries.load(Ordering::Relaxed))
    }

    /// Changes a slot of a locked bucket and updates the counts.
    fn set_slot(&self, slot: &AtomicU64, old: Entry, new: Entry) {
        // Release: publishes the record; pairs with the Acquire loads of slots.
        slot.store(new.0, Ordering::Release);
        let in_use = |entry: Entry| u64::from(!entry.is_empty());
        self.count(in_use(new).wrapping_sub(in_use(old)), blank(new).wrapping_sub(blank(old)));
    }

    /// Adds to the counts with wrapping, so a negative change is possible.
    fn count(&self, entries: u64, blank: u64) {
        // Relaxed: no other data depends on the order of these additions.
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
        // SAFETY: `i` is below the bucket count, and `grow` keeps all buckets inside the region. A
        // bucket is eight atomics, for which any content is valid. The region outlives `self`.
        unsafe { &*self.buckets.as_ptr().cast::<Bucket>().add(i as usize) }
    }

    fn overflow_bucket(&self, number: u32) -> &Bucket {
        debug_assert!((number as usize + 1) * BUCKET_BYTES <= self.overflow.len());
        // SAFETY: the number comes from the pool, which stays inside the region. A bucket is eight
        // atomics, for which any content is valid. The region outlives `self`.
        unsafe { &*self.overflow.as_ptr().cast::<Bucket>().add(number as usize) }
    }

    fn chain<'a>(&'a self, bucket: &'a Bucket, meta: Meta) -> impl Iterator<Item = &'a Bucket> {
        let mut next = meta.overflow();
        let mut first = Some(bucket);
        // The loop ends: overflow numbers form a list without cycles. A reader that races with a
        // split may follow a wrong link, but only to buckets of the pool. After the split it reads
        // a proper list again.
        std::iter::from_fn(move || {
            if let Some(bucket) = first.take() {
                return Some(bucket);
            }
            if next == 0 {
                return None;
            }
            let bucket = self.overflow_bucket(next);
            // Acquire: sees the slots that were written before this link.
            next = Meta(bucket.meta().load(Ordering::Acquire)).overflow();
            Some(bucket)
        })
    }

    /// Copies the present level and split pointer.
    #[inline]
    pub(crate) fn outline(&self) -> Outline<'_> {
        let (level, split) = self.state();
        Outline { index: self, level, split }
    }

    /// Removes all tag bits from all entries, as many splits would.
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

    /// Counts the slots in use, and the slots whose entry knows no tag bit, by reading all of them.
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

    /// Returns the counts that `recount` should find.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.entry_count(), self.blank_entries.load(Ordering::Relaxed))
    }

    /// Returns the hash's bucket with its number and meta word.
    #[inline]
    fn find_bucket(&self, hash: u64) -> (u64, &Bucket, Meta) {
        self.outline().find_bucket(hash)
    }

    #[inline(never)]
    fn first_match_slowly(&self, hash: u64) -> Entry {
        let (_, bucket, meta) = self.find_bucket(hash);
        let probe = Probe::new(hash, meta.depth());
        // Acquire: pairs with the Release store of the slot, so the caller sees the record that the
        // store published.
        let slots = bucket.slots().iter().map(|slot| Entry(slot.load(Ordering::Acquire)));
        { slots }.find(|entry| entry.matches(probe)).unwrap_or_else(|| self.after_bucket(meta))
    }

    /// Returns the result of a search that has found no match in a bucket with the meta word
    /// `meta`: `EMPTY`, or `BEYOND` if the bucket has overflow buckets. For `BEYOND`, prefetches
    /// the first overflow bucket.
    #[inline]
    fn after_bucket(&self, meta: Meta) -> Entry {
        if meta.overflow() == 0 {
            return Entry::EMPTY;
        }
        crate::memory::cpu_hint::line(self.overflow_bucket(meta.overflow()));
        Entry::BEYOND
    }

    /// Continues the search in the overflow buckets, after `first_match` has returned `BEYOND`.
    /// Returns `EMPTY` if no slot of the overflow buckets matches. The caller must then search all
    /// of the chain with `candidates`: the key may be missing, or another thread may have moved its
    /// entry.
    pub(crate) fn first_match_beyond(&self, hash: u64) -> Entry {
        let (_, bucket, meta) = self.find_bucket(hash);
        let probe = Probe::new(hash, meta.depth());
        for bucket in self.chain(bucket, meta).skip(1).take(MAX_CHAIN) {
            let matching = bucket.matching(probe);
            if matching != 0 {
                // Acquire: sees the record that the slot's Release store published. If the slot has
                // changed since the comparison, the caller notices a wrong record by its key.
                let slot = bucket.slot(matching.trailing_zeros() as usize);
                return Entry(slot.load(Ordering::Acquire));
            }
        }
        Entry::EMPTY
    }

    /// Lists every entry that may lead to the hash, as of one moment at which the bucket was not
    /// being split.
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
                // Acquire fence: orders the loads of the slots before the second load of the meta
                // word. If a split stored one of the loaded slots, this second load shows its
                // `SPLITTING` bit or the new version.
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
        // Acquire: sees all stores of the last lock holder. The compare-and-swap compares the whole
        // word, so the depth has not changed.
        bucket
            .meta()
            .compare_exchange(meta.0, meta.locked().0, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| LockedBucket { index: self, number, bucket, meta })
    }

    /// Replaces the head address in the slot that holds `old` by `new`. Returns false if no slot of
    /// the hash's bucket holds exactly `old`. If `alone` is true, no record follows `new` in the
    /// chain, and the slot gets a full tag again.
    pub(crate) fn replace(&self, hash: u64, old: Entry, new: Address, alone: bool) -> bool {
        self.replace_if(hash, old, new, alone, || true)
    }

    /// Replaces the head address as `replace` does, but only if `still` returns true while the
    /// hash's bucket is locked. The lock orders this call and an insert of the same key by another
    /// thread: the later of the two sees everything that the earlier one saw.
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

    /// Adds a key with the record at `new`, but only if `still` returns true while the hash's
    /// bucket is locked. The record must be complete except for its previous address, which `link`
    /// sets. The caller must have found that the chains of the `searched` slots do not contain the
    /// key.
    pub(crate) fn insert(
        &self,
        budget: &Budget,
        hash: u64,
        searched: &Candidates,
        new: Address,
        link: impl FnOnce(Address),
        still: impl FnOnce() -> bool,
    ) -> Inserted {
        let mut locked = self.lock(hash);
        let probe = Probe::new(hash, locked.meta.depth());
        let Survey { matching, first, empty, closest, last } = Survey::of(&locked, probe, new);
        if matching != *searched && !planted(Planted::InsertUnchecked) || !still() {
            return Inserted::Changed;
        }
        locked.will_change();
        let fresh = Entry::new(probe, new);
        // Each `set_slot` below is a Release store that publishes the record, including the write
        // by `link`.
        let same_tag = first.filter(|(_, entry)| entry.agreement(probe) == TAG_BITS);
        if let Some((slot, entry)) = same_tag {
            link(entry.address());
            self.set_slot(slot, entry, entry.chained_to(new));
            return Inserted::Yes;
        }
        // An entry that matches by a short tag most likely belongs to another key. A separate slot
        // keeps chains short.
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
        // No memory is left for another slot. The record shares a slot that matches, or the slot
        // whose tag agrees in the most bits.
        if let Some((slot, entry)) = first {
            link(entry.address());
            self.set_slot(slot, entry, entry.chained_to(new));
            return Inserted::Yes;
        }
        // A record may link only to an older record. The caller read the heads of the searched
        // slots before it wrote the new record, so they are older. Other slots may have newer
        // heads.
        let Some((bits, slot, entry)) = closest else { return Inserted::Changed };
        link(entry.address());
        self.set_slot(slot, entry, entry.widened(bits).chained_to(new));
        Inserted::Yes
    }
}

/// Largest number of overflow buckets that a lookup follows. A valid chain is far shorter. The
/// limit bounds a lookup that races with a split.
const MAX_CHAIN: usize = 1 << 16;

const _: () = assert!(size_of::<Bucket>() == BUCKET_BYTES && SLOTS == 7);
