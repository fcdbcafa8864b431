//! The engine: batches of operations, compaction and retention work on a store's rows through one
//! shared core.

pub(crate) mod batch;
pub(crate) mod core;
pub(crate) mod core_parts;
mod counting;
pub(crate) mod read_at;
pub(crate) mod retention;
pub(crate) mod space;
pub(crate) mod tables;
pub(crate) mod waiters;
