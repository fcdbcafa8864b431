//! The end of a record file: the index of its groups, and the trailer that finds the index.

use super::fault::{Fault, check_sum};
use super::head::{check_version, crc_of};
use super::reader::RecordGroup;
use super::segment::Layout;
use super::{
    ALIGNMENT, GROUP_ROWS_MAX, GROUPS_MAX, VERSION, aligned, first_nonzero, u32_at, u64_at,
};

const MAGIC: [u8; 8] = *b"EMBKRECE";
/// Bytes of the trailer, the last bytes of the file.
///
/// ```text
/// bytes 0..8    magic                  8..12   version
/// bytes 12..16  CRC-32C of bytes 0..12 and 16..64
/// bytes 16..24  offset of the footer   24..32  bytes of the footer
/// bytes 32..36  CRC-32C of the footer  36..40  the checksum in the head
/// bytes 40..48  number of groups       48..56  number of rows
/// bytes 56..64  zero
/// ```
pub(super) const TRAILER_BYTES: usize = 64;
/// Bytes of the footer before the entries of the groups: for each fidelity the bytes of all
/// prefixes that are read for it (8).
const PREFIXES_BYTES: u64 = 8;
/// Bytes of a group's entry in the footer.
///
/// ```text
/// bytes 0..8    offset of the group    8..16   number of its first row
/// bytes 16..20  number of rows         20..24  zero
/// then for each segment:
/// bytes 0..8    end of the segment in the file
/// bytes 8..16   bytes of its content   16..20  CRC-32C of its bytes in the file
/// bytes 20..22  codec                  22..24  compression
/// ```
const ENTRY_BYTES: u64 = 48;
/// All values of all outputs, as they are.
const CODEC_EXACT: u16 = 0;
const COMPRESSION_NONE: u16 = 0;
const COMPRESSION_ZSTD: u16 = 1;
/// Largest number of bytes to which one byte of zstd can decompress: a block of up to 128 KiB takes
/// at least four bytes.
const ZSTD_RATIO_MAX: u64 = 1 << 15;

const _: () = assert!(TRAILER_BYTES == super::head::PREFIX_BYTES, "`crc_of` serves both");

/// The last bytes of a file, whose checksum was right.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) footer_offset: u64,
    pub(super) footer_bytes: u64,
    footer_crc: u32,
    groups: u64,
    rows: u64,
}

impl Trailer {
    /// Reads the trailer of a file of `file_bytes` whose groups begin after `head_bytes`.
    pub(super) fn parse(
        bytes: &[u8; TRAILER_BYTES],
        head_crc: u32,
        head_bytes: u64,
        file_bytes: u64,
    ) -> Result<Self, Fault> {
        let offset = file_bytes - TRAILER_BYTES as u64;
        let damage = |what: &str| Err(Fault::damage(offset, what));
        if bytes[..8] != MAGIC {
            return damage("it does not end as a record file; it is cut short, or bytes follow it");
        }
        check_sum(offset, u32_at(bytes, 12), crc_of(bytes))?;
        check_version(offset, u32_at(bytes, 8))?;
        if first_nonzero(&bytes[56..]).is_some() {
            return damage("bytes of its trailer are not zero");
        }
        if u32_at(bytes, 36) != head_crc {
            return damage("its trailer belongs to the head of another file");
        }
        let trailer = Self {
            footer_offset: u64_at(bytes, 16),
            footer_bytes: u64_at(bytes, 24),
            footer_crc: u32_at(bytes, 32),
            groups: u64_at(bytes, 40),
            rows: u64_at(bytes, 48),
        };
        let end = trailer.footer_offset.checked_add(trailer.footer_bytes);
        let is_placed = trailer.footer_offset >= head_bytes
            && trailer.footer_offset.is_multiple_of(ALIGNMENT)
            && end == Some(offset);
        if !is_placed {
            return damage("its trailer finds no footer; it is cut short, or bytes follow it");
        }
        if trailer.groups > GROUPS_MAX || trailer.footer_bytes != footer_bytes(trailer.groups) {
            return damage("the footer has another length than the number of groups says");
        }
        Ok(trailer)
    }
}

/// Bytes of the footer of a file with one fidelity.
fn footer_bytes(groups: u64) -> u64 {
    PREFIXES_BYTES + groups * ENTRY_BYTES
}

/// Returns the footer and the trailer of a file.
pub(super) fn encoded(groups: &[RecordGroup], head_crc: u32, footer_offset: u64) -> Vec<u8> {
    let footer_bytes = footer_bytes(groups.len() as u64);
    let mut bytes = Vec::with_capacity(footer_bytes as usize + TRAILER_BYTES);
    bytes.extend(prefixes_bytes(groups).to_le_bytes());
    for group in groups {
        bytes.extend(group.offset.to_le_bytes());
        bytes.extend(group.first_row.to_le_bytes());
        bytes.extend((group.rows as u32).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend((group.offset + group.stored_bytes).to_le_bytes());
        bytes.extend(group.bytes.to_le_bytes());
        bytes.extend(group.crc.to_le_bytes());
        bytes.extend(CODEC_EXACT.to_le_bytes());
        let compression = if group.is_compressed { COMPRESSION_ZSTD } else { COMPRESSION_NONE };
        bytes.extend(compression.to_le_bytes());
    }
    let rows: u64 = groups.iter().map(|group| group.rows as u64).sum();
    let mut trailer = Vec::with_capacity(TRAILER_BYTES);
    trailer.extend(MAGIC);
    trailer.extend(VERSION.to_le_bytes());
    trailer.extend([0; 4]);
    trailer.extend(footer_offset.to_le_bytes());
    trailer.extend(footer_bytes.to_le_bytes());
    trailer.extend(crc32c::crc32c(&bytes).to_le_bytes());
    trailer.extend(head_crc.to_le_bytes());
    trailer.extend((groups.len() as u64).to_le_bytes());
    trailer.extend(rows.to_le_bytes());
    trailer.resize(TRAILER_BYTES, 0);
    let crc = crc_of(&trailer);
    trailer[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes.extend(trailer);
    bytes
}

/// Bytes that are read for all groups.
pub(super) fn prefixes_bytes(groups: &[RecordGroup]) -> u64 {
    groups.iter().map(|group| group.stored_bytes).sum()
}

/// Reads the footer. `head_bytes` is the offset of the first group.
pub(super) fn parse(
    bytes: &[u8],
    trailer: &Trailer,
    head_bytes: u64,
    layout: &Layout,
) -> Result<Vec<RecordGroup>, Fault> {
    check_sum(trailer.footer_offset, trailer.footer_crc, crc32c::crc32c(bytes))?;
    let damage = |what: &str| Err(Fault::damage(trailer.footer_offset, what));
    let (prefixes, entries) = bytes.split_at(PREFIXES_BYTES as usize);
    let mut groups = Vec::with_capacity(trailer.groups as usize);
    let mut at = head_bytes;
    let mut first_row = 0;
    for (number, entry) in entries.chunks_exact(ENTRY_BYTES as usize).enumerate() {
        let group = parse_entry(entry, number as u64, at, first_row, trailer, layout)?;
        at = aligned(group.offset + group.stored_bytes);
        first_row += group.rows as u64;
        groups.push(group);
    }
    if at != trailer.footer_offset || first_row != trailer.rows {
        return damage("its groups have other rows or bytes than its trailer says");
    }
    if u64_at(prefixes, 0) != prefixes_bytes(&groups) {
        return damage("its groups have other bytes than the footer says");
    }
    Ok(groups)
}

/// Reads the entry of a group that must begin at `offset` with row `first_row`.
fn parse_entry(
    entry: &[u8],
    number: u64,
    offset: u64,
    first_row: u64,
    trailer: &Trailer,
    layout: &Layout,
) -> Result<RecordGroup, Fault> {
    let damage = |what: String| Fault::Damage { group: Some(number), offset, what };
    let newer = |what: String| Fault::Newer { group: Some(number), what };
    let u16_at = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let (codec, compression) = (u16_at(44), u16_at(46));
    if codec != CODEC_EXACT {
        return Err(newer(format!("its segment has codec {codec}")));
    }
    if compression > COMPRESSION_ZSTD {
        return Err(newer(format!("its segment has compression {compression}")));
    }
    let rows = u32_at(entry, 16) as usize;
    let (end, bytes) = (u64_at(entry, 24), u64_at(entry, 32));
    let is_compressed = compression == COMPRESSION_ZSTD;
    if (u64_at(entry, 0), u64_at(entry, 8)) != (offset, first_row) {
        return Err(damage("its entry in the footer does not follow on the one before".to_owned()));
    }
    if !(1..=GROUP_ROWS_MAX).contains(&rows) || u32_at(entry, 20) != 0 {
        return Err(damage(format!("its entry in the footer has {rows} rows")));
    }
    if layout.bytes(rows) != Some(bytes) {
        return Err(damage(format!("{rows} rows are to have {bytes} bytes")));
    }
    let stored_bytes = end.checked_sub(offset).filter(|_| end <= trailer.footer_offset);
    let fits = |stored: &u64| match is_compressed {
        true => *stored < bytes && bytes <= stored.saturating_mul(ZSTD_RATIO_MAX),
        false => *stored == bytes,
    };
    let Some(stored_bytes) = stored_bytes.filter(fits) else {
        return Err(damage(format!(
            "{bytes} bytes of values are to lie in bytes {offset} to {end}"
        )));
    };
    let crc = u32_at(entry, 40);
    Ok(RecordGroup { first_row, rows, offset, stored_bytes, bytes, is_compressed, crc })
}
