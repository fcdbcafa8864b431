//! How far a long piece of work has come.

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of log gone through.
    pub done_bytes: u64,
    /// Bytes of log in all.
    pub total_bytes: u64,
}
