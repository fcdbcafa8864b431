//! The tables of a bank: makes, opens, lists and drops them.

use std::collections::BTreeMap;
use std::sync::Arc;

use embank_kv::locks::Mutex;
use embank_kv::{NewTable, Store, Width};

use crate::bank::Bank;
use crate::error::{Error, Result, StoreError};
use crate::row::admission::Admission;
use crate::row::config::TableConfig;
use crate::row::descriptor::is_counts_descriptor;
use crate::row::times::{read_time, table_of_times};
use crate::table::Table;
use crate::table::count_tables::{Generations, create_with_counts};
use crate::table::shared::TableShared;
use crate::vocabulary::registry::Vocabularies;
use crate::vocabulary::{is_name_of_a_part, is_of_a_vocabulary};

/// A table's name and settings.
///
/// # Examples
/// See [`Bank::tables`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TableInfo {
    /// The table's name.
    pub name: String,
    /// The table's present settings.
    pub config: TableConfig,
}

/// Largest number of tables that the error for an unknown name lists.
const NAMES_SHOWN_MAX: usize = 20;

/// The tables of an open bank by name.
pub(crate) type Tables = Mutex<BTreeMap<String, Arc<TableShared>>>;

impl Bank {
    /// Opens the table `name`, or creates it. The learning rate, eps and staleness bound of
    /// `config` apply to all handles of the table from now on. All other settings must equal those
    /// of the table's creation. The next checkpoint makes a new table durable.
    ///
    /// Names that end with ` (vocabulary)`, or like ` (vocabulary, ids 0)`, are reserved for the
    /// internal tables of vocabularies.
    ///
    /// # Errors
    /// [`Error::ConfigMismatch`]; [`Error::InvalidConfig`], also for a reserved name;
    /// [`Error::NoSuchVocabulary`]; [`Error::OtherVocabulary`]; or a failure of the store.
    pub fn table(&self, name: &str, mut config: TableConfig) -> Result<Table> {
        config.validate(name)?;
        let mut tables = self.shared.tables.lock();
        let shared = if let Some(shared) = tables.get(name) {
            self.check_vocabulary(shared)?;
            if let Some(vocabulary) = &config.vocabulary {
                self.shared.vocabularies.check(name, vocabulary)?;
            }
            shared.reopen(&config)?;
            // The staleness bound may have risen, so waiting Gets check it again.
            self.context().store.wake_waiters();
            Arc::clone(shared)
        } else {
            if is_name_of_a_part(name) {
                let what =
                    "names that end so are those of vocabularies' own tables; take another one";
                let table = name.to_owned();
                let what = what.to_owned();
                return Err(Error::InvalidConfig { table, what });
            }
            let mut ids = None;
            if let Some(vocabulary) = &mut config.vocabulary {
                let found = self.shared.vocabularies.check(name, vocabulary)?;
                vocabulary.identity = Some(found.identity());
                ids = Some(found);
            }
            let context = self.context();
            let store = &context.store;
            let _side_tables = context.side_tables.lock();
            let new = NewTable {
                name,
                width: Width::Fixed,
                value_bytes: config.value_bytes(),
                descriptor: &config.to_descriptor(),
            };
            let (id, counts) = create_with_counts(store, new, config.admission)?;
            let shared = Arc::new(TableShared::new(id, name, config, counts));
            if shared.set_tracker().is_some() {
                let forgotten = context.times.forget(store, id.number());
                forgotten.inspect_err(|_| {
                    // No handle of the new table exists yet, so it can be dropped. If this drop
                    // fails too, the next open lists the table.
                    let _ = store.drop_tables(&shared.store_tables());
                })?;
            }
            if let Some(ids) = &ids {
                shared.check_ids_of(ids);
            }
            tables.insert(name.to_owned(), Arc::clone(&shared));
            shared
        };
        Ok(self.handle(&shared))
    }

    fn handle(&self, shared: &Arc<TableShared>) -> Table {
        Table { vocabularies: Arc::clone(&self.shared.vocabularies), shared: Arc::clone(shared) }
    }

    /// Opens the table `name` with its present settings. The learning rate, eps and staleness bound
    /// have the values of the table's creation, unless this process has set others.
    ///
    /// # Errors
    /// [`NoSuchTable`](crate::StoreError::NoSuchTable). [`Error::OtherVocabulary`] if the table's
    /// keys are ids of a vocabulary that was dropped or renumbered.
    pub fn open_table(&self, name: &str) -> Result<Table> {
        let tables = self.shared.tables.lock();
        let Some(shared) = tables.get(name) else { return Err(self.no_such_table(name, &tables)) };
        self.check_vocabulary(shared)?;
        Ok(self.handle(shared))
    }

    fn check_vocabulary(&self, table: &TableShared) -> Result<()> {
        match table.vocabulary() {
            Some(vocabulary) => {
                table.check_ids_of(&self.shared.vocabularies.check(&table.name, vocabulary)?);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Makes the error for a name that is not in `tables`, the bank's tables. The error lists up to
    /// [`NAMES_SHOWN_MAX`] names of `tables`.
    #[cold]
    fn no_such_table(&self, name: &str, tables: &BTreeMap<String, Arc<TableShared>>) -> Error {
        let shown = tables.keys().take(NAMES_SHOWN_MAX);
        let mut has: Vec<_> = shown.map(|name| format!("{name:?}")).collect();
        if tables.is_empty() {
            has.push("no table".to_owned());
        } else if tables.len() > has.len() {
            has.push(format!("and {} more", tables.len() - has.len()));
        }
        let has = has.join(", ");
        let place = match self.reading() {
            Some(checkpoint) => format!("checkpoint {} of this bank", checkpoint.checkpoint),
            None => "this bank".to_owned(),
        };
        StoreError::NoSuchTable(format!("{name:?} in {place}, which has {has}")).into()
    }

    /// Opens a table like [`open_table`](Self::open_table), but also if its vocabulary was dropped,
    /// replaced or renumbered. This serves inspection and export. After a renumbering or
    /// replacement, the keys are ids of the old numbering. The table then accepts every key.
    ///
    /// # Errors
    /// [`NoSuchTable`](crate::StoreError::NoSuchTable) if the bank has no such table.
    pub fn open_table_unchecked(&self, name: &str) -> Result<Table> {
        let tables = self.shared.tables.lock();
        let Some(shared) = tables.get(name) else { return Err(self.no_such_table(name, &tables)) };
        if self.check_vocabulary(shared).is_err() {
            shared.take_every_key();
        }
        Ok(self.handle(shared))
    }

    /// Drops the table `name`. Later calls on the table's handles and leases fail with
    /// [`Error::TableDropped`], and so do Gets that wait for its rows. The call cancels the table's
    /// keys in the lookahead queue. Batches that other threads have begun may complete. Dropping or
    /// releasing a lease of the table is no error.
    ///
    /// The next checkpoint makes the drop durable. A crash before that brings the whole table back.
    /// Compaction frees the table's space once no kept checkpoint needs it. [`Bank::table`] can
    /// make a new, independent table of this name at once.
    ///
    /// # Errors
    /// [`NoSuchTable`](crate::StoreError::NoSuchTable), or
    /// [`Poisoned`](crate::StoreError::Poisoned) after a failed write. In the second case the table
    /// still exists.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Error, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let old = bank.table("user", TableConfig::new(2))?;
    /// old.put(&[1], &[0.5, 1.5])?;
    /// bank.drop_table("user")?;
    /// assert!(matches!(old.contains(&[1]), Err(Error::TableDropped { .. })));
    ///
    /// let new = bank.table("user", TableConfig::new(8))?;
    /// assert_eq!(new.contains(&[1])?, [false]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn drop_table(&self, name: &str) -> Result<()> {
        // Held throughout, so no other thread makes a table of this name meanwhile.
        let mut tables = self.shared.tables.lock();
        let Some(shared) = tables.get(name) else { return Err(self.no_such_table(name, &tables)) };
        let context = self.context();
        let side_tables = context.side_tables.lock();
        context.store.drop_tables(&shared.store_tables())?;
        drop(side_tables);
        let time_forgotten = context.times.forget(&context.store, shared.id.number());
        // Called after the drop in the store: a later lookahead then sees that the table is gone.
        context.lookahead.forget(shared.id);
        self.shared.staleness_of_dropped.lock().add(&shared.counters.staleness());
        tables.remove(name);
        time_forgotten
    }

    /// Test hook: limits the number of tables that exist at one time to `max`, including tables of
    /// vocabularies and counts.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    pub fn limit_table_numbers(&self, max: u16) {
        self.context().store.limit_table_numbers(max);
    }

    /// Lists the bank's tables, sorted by name.
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
}

/// Marks each table whose vocabulary has another numbering than the table was made for. Calls on
/// the table's handles then fail. Must be called after vocabularies may have changed.
pub(crate) fn refuse_other_numberings(tables: &Tables, vocabularies: &Vocabularies) {
    for table in tables.lock().values() {
        if let Some(wanted) = table.vocabulary() {
            table.note_numbering(vocabularies.check(&table.name, wanted).is_err());
        }
    }
}

pub(crate) fn read_tables(store: &Store) -> Result<BTreeMap<String, Arc<TableShared>>> {
    let mut tables = BTreeMap::new();
    let infos = store.tables();
    let times = table_of_times(store);
    let (counts, infos): (Vec<_>, Vec<_>) =
        infos.into_iter().partition(|info| is_counts_descriptor(&info.descriptor));
    let (mut generations, mut left) = Generations::find(&counts);
    for info in infos.into_iter().filter(|info| !is_of_a_vocabulary(&info.descriptor)) {
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
        let is_counted = config.admission != Admission::Always;
        let counts = is_counted.then(|| generations.remove(info.name.as_str())).flatten();
        if matches!(config.admission, Admission::AfterGets(_)) && counts.is_none() {
            let reason = "the table of its counts before admission is missing".to_owned();
            return Err(Error::UnreadableTable { table: info.name, reason });
        }
        let shared = Arc::new(TableShared::new(info.id, &info.name, config, counts));
        if let (Some(tracker), Some(times)) = (shared.set_tracker(), times)
            && let Some(time) = read_time(store, times, info.id.number())?
        {
            tracker.set(time);
        }
        tables.insert(info.name, shared);
    }
    // Versions of Embank that dropped a table and its counts one after the other have left counts
    // without a table, if a checkpoint was taken in between.
    left.extend(generations.into_values().flat_map(Generations::tables));
    if !store.is_read_only() {
        store.drop_tables(&left)?;
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::*;
    use crate::optimizer::Optimizer;
    use crate::options::BankOptions;
    use crate::row::tracking::Tracking;

    fn opened(dir: &std::path::Path) -> Bank {
        let options = BankOptions { memory_budget_bytes: 2 << 20, ..BankOptions::default() };
        Bank::open(dir, options).unwrap()
    }

    fn configs() -> [TableConfig; 3] {
        let config = TableConfig::new(2).optimizer(Optimizer::sgd(1.0));
        let tracked = config.clone().tracking(Tracking::SetTime);
        [config, tracked.clone().admission(Admission::AfterGets(1)), tracked]
    }

    /// Shows that the bank holds no state of a dropped table once the program has dropped its
    /// handles and its leases.
    #[test]
    fn a_dropped_table_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let bank = opened(dir.path());
        for config in configs() {
            let table = bank.table("t", config).unwrap();
            let lease = table.get(&[1, 2], &mut [0.0; 4]).unwrap();
            table.lookahead(&[1, 2, 3]).unwrap();
            let prefetch = table.prefetch(&[1]).unwrap();
            bank.drop_table("t").unwrap();
            assert!(bank.wait_lookahead(Duration::from_secs(60)));
            let state = Arc::downgrade(&table.shared);
            drop((table, prefetch));
            assert!(state.upgrade().is_some(), "the lease holds it");
            drop(lease);
            assert!(is_gone(&state));
        }
    }

    /// Waits until the lookahead thread has let go of a prefetch that it was told to end.
    fn is_gone(state: &Weak<TableShared>) -> bool {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while state.upgrade().is_some() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        state.upgrade().is_none()
    }
}
