//! Checks transfers, and interprets short reads.

use std::io;

use super::{BLOCK_BYTES, placement};
use crate::error::{Error, Result};

/// Refuses a transfer that is empty, is not block-aligned or crosses a segment or a part. `memory`
/// is the transfer's memory, and `offset` its log offset.
pub(crate) fn check(offset: u64, memory: &[u8], segment_size_bytes: u64) -> Result<()> {
    let block = BLOCK_BYTES as u64;
    let len = memory.len() as u64;
    let aligned = (offset | len | memory.as_ptr() as u64).is_multiple_of(block);
    let file_bytes = placement::file_bytes_max(offset, segment_size_bytes);
    let within = len > 0 && (offset & (file_bytes - 1)) + len <= file_bytes;
    if aligned && within { Ok(()) } else { Err(refuse(offset, memory, segment_size_bytes)) }
}

#[cold]
fn refuse(offset: u64, memory: &[u8], segment_size_bytes: u64) -> Error {
    Error::InvalidArgument(format!(
        "a transfer of {} bytes at log offset {offset} from or to address {:p} won't do: all three \
         must be multiples of {BLOCK_BYTES}, the length above zero, and the bytes within one file of \
         {} bytes",
        memory.len(),
        memory.as_ptr(),
        placement::file_bytes_max(offset, segment_size_bytes),
    ))
}

/// The state of a read after the system has transferred some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All bytes have arrived.
    Complete,
    /// Some bytes have arrived. The caller must request the remaining bytes.
    More,
    /// The file ends before the remaining bytes.
    EndOfFile,
}

impl Progress {
    /// Returns the state of a read of `wanted` bytes. `before` bytes had arrived before, and
    /// `moved` bytes arrived now.
    ///
    /// The system may stop at any block. Inside a block it stops only at the end of the file. A
    /// read could not continue there, because `O_DIRECT` requires aligned reads.
    pub(crate) fn after(wanted: usize, before: usize, moved: usize) -> Self {
        if before + moved >= wanted {
            Self::Complete
        } else if moved == 0 || !moved.is_multiple_of(BLOCK_BYTES) {
            Self::EndOfFile
        } else {
            Self::More
        }
    }
}

/// True if the failed call may succeed when it is repeated: a signal interrupted it, or the system
/// was busy.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// Returns the limit of the transient failures of a burst of `requests` reads. Beyond it, the burst
/// fails with the last failure. The limit is high, because its only purpose is to end the loop for
/// a file that always returns `EAGAIN`.
pub(crate) fn retries_max(requests: usize) -> usize {
    64 + 4 * requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AlignedBuffer;

    #[test]
    fn transfers_must_be_aligned_filled_and_within_a_segment() {
        let memory = AlignedBuffer::zeroed(8192);
        let refused = |offset, range: std::ops::Range<usize>| {
            matches!(check(offset, &memory[range], 4096), Err(Error::InvalidArgument(_)))
        };
        assert!(!refused(0, 0..4096));
        assert!(!refused(4096 - 512, 0..512));
        assert!(!refused(u64::MAX - 511, 0..512));
        assert!(refused(1, 0..512));
        assert!(refused(0, 0..511));
        assert!(refused(0, 8..520));
        assert!(refused(0, 0..0));
        assert!(refused(512, 0..4096));
        assert!(refused(0, 0..8192));
        assert!(refused(u64::MAX - 511, 0..1024));
        let part = placement::COLD_BEGIN;
        assert!(!refused(part, 0..8192));
        assert!(!refused(part + (16 << 20) - 512, 0..512));
        assert!(refused(part + (16 << 20) - 512, 0..1024));
    }

    #[test]
    fn a_short_read_goes_on_at_a_block_and_ends_within_one() {
        assert_eq!(Progress::after(2048, 0, 2048), Progress::Complete);
        assert_eq!(Progress::after(2048, 1024, 1024), Progress::Complete);
        assert_eq!(Progress::after(2048, 0, 1024), Progress::More);
        assert_eq!(Progress::after(2048, 1024, 512), Progress::More);
        assert_eq!(Progress::after(2048, 1024, 0), Progress::EndOfFile);
        assert_eq!(Progress::after(2048, 0, 100), Progress::EndOfFile);
    }
}
