//! The hybrid-log store under Embank: bytes in, bytes out.
//!
//! A [`Store`] keeps the rows of many tables. Work comes in batches ([`Operation`]), and a batch
//! overlaps its cache misses and its disk reads. Each row carries a staleness clock ([`Clock`]).
//! [`Store::checkpoint`] makes everything so far durable; nothing between two checkpoints is
//! durable. Vectors, optimizers and initial values belong to the crate `embank`, which stands on
//! this one.
//!
//! # A hybrid log
//!
//! All records of the store lie in one log, a sequence of bytes that grows at its *tail*. A record
//! has an address in the log, and an index leads from a key to the address of its newest record.
//! The newest part of the log is in memory, and the rest is on disk. The log has three regions:
//!
//! - *mutable*: the newest records, in memory. An update changes a record where it lies.
//! - *read-only*: older records, in memory, which are being written to disk. An update writes a new
//!   record at the tail.
//! - *on disk*: all older records. A read fetches one record. Training brings the row back to the
//!   tail.
//!
//! When memory is full, the oldest page in memory is evicted, so a row that is used stays in memory
//! and a row that is not used ends up on disk. Compaction copies current rows from the old end of
//! the log to the tail, and gives the old end back to the file system. The design is that of FASTER
//! (SIGMOD 2018).
//!
//! # Where to look
//!
//! - `options`: what a program sets. `store`: the calls of a user. `operation`: what a batch does.
//! - `engine`: runs these calls. `engine/batch`: a batch of keys. `engine/compaction`: gives space
//!   back. `engine/retention`: keeps rows in memory that are used often.
//! - `record`: a row as it lies in the log, with its lock and staleness word. `index`: finds it.
//!   `log`: the pages in memory and their way to disk. `cache`: copies of rows on disk.
//! - `checkpoint`: makes a state durable. `history`: copies it and goes back to it. `inspect`:
//!   looks at a bank without opening it.
//! - `device`: reads and writes. `files`: names, locks and checksums of files. `memory`: the
//!   budget. `process`: forks, threads and signals. `stats`: counters.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Embank runs on Linux: its files rely on Linux's open file locks, hole punching and direct I/O"
);

mod cache;
mod checkpoint;
pub mod device;
mod engine;
mod epoch;
mod error;
mod files;
mod history;
mod index;
pub mod inspect;
mod leases;
mod limits;
mod log;
mod memory;
mod operation;
mod options;
mod process;
mod record;
mod stats;
mod store;
mod sync;
mod testing;

pub use device::DeviceChoice;
pub use engine::compaction::Compacted;
pub use engine::compaction::options::CompactionOptions;
pub use engine::waiters::ReleaseTicket;
pub use error::{Error, Result};
#[doc(hidden)]
pub use error::{THREADS_ADVICE, no_checkpoint};
pub use files::lock_holders::{LockHolder, LockHolders};
pub use files::metadata;
pub use files::output_file::{OutputFile, output_path};
pub use history::copy::Copied;
pub use history::delta::Delta;
pub use leases::{Expired, Leased, Leases};
pub use memory::budget::BUDGET_BYTES_MIN;
pub use memory::control_group::{default_memory_budget_bytes, memory_budget_warning};
pub use operation::{Access, Clock, Operation, Outcome, Promoted, RowMark, Shortage, Width};
pub use options::StoreOptions;
#[doc(hidden)]
pub use process::interrupt;
pub use process::interrupt::check_while_waiting;
pub use process::locks;
pub use record::address::TableId;
pub use stats::space_holder::SpaceHolder;
pub use stats::{StoreStats, metrics};
pub use store::scan::{Scan, ScannedRow};
pub use store::serving::CallState;
pub use store::{Loan, Recovered, StateId, Store, TableInfo};
#[cfg(feature = "bench")]
#[doc(hidden)]
pub use testing::bench;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use testing::fuzzing;
#[doc(hidden)]
pub use testing::mechanisms;
