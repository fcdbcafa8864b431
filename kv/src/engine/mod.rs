//! The engine: batches of operations, compaction and retention work on a store's rows through one
//! shared core.
//!
//! - `core`: [`Core`](core::Core), where the parts meet: the log, the index, and the parts below.
//! - `batch`: runs an operation, or a job of the store, over many keys. Every call on keys is a
//!   batch.
//! - `tables`: the list of tables, their numbers, lengths and row counts.
//! - `space`: the disk space of the log, and compaction, which frees it.
//! - `retention`: keeps rows in memory that are used often.
//! - `cold`: the parts of the cold tier that readers see.
//! - `waiters`: parks threads until a row is released.
//! - `read_at`: the checkpoint that a read-only store shows.
//!
//! Each part has its own state. `tables` knows no other part. `retention`, and `space` for rows in
//! chains, run batches to copy rows. Batches ask `space` for room and tell `retention` what they
//! appended.

pub(crate) mod batch;
pub(crate) mod cold;
pub(crate) mod core;
pub(crate) mod read_at;
pub(crate) mod retention;
pub(crate) mod space;
pub(crate) mod tables;
pub(crate) mod waiters;
