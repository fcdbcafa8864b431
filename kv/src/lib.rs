//! The store on which Embank is built: a hybrid log of rows whose values are bytes.
//!
//! A [`Store`] keeps the rows of many tables. A call works on a batch of keys ([`Operation`]).
//! Within a batch, the cache misses and disk reads of several keys overlap. Each row has a
//! staleness clock ([`Clock`]), which counts its outstanding gets. [`Store::checkpoint`] makes all
//! earlier changes durable. Changes after the last checkpoint are lost in a crash. The crate
//! `embank` is built on this crate and adds vectors, optimizers and initial values.
//!
//! # A hybrid log
//!
//! All records of the store lie in one log, a sequence of bytes that grows at its *tail*. Each
//! record has an address in the log. An index maps a key to the address of its newest record. The
//! log has three regions, from the newest to the oldest:
//!
//! - *mutable*: the newest records, in memory. An update changes a record in place.
//! - *read-only*: older records, in memory, which are being written to disk. An update writes a new
//!   record at the tail.
//! - *on disk*: all older records. A lookup reads the row's record from disk. A get or an update
//!   also writes a new record of the row at the tail.
//!
//! When memory is full, the store evicts the oldest page in memory. Rows that are used often stay
//! in memory, because their records are copied to the tail. Other rows then exist only on disk.
//! Compaction copies the current rows at the log's beginning to the tail, and gives the space at
//! the beginning back to the file system. The design is from FASTER (SIGMOD 2018).
//!
//! # Where to look
//!
//! - `options`: settings of a store. `store`: the public calls. `operation`: what a batch does to
//!   its rows. `hints`: how a batch finds the rows of an earlier batch without the index. `leases`:
//!   batches that got rows and have not ended.
//! - `engine`: runs the calls of `store`. `engine/batch`: processes a batch of keys.
//!   `engine/tables`: the store's tables, with their numbers and row counts.
//!   `engine/space`: frees old space of the log. `engine/retention`: keeps frequently used rows in
//!   memory.
//! - `record`: the layout of a row in the log, with its lock and staleness clock. `index`: maps
//!   keys to records. `log`: pages in memory, and the thread that writes them to disk. `cache`:
//!   copies of rows on disk.
//! - `checkpoint`: makes the present state durable. `history`: copies a checkpoint, writes and
//!   applies the difference of two checkpoints, and goes back to an older one. `inspect`: examines
//!   a bank without opening it.
//! - `device`: reads and writes files. `files`: names, locks and checksums of files. `memory`: the
//!   memory budget. `process`: forks, threads and signals. `stats`: counters.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Embank runs on Linux: its files rely on Linux's open file locks, hole punching and direct I/O"
);

mod cache;
mod checkpoint;
#[cfg_attr(
    not(any(test, feature = "bench")),
    expect(dead_code, reason = "only tests and benchmarks call some of it")
)]
mod cold;
pub mod device;
mod engine;
mod epoch;
mod error;
mod files;
mod hints;
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
#[doc(hidden)]
pub use engine::space::TierLimits;
pub use engine::space::compactor::Compacted;
pub use engine::space::options::{ColdTier, CompactionOptions};
pub use engine::tables::{NewTable, TableInfo};
pub use engine::waiters::ReleaseTicket;
#[doc(hidden)]
pub use error::THREADS_ADVICE;
pub use error::{Error, Result};
pub use files::lock_holders::{LockHolder, LockHolders};
pub use files::metadata;
pub use files::output_file::{OutputFile, output_path};
pub use hints::{Hints, RowHint, RowHints};
pub use history::copy::Copied;
pub use history::delta::Delta;
pub use leases::{Expired, Leased, Leases};
pub use memory::budget::BUDGET_BYTES_MIN;
pub use memory::control_group::{default_memory_budget_bytes, memory_budget_warning};
#[doc(hidden)]
pub use memory::cpu_hint::prefetch;
#[doc(hidden)]
pub use operation::check_batch;
pub use operation::{Access, Clock, Operation, Outcome, Promoted, RowMark, Shortage, Width};
pub use options::StoreOptions;
#[doc(hidden)]
pub use process::crew;
#[doc(hidden)]
pub use process::descriptors::wait_for_descriptors;
#[doc(hidden)]
pub use process::float_state::FloatState;
#[doc(hidden)]
pub use process::home::Home;
#[doc(hidden)]
pub use process::interrupt;
pub use process::interrupt::check_while_waiting;
pub use process::locks;
pub use process::running_time::RunningTime;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use process::running_time::suspended;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use process::thread_start::with_threads_left;
pub use record::address::TableId;
pub use stats::space_holder::SpaceHolder;
pub use stats::{StoreStats, metrics};
pub use store::scan::{Scan, ScannedRow};
pub use store::serving::CallState;
pub use store::{Loan, Recovered, StateId, Store};
#[cfg(feature = "bench")]
#[doc(hidden)]
pub use testing::bench;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use testing::fuzzing;
#[doc(hidden)]
pub use testing::mechanisms;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use testing::parts;
