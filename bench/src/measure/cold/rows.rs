//! Rows in the order in which they leave the log: 16 bytes before the value, of which the first 8
//! are the key. The type parameter `ROW` is the length of a row, so that the compiler copies rows
//! with a few wide moves.

use anyhow::{Result, ensure};

/// Bytes of a row before its value.
pub(crate) const ROW_HEADER_BYTES: usize = 16;

#[inline]
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// Returns a row's key.
#[inline]
pub(crate) fn key_of(row: &[u8]) -> u64 {
    word(row)
}

/// Writes a row of a key: `version` and a pattern of the key are its value.
pub(crate) fn fill_row<const ROW: usize>(key: u64, version: u64, row: &mut [u8; ROW]) {
    row[..8].copy_from_slice(&key.to_le_bytes());
    row[8..16].fill(0);
    fill_value(key, version, &mut row[ROW_HEADER_BYTES..]);
}

/// Writes the value of a key's version.
fn fill_value(key: u64, version: u64, value: &mut [u8]) {
    let (words, _) = value.as_chunks_mut::<8>();
    for (place, word) in words.iter_mut().enumerate() {
        let number = if place == 0 { version } else { key.wrapping_mul(place as u64 * 2 + 1) };
        *word = number.to_le_bytes();
    }
}

/// Checks the value of a key and returns its version.
///
/// # Errors
/// Fails if the value is not that of the key.
pub(crate) fn version_of(key: u64, value: &[u8]) -> Result<u64> {
    let version = word(value);
    let mut expected = vec![0; value.len()];
    fill_value(key, version, &mut expected);
    ensure!(*value == expected, "wrong answer: the row of key {key:#x} has another value");
    Ok(version)
}
