//! One bank's history as a whole: copies at a checkpoint, deltas between two, going back to an
//! older one.

pub(crate) mod copy;
pub(crate) mod delta;
pub(crate) mod rollback;
