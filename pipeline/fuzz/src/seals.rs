//! Corrects the checksums of a record file after an edit: docs/format.md, "Record files".

use std::ops::Range;

const HEAD_BYTES: usize = 64;
const TRAILER_BYTES: usize = 64;
/// Bytes of the footer before the first entry.
const PREFIXES_BYTES: usize = 8;
const ENTRY_BYTES: usize = 48;

/// Corrects every checksum of a record file that lies where the file's lengths say.
pub fn seal(file: &mut [u8]) {
    let Some(trailer) = file.len().checked_sub(TRAILER_BYTES).filter(|&at| at >= HEAD_BYTES) else {
        return;
    };
    if let Some(description) = range(HEAD_BYTES as u64, number(file, 16), trailer) {
        put(file, 24, crc32c::crc32c(&file[description]));
    }
    seal_64(&mut file[..HEAD_BYTES]);
    let (offset, bytes) = (number(file, trailer + 16), number(file, trailer + 24));
    if let Some(footer) = range(offset, bytes, trailer) {
        // The loop ends: each turn moves on by an entry, within the footer.
        let mut entry = footer.start + PREFIXES_BYTES;
        while entry + ENTRY_BYTES <= footer.end {
            let (begin, end) = (number(file, entry), number(file, entry + 24));
            if let Some(stored) = range(begin, end.saturating_sub(begin), trailer) {
                put(file, entry + 40, crc32c::crc32c(&file[stored]));
            }
            entry += ENTRY_BYTES;
        }
        put(file, trailer + 32, crc32c::crc32c(&file[footer]));
    }
    file.copy_within(12..16, trailer + 36);
    seal_64(&mut file[trailer..]);
}

/// Corrects the checksum in bytes 12..16 of a structure of 64 bytes.
fn seal_64(bytes: &mut [u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..64]);
    put(bytes, 12, crc);
}

/// Returns a range of bytes. `None` if it does not end by `limit`.
fn range(begin: u64, bytes: u64, limit: usize) -> Option<Range<usize>> {
    let end = begin.checked_add(bytes).filter(|&end| end <= limit as u64)?;
    Some(begin as usize..end as usize)
}

fn number(file: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&file[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn put(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
