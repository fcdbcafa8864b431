//! What a checkpoint holds besides rows.

/// What the newest checkpoint held besides rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The checkpoint's number.
    pub checkpoint: u64,
    /// The caller's bytes.
    pub blob: Vec<u8>,
}
