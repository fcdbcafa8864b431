//! Checks that the pages of a Parquet file can't declare far more memory than their bytes can fill.
//!
//! A page's header declares its decompressed and its compressed length. The `parquet` crate
//! allocates these lengths before it looks at the page, so this module reads each header first. A
//! header is in Thrift's compact protocol. Every writer puts the page's type and the two lengths
//! into its first three fields.

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// Largest number of bytes of a decompressed page. Writers make pages of a MiB.
pub(super) const PAGE_BYTES_MAX: u64 = 512 << 20;
/// Largest number of bytes to which one compressed byte can decompress. zstd is the densest codec:
/// a block of up to 128 KiB takes at least four bytes.
const RATIO_MAX: u64 = 1 << 16;
/// Largest number of bytes of a page header's first three fields. Each field has a byte for its
/// type and up to five for its value.
const HEADER_BYTES: u64 = 18;
/// Bytes at a file's end: the length of its metadata, and its magic.
const FOOTER_BYTES: u64 = 8;

/// A file whose page headers are checked.
pub(crate) struct Pages<R>(pub(crate) R);

impl<R: ChunkReader> Length for Pages<R> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<R: ChunkReader> ChunkReader for Pages<R> {
    type T = R::T;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let left = self.len().saturating_sub(start);
        if left > FOOTER_BYTES {
            let header = self.0.get_bytes(start, left.min(HEADER_BYTES) as usize)?;
            check_page(&header)?;
        }
        self.0.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len()) {
            return Err(ParquetError::EOF(format!(
                "{length} bytes are to follow on byte {start}, and the file ends before that"
            )));
        }
        self.0.get_bytes(start, length)
    }
}

fn check_page(header: &[u8]) -> Result<()> {
    let mut rest = header;
    let lengths = (field(&mut rest), field(&mut rest), field(&mut rest));
    let (Some(_), Some(length), Some(compressed)) = lengths else { return Ok(()) };
    if length > PAGE_BYTES_MAX || length > compressed.saturating_mul(RATIO_MAX) {
        return Err(ParquetError::General(format!(
            "a page of {compressed} bytes is to become {length}, which is more than it can or than pages may have"
        )));
    }
    Ok(())
}

/// Reads an i32 field whose id is one more than the id of the field before it. `None` for any other
/// field.
fn field(rest: &mut &[u8]) -> Option<u64> {
    // Header byte of an i32 field whose id is one more than the last id.
    const NEXT_I32: u8 = 0x15;
    let (&NEXT_I32, mut after) = rest.split_first()? else { return None };
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (&byte, more) = after.split_first()?;
        after = more;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            *rest = after;
            // Zigzag: the last bit is the sign. A negative length counts as 0 here.
            return Some(if value & 1 == 0 { value >> 1 } else { 0 });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes the first three fields of a header.
    fn header(length: i32, compressed: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for value in [0, length, compressed] {
            let mut zigzag = ((value << 1) ^ (value >> 31)).cast_unsigned();
            bytes.push(0x15);
            while zigzag >= 0x80 {
                bytes.push(zigzag as u8 | 0x80);
                zigzag >>= 7;
            }
            bytes.push(zigzag as u8);
        }
        bytes
    }

    #[test]
    fn pages_that_claim_more_than_they_can_be_are_refused() {
        for (length, compressed) in
            [(0, 0), (1 << 20, 1 << 20), (1 << 20, 40), (512 << 20, 1 << 20), (-1, 5)]
        {
            assert!(check_page(&header(length, compressed)).is_ok(), "{length} of {compressed}");
        }
        for (length, compressed) in
            [(1, 0), (1 << 20, 15), ((512 << 20) + 1, 1 << 30), (i32::MAX, i32::MAX)]
        {
            assert!(check_page(&header(length, compressed)).is_err(), "{length} of {compressed}");
        }
        // Bytes that are no page header pass the check.
        for other in [&b""[..], b"PAR1", &[0x15, 0x80], &[0x15; 18]] {
            assert!(check_page(other).is_ok(), "{other:?}");
        }
    }
}
