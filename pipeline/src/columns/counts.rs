//! Refuses a Parquet page that declares more values than it can have. A decoder would allocate
//! memory for the declared number.
//!
//! Decoders of the `parquet` crate allocate memory for the number of values that a page declares,
//! before they look for the values. They do this for dictionaries, and for the lists of lengths in
//! `DELTA_LENGTH_BYTE_ARRAY` and `DELTA_BYTE_ARRAY`. In `DELTA_BYTE_ARRAY` a value begins with a
//! part of the value before it, so a few bits can also stand for a long value. The readers of this
//! module check each page before a decoder gets it.

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::errors::{ParquetError, Result};

use super::pages::PAGE_BYTES_MAX;

/// Largest number of lengths of a page. `DELTA_BYTE_ARRAY` has two lists of lengths, which are i32.
/// Two lists with this number of lengths take as much memory as the largest page. Writers make
/// pages of a MiB, far below this limit.
const LENGTHS_MAX: u64 = PAGE_BYTES_MAX / (2 * size_of::<i32>() as u64);
/// Largest number of values of a block of lengths. Writers use 128 or 2,048 values. With larger
/// numbers than this limit, the crate's arithmetic could overflow.
const BLOCK_VALUES_MAX: u64 = 1 << 20;
/// Fewest bytes that a value takes in a dictionary: a byte string has its length before it, and a
/// number has at least 32 bits. A type of a shorter fixed length has its own minimum.
pub(super) const DICTIONARY_VALUE_BYTES: usize = 4;

fn refused<T>(why: String) -> Result<T> {
    Err(ParquetError::General(why))
}

/// Checks a page of a column. The pair is the column's largest repetition level and largest
/// definition level. In a dictionary, a value takes at least `value_bytes` bytes.
pub(super) fn check(page: &Page, levels: (i16, i16), value_bytes: usize) -> Result<()> {
    if let Page::DictionaryPage { buf, num_values, .. } = page {
        if *num_values as usize > buf.len() / value_bytes {
            let bytes = buf.len();
            return refused(format!(
                "a dictionary of {bytes} bytes is to have {num_values} values, which is more than it can"
            ));
        }
        return Ok(());
    }
    let shared = match page.encoding() {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => false,
        Encoding::DELTA_BYTE_ARRAY => true,
        _ => return Ok(()),
    };
    check_lengths(values_of(page, levels)?, u64::from(page.num_values()), shared)
}

/// Returns the bytes of a page's values: the bytes after the levels of a data page, or all bytes of
/// a dictionary. The pair is the column's largest repetition level and largest definition level.
pub(super) fn values_of(page: &Page, (repetition, definition): (i16, i16)) -> Result<&[u8]> {
    let (bytes, levels) = match page {
        Page::DictionaryPage { buf, .. } => (buf, Some(0)),
        // A field is never read from a column of lists.
        Page::DataPage { .. } if repetition > 0 => return refused("a page of lists".to_owned()),
        Page::DataPage { buf, num_values, def_level_encoding, .. } => {
            (buf, levels_v1(buf, *num_values, definition, *def_level_encoding))
        }
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
            let levels = def_levels_byte_len.checked_add(*rep_levels_byte_len);
            (buf, levels.map(|levels| levels as usize))
        }
    };
    match levels.and_then(|levels| bytes.get(levels..)) {
        Some(values) => Ok(values),
        None => refused("a page ends within its levels".to_owned()),
    }
}

/// Returns how many bytes the levels take that precede the values in a page of version 1.
#[expect(deprecated, reason = "old files have the encoding")]
fn levels_v1(page: &Bytes, values: u32, most: i16, encoding: Encoding) -> Option<usize> {
    match encoding {
        _ if most == 0 => Some(0),
        Encoding::RLE => {
            let (length, _) = page.split_first_chunk()?;
            usize::try_from(i32::from_le_bytes(*length)).ok()?.checked_add(size_of::<i32>())
        }
        Encoding::BIT_PACKED => {
            let bits = 16 - most.cast_unsigned().leading_zeros() as usize;
            Some((values as usize * bits).div_ceil(8))
        }
        _ => None,
    }
}

/// Checks the lengths at the beginning of a page's values. If `shared`, the page has two lists. The
/// first says how many bytes each value shares with the value before it, the second how many more
/// bytes the value has.
fn check_lengths(bytes: &[u8], values: u64, shared: bool) -> Result<()> {
    let most = values.min(LENGTHS_MAX);
    let header = |bytes| match Header::read(bytes) {
        Some(header) if header.count > most => {
            let count = header.count;
            refused(format!(
                "a page of {values} values is to have {count} lengths, of {most} that it may have"
            ))
        }
        Some(header) => Ok(header),
        None => refused("a page's lengths can't be read".to_owned()),
    };
    let prefixes = header(bytes)?;
    if !shared {
        return Ok(());
    }
    let mut expanded = bytes.len() as u64;
    let rest = prefixes.lengths(|length| {
        // A value is made of bytes of the page, each used once, so it is no longer than the page.
        // The next value shares at most this whole value, so it shares no more bytes than the page
        // has.
        expanded = expanded.saturating_add(u64::try_from(length).ok()?.min(bytes.len() as u64));
        Some(())
    });
    let Some(rest) = rest else {
        return refused("a page's lengths of what values share can't be read".to_owned());
    };
    if expanded > PAGE_BYTES_MAX {
        return refused(format!(
            "a page of {} bytes is to become {expanded}, which is more than pages may have",
            bytes.len()
        ));
    }
    header(rest).map(drop)
}

/// The header of a list of numbers in `DELTA_BINARY_PACKED`.
struct Header<'a> {
    /// Number of values in a miniblock.
    values: u64,
    miniblocks: usize,
    count: u64,
    first: i32,
    rest: &'a [u8],
}

impl<'a> Header<'a> {
    fn read(mut rest: &'a [u8]) -> Option<Self> {
        let block = varint(&mut rest)?;
        let miniblocks = varint(&mut rest)?;
        let count = varint(&mut rest)?;
        let first = zigzag(&mut rest)?;
        let values = block.checked_div(miniblocks)?;
        let fits = block <= BLOCK_VALUES_MAX
            && block.is_multiple_of(128)
            && block.is_multiple_of(miniblocks)
            && values.is_multiple_of(32)
            && values > 0;
        fits.then_some(Self { values, miniblocks: miniblocks as usize, count, first, rest })
    }

    /// Passes all numbers to `each` and returns the bytes after them. `None` if a number can't be
    /// read or if `each` returns `None`.
    fn lengths(self, mut each: impl FnMut(i32) -> Option<()>) -> Option<&'a [u8]> {
        let Self { values, miniblocks, count, first, mut rest } = self;
        if count == 0 {
            return Some(rest);
        }
        let mut left = count - 1;
        let mut number = first;
        each(number)?;
        while left > 0 {
            let least = zigzag(&mut rest)?;
            let widths = rest.get(..miniblocks)?;
            rest = &rest[miniblocks..];
            for &width in widths {
                // The last block may have no bytes for its last miniblocks, although it declares
                // widths for them.
                if left == 0 {
                    break;
                }
                if width > 32 {
                    return None;
                }
                let bytes = usize::from(width) * values as usize / 8;
                let miniblock = rest.get(..bytes)?;
                rest = &rest[bytes..];
                for place in 0..values.min(left) {
                    let delta = bits(miniblock, place as usize * usize::from(width), width);
                    number = number.wrapping_add(least).wrapping_add(delta.cast_signed());
                    each(number)?;
                }
                left = left.saturating_sub(values);
            }
        }
        Some(rest)
    }
}

/// Returns the number that begins at bit `at` and has `width` bits, at most 32.
fn bits(bytes: &[u8], at: usize, width: u8) -> u32 {
    let mut word = [0; 8];
    let from = &bytes[at / 8..bytes.len().min(at / 8 + 8)];
    word[..from.len()].copy_from_slice(from);
    ((u64::from_le_bytes(word) >> (at % 8)) & ((1 << width) - 1)) as u32
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn zigzag(rest: &mut &[u8]) -> Option<i32> {
    let value = varint(rest)?;
    i32::try_from((value >> 1).cast_signed() ^ -(value & 1).cast_signed()).ok()
}

#[cfg(test)]
mod tests;
