//! Tables: reading and writing batches of rows.

pub(crate) mod admission;
pub(crate) mod bags;
pub(crate) mod count_tables;
pub(crate) mod counts;
pub(crate) mod deletion;
pub(crate) mod eviction;
pub(crate) mod gate;
pub(crate) mod gradients;
pub(crate) mod ids;
pub(crate) mod operations;
pub(crate) mod parts;
pub(crate) mod peek;
pub(crate) mod prefetch;
pub(crate) mod progress;
pub(crate) mod read_modify_write;
pub(crate) mod scan;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod updates;

use std::fmt;
use std::sync::Arc;

use embank_kv::{CallState, Clock, Operation, Outcome, TableId, check_batch};

use crate::context::Context;
use crate::error::{Error, Result, StoreError};
use crate::row::config::TableConfig;
use crate::stats::TableStats;
use crate::stats::lease_info::LeaseInfo;
use crate::table::shared::TableShared;
use crate::vocabulary::registry::Vocabularies;

/// A handle to one table of a bank. Clones are cheap, and all handles refer to the same table.
///
/// A batch is a slice of keys and a slice of f32 with `dim` values per key, row after row. A batch
/// may be empty or of any length, and keys may repeat. Written rows are in memory when a call
/// returns; [`Bank::checkpoint`](crate::Bank::checkpoint) makes them durable.
///
/// In the source, `lease/` has the Gets and their waits, `files/` has exports and imports, and
/// `table/` has the other methods in its files: `settings`, `peek`, `bags`, `updates`,
/// `read_modify_write`, `prefetch`, `scan`, `deletion`, `eviction`, `admission`, `counts`, `ids`.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Missing, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("user", TableConfig::new(2))?;
/// table.put(&[1, 2], &[0.5, 1.5, 2.5, 3.5])?;
/// let mut rows = [0.0; 4];
/// table.peek(&[2, 1], &mut rows, Missing::Error)?;
/// assert_eq!(rows, [2.5, 3.5, 0.5, 1.5]);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Clone)]
pub struct Table {
    /// The vocabularies of the bank, and through them the bank's shared context.
    pub(crate) vocabularies: Arc<Vocabularies>,
    pub(crate) shared: Arc<TableShared>,
}

impl fmt::Debug for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Table")
            .field("name", &self.name())
            .field("config", &self.config())
            .finish()
    }
}

impl Table {
    pub(crate) fn context(&self) -> &Context {
        &self.vocabularies.context
    }

    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The table's number in its bank. After the table was dropped and its records and checkpoints
    /// are gone, a new table may get the same number. [`id`](Self::id) tells the two tables apart.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.shared.id.number()
    }

    /// Identifies the table while the bank is open. No other table has this id, even if it reuses
    /// the name or number of a dropped table.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let old = bank.table("user", TableConfig::new(2))?;
    /// bank.drop_table("user")?;
    /// assert_ne!(bank.table("user", TableConfig::new(2))?.id(), old.id());
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> TableId {
        self.shared.id
    }

    /// True if both handles refer to the same table of the same open bank.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let user = bank.table("user", TableConfig::new(2))?;
    /// assert!(user.is_same(&bank.open_table("user")?));
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// True while no other table has reused this table's number. Once another table has reused it,
    /// no rollback can restore this table, because no checkpoint contains this table any more.
    #[must_use]
    pub fn has_its_number(&self) -> bool {
        self.context().store.has_its_number(self.shared.id)
    }

    /// Number of values in a row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.shared.layout.dim
    }

    /// Number of rows. The store counts them, so no scan is needed. The number is exact while no
    /// other thread inserts or deletes rows of the table. In a read-only bank it is the number of
    /// rows in the checkpoint. After [blind puts](Self::put_blind) in a bank with two tiers, it may
    /// be wrong until [`Bank::compact`](crate::Bank::compact) has counted the rows, with the
    /// conditions and the cost that it names.
    ///
    /// # Errors
    /// [`TableDropped`](crate::Error::TableDropped) if the table was dropped.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1))?;
    /// table.put(&[1, 2, 1], &[0.5, 1.5, 2.5])?;
    /// assert_eq!(table.rows()?, 2);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn rows(&self) -> Result<u64> {
        let rows = self.context().store.rows(self.shared.id);
        rows.map_err(|error| self.in_terms_of_the_table(error))
    }

    /// The table's present settings.
    #[must_use]
    pub fn config(&self) -> TableConfig {
        self.shared.config()
    }

    /// The table's counters.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        self.shared.counters.snapshot()
    }

    /// The staleness bound. `None` means no bound (asynchronous training).
    #[must_use]
    pub fn staleness_bound(&self) -> Option<u32> {
        self.shared.bound()
    }

    /// Returns the row's staleness clock: the number of Gets whose update has not arrived. `None`
    /// if the row is missing.
    ///
    /// # Errors
    /// A failure of the store.
    pub fn outstanding(&self, key: u64) -> Result<Option<u32>> {
        let clock = self.context().store.clock_of(self.shared.id, key);
        clock.map_err(|error| self.in_terms_of_the_table(error))
    }

    /// Lists the outstanding leases of the table, oldest first. The staleness clocks count these
    /// leases.
    #[must_use]
    pub fn outstanding_leases(&self) -> Vec<LeaseInfo> {
        self.shared.leases.list(self.name(), None)
    }

    pub(crate) fn execute<O: Operation>(
        &self,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        if let Some(tracker) = self.shared.layout.tracker() {
            tracker.refresh();
        }
        let outcome = self.context().store.execute(self.shared.id, keys, clock, operation);
        outcome.map_err(|error| self.in_terms_of_the_table(error))
    }

    /// Executes like [`execute`](Self::execute), but in the given `state` of the store, which the
    /// caller took when its own call began.
    pub(crate) fn execute_in<O: Operation>(
        &self,
        state: &CallState<'_>,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        if let Some(tracker) = self.shared.layout.tracker() {
            tracker.refresh();
        }
        let outcome = state.execute(self.shared.id, keys, clock, operation);
        outcome.map_err(|error| self.in_terms_of_the_table(error))
    }

    /// Puts the table's name into an error of the store, which knows only table ids. If the store
    /// does not know the id of this handle, the table was dropped.
    #[cold]
    pub(crate) fn in_terms_of_the_table(&self, error: impl Into<Error>) -> Error {
        match error.into() {
            Error::Store(StoreError::NoSuchTable(_)) => {
                Error::TableDropped { table: self.name().to_owned() }
            }
            other => other,
        }
    }

    /// Fails unless a slice of `found` values holds exactly `keys` rows, and `keys` keys fit a
    /// batch.
    pub(crate) fn check_shape(&self, what: &'static str, keys: usize, found: usize) -> Result<()> {
        check_batch(keys)?;
        let expected = keys * self.dim();
        if found == expected {
            return Ok(());
        }
        Err(Error::ShapeMismatch { table: self.name().to_owned(), what, expected, found })
    }
}
