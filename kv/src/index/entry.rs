//! A slot of a bucket: a record's address, and the known bits of its hash.
//!
//! ```text
//!  63 .............. 47    46     45 .............. 0
//!  tag with terminator  chained    address / 8
//! ```
//!
//! *Chained* means that other records may follow the head of this entry's chain. If the bit is
//! clear, the head is the whole chain. Compaction can then tell a current row from a superseded
//! record by the address alone. It need not read newer records, which may be on disk: one random
//! read for each superseded record would cost more than copying the record.
//!
//! The tag holds the hash bits that follow the bits of the bucket's number, lowest first. A 1 bit
//! above the highest known bit ends the tag: `1tttttttttttttttt` knows 16 bits, `00000000000000001`
//! knows none. When the bucket splits, the lowest tag bit selects the entry's side, and the tag
//! shifts down by one. A split therefore does not read the record, which may be on disk. A tag
//! loses one bit in each split, and gets all bits back when its record is next written.
//!
//! If an entry has no known bits, the split reads the chain's records if all of them are in memory.
//! The hashes of these records give the side and new tag bits. If a record is on disk, the entry
//! goes to both sides. This is always correct, because a lookup compares whole keys. With enough
//! memory such entries are rare: the index must double 16 times before the row's record is next
//! written. Such entries are common in a bank that was created with too little memory, and is
//! opened with more. Keys of such a bank share slots, and a shared slot has few known bits.
//!
//! A *fold* undoes a split (see `fold`). The entry's side becomes its lowest tag bit again. A tag
//! with 16 bits loses its highest one.

use crate::record::address::Address;

const ADDRESS_BITS: u32 = 46;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const CHAINED: u64 = 1 << ADDRESS_BITS;
pub(super) const TAG_SHIFT: u32 = ADDRESS_BITS + 1;
/// Number of hash bits that a new entry knows.
pub(super) const TAG_BITS: u32 = 16;
const TAG_FULL: u64 = 1 << TAG_BITS;
/// A bit that is set in every probe and in no tag.
const PROBE_TOP: u64 = TAG_FULL << 1;

/// All addresses are below this limit of 512 TiB. Writing 1 GB each second reaches it in six days.
pub(crate) const ADDRESS_LIMIT: u64 = 1 << (ADDRESS_BITS + 3);

/// The content of a slot. The value 0 means an empty slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(pub(crate) u64);

/// The 16 hash bits to compare with the tags of a bucket of a given depth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe(u64);

impl Probe {
    #[inline]
    pub(crate) fn new(hash: u64, depth: u32) -> Self {
        Probe((hash >> depth) & (TAG_FULL - 1) | PROBE_TOP)
    }

    /// Returns the probe's 18 bits.
    #[cfg(all(target_arch = "x86_64", not(any(miri, embank_shuttle, embank_tsan))))]
    #[inline]
    pub(super) fn bits(self) -> i32 {
        self.0 as i32
    }
}

impl Entry {
    pub(crate) const EMPTY: Entry = Entry(0);
    /// `Index::first_match` returns this if the search continues in an overflow bucket. No slot
    /// holds it.
    pub(crate) const BEYOND: Entry = Entry(1);

    pub(crate) fn new(probe: Probe, address: Address) -> Self {
        debug_assert!(!address.is_none() && address.raw() < ADDRESS_LIMIT);
        let tag = probe.0 ^ PROBE_TOP | TAG_FULL;
        Entry(tag << TAG_SHIFT | address.raw() >> 3)
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True for `EMPTY` and `BEYOND`, which hold no address.
    #[inline]
    pub(crate) fn is_nowhere(self) -> bool {
        self.0 <= Entry::BEYOND.0
    }

    #[inline]
    pub(crate) fn address(self) -> Address {
        Address::new((self.0 & ADDRESS_MASK) << 3)
    }

    /// Returns the entry with the record at `address` as the new head of its chain.
    pub(crate) fn chained_to(self, address: Address) -> Self {
        debug_assert!(!address.is_none() && address.raw() < ADDRESS_LIMIT);
        Entry(self.0 & !ADDRESS_MASK | address.raw() >> 3 | CHAINED)
    }

    /// True if the head is the whole chain and its key belongs to the entry's bucket. An entry
    /// without tag bits may be a split's copy in the wrong bucket.
    pub(crate) fn stands_alone(self) -> bool {
        !self.is_chained() && !self.knows_nothing()
    }

    /// True if the entry knows no tag bit. It then matches every hash of its bucket and of the
    /// buckets that split from it.
    pub(crate) fn knows_nothing(self) -> bool {
        self.tag() == 1
    }

    /// True if other records may follow the chain's head.
    pub(crate) fn is_chained(self) -> bool {
        self.0 & CHAINED != 0
    }

    /// True if a slot may hold this value: it has an address, and a tag with its terminator.
    pub(crate) fn is_sound(self) -> bool {
        !self.address().is_none() && self.tag() != 0
    }

    #[inline]
    fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    fn with_tag(self, tag: u64) -> Self {
        Entry(self.0 & (ADDRESS_MASK | CHAINED) | tag << TAG_SHIFT)
    }

    fn known_bits(tag: u64) -> u32 {
        63 - tag.leading_zeros()
    }

    /// True if a key of this hash may be in the entry's chain. This is so if the lowest bit in
    /// which tag and hash differ is not below the terminator, the 1 bit that ends the tag. The test
    /// has no branch, because lookups compare seven slots in a row.
    #[inline]
    pub(crate) fn matches(self, probe: Probe) -> bool {
        let tag = self.tag();
        // `differ` is never 0, because the probe has a bit that is above every tag.
        let differ = tag ^ probe.0;
        // `up_to_lowest` is all ones up to the lowest differing bit. It is less than `tag` exactly
        // if that bit is below the terminator. Subtracting 1 keeps an empty slot, whose tag is 0,
        // from matching.
        let up_to_lowest = differ ^ (differ - 1);
        tag.wrapping_sub(1) < up_to_lowest
    }

    /// Returns how many of the tag's lowest known bits agree with the hash.
    pub(crate) fn agreement(self, probe: Probe) -> u32 {
        let tag = self.tag();
        (tag ^ probe.0).trailing_zeros().min(Self::known_bits(tag))
    }

    /// Returns the entry with only the lowest `bits` known bits, so that it matches more hashes.
    pub(crate) fn widened(self, bits: u32) -> Self {
        let tag = self.tag();
        debug_assert!(bits <= Self::known_bits(tag));
        self.with_tag(tag & ((1 << bits) - 1) | 1 << bits)
    }

    /// Returns the entry for bucket `number` of depth `depth`. Its tag has the bits on which all
    /// hashes of that bucket agree. The result is empty if no hash belongs to the bucket. The entry
    /// keeps its address, so its first record may belong to the other bucket of a split. `hashes`
    /// must contain the hashes of all records that the entry leads to.
    pub(crate) fn narrowed(
        self,
        number: u64,
        depth: u32,
        hashes: impl Iterator<Item = u64>,
    ) -> Self {
        let mut own = hashes.filter(|hash| hash & ((1 << depth) - 1) == number);
        let Some(first) = own.next() else { return Entry::EMPTY };
        let differ = own.fold(0, |differ, hash| differ | (hash ^ first));
        let bits = (differ >> depth).trailing_zeros().min(TAG_BITS);
        let tag = (first >> depth) & ((1 << bits) - 1) | 1 << bits;
        self.with_tag(tag)
    }

    /// Returns the entry for the lower bucket and the entry for the upper bucket when the entry's
    /// bucket splits. An entry without tag bits goes to both buckets.
    pub(crate) fn split(self) -> (Option<Entry>, Option<Entry>) {
        let tag = self.tag();
        if tag == 1 {
            return (Some(self), Some(self));
        }
        let moved = self.with_tag(tag >> 1);
        if tag & 1 == 0 { (Some(moved), None) } else { (None, Some(moved)) }
    }

    /// Returns the entry after a fold has merged its bucket, which was the upper or the lower one
    /// of the two. The tag gets the side as its new lowest bit, also if it knew no bit. A tag that
    /// knew 16 bits loses the highest of them. All records of the chain must belong to the bucket
    /// and match the tag: the essay of `fold` says why.
    pub(super) fn folded(self, is_upper: bool) -> Self {
        let tag = self.tag() << 1 | u64::from(is_upper);
        let knows_too_much = Self::known_bits(tag) > TAG_BITS;
        self.with_tag(if knows_too_much { tag & (TAG_FULL - 1) | TAG_FULL } else { tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(hash: u64, depth: u32) -> Entry {
        Entry::new(Probe::new(hash, depth), Address::new(64))
    }

    #[test]
    fn splitting_follows_the_hash_and_keeps_matching_it() {
        let hash = 0x9E37_79B9_7F4A_7C15;
        let mut here = entry(hash, 3);
        for depth in 3..19 {
            let (low, high) = here.split();
            let upper = hash >> depth & 1 == 1;
            assert_eq!((low.is_some(), high.is_some()), (!upper, upper), "depth {depth}");
            here = low.or(high).unwrap();
            assert!(here.matches(Probe::new(hash, depth + 1)));
            assert_eq!(here.address(), Address::new(64));
        }
        // All 16 bits are used up: the entry goes to both sides and matches every hash.
        assert_eq!(here.split(), (Some(here), Some(here)));
        assert!(here.matches(Probe::new(!hash, 19)));
    }

    #[test]
    fn a_fold_undoes_a_split_and_keeps_at_most_16_bits() {
        let mut hash = 0x9E37_79B9_7F4A_7C15_u64;
        for known in 1..=TAG_BITS {
            for depth in [8, 9, 20] {
                hash = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7);
                let here = entry(hash, depth).widened(known).chained_to(Address::new(128));
                let (low, high) = here.split();
                let undone = low.or(high).unwrap().folded(high.is_some());
                assert_eq!(undone, here, "{known} bits");
            }
        }
        // The 16 bits of a new entry become those that a new entry of the merged bucket knows.
        let depth = 9;
        let upper = hash >> (depth - 1) & 1 == 1;
        assert_eq!(entry(hash, depth).folded(upper), entry(hash, depth - 1));
        // So it is after many folds.
        let folded = (0..depth)
            .rev()
            .fold(entry(hash, depth), |entry, depth| entry.folded(hash >> depth & 1 == 1));
        assert_eq!(folded, entry(hash, 0));
    }

    #[test]
    fn an_entry_that_knows_nothing_knows_its_side_after_a_fold() {
        let hash = 0b1011 << 8;
        let blank = entry(hash, 9).widened(0);
        assert!(blank.knows_nothing());
        let folded = blank.folded(true);
        assert!(!folded.knows_nothing() && folded.stands_alone());
        assert!(folded.matches(Probe::new(hash, 8)) && !folded.matches(Probe::new(0b1010 << 8, 8)));
        assert_eq!(folded.split(), (None, Some(blank)));
        assert_eq!(blank.folded(false).split(), (Some(blank), None));
        // A chain stays one.
        assert!(blank.chained_to(Address::new(128)).folded(true).is_chained());
    }

    #[test]
    fn matching_agrees_with_its_definition() {
        let mut state = 7u64;
        for tag in (0..2 * TAG_FULL).chain([0, 1, TAG_FULL, TAG_FULL | 1]) {
            state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17) ^ tag;
            let entry = Entry(tag << TAG_SHIFT | 8);
            // Tests an arbitrary hash, and one that agrees with all known bits of the tag.
            for hash in [state, state & !(TAG_FULL - 1) | tag & (TAG_FULL - 1)] {
                let known = tag.checked_ilog2();
                let expected = known.is_some_and(|bits| (tag ^ hash) & ((1 << bits) - 1) == 0);
                assert_eq!(entry.matches(Probe::new(hash, 0)), expected, "{tag:b} {hash:b}");
            }
        }
    }

    #[test]
    fn a_chain_stays_one_through_splits_and_widening() {
        let alone = entry(0b1010 << 8, 8);
        assert!(!alone.is_chained());
        let chained = alone.chained_to(Address::new(ADDRESS_LIMIT - 8));
        assert!(chained.is_chained() && chained.matches(Probe::new(0b1010 << 8, 8)));
        assert_eq!(chained.address(), Address::new(ADDRESS_LIMIT - 8));
        let (low, _) = chained.split();
        assert!(low.unwrap().is_chained() && chained.widened(3).is_chained());
    }

    #[test]
    fn another_hash_of_the_bucket_does_not_match() {
        let here = entry(0b1010 << 8, 8);
        assert!(!here.matches(Probe::new(0b1011 << 8, 8)));
        assert!(!Entry::EMPTY.matches(Probe::new(0, 8)));
    }

    #[test]
    fn a_widened_entry_matches_both_hashes() {
        let a = 0b0110_1101u64;
        let b = 0b0100_1101u64;
        let here = entry(a, 0);
        let probe = Probe::new(b, 0);
        assert!(!here.matches(probe));
        assert_eq!(here.agreement(probe), 5);
        let wide = here.widened(5);
        assert!(wide.matches(probe) && wide.matches(Probe::new(a, 0)));
        assert!(!wide.matches(Probe::new(a ^ 1, 0)));
    }
}
