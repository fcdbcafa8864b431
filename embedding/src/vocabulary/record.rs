//! The encoding of byte strings in records (docs/format.md).
//!
//! A record of *ids* holds the strings with one hash, which is nearly always one string. For each
//! string it holds the place, the length and the bytes. A *block* of values holds the strings of
//! [`BYTES_PER_BLOCK`] consecutive places; the last block may hold fewer. A string that is too long
//! for a block appears in its block by length and hash. Its bytes are only in the record of ids,
//! which costs one more read and no extra space.

/// The number of values or counts in a block of numbers. Each takes 8 bytes.
pub(crate) const NUMBERS_PER_BLOCK: u64 = 64;
/// Bytes of a block of numbers.
pub(crate) const NUMBER_BLOCK_BYTES: usize = NUMBERS_PER_BLOCK as usize * 8;
/// The number of values in a block of byte strings.
pub(crate) const BYTES_PER_BLOCK: u64 = 32;
/// Longest string whose bytes are stored in its block. A block holds only the length and the hash
/// of a longer string.
const INLINE_BYTES_MAX: usize = 128;
/// The longest block of byte strings: a little more than 4 KiB, which fits the smallest page.
pub(crate) const BYTE_BLOCK_BYTES_MAX: u32 = BYTES_PER_BLOCK as u32 * (INLINE_BYTES_MAX as u32 + 2);
/// Largest number of bytes of a string's place and length in a record of ids.
pub(crate) const ENTRY_HEAD_BYTES_MAX: u32 = 10 + 3;

/// Appends a number in groups of 7 bits, lowest first. Each group but the last has its highest bit
/// set (LEB128).
pub(crate) fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads a number that `push_number` wrote, from the front of `bytes`.
#[inline]
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[inline]
fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

/// Appends a string to a record of ids.
pub(crate) fn push_entry(bytes: &mut Vec<u8>, place: u64, value: &[u8]) {
    push_number(bytes, place);
    push_number(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

/// Iterates over the strings of a record of ids and their places. Ends at the first bytes that do
/// not decode.
#[derive(Debug, Clone)]
pub(crate) struct Entries<'b>(pub(crate) &'b [u8]);

impl<'b> Iterator for Entries<'b> {
    type Item = (u64, &'b [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let place = take_number(&mut self.0)?;
        let length = take_number(&mut self.0)?;
        Some((place, take(&mut self.0, usize::try_from(length).ok()?)?))
    }
}

/// A string as its block stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocked<'b> {
    Inline(&'b [u8]),
    /// The block has only the length and the key. The bytes are in the record of ids with this key.
    Long {
        key: u64,
    },
}

/// Appends a string to a block. `key` is the key of the string's record of ids.
pub(crate) fn push_blocked(block: &mut Vec<u8>, key: u64, value: &[u8]) {
    let long = value.len() > INLINE_BYTES_MAX;
    push_number(block, (value.len() as u64) << 1 | u64::from(long));
    if long {
        block.extend_from_slice(&key.to_le_bytes());
    } else {
        block.extend_from_slice(value);
    }
}

/// Iterates over the strings of a block. Ends at the first bytes that do not decode.
#[derive(Debug, Clone)]
pub(crate) struct BlockEntries<'b>(pub(crate) &'b [u8]);

impl<'b> Iterator for BlockEntries<'b> {
    type Item = Blocked<'b>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let head = take_number(&mut self.0)?;
        if head & 1 == 0 {
            return take(&mut self.0, usize::try_from(head >> 1).ok()?).map(Blocked::Inline);
        }
        let (key, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(Blocked::Long { key: u64::from_le_bytes(*key) })
    }
}

/// Returns the first `count` strings of a block, as bytes.
pub(crate) fn first_of_block(block: &[u8], count: usize) -> Option<&[u8]> {
    let mut entries = BlockEntries(block);
    for _ in 0..count {
        entries.next()?;
    }
    Some(&block[..block.len() - entries.0.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for number in [0, 1, 127, 128, 300, 1 << 32, u64::MAX] {
            let mut bytes = Vec::new();
            push_number(&mut bytes, number);
            assert!(bytes.len() <= 10);
            let mut rest = &bytes[..];
            assert_eq!(take_number(&mut rest), Some(number));
            assert!(rest.is_empty());
            assert_eq!(take_number(&mut &bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn entries_come_back() {
        let mut bytes = Vec::new();
        push_entry(&mut bytes, 5, b"five");
        push_entry(&mut bytes, 1 << 40, b"");
        let found: Vec<_> = Entries(&bytes).collect();
        assert_eq!(found, [(5, &b"five"[..]), (1 << 40, b"")]);
        assert_eq!(Entries(&bytes[..4]).count(), 0);
    }

    #[test]
    fn a_block_of_longest_strings_fits() {
        let mut block = Vec::new();
        let value = [7; INLINE_BYTES_MAX];
        for place in 0..BYTES_PER_BLOCK {
            push_blocked(&mut block, place, &value);
        }
        assert!(block.len() <= BYTE_BLOCK_BYTES_MAX as usize);
        assert!(BlockEntries(&block).all(|entry| entry == Blocked::Inline(&value)));
        let first = first_of_block(&block, 2).unwrap();
        assert_eq!(BlockEntries(first).count(), 2);
        assert_eq!(first_of_block(first, 3), None);
        let mut long = Vec::new();
        push_blocked(&mut long, 9, &[7; INLINE_BYTES_MAX + 1]);
        assert_eq!(BlockEntries(&long).collect::<Vec<_>>(), [Blocked::Long { key: 9 }]);
    }
}
