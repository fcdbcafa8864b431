//! Record files: rows of batches, in groups with checksums.
//!
//! **Problem.** Preprocessed rows must outlive their process, and other processes read them. A
//! reader must never take a wrong row for a right one, whatever has happened to the file.
//!
//! **Approach.** A file is a head, groups of at most [`GROUP_ROWS_MAX`] rows, a footer with an
//! index of the groups, and a trailer of fixed length that finds the footer. The head describes the
//! outputs. Each segment of a group begins at a multiple of 4 KiB, so that it can be read with
//! `O_DIRECT` and into page-locked memory. A group has one segment for each fidelity: to read it at
//! a fidelity is to read a prefix of it. This version knows one fidelity, with all values.
//! docs/format.md has every byte.
//!
//! **Invariants.**
//! - A file has its name only when it is complete and on stable storage.
//! - Each byte is covered by a checksum, or must be zero. Nothing lies between the parts of a file
//!   but these zeros.
//! - A length that a file names is compared with the file's length and with a limit before memory
//!   is allocated for it.
//! - A group is handed out only if its checksum is right.
//! - An unknown version, codec, dtype or member of the head is no damage: a newer program wrote it.
//!
//! | file | what is there |
//! |---|---|
//! | `writer.rs`, `reader.rs`, `verify.rs` | what users call |
//! | `head.rs`, `footer.rs` | the bytes before and after the groups |
//! | `segment.rs` | the values of a group as bytes |
//! | `fault.rs` | what is wrong with a file |

mod fault;
mod footer;
mod head;
mod reader;
mod segment;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

pub use fault::RecordDamage;
pub use reader::{RecordFidelity, RecordFile, RecordGroup};
pub use verify::{RecordReport, verify_records};
pub use writer::{RecordOptions, RecordWriter};

/// Version of the format.
const VERSION: u32 = 1;
/// Segments and the footer begin at multiples of this number of bytes. It is the block size of
/// drives and the page size of memory.
const ALIGNMENT: u64 = 4096;
/// Largest number of rows of a group. A group is the unit of reading.
const GROUP_ROWS_MAX: usize = 1 << 16;
/// Largest number of bytes of a group's values. A reader allocates at most three times as much: the
/// bytes in the file, zstd's window, and the values.
const GROUP_BYTES_MAX: u64 = 256 << 20;
/// Largest number of groups of a file, so that an index fits in memory.
const GROUPS_MAX: u64 = 1 << 20;
/// The fidelity of a group with all values.
const FULL: &str = "full";

/// Returns the next place from `at` on at which a segment or the footer may begin.
fn aligned(at: u64) -> u64 {
    at.next_multiple_of(ALIGNMENT)
}

/// Returns the number at `at` of a structure whose length the caller has checked.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the number at `at` of a structure whose length the caller has checked.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Returns the place of the first byte that is not zero.
fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte != 0)
}
