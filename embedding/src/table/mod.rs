//! Tables: batches of rows in and out.

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
pub(crate) mod scan;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod updates;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use embank_kv::{CallState, Clock, Operation, Outcome, TableId};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::row::config::TableConfig;
use crate::stats::TableStats;
use crate::stats::lease_info::LeaseInfo;
use crate::table::shared::TableShared;
use crate::vocabulary::registry::Vocabularies;

/// A handle to one table of a bank. Cloning it is cheap; all handles of a table are one table.
///
/// A batch is a slice of keys and a slice of f32 with one row of `dim` values per key, row after
/// row. Batches of any length work, an empty one too; keys may repeat. What a call writes is in
/// memory when it returns; [`Bank::checkpoint`](crate::Bank::checkpoint) makes it durable.
///
/// In the source, Gets and their waits stand in `lease/`, exports and imports in `files/`, and the
/// other methods in the files of `table/`: `settings`, `peek`, `bags`, `updates`, `prefetch`,
/// `scan`, `deletion`, `eviction`, `admission`, `counts`, `ids`.
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
    /// The bank's vocabularies, and its context.
    pub(crate) vocabularies: Arc<Vocabularies>,
    pub(crate) shared: Arc<TableShared>,
    /// How long its Gets wait for rows.
    pub(crate) wait_timeout: Duration,
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

    /// The table's number in its bank. Once the table was dropped and its records and checkpoints
    /// are gone, another table may get the number. [`id`](Self::id) tells the two apart.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.shared.id.number()
    }

    /// Identifies the table as long as the bank is open: no other table has this id, also if it has
    /// the name or the number of this one after a drop.
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

    /// True if no other table has got this one's number. If another table has it, no roll back
    /// brings this table back, because no checkpoint with it is left.
    #[must_use]
    pub fn has_its_number(&self) -> bool {
        self.context().store.has_its_number(self.shared.id)
    }

    /// Values per row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.shared.layout.dim
    }

    /// The number of rows, without a scan: the store counts them. Exact while no other thread makes
    /// or deletes rows of the table. In a bank that is open to read only it is the number in
    /// the checkpoint.
    ///
    /// # Errors
    /// [`TableDropped`](crate::Error::TableDropped).
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

    /// The table's settings as they are now.
    #[must_use]
    pub fn config(&self) -> TableConfig {
        self.shared.config()
    }

    /// The table's counters.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        self.shared.counters.snapshot()
    }

    /// The staleness bound; `None` is asynchronous.
    #[must_use]
    pub fn staleness_bound(&self) -> Option<u32> {
        self.shared.bound()
    }

    /// The staleness clock of a row: Gets whose update has not come yet. `None` if it is missing.
    ///
    /// # Errors
    /// A failure of the store.
    pub fn outstanding(&self, key: u64) -> Result<Option<u32>> {
        let clock = self.context().store.clock_of(self.shared.id, key);
        clock.map_err(|error| self.in_terms_of_the_table(error))
    }

    /// The leases of the table that are out, the oldest first: whose counts its rows' clocks show.
    #[must_use]
    pub fn outstanding_leases(&self) -> Vec<LeaseInfo> {
        self.shared.leases.list(self.name(), None, Instant::now())
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

    /// As [`execute`](Self::execute), as a part of a call that sees one `state`.
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

    /// The store knows tables by id; a handle's id is refused only once the table was dropped.
    #[cold]
    pub(crate) fn in_terms_of_the_table(&self, error: impl Into<Error>) -> Error {
        match error.into() {
            Error::NoSuchTable(_) => Error::TableDropped { table: self.name().to_owned() },
            other => other,
        }
    }

    /// Refuses a slice that does not hold `keys` rows.
    pub(crate) fn check_shape(&self, what: &'static str, keys: usize, found: usize) -> Result<()> {
        let expected = keys * self.dim();
        if found == expected {
            return Ok(());
        }
        Err(Error::ShapeMismatch { table: self.name().to_owned(), what, expected, found })
    }
}
