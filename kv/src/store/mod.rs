//! The store: one log, one index, many tables.

mod lengths;
mod open;

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};

use crate::address::{Address, TableId};
use crate::bank_file::BankFile;
use crate::budget::Budget;
use crate::buffers::Buffers;
use crate::cache::RowCache;
use crate::checkpoint::{CheckpointIdentity, Checkpoints, Manifest, TableEntry};
use crate::compaction::{Compacted, CompactionOptions, Space};
use crate::device::{self, DeviceChoice};
use crate::epoch::Gate;
use crate::error::{Error, Result};
use crate::execute::{
    Batch, Caller, Delete, Hit, Locate, Mode, Promote, ReadClock, Scratch, Tally, Work, try_single,
};
use crate::index::Index;
use crate::log::Log;
use crate::log::page::PAGE_HEADER_BYTES;
use crate::operation::{Clock, Operation, Outcome, Promoted, Width};
use crate::record::{HEADER_BYTES, VALUE_BYTES_MAX, record_bytes};
use crate::scan::Scan;
use crate::stats::{Counters, StoreStats};
use crate::sync::{AtomicU64, Ordering};
use crate::waiters::{ReleaseTicket, Waiters};
use lengths::Lengths;

/// With 65,535 tables, names and descriptors stay within what `metadata` decodes.
const TABLE_NAME_BYTES_MAX: usize = 1 << 10;
const DESCRIPTOR_BYTES_MAX: usize = 2 << 10;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Memory for everything: log frames, index, buffers. Bytes; default 1 GiB, at least
    /// [`BUDGET_BYTES_MIN`](crate::BUDGET_BYTES_MIN).
    pub memory_budget_bytes: u64,
    /// Default: io_uring where the kernel grants it.
    pub device: DeviceChoice,
    /// Checkpoints that stay on disk, the newest ones; at least 1. Default 2.
    pub checkpoints_kept: usize,
    /// Size of a log page for a new bank: a power of two from 8 KiB to 4 MiB. Default: follows from
    /// the budget. A bank keeps the page size that it was created with.
    pub page_size_bytes: Option<u32>,
    /// How space is given back. Default: in the background, so that the log stays below 1.5 times its rows.
    pub compaction: CompactionOptions,
    /// The most that the log may take on disk, in bytes; none by default. At the quota, writers wait for
    /// compaction as far as that can help, then fail with `QuotaExceeded`. Deletions go on, and peeks, and
    /// whatever releases clocks: the rows that are out come to their end, if need be beyond the quota.
    /// Checkpoints' index images are not counted.
    pub disk_quota_bytes: Option<u64>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            memory_budget_bytes: 1 << 30,
            device: DeviceChoice::Auto,
            checkpoints_kept: 2,
            page_size_bytes: None,
            compaction: CompactionOptions::default(),
            disk_quota_bytes: None,
        }
    }
}

/// A table of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Its number, for the store's other calls.
    pub id: TableId,
    /// Its name.
    pub name: String,
    /// How long its values are: all alike, or each as it is.
    pub width: Width,
    /// Bytes of each value; where the width is variable, of the longest that it takes.
    pub value_bytes: u32,
    /// What the caller keeps with it.
    pub descriptor: Vec<u8>,
}

/// What the newest checkpoint held besides rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The checkpoint's number.
    pub checkpoint: u64,
    /// The caller's bytes.
    pub blob: Vec<u8>,
}

/// What batches and the writer thread share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) log: Log,
    pub(crate) index: Index,
    pub(crate) gate: Gate,
    pub(crate) budget: Arc<Budget>,
    pub(crate) buffers: Buffers,
    pub(crate) cache: RowCache,
    /// Records at or above this address were written since the store was opened.
    pub(crate) session_start: u64,
    pub(crate) space: Space,
    pub(crate) counters: Arc<Counters>,
    waiters: Waiters,
    pub(crate) tables: RwLock<Vec<TableState>>,
    /// Of `tables`, for every batch.
    lengths: Lengths,
}

/// A table and its count of rows.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) entry: TableEntry,
    /// Batches add what they inserted less what they deleted before they unpin, so the sum is exact while
    /// they are paused. Between the counts of two batches it may be off, even below zero.
    pub(crate) rows: AtomicU64,
    /// Bytes of those rows' records, where the width is variable; counted in the same way.
    record_bytes: AtomicU64,
    /// Where the log ended when the table was dropped; no record of it was begun after that, but for those of
    /// batches that were under way.
    dropped_at: u64,
}

impl TableState {
    /// A table that is new, or was in a checkpoint whose log ends at `log_end`.
    fn new(entry: TableEntry, log_end: u64) -> Self {
        let (rows, record_bytes) = (entry.rows.into(), entry.record_bytes.into());
        TableState { rows, record_bytes, dropped_at: log_end, entry }
    }

    /// The table as a checkpoint holds it whose log begins at `log_begin`.
    fn to_entry(&self, log_begin: u64) -> TableEntry {
        // Once none of its records is left, their length is no matter to whoever opens the bank.
        let gone = self.entry.dropped && log_begin >= self.dropped_at;
        TableEntry {
            value_bytes: if gone { 0 } else { self.entry.value_bytes },
            rows: self.rows.load(Ordering::Relaxed),
            record_bytes: self.record_bytes.load(Ordering::Relaxed),
            ..self.entry.clone()
        }
    }

    /// Bytes of a record; of the longest one, where the width is variable.
    pub(crate) fn record_bytes_max(&self) -> u64 {
        record_bytes(self.entry.value_bytes as usize) as u64
    }

    /// Bytes of the records of so many rows, all that the table has.
    pub(crate) fn live_bytes(&self, rows: u64) -> u64 {
        let longest = self.record_bytes_max();
        match self.entry.width() {
            Width::Fixed => rows * longest,
            Width::Variable => {
                // Counts of batches under way may not fit each other.
                let bytes = self.record_bytes.load(Ordering::Relaxed);
                let bytes = bytes.cast_signed().max(0).cast_unsigned();
                bytes.clamp(rows * HEADER_BYTES as u64, rows * longest)
            }
        }
    }
}

impl Core {
    /// The longest record that fits a page and a read buffer.
    pub(crate) fn record_bytes_max(&self) -> usize {
        let in_page = (self.log.page_bytes() - PAGE_HEADER_BYTES) as usize;
        let in_buffer = self.buffers.bytes_each() - 2 * device::BLOCK_BYTES;
        in_page.min(in_buffer).min(record_bytes(VALUE_BYTES_MAX))
    }

    pub(crate) fn table_name(&self, table: TableId) -> String {
        let tables = self.tables.read();
        let found = tables.iter().find(|state| state.entry.id() == table && !state.entry.dropped);
        found.map_or_else(|| format!("number {}", table.0), |state| state.entry.name.clone())
    }

    /// The value length of a table of this width; the longest value's, where that varies.
    #[inline]
    pub(crate) fn value_bytes(&self, table: TableId, width: Width) -> Result<usize> {
        self.lengths.get(table, width).ok_or_else(|| self.not_of_width(table, width))
    }

    #[cold]
    fn not_of_width(&self, table: TableId, width: Width) -> Error {
        if let Err(error) = self.width(table) {
            return error;
        }
        let name = self.table_name(table);
        Error::InvalidArgument(match width {
            Width::Fixed => format!(
                "table {name:?} has values of variable width: it takes operations whose WIDTH is Variable"
            ),
            Width::Variable => format!(
                "table {name:?} has values of fixed width: it takes operations whose WIDTH is Fixed"
            ),
        })
    }

    pub(crate) fn width(&self, table: TableId) -> Result<Width> {
        let width = self.lengths.width(table);
        width.ok_or_else(|| Error::NoSuchTable(format!("number {}", table.0)))
    }

    /// Bytes of a record of a table on average; none as long as it has no rows.
    pub(crate) fn mean_record_bytes(&self, table: TableId) -> Option<usize> {
        let tables = self.tables.read();
        let state = tables.get(usize::from(table.0).wrapping_sub(1))?;
        let rows = state.rows.load(Ordering::Relaxed).cast_signed();
        let rows = u64::try_from(rows).ok().filter(|&rows| rows > 0)?;
        Some(state.live_bytes(rows).div_ceil(rows) as usize)
    }

    /// Adds to the bytes of a table's records, wrapping.
    #[cold]
    pub(crate) fn add_record_bytes(&self, table: TableId, bytes: u64) {
        if let Some(state) = self.tables.read().get(usize::from(table.0).wrapping_sub(1)) {
            state.record_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a single key that took the short way: one counter tells all.
    #[inline]
    fn count_single(&self, mode: Mode, hit: Hit) {
        let singles = &self.counters.singles;
        match (mode, hit) {
            (Mode::Peek, Hit::Mutable) => singles.peek_mutable.add(1),
            (Mode::Peek, Hit::ReadOnly) => singles.peek_read_only.add(1),
            (Mode::Get, _) => singles.get.add(1),
            (Mode::Update, _) => singles.update.add(1),
            (Mode::Put, _) => singles.put.add(1),
            (Mode::Delete | Mode::Promote | Mode::Compact | Mode::Locate, _) => {}
        }
    }

    /// So many promoted rows were used for the first time, the oldest of which lay at `from`.
    #[cold]
    pub(crate) fn note_promoted_used(&self, rows: u64, from: Address) {
        self.counters.promoted_used.add(rows);
        self.log.note_promoted_use(from);
    }

    /// Adds to a table's count of rows, wrapping.
    #[cold]
    pub(crate) fn add_rows(&self, table: TableId, rows: u64) {
        if let Some(state) = self.tables.read().get(usize::from(table.0).wrapping_sub(1)) {
            state.rows.fetch_add(rows, Ordering::Relaxed);
        }
    }

    /// Counts a batch of so many keys.
    fn add_tally(&self, mode: Mode, keys: u64, tally: &Tally) {
        let counters = &self.counters;
        counters.batches.add(1);
        // What was done, which after an error is less than what was asked.
        let found = tally.hits_mutable + tally.hits_read_only + tally.hits_disk + tally.hits_cache;
        let changed = match mode {
            Mode::Peek => {
                counters.peek_keys.add(keys);
                0
            }
            Mode::Get => {
                counters.get_keys.add(keys);
                tally.inserted
            }
            Mode::Update => {
                counters.update_keys.add(keys);
                found + tally.inserted
            }
            Mode::Put => {
                counters.put_keys.add(keys);
                found + tally.inserted
            }
            Mode::Delete => {
                counters.delete_keys.add(keys);
                tally.deleted
            }
            // Looking ahead is no operation on rows; what it moves is counted as promoted.
            Mode::Promote | Mode::Compact | Mode::Locate => 0,
        };
        counters.changed.add(changed);
        counters.deleted.add(tally.deleted);
        counters.hits_mutable.add(tally.hits_mutable);
        counters.hits_read_only.add(tally.hits_read_only);
        counters.hits_disk.add(tally.hits_disk);
        counters.hits_cache.add(tally.hits_cache);
        counters.missing.add(tally.missing);
        counters.inserted.add(tally.inserted);
        counters.records_appended.add(tally.appended);
        counters.copied_to_tail.add(tally.copied);
        counters.disk_reads.add(tally.disk_reads);
        counters.disk_reads_joined.add(tally.disk_reads_joined);
        counters.disk_queue_depth_max.raise(tally.disk_queue_depth_max);
        counters.disk_read_bytes.add(tally.disk_read_bytes);
        counters.promoted.add(tally.promoted);
        if let Some(from) = tally.promoted_used_from {
            self.note_promoted_used(tally.promoted_used, from);
        }
        counters.overtaken.add(tally.overtaken);
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// The thread's scratch; a new one for a batch within a batch, or in a destructor as the thread ends.
fn take_scratch() -> Box<Scratch> {
    SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

fn give_back_scratch(scratch: Box<Scratch>) {
    // A thread that is ending keeps none.
    let _ = SCRATCH.try_with(|place| place.set(Some(scratch)));
}

/// Wakes those who wait for rows of a batch when the batch is over, whatever its end: an error or a panic in
/// the middle leaves clocks that have come down.
struct Released<'a> {
    waiters: &'a Waiters,
    table: TableId,
    keys: &'a [u64],
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.waiters.released(self.table, self.keys);
    }
}

/// A store of rows in a directory. Share it between threads behind an `Arc` or a reference.
///
/// Dropping it writes nothing: what was not in a checkpoint is gone.
///
/// ```
/// use embank_kv::{Access, Clock, Operation, Store, StoreOptions};
///
/// struct PutAll<'a>(&'a [u64]);
/// impl Operation for PutAll<'_> {
///     const ACCESS: Access = Access::Put;
///     fn update(&mut self, i: usize, value: &mut [u8]) {
///         value.copy_from_slice(&self.0[i].to_le_bytes());
///     }
///     fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
///         self.update(i, value);
///         true
///     }
/// }
///
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let store = Store::open(dir.path(), &StoreOptions::default())?;
/// let table = store.create_table("squares", 8, b"")?;
/// store.execute(table, &[2, 3], Clock::Keep, &mut PutAll(&[4, 9]))?;
/// store.checkpoint(b"step 1")?; // durable from here on
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Store {
    core: Arc<Core>,
    writer: Option<JoinHandle<()>>,
    compactor: Option<JoinHandle<()>>,
    checkpoints: Checkpoints,
    /// Held while a checkpoint is taken.
    newest: Mutex<Newest>,
    checkpoints_kept: usize,
    segment_bytes: u64,
    bank: u64,
    recovered: Option<Recovered>,
    dir: PathBuf,
    _lock: File,
}

/// The newest checkpoint.
#[derive(Debug)]
struct Newest {
    /// Its number; 0 for none.
    number: u64,
    /// Whether the bank file says that there is one.
    noted: bool,
}

impl Store {
    /// The checkpoint that the store was opened at; none for a new store.
    #[must_use]
    pub fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// The store's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Makes a table of values of `value_bytes`, with a `descriptor` of the caller's. Durable with the
    /// next checkpoint.
    ///
    /// # Errors
    /// `TableMismatch` if the name is taken; `InvalidArgument` for a value that fits no page, or after
    /// 65,535 tables.
    pub fn create_table(&self, name: &str, value_bytes: u32, descriptor: &[u8]) -> Result<TableId> {
        self.create(name, Width::Fixed, value_bytes, descriptor)
    }

    /// Makes a table of values of any length up to `value_bytes_max`, each as long as it is: 32 bytes of
    /// header, and the value padded to 8. It takes operations whose [`Operation::WIDTH`] is `Variable`.
    ///
    /// A value changes in place as long as its padded length stays; one of another length goes to the
    /// log's tail, which costs a record's space until compaction has passed the old one.
    ///
    /// ```
    /// use embank_kv::{Access, Clock, Operation, Store, StoreOptions, Width};
    ///
    /// struct PutWords<'a>(&'a [&'a str]);
    /// impl Operation for PutWords<'_> {
    ///     const ACCESS: Access = Access::Put;
    ///     const WIDTH: Width = Width::Variable;
    ///     fn value_bytes(&mut self, i: usize, _old: Option<&[u8]>) -> usize {
    ///         self.0[i].len()
    ///     }
    ///     fn update(&mut self, i: usize, value: &mut [u8]) {
    ///         value.copy_from_slice(self.0[i].as_bytes());
    ///     }
    ///     fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
    ///         self.update(i, value);
    ///         true
    ///     }
    /// }
    ///
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let store = Store::open(dir.path(), &StoreOptions::default())?;
    /// let words = store.create_variable_table("words", 1024, b"")?;
    /// store.execute(words, &[0, 1], Clock::Keep, &mut PutWords(&["in", "order"]))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`create_table`](Self::create_table), for a maximum that fits no page.
    pub fn create_variable_table(
        &self,
        name: &str,
        value_bytes_max: u32,
        descriptor: &[u8],
    ) -> Result<TableId> {
        self.create(name, Width::Variable, value_bytes_max, descriptor)
    }

    fn create(
        &self,
        name: &str,
        width: Width,
        value_bytes: u32,
        descriptor: &[u8],
    ) -> Result<TableId> {
        check_value_bytes(&self.core, name, value_bytes)?;
        if descriptor.len() > DESCRIPTOR_BYTES_MAX {
            return Err(Error::InvalidArgument(format!(
                "table {name:?}: a descriptor of {} bytes is longer than {DESCRIPTOR_BYTES_MAX}",
                descriptor.len()
            )));
        }
        let mut tables = self.core.tables.write();
        let taken = |state: &&TableState| !state.entry.dropped && state.entry.name == name;
        if let Some(found) = tables.iter().find(taken).map(|state| &state.entry) {
            return Err(Error::TableMismatch {
                name: name.into(),
                expected: "a new table".into(),
                found: match found.width() {
                    Width::Fixed => format!("values of {} bytes", found.value_bytes),
                    Width::Variable => format!("values of up to {} bytes", found.value_bytes),
                },
            });
        }
        let number = u16::try_from(tables.len() + 1).map_err(|_| {
            Error::InvalidArgument("a bank holds at most 65,535 tables; open another bank".into())
        })?;
        let entry = TableEntry {
            number,
            name: name.into(),
            value_bytes,
            variable: width == Width::Variable,
            descriptor: descriptor.into(),
            rows: 0,
            record_bytes: 0,
            dropped: false,
        };
        tables.push(TableState::new(entry, 0));
        self.core.lengths.set(TableId(number), width, value_bytes);
        Ok(TableId(number))
    }

    /// Drops a table: its rows are gone for every operation that begins from now on, and for those that
    /// wait. Durable with the next checkpoint: a crash before that brings the table back whole. Its space
    /// comes back by compaction. Its number is not given again, its name may be.
    ///
    /// # Errors
    /// `NoSuchTable`.
    pub fn drop_table(&self, table: TableId) -> Result<()> {
        self.core.log.check_poison()?;
        {
            let mut tables = self.core.tables.write();
            // Under the lock: of two calls one drops the table.
            self.core.width(table)?;
            let state = &mut tables[usize::from(table.0) - 1];
            state.entry = TableEntry {
                name: String::new(),
                descriptor: Vec::new(),
                dropped: true,
                ..state.entry.clone()
            };
            (state.rows, state.record_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
            state.dropped_at = self.core.log.tail_address();
            self.core.lengths.clear(table);
        }
        self.core.waiters.wake_all();
        self.core.space.signal().raise();
        Ok(())
    }

    /// All tables but the dropped ones, in the order in which they were made.
    #[must_use]
    pub fn tables(&self) -> Vec<TableInfo> {
        let tables = self.core.tables.read();
        let info = |entry: &TableEntry| TableInfo {
            id: entry.id(),
            name: entry.name.clone(),
            width: entry.width(),
            value_bytes: entry.value_bytes,
            descriptor: entry.descriptor.clone(),
        };
        tables.iter().map(|state| &state.entry).filter(|entry| !entry.dropped).map(info).collect()
    }

    fn run<W: Work>(
        &self,
        table: TableId,
        keys: &[u64],
        clock: Clock,
        work: &mut W,
    ) -> Result<(Outcome, Tally)> {
        let value_bytes = self.core.value_bytes(table, W::WIDTH)?;
        let releases = clock == Clock::Release || W::MODE == Mode::Delete;
        let _released = releases.then(|| Released { waiters: &self.core.waiters, table, keys });
        if let [key] = *keys
            && let Some(hit) = try_single(&self.core, (table, value_bytes), key, clock, work)
        {
            self.core.count_single(W::MODE, hit);
            return Ok((Outcome::default(), Tally::default()));
        }
        if u32::try_from(keys.len()).is_err() {
            return Err(Error::InvalidArgument("a batch holds at most 4,294,967,295 keys".into()));
        }
        let mut scratch = take_scratch();
        // Filled where they lie: most of a single operation's time would go into moving them.
        let (mut outcome, mut tally) = (Outcome::default(), Tally::default());
        let memory = (&mut *scratch, &mut outcome, &mut tally);
        let result = Batch::new(&self.core, (table, value_bytes), keys, clock, work, memory).run();
        give_back_scratch(scratch);
        self.core.add_tally(W::MODE, keys.len() as u64, &tally);
        result.map(|()| (outcome, tally))
    }

    /// Runs an operation over a batch of keys of one table.
    ///
    /// With `Acquire` and `Release` the keys must be distinct, lest a batch wait for itself; of equal keys
    /// in other batches each is worked on, in no particular order. Rows are
    /// worked on one by one: other batches may see some done and others not yet.
    ///
    /// # Errors
    /// `NoSuchTable`; `InvalidArgument` for an operation of another width than the table's, or a value longer
    /// than its maximum; `Damaged` or `Io` for a row that can't be read; `Poisoned` after a failed write,
    /// for anything but a peek. Other rows may have been worked on before the failure.
    pub fn execute<O: Operation>(
        &self,
        table: TableId,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        self.run(table, keys, clock, &mut Caller(operation)).map(|(outcome, _)| outcome)
    }

    /// Deletes rows; returns how many were there.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn delete(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        let (_, tally) = match self.core.width(table)? {
            Width::Fixed => self.run(table, keys, Clock::Keep, &mut Delete::<false>)?,
            Width::Variable => self.run(table, keys, Clock::Keep, &mut Delete::<true>)?,
        };
        Ok(tally.deleted)
    }

    /// Adds to `out` those keys whose rows `promote` would move: on disk, or in the read-only region and
    /// so next in line for it. Reads nothing from disk itself, so a key whose hash only looks like that
    /// of a row on disk may be among them.
    ///
    /// # Errors
    /// `NoSuchTable`.
    pub fn promotable(&self, table: TableId, keys: &[u64], out: &mut Vec<u64>) -> Result<()> {
        let (outcome, _) = match self.core.width(table)? {
            Width::Fixed => self.run(table, keys, Clock::Keep, &mut Locate::<false>)?,
            Width::Variable => self.run(table, keys, Clock::Keep, &mut Locate::<true>)?,
        };
        out.extend(outcome.missing.iter().map(|&i| keys[i as usize]));
        Ok(())
    }

    /// Brings rows from disk and from the read-only region into mutable memory, their clocks kept. A row
    /// in the read-only region would be copied by its next Get anyway, unless it is evicted first:
    /// then the Get would wait for the disk.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn promote(&self, table: TableId, keys: &[u64]) -> Result<Promoted> {
        let (outcome, tally) = match self.core.width(table)? {
            Width::Fixed => self.run(table, keys, Clock::Keep, &mut Promote::<false>)?,
            Width::Variable => self.run(table, keys, Clock::Keep, &mut Promote::<true>)?,
        };
        Ok(Promoted {
            moved: tally.moved,
            resident: tally.resident,
            missing: outcome.missing.len() as u64,
            overtaken: tally.overtaken,
        })
    }

    /// To wait for a blocked row: take a ticket, try the `Acquire` again, and if it is still blocked,
    /// [wait](Self::wait_released) with the ticket. In this order no release is missed.
    pub fn release_ticket(&self, table: TableId, key: u64) -> ReleaseTicket<'_> {
        self.core.waiters.ticket(table, key)
    }

    /// Parks until some row of the ticket's stripe was released, or until the deadline: then false.
    #[must_use]
    pub fn wait_released(&self, ticket: ReleaseTicket<'_>, deadline: Instant) -> bool {
        ticket.wait(deadline)
    }

    /// Wakes everybody who [waits](Self::wait_released), to try again: what they wait for may have changed
    /// otherwise than by a release.
    pub fn wake_waiters(&self) {
        self.core.waiters.wake_all();
    }

    /// How many Gets of a row are outstanding; none if the row is missing. Reads the disk if it must.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn clock_of(&self, table: TableId, key: u64) -> Result<Option<u32>> {
        let (mut fixed, mut variable) = (ReadClock::<false>(None), ReadClock::<true>(None));
        let (outcome, _) = match self.core.width(table)? {
            Width::Fixed => self.run(table, &[key], Clock::Keep, &mut fixed)?,
            Width::Variable => self.run(table, &[key], Clock::Keep, &mut variable)?,
        };
        Ok(fixed.0.or(variable.0).filter(|_| outcome.missing.is_empty()))
    }

    /// Takes a checkpoint of all tables and of `blob`, the caller's own bytes; returns its number.
    ///
    /// When it returns, the checkpoint is on stable storage. Batches are held while pages are written
    /// and the index is copied; batches that another thread has half done are in it half done.
    ///
    /// # Errors
    /// `Io` or `Poisoned` if something can't be written or synced. The newest checkpoint is then the one
    /// before, unless only the last step failed, making the new one's name durable: then a reopen may find
    /// either, both whole, and the store takes no more writes.
    pub fn checkpoint(&self, blob: &[u8]) -> Result<u64> {
        let mut newest = self.newest.lock();
        self.core.log.check_poison()?;
        let started = Instant::now();
        let number = newest.number + 1;
        let identity = CheckpointIdentity { bank: self.bank, checkpoint: number };
        let partial = self.checkpoints.begin(number)?;
        let pause = self.core.gate.pause();
        let log_end = self.core.log.settle()?;
        // From here on nothing that this checkpoint names is given back.
        let pin = self.core.pin_checkpoint(number);
        let log_begin = pin.begin;
        let tables =
            self.core.tables.read().iter().map(|table| table.to_entry(log_begin)).collect();
        let (index_file, index_file_bytes) =
            self.core.index.write_image(&partial.index_path(), identity, log_begin)?;
        drop(pause);
        let paused = started.elapsed();
        self.core.log.device.sync().inspect_err(|e| self.core.log.poison(e))?;
        index_file.sync_all().map_err(|e| Error::io("sync", partial.index_path(), e))?;
        partial.write_blob(identity, blob)?;
        let manifest = Manifest {
            number,
            bank: self.bank,
            page_bits: self.core.log.page_bytes().ilog2(),
            segment_bytes: self.segment_bytes,
            log_begin,
            log_end: log_end.raw(),
            index_file_bytes,
            blob_bytes: blob.len() as u64,
            tables,
        };
        partial.complete(&manifest)?;
        pin.keep();
        newest.number = number;
        // A name that may or may not last leaves open which checkpoint is the newest: no more writing.
        self.checkpoints.sync().inspect_err(|e| self.core.log.poison(e))?;
        if !newest.noted {
            BankFile { bank: self.bank, has_checkpoint: true }.write(&self.dir)?;
            newest.noted = true;
        }
        // The checkpoint stands; one too many on disk is tried again after the next.
        let pruned = self.checkpoints.prune(self.checkpoints_kept);
        // Those that are gone for good hold no space any more. What fails here is tried again with the next
        // page of compaction or the next checkpoint.
        if let Ok(on_disk) = pruned.and_then(|()| self.checkpoints.numbers()) {
            self.core.unpin_all_but(&on_disk);
            let _ = self.core.free_space(0);
        }
        self.core.space.signal().raise();
        let counters = &self.core.counters;
        counters.checkpoints.add(1);
        counters.last_checkpoint_us.set(started.elapsed().as_micros() as u64);
        counters.last_checkpoint_pause_us.set(paused.as_micros() as u64);
        counters.checkpoint_pauses.note(paused);
        Ok(number)
    }

    /// Goes through a table as the newest checkpoint holds it: each of its rows once, in no particular order,
    /// while other calls go on. Reads the checkpoint's log from end to end, whatever other tables lie in it.
    /// While a scan lives, the log's space is not given back, and two pages of the memory budget are lent to
    /// it.
    ///
    /// ```
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let store = embank_kv::Store::open(dir.path(), &embank_kv::StoreOptions::default())?;
    /// # let table = store.create_table("squares", 8, b"")?;
    /// store.checkpoint(b"")?;
    /// let mut scan = store.scan(table)?;
    /// while let Some(row) = scan.next_row()? {
    ///     println!("{}: {:?}", row.key, row.value);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NoSuchTable` if there is no such table, or was none at the checkpoint; `InvalidArgument` without a
    /// checkpoint; `BudgetTooSmall`; `Io` or `Damaged` for a checkpoint that can't be read.
    pub fn scan(&self, table: TableId) -> Result<Scan<'_>> {
        self.scan_held(table, None)
    }

    /// As [`scan`](Self::scan), for whoever can't borrow the store for so long: the scan keeps it open.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    pub fn scan_shared(self: &Arc<Self>, table: TableId) -> Result<Scan<'static>> {
        self.scan_held(table, Some(Arc::clone(self)))
    }

    fn scan_held<'a>(&self, table: TableId, held: Option<Arc<Store>>) -> Result<Scan<'a>> {
        self.core.width(table)?;
        // Held until the log is leased: no later checkpoint removes this one before.
        let newest = self.newest.lock();
        if newest.number == 0 {
            return Err(Error::InvalidArgument(
                "a scan shows a table as a checkpoint holds it, and there is none: take one first"
                    .into(),
            ));
        }
        let manifest = self.checkpoints.manifest(newest.number)?;
        let path = self.checkpoints.index_path(newest.number);
        let image = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
        let lease = self.core.lease(manifest.log_begin);
        drop(newest);
        Scan::new((&self.core, held), &manifest, (image, path), table, lease)
    }

    /// Compacts all of the log that is on disk now, whatever its space amplification: current rows go to the
    /// tail, and space goes back as far as no kept checkpoint names it; the rest follows with the next
    /// checkpoints. Other calls go on meanwhile. Tries again where compaction had stopped.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` for a page that can't be read, or a file that can't be removed: nothing
    /// at or after that page has been given back, and no row is lost that could be read before. `Poisoned`.
    pub fn compact(&self) -> Result<Compacted> {
        self.core.compact_all()
    }

    /// A snapshot of the counters. Cheap; may be called while batches run.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let core = &self.core;
        let c = &core.counters;
        let singles = c.singles.get();
        let view = core.log.view();
        let report = core.log.device.report();
        let live = core.live();
        StoreStats {
            device: core.log.device.name(),
            device_notes: report
                .io_uring_refused
                .into_iter()
                .chain(report.direct_io_refused)
                .collect(),
            batches: c.batches.get() + singles.all(),
            peek_keys: c.peek_keys.get() + singles.peek_mutable + singles.peek_read_only,
            get_keys: c.get_keys.get() + singles.get,
            update_keys: c.update_keys.get() + singles.update,
            put_keys: c.put_keys.get() + singles.put,
            delete_keys: c.delete_keys.get(),
            changed: c.changed.get() + singles.update + singles.put,
            deleted: c.deleted.get(),
            hits_mutable: c.hits_mutable.get() + singles.all() - singles.peek_read_only,
            hits_read_only: c.hits_read_only.get() + singles.peek_read_only,
            hits_disk: c.hits_disk.get(),
            hits_cache: c.hits_cache.get(),
            missing: c.missing.get(),
            inserted: c.inserted.get(),
            records_appended: c.records_appended.get(),
            copied_to_tail: c.copied_to_tail.get(),
            disk_reads: c.disk_reads.get(),
            disk_reads_joined: c.disk_reads_joined.get(),
            disk_queue_depth_max: c.disk_queue_depth_max.get(),
            disk_read_bytes: c.disk_read_bytes.get(),
            disk_write_bytes: c.disk_write_bytes.get(),
            promoted: c.promoted.get(),
            promoted_used: c.promoted_used.get(),
            promoted_wasted: c.promoted_wasted.get(),
            overtaken: c.overtaken.get(),
            page_waits: c.page_waits.count(),
            page_waits_us: c.page_waits.total_us(),
            page_waits_us_max: c.page_waits.longest_us(),
            growth_steps: c.growth_steps.count(),
            growth_steps_us: c.growth_steps.total_us(),
            growth_steps_us_max: c.growth_steps.longest_us(),
            checkpoint_pauses_us: c.checkpoint_pauses.total_us(),
            checkpoint_pauses_us_max: c.checkpoint_pauses.longest_us(),
            memory_budget_bytes: core.budget.total_bytes(),
            memory_frames_bytes: core.log.frame_bytes(),
            memory_index_bytes: core.budget.index_bytes(),
            memory_cache_bytes: core.cache.bytes(),
            memory_buffers_bytes: core.budget.buffer_bytes(),
            index_entries: core.index.entry_count(),
            live_rows: live.rows,
            live_bytes: live.bytes,
            log_disk_bytes: core.disk_bytes(),
            log_held_bytes: view.begin.saturating_sub(core.space.freed()),
            compacted_bytes: c.compacted_bytes.get(),
            compaction_copied_bytes: c.compaction_copied_bytes.get(),
            compaction_us: c.compaction_us.get(),
            compaction_waits: c.compaction_waits.count(),
            compaction_waits_us: c.compaction_waits.total_us(),
            compaction_waits_us_max: c.compaction_waits.longest_us(),
            compaction_stopped: core.space.stopped(),
            freed_bytes: c.freed_bytes.get(),
            segments_freed: c.segments_freed.get(),
            log_begin: view.begin,
            log_head: view.head,
            log_read_only: view.read_only,
            log_tail: core.log.tail_address(),
            page_size_bytes: core.log.page_bytes(),
            checkpoints: c.checkpoints.get(),
            last_checkpoint_us: c.last_checkpoint_us.get(),
            last_checkpoint_pause_us: c.last_checkpoint_pause_us.get(),
        }
    }
}

fn check_value_bytes(core: &Core, name: &str, value_bytes: u32) -> Result<()> {
    if name.len() > TABLE_NAME_BYTES_MAX {
        return Err(Error::InvalidArgument(format!(
            "a table's name of {} bytes is longer than {TABLE_NAME_BYTES_MAX}",
            name.len()
        )));
    }
    let room = core.record_bytes_max();
    if record_bytes(value_bytes as usize) <= room {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "table {name:?}: a value of {value_bytes} bytes does not fit a record of at most {room} \
         bytes; give the bank a larger memory budget or page size, or make the rows smaller"
    )))
}

impl Drop for Store {
    fn drop(&mut self) {
        // Before the writer, which it may wait for.
        self.core.space.shut_down();
        if let Some(compactor) = self.compactor.take() {
            // It does not panic either.
            let _ = compactor.join();
        }
        self.core.log.shut_down();
        if let Some(writer) = self.writer.take() {
            // The thread does not panic; if it did, there is nobody to tell.
            let _ = writer.join();
        }
    }
}
