//! What the kernel's answer to a read of `io_uring` means.

use std::io;

use super::transfer::{self, Progress};
use crate::device::segments::segment::Segment;
use crate::error::Error;

/// A read as it stood when the kernel answered.
pub(super) struct Asked<'a> {
    pub(super) segment: &'a Segment,
    /// Where the read begins in the segment.
    pub(super) offset: u64,
    /// Bytes of the whole read.
    pub(super) wanted: usize,
    /// Bytes that earlier answers brought.
    pub(super) before: usize,
}

/// How a read goes on.
pub(super) enum Completion {
    /// All bytes are there.
    Complete,
    /// This many more bytes are there; ask for the rest.
    More(usize),
    /// A transient failure; ask again.
    Again,
    /// The file ends early, the drive failed, or transient failures were too many.
    Failed(Error),
}

/// Counts the transient failures of a burst or a stream.
#[derive(Debug, Default)]
pub(super) struct Retries(usize);

impl Retries {
    /// Says how a read goes on after `result`: bytes moved, or a negative error number. `requests`:
    /// reads so far.
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
