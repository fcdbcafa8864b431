//! The hybrid-log store under Embank: bytes in, bytes out.
//!
//! A [`Store`] keeps the rows of many tables in one log-structured store: the newest part in memory and
//! changed in place, the rest on disk. Work comes in batches ([`Operation`]); a batch overlaps its cache
//! misses and its disk reads. Each row carries a staleness clock ([`Clock`]). [`Store::checkpoint`] makes
//! everything so far durable; nothing in between is. Vectors, optimizers and initial values are the
//! business of the crate `embank` on top.
//!
//! Where to look: `options` is what a program sets, `store` has the calls of a user. `engine` runs them:
//! `engine/batch` a batch of keys, `engine/compaction` gives space back. `record` is a row as it lies in the log, with its lock and staleness word;
//! `index` finds it; `log` is the memory hierarchy; `cache` has copies of rows on disk. `checkpoint` makes a state
//! durable, `history` copies it and goes back to it, `inspect` looks at a bank without opening it. `device` reads and
//! writes, `files` names and locks files, `memory` counts the budget, `process` deals with forks, threads and signals.

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
pub use store::{Loan, Recovered, StateId, Store, TableInfo};
#[cfg(feature = "bench")]
#[doc(hidden)]
pub use testing::bench;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use testing::fuzzing;
#[doc(hidden)]
pub use testing::mechanisms;
