//! A bucket of the index: one cache line with seven slots and a meta word.
//!
//! ```text
//! meta    63       62       61 .. 56    55 .. 54    53 .......... 32   31 ........... 0
//!       locked  splitting    depth (6)  changed (2)    version (22)      overflow (32)
//! ```
//!
//! *Depth*: the number of low hash bits that this bucket's keys share. A lookup that expected
//! another depth continues at the bucket that this depth leads to. *Version*: changes with every
//! split. *Overflow*: the number of the chain's next bucket, 0 for none. An overflow bucket uses
//! only this field, and while it is free, the bit *locked* alone. *Changed*: one bit for each of
//! the last two eras, set if entries changed in that era. An era is the time between two
//! checkpoints (see `cut`).
//!
//! | locked | splitting | slots |
//! |---|---|---|
//! | 0 | 0 | consistent |
//! | 1 | 0 | one slot may be changing; each slot is valid |
//! | 1 | 1 | entries are moving between buckets: a lookup that misses must search again |

#[cfg(any(test, miri, embank_shuttle, embank_tsan, not(target_arch = "x86_64")))]
use super::entry::Entry;
use super::entry::Probe;
use crate::sync::AtomicU64;

pub(super) const SLOTS: usize = 7;

const LOCKED: u64 = 1 << 63;
const SPLITTING: u64 = 1 << 62;
const DEPTH_SHIFT: u32 = 56;
const CHANGED_SHIFT: u32 = 54;
const VERSION_SHIFT: u32 = 32;
const VERSION_MASK: u64 = (1 << 22) - 1;
const OVERFLOW_MASK: u64 = (1 << 32) - 1;

#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Bucket {
    slots: [AtomicU64; SLOTS],
    meta: AtomicU64,
}

impl Bucket {
    #[inline]
    pub(super) fn slots(&self) -> &[AtomicU64; SLOTS] {
        &self.slots
    }

    #[inline]
    pub(super) fn slot(&self, i: usize) -> &AtomicU64 {
        &self.slots[i]
    }

    #[inline]
    pub(super) fn meta(&self) -> &AtomicU64 {
        &self.meta
    }

    /// Returns the slots that may lead to the probe's key, with bit `i` for slot `i`. Each slot is
    /// read once, at some moment of the call. The caller must load a slot again before it uses the
    /// slot.
    #[inline]
    pub(super) fn matching(&self, probe: Probe) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(any(miri, embank_shuttle, embank_tsan))))]
        {
            super::simd::matching(self, probe)
        }
        #[cfg(not(all(target_arch = "x86_64", not(any(miri, embank_shuttle, embank_tsan)))))]
        {
            self.matching_by_slot(probe)
        }
    }

    /// A portable form of `matching`, for other processors and as the reference in tests.
    #[cfg(any(test, miri, embank_shuttle, embank_tsan, not(target_arch = "x86_64")))]
    pub(super) fn matching_by_slot(&self, probe: Probe) -> u32 {
        let mut matching = 0;
        for (i, slot) in self.slots.iter().enumerate() {
            // Relaxed is enough: the caller loads a matching slot again, with Acquire, before it
            // uses it.
            let entry = Entry(slot.load(crate::sync::Ordering::Relaxed));
            matching |= u32::from(entry.matches(probe)) << i;
        }
        matching
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta(pub(super) u64);

impl Meta {
    pub(super) fn new(depth: u32, version: u64, overflow: u32) -> Self {
        Meta(
            u64::from(depth) << DEPTH_SHIFT
                | (version & VERSION_MASK) << VERSION_SHIFT
                | u64::from(overflow),
        )
    }

    #[inline]
    pub(super) fn depth(self) -> u32 {
        (self.0 >> DEPTH_SHIFT) as u32 & 63
    }

    pub(super) fn version(self) -> u64 {
        self.0 >> VERSION_SHIFT & VERSION_MASK
    }

    #[inline]
    pub(super) fn overflow(self) -> u32 {
        (self.0 & OVERFLOW_MASK) as u32
    }

    pub(super) fn with_overflow(self, number: u32) -> Self {
        Meta(self.0 & !OVERFLOW_MASK | u64::from(number))
    }

    /// True if the bucket's entries changed in `era`, 0 or 1. An era is the time between two
    /// checkpoints (see `cut`).
    pub(super) fn changed_in(self, era: u64) -> bool {
        self.0 >> (CHANGED_SHIFT + era as u32) & 1 != 0
    }

    pub(super) fn with_changed_in(self, era: u64, changed: bool) -> Self {
        let bit = CHANGED_SHIFT + era as u32;
        Meta(self.0 & !(1 << bit) | u64::from(changed) << bit)
    }

    pub(super) fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    pub(super) fn is_splitting(self) -> bool {
        self.0 & SPLITTING != 0
    }

    pub(super) fn locked(self) -> Self {
        Meta(self.0 | LOCKED)
    }

    pub(super) fn splitting(self) -> Self {
        Meta(self.0 | LOCKED | SPLITTING)
    }

    /// Returns the meta word of a free overflow bucket. A lookup that follows a wrong link to it
    /// (see `Index::chain`) reads that the chain ends.
    pub(super) fn free_overflow() -> Self {
        Meta(LOCKED)
    }

    /// True if this meta word of an overflow bucket says that the bucket is free.
    pub(super) fn is_free_overflow(self) -> bool {
        self.is_locked()
    }

    pub(super) fn unlocked(self) -> Self {
        Meta(self.0 & !(LOCKED | SPLITTING))
    }

    /// True if no entry moved between the loads of `self` and `other`: depth and version are equal,
    /// and no split is in progress. The lock bit and a new overflow bucket do not matter, because
    /// inserts move no entry.
    pub(super) fn same_layout_as(self, other: Meta) -> bool {
        const SAME: u64 = SPLITTING | 63 << DEPTH_SHIFT | VERSION_MASK << VERSION_SHIFT;
        self.0 & SAME == other.0 & SAME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_meta_word_keep_to_their_bits() {
        let meta = Meta::new(63, (1 << 22) - 1, u32::MAX);
        assert_eq!((meta.depth(), meta.version(), meta.overflow()), (63, (1 << 22) - 1, u32::MAX));
        assert!(!meta.is_locked() && !meta.is_splitting());
        assert!(!meta.changed_in(0) && !meta.changed_in(1));
        let changed = meta.with_changed_in(1, true);
        assert!(!changed.changed_in(0) && changed.changed_in(1));
        assert_eq!((changed.depth(), changed.version()), (meta.depth(), meta.version()));
        assert_eq!(
            changed.with_changed_in(0, true).with_changed_in(1, false),
            meta.with_changed_in(0, true)
        );
        let wrapped = Meta::new(5, 1 << 22, 7);
        assert_eq!((wrapped.depth(), wrapped.version(), wrapped.overflow()), (5, 0, 7));
        let changed = wrapped.splitting().with_overflow(u32::MAX);
        assert!(changed.is_locked() && changed.is_splitting());
        assert_eq!((changed.depth(), changed.version()), (5, 0));
        assert_eq!(changed.unlocked(), wrapped.with_overflow(u32::MAX));
    }

    #[test]
    fn only_splits_change_the_layout() {
        let meta = Meta::new(9, 3, 0);
        assert!(meta.locked().same_layout_as(meta));
        assert!(meta.with_overflow(12).same_layout_as(meta));
        assert!(meta.with_changed_in(0, true).same_layout_as(meta));
        assert!(!meta.splitting().same_layout_as(meta));
        assert!(!Meta::new(9, 4, 0).same_layout_as(meta));
        assert!(!Meta::new(10, 3, 0).same_layout_as(meta));
    }
}
