//! Values that can be checked: the bytes of a row depend only on its key and a version.
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | version, little-endian; a read-modify-write adds 1 |
//! | 4..8 | hash of the key |
//! | between | pattern of the key |
//! | the last 8, from 16 bytes on | hash of key and version |
//!
//! A value of less than 16 bytes has no hash at its end. A reader that knows the key checks the
//! first and the last eight bytes. This finds the value of another row, a value torn between two
//! versions, and zeros. `check_whole` also checks the bytes in the middle.

use std::fmt;

use crate::random::mix;

/// Smallest length of a value. It has room for the version and the hash of the key.
pub(crate) const VALUE_BYTES_MIN: usize = 8;

/// The error for a row whose bytes do not fit its key and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongAnswer {
    key: u64,
    head: u64,
    tail: Option<u64>,
}

impl fmt::Display for WrongAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongAnswer { key, head, tail } = self;
        write!(f, "wrong answer: the row of key {key:#018x} begins with {head:#018x}")?;
        tail.map_or(Ok(()), |tail| write!(f, " and ends with {tail:#018x}"))?;
        write!(f, "; no version of it does")
    }
}

impl std::error::Error for WrongAnswer {}

#[inline]
fn head(key: u64, version: u32) -> u64 {
    (mix(key ^ 0x6a09_e667_f3bc_c908) & !0xffff_ffff) | u64::from(version)
}

#[inline]
fn tail(key: u64, version: u32) -> u64 {
    mix(key.rotate_left(32) ^ u64::from(version).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[inline]
fn word(value: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(value[at..at + 8].try_into().expect("eight bytes are eight bytes"))
}

#[inline]
fn stamp(key: u64, version: u32, value: &mut [u8]) {
    value[..8].copy_from_slice(&head(key, version).to_le_bytes());
    let length = value.len();
    if length >= 16 {
        value[length - 8..].copy_from_slice(&tail(key, version).to_le_bytes());
    }
}

fn pattern(key: u64, place: usize) -> [u8; 8] {
    key.wrapping_add(place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Writes a row's value.
#[inline]
pub(crate) fn fill(key: u64, version: u32, value: &mut [u8]) {
    let (words, rest) = value.as_chunks_mut::<8>();
    for (place, word) in words.iter_mut().enumerate() {
        *word = pattern(key, place);
    }
    rest.fill(0);
    stamp(key, version, value);
}

/// Checks the first and last bytes of a row's value and returns its version.
#[inline]
pub(crate) fn check(key: u64, value: &[u8]) -> Result<u32, WrongAnswer> {
    let first = word(value, 0);
    let version = first as u32;
    let last = (value.len() >= 16).then(|| word(value, value.len() - 8));
    if first == head(key, version) && last.is_none_or(|last| last == tail(key, version)) {
        return Ok(version);
    }
    Err(WrongAnswer { key, head: first, tail: last })
}

/// Checks every byte of a row's value and returns its version.
pub(crate) fn check_whole(key: u64, value: &[u8]) -> Result<u32, WrongAnswer> {
    let version = check(key, value)?;
    let mut expected = vec![0; value.len()];
    fill(key, version, &mut expected);
    if value == expected {
        return Ok(version);
    }
    Err(WrongAnswer { key, head: word(value, 0), tail: None })
}

/// Checks a row's value and writes its next version in place. This is the modification of a
/// read-modify-write.
#[inline]
pub(crate) fn advance(key: u64, value: &mut [u8]) -> Result<(), WrongAnswer> {
    let version = check(key, value)?;
    stamp(key, version.wrapping_add(1), value);
    Ok(())
}

/// Writes the next version of every value of a batch in place. If the batch has a key twice, the
/// row's version advances only by one, because both copies were read before the first write.
pub(crate) fn advance_all(keys: &[u64], values: &mut [u8]) -> Result<(), WrongAnswer> {
    let value_bytes = values.len() / keys.len().max(1);
    let rows = keys.iter().zip(values.chunks_exact_mut(value_bytes));
    rows.into_iter().try_for_each(|(&key, value)| advance(key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_filled_checked_and_advanced() {
        for bytes in [8, 9, 15, 16, 17, 64, 100, 513] {
            let mut value = vec![0xff; bytes];
            fill(77, 5, &mut value);
            assert_eq!(check_whole(77, &value), Ok(5), "{bytes} bytes");
            advance(77, &mut value).unwrap();
            assert_eq!(check_whole(77, &value), Ok(6), "{bytes} bytes");
        }
    }

    #[test]
    fn zeros_another_rows_value_and_a_torn_value_are_wrong() {
        let (mut value, mut later) = (vec![0; 64], vec![0; 64]);
        assert!(check(77, &value).is_err(), "zeros");
        fill(77, 5, &mut value);
        assert!(check(78, &value).is_err(), "another row");
        fill(77, 6, &mut later);
        value[..8].copy_from_slice(&later[..8]);
        assert!(check(77, &value).is_err(), "torn");
    }

    #[test]
    fn a_flipped_bit_in_the_middle_shows_to_who_looks_there() {
        let mut value = vec![0; 64];
        fill(77, 5, &mut value);
        value[30] ^= 1;
        assert!(check(77, &value).is_ok());
        assert!(check_whole(77, &value).is_err());
    }
}
