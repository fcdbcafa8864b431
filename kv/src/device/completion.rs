//! Decides how a read continues after a completion of `io_uring`.

use std::io;

use super::transfer::{self, Progress};
use crate::device::segments::segment::Segment;
use crate::error::Error;

/// A read for which the kernel has reported a completion.
pub(super) struct Asked<'a> {
    pub(super) segment: &'a Segment,
    /// Offset of the read in the segment file.
    pub(super) offset: u64,
    /// Length of the whole read in bytes.
    pub(super) wanted: usize,
    /// Bytes that earlier completions of this read brought.
    pub(super) before: usize,
}

/// The next step of a read.
pub(super) enum Completion {
    /// All bytes have arrived.
    Complete,
    /// A part has arrived: this number of bytes. The device must request the remaining bytes.
    More(usize),
    /// The failure is transient: the device must repeat the request.
    Again,
    /// The file is too short, the drive failed, or too many transient failures occurred.
    Failed(Error),
}

/// Counts the transient failures of a burst or a stream.
#[derive(Debug, Default)]
pub(super) struct Retries(usize);

impl Retries {
    /// Returns the next step of a read. `result` is the kernel's result: the number of bytes read,
    /// or a negative error number. `requests` is the number of reads of the burst, or of the stream
    /// so far. The limit of retries grows with `requests`.
    pub(super) fn after(&mut self, asked: &Asked<'_>, result: i32, requests: usize) -> Completion {
        let Asked { segment, offset, wanted, before } = *asked;
        let Ok(moved) = usize::try_from(result) else {
            let error = io::Error::from_raw_os_error(-result);
            self.0 += 1;
            if transfer::is_transient(&error) && self.0 <= transfer::retries_max(requests) {
                return Completion::Again;
            }
            return Completion::Failed(segment.read_failed(offset + before as u64, &error));
        };
        match Progress::after(wanted, before, moved) {
            Progress::Complete => Completion::Complete,
            Progress::More => Completion::More(moved),
            Progress::EndOfFile => {
                Completion::Failed(segment.truncated(offset, wanted, before + moved))
            }
        }
    }
}
