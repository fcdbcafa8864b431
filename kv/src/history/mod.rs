//! Operations on a bank's checkpoints: copy one, export and apply the delta between two, and roll
//! back to an older one.

pub(crate) mod copy;
pub(crate) mod delta;
pub(crate) mod parts;
pub(crate) mod rollback;
