//! The contents of a checkpoint besides rows.

/// The contents of the newest checkpoint besides rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The checkpoint's number.
    pub checkpoint: u64,
    /// The bytes that the caller stored with the checkpoint.
    pub blob: Vec<u8>,
}
