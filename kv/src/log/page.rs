//! A page of the log on disk: a header, records back to back, zeros to the end.
//!
//! ```text
//! bytes 0..4   magic "EPG1"        4..8   CRC-32C of the whole page, these four bytes taken as zero
//! bytes 8..16  page number         16..24 bank id
//! bytes 24..28 bytes in use        28..64 zero
//! ```
//!
//! The page's checksum covers every byte, for readers of whole pages; each record carries its own for
//! readers of single rows (`record`). The header's place is kept free in memory too, so that an address
//! is the same offset in both.

use std::path::PathBuf;

use crate::address::Address;
use crate::error::{Error, Result};
use crate::record::{HEADER_BYTES, RecordRef};

/// Bytes at a page's start that hold no record.
pub(crate) const PAGE_HEADER_BYTES: u64 = 64;
const MAGIC: [u8; 4] = *b"EPG1";

/// What tells a page of this bank from any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageIdentity {
    pub(crate) page: u64,
    pub(crate) bank: u64,
}

fn page_crc(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[8..])
}

/// Calls `visit` for each record of a page in memory, from its start to `used_bytes`.
///
/// # Safety
/// `page` is the frame of the page that begins at `start`, is not reused meanwhile, and every record
/// in its first `used_bytes` has its header written.
pub(crate) unsafe fn for_each_record(
    page: *const u8,
    start: u64,
    used_bytes: u64,
    mut visit: impl FnMut(u64, RecordRef<'_>),
) {
    let mut offset = PAGE_HEADER_BYTES;
    while offset + HEADER_BYTES as u64 <= used_bytes {
        // SAFETY: `offset` is at a record's header, within the frame, by this function's contract;
        // records are multiples of 8 bytes and frames are page-aligned.
        let record = unsafe {
            RecordRef::new(page.add(offset as usize).cast(), Address::new(start + offset))
        };
        visit(offset, record);
        offset += record.shape().record_bytes() as u64;
    }
}

/// Writes a page's image into `image`, which is a page long.
///
/// # Safety
/// As for `for_each_record`; and nobody changes the values of the page's records any more.
pub(crate) unsafe fn write_image(
    page: *const u8,
    start: u64,
    used_bytes: u64,
    identity: PageIdentity,
    image: &mut [u8],
) {
    // SAFETY: passed on.
    unsafe {
        for_each_record(page, start, used_bytes, |offset, record| {
            record.write_image(&mut image[offset as usize..]);
        });
    }
    image[used_bytes as usize..].fill(0);
    image[..PAGE_HEADER_BYTES as usize].fill(0);
    image[..4].copy_from_slice(&MAGIC);
    image[8..16].copy_from_slice(&identity.page.to_le_bytes());
    image[16..24].copy_from_slice(&identity.bank.to_le_bytes());
    image[24..28].copy_from_slice(&(used_bytes as u32).to_le_bytes());
    let crc = page_crc(image);
    image[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Checks a whole page as read from `path` at `offset`; returns the bytes in use.
///
/// # Errors
/// `Damaged`, saying what does not fit.
pub(crate) fn check_image(
    image: &[u8],
    identity: PageIdentity,
    place: impl FnOnce() -> (PathBuf, u64),
) -> Result<u64> {
    let word = |i: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&image[i..i + 8]);
        u64::from_le_bytes(word)
    };
    let stored = (word(0) >> 32) as u32;
    let computed = page_crc(image);
    let found = PageIdentity { page: word(8), bank: word(16) };
    let used_bytes = word(24) & 0xFFFF_FFFF;
    let what = if image[..4] != MAGIC {
        format!("page {} has no page header", identity.page)
    } else if stored != computed {
        format!("page {}: its checksum is {computed:#010x}, not {stored:#010x}", identity.page)
    } else if found != identity {
        format!(
            "here lies page {} of bank {:016x}, not page {}",
            found.page, found.bank, identity.page
        )
    } else if used_bytes > image.len() as u64 || used_bytes < PAGE_HEADER_BYTES {
        format!("page {} claims {used_bytes} bytes in use", identity.page)
    } else {
        return Ok(used_bytes);
    };
    let (path, offset) = place();
    Err(Error::Damaged { path, offset, what })
}
