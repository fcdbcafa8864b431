//! Tables: batches of rows in and out.

pub(crate) mod admission;
pub(crate) mod counts;
pub(crate) mod deletion;
pub(crate) mod eviction;
pub(crate) mod gradients;
pub(crate) mod ids;
pub(crate) mod operations;
pub(crate) mod prefetch;
pub(crate) mod scan;
pub(crate) mod updates;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use embank_kv::locks::RwLock;
use embank_kv::{Clock, Operation, Outcome, TableId};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::lookahead::queue::LookaheadReceipt;
use crate::optimizer::Optimizer;
use crate::registry::Holders;
use crate::registry::retry_turn::RetryTurn;
use crate::registry::waiting_line::WaitingLine;
use crate::row::admission::Admission;
use crate::row::config::{TableConfig, check_clip_row_norm};
use crate::row::layout::RowLayout;
use crate::row::live::LiveSettings;
use crate::row::numbering::TableVocabulary;
use crate::row::tracking::Tracker;
use crate::stats::lease_info::LeaseInfo;
use crate::stats::seen::SeenClocks;
use crate::stats::{TableCounters, TableStats};
use crate::table::admission::{Decision, Gate, HeldPart};
use crate::table::counts::Generations;
use crate::table::operations::{FindRows, GetRows, PeekRows, Reached};
use crate::table::prefetch::Prefetch;
use crate::unique::UniqueKeys;
use crate::vocabulary::VocabularyShared;
use crate::vocabulary::registry::Vocabularies;

/// A handle to one table of a bank. Cloning it is cheap; all handles of a table are one table.
///
/// A batch is a slice of keys and a slice of f32 with one row of `dim` values per key, row after row.
/// Batches of any length work, an empty one too; keys may repeat. What a call writes is in memory when
/// it returns; [`Bank::checkpoint`](crate::Bank::checkpoint) makes it durable.
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

/// What all handles of a table share.
#[derive(Debug)]
pub(crate) struct TableShared {
    pub(crate) id: TableId,
    pub(crate) name: String,
    pub(crate) counters: TableCounters,
    pub(crate) holders: Holders,
    /// Held while a batch that was blocked once tries again; see the module `lease::acquire`.
    pub(crate) retry_turn: RetryTurn,
    /// Gets that have waited long.
    pub(crate) line: WaitingLine,
    /// The identity. Its rates, clipping and bound are those of the first open; the live ones follow.
    config: TableConfig,
    layout: RowLayout,
    pub(crate) live: LiveSettings,
    /// The vocabulary whose ids are its keys. Set when the table is opened and its vocabulary is found to be the one
    /// that it was made for.
    ids: OnceLock<Arc<VocabularyShared>>,
    /// It was opened although its vocabulary was another one by then.
    takes_every_key: AtomicBool,
    /// Its vocabulary was renumbered or dropped while handles of the table were out: its rows are other values' now.
    other_numbering: AtomicBool,
    /// What decides which keys get rows, if not all do.
    pub(crate) gate: Option<Gate>,
    /// The staleness bound; `UNBOUNDED` for none.
    bound: AtomicU64,
}

const UNBOUNDED: u64 = u64::MAX;

impl TableShared {
    /// `counts`: the tables that admission keeps beside this one, if it keeps any.
    pub(crate) fn new(
        id: TableId,
        name: &str,
        config: TableConfig,
        counts: Option<Generations>,
    ) -> Self {
        let gate = match (config.admission, counts) {
            (Admission::AfterGets(needed), Some(counts)) => {
                Some(Gate::Counts { needed, counts: RwLock::new(counts) })
            }
            (Admission::Probability(probability), counts) => {
                let gets = counts.map(|counts| OnceLock::from(counts.newer)).unwrap_or_default();
                Some(Gate::Chance { probability, seed: config.seed, gets })
            }
            (Admission::Always | Admission::AfterGets(_), _) => None,
        };
        let shared = Self {
            ids: OnceLock::new(),
            takes_every_key: AtomicBool::new(false),
            other_numbering: AtomicBool::new(false),
            gate,
            id,
            name: name.to_owned(),
            counters: TableCounters::default(),
            holders: Holders::new(),
            retry_turn: RetryTurn::default(),
            line: WaitingLine::default(),
            layout: RowLayout::new(name, &config),
            live: LiveSettings::of(&config),
            bound: AtomicU64::new(UNBOUNDED),
            config,
        };
        shared.set_bound(shared.config.staleness_bound);
        shared
    }

    /// Takes over the generations of counts that `other` has: this table as a newer checkpoint has it.
    pub(crate) fn take_counts_of(&self, other: &Self) {
        if let (Some(Gate::Counts { counts, .. }), Some(Gate::Counts { counts: newer, .. })) =
            (&self.gate, &other.gate)
        {
            *counts.write() = *newer.read();
        }
    }

    /// Where the time is that its users set, if they do.
    pub(crate) fn set_tracker(&self) -> Option<&Tracker> {
        self.layout.tracker().filter(|tracker| !tracker.is_by_clock())
    }

    /// The vocabulary whose ids are its keys.
    pub(crate) fn vocabulary(&self) -> Option<&TableVocabulary> {
        self.config.vocabulary.as_ref()
    }

    /// Has keys checked to be ids of its vocabulary from now on.
    pub(crate) fn check_ids_of(&self, vocabulary: &Arc<VocabularyShared>) {
        self.ids.get_or_init(|| Arc::clone(vocabulary));
    }

    /// Has every key taken from now on: the caller knows that the table is another vocabulary's.
    pub(crate) fn take_every_key(&self) {
        // Relaxed: a flag of its own; the caller's later calls come after it.
        self.takes_every_key.store(true, Ordering::Relaxed);
    }

    /// Notes whether its vocabulary has another numbering by now than the table was made for.
    pub(crate) fn note_numbering(&self, is_other: bool) {
        // Relaxed: a flag of its own. A call that runs at the same time may read rows as before.
        self.other_numbering.store(is_other, Ordering::Relaxed);
    }

    /// Whether its rows belong to other values by now, and no caller has opened it unchecked.
    #[inline]
    pub(crate) fn has_other_numbering(&self) -> bool {
        self.other_numbering.load(Ordering::Relaxed)
            && !self.takes_every_key.load(Ordering::Relaxed)
    }

    /// The vocabulary whose ids its keys are checked to be.
    #[inline]
    pub(crate) fn ids(&self) -> Option<&VocabularyShared> {
        let ids = self.ids.get()?;
        // Relaxed: as in `take_every_key`.
        (!self.takes_every_key.load(Ordering::Relaxed)).then_some(&**ids)
    }

    /// Checks that `asked` is this table, and takes over the settings that are not its identity.
    pub(crate) fn reopen(&self, asked: &TableConfig) -> Result<()> {
        self.config.check_same_table(&self.name, asked)?;
        self.live.set(asked);
        self.set_bound(asked.staleness_bound);
        Ok(())
    }

    pub(crate) fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn set_bound(&self, bound: Option<u32>) {
        self.bound.store(bound.map_or(UNBOUNDED, u64::from), Ordering::Relaxed);
    }

    fn bound(&self) -> Option<u32> {
        u32::try_from(self.bound.load(Ordering::Relaxed)).ok()
    }

    /// The config as it is set now.
    pub(crate) fn config(&self) -> TableConfig {
        let live = self.live.now();
        let config = self.config.clone().staleness_bound(self.bound());
        config.optimizer(live.optimizer).clip_row_norm(live.clip_row_norm)
    }
}

/// What a peek does about keys without a row. It never makes up zeros.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Missing, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("user", TableConfig::new(1))?;
/// let mut row = [7.0];
/// assert_eq!(table.peek(&[3], &mut row, Missing::Skip)?.missing, [0]);
/// assert_eq!(row, [7.0]);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Fill in the row's initial values, which the first Get would give it.
    Initial,
    /// Fail with [`Error::MissingRow`].
    Error,
    /// Leave that part of the destination as it is.
    Skip,
}

/// What a peek found.
///
/// # Examples
/// See [`Missing`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekOutcome {
    /// Places in the batch of the keys that have no row, ascending.
    pub missing: Vec<u32>,
}

/// Whether a Get waits for rows at their bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Yes,
    No,
}

/// Of a Get with `Waits::Yes`.
const WAITED: &str = "a Get that waits ends with a lease or an error";

impl Table {
    pub(crate) fn context(&self) -> &Context {
        &self.vocabularies.context
    }

    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The table's number in its bank. Once this table was dropped and its records and checkpoints
    /// are gone, another table may get it: [`id`](Self::id) tells them apart.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.shared.id.number()
    }

    /// What no other table has as long as the bank is open, not even one of the same name or number
    /// after this one was dropped.
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

    /// Whether no other table has got this one's number. If one has, no roll back brings this one
    /// back: no checkpoint that has it is left.
    #[must_use]
    pub fn has_its_number(&self) -> bool {
        self.context().store.has_its_number(self.shared.id)
    }

    /// Values per row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.shared.layout.dim
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

    /// Sets the staleness bound of all handles. Gets that are waiting wake and look at the new bound. Not
    /// durable: it is given again at the next open.
    pub fn set_staleness_bound(&self, bound: Option<u32>) {
        self.shared.set_bound(bound);
        self.context().store.wake_waiters();
    }

    /// Sets the learning rate of all handles, for batches applied from now on. Not durable: it is given
    /// again at the next open.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if it is negative, NaN or infinite; [`Error::NoOptimizer`].
    pub fn set_learning_rate(&self, lr: f64) -> Result<()> {
        if self.shared.config.optimizer == Optimizer::None {
            return Err(Error::NoOptimizer { table: self.name().to_owned() });
        }
        self.shared.live.change_optimizer(|optimizer| {
            let changed = optimizer.with_learning_rate(lr);
            changed.check().map_err(|what| self.invalid(what))?;
            Ok(changed)
        })
    }

    /// Sets the numbers of the optimizer of all handles, for batches applied from now on; a batch sees all of
    /// them or none. Not durable: they are given again at the next open.
    ///
    /// # Errors
    /// [`Error::ConfigMismatch`] if it is another optimizer, or one that keeps something else beside a row (see
    /// [`Optimizer`]); [`Error::InvalidConfig`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Adam, Bank, BankOptions, Optimizer, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(2).optimizer(Optimizer::adam(0.01)))?;
    /// table.set_optimizer(Optimizer::Adam(Adam { weight_decay: 0.1, ..Adam::new(0.001) }))?;
    /// assert_eq!(table.config().optimizer.learning_rate(), Some(0.001));
    /// assert!(table.set_optimizer(Optimizer::sgd(0.1)).is_err());
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn set_optimizer(&self, optimizer: Optimizer) -> Result<()> {
        optimizer.check().map_err(|what| self.invalid(what))?;
        let config = &self.shared.config;
        config.check_same_table(self.name(), &config.clone().optimizer(optimizer))?;
        self.shared.live.change_optimizer(|_| Ok(optimizer))
    }

    /// Sets the longest gradient of a row ([`TableConfig::clip_row_norm`]) of all handles, for batches applied
    /// from now on. Not durable: it is given again at the next open.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] unless it is finite and above 0.
    pub fn set_clip_row_norm(&self, norm: Option<f32>) -> Result<()> {
        check_clip_row_norm(norm).map_err(|what| self.invalid(what))?;
        self.shared.live.set_clip_row_norm(norm);
        Ok(())
    }

    fn invalid(&self, what: String) -> Error {
        Error::InvalidConfig { table: self.name().to_owned(), what }
    }

    /// Sets the time of all handles of a table with [`Tracking::SetTime`](crate::Tracking::SetTime): what rows that are
    /// used from now on tell, and what eviction by age counts from. The largest time is part of each checkpoint: an
    /// open goes on with it until another is set. A handle of a bank that is open to read only sets it for itself.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a table that tracks otherwise or not at all; a failure of the store.
    pub fn set_time(&self, time: u32) -> Result<()> {
        match self.shared.set_tracker() {
            Some(tracker) => {
                if self.context().store.reading().is_none() {
                    let context = self.context();
                    let kept = context.times.keep(&context.store, self.shared.id, time);
                    kept.map_err(|error| match error {
                        Error::Store(error) => self.in_terms_of_the_table(error),
                        error => error,
                    })?;
                }
                tracker.set(time);
                Ok(())
            }
            None => Err(Error::InvalidConfig {
                table: self.name().to_owned(),
                what: format!(
                    "its tracking is {:?}, so it has no time to set; create it with Tracking::SetTime",
                    self.shared.config.tracking
                ),
            }),
        }
    }

    /// Gets rows for training: `rows` holds keys * dim values and gets one row per key, duplicates
    /// included. Missing rows are inserted with their initial values. The staleness clock of each
    /// distinct key goes up by one until the lease brings it down; if a clock is above the table's bound,
    /// the call waits, at most the bank's `wait_timeout`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::KeyIsNoId`], [`Error::StalenessTimeout`], [`Error::SelfBlocked`] or a failure
    /// of the store. Then no clock is up, and the content of `rows` is unspecified.
    pub fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<Lease> {
        self.get_batch(keys, rows, Waits::Yes).map(|lease| lease.expect(WAITED))
    }

    /// As [`get`](Self::get), if no row keeps it waiting; `None` if one is at its staleness bound, or is reserved for a
    /// Get that has waited long. It reads rows that are on disk.
    ///
    /// # Errors
    /// As [`get`](Self::get), but for [`Error::StalenessTimeout`] and [`Error::SelfBlocked`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1).staleness_bound(Some(0)))?;
    /// let mut row = [0.0];
    /// let lease = table.try_get(&[1], &mut row)?.expect("no lease is out");
    /// assert!(table.try_get(&[1], &mut row)?.is_none());
    /// lease.release()?;
    /// assert!(table.try_get(&[1], &mut row)?.is_some());
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn try_get(&self, keys: &[u64], rows: &mut [f32]) -> Result<Option<Lease>> {
        self.get_batch(keys, rows, Waits::No)
    }

    /// A handle of the same table whose Gets wait for rows at most `wait_timeout`, in place of the bank's
    /// [`wait_timeout`](crate::BankOptions::wait_timeout). Cheap enough for one call.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use std::time::Duration;
    ///
    /// use embank::{Bank, BankOptions, Error, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1).staleness_bound(Some(0)))?;
    /// let lease = table.get(&[1], &mut [0.0])?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let brief = table.with_wait_timeout(Duration::from_millis(1));
    ///         let failed = brief.get(&[1], &mut [0.0]);
    ///         assert!(matches!(failed, Err(Error::StalenessTimeout { .. })));
    ///     });
    /// });
    /// lease.release()?;
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn with_wait_timeout(&self, wait_timeout: Duration) -> Self {
        Self { wait_timeout, ..self.clone() }
    }

    fn get_batch(&self, keys: &[u64], rows: &mut [f32], waits: Waits) -> Result<Option<Lease>> {
        self.check_shape("rows", keys.len(), rows.len())?;
        let unique = UniqueKeys::new(keys);
        if unique.all_distinct() {
            return self.get_into(unique, rows, None, None, waits);
        }
        let first_places = unique.first_places();
        let lease = self.get_into(unique, rows, Some(&first_places), None, waits)?;
        let Some(lease) = lease else { return Ok(None) };
        let dim = self.dim();
        for (place, &number) in lease.unique().inverse().iter().enumerate() {
            let first = first_places[number as usize] as usize;
            if first != place {
                rows.copy_within(first * dim..(first + 1) * dim, place * dim);
            }
        }
        Ok(Some(lease))
    }

    /// Finds the distinct keys of a batch, for [`get_distinct`](Self::get_distinct).
    #[must_use]
    pub fn get_unique(&self, keys: &[u64]) -> UniqueKeys {
        UniqueKeys::new(keys)
    }

    /// Gets one row per distinct key: `rows` holds distinct keys * dim values. As [`get`](Self::get)
    /// otherwise.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_distinct(&self, unique: UniqueKeys, rows: &mut [f32]) -> Result<Lease> {
        self.get_distinct_again(unique, rows, &[])
    }

    /// As [`get_distinct`](Self::get_distinct), in a step that has got the rows of the keys `earlier` before, such as
    /// for another part of the model: to [`admission`](crate::Admission) the two Gets of a key are one. `earlier` may
    /// hold keys of any number, and any more than once.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_distinct_again(
        &self,
        unique: UniqueKeys,
        rows: &mut [f32],
        earlier: &[u64],
    ) -> Result<Lease> {
        self.check_shape("rows", unique.len(), rows.len())?;
        let decisions = self.decided_earlier(unique.keys(), earlier);
        let lease = self.get_into(unique, rows, None, decisions, Waits::Yes)?;
        Ok(lease.expect(WAITED))
    }

    /// As [`get_distinct`](Self::get_distinct), if no row keeps it waiting: see [`try_get`](Self::try_get).
    ///
    /// # Errors
    /// As [`try_get`](Self::try_get).
    pub fn try_get_distinct(&self, unique: UniqueKeys, rows: &mut [f32]) -> Result<Option<Lease>> {
        self.check_shape("rows", unique.len(), rows.len())?;
        self.get_into(unique, rows, None, None, Waits::No)
    }

    fn get_into(
        &self,
        unique: UniqueKeys,
        rows: &mut [f32],
        destinations: Option<&[u32]>,
        decisions: Option<Vec<Decision>>,
        waits: Waits,
    ) -> Result<Option<Lease>> {
        self.check_ids(unique.keys())?;
        self.expire_due_leases();
        let (layout, keys) = (&self.shared.layout, unique.keys());
        let (reached, seen) = (Reached::none_of(keys.len()), SeenClocks::default());
        let gated = self.shared.gate.is_some();
        let refused = Vec::new();
        let mut get =
            GetRows { layout, keys, rows, destinations, reached, seen, gated, decisions, refused };
        let entered = match waits {
            Waits::Yes => self.acquire(&mut get)?,
            Waits::No => match self.acquire_at_once(&mut get)? {
                Some(entered) => entered,
                None => return Ok(None),
            },
        };
        let (seen, refused) = (get.seen, get.refused);
        let counters = &self.shared.counters;
        counters.seen.add(&seen, unique.len());
        counters.not_admitted_rows.add(refused.len() as u64);
        counters.gets.add(1);
        counters.get_rows.add(unique.len() as u64);
        let part = (!refused.is_empty()).then(|| HeldPart::without(unique.keys(), &refused));
        Ok(Some(Lease::new(self.clone(), unique, part, &entered)))
    }

    /// Reads rows for evaluation: `rows` holds keys * dim values and gets one row per key. Touches no
    /// clock, waits for none, and writes nothing.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::MissingRow`] if `missing` says so, or a failure of the store;
    /// [`Error::KeyIsNoId`] for a key without a row that has no initial values either, unless `missing` is
    /// [`Missing::Skip`]. The content of `rows` is unspecified then.
    pub fn peek(&self, keys: &[u64], rows: &mut [f32], missing: Missing) -> Result<PeekOutcome> {
        self.check_shape("rows", keys.len(), rows.len())?;
        let (layout, counters) = (&self.shared.layout, &self.shared.counters);
        let mut peek = PeekRows { layout, rows };
        let places = self.find(keys, &mut peek)?;
        counters.peeks.add(1);
        counters.peek_rows.add(keys.len() as u64);
        self.settle_missing(|place| keys[place as usize], rows, places, missing)
    }

    /// Does what `missing` says about the keys of `places` that have no row.
    pub(crate) fn settle_missing(
        &self,
        key_at: impl Fn(u32) -> u64,
        rows: &mut [f32],
        places: Vec<u32>,
        missing: Missing,
    ) -> Result<PeekOutcome> {
        let layout = &self.shared.layout;
        if missing != Missing::Skip && self.shared.ids().is_some() {
            let absent: Vec<u64> = places.iter().map(|&place| key_at(place)).collect();
            self.check_ids(&absent)?;
        }
        match (missing, places.first()) {
            (Missing::Initial, _) => {
                for &place in &places {
                    let row = &mut rows[place as usize * layout.dim..][..layout.dim];
                    layout.fill_initial(key_at(place), row);
                }
            }
            (Missing::Error, Some(&first)) => {
                return Err(Error::MissingRow {
                    table: self.name().to_owned(),
                    key: key_at(first),
                    count: places.len(),
                });
            }
            (Missing::Error, None) | (Missing::Skip, _) => {}
        }
        Ok(PeekOutcome { missing: places })
    }

    /// Writes the initial values of `keys` to `rows`, keys * dim values: what a Get of a missing row
    /// gives. A pure function of the table's seed and name, the key and the column; looks at no row.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::KeyIsNoId`].
    pub fn initial(&self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        self.check_shape("rows", keys.len(), rows.len())?;
        self.check_ids(keys)?;
        for (&key, row) in keys.iter().zip(rows.chunks_exact_mut(self.dim())) {
            self.shared.layout.fill_initial(key, row);
        }
        Ok(())
    }

    /// Replaces or inserts rows without a lease: `rows` holds keys * dim values; of equal keys the last
    /// one wins. The optimizer's state of an existing row is kept, that of a new one starts afresh. Touches
    /// no clock.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::KeyIsNoId`] and [`Error::NonFiniteRow`] before any row is changed; a failure
    /// of the store, after which some are.
    pub fn put(&self, keys: &[u64], rows: &[f32]) -> Result<()> {
        self.check_shape("rows", keys.len(), rows.len())?;
        self.check_rows(rows, |row| keys[row])?;
        self.put_unchecked(keys, rows)
    }

    /// As [`put`](Self::put), of values that may be NaN or infinite.
    pub(crate) fn put_unchecked(&self, keys: &[u64], rows: &[f32]) -> Result<()> {
        let unique = UniqueKeys::new(keys);
        self.check_ids(unique.keys())?;
        let last_places = (!unique.all_distinct()).then(|| unique.last_places());
        self.execute_put(unique.keys(), rows, last_places.as_deref(), Clock::Keep)
            .map_err(|(error, _)| error)
    }

    /// Applies gradients without a lease: `gradients` holds keys * dim values; those of equal keys are
    /// summed in batch order first. Missing rows start from their initial values. Touches no clock.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::KeyIsNoId`], [`Error::NoOptimizer`] and [`Error::NonFiniteGradient`] before
    /// any row is changed; [`Error::RowOverflow`] after all other rows are; a failure of the store, after which some are.
    pub fn apply_gradients(&self, keys: &[u64], gradients: &[f32]) -> Result<()> {
        self.check_shape("gradients", keys.len(), gradients.len())?;
        let unique = UniqueKeys::new(keys);
        self.check_ids(unique.keys())?;
        let sums = self.summed(&unique, gradients);
        let magnitudes = self.check_gradients(unique.keys(), &sums)?;
        let insert_missing = self.shared.gate.is_none();
        let mut apply = self.prepare_apply(unique.keys(), sums, magnitudes, insert_missing);
        self.execute_update(unique.keys(), Clock::Keep, &mut apply)
    }

    /// For each key whether the table has its row. Touches no clock.
    ///
    /// # Errors
    /// A failure of the store.
    pub fn contains(&self, keys: &[u64]) -> Result<Vec<bool>> {
        let mut present = vec![true; keys.len()];
        for place in self.find(keys, &mut FindRows)? {
            present[place as usize] = false;
        }
        Ok(present)
    }

    /// Has the rows of `keys` that are on disk, or next in line for it, brought into mutable memory soon.
    /// Never waits for the disk: what does not fit the queue is dropped, and a worker does the rest.
    /// Clocks and staleness bounds play no part.
    ///
    /// # Errors
    /// [`Error::LookaheadFailed`] reports, once, that reading ahead failed since the last call; this
    /// call's keys are not queued then. [`ThreadRefused`](embank_kv::Error::ThreadRefused), or another failure
    /// of the store.
    pub fn lookahead(&self, keys: &[u64]) -> Result<LookaheadReceipt> {
        let row_bytes = self.shared.layout().value_bytes() as u64;
        let announced = self.context().lookahead.announce(self.shared.id, row_bytes, keys);
        announced.map_err(|error| match error {
            Error::Store(error) => self.in_terms_of_the_table(error),
            other => other,
        })
    }

    /// Forgets what looking ahead still has to do for these keys, whoever asked for it: those that wait for their turn
    /// stay where they are, and none is kept in memory any more. Returns how many waited.
    pub fn cancel_lookahead(&self, keys: &[u64]) -> usize {
        self.context().lookahead.cancel_keys(self.shared.id, keys)
    }

    /// Reads the rows of `keys` ahead into a buffer, for a [`wait`](Prefetch::wait) later: for evaluation, and for
    /// features that are only read. Never waits: the thread that reads ahead does it all, behind the reads that
    /// somebody waits for. As a peek, it touches no clock and writes nothing; rows that are to be trained want
    /// [`lookahead`](Self::lookahead). The buffer, keys * dim * 4 bytes, comes out of the bank's memory budget until
    /// the rows are fetched or the handle is dropped.
    ///
    /// # Errors
    /// [`BudgetTooSmall`](embank_kv::Error::BudgetTooSmall) if so much is prefetched already that the store could not
    /// do with the rest: wait for some of it first. [`Error::TableDropped`], [`ThreadRefused`](embank_kv::Error::ThreadRefused).
    /// Keys that are
    /// no ids of the table's vocabulary are refused by [`wait`](Prefetch::wait), as by a [`peek`](Self::peek).
    pub fn prefetch(&self, keys: &[u64]) -> Result<Prefetch> {
        self.check_numbering()?;
        let unique = UniqueKeys::new(keys);
        let bytes = unique.len() as u64 * self.dim() as u64 * 4;
        let loan = self.context().store.lend_memory(bytes);
        let loan = loan.map_err(|error| self.context().budget.in_terms_of_the_bank(error))?;
        let (prefetch, job) = Prefetch::new(self.clone(), unique, loan);
        self.context().lookahead.prefetch(Box::new(job))?;
        Ok(prefetch)
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
        self.shared.holders.list(self.name(), None, Instant::now())
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

    /// The store knows tables by id; a handle's id is refused only once the table was dropped.
    #[cold]
    pub(crate) fn in_terms_of_the_table(&self, error: embank_kv::Error) -> Error {
        match error {
            embank_kv::Error::NoSuchTable(_) => {
                Error::TableDropped { table: self.name().to_owned() }
            }
            other => other.into(),
        }
    }

    /// Executes an operation that only reads; returns the places of missing rows, ascending.
    fn find<O: Operation>(&self, keys: &[u64], operation: &mut O) -> Result<Vec<u32>> {
        self.check_numbering()?;
        let mut outcome = self.execute(keys, Clock::Keep, operation)?;
        self.shared.counters.disk_reads.add(outcome.disk_reads);
        outcome.missing.sort_unstable();
        Ok(outcome.missing)
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
