//! The hybrid-log store under Embank: bytes in, bytes out.
//!
//! A [`Store`] keeps the rows of many tables in one log-structured store: the newest part in memory and
//! changed in place, the rest on disk. Work comes in batches ([`Operation`]); a batch overlaps its cache
//! misses and its disk reads. Each row carries a staleness clock ([`Clock`]). [`Store::checkpoint`] makes
//! everything so far durable; nothing in between is. Vectors, optimizers and initial values are the
//! business of the crate `embank` on top.
//!
//! Where to look: `log` for the memory hierarchy, `index` for finding rows, `execute` for how a batch runs,
//! `clock` for the lock and staleness word, `compaction` for giving space back, `checkpoint` for durability,
//! `device` for I/O, `inspect` for looking at a bank without opening it.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Embank runs on Linux: its files rely on Linux's open file locks, hole punching and direct I/O"
);

mod address;
mod bank_file;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod budget;
mod buffers;
mod cache;
mod checked_stream;
mod checkpoint;
mod clock;
mod compaction;
mod control_group;
mod copying;
mod cpu_time;
mod delta;
mod descriptors;
pub mod device;
mod directory;
mod epoch;
mod error;
mod execute;
mod file_lock;
mod fork;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
mod hidden_file;
mod hold;
mod index;
pub mod inspect;
#[doc(hidden)]
pub mod interrupt;
mod leases;
mod lineage;
mod lock_holders;
pub mod locks;
mod log;
pub mod metadata;
pub mod metrics;
#[cfg(all(test, embank_shuttle))]
mod models;
mod operation;
mod output_file;
mod prefetch;
mod record;
mod region;
mod removal;
mod retention;
mod rollback;
mod scan;
mod stats;
mod store;
mod sync;
mod thread_start;
mod waiters;

pub use address::TableId;
pub use budget::BUDGET_BYTES_MIN;
pub use compaction::{Compacted, CompactionOptions, SpaceHolder};
pub use control_group::{default_memory_budget_bytes, memory_budget_warning};
pub use copying::Copied;
pub use delta::Delta;
pub use device::DeviceChoice;
#[doc(hidden)]
pub use error::THREADS_ADVICE;
pub use error::{Error, Result};
pub use interrupt::check_while_waiting;
pub use leases::{Expired, Leased, Leases};
pub use lock_holders::{LockHolder, LockHolders};
pub use operation::{Access, Clock, Operation, Outcome, Promoted, RowMark, Shortage, Width};
pub use output_file::{OutputFile, output_path};
pub use scan::{Scan, ScannedRow};
pub use stats::StoreStats;
pub use store::{Loan, Recovered, StateId, Store, StoreOptions, TableInfo};
pub use waiters::ReleaseTicket;
