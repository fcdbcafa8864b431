//! Corrects the checksums of the on-disk format (docs/format.md) after an edit.
//!
//! A fuzzer can't guess a checksum, so it would never reach the code after the check. That code
//! must also be safe, because a wrong file can have a correct checksum. This module follows
//! docs/format.md and does not use the store's code.

/// Length of the header of a metadata frame, in bytes.
pub const FRAME_BYTES: usize = 24;
/// Length of the header of a checked stream, in bytes.
pub const STREAM_BYTES: usize = 32;
const CHUNK_BYTES: usize = 64 << 10;
const PAGE_HEADER_BYTES: usize = 64;
const RECORD_HEADER_BYTES: usize = 32;

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Corrects the length and the checksum in a metadata file's header.
pub fn metadata(file: &mut [u8]) {
    if file.len() < FRAME_BYTES {
        return;
    }
    let body_bytes = (file.len() - FRAME_BYTES) as u64;
    file[16..24].copy_from_slice(&body_bytes.to_le_bytes());
    let is_covered = u32::from_le_bytes([file[8], file[9], file[10], file[11]]) >= 7;
    let before = if is_covered { crc32c::crc32c(&file[..12]) } else { 0 };
    let crc = crc32c::crc32c_append(before, &file[16..]);
    put(file, 12, crc);
}

/// Corrects the checksums of a stream's header and of its chunks. Stops at the first chunk with an
/// impossible length.
pub fn stream(file: &mut [u8]) {
    if file.len() < STREAM_BYTES {
        return;
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&file[..12]), &file[16..STREAM_BYTES]);
    put(file, 12, crc);
    let mut at = STREAM_BYTES;
    for sequence in 0_u64.. {
        let Some(length) = file.get(at..at + 4) else { return };
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if length > CHUNK_BYTES || at + 8 + length > file.len() {
            return;
        }
        let crc = crc32c::crc32c(&sequence.to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &(length as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &file[at + 8..at + 8 + length]);
        put(file, at + 4, crc);
        at += 8 + length;
    }
}

/// Corrects the checksum of the record at the start of `record`, whose log address is `address`.
/// `origin` is the bank's id xor the page's salt. Returns the record's length in bytes, or `None`
/// if the slice `record` ends before the record does.
pub fn record(record: &mut [u8], origin: u64, address: u64) -> Option<usize> {
    let units = record.get(30..RECORD_HEADER_BYTES)?;
    let length = RECORD_HEADER_BYTES + usize::from(u16::from_le_bytes([units[0], units[1]])) * 8;
    let record = record.get_mut(..length)?;
    let crc = crc32c::crc32c(&origin.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &address.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &record[..24]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    let crc = crc32c::crc32c_append(crc, &record[28..]);
    put(record, 24, crc);
    Some(length)
}

/// Corrects the checksums of the page at log address `start` and of its records. Stops at the first
/// record that is too long for the page.
pub fn page(page: &mut [u8], bank: u64, start: u64) {
    if page.len() < PAGE_HEADER_BYTES {
        return;
    }
    let mut salt = [0; 8];
    salt.copy_from_slice(&page[32..40]);
    let origin = bank ^ u64::from_le_bytes(salt);
    let used = u32::from_le_bytes([page[24], page[25], page[26], page[27]]) as usize;
    let used = used.min(page.len());
    let mut at = PAGE_HEADER_BYTES;
    while at + RECORD_HEADER_BYTES <= used {
        match record(&mut page[at..used], origin, start + at as u64) {
            Some(length) => at += length,
            None => break,
        }
    }
    let crc = crc32c::crc32c(&page[..4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    let crc = crc32c::crc32c_append(crc, &page[8..]);
    put(page, 4, crc);
}

/// Corrects the checksums of a delta: of its head, which is a metadata frame, and of its stream.
pub fn delta(file: &mut [u8]) {
    let content = STREAM_BYTES + 8;
    if let Some(length) = file.get(content..content + 4) {
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if let Some(head) = file[content + 4..].get_mut(..length) {
            metadata(head);
        }
    }
    stream(file);
}
