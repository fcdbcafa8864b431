//! The tables of a store: how they are made, dropped and listed.

use super::{Core, Store};
use crate::address::TableId;
use crate::checkpoint::TableEntry;
use crate::error::{Error, Result};
use crate::operation::Width;
use crate::record::{HEADER_BYTES, record_bytes};
use crate::sync::{AtomicU64, Ordering};

/// With 65,535 tables, names and descriptors stay within what `metadata` decodes.
const TABLE_NAME_BYTES_MAX: usize = 1 << 10;
const DESCRIPTOR_BYTES_MAX: usize = 2 << 10;

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

/// A table and its count of rows.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) entry: TableEntry,
    /// Batches add what they inserted less what they deleted before they unpin, so the sum is exact while
    /// they are paused. Between the counts of two batches it may be off, even below zero.
    pub(crate) rows: AtomicU64,
    /// Bytes of those rows' records, where the width is variable; counted in the same way.
    pub(super) record_bytes: AtomicU64,
    /// Where the log ended when the table was dropped; no record of it was begun after that, but for those of
    /// batches that were under way.
    dropped_at: u64,
}

impl TableState {
    /// A table that is new, or was in a checkpoint whose log ends at `log_end`.
    pub(super) fn new(entry: TableEntry, log_end: u64) -> Self {
        let (rows, record_bytes) = (entry.rows.into(), entry.record_bytes.into());
        TableState { rows, record_bytes, dropped_at: log_end, entry }
    }

    /// The table as a checkpoint holds it whose log begins at `log_begin`.
    pub(super) fn to_entry(&self, log_begin: u64) -> TableEntry {
        // Once none of its records is left, their length is no matter to whoever opens the bank.
        let gone = self.entry.dropped && log_begin >= self.dropped_at;
        let count =
            |of: &AtomicU64| if self.entry.dropped { 0 } else { of.load(Ordering::Relaxed) };
        TableEntry {
            value_bytes: if gone { 0 } else { self.entry.value_bytes },
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
    /// `TableMismatch` if the name is taken; `InvalidArgument` for a value that fits no page, or after
    /// 65,535 tables.
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
        let mut tables = core.tables.write();
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
        core.lengths.set(TableId(number), width, value_bytes);
        Ok(TableId(number))
    }

    /// Drops a table: its rows are gone for every operation that begins from now on, and for those that
    /// wait. Durable with the next checkpoint: a crash before that brings the table back whole. Its space
    /// comes back by compaction. Its number is not given again, its name may be.
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
            let state = &mut tables[usize::from(table.0) - 1];
            state.entry = TableEntry {
                name: String::new(),
                descriptor: Vec::new(),
                dropped: true,
                ..state.entry.clone()
            };
            (state.rows, state.record_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
            state.dropped_at = core.log.tail_address();
            core.lengths.clear(table);
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
        core.width(table)?;
        let tables = core.tables.read();
        let state = tables.get(usize::from(table.0).wrapping_sub(1));
        let rows = state.map_or(0, |state| state.rows.load(Ordering::Relaxed));
        // Batches under way may have counted what they deleted only.
        Ok(rows.cast_signed().max(0).cast_unsigned())
    }

    /// All tables but the dropped ones, in the order in which they were made.
    #[must_use]
    pub fn tables(&self) -> Vec<TableInfo> {
        let core = self.core();
        let tables = core.tables.read();
        let info = |entry: &TableEntry| TableInfo {
            id: entry.id(),
            name: entry.name.clone(),
            width: entry.width(),
            value_bytes: entry.value_bytes,
            descriptor: entry.descriptor.clone(),
        };
        tables.iter().map(|state| &state.entry).filter(|entry| !entry.dropped).map(info).collect()
    }
}

pub(super) fn check_value_bytes(core: &Core, name: &str, value_bytes: u32) -> Result<()> {
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
