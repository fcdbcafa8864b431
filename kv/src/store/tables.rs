//! The tables of a store: how they are made, dropped and listed.

use super::Store;
use crate::checkpoint::manifest::TableEntry;
use crate::engine::core_parts::check_value_bytes;
use crate::engine::tables::TableState;
use crate::error::{Error, Result};
use crate::operation::Width;
use crate::record::address::TableId;
use crate::sync::{AtomicU64, Ordering};

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

impl Store {
    /// Makes a table of values of `value_bytes`, with a `descriptor` of the caller's. Durable with the
    /// next checkpoint.
    ///
    /// # Errors
    /// `TableMismatch` if the name is taken; `TooLong` for a value that fits no page; `Exhausted` if
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
            return Err(Error::TooLong {
                what: format!("table {name:?}: a descriptor"),
                bytes: descriptor.len(),
                bytes_max: DESCRIPTOR_BYTES_MAX,
                limit: "a descriptor may have; make it shorter",
            });
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

    /// For tests: the hash of a row, whose bits decide which rows share an entry of the index.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    #[must_use]
    pub fn key_hash(&self, table: TableId, key: u64) -> u64 {
        self.core().key_hash.of(table.number, key)
    }

    /// For tests of what a bank does that has used all numbers: it has no more than `max` tables at
    /// a time.
    #[cfg(any(test, feature = "testing"))]
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
            state.rows = AtomicU64::new(0);
            state.record_bytes = AtomicU64::new(0);
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
