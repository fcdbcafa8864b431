//! The layout of a record: four header words, then the row's value.
//!
//! ```text
//! word 0   bits 0..48  previous record of the chain, address / 8 (0: none)
//!          bits 48..64 flags: 0 tombstone, 1 invalid, 2 uncounted, 8..11 unused bytes at the value's
//!                      end (0 to 7)
//! word 1   lock-and-clock word (see `clock`)
//! word 2   key
//! word 3   bits 0..32  CRC-32C of origin, address, header and value (0 in memory: set as the page is written)
//!          bits 32..48 table (0: the unused rest of a page begins here)
//!          bits 48..64 value length in units of 8 bytes
//! ```
//!
//! In memory, words 0 and 1 are atomics that change under the record's lock. Words 2 and 3 do not
//! change once the record is published, that is, once an index entry leads to the record. The value
//! changes under the lock by atomic stores, because readers without the lock may read it (see
//! `clock::read_unlocked`). The lock's holder may read the value with ordinary loads.
//!
//! **Uncounted.** A blind put writes a row without looking for an older version in the cold tier,
//! so it does not know whether the table's count of rows has the row. Such a record has the mark
//! *uncounted*, and the count stays as it is. The mark says of a version: the count has the state
//! of the next older version that is not marked, a row (1) or no row (0), and not that of this
//! version. Merges of the cold tier bring the count up to date (`cold::merge`). A record has the
//! mark from its publication on, or never.
//!
//! | newest version of the key | operation | new version | change of the count |
//! |---|---|---|---|
//! | none, or only the cold tier may have one | blind put | row, uncounted | 0 |
//! | none, and the cold tier surely has none | blind put | row, counted | +1 |
//! | none | insert | row, counted | +1 |
//! | tombstone, counted | insert, put | row, counted | +1 |
//! | row, counted | delete | tombstone, counted | -1 |
//! | row, counted | update, put, get, move | row, counted | 0 |
//! | tombstone, uncounted | insert, put | row, uncounted | 0 |
//! | row, uncounted | delete | tombstone, uncounted | 0 |
//! | row, uncounted | update, put, get, move | row, uncounted | 0 |
//!
//! The new version replaces a record of the log, or comes to lie over a version of a part: the
//! table holds for both. So no counted version lies over an uncounted one.

use std::marker::PhantomData;

use crate::record::address::{Address, TableNumber};
use crate::record::clock::ClockWord;
use crate::sync::{AtomicU64, Ordering};

/// Bytes of a record before its value.
pub(crate) const HEADER_BYTES: usize = 32;
/// Largest length of a value in bytes. The header has 16 bits for the length, which is in units of
/// 8 bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 0xFFFF * 8;

const PREVIOUS_BITS: u32 = 48;
const PREVIOUS_MASK: u64 = (1 << PREVIOUS_BITS) - 1;
const FLAG_TOMBSTONE: u64 = 1 << PREVIOUS_BITS;
const FLAG_INVALID: u64 = 2 << PREVIOUS_BITS;
const FLAG_UNCOUNTED: u64 = 4 << PREVIOUS_BITS;
const UNUSED_SHIFT: u32 = PREVIOUS_BITS + 8;
const UNUSED_MASK: u64 = 7 << UNUSED_SHIFT;

/// Returns the bytes of log that a record with a value of `value_bytes` bytes takes.
pub(crate) const fn record_bytes(value_bytes: usize) -> usize {
    HEADER_BYTES + value_bytes.next_multiple_of(8)
}

/// Header word 0: the address of the chain's previous record, and flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link(pub(crate) u64);

impl Link {
    pub(crate) fn new(previous: Address, unused_bytes: usize) -> Self {
        debug_assert!(unused_bytes < 8);
        Link(previous.raw() >> 3 | (unused_bytes as u64) << UNUSED_SHIFT)
    }

    pub(crate) fn previous(self) -> Address {
        Address::new((self.0 & PREVIOUS_MASK) << 3)
    }

    pub(crate) fn with_previous(self, previous: Address) -> Self {
        Link(self.0 & !PREVIOUS_MASK | previous.raw() >> 3)
    }

    pub(crate) fn is_tombstone(self) -> bool {
        self.0 & FLAG_TOMBSTONE != 0
    }

    pub(crate) fn with_tombstone(self, tombstone: bool) -> Self {
        Link(if tombstone { self.0 | FLAG_TOMBSTONE } else { self.0 & !FLAG_TOMBSTONE })
    }

    pub(crate) fn is_invalid(self) -> bool {
        self.0 & FLAG_INVALID != 0
    }

    pub(crate) fn with_invalid(self, invalid: bool) -> Self {
        Link(if invalid { self.0 | FLAG_INVALID } else { self.0 & !FLAG_INVALID })
    }

    /// True if the table's count of rows does not have this version. The module's essay says more.
    pub(crate) fn is_uncounted(self) -> bool {
        self.0 & FLAG_UNCOUNTED != 0
    }

    pub(crate) fn with_uncounted(self, uncounted: bool) -> Self {
        Link(if uncounted { self.0 | FLAG_UNCOUNTED } else { self.0 & !FLAG_UNCOUNTED })
    }

    pub(crate) fn unused_bytes(self) -> usize {
        ((self.0 & UNUSED_MASK) >> UNUSED_SHIFT) as usize
    }

    /// Returns the link for a value of `value_bytes` bytes. The value's length, rounded up to 8
    /// bytes, must be the same as before.
    pub(crate) fn with_value_bytes(self, value_bytes: usize) -> Self {
        let unused = value_bytes.next_multiple_of(8) - value_bytes;
        Link(self.0 & !UNUSED_MASK | (unused as u64) << UNUSED_SHIFT)
    }
}

/// Header word 3: the checksum, the table and the value's padded length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape(pub(crate) u64);

impl Shape {
    pub(crate) fn new(table: TableNumber, value_bytes: usize) -> Self {
        debug_assert!(value_bytes <= VALUE_BYTES_MAX);
        Shape(u64::from(table.0) << 32 | (value_bytes.div_ceil(8) as u64) << 48)
    }

    pub(crate) fn table(self) -> TableNumber {
        TableNumber((self.0 >> 32) as u16)
    }

    /// Returns the bytes of the value with its padding.
    pub(crate) fn padded_value_bytes(self) -> usize {
        (self.0 >> 48) as usize * 8
    }

    pub(crate) fn record_bytes(self) -> usize {
        HEADER_BYTES + self.padded_value_bytes()
    }

    fn crc(self) -> u32 {
        self.0 as u32
    }

    fn with_crc(self, crc: u32) -> Self {
        Shape(self.0 & !0xFFFF_FFFF | u64::from(crc))
    }
}

/// A record in a page of the log that is in memory. The reference is valid during `'g`, in which
/// the page stays in memory.
#[derive(Clone, Copy)]
pub(crate) struct RecordRef<'g> {
    words: *const AtomicU64,
    address: Address,
    guard: PhantomData<&'g ()>,
}

impl<'g> RecordRef<'g> {
    /// # Safety
    /// `words` points to the space of a record in the log. The header has been written, or the
    /// caller writes it by `begin` before any other use of the record. The record's page stays in
    /// memory during `'g`. A caller fulfils the second condition if it is pinned and saw `address`
    /// at or above the log's head.
    #[inline]
    pub(crate) unsafe fn new(words: *const AtomicU64, address: Address) -> Self {
        RecordRef { words, address, guard: PhantomData }
    }

    pub(crate) fn address(self) -> Address {
        self.address
    }

    #[inline]
    fn word(self, i: usize) -> &'g AtomicU64 {
        debug_assert!(i < HEADER_BYTES / 8);
        // SAFETY: the header has four words, and the contract of `new` says that they lie within
        // the frame.
        unsafe { &*self.words.add(i) }
    }

    // All loads of the header are Relaxed, because the header was written before the caller reached
    // it. A Release store of an index entry published the record, and the caller has read the entry
    // with Acquire. Or the caller has a hint: the thread that noted the hint had found the record,
    // and the program has passed the hint to this thread. Later, word 0 changes only under the
    // record's lock.
    #[inline]
    pub(crate) fn link(self) -> Link {
        Link(self.word(0).load(Ordering::Relaxed))
    }

    /// Sets word 0. Must be called before the record is published, or under its lock.
    pub(crate) fn set_link(self, link: Link) {
        self.word(0).store(link.0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn clock(self) -> &'g AtomicU64 {
        self.word(1)
    }

    #[inline]
    pub(crate) fn key(self) -> u64 {
        self.word(2).load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn shape(self) -> Shape {
        Shape(self.word(3).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is(self, table: TableNumber, key: u64) -> bool {
        self.key() == key && self.shape().table() == table
    }

    /// True if the record is the row of `key` in the table of `shape`, and its value has the padded
    /// length of `shape`.
    #[inline]
    pub(crate) fn has(self, shape: Shape, key: u64) -> bool {
        self.key() == key && self.shape().0 >> 32 == shape.0 >> 32
    }

    /// Returns the bytes of the value without padding. This number can change under the record's
    /// lock.
    pub(crate) fn value_bytes(self) -> usize {
        self.shape().padded_value_bytes() - self.link().unused_bytes()
    }

    /// Writes the header of a newly allocated record. The record is marked as invalid until
    /// `finish` is called.
    pub(crate) fn begin(self, table: TableNumber, key: u64, value_bytes: usize) {
        let unused = value_bytes.next_multiple_of(8) - value_bytes;
        self.set_link(Link::new(Address::NONE, unused).with_invalid(true));
        self.clock().store(0, Ordering::Relaxed);
        self.word(2).store(key, Ordering::Relaxed);
        self.word(3).store(Shape::new(table, value_bytes).0, Ordering::Relaxed);
    }

    /// Marks an unpublished record as uncounted.
    pub(crate) fn mark_uncounted(self) {
        self.set_link(self.link().with_uncounted(true));
    }

    /// Sets the clock and the flags of an unpublished record. The caller then publishes the record
    /// by a Release store of an index entry.
    pub(crate) fn finish(self, clock: ClockWord, tombstone: bool) {
        self.set_link(self.link().with_invalid(false).with_tombstone(tombstone));
        self.clock().store(clock.bits(), Ordering::Relaxed);
    }

    /// Marks a record that could not be published as invalid. The caller then writes another record
    /// instead of publishing this record later. A record may link only to lower addresses, and
    /// other threads may have added records with higher addresses to the chain.
    pub(crate) fn abandon(self) {
        self.set_link(self.link().with_invalid(true));
    }

    #[inline]
    fn value_words(self) -> *const AtomicU64 {
        // SAFETY: the value begins directly after the header, inside the same allocation.
        unsafe { self.words.add(HEADER_BYTES / 8) }
    }

    /// Returns the first `bytes` bytes of the value for ordinary loads.
    ///
    /// # Safety
    /// No other thread may store into the value while the slice is alive. This is so if the caller
    /// holds the record's lock, or if the record is unpublished and belongs to the caller. `bytes`
    /// is at most the record's padded value length.
    #[inline]
    pub(crate) unsafe fn value(&self, bytes: usize) -> &[u8] {
        debug_assert!(bytes <= self.shape().padded_value_bytes());
        // SAFETY: the record's shape keeps the slice in bounds. The contract of this function
        // excludes concurrent stores.
        unsafe { std::slice::from_raw_parts(self.value_words().cast::<u8>(), bytes) }
    }

    /// Returns the value of an unpublished record for the caller to fill.
    ///
    /// # Safety
    /// The record is unpublished, the caller allocated it, and no other reference to its value is
    /// alive. `bytes` is at most the record's padded value length.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "exclusive by the contract: unpublished memory")]
    pub(crate) unsafe fn value_mut(&self, bytes: usize) -> &mut [u8] {
        debug_assert!(bytes <= self.shape().padded_value_bytes());
        // SAFETY: the record's shape keeps the slice in bounds. The contract of this function makes
        // it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.value_words().cast_mut().cast::<u8>(), bytes) }
    }

    /// Copies the value's first `into.len()` words through atomics, for readers that don't hold the
    /// lock. `into` must not be longer than the record's padded value.
    #[inline]
    pub(crate) fn load_value(self, into: &mut [u64]) {
        debug_assert!(into.len() * 8 <= self.shape().padded_value_bytes());
        for (i, word) in into.iter_mut().enumerate() {
            // SAFETY: `into` is at most as long as the value, so word `i` lies within the record.
            *word = unsafe { &*self.value_words().add(i) }.load(Ordering::Relaxed);
        }
    }

    /// Copies the value's first `into.len()` bytes through atomics, so a reader need not hold the
    /// lock. `into` must not be longer than the record's padded value.
    #[inline]
    pub(crate) fn load_value_bytes(self, into: &mut [u8]) {
        debug_assert!(into.len() <= self.shape().padded_value_bytes());
        let (words, rest) = into.as_chunks_mut::<8>();
        let whole = words.len();
        // SAFETY: the words lie within the record's value.
        unsafe { load_words(self.value_words(), words) };
        if !rest.is_empty() {
            // SAFETY: the word lies within the record's value, which is padded to whole words.
            let last = unsafe { &*self.value_words().add(whole) }.load(Ordering::Relaxed);
            rest.copy_from_slice(&last.to_ne_bytes()[..rest.len()]);
        }
    }

    /// Stores the value through atomics. Must be called under the record's lock, after
    /// `clock::fence_before_change`.
    #[inline]
    pub(crate) fn store_value(self, from: &[u64]) {
        debug_assert!(from.len() * 8 <= self.shape().padded_value_bytes());
        // SAFETY: the words lie within the record's value.
        unsafe { store_words(from, self.value_words()) };
    }

    /// Writes the record in its form on disk, with the checksum, to the start of `into`. `into`
    /// must have at least the record's length.
    ///
    /// The caller ensures that the value no longer changes: the page is read-only, and every thread
    /// that found the page mutable has unpinned. Other threads may still lock or replace the
    /// record, so the clock word is read only once.
    pub(crate) fn write_image(self, origin: u64, into: &mut [u8]) {
        let shape = self.shape();
        let header = [self.link().0, self.for_disk().bits(), self.key(), shape.0];
        for (word, bytes) in header.iter().zip(into.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let padded = shape.padded_value_bytes();
        // SAFETY: the caller ensures that the value does not change, and the shape keeps it in
        // bounds.
        into[HEADER_BYTES..HEADER_BYTES + padded].copy_from_slice(unsafe { self.value(padded) });
        let crc = image_crc(&into[..HEADER_BYTES + padded], origin, self.address);
        into[24..32].copy_from_slice(&shape.with_crc(crc).0.to_le_bytes());
    }

    fn for_disk(self) -> ClockWord {
        ClockWord::from_bits(self.clock().load(Ordering::Relaxed)).for_disk()
    }
}

/// Copies words that other threads may store to during the copy.
///
/// # Safety
/// `from` points to at least as many readable words as `into` has.
#[cfg(any(not(target_arch = "x86_64"), miri, embank_shuttle, embank_tsan))]
#[inline]
unsafe fn load_words(from: *const AtomicU64, into: &mut [[u8; 8]]) {
    for (i, to) in into.iter_mut().enumerate() {
        // SAFETY: `i` is below the number of words that the contract guarantees.
        *to = unsafe { &*from.add(i) }.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// Copies words that other threads may store to during the copy, 32 bytes at a time.
///
/// The loads are assembly, because the compiler assumes that ordinary loads do not race with stores
/// of other threads. The processor loads each aligned 8-byte part as a whole, so each part is
/// equivalent to a relaxed load.
///
/// # Safety
/// `from` points to at least as many readable words as `into` has.
#[cfg(all(target_arch = "x86_64", not(any(miri, embank_shuttle, embank_tsan))))]
#[inline]
unsafe fn load_words(from: *const AtomicU64, into: &mut [[u8; 8]]) {
    use std::arch::asm;
    use std::arch::x86_64::{__m128i, _mm_storeu_si128};

    let (fours, rest) = into.as_chunks_mut::<4>();
    let mut from = from;
    for to in fours {
        let (low, high): (__m128i, __m128i);
        let to = to.as_mut_ptr().cast::<__m128i>();
        // SAFETY: four words from `from` on are readable by the contract, and `to` has four
        // writable words.
        unsafe {
            asm!(
                "movdqu {low}, [{from}]",
                "movdqu {high}, [{from} + 16]",
                from = in(reg) from,
                low = out(xmm_reg) low,
                high = out(xmm_reg) high,
                options(nostack, readonly, preserves_flags),
            );
            _mm_storeu_si128(to, low);
            _mm_storeu_si128(to.add(1), high);
            from = from.add(4);
        }
    }
    for (i, to) in rest.iter_mut().enumerate() {
        // SAFETY: the remaining words lie within the length that the contract guarantees.
        *to = unsafe { &*from.add(i) }.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// Stores words that other threads may load at the same time.
///
/// # Safety
/// `to` points to at least as many writable words as `from` has.
#[cfg(any(not(target_arch = "x86_64"), miri, embank_shuttle, embank_tsan))]
#[inline]
unsafe fn store_words(from: &[u64], to: *const AtomicU64) {
    for (i, word) in from.iter().enumerate() {
        // SAFETY: `i` is below the number of words that the contract guarantees.
        unsafe { &*to.add(i) }.store(*word, Ordering::Relaxed);
    }
}

/// Stores words that other threads may load at the same time, 32 bytes at a time.
///
/// The stores are assembly, because the compiler assumes that ordinary stores do not race with
/// loads of other threads. The processor stores each aligned 8-byte part as a whole, so each part
/// is equivalent to a relaxed store.
///
/// The stores must stay between `clock::fence_before_change` and the Release store that unlocks.
/// This processor keeps all stores in order. The compiler does not move the assembly across them,
/// because it assumes that the assembly may write any memory.
///
/// # Safety
/// `to` points to at least as many writable words as `from` has.
#[cfg(all(target_arch = "x86_64", not(any(miri, embank_shuttle, embank_tsan))))]
#[inline]
unsafe fn store_words(from: &[u64], to: *const AtomicU64) {
    use std::arch::asm;
    use std::arch::x86_64::{__m128i, _mm_loadu_si128};

    let (fours, rest) = from.as_chunks::<4>();
    let mut to = to;
    for from in fours {
        let from = from.as_ptr().cast::<__m128i>();
        // SAFETY: `from` has four readable words, and four words from `to` on are writable by the
        // contract.
        unsafe {
            let low = _mm_loadu_si128(from);
            let high = _mm_loadu_si128(from.add(1));
            asm!(
                "movdqu [{to}], {low}",
                "movdqu [{to} + 16], {high}",
                to = in(reg) to,
                low = in(xmm_reg) low,
                high = in(xmm_reg) high,
                options(nostack, preserves_flags),
            );
            to = to.add(4);
        }
    }
    for (i, word) in rest.iter().enumerate() {
        // SAFETY: the remaining words lie within the length that the contract guarantees.
        unsafe { &*to.add(i) }.store(*word, Ordering::Relaxed);
    }
}

/// Returns the CRC-32C of a record's image with the checksum field taken as zero. The checksum also
/// covers the record's address and its origin, a number that identifies the bank and the opening
/// that wrote the page (see `PageIdentity::origin`). A record of another address, bank or opening
/// therefore fails the check, as a damaged record does.
fn image_crc(image: &[u8], origin: u64, address: Address) -> u32 {
    let seed = crc32c::crc32c(&origin.to_le_bytes());
    let seed = crc32c::crc32c_append(seed, &address.raw().to_le_bytes());
    let head = crc32c::crc32c_append(seed, &image[..24]);
    let shape = crc32c::crc32c_append(head, &[0; 4]);
    crc32c::crc32c_append(shape, &image[28..])
}

/// A record in its form on disk.
#[derive(Clone, Copy)]
pub(crate) struct RecordImage<'a> {
    bytes: &'a [u8],
}

impl<'a> RecordImage<'a> {
    /// Wraps bytes that begin with a record's header. `bytes` may be shorter or longer than the
    /// record.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        debug_assert!(bytes.len() >= HEADER_BYTES);
        RecordImage { bytes }
    }

    /// Wraps a record that is stored in words.
    pub(crate) fn of_words(words: &'a [u64]) -> Self {
        // SAFETY: initialised words are valid bytes, the length is the size of the words, and the
        // slice borrows the words as long as it lives.
        let bytes =
            unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
        Self::new(bytes)
    }

    /// Returns the whole record. Panics if the bytes are shorter than the record.
    pub(crate) fn bytes(self) -> &'a [u8] {
        &self.bytes[..self.shape().record_bytes()]
    }

    fn word(self, i: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[i * 8..i * 8 + 8]);
        u64::from_le_bytes(word)
    }

    pub(crate) fn link(self) -> Link {
        Link(self.word(0))
    }

    pub(crate) fn clock(self) -> ClockWord {
        ClockWord::from_bits(self.word(1))
    }

    pub(crate) fn key(self) -> u64 {
        self.word(2)
    }

    pub(crate) fn shape(self) -> Shape {
        Shape(self.word(3))
    }

    pub(crate) fn is(self, table: TableNumber, key: u64) -> bool {
        self.key() == key && self.shape().table() == table
    }

    /// Returns the checksum that the record's header contains, and the checksum computed from the
    /// record's bytes. Panics if the bytes are shorter than the record.
    pub(crate) fn checksums(self, origin: u64, address: Address) -> (u32, u32) {
        let shape = self.shape();
        (shape.crc(), image_crc(&self.bytes[..shape.record_bytes()], origin, address))
    }

    /// Returns the value with its padding.
    pub(crate) fn padded_value(self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..self.shape().record_bytes()]
    }

    /// Returns the number of unused bytes at the value's end.
    pub(crate) fn unused_bytes(self) -> usize {
        self.link().unused_bytes()
    }

    /// Returns the bytes of the value without padding. `None` if the header gives more unused bytes
    /// than value bytes.
    pub(crate) fn value_bytes(self) -> Option<usize> {
        self.shape().padded_value_bytes().checked_sub(self.unused_bytes())
    }
}

const _: () = assert!(size_of::<AtomicU64>() * 4 == HEADER_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    fn sample(memory: &[AtomicU64]) -> RecordRef<'_> {
        // SAFETY: the memory is longer than the record written below.
        let record = unsafe { RecordRef::new(memory.as_ptr(), Address::new(4096)) };
        record.begin(TableNumber(7), 0xDEAD_BEEF, 21);
        record.set_link(record.link().with_previous(Address::new(1 << 40)));
        record.store_value(&[1, 2, 3]);
        record.finish(ClockWord::at_rest(2), false);
        record
    }

    #[test]
    fn an_image_round_trips() {
        let memory = words(7);
        let record = sample(&memory);
        assert_eq!(record.shape().record_bytes(), record_bytes(21));
        let mut bytes = vec![0; 56];
        record.write_image(5, &mut bytes);
        let image = RecordImage::new(&bytes);
        assert!(image.is(TableNumber(7), 0xDEAD_BEEF));
        assert_eq!(image.link().previous(), Address::new(1 << 40));
        assert_eq!(image.clock().outstanding(), 2);
        assert_eq!(image.value_bytes(), Some(21));
        assert_eq!(image.padded_value()[..8], 1u64.to_le_bytes());
        let (stored, computed) = image.checksums(5, Address::new(4096));
        assert_eq!(stored, computed);
    }

    #[test]
    fn a_value_of_any_length_is_copied() {
        const WORDS: usize = 19;
        let memory = words(HEADER_BYTES / 8 + WORDS);
        // SAFETY: the memory holds the header and the value.
        let record = unsafe { RecordRef::new(memory.as_ptr(), Address::new(4096)) };
        record.begin(TableNumber(7), 1, WORDS * 8);
        let expected: Vec<u8> = (1..=WORDS as u8 * 8).collect();
        // SAFETY: no other thread uses the record.
        unsafe { record.value_mut(WORDS * 8) }.copy_from_slice(&expected);
        // The copy must also work at unaligned offsets.
        for (length, offset) in (0..=WORDS * 8).flat_map(|length| [(length, 0), (length, 3)]) {
            let mut bytes = vec![0xFF; offset + length + 1];
            record.load_value_bytes(&mut bytes[offset..offset + length]);
            assert_eq!(bytes[offset..offset + length], expected[..length]);
            assert_eq!(bytes[offset + length], 0xFF);
        }
    }

    #[test]
    fn a_value_of_any_length_is_stored() {
        const WORDS: usize = 19;
        let expected: Vec<u64> = (1..=WORDS as u64).map(|i| i * 0x0101_0101_0101_0101).collect();
        for length in 0..WORDS {
            // The record has one word more than the test stores. The last word must stay 0.
            let memory = words(HEADER_BYTES / 8 + length + 1);
            // SAFETY: the memory holds the header and the value.
            let record = unsafe { RecordRef::new(memory.as_ptr(), Address::new(4096)) };
            record.begin(TableNumber(7), 1, (length + 1) * 8);
            record.store_value(&expected[..length]);
            let stored: Vec<u64> = memory[HEADER_BYTES / 8..]
                .iter()
                .map(|word| word.load(Ordering::Relaxed))
                .collect();
            assert_eq!(stored[..length], expected[..length]);
            assert_eq!(stored[length], 0);
        }
    }

    #[test]
    fn every_flipped_bit_and_a_wrong_place_fail_the_checksum() {
        let memory = words(7);
        let mut bytes = vec![0; 56];
        sample(&memory).write_image(5, &mut bytes);
        for bit in 0..56 * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let image = RecordImage::new(&flipped);
            if image.shape().record_bytes() > flipped.len() {
                continue; // the reader refuses a record that is longer than its page
            }
            let (stored, computed) = image.checksums(5, Address::new(4096));
            assert_ne!(stored, computed, "bit {bit}");
        }
        let (stored, computed) = RecordImage::new(&bytes).checksums(5, Address::new(4104));
        assert_ne!(stored, computed);
        let (stored, computed) = RecordImage::new(&bytes).checksums(6, Address::new(4096));
        assert_ne!(stored, computed);
    }

    #[test]
    fn links_keep_48_bits_of_address_and_their_flags() {
        let far = Address::new(((1 << 48) - 1) << 3);
        let link = Link::new(far, 5).with_tombstone(true).with_invalid(true);
        assert_eq!(link.previous(), far);
        assert_eq!(link.unused_bytes(), 5);
        assert!(link.is_tombstone() && link.is_invalid());
        assert!(!link.is_uncounted());
        let moved = link.with_previous(Address::NONE).with_invalid(false).with_uncounted(true);
        assert!(moved.is_tombstone() && !moved.is_invalid() && moved.is_uncounted());
        let kept = moved.with_previous(far).with_tombstone(false).with_value_bytes(21);
        assert!(kept.is_uncounted() && !kept.is_tombstone() && !kept.is_invalid());
        assert_eq!(moved.with_uncounted(false).with_uncounted(true), moved);
        assert_eq!(moved.unused_bytes(), 5);
    }
}
