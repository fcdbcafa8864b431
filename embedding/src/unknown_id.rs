//! The id that stands for a value without an id.

/// Stands for the id of an unknown value. No value has this id.
///
/// # Examples
/// See [`Vocabulary::ids`](crate::Vocabulary::ids).
pub const UNKNOWN_ID: u64 = u64::MAX;
