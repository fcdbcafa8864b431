//! Banks. A bank is a directory with many tables under one memory budget.

mod as_exported;
pub(crate) mod auto_depth;
pub(crate) mod checkpoints;
pub(crate) mod tables;
pub(crate) mod vocabularies;

use std::cmp::Reverse;
use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use embank_kv::locks::Mutex;
use embank_kv::{
    Compacted, Recovered, RunningTime, SpaceHolder, StateId, Store, StoreOptions,
    memory_budget_warning,
};

use crate::bank::tables::{Tables, read_tables, refuse_other_numberings};
use crate::context::{Budget, Context};
use crate::error::{Error, Result};
use crate::fleet::ShardIdentity;
use crate::lease::ahead::AheadQueue;
use crate::lookahead::{self, Lookahead};
use crate::options::BankOptions;
use crate::pool::{BatchPool, THREADS_MAX};
use crate::row::times::Times;
use crate::stats::lease_info::LeaseInfo;
use crate::stats::seen::StalenessHistogram;
use crate::stats::unsaved::Unsaved;
use crate::stats::{BankStats, WaitCounters};
use crate::vocabulary::registry::{Vocabularies, read_vocabularies};

/// An open bank. Clones are cheap. The bank closes once all of its handles, tables, leases and
/// scans are dropped. Closing writes no checkpoint; [`unsaved`](Bank::unsaved) shows the changes
/// that closing would lose.
///
/// In the source, `bank/` has its methods: `tables.rs` for tables, `vocabularies.rs` for
/// vocabularies, and `checkpoints.rs` for checkpoints, copies and deltas.
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

/// The state that all handles of a bank share.
#[derive(Debug)]
pub(crate) struct BankShared {
    pub(crate) vocabularies: Arc<Vocabularies>,
    pub(crate) tables: Arc<Tables>,
    /// Staleness counts of tables that were dropped.
    pub(crate) staleness_of_dropped: Mutex<StalenessHistogram>,
    memory_budget_warning: Option<String>,
    /// Which shard of a fleet the bank is. Empty for other banks, and for read-only banks. Read at
    /// the opening, because `checkpoint` may run when no file descriptor is free.
    shard: OnceLock<ShardIdentity>,
}

impl Bank {
    /// Opens the bank in the directory `path`, or creates it. An existing bank opens at its newest
    /// completed checkpoint; changes after that checkpoint are lost.
    ///
    /// # Errors
    /// Errors of the store: [`Locked`](crate::StoreError::Locked) if another process has the bank
    /// open for writing, [`BudgetTooSmall`](crate::StoreError::BudgetTooSmall),
    /// [`Damaged`](crate::StoreError::Damaged) and
    /// [`NewerFormat`](crate::StoreError::NewerFormat), also of the file `SHARD`, and
    /// [`InvalidOption`](crate::StoreError::InvalidOption) if an option is out of range. Also
    /// [`NotABank`](crate::StoreError::NotABank) and [`Error::UnreadableTable`].
    pub fn open(path: impl AsRef<Path>, options: BankOptions) -> Result<Self> {
        let bank =
            Self::open_by(options, |store_options| Store::open(path.as_ref(), store_options))?;
        if let Some(identity) = ShardIdentity::read(bank.path())? {
            bank.became_shard(identity);
        }
        Ok(bank)
    }

    /// Notes that the bank is a shard, from its opening or from the moment when its file `SHARD` is
    /// made.
    pub(crate) fn became_shard(&self, identity: ShardIdentity) {
        // A bank becomes a shard once.
        let _ = self.shared.shard.set(identity);
    }

    /// Checks that this bank, which is open for writing, is no shard of a fleet, and may change by
    /// itself. Reads no file.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`]: see [`fleet::refuse_shard`](crate::fleet::refuse_shard).
    pub fn refuse_shard(&self) -> Result<()> {
        self.shared.shard.get().map_or(Ok(()), |identity| Err(identity.refusal(self.path())))
    }

    /// Opens the bank in the directory `path` read-only, at checkpoint `checkpoint`. `None` means
    /// the newest checkpoint. Another process may write the bank meanwhile. Changes no file. Tables
    /// can be opened, peeked at and scanned. Calls that would write fail with
    /// [`ReadOnly`](crate::StoreError::ReadOnly), including a Get for training. Lookahead does
    /// nothing. Of `options`, only the memory budget, the device and the threads have an effect.
    ///
    /// While this bank is at a checkpoint, the writing process keeps that checkpoint and its disk
    /// space.
    ///
    /// # Errors
    /// [`NotABank`](crate::StoreError::NotABank),
    /// [`NoSuchCheckpoint`](crate::StoreError::NoSuchCheckpoint), and the errors of
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
        // A read-only bank has no mutable memory to bring rows into.
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
            let problem = "must be longer than zero; None lets leases live for ever";
            return Err(Error::option("lease_timeout", problem));
        }
        if options.threads > THREADS_MAX {
            let problem = format!("must be from 1 to {THREADS_MAX}, not {}", options.threads);
            return Err(Error::option("threads", problem));
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
            cold_tier: options.cold_tier,
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
            lease_timeout: options.lease_timeout,
            waiting: WaitCounters::default(),
            leases_change_hands: AtomicBool::new(false),
            side_tables: Mutex::new(()),
            budget,
            pool: BatchPool::new(options.threads),
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
            shard: OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.shared.vocabularies.context
    }

    /// Moves a read-only bank to its newest checkpoint without a reopen. Returns the number of that
    /// checkpoint. Existing handles of tables then read the new checkpoint. Calls and scans that
    /// have already begun still read the old checkpoint. Until they end, the indexes of both
    /// checkpoints are in memory.
    ///
    /// # Errors
    /// [`WrongKind`](crate::StoreError::WrongKind) if the bank is open for writing. Also the errors
    /// of [`open_read_only`](Self::open_read_only). After an error, [`reading`](Self::reading)
    /// shows the bank's checkpoint. Usually that is the old checkpoint. If only the tables or
    /// vocabularies of the new checkpoint can't be read, the bank is at the new checkpoint, but
    /// handles and lists still show the old tables. A further refresh tries again.
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
            // Handles that the program already has stay valid.
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

    /// Returns the checkpoint of a read-only bank, with its blob. `None` if the bank is open for
    /// writing.
    #[must_use]
    pub fn reading(&self) -> Option<Arc<Recovered>> {
        self.context().store.reading()
    }

    /// Makes the present state of all tables durable, together with `blob`. Returns the
    /// checkpoint's number. The blob holds whatever else the caller needs: the step number, dense
    /// weights, the position in the data.
    ///
    /// When the call returns, the checkpoint is on stable storage. After a crash, the bank opens at
    /// this checkpoint or a newer one. A checkpoint does not contain staleness clocks.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`](crate::Error::ShardMismatch) if the bank is a shard of a
    /// [fleet](crate::fleet): only a set has checkpoints of shards. A failure of the store. The
    /// previous checkpoint stays valid.
    pub fn checkpoint(&self, blob: &[u8]) -> Result<u64> {
        self.refuse_shard()?;
        self.checkpoint_of_shard(blob)
    }

    /// Takes a checkpoint for a set of the fleet that the bank belongs to.
    pub(crate) fn checkpoint_of_shard(&self, blob: &[u8]) -> Result<u64> {
        Ok(self.context().store.checkpoint(blob)?)
    }

    /// Identifies the present state of the bank's rows. A program that writes its own file in
    /// addition to the bank can store this id in the file, before or after a checkpoint of this
    /// state. [`StateId::checkpoint_id`] later gives the id of the checkpoint that belongs to the
    /// file.
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

    /// Compacts all of the log that is now on disk, even if few of its records are outdated.
    /// Current rows move to the end of the log. Space that no kept checkpoint needs is freed at
    /// once. Space that kept checkpoints need is freed after later checkpoints have replaced them.
    /// Other threads may use the bank meanwhile. The call also restarts background compaction that
    /// has stopped after an error ([`compaction_stopped`](crate::StoreStats::compaction_stopped)).
    ///
    /// In a bank with two tiers, rows go to the cold tier instead, and files that are due are
    /// merged. The disk needs room for the new files beside those that kept checkpoints hold. After
    /// [blind puts](crate::Table::put_blind), the call moves all rows of the log to the cold tier,
    /// those in memory too, and rewrites the cold tier once. The number of rows is then exact,
    /// unless rows have outstanding gets, other threads write meanwhile, files are damaged or the
    /// disk has no room.
    ///
    /// # Errors
    /// A failure of the store, such as a page that can't be read. A row that could be read before
    /// is never lost.
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

    /// Returns the checkpoint at which the bank was opened, with its blob. `None` if the bank had
    /// no checkpoint. For a read-only bank, see [`reading`](Self::reading).
    #[must_use]
    pub fn recovered(&self) -> Option<&Recovered> {
        self.context().store.recovered()
    }

    /// Returns the bank's counters.
    #[must_use]
    pub fn stats(&self) -> BankStats {
        let store = self.context().store.stats();
        let lookahead = self.context().lookahead.stats(&store);
        let waiting = &self.context().waiting;
        let staleness = {
            // The list of tables is locked before the counts of dropped tables. A table that
            // another thread drops meanwhile is therefore counted exactly once.
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

    /// Lists what prevents the log's space from being freed: open scans, and checkpoints with the
    /// processes that read them. The largest holder comes first.
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

    /// Returns the changes that closing the bank now would lose. `None` if its newest checkpoint
    /// has all changes, or if the bank is read-only. Dropped tables do not count: without a
    /// checkpoint they come back at the next open.
    ///
    /// If the last handle of a bank with unsaved changes is dropped, the bank logs a warning
    /// through the `log` crate. A program without a logger does not see it.
    ///
    /// # Examples
    /// See [`Unsaved`].
    #[must_use]
    pub fn unsaved(&self) -> Option<Unsaved> {
        Unsaved::of(&self.context().store.stats())
    }

    /// Lists the leases of all tables that have not ended, oldest first. These leases can keep the
    /// clocks of rows above a staleness bound.
    #[must_use]
    pub fn outstanding_leases(&self) -> Vec<LeaseInfo> {
        let tables = self.shared.tables.lock();
        let lists = tables.values().map(|table| table.leases.list(&table.name, None));
        let mut leases: Vec<_> = lists.flatten().collect();
        leases.sort_by_key(|lease| Reverse(lease.age));
        leases
    }

    /// Makes a queue of Gets ahead, and starts its thread. A program has one queue for each
    /// training loop.
    ///
    /// # Errors
    /// [`ThreadRefused`](crate::StoreError::ThreadRefused).
    ///
    /// # Examples
    /// See [`AheadQueue`].
    pub fn ahead_queue(&self) -> Result<AheadQueue> {
        AheadQueue::new(Arc::clone(&self.shared.vocabularies))
    }

    /// Cancels the queued lookahead keys whose read has not begun. Returns their number.
    pub fn cancel_lookahead(&self) -> usize {
        self.context().lookahead.cancel()
    }

    /// Waits until the lookahead queue is empty and all its reads are done. Returns false if
    /// `timeout` passes first. This is for tests and measurements; training need not wait.
    pub fn wait_lookahead(&self, timeout: Duration) -> bool {
        self.context().lookahead.wait_idle(RunningTime::now() + timeout)
    }

    /// True if both handles refer to the same open bank.
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
