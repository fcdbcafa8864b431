//! The lock-and-clock word of a record: the record's lock, its change counter and its staleness
//! clock.
//!
//! ```text
//!  63      62        61       60    59 .......... 32  31 ............ 0
//! locked replaced promoted clean   generation (28)    outstanding (32)
//! ```
//!
//! | locked | replaced | meaning | what ends the state |
//! |---|---|---|---|
//! | 0 | 0 | at rest: value and clock are valid | any thread, by compare-and-swap to locked |
//! | 1 | 0 | its holder reads or changes value and clock | the holder alone, by a store |
//! | 0 | 1 | the index leads to a newer record of this key | no thread: it is final |
//! | 1 | 1 | does not occur: the holder replaces and unlocks in one store | - |
//!
//! *Outstanding* is the staleness clock: it counts the gets of the row that no put, gradient or
//! release has answered yet.
//!
//! *Generation* counts changes of the value. A release counts as a change too. A reader without the
//! lock compares generations to detect a change during its read. The generation wraps within its
//! own bits and can't carry into the flags. A new record may begin with any generation. If the new
//! record is a copy of an older record, its generation continues the row's use count
//! (`ClockWord::uses`, `retention`).
//!
//! *Promoted* marks a row that lookahead (reads before the get) brought into mutable memory and
//! that no operation has used since.
//!
//! *Clean* marks a record whose value equals the row's version in the cold tier. A spill drops such
//! a record. The store that raises the generation clears the flag, so a change of the value costs
//! no further store. Programs before format 7 counted 29 bits of generation. So the flag counts
//! only in records that were written since the bank has a cold tier (`Core::word_on_disk`).
//!
//! A reader without the lock must check the flag *locked* as well as the generation. The generation
//! alone is not enough: it changes only after the lock's holder has changed the value.

use crate::sync::{AtomicU64, Backoff, Ordering, Planted, planted};

const LOCKED: u64 = 1 << 63;
const REPLACED: u64 = 1 << 62;
const PROMOTED: u64 = 1 << 61;
const CLEAN: u64 = 1 << 60;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_BITS: u32 = 28;
const GENERATION_MASK: u64 = ((1 << GENERATION_BITS) - 1) << GENERATION_SHIFT;
const USES_MASK: u32 = (1 << GENERATION_BITS) - 1;
const OUTSTANDING_MASK: u64 = (1 << 32) - 1;

/// A copy of a lock-and-clock word, for reading and changing its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockWord(u64);

impl ClockWord {
    /// Returns an unlocked word with generation 0 and `outstanding` outstanding gets.
    pub(crate) fn at_rest(outstanding: u32) -> Self {
        ClockWord(u64::from(outstanding))
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        ClockWord(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    pub(crate) fn is_replaced(self) -> bool {
        self.0 & REPLACED != 0
    }

    pub(crate) fn is_promoted(self) -> bool {
        self.0 & PROMOTED != 0
    }

    /// True if the record's value equals the row's version in the cold tier.
    pub(crate) fn is_clean(self) -> bool {
        self.0 & CLEAN != 0
    }

    pub(crate) fn outstanding(self) -> u32 {
        (self.0 & OUTSTANDING_MASK) as u32
    }

    /// Returns the record's use count, modulo 2^28: the changes of its value plus its outstanding
    /// gets. A get adds 1. The update or release that answers a get leaves the count unchanged: it
    /// ends a get, and counts as a change of the value.
    pub(crate) fn uses(self) -> u32 {
        let changes = ((self.0 & GENERATION_MASK) >> GENERATION_SHIFT) as u32;
        changes.wrapping_add(self.outstanding()) & USES_MASK
    }

    /// True if the record was used since its use count was `uses`. A count lower than `uses` is not
    /// a use: it means that gets ended without counting as a change.
    pub(crate) fn used_since(self, uses: u32) -> bool {
        let more = self.uses().wrapping_sub(uses) & USES_MASK;
        more != 0 && more <= USES_MASK / 2
    }

    pub(crate) fn with_promoted(self, promoted: bool) -> Self {
        ClockWord(if promoted { self.0 | PROMOTED } else { self.0 & !PROMOTED })
    }

    pub(crate) fn with_clean(self, clean: bool) -> Self {
        ClockWord(if clean { self.0 | CLEAN } else { self.0 & !CLEAN })
    }

    pub(crate) fn with_outstanding(self, outstanding: u32) -> Self {
        ClockWord(self.0 & !OUTSTANDING_MASK | u64::from(outstanding))
    }

    /// Returns the word for a copy of this record. `outstanding` is the copy's number of
    /// outstanding gets, and `uses` is the use count that the copy continues. If `outstanding`
    /// differs from this record's number because a get begins or ends now, the copy's use count
    /// differs from `uses` by the same number. The copy of a clean record is clean.
    pub(crate) fn inherited(self, outstanding: u32, uses: u32) -> Self {
        let changes = uses.saturating_sub(self.outstanding());
        ClockWord(u64::from(changes & USES_MASK) << GENERATION_SHIFT)
            .with_outstanding(outstanding)
            .with_clean(self.is_clean())
    }

    /// Returns the word after a change of the value. The word is no longer clean.
    pub(crate) fn next_generation(self) -> Self {
        let next = self.0.wrapping_add(1 << GENERATION_SHIFT) & GENERATION_MASK;
        let ended = if planted(Planted::CleanKept) { 0 } else { CLEAN };
        ClockWord(self.0 & !(GENERATION_MASK | ended) | next)
    }

    /// Returns the word to write to disk, with the flags locked, replaced and promoted cleared.
    pub(crate) fn for_disk(self) -> Self {
        ClockWord(self.0 & !(LOCKED | REPLACED | PROMOTED))
    }

    fn same_value_as(self, other: ClockWord) -> bool {
        const SAME: u64 = LOCKED | GENERATION_MASK;
        self.0 & SAME == other.0 & SAME
    }
}

/// Why a record could not be locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockRefused {
    /// The record is replaced: the index leads to a newer record of the key.
    Replaced,
    /// The caller's predicate `admit` returned false.
    Declined,
}

/// Waits for the lock in `word` and takes it. Fails if the record was replaced, or if `admit`
/// returns false for the unlocked word.
#[inline]
pub(crate) fn lock(
    word: &AtomicU64,
    admit: impl Fn(ClockWord) -> bool,
) -> Result<Locked<'_>, LockRefused> {
    // Relaxed: the compare-and-swap has the Acquire ordering.
    let seen = ClockWord(word.load(Ordering::Relaxed));
    if seen.0 & (LOCKED | REPLACED) == 0 && admit(seen) {
        // Acquire: pairs with the Release store of the previous unlock, and so sees the value that
        // the previous holder wrote.
        let locked = seen.0 | LOCKED;
        if word.compare_exchange(seen.0, locked, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(Locked { word, at_rest: seen });
        }
    }
    lock_slowly(word, admit)
}

/// Continues a call of `lock` that did not succeed at once. This code is a function of its own, so
/// that the usual case of `lock` stays short enough to be inlined.
#[cold]
#[inline(never)]
fn lock_slowly(
    word: &AtomicU64,
    admit: impl Fn(ClockWord) -> bool,
) -> Result<Locked<'_>, LockRefused> {
    let mut backoff = Backoff::new();
    loop {
        // Relaxed: the compare-and-swap below has the Acquire ordering.
        let seen = ClockWord(word.load(Ordering::Relaxed));
        if seen.is_replaced() {
            return Err(LockRefused::Replaced);
        }
        if seen.is_locked() {
            backoff.snooze();
            continue;
        }
        if !admit(seen) && !planted(Planted::AcquireUnchecked) {
            return Err(LockRefused::Declined);
        }
        // Acquire: pairs with the Release store of the previous unlock, and so sees the value that
        // the previous holder wrote.
        let taken = word.compare_exchange_weak(
            seen.0,
            seen.0 | LOCKED,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if taken.is_ok() {
            return Ok(Locked { word, at_rest: seen });
        }
    }
}

/// The held lock of one record. Dropping it unlocks the record and counts a change of the value.
/// This is safe even if the value did not change: a reader without the lock then reads the value
/// again.
#[must_use]
pub(crate) struct Locked<'a> {
    word: &'a AtomicU64,
    at_rest: ClockWord,
}

impl Locked<'_> {
    /// Returns the word as it was before the lock was taken.
    pub(crate) fn word(&self) -> ClockWord {
        self.at_rest
    }

    /// Unlocks without counting a change of the value. `word` has the new clock.
    #[inline]
    pub(crate) fn unlock_unchanged(self, word: ClockWord) {
        debug_assert!(word.same_value_as(self.at_rest));
        self.store(word);
    }

    /// Unlocks and counts a change of the value. `word` has the new clock.
    #[inline]
    pub(crate) fn unlock_changed(self, word: ClockWord) {
        self.store(word.next_generation());
    }

    /// Unlocks and marks the record as replaced for good. The caller has put a newer record into
    /// the index.
    pub(crate) fn unlock_replaced(self) {
        let replaced = ClockWord(self.at_rest.0 | REPLACED);
        self.store(replaced);
    }

    #[inline]
    fn store(self, word: ClockWord) {
        // Release: pairs with the Acquire loads of the next `lock` and of `read_unlocked`.
        self.word.store(word.0 & !LOCKED, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire loads of the next `lock` and of `read_unlocked`.
        self.word.store(self.at_rest.next_generation().0, Ordering::Release);
    }
}

/// Reads a value without its lock, as a sequence lock does. Calls `copy`, which copies the value,
/// until the word is unlocked and has the same generation before and after a call. `copy` must read
/// through atomics, because the value may change during the call. Returns false if the record was
/// replaced.
#[inline(always)]
pub(crate) fn read_unlocked(word: &AtomicU64, mut copy: impl FnMut()) -> bool {
    loop {
        // Acquire: pairs with the Release store of the last unlock, and so sees that holder's
        // value.
        let mut before = ClockWord(word.load(Ordering::Acquire));
        if before.0 & (LOCKED | REPLACED) != 0 && !planted(Planted::ReadThroughLock) {
            before = await_unlocked(word);
            if before.is_replaced() {
                return false;
            }
        }
        copy();
        // Acquire fence: orders the loads of `copy` before the second load of the word. Pairs with
        // the Release fence of `fence_before_change`.
        crate::sync::fence(Ordering::Acquire);
        let after = ClockWord(word.load(Ordering::Relaxed));
        if after.same_value_as(before) {
            return true;
        }
    }
}

/// Waits until no thread holds the lock, and returns the word.
#[cold]
fn await_unlocked(word: &AtomicU64) -> ClockWord {
    let mut backoff = Backoff::new();
    loop {
        // Acquire: pairs with the Release store of the last unlock, and so sees that holder's
        // value.
        let seen = ClockWord(word.load(Ordering::Acquire));
        if !seen.is_locked() {
            return seen;
        }
        backoff.snooze();
    }
}

/// Must be called by the lock's holder before its first store into the value. Pairs with the
/// Acquire fence of `read_unlocked`: a reader that sees a store into the value then also sees that
/// the record is or was locked.
#[inline]
pub(crate) fn fence_before_change() {
    crate::sync::fence(Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_wraps_within_its_bits() {
        // In the public code of MLKV, an overflow of the generation carries into the lock bit. In
        // this code, the generation must wrap within its own bits.
        let last = ClockWord(GENERATION_MASK | 5);
        let next = last.next_generation();
        assert_eq!(next, ClockWord(5));
        let flagged = ClockWord(GENERATION_MASK | PROMOTED | 7).next_generation();
        assert!(flagged.is_promoted() && !flagged.is_locked() && !flagged.is_replaced());
        assert_eq!(flagged.outstanding(), 7);
    }

    #[test]
    fn the_count_keeps_to_its_bits() {
        let word = ClockWord::at_rest(u32::MAX);
        assert_eq!(word.outstanding(), u32::MAX);
        assert!(!word.is_locked() && !word.is_replaced() && !word.is_promoted());
        assert_eq!(word.with_outstanding(0).bits(), 0);
    }

    #[test]
    fn a_get_and_its_update_are_one_use_and_a_release_is_none() {
        let marked = ClockWord(GENERATION_MASK | 1);
        assert!(!marked.used_since(marked.uses()));
        let answered = marked.next_generation().with_outstanding(0);
        assert!(!answered.used_since(marked.uses()), "the Get was before the mark");
        assert!(!marked.with_outstanding(0).used_since(marked.uses()));
        let got = marked.with_outstanding(2);
        assert!(got.used_since(marked.uses()));
        assert!(got.next_generation().with_outstanding(1).used_since(marked.uses()));
        assert!(marked.next_generation().used_since(marked.uses()), "changed without a Get");
    }

    #[test]
    fn a_replaced_record_can_not_be_locked() {
        let word = AtomicU64::new(0);
        let Ok(locked) = lock(&word, |_| true) else { panic!("free word") };
        locked.unlock_replaced();
        assert_eq!(lock(&word, |_| true).err(), Some(LockRefused::Replaced));
        assert!(!read_unlocked(&word, || ()));
    }

    #[test]
    fn a_dropped_lock_unlocks_and_counts_as_a_change() {
        let word = AtomicU64::new(ClockWord::at_rest(3).bits());
        drop(lock(&word, |_| true).ok());
        let after = ClockWord::from_bits(word.load(Ordering::Relaxed));
        assert!(!after.is_locked());
        assert_eq!(after.outstanding(), 3);
        assert!(!after.same_value_as(ClockWord::at_rest(3)));
    }

    #[test]
    fn unlocked_readers_never_see_half_a_change() {
        // Shows that `read_unlocked` never returns two halves of different values. A reader that
        // checks only the generation, and not the lock, fails this test.
        let word = AtomicU64::new(0);
        let halves = [AtomicU64::new(0), AtomicU64::new(0)];
        let rounds: u64 = if cfg!(miri) { 50 } else { 200_000 };
        std::thread::scope(|s| {
            s.spawn(|| {
                for value in 1..=rounds {
                    let Ok(locked) = lock(&word, |_| true) else { panic!("never replaced") };
                    fence_before_change();
                    halves[0].store(value, Ordering::Relaxed);
                    halves[1].store(value, Ordering::Relaxed);
                    let rest = locked.word();
                    locked.unlock_changed(rest);
                }
            });
            s.spawn(|| {
                let mut last = 0;
                while last < rounds {
                    let mut seen = (0, 0);
                    assert!(read_unlocked(&word, || {
                        seen =
                            (halves[0].load(Ordering::Relaxed), halves[1].load(Ordering::Relaxed));
                    }));
                    assert_eq!(seen.0, seen.1);
                    assert!(seen.0 >= last);
                    last = seen.0;
                }
            });
        });
    }
}
