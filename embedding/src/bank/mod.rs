//! Banks: a directory with many tables under one memory budget.

pub(crate) mod auto_depth;
pub(crate) mod checkpoints;
pub(crate) mod vocabularies;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use embank_kv::locks::Mutex;
use embank_kv::{
    Compacted, Recovered, SpaceHolder, StateId, Store, StoreOptions, memory_budget_warning,
};

use crate::context::{Budget, Context};
use crate::error::{Error, Result};
use crate::lookahead::{self, Lookahead};
use crate::options::BankOptions;
use crate::registry::deadline::{FAR_OFF, deadline_after};
use crate::row::admission::Admission;
use crate::row::config::TableConfig;
use crate::row::descriptor::is_counts_descriptor;
use crate::row::times::{Times, read_time, table_of_times};
use crate::stats::lease_info::LeaseInfo;
use crate::stats::seen::StalenessHistogram;
use crate::stats::unsaved::Unsaved;
use crate::stats::{BankStats, WaitCounters};
use crate::table::Table;
use crate::table::count_tables::{Generations, create_counts};
use crate::table::gate::Gate;
use crate::table::shared::TableShared;
use crate::vocabulary::registry::{Vocabularies, read_vocabularies};
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
    /// Its settings as they are now.
    pub config: TableConfig,
}

/// An open bank. Cloning it is cheap; the bank closes when the last handle of it, of its tables, and of
/// their leases and scans is gone. Closing writes no checkpoint; [`unsaved`](Bank::unsaved) says what it would lose.
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
    pub(crate) shared: Arc<BankShared>,
}

impl fmt::Debug for Bank {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Bank").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// What all handles of a bank share.
#[derive(Debug)]
pub(crate) struct BankShared {
    pub(crate) vocabularies: Arc<Vocabularies>,
    pub(crate) tables: Arc<Tables>,
    /// What dropped tables saw.
    staleness_of_dropped: Mutex<StalenessHistogram>,
    memory_budget_warning: Option<String>,
}

/// The tables of an open bank by name.
pub(crate) type Tables = Mutex<BTreeMap<String, Arc<TableShared>>>;

impl Bank {
    /// Opens the bank in the directory `path`, or creates it there. An existing bank comes back as its
    /// newest completed checkpoint left it; what was written after that is gone.
    ///
    /// # Errors
    /// The store's, among them [`Locked`](embank_kv::Error::Locked) by another process,
    /// [`BudgetTooSmall`](embank_kv::Error::BudgetTooSmall), [`Damaged`](embank_kv::Error::Damaged) and
    /// [`InvalidArgument`](embank_kv::Error::InvalidArgument), which names the option that is out of its range;
    /// [`Error::UnreadableTable`].
    pub fn open(path: impl AsRef<Path>, options: BankOptions) -> Result<Self> {
        Self::open_by(options, |store_options| Store::open(path.as_ref(), store_options))
    }

    /// Opens the bank in the directory `path` to read only, at the checkpoint of that number or at the newest one,
    /// beside a process that writes it or none. Changes not a byte of it. Tables can be opened, peeked at and
    /// scanned; whatever would write, a Get for training too, fails with [`ReadOnly`](embank_kv::Error::ReadOnly).
    /// Lookahead does nothing. Of `options`, memory budget and device count.
    ///
    /// As long as the bank is at a checkpoint, the writer keeps that, and the disk space that it names.
    ///
    /// # Errors
    /// [`InvalidArgument`](embank_kv::Error::InvalidArgument) where there is no bank or no such checkpoint; else as
    /// [`open`](Self::open).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("bank");
    /// use embank::{Bank, BankOptions, Missing, TableConfig};
    ///
    /// let training = Bank::open(&path, BankOptions::default())?;
    /// training.table("user", TableConfig::new(2))?.put(&[1], &[0.5, 1.5])?;
    /// training.checkpoint(b"step 1")?;
    ///
    /// let serving = Bank::open_read_only(&path, BankOptions::default(), None)?;
    /// let users = serving.open_table("user")?;
    /// training.table("user", TableConfig::new(2))?.put(&[1], &[2.5, 3.5])?;
    /// training.checkpoint(b"step 2")?;
    /// let mut row = [0.0; 2];
    /// users.peek(&[1], &mut row, Missing::Error)?;
    /// assert_eq!(row, [0.5, 1.5]);
    /// serving.refresh()?;
    /// users.peek(&[1], &mut row, Missing::Error)?;
    /// assert_eq!(row, [2.5, 3.5]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn open_read_only(
        path: impl AsRef<Path>,
        options: BankOptions,
        checkpoint: Option<u64>,
    ) -> Result<Self> {
        // Nothing can be brought into memory that would be changed.
        let options = BankOptions { lookahead_queue_keys: Some(0), ..options };
        Self::open_by(options, |store_options| {
            Store::open_read_only(path.as_ref(), store_options, checkpoint)
        })
    }

    fn open_by(
        options: BankOptions,
        open: impl FnOnce(&StoreOptions) -> embank_kv::Result<Store>,
    ) -> Result<Self> {
        if options.lease_timeout == Some(Duration::ZERO) {
            let what = "lease_timeout must be longer than zero; None lets leases live for ever";
            return Err(embank_kv::Error::InvalidArgument(what.to_owned()).into());
        }
        let budget = Budget {
            bytes: options.memory_budget_bytes,
            lookahead_queue_keys: options.lookahead_queue_keys,
        };
        let queue_keys = budget
            .lookahead_queue_keys
            .unwrap_or_else(|| lookahead::capacity_for_budget(budget.bytes));
        let queue_bytes = lookahead::memory_bytes(queue_keys);
        let store_options = StoreOptions {
            memory_budget_bytes: budget.bytes.saturating_sub(queue_bytes),
            create: options.create,
            device: options.device,
            checkpoints_kept: options.checkpoints_kept,
            compaction: options.compaction.clone(),
            disk_quota_bytes: options.disk_quota_bytes,
            ..StoreOptions::default()
        };
        let store = open(&store_options).map_err(|error| budget.in_terms_of_the_bank(error))?;
        let tables = Arc::new(Tables::new(read_tables(&store)?));
        let by_name = read_vocabularies(&store)?;
        let memory_budget_warning = memory_budget_warning(budget.bytes);
        if let Some(warning) = &memory_budget_warning {
            log::warn!("bank {:?}: {warning}", store.path());
        }
        let store = Arc::new(store);
        let context = Context {
            lookahead: Lookahead::new(Arc::clone(&store), budget.bytes, queue_keys),
            times: Times::of(&store),
            store,
            wait_timeout: options.wait_timeout,
            lease_timeout: options.lease_timeout.map(|timeout| timeout.min(FAR_OFF)),
            waiting: WaitCounters::default(),
            leases_change_hands: AtomicBool::new(false),
            side_tables: Mutex::new(()),
            budget,
        };
        let vocabularies = Arc::new(Vocabularies::new(context, by_name));
        let of_vocabularies = Arc::clone(&tables);
        vocabularies.when_renumbered(Box::new(move |vocabularies| {
            refuse_other_numberings(&of_vocabularies, vocabularies);
        }));
        let shared = BankShared {
            vocabularies,
            tables,
            staleness_of_dropped: Mutex::default(),
            memory_budget_warning,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.shared.vocabularies.context
    }

    /// Moves a bank that is open to read only on to its newest checkpoint, if that is newer, without a reopen; returns
    /// the number of the one that it is at then. Handles of tables go on to show the new one, calls and scans that
    /// have begun show the old one to their end. Until those have ended, both indexes are in memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](embank_kv::Error::InvalidArgument) if the bank is open for writing; else as
    /// [`open_read_only`](Self::open_read_only). After an error [`reading`](Self::reading) tells where the bank is:
    /// where it was, or, if the new checkpoint's tables or vocabularies can't be read, at the new one, with handles and
    /// lists still those of the old one. Another refresh tries again.
    pub fn refresh(&self) -> Result<u64> {
        let context = self.context();
        let store = &context.store;
        let _moving = self.shared.vocabularies.moving.lock();
        let refreshed = store.refresh();
        let number = refreshed.map_err(|error| context.budget.in_terms_of_the_bank(error))?;
        let mut now = read_tables(store)?;
        let vocabularies = read_vocabularies(store)?;
        let mut tables = self.shared.tables.lock();
        for (name, shared) in &mut now {
            // The handles that are out stay those of the table.
            if let Some(known) = tables.get(name).filter(|known| known.id == shared.id) {
                known.take_counts_of(shared);
                *shared = Arc::clone(known);
            }
        }
        *tables = now;
        drop(tables);
        self.shared.vocabularies.refresh(vocabularies);
        self.shared.vocabularies.refuse_other_numberings();
        Ok(number)
    }

    /// The checkpoint that a bank which is open to read only is at, with its blob; `None` if it is open for writing.
    #[must_use]
    pub fn reading(&self) -> Option<Arc<Recovered>> {
        self.context().store.reading()
    }

    /// Opens the table `name`, or creates it. The learning rate, eps and staleness bound of `config` hold
    /// for all handles of the table from now on; the rest must be as it was created. A new table is
    /// durable with the next checkpoint.
    ///
    /// Names that end with ` (vocabulary)` or in the way of ` (vocabulary, ids 0)` are those of vocabularies' own
    /// tables.
    ///
    /// # Errors
    /// [`Error::ConfigMismatch`]; [`Error::InvalidConfig`], for such a name too; [`Error::OtherVocabulary`]; or a
    /// failure of the store.
    pub fn table(&self, name: &str, mut config: TableConfig) -> Result<Table> {
        config.validate(name)?;
        let mut tables = self.shared.tables.lock();
        let shared = if let Some(shared) = tables.get(name) {
            self.check_vocabulary(shared)?;
            if let Some(vocabulary) = &config.vocabulary {
                self.shared.vocabularies.check(name, vocabulary)?;
            }
            shared.reopen(&config)?;
            // The bound may have risen.
            self.context().store.wake_waiters();
            Arc::clone(shared)
        } else {
            if is_name_of_a_part(name) {
                let what =
                    "names that end so are those of vocabularies' own tables; take another one";
                let (table, what) = (name.to_owned(), what.to_owned());
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
            let counts = create_counts(store, name, config.admission)?;
            let made = store.create_table(name, config.value_bytes(), &config.to_descriptor());
            let id = made.inspect_err(|_| {
                // If this fails, the next table of the name drops them.
                let _ = counts.iter().try_for_each(|counts| store.drop_table(counts.newer));
            })?;
            let shared = Arc::new(TableShared::new(id, name, config, counts));
            if shared.set_tracker().is_some() {
                let forgotten = context.times.forget(store, id.number());
                forgotten.inspect_err(|_| {
                    // No handle is left of it. If this fails, too, the next open lists it.
                    let _ = store.drop_table(id);
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
        Table {
            vocabularies: Arc::clone(&self.shared.vocabularies),
            shared: Arc::clone(shared),
            wait_timeout: self.context().wait_timeout,
        }
    }

    /// Opens the table `name` as it is. Its learning rate, eps and staleness bound are those of its
    /// creation, unless this process has set others.
    ///
    /// # Errors
    /// [`NoSuchTable`](embank_kv::Error::NoSuchTable); [`Error::OtherVocabulary`] if its keys are ids of a vocabulary
    /// that is gone or was renumbered.
    pub fn open_table(&self, name: &str) -> Result<Table> {
        let tables = self.shared.tables.lock();
        let Some(shared) = tables.get(name) else { return Err(no_such_table(name)) };
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

    /// As [`open_table`](Self::open_table), whatever has become of the table's vocabulary: to look at it or to export
    /// it. Its rows belong to the values of another numbering if the vocabulary was renumbered or replaced since. The
    /// table then takes every key.
    ///
    /// # Errors
    /// [`NoSuchTable`](embank_kv::Error::NoSuchTable).
    pub fn open_table_unchecked(&self, name: &str) -> Result<Table> {
        let tables = self.shared.tables.lock();
        let Some(shared) = tables.get(name) else { return Err(no_such_table(name)) };
        if self.check_vocabulary(shared).is_err() {
            shared.take_every_key();
        }
        Ok(self.handle(shared))
    }

    /// Drops the table `name`. Its rows are gone for every call that begins from now on: those on handles
    /// and leases of the table fail with [`Error::TableDropped`], Gets that wait for one of its
    /// rows too, and what lookahead has queued of it is cancelled. Calls in other threads that are in
    /// the middle of a batch may still finish it. Dropping or releasing a lease of it is no error.
    ///
    /// Durable with the next checkpoint: a crash before that brings the table back whole. Its space comes
    /// back by compaction, once no kept checkpoint holds it any more. [`Bank::table`] may make a new
    /// table of the name at once; it has nothing to do with the old one.
    ///
    /// # Errors
    /// [`NoSuchTable`](embank_kv::Error::NoSuchTable), or
    /// [`Poisoned`](embank_kv::Error::Poisoned) after a failed write; then the table is still there.
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
        // Held throughout: nobody makes a table of the name in between.
        let mut tables = self.shared.tables.lock();
        let Some(shared) = tables.get(name) else { return Err(no_such_table(name)) };
        let context = self.context();
        let side_tables = context.side_tables.lock();
        context.store.drop_table(shared.id)?;
        let beside = shared.gate.as_ref().map_or(Vec::new(), Gate::side_tables);
        let counts_dropped = beside.iter().try_for_each(|&counts| context.store.drop_table(counts));
        drop(side_tables);
        let time_forgotten = context.times.forget(&context.store, shared.id.number());
        // After the store: whoever looks ahead from here on is told that the table is gone.
        context.lookahead.forget(shared.id);
        self.shared.staleness_of_dropped.lock().add(&shared.counters.staleness());
        tables.remove(name);
        counts_dropped?;
        time_forgotten
    }

    /// For tests of what a bank does that has used all numbers of tables: it has no more than `max`
    /// tables at a time, the tables of vocabularies and counts included.
    #[doc(hidden)]
    pub fn limit_table_numbers(&self, max: u16) {
        self.context().store.limit_table_numbers(max);
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
        Ok(self.context().store.checkpoint(blob)?)
    }

    /// The state of the bank's rows now. A program that writes a file of its own beside the bank keeps it there, and
    /// recognises the checkpoint that belongs to the file by [`StateId::checkpoint_id`], taken before or after.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
    /// let state = bank.state_id();
    /// bank.table("user", embank::TableConfig::new(2))?.put(&[1], &[0.5, 1.5])?;
    /// assert_ne!(bank.state_id(), state);
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn state_id(&self) -> StateId {
        self.context().store.state_id()
    }

    /// Compacts all of the log that is on disk now, whatever its space amplification: current rows move to
    /// its end, and space goes back as far as no kept checkpoint holds it; the rest follows with the next
    /// checkpoints. Other calls go on meanwhile. Tries again where background compaction had stopped
    /// ([`compaction_stopped`](embank_kv::StoreStats::compaction_stopped)).
    ///
    /// # Errors
    /// A failure of the store, such as a page that can't be read; no row is lost that could be read before.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, CompactionOptions};
    ///
    /// let by_hand = CompactionOptions { background: false, ..Default::default() };
    /// let options = BankOptions { compaction: by_hand, ..Default::default() };
    /// let bank = Bank::open(dir.path().join("bank"), options)?;
    /// let done = bank.compact()?;
    /// assert_eq!(done.scanned_bytes, 0); // nothing is on disk yet
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn compact(&self) -> Result<Compacted> {
        Ok(self.context().store.compact()?)
    }

    /// The checkpoint that opening the bank recovered, with its blob; `None` for a bank without one. For one that is
    /// open to read only, see [`reading`](Self::reading).
    #[must_use]
    pub fn recovered(&self) -> Option<&Recovered> {
        self.context().store.recovered()
    }

    /// The bank's counters.
    #[must_use]
    pub fn stats(&self) -> BankStats {
        let store = self.context().store.stats();
        let lookahead = self.context().lookahead.stats(&store);
        let waiting = &self.context().waiting;
        let staleness = {
            // First: a table that is dropped meanwhile is counted here or there.
            let tables = self.shared.tables.lock();
            let mut staleness = *self.shared.staleness_of_dropped.lock();
            for table in tables.values() {
                staleness.add(&table.counters.staleness());
            }
            staleness
        };
        BankStats {
            store,
            lookahead,
            memory_budget_bytes: self.context().budget.bytes,
            memory_budget_warning: self.shared.memory_budget_warning.clone(),
            waits: waiting.waits.get(),
            wait_us: waiting.wait_us.get(),
            timeouts: waiting.timeouts.get(),
            release_failures: waiting.release_failures.get(),
            leases_expired: waiting.leases_expired.get(),
            staleness,
        }
    }

    /// What keeps the log's space from being given back, the largest holder first: open scans, and checkpoints with the
    /// processes that read them.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
    /// let table = bank.table("user", embank::TableConfig::new(2))?;
    /// bank.checkpoint(b"")?;
    /// let scan = table.scan()?;
    /// assert!(bank.space_holders().iter().any(|holder| holder.checkpoint.is_none()));
    /// # drop(scan);
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn space_holders(&self) -> Vec<SpaceHolder> {
        self.context().store.space_holders()
    }

    /// What closing the bank now would lose; `None` if its newest checkpoint has everything, and for a bank that is open
    /// to read only. Dropped tables do not count: without a checkpoint they come back.
    ///
    /// When the last handle of a bank is dropped with unsaved changes, the bank tells of them with a warning of the
    /// `log` crate, which is silent in a program without a logger.
    ///
    /// # Examples
    /// See [`Unsaved`].
    #[must_use]
    pub fn unsaved(&self) -> Option<Unsaved> {
        Unsaved::of(&self.context().store.stats())
    }

    /// The leases of all tables that are out, the oldest first: whose counts keep rows above a staleness bound.
    #[must_use]
    pub fn outstanding_leases(&self) -> Vec<LeaseInfo> {
        let tables = self.shared.tables.lock();
        let now = Instant::now();
        let lists = tables.values().map(|table| table.holders.list(&table.name, None, now));
        let mut leases: Vec<_> = lists.flatten().collect();
        leases.sort_by_key(|lease| Reverse(lease.age));
        leases
    }

    /// Forgets what lookahead has queued and not begun to read; returns how many keys that were.
    pub fn cancel_lookahead(&self) -> usize {
        self.context().lookahead.cancel()
    }

    /// Waits until nothing is pending in the lookahead queue; false if `timeout` passes first. For tests
    /// and measurements: training need not wait.
    pub fn wait_lookahead(&self, timeout: Duration) -> bool {
        self.context().lookahead.wait_idle(deadline_after(timeout))
    }

    /// Whether both are handles of one open bank.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
    /// assert!(bank.is_same(&bank.clone()));
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The bank's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.context().store.path()
    }
}

/// After vocabularies may have changed: handles of tables that were made for another numbering are refused.
fn refuse_other_numberings(tables: &Tables, vocabularies: &Vocabularies) {
    for table in tables.lock().values() {
        if let Some(wanted) = table.vocabulary() {
            table.note_numbering(vocabularies.check(&table.name, wanted).is_err());
        }
    }
}

fn no_such_table(name: &str) -> Error {
    embank_kv::Error::NoSuchTable(format!("{name:?}")).into()
}

fn read_tables(store: &Store) -> Result<BTreeMap<String, Arc<TableShared>>> {
    let mut tables = BTreeMap::new();
    let infos = store.tables();
    let times = table_of_times(store);
    let (counts, infos): (Vec<_>, Vec<_>) =
        infos.into_iter().partition(|info| is_counts_descriptor(&info.descriptor));
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
        let counts = Generations::find(&info.name, &counts, store)?;
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
    Ok(tables)
}
