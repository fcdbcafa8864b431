//! What a read does after an answer of `io_uring`.

use std::io;

use super::transfer::{self, Progress};
use crate::device::segments::segment::Segment;
use crate::error::Error;

/// A read at the moment when the kernel answered.
pub(super) struct Asked<'a> {
    pub(super) segment: &'a Segment,
    /// The place in the segment where the read begins.
    pub(super) offset: u64,
    /// The length of the whole read in bytes.
    pub(super) wanted: usize,
    /// Bytes that earlier answers brought.
    pub(super) before: usize,
}

/// What a read does next.
pub(super) enum Completion {
    /// All bytes have arrived.
    Complete,
    /// This number of further bytes has arrived; the rest is requested again.
    More(usize),
    /// A transient failure: the read is requested again.
    Again,
    /// The file is too short, the drive failed, or there were too many transient failures.
    Failed(Error),
}

/// Counts the transient failures of a burst or a stream.
#[derive(Debug, Default)]
pub(super) struct Retries(usize);

impl Retries {
    /// Says what a read does after `result`, which is the number of bytes moved or a negative error
    /// number. `requests`: requests of this read so far.
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
