//! The tables of a store: how they are made, dropped and listed.

use super::{Core, Store};
use crate::checkpoint::TableEntry;
use crate::engine::numbers::Named;
use crate::error::{Error, Result};
use crate::operation::Width;
use crate::record::address::{TableId, TableNumber};
use crate::record::layout::{HEADER_BYTES, record_bytes};
use crate::sync::{AtomicU64, Ordering};

/// With 65,535 tables, names and descriptors stay within what `metadata` decodes.
const TABLE_NAME_BYTES_MAX: usize = 1 << 10;
const DESCRIPTOR_BYTES_MAX: usize = 2 << 10;

/// A table of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// For the store's other calls.
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

/// A table and its count of rows.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) entry: TableEntry,
    /// Batches add what they inserted less what they deleted before they unpin, so the sum is exact while
    /// they are paused. Between the counts of two batches it may be off, even below zero.
    pub(crate) rows: AtomicU64,
    /// Bytes of those rows' records, where the width is variable; counted in the same way.
    pub(crate) record_bytes: AtomicU64,
    /// How many tables had the number in this store object before.
    incarnation: u32,
    /// All records of the dropped table lie below, and none will come; 0 if there never was one.
    /// `None` while the table is there, and until the first such moment after its drop.
    records_end: Option<u64>,
    /// The checkpoint that the store was opened at says that no record is left.
    was_gone: bool,
    /// The oldest and the newest checkpoint that may have the table or a record of it.
    named: Option<(u64, u64)>,
}

impl TableState {
    /// A table that is new.
    fn new(entry: TableEntry, incarnation: u32) -> Self {
        TableState {
            rows: entry.rows.into(),
            record_bytes: entry.record_bytes.into(),
            incarnation,
            records_end: None,
            was_gone: false,
            named: None,
            entry,
        }
    }

    /// A table of the checkpoint that the store is opened at, whose log ends at `log_end`.
    pub(crate) fn recovered(
        entry: TableEntry,
        incarnation: u32,
        log_end: u64,
        named: &Named,
    ) -> Self {
        TableState {
            records_end: entry.dropped.then_some(log_end),
            was_gone: entry.is_gone(),
            named: named.get(&entry.number).copied(),
            ..Self::new(entry, incarnation)
        }
    }

    pub(crate) fn id(&self) -> TableId {
        TableId { number: TableNumber(self.entry.number), incarnation: self.incarnation }
    }

    /// The id of the table that gets the number next; `None` after 4 billion of them.
    pub(crate) fn next_id(&self) -> Option<TableId> {
        let incarnation = self.incarnation.checked_add(1)?;
        Some(TableId { incarnation, ..self.id() })
    }

    /// The id that the table of another checkpoint's manifest has beside this one of the same
    /// number.
    pub(crate) fn id_of_later(&self, entry: &TableEntry) -> Option<TableId> {
        let of = |entry: &TableEntry| (entry.width(), entry.value_bytes, entry.dropped);
        let is_same = of(entry) == of(&self.entry)
            && (&entry.name, &entry.descriptor) == (&self.entry.name, &self.entry.descriptor);
        if is_same || entry.dropped { Some(self.id()) } else { self.next_id() }
    }

    /// True if the table was dropped and it is not known yet where its last record can be.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.entry.dropped && self.records_end.is_none()
    }

    /// Notes that all records of the dropped table lie below `log_end`, of which there are any only
    /// if it `was_written`.
    pub(crate) fn settle(&mut self, log_end: u64, was_written: bool) {
        self.records_end = Some(if was_written { log_end } else { 0 });
    }

    /// True if the table was dropped, and the log from `log_begin` on neither has a record of it
    /// nor will have one.
    fn has_no_record(&self, log_begin: u64) -> bool {
        self.entry.dropped && self.records_end.is_some_and(|end| end <= log_begin)
    }

    /// Whether another table can get the number. `checkpoints` are those on disk or about to be.
    pub(crate) fn is_free(&self, log_begin: u64, checkpoints: &[u64]) -> bool {
        let is_named = |&(oldest, newest): &(u64, u64)| {
            checkpoints.iter().any(|checkpoint| (oldest..=newest).contains(checkpoint))
        };
        self.has_no_record(log_begin)
            && self.named.as_ref().is_none_or(|named| !is_named(named))
            && self.next_id().is_some()
    }

    /// The table as checkpoint `number` holds it, whose log begins at `log_begin`.
    pub(crate) fn cut(&mut self, number: u64, log_begin: u64) -> TableEntry {
        // Once none of its records is left, their length is no matter for an open.
        let gone = self.entry.dropped && (self.was_gone || self.has_no_record(log_begin));
        if !gone {
            let oldest = self.named.map_or(number, |(oldest, _)| oldest);
            self.named = Some((oldest, number));
        }
        let count =
            |of: &AtomicU64| if self.entry.dropped { 0 } else { of.load(Ordering::Relaxed) };
        TableEntry {
            value_bytes: match (gone, self.entry.dropped) {
                (true, _) => 0,
                // 0 would say that no record is left.
                (false, true) => self.entry.value_bytes.max(1),
                (false, false) => self.entry.value_bytes,
            },
            rows: count(&self.rows),
            record_bytes: count(&self.record_bytes),
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

impl Store {
    /// Makes a table of values of `value_bytes`, with a `descriptor` of the caller's. Durable with the
    /// next checkpoint.
    ///
    /// # Errors
    /// `TableMismatch` if the name is taken; `InvalidArgument` for a value that fits no page, or if
    /// all 65,535 numbers are taken: by tables, and by dropped ones of which a record or a
    /// checkpoint is left.
    pub fn create_table(&self, name: &str, value_bytes: u32, descriptor: &[u8]) -> Result<TableId> {
        self.create(name, Width::Fixed, value_bytes, descriptor)
    }

    /// Makes a table of values of any length up to `value_bytes_max`, each as long as it is: 32 bytes of
    /// header, and the value padded to 8. It takes operations whose
    /// [`Operation::WIDTH`](crate::Operation::WIDTH) is `Variable`.
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
        let core = self.core();
        if let Err(error @ Error::ReadOnly { .. }) = core.log.check_poison() {
            return Err(error);
        }
        check_value_bytes(&core, name, value_bytes)?;
        if descriptor.len() > DESCRIPTOR_BYTES_MAX {
            return Err(Error::InvalidArgument(format!(
                "table {name:?}: a descriptor of {} bytes is longer than {DESCRIPTOR_BYTES_MAX}",
                descriptor.len()
            )));
        }
        let mut settled = false;
        // Ends: the second turn returns.
        loop {
            let mut tables = core.tables.write();
            check_name_is_free(&tables, name)?;
            if let Some(id) = core.next_table(&tables) {
                let entry = TableEntry {
                    number: id.number.0,
                    name: name.into(),
                    value_bytes,
                    variable: width == Width::Variable,
                    descriptor: descriptor.into(),
                    rows: 0,
                    record_bytes: 0,
                    dropped: false,
                };
                let state = TableState::new(entry, id.incarnation);
                match tables.get_mut(usize::from(id.number.0) - 1) {
                    Some(dropped) => *dropped = state,
                    None => tables.push(state),
                }
                core.lengths.set(id, width, value_bytes);
                return Ok(id);
            }
            drop(tables);
            if std::mem::replace(&mut settled, true) {
                return Err(core.no_number_left());
            }
            core.settle_dropped();
        }
    }

    /// Whether no other table has got a table's number since: it is there, or was dropped.
    #[must_use]
    pub fn has_its_number(&self, table: TableId) -> bool {
        let core = self.core();
        let tables = core.tables.read();
        let state = tables.get(usize::from(table.number.0).wrapping_sub(1));
        state.is_some_and(|state| state.id() == table)
    }

    /// For tests of what a bank does that has used all numbers: it has no more than `max` tables at
    /// a time.
    #[doc(hidden)]
    pub fn limit_table_numbers(&self, max: u16) {
        self.core().limit_table_numbers(max);
    }

    /// Drops a table: its rows are gone for every operation that begins from now on, and for those that
    /// wait. Durable with the next checkpoint: a crash before that brings the table back whole. Its space
    /// comes back by compaction. Its name may be given again at once. Its number is given again if
    /// the bank has no other left, once the log and the kept checkpoints have no record of the
    /// table; ids of the dropped table stay refused.
    ///
    /// # Errors
    /// `NoSuchTable`.
    pub fn drop_table(&self, table: TableId) -> Result<()> {
        let core = self.core();
        core.log.check_poison()?;
        {
            let mut tables = core.tables.write();
            // Under the lock: of two calls one drops the table.
            core.width(table)?;
            let state = &mut tables[usize::from(table.number.0) - 1];
            state.entry = TableEntry {
                name: String::new(),
                descriptor: Vec::new(),
                dropped: true,
                ..state.entry.clone()
            };
            (state.rows, state.record_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
            core.lengths.clear(table.number);
            core.counters.tables_dropped.add(1);
        }
        self.waiters.wake_all();
        core.space.signal().raise();
        Ok(())
    }

    /// How many rows a table has: exact while no batch of the table is under way. Of a store that is opened to read
    /// only: as the checkpoint has it.
    ///
    /// ```
    /// use embank_kv::{Access, Clock, Operation, Store, StoreOptions};
    ///
    /// struct PutZeros;
    /// impl Operation for PutZeros {
    ///     const ACCESS: Access = Access::Put;
    ///     fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
    ///         true
    ///     }
    /// }
    ///
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let store = Store::open(dir.path(), &StoreOptions::default())?;
    /// let table = store.create_table("zeros", 8, b"")?;
    /// store.execute(table, &[1, 2, 3], Clock::Keep, &mut PutZeros)?;
    /// store.delete(table, &[2, 4])?;
    /// assert_eq!(store.rows(table)?, 2);
    /// store.drop_table(table)?;
    /// assert!(store.rows(table).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NoSuchTable`.
    pub fn rows(&self, table: TableId) -> Result<u64> {
        let core = self.core();
        let tables = core.tables.read();
        // Under the lock: a drop comes before or after.
        core.width(table)?;
        let state = tables.get(usize::from(table.number.0).wrapping_sub(1));
        let rows = state.map_or(0, |state| state.rows.load(Ordering::Relaxed));
        // Batches under way may have counted what they deleted only.
        Ok(rows.cast_signed().max(0).cast_unsigned())
    }

    /// All tables but the dropped ones, in the order of their numbers: that in which they were
    /// made, as long as no number was used again.
    #[must_use]
    pub fn tables(&self) -> Vec<TableInfo> {
        let core = self.core();
        let tables = core.tables.read();
        let info = |state: &TableState| TableInfo {
            id: state.id(),
            name: state.entry.name.clone(),
            width: state.entry.width(),
            value_bytes: state.entry.value_bytes,
            descriptor: state.entry.descriptor.clone(),
        };
        tables.iter().filter(|state| !state.entry.dropped).map(info).collect()
    }
}

fn check_name_is_free(tables: &[TableState], name: &str) -> Result<()> {
    let taken = |state: &&TableState| !state.entry.dropped && state.entry.name == name;
    let Some(found) = tables.iter().find(taken).map(|state| &state.entry) else { return Ok(()) };
    Err(Error::TableMismatch {
        name: name.into(),
        expected: "a new table".into(),
        found: match found.width() {
            Width::Fixed => format!("values of {} bytes", found.value_bytes),
            Width::Variable => format!("values of up to {} bytes", found.value_bytes),
        },
    })
}

pub(crate) fn check_value_bytes(core: &Core, name: &str, value_bytes: u32) -> Result<()> {
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
