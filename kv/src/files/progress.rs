//! The progress of a long call.

/// The progress of a long call that reads the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of log that the call has read.
    pub done_bytes: u64,
    /// Bytes of log that the call reads in total.
    pub total_bytes: u64,
}
