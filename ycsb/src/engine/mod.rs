//! The compared stores behind one trait.
//!
//! Each store implements [`Engine`]; each thread works through its own [`Session`]. A batch uses
//! the batch calls of its store. For Embank this is one call, for RocksDB a MultiGet or a
//! WriteBatch, for the B-trees one transaction. A batch of one operation uses the store's call for
//! single operations. Every engine copies the values of a batch into one buffer, because a program
//! that computes on a batch needs its values in one place.

pub(crate) mod embank;
#[cfg(feature = "fjall")]
pub(crate) mod fjall;
pub(crate) mod leases;
#[cfg(feature = "lmdb")]
pub(crate) mod lmdb;
pub(crate) mod map;
#[cfg(feature = "redb")]
pub(crate) mod redb;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocksdb;

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::engine::leases::Leases;
use crate::keyspace::KeyOrder;

/// Names with their numbers or settings.
pub(crate) type Named<T> = Vec<(String, T)>;

/// The settings with which every store is opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The store's own directory.
    pub(crate) directory: PathBuf,
    /// Bytes of every value.
    pub(crate) value_bytes: usize,
    /// The number of rows that the load inserts.
    pub(crate) rows: u64,
    /// The rule that makes a row's key from its number.
    pub(crate) key_order: KeyOrder,
    /// Threads of the load.
    pub(crate) load_threads: usize,
    /// The memory for the store's caches, tables and buffers together.
    pub(crate) memory_budget_bytes: u64,
    /// True to open an existing store, false to make a new one.
    pub(crate) reopen: bool,
    /// True if a store whose account of its own writes costs time must keep it (RocksDB).
    pub(crate) counts_writes: bool,
    /// True if Embank moves rows at rest to its cold tier, and puts blindly.
    pub(crate) cold_tier: bool,
}

/// A store that all threads share.
pub(crate) trait Engine: Send + Sync {
    /// Returns the store's whole configuration for the report.
    fn describe(&self) -> Named<String>;

    /// Opens a session, through which the calling thread uses the store.
    ///
    /// # Errors
    /// Returns any error of the store.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Returns true if a read-modify-write is atomic, so that no addition of a thread is lost.
    fn atomic_rmw(&self) -> bool {
        false
    }

    /// Sets the leases of the sessions that open next. Called only while no session is open. A
    /// store without [`EngineKind::takes_leases`] ignores them.
    fn set_leases(&self, _leases: Leases) {}

    /// Waits until the store's background work (flushes, compactions) is done.
    ///
    /// # Errors
    /// Returns any error of the store.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Makes all writes durable, so that a later process can reopen the store.
    ///
    /// # Errors
    /// Returns any error of the store, and an error for a store without durability.
    fn persist(&self) -> Result<()>;

    /// Returns the store's counters since it was opened.
    fn counters(&self) -> Named<u64> {
        Vec::new()
    }
}

/// The access of one thread to a store. Every call is one batch. A buffer holds the values of a
/// batch in the order of its keys.
pub(crate) trait Session {
    /// Copies the values of rows to `values`.
    ///
    /// # Errors
    /// Returns an error for a missing row, and any error of the store.
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()>;

    /// Replaces the values of existing rows.
    ///
    /// # Errors
    /// Returns any error of the store.
    fn update(&mut self, keys: &[u64], values: &[u8]) -> Result<()>;

    /// Adds new rows.
    ///
    /// # Errors
    /// Returns any error of the store.
    fn insert(&mut self, keys: &[u64], values: &[u8]) -> Result<()>;

    /// Applies [`advance`](crate::content::advance) to the value of every row. `values` is a buffer
    /// that the method may use.
    ///
    /// # Errors
    /// Returns an error for a missing or wrong row, and any error of the store.
    fn read_modify_write(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()>;

    /// Does the writes that earlier calls have put off. Must be the last call of a thread that has
    /// not failed.
    ///
    /// # Errors
    /// Returns any error of the store.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Passes up to `limit` rows with keys from `start` on to `each`, in key order.
    ///
    /// # Errors
    /// Returns any error of `each` or of the store. Stores with an [`EngineKind::no_scan`] return
    /// an error.
    fn scan(
        &mut self,
        _start: u64,
        _limit: usize,
        _each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        bail!("this workload scans ranges of keys, and the store has no order of keys")
    }
}

/// Returns the positions of a batch in the order of their keys. In this order a sorted store has
/// the fewest cache misses. Equal keys stay in their order, so that the last write of a key wins.
#[cfg(any(feature = "fjall", feature = "lmdb", feature = "redb"))]
fn sorted_places(keys: &[u64]) -> impl Iterator<Item = usize> {
    let mut places: Vec<u32> = (0..keys.len() as u32).collect();
    places.sort_by_key(|&place| keys[place as usize]);
    places.into_iter().map(|place| place as usize)
}

/// A store by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EngineKind {
    /// Embank: a read is a peek, a read-modify-write is one step
    Embank,
    /// Embank as training uses it, without clocks: a read is a get, a read-modify-write is a get
    /// and a put
    EmbankGet,
    /// As embank-get, with staleness clocks: a get adds 1 to a row's clock, a put subtracts 1, a
    /// read does both
    EmbankClock,
    /// Embank's tables as training uses them: a get returns a lease, and gradients end it before a
    /// later get
    EmbankLease,
    /// A sharded in-memory hash map: no disk, no budget; the upper bound
    Map,
    /// RocksDB (feature `rocksdb`)
    Rocksdb,
    /// LMDB (feature `lmdb`)
    Lmdb,
    /// redb (feature `redb`)
    Redb,
    /// fjall (feature `fjall`)
    Fjall,
}

impl EngineKind {
    /// Returns the name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EngineKind::Embank => "embank",
            EngineKind::EmbankGet => "embank-get",
            EngineKind::EmbankClock => "embank-clock",
            EngineKind::EmbankLease => "embank-lease",
            EngineKind::Map => "map",
            EngineKind::Rocksdb => "rocksdb",
            EngineKind::Lmdb => "lmdb",
            EngineKind::Redb => "redb",
            EngineKind::Fjall => "fjall",
        }
    }

    /// Returns the reason why the store cannot scan in key order. `None` if it can.
    pub(crate) fn no_scan(self) -> Option<&'static str> {
        match self {
            EngineKind::Embank
            | EngineKind::EmbankGet
            | EngineKind::EmbankClock
            | EngineKind::EmbankLease => Some(
                "Embank is a hash-indexed store: rows have no order by key, so it has no range scan",
            ),
            EngineKind::Map => Some("a hash map keeps no order of keys"),
            _ => None,
        }
    }

    /// Returns true if the store's gets return leases and wait for the staleness bound.
    pub(crate) fn takes_leases(self) -> bool {
        self == EngineKind::EmbankLease
    }

    /// Returns true if a later process can open the loaded store.
    pub(crate) fn keeps_rows(self) -> bool {
        self != EngineKind::Map
    }

    /// Checks that the store can hold values of this length.
    ///
    /// # Errors
    /// Returns an error with the store's reason.
    pub(crate) fn ensure_value_bytes(self, value_bytes: usize) -> Result<()> {
        ensure!(
            self != EngineKind::EmbankLease || value_bytes.is_multiple_of(size_of::<f32>()),
            "--value-size {value_bytes}: a row of {} has values of f32, so its size is a multiple of {}",
            self.name(),
            size_of::<f32>()
        );
        Ok(())
    }

    /// Checks that this program was built with the store.
    ///
    /// # Errors
    /// Returns an error that names the missing feature of the build.
    pub(crate) fn ensure_built(self) -> Result<()> {
        let optional = [
            (EngineKind::Rocksdb, cfg!(feature = "rocksdb")),
            (EngineKind::Lmdb, cfg!(feature = "lmdb")),
            (EngineKind::Redb, cfg!(feature = "redb")),
            (EngineKind::Fjall, cfg!(feature = "fjall")),
        ];
        let built = !optional.contains(&(self, false));
        ensure!(
            built,
            "this program was built without {0}; build it with `--features {0}`, or `--features peers` for \
             all of them (docs/ycsb.md says what they need)",
            self.name()
        );
        Ok(())
    }

    /// Opens the store.
    ///
    /// # Errors
    /// Returns an error if this program was built without the store, and any error of the store.
    pub(crate) fn open(self, settings: &Settings) -> Result<Box<dyn Engine>> {
        match self {
            EngineKind::Embank => embank::open(settings, embank::Use::Peek),
            EngineKind::EmbankGet => embank::open(settings, embank::Use::Get),
            EngineKind::EmbankClock => embank::open(settings, embank::Use::Clock),
            EngineKind::EmbankLease => leases::open(settings),
            EngineKind::Map => map::open(settings),
            #[cfg(feature = "rocksdb")]
            EngineKind::Rocksdb => rocksdb::open(settings),
            #[cfg(feature = "lmdb")]
            EngineKind::Lmdb => lmdb::open(settings),
            #[cfg(feature = "redb")]
            EngineKind::Redb => redb::open(settings),
            #[cfg(feature = "fjall")]
            EngineKind::Fjall => fjall::open(settings),
            #[expect(clippy::allow_attributes, reason = "reached unless all features are on")]
            #[allow(unreachable_patterns)]
            missing => {
                missing.ensure_built()?;
                bail!("{} has no way to open", missing.name())
            }
        }
    }
}
