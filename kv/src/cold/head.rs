//! What a part's header says, and where a part lies.

use std::ops::{Range, RangeInclusive};

use crate::cold::block::BLOCK_BITS;
pub(crate) use crate::device::placement::COLD_BEGIN;
use crate::device::placement::part_span_bytes;
use crate::device::{AlignedBuffer, BLOCK_BYTES_MAX, Device, Read};
use crate::error::{Error, Result};
use crate::record::hash::KeyHash;

/// Returns the address of a part's first byte.
pub(crate) fn part_address(number: u64, segment_size_bytes: u64) -> u64 {
    COLD_BEGIN + number * part_span_bytes(segment_size_bytes)
}

/// Returns the number of the part that has the byte at `address`.
pub(crate) fn part_number(address: u64, segment_size_bytes: u64) -> u64 {
    (address - COLD_BEGIN) / part_span_bytes(segment_size_bytes)
}

/// Where the parts of a bank lie, and by which hash their rows are ordered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartSite<'d> {
    pub(crate) device: &'d dyn Device,
    pub(crate) segment_size_bytes: u64,
    pub(crate) key_hash: KeyHash,
}

/// The kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The part is the oldest source of its hashes.
    Base,
    /// The part belongs to a run, whose rows are newer than those of the base.
    Run,
}

/// What a part's header says. The checkpoint's list of parts repeats it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartHead {
    /// The bank's id.
    pub(crate) bank: u64,
    /// Random. A part of an abandoned opening with the same number has another salt.
    pub(crate) salt: u64,
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    /// Of a run: how many times its rows were consolidated. 0 for a base part.
    pub(crate) level: u8,
    /// Blocks have `1 << block_bits` bytes: 12 to 14.
    pub(crate) block_bits: u8,
    /// The numbers of the runs whose rows the part has. Of a base part, the end is the newest run
    /// that was merged into it.
    pub(crate) runs: RangeInclusive<u64>,
    /// The hashes that the part answers for.
    pub(crate) hashes: RangeInclusive<u64>,
    /// The log addresses from which the rows of a run of level 0 came.
    pub(crate) log: Range<u64>,
}

/// Bytes of a part's header and of its trailer. Offsets and lengths of all transfers are multiples
/// of this.
pub(crate) const PAGE_BYTES: usize = 4096;
const _: () = assert!(PAGE_BYTES.is_multiple_of(BLOCK_BYTES_MAX));

/// The version of the format of parts.
pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"EMBKPART";

/// ```text
/// bytes 0..8    magic "EMBKPART"        8..12   version 1
/// bytes 12..16  CRC-32C of bytes 0..12 and 16..4096
/// bytes 16..24  bank id                 24..32  salt
/// bytes 32..40  number of the part      40      kind, 0 base, 1 run
/// byte  41      level                   42      block bits      43..48  zero
/// bytes 48..56  first run               56..64  last run
/// bytes 64..72  first hash              72..80  last hash
/// bytes 80..88  begin of the log range  88..96  its end         96..    zero
/// ```
impl PartHead {
    /// Returns the header.
    pub(crate) fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let kind = u8::from(self.kind == Kind::Run);
        page[40..43].copy_from_slice(&[kind, self.level, self.block_bits]);
        let words = [
            (16, self.bank),
            (24, self.salt),
            (32, self.number),
            (48, *self.runs.start()),
            (56, *self.runs.end()),
            (64, *self.hashes.start()),
            (72, *self.hashes.end()),
            (80, self.log.start),
            (88, self.log.end),
        ];
        for (at, word) in words {
            page[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        seal_page(&mut page);
        page
    }

    /// Returns the checksum in the header.
    pub(crate) fn crc(&self) -> u32 {
        u32_at(&self.encode(), 12)
    }

    /// Reads the header of the part `number`, for `verify` and `repair`, which do not trust the
    /// list.
    ///
    /// # Errors
    /// The errors of the device. `Damaged` if there is no sound header of this part.
    pub(crate) fn read(site: PartSite<'_>, number: u64) -> Result<PartHead> {
        let address = part_address(number, site.segment_size_bytes);
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        site.device.read_many(&mut [Read { offset: address, buffer: &mut page }])?;
        decode(&page).and_then(|head| head.check(number).map(|()| head)).map_err(|what| {
            let (path, offset) = site.device.locate(address);
            Error::Damaged { path, offset, what: format!("the header of a part: {what}") }
        })
    }

    /// Checks that the head is one of part `number`.
    pub(super) fn check(&self, number: u64) -> std::result::Result<(), String> {
        if self.number != number {
            return Err(format!("here lies part {}, not {number}", self.number));
        }
        if !BLOCK_BITS.contains(&self.block_bits) {
            return Err(format!("it claims blocks of 2^{} bytes", self.block_bits));
        }
        if self.hashes.is_empty() || self.runs.is_empty() {
            return Err("it claims a range that is empty".into());
        }
        Ok(())
    }
}

fn decode(page: &[u8]) -> std::result::Result<PartHead, String> {
    check_page(page, MAGIC)?;
    let kind = match page[40] {
        0 => Kind::Base,
        1 => Kind::Run,
        other => return Err(format!("its kind is {other}, neither 0 nor 1")),
    };
    let word = |at| u64_at(page, at);
    Ok(PartHead {
        bank: word(16),
        salt: word(24),
        number: word(32),
        kind,
        level: page[41],
        block_bits: page[42],
        runs: word(48)..=word(56),
        hashes: word(64)..=word(72),
        log: word(80)..word(88),
    })
}

/// Sets the checksum of a header or a trailer.
pub(super) fn seal_page(page: &mut [u8]) {
    let crc = page_crc(page);
    page[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn page_crc(page: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&page[..12]), &page[16..])
}

/// Checks magic, version and checksum of a header or a trailer.
///
/// # Errors
/// A description of what is wrong.
pub(super) fn check_page(page: &[u8], magic: [u8; 8]) -> std::result::Result<(), String> {
    let (stored, computed) = (u32_at(page, 12), page_crc(page));
    let version = u32_at(page, 8);
    if page[..8] != magic {
        Err("its magic number is wrong".into())
    } else if stored != computed {
        Err(format!("its checksum is {computed:#010x}, not {stored:#010x}"))
    } else if version != VERSION {
        Err(format!("format version {version} is not {VERSION}, which this program reads"))
    } else {
        Ok(())
    }
}

/// Returns the number at an offset that lies in `bytes`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Returns the number at an offset that lies in `bytes`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}
