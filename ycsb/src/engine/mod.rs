//! The stores that are compared, behind one trait.
//!
//! A store opens as an [`Engine`]; each thread works through a [`Session`] of its own. A batch goes
//! to the store in whatever way the store has for batches (Embank executes it as one, RocksDB has
//! MultiGet and WriteBatch, the B-trees one transaction); a batch of one takes the store's way for
//! single operations. Everybody hands values out as copies in one buffer, which is what a program
//! that computes on a batch of rows needs.

pub(crate) mod embank;
#[cfg(feature = "fjall")]
pub(crate) mod fjall;
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

use crate::keyspace::KeyOrder;

/// A name and a number or a setting.
pub(crate) type Named<T> = Vec<(String, T)>;

/// What every store is opened with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Where it may write; the store's own.
    pub(crate) directory: PathBuf,
    /// Bytes of every value.
    pub(crate) value_bytes: usize,
    /// Rows that the load inserts.
    pub(crate) rows: u64,
    /// How a row's number becomes its key.
    pub(crate) key_order: KeyOrder,
    /// Threads of the load.
    pub(crate) load_threads: usize,
    /// Memory that it may use for caches, tables and buffers together.
    pub(crate) memory_budget_bytes: u64,
    /// True to open an existing store, false to make a new one.
    pub(crate) reopen: bool,
}

/// One store, shared by all threads.
pub(crate) trait Engine: Send + Sync {
    /// Its whole configuration, as the report prints it.
    fn describe(&self) -> Named<String>;

    /// This thread's way in.
    ///
    /// # Errors
    /// What the store reports.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Whether a read-modify-write is one step, so that no addition gets lost among threads.
    fn atomic_rmw(&self) -> bool {
        false
    }

    /// Waits until work in the background (flushes, compactions) is done.
    ///
    /// # Errors
    /// What the store reports.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Makes everything so far durable, so that a later process can reopen it.
    ///
    /// # Errors
    /// What the store reports; a store without durability refuses.
    fn persist(&self) -> Result<()>;

    /// What the store counts, since it was opened.
    fn counters(&self) -> Named<u64> {
        Vec::new()
    }
}

/// A thread's way into a store. Every call is one batch; the values of a batch lie one after
/// another.
pub(crate) trait Session {
    /// Copies values out.
    ///
    /// # Errors
    /// A missing row; what the store reports.
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()>;

    /// Replaces the values of rows that exist.
    ///
    /// # Errors
    /// What the store reports.
    fn update(&mut self, keys: &[u64], values: &[u8]) -> Result<()>;

    /// Adds new rows.
    ///
    /// # Errors
    /// What the store reports.
    fn insert(&mut self, keys: &[u64], values: &[u8]) -> Result<()>;

    /// Takes every value through [`advance`](crate::content::advance). `values` is room for the
    /// batch.
    ///
    /// # Errors
    /// A missing or wrong row; what the store reports.
    fn read_modify_write(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()>;

    /// Shows up to `limit` rows with keys from `start` on, in order.
    ///
    /// # Errors
    /// What `each` or the store reports; a store that [`EngineKind::no_scan`] names.
    fn scan(
        &mut self,
        _start: u64,
        _limit: usize,
        _each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        bail!("this workload scans ranges of keys, and the store has no order of keys")
    }
}

/// Places of a batch in the order of their keys: what a sorted store walks through with the fewest
/// misses. Equal keys stay in their order, so that the last write wins.
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
    /// Embank; reads as peeks, read-modify-write in one step
    Embank,
    /// Embank as training uses it, without clocks: reads as gets, read-modify-write as get and put
    EmbankGet,
    /// As embank-get, with staleness clocks: a get acquires, a put releases, a read gives back
    EmbankClock,
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
    /// The name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EngineKind::Embank => "embank",
            EngineKind::EmbankGet => "embank-get",
            EngineKind::EmbankClock => "embank-clock",
            EngineKind::Map => "map",
            EngineKind::Rocksdb => "rocksdb",
            EngineKind::Lmdb => "lmdb",
            EngineKind::Redb => "redb",
            EngineKind::Fjall => "fjall",
        }
    }

    /// Why the store has no scan in the order of the keys; `None` if it has.
    pub(crate) fn no_scan(self) -> Option<&'static str> {
        match self {
            EngineKind::Embank | EngineKind::EmbankGet | EngineKind::EmbankClock => Some(
                "Embank is a hash-indexed store: rows have no order by key, so it has no range scan",
            ),
            EngineKind::Map => Some("a hash map keeps no order of keys"),
            _ => None,
        }
    }

    /// Whether a later process can open what was loaded.
    pub(crate) fn keeps_rows(self) -> bool {
        self != EngineKind::Map
    }

    /// Refuses a store that this program was built without.
    ///
    /// # Errors
    /// The store's feature was off; the text names it.
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
    /// A store that this program was built without; what the store reports.
    pub(crate) fn open(self, settings: &Settings) -> Result<Box<dyn Engine>> {
        match self {
            EngineKind::Embank => embank::open(settings, embank::Use::Peek),
            EngineKind::EmbankGet => embank::open(settings, embank::Use::Get),
            EngineKind::EmbankClock => embank::open(settings, embank::Use::Clock),
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
