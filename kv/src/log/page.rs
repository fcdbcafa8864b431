//! A page of the log on disk: a header with a checksum, then records back to back, then zeros.
//!
//! ```text
//! bytes 0..4   magic "EPG1"        4..8   CRC-32C of the whole page, these four bytes taken as zero
//! bytes 8..16  page number         16..24 bank id
//! bytes 24..28 bytes in use        28..32 zero
//! bytes 32..40 salt (see `lineage`)  40..64 zero
//! ```
//!
//! The page's checksum covers every byte, for readers of whole pages. Each record has its own
//! checksum, for readers of single rows (`record`). In memory the header's bytes stay unused, so an
//! address has the same offset in memory and on disk.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::record::address::Address;
use crate::record::layout::{HEADER_BYTES, RecordRef};

/// Bytes of the header at a page's start.
pub(crate) const PAGE_HEADER_BYTES: u64 = 64;
const MAGIC: [u8; 4] = *b"EPG1";

/// The values in a header that identify a page of a bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageIdentity {
    pub(crate) page: u64,
    pub(crate) bank: u64,
    /// The salt of the opening that wrote the page; see `lineage`.
    pub(crate) salt: u64,
}

impl PageIdentity {
    /// Returns the seed of the checksums of the page's records.
    pub(crate) fn origin(self) -> u64 {
        self.bank ^ self.salt
    }
}

fn page_crc(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[8..])
}

/// Calls `visit` for each record of a page in memory, from its start to `used_bytes`.
///
/// # Safety
/// `page` is the frame of the page that begins at `start` and is not reused during the call. Every
/// record in its first `used_bytes` has its header written.
pub(crate) unsafe fn for_each_record(
    page: *const u8,
    start: u64,
    used_bytes: u64,
    mut visit: impl FnMut(u64, RecordRef<'_>),
) {
    let mut offset = PAGE_HEADER_BYTES;
    while offset + HEADER_BYTES as u64 <= used_bytes {
        // SAFETY: `offset` is at a record's header within the frame, by the contract of this
        // function. Record lengths are multiples of 8 bytes and frames are page-aligned.
        let record = unsafe {
            RecordRef::new(page.add(offset as usize).cast(), Address::new(start + offset))
        };
        visit(offset, record);
        offset += record.shape().record_bytes() as u64;
    }
}

/// Writes a page's form on disk into `image`, which is as long as a page.
///
/// # Safety
/// The caller keeps the conditions of `for_each_record`. In addition, no thread changes the values
/// of the page's records during or after the call.
pub(crate) unsafe fn write_image(
    page: *const u8,
    start: u64,
    used_bytes: u64,
    identity: PageIdentity,
    image: &mut [u8],
) {
    // SAFETY: the contract of this function includes that of `for_each_record`.
    unsafe {
        for_each_record(page, start, used_bytes, |offset, record| {
            record.write_image(identity.origin(), &mut image[offset as usize..]);
        });
    }
    image[used_bytes as usize..].fill(0);
    image[..PAGE_HEADER_BYTES as usize].fill(0);
    image[..4].copy_from_slice(&MAGIC);
    image[8..16].copy_from_slice(&identity.page.to_le_bytes());
    image[16..24].copy_from_slice(&identity.bank.to_le_bytes());
    image[24..28].copy_from_slice(&(used_bytes as u32).to_le_bytes());
    image[32..40].copy_from_slice(&identity.salt.to_le_bytes());
    let crc = page_crc(image);
    image[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Checks a whole page that was read from disk, and returns the bytes in use. `place` gives the
/// page's path and offset for an error.
///
/// # Errors
/// `Damaged` with a description of the fault.
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
    let found = PageIdentity { page: word(8), bank: word(16), salt: word(32) };
    let used_bytes = word(24) & 0xFFFF_FFFF;
    let what = if image[..4] != MAGIC {
        format!("page {} has no page header", identity.page)
    } else if stored != computed {
        format!("page {}: its checksum is {computed:#010x}, not {stored:#010x}", identity.page)
    } else if (found.page, found.bank) == (identity.page, identity.bank) && found != identity {
        format!(
            "page {} was written by opening {:016x} of the bank, and opening {:016x} should have: the file is of a \
             copy that has gone on by itself, or of before a crash or a roll back",
            found.page, found.salt, identity.salt
        )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::address::TableNumber;
    use crate::record::clock::ClockWord;
    use crate::record::layout::{RecordImage, record_bytes};
    use crate::sync::AtomicU64;

    const PAGE_BYTES: usize = 8192;
    const IDENTITY: PageIdentity = PageIdentity { page: 3, bank: 0xB0_0B5E, salt: 0x5A17 };
    const START: u64 = 3 * PAGE_BYTES as u64;

    /// Returns a page in memory with records of values of 8, 16, 24, ... bytes, and its bytes in
    /// use.
    fn page() -> (Vec<AtomicU64>, u64) {
        // A reused frame has bytes of an earlier page.
        let words: Vec<_> = (0..PAGE_BYTES / 8).map(|_| AtomicU64::new(u64::MAX)).collect();
        let mut offset = PAGE_HEADER_BYTES;
        for key in 1..=20 {
            let at = words[offset as usize / 8..].as_ptr();
            // SAFETY: 20 records of at most 192 bytes fit the page.
            let record = unsafe { RecordRef::new(at, Address::new(START + offset)) };
            record.begin(TableNumber(2), key, key as usize * 8);
            record.store_value(&vec![key; key as usize]);
            record.finish(ClockWord::at_rest(key as u32), key == 4);
            offset += record_bytes(key as usize * 8) as u64;
        }
        (words, offset)
    }

    fn image() -> (Vec<u8>, u64) {
        let (words, used_bytes) = page();
        let mut image = vec![0xFF; PAGE_BYTES];
        // SAFETY: the page is complete, and no other thread uses it.
        unsafe { write_image(words.as_ptr().cast(), START, used_bytes, IDENTITY, &mut image) };
        (image, used_bytes)
    }

    fn check(image: &[u8], identity: PageIdentity) -> Result<u64> {
        check_image(image, identity, || (PathBuf::from("a segment"), 24_576))
    }

    #[test]
    fn an_image_holds_the_records_and_zeros_after_them() {
        let (image, used_bytes) = image();
        assert_eq!(check(&image, IDENTITY).unwrap(), used_bytes);
        let mut offset = PAGE_HEADER_BYTES as usize;
        for key in 1..=20 {
            let record = RecordImage::new(&image[offset..]);
            assert!(record.is(TableNumber(2), key));
            assert_eq!(record.link().is_tombstone(), key == 4);
            assert_eq!(record.clock().outstanding(), key as u32);
            assert_eq!(record.padded_value(), key.to_le_bytes().repeat(key as usize));
            offset += record.shape().record_bytes();
        }
        assert_eq!(offset as u64, used_bytes);
        assert!(image[offset..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn every_flipped_bit_of_a_page_is_noticed() {
        let (mut image, _) = image();
        for bit in 0..PAGE_BYTES * 8 {
            image[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&image, IDENTITY).is_err(), "bit {bit}");
            image[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_page_of_another_place_or_bank_is_noticed() {
        let (image, _) = image();
        for identity in [PageIdentity { page: 4, ..IDENTITY }, PageIdentity { bank: 1, ..IDENTITY }]
        {
            let error = check(&image, identity).unwrap_err();
            let Error::Damaged { path, offset, what } = error else { panic!("{error}") };
            assert_eq!((path, offset), (PathBuf::from("a segment"), 24_576));
            assert!(what.contains("here lies page 3"), "{what}");
        }
        assert!(check(&vec![0; PAGE_BYTES], IDENTITY).is_err());
    }
}
