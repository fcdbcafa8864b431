//! Embank: embedding tables larger than memory, for training.
//!
//! A [`Bank`] is a directory that holds many [`Table`]s under one memory budget. A table maps
//! 64-bit keys to rows of f32. A training step gets a batch of rows, computes, and passes the
//! gradients to the [`Lease`] that came with the batch. The table's [`Optimizer`] runs in the
//! store. Rows that do not fit in memory are on disk, and [`Table::lookahead`] reads them before
//! they are needed. [`Bank::checkpoint`] makes all tables durable at once.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! use embank::{Bank, BankOptions, Optimizer, TableConfig};
//!
//! let options = BankOptions { memory_budget_bytes: 8 << 20, ..Default::default() };
//! let bank = Bank::open(dir.path().join("bank"), options)?;
//! let users = bank.table("user", TableConfig::new(4).optimizer(Optimizer::adagrad(0.01)))?;
//!
//! let keys = [7, 3, 7]; // a batch may repeat keys
//! let mut rows = vec![0.0; keys.len() * users.dim()];
//! let lease = users.get(&keys, &mut rows)?; // missing rows are initialised
//! let gradients: Vec<f32> = rows.iter().map(|value| 2.0 * value).collect();
//! lease.apply(&gradients)?; // one optimizer step per distinct key
//! bank.checkpoint(b"step 1")?;
//! # Ok::<(), embank::Error>(())
//! ```
//!
//! # Staleness
//!
//! Every row has a staleness clock: the number of its Gets whose update has not arrived. With a
//! staleness bound, a Get waits while a row's clock is above the bound. Bound 0 is
//! bulk-synchronous, bound k is stale-synchronous, and no bound (the default) is asynchronous.
//! [`Table::peek`] does not change clocks.
//!
//! # Missing rows
//!
//! A row that was never written is missing; it is not a row of zeros. Its initial values are a pure
//! function of the table's seed and name, the key and the column ([`Table::initial`]).
//!
//! # Fleets
//!
//! One process writes a bank. Many processes can train the tables of a fleet, a directory with a
//! bank for each of them. The module [`fleet`] says which bank holds the row of a key, and makes
//! one checkpoint of all banks.
//!
//! # Vocabularies
//!
//! A [`Vocabulary`] maps raw values, numbers or byte strings, to dense ids in order of first
//! appearance, and back. The bank and its checkpoints contain it. A table can name the vocabulary
//! whose ids are its keys ([`TableConfig::vocabulary`]).

#![forbid(unsafe_code)]

// The folders of this crate. A folder imports only from folders above it in this list.
//
// scatter     a hash of keys with a secret of the process
// unknown_id  the id that stands for a value without an id
// pool        the threads that share the large batches of a bank
// options     the options for opening a bank
// dtype       the stored types of values, and rounding
// stats       counters, and the descriptions in lists and errors
// optimizer   one optimizer step of a row
// error       the errors
// keys        the distinct keys of a batch
// row         a table's settings, and the layout of its rows
// lookahead   rows that are read in advance
// context     the state that all handles of an open bank share
// registry    the leases of a table, and how Gets queue
// vocabulary  maps values to dense ids
// table       reads and updates of rows, admission, eviction
// lease       Gets, their waits, and updates through leases
// files       exports and imports
// bank        opening a bank, and its tables, vocabularies and checkpoints
// fleet       the shards of a fleet of banks

mod bank;
mod context;
mod dtype;
mod error;
mod files;
pub mod fleet;
mod keys;
mod lease;
mod lookahead;
mod optimizer;
mod options;
mod pool;
mod registry;
mod row;
mod scatter;
mod stats;
mod table;
mod unknown_id;
mod vocabulary;

pub use bank::Bank;
pub use bank::auto_depth::AutoDepth;
pub use bank::tables::TableInfo;
pub use bank::vocabularies::VocabularyInfo;
pub use dtype::{Dtype, Rounding};
#[doc(hidden)]
pub use embank_kv::OutputFile;
pub use embank_kv::inspect;
pub use embank_kv::inspect::{CheckpointSummary, TableSummary};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use embank_kv::suspended;
pub use embank_kv::{
    ColdTier, Compacted, CompactionOptions, Copied, Delta, DeviceChoice, LockHolder, LockHolders,
    Recovered, SpaceHolder, StateId, StoreStats, TableId, check_while_waiting,
    default_memory_budget_bytes, memory_budget_warning,
};
#[doc(hidden)]
pub use embank_kv::{Home, RunningTime, THREADS_ADVICE, check_batch, locks};
pub use error::{Error, Result, StoreError};
pub use files::FileFormat;
pub use files::export::{DenseRows, ExportOptions, Exported};
pub use files::import::options::ImportOptions;
pub use files::import::{Imported, exported_config};
pub use keys::UniqueKeys;
pub use lease::Lease;
pub use lease::ahead::{AheadQueue, Pending};
pub use lease::request::Request;
pub use lease::step::TableGradients;
pub use lookahead::queue::LookaheadReceipt;
pub use optimizer::*; // `Optimizer` and the struct of each kind
pub use options::{BankOptions, WAIT_TIMEOUT_DEFAULT};
pub use row::admission::Admission;
pub use row::config::{DIM_MAX, TableConfig};
pub use row::decoded::DecodedRow;
pub use row::initializer::{Fans, Initializer};
pub use row::numbering::{TableVocabulary, VocabularyIdentity};
pub use row::tracking::Tracking;
pub use stats::lease_info::LeaseInfo;
pub use stats::seen::StalenessHistogram;
pub use stats::unsaved::Unsaved;
pub use stats::{BankStats, LookaheadStats, TableStats};
pub use table::Table;
pub use table::bags::{Bags, Pooling};
pub use table::count_tables::table_of_counts;
pub use table::eviction::{Evicted, Eviction};
pub use table::peek::{Missing, PeekOutcome};
pub use table::prefetch::Prefetch;
pub use table::progress::TransferProgress;
pub use table::scan::{Scan, ScannedRow};
pub use unknown_id::UNKNOWN_ID;
pub use vocabulary::{
    ByteBuffer, ByteValues, KeptFrequent, MergedIds, MergedVocabulary, OwnedValues, ValueKind,
    Values, VerifiedVocabulary, Vocabulary, VocabularyChunk, VocabularyConfig, VocabularyProgress,
    VocabularyScan, VocabularySummary,
};
