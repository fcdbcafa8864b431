//! What works on a store's rows: batches of operations, compaction and retention, on one shared core.

pub(crate) mod batch;
pub(crate) mod compaction;
pub(crate) mod core;
mod counting;
pub(crate) mod lengths;
pub(crate) mod numbers;
pub(crate) mod retention;
pub(crate) mod waiters;
