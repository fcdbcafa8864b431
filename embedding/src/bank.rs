//! Banks: a directory with many tables under one memory budget.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use embank_kv::{DeviceChoice, Recovered, Store, StoreOptions};
use parking_lot::Mutex;

use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::lookahead::{self, Lookahead};
use crate::staleness::deadline_after;
use crate::stats::BankStats;
use crate::table::{Table, TableShared};

/// How to open a bank.
///
/// # Examples
/// ```
/// use embank::BankOptions;
///
/// let options = BankOptions { memory_budget_bytes: 64 << 20, ..Default::default() };
/// assert_eq!(options.checkpoints_kept, 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BankOptions {
    /// Memory for everything the bank keeps: rows, index, buffers and the lookahead queue, in bytes.
    /// Default: 1 GiB. The slices that callers pass in and get filled are theirs.
    pub memory_budget_bytes: u64,
    /// Default: `io_uring` where the system grants it, else a pool of threads.
    pub device: DeviceChoice,
    /// How many of the newest checkpoints stay. Default: 2.
    pub checkpoints_kept: usize,
    /// The most keys that looking ahead may have pending; 0 turns it off. Default: `None`, what 1/32 of
    /// the budget holds (some 30,000 keys per MiB of that share).
    pub lookahead_queue_keys: Option<usize>,
    /// How long a Get waits for a staleness bound before it fails. Default: 60 s.
    pub wait_timeout: Duration,
}

impl Default for BankOptions {
    fn default() -> Self {
        Self {
            memory_budget_bytes: 1 << 30,
            device: DeviceChoice::Auto,
            checkpoints_kept: 2,
            lookahead_queue_keys: None,
            wait_timeout: Duration::from_secs(60),
        }
    }
}

/// A table's name and settings.
///
/// # Examples
/// See [`Bank::tables`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TableInfo {
    /// The table's name.
    pub name: String,
    /// Its settings as they are now.
    pub config: TableConfig,
}

/// An open bank. Cloning it is cheap; the bank closes when the last handle of it, of its tables and of
/// their leases is gone. Closing writes no checkpoint.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("bank");
/// use embank::{Bank, BankOptions, TableConfig};
///
/// let bank = Bank::open(&path, BankOptions::default())?;
/// bank.table("user", TableConfig::new(2))?.put(&[1], &[0.5, 1.5])?;
/// bank.checkpoint(b"step 1")?;
/// drop(bank);
///
/// let bank = Bank::open(&path, BankOptions::default())?;
/// assert_eq!(bank.recovered().unwrap().blob, b"step 1");
/// assert_eq!(bank.open_table("user")?.contains(&[1, 2])?, [true, false]);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Clone)]
pub struct Bank {
    shared: Arc<BankShared>,
}

impl fmt::Debug for Bank {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Bank").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// What all handles of a bank share.
#[derive(Debug)]
pub(crate) struct BankShared {
    // Before the store: dropping it stops the worker that uses the store.
    pub(crate) lookahead: Lookahead,
    pub(crate) store: Arc<Store>,
    pub(crate) wait_timeout: Duration,
    memory_budget_bytes: u64,
    tables: Mutex<BTreeMap<String, Arc<TableShared>>>,
}

impl Bank {
    /// Opens the bank in the directory `path`, or creates it there. An existing bank comes back as its
    /// newest completed checkpoint left it; what was written after that is gone.
    ///
    /// # Errors
    /// The store's, among them [`Locked`](embank_kv::Error::Locked) by another process,
    /// [`BudgetTooSmall`](embank_kv::Error::BudgetTooSmall) and [`Damaged`](embank_kv::Error::Damaged);
    /// [`Error::UnreadableTable`].
    pub fn open(path: impl AsRef<Path>, options: BankOptions) -> Result<Self> {
        let budget = options.memory_budget_bytes;
        let queue_keys =
            options.lookahead_queue_keys.unwrap_or_else(|| lookahead::capacity_for_budget(budget));
        let queue_bytes = lookahead::memory_bytes(queue_keys);
        let store_options = StoreOptions {
            memory_budget_bytes: budget.saturating_sub(queue_bytes),
            device: options.device,
            checkpoints_kept: options.checkpoints_kept,
            ..StoreOptions::default()
        };
        let store = Store::open(path.as_ref(), &store_options)
            .map_err(|error| in_terms_of_the_bank(error, &options, queue_bytes))?;
        let tables = read_tables(&store)?;
        let store = Arc::new(store);
        let shared = BankShared {
            lookahead: Lookahead::new(Arc::clone(&store), queue_keys),
            store,
            wait_timeout: options.wait_timeout,
            memory_budget_bytes: budget,
            tables: Mutex::new(tables),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Opens the table `name`, or creates it. The learning rate, eps and staleness bound of `config` hold
    /// for all handles of the table from now on; the rest must be as it was created. A new table is
    /// durable with the next checkpoint.
    ///
    /// # Errors
    /// [`Error::ConfigMismatch`], [`Error::InvalidConfig`], or a failure of the store.
    pub fn table(&self, name: &str, config: TableConfig) -> Result<Table> {
        config.validate(name)?;
        let mut tables = self.shared.tables.lock();
        let shared = if let Some(shared) = tables.get(name) {
            shared.reopen(&config)?;
            Arc::clone(shared)
        } else {
            let store = &self.shared.store;
            let id = store.create_table(name, config.value_bytes(), &config.to_descriptor())?;
            let shared = Arc::new(TableShared::new(id, name, config));
            tables.insert(name.to_owned(), Arc::clone(&shared));
            shared
        };
        Ok(Table { bank: Arc::clone(&self.shared), shared })
    }

    /// Opens the table `name` as it is. Its learning rate, eps and staleness bound are those of its
    /// creation, unless this process has set others.
    ///
    /// # Errors
    /// [`NoSuchTable`](embank_kv::Error::NoSuchTable).
    pub fn open_table(&self, name: &str) -> Result<Table> {
        match self.shared.tables.lock().get(name) {
            Some(shared) => {
                Ok(Table { bank: Arc::clone(&self.shared), shared: Arc::clone(shared) })
            }
            None => Err(embank_kv::Error::NoSuchTable(format!("{name:?}")).into()),
        }
    }

    /// The bank's tables, by name.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
    /// bank.table("user", embank::TableConfig::new(2))?;
    /// assert_eq!(bank.tables()[0].name, "user");
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn tables(&self) -> Vec<TableInfo> {
        let tables = self.shared.tables.lock();
        let info = |shared: &Arc<TableShared>| TableInfo {
            name: shared.name.clone(),
            config: shared.config(),
        };
        tables.values().map(info).collect()
    }

    /// Makes all tables as they are, and `blob`, durable together, and returns the checkpoint's number.
    /// The blob is the caller's own: step number, dense weights, place in the data.
    ///
    /// When the call returns, everything is on stable storage; a crash at any later moment recovers at
    /// least this checkpoint. Staleness counts are not part of it.
    ///
    /// # Errors
    /// A failure of the store. The checkpoint before stays good.
    pub fn checkpoint(&self, blob: &[u8]) -> Result<u64> {
        Ok(self.shared.store.checkpoint(blob)?)
    }

    /// The checkpoint that opening the bank recovered, with its blob; `None` for a bank without one.
    #[must_use]
    pub fn recovered(&self) -> Option<&Recovered> {
        self.shared.store.recovered()
    }

    /// The bank's counters.
    #[must_use]
    pub fn stats(&self) -> BankStats {
        let store = self.shared.store.stats();
        let lookahead = self.shared.lookahead.stats(&store);
        let memory_budget_bytes = self.shared.memory_budget_bytes;
        let mut stats = BankStats { store, lookahead, memory_budget_bytes, ..Default::default() };
        for table in self.shared.tables.lock().values() {
            stats.waits += table.counters.waits.get();
            stats.wait_us += table.counters.wait_us.get();
            stats.timeouts += table.counters.timeouts.get();
            stats.release_failures += table.counters.release_failures.get();
        }
        stats
    }

    /// Forgets what lookahead has queued and not begun to read; returns how many keys that were.
    pub fn cancel_lookahead(&self) -> usize {
        self.shared.lookahead.cancel()
    }

    /// Waits until nothing is pending in the lookahead queue; false if `timeout` passes first. For tests
    /// and measurements: training need not wait.
    pub fn wait_lookahead(&self, timeout: Duration) -> bool {
        self.shared.lookahead.wait_idle(deadline_after(timeout))
    }

    /// The bank's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.shared.store.path()
    }
}

fn read_tables(store: &Store) -> Result<BTreeMap<String, Arc<TableShared>>> {
    let mut tables = BTreeMap::new();
    for info in store.tables() {
        let config = TableConfig::from_descriptor(&info.name, &info.descriptor)?;
        if config.value_bytes() != info.value_bytes {
            return Err(Error::UnreadableTable {
                table: info.name,
                reason: format!(
                    "its rows are {} bytes, its settings ask for {}",
                    info.value_bytes,
                    config.value_bytes()
                ),
            });
        }
        let shared = Arc::new(TableShared::new(info.id, &info.name, config));
        tables.insert(info.name, shared);
    }
    Ok(tables)
}

/// The store knows only its part of the budget; an error must name the whole.
fn in_terms_of_the_bank(
    error: embank_kv::Error,
    options: &BankOptions,
    queue_bytes: u64,
) -> embank_kv::Error {
    match error {
        embank_kv::Error::BudgetTooSmall { needed_bytes, what, .. } => {
            // The queue's share grows with the budget unless its size was given.
            let needed_bytes = match options.lookahead_queue_keys {
                Some(_) => needed_bytes.saturating_add(queue_bytes),
                None => lookahead::budget_for(needed_bytes),
            };
            let budget_bytes = options.memory_budget_bytes;
            embank_kv::Error::BudgetTooSmall { budget_bytes, needed_bytes, what }
        }
        other => other,
    }
}
