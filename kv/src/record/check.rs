//! Checks the length and the checksum of a record that was read from disk.

use std::fmt;

use crate::record::address::Address;
use crate::record::layout::{HEADER_BYTES, RecordImage};

/// The result of `check` if it finds no fault.
pub(crate) enum Checked<'a> {
    /// The record, with a verified checksum.
    Sound(RecordImage<'a>),
    /// The caller passed too few bytes. It must read this number of bytes from the record's start
    /// and call `check` again.
    Needs(usize),
}

/// Why the bytes are not a valid record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unsound {
    NoRoom,
    TooLong,
    Checksum { stored: u32, computed: u32 },
}

/// The text completes a sentence whose subject is the record. In the text, "its" refers to the
/// record.
impl fmt::Display for Unsound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsound::NoRoom => formatter.write_str("no record fits there"),
            Unsound::TooLong => formatter.write_str("its length runs past its page"),
            Unsound::Checksum { stored, computed } => {
                write!(formatter, "its checksum is {computed:#010x}, not {stored:#010x}")
            }
        }
    }
}

/// A record's address, checksum seed and length limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    pub(crate) address: Address,
    /// The part of the checksum's seed that all records of a page share; see
    /// `PageIdentity::origin`.
    pub(crate) origin: u64,
    /// Bytes from the record's start to the end of its page.
    pub(crate) room_bytes: usize,
    /// Bytes of the longest record that the store writes.
    pub(crate) record_bytes_max: usize,
}

/// Checks the record at the start of `bytes`, which may be shorter or longer than the record.
///
/// # Errors
/// An error if the record's length or its checksum is wrong.
pub(crate) fn check(bytes: &[u8], site: Site) -> Result<Checked<'_>, Unsound> {
    if site.room_bytes < HEADER_BYTES {
        return Err(Unsound::NoRoom);
    }
    if bytes.len() < HEADER_BYTES {
        return Ok(Checked::Needs(HEADER_BYTES));
    }
    let record_bytes = RecordImage::new(bytes).shape().record_bytes();
    if record_bytes > site.room_bytes.min(site.record_bytes_max) {
        return Err(Unsound::TooLong);
    }
    if record_bytes > bytes.len() {
        return Ok(Checked::Needs(record_bytes));
    }
    let image = RecordImage::new(&bytes[..record_bytes]);
    let (stored, computed) = image.checksums(site.origin, site.address);
    #[cfg(feature = "bench")]
    for _ in 0..crate::testing::bench::extra_checksums() {
        std::hint::black_box(image.checksums(site.origin, site.address));
    }
    if stored == computed {
        Ok(Checked::Sound(image))
    } else {
        Err(Unsound::Checksum { stored, computed })
    }
}
