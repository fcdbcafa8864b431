//! The tables of a store.
//!
//! - `lengths`: the word of each table, which tells a batch without a lock that the table exists,
//!   its width and the length of its values.
//! - `counts`: row counts, and the sizes of the records of all rows.
//! - `lock`: makes tables, drops tables, and records them for a checkpoint.
//! - `numbers`: when the number of a dropped table is free for a new table.
//! - `list`, `state`: the states of all table numbers, and the state of one.

mod counts;
mod lengths;
mod list;
mod lock;
mod numbers;
mod state;

use crate::checkpoint::manifest::{Manifest, TableEntry};
use crate::error::{Error, Result};
use crate::operation::Width;
use crate::record::address::TableId;
use crate::record::layout::record_bytes;
use crate::sync::RwLock;

pub(crate) use counts::Live;
use list::TableList;
pub(crate) use lock::TablesLock;
pub(crate) use numbers::{NUMBERS_MAX, Named, Reach, named};
use state::TableState;

/// Largest length in bytes of a table's name. With this limit, the names and descriptors of 65,535
/// tables stay within the size that `metadata` decodes.
const NAME_BYTES_MAX: usize = 1 << 10;
/// Largest length in bytes of a table's descriptor. Every checkpoint stores all descriptors in its
/// manifest.
const DESCRIPTOR_BYTES_MAX: usize = 2 << 10;

/// The tables of a store.
#[derive(Debug)]
pub(crate) struct Tables {
    list: RwLock<TableList>,
    /// The width and value length of each table in `list`. Batches read them without a lock.
    pages: lengths::Pages,
    /// The largest length in bytes of a record.
    pub(crate) record_bytes_max: usize,
}

impl Tables {
    /// Returns the tables of the checkpoint of `manifest`. `incarnations` has the incarnations of
    /// their numbers; those that it lacks are 0. The checkpoint's parts have numbers below
    /// `next_part`.
    ///
    /// # Errors
    /// `TooLong` if a name is too long, or if a record may exceed `record_bytes_max` bytes.
    pub(crate) fn new(
        manifest: &Manifest,
        incarnations: &[u32],
        named: &Named,
        next_part: u64,
        record_bytes_max: usize,
    ) -> Result<Tables> {
        let end = Reach { log: manifest.log_end, part: next_part };
        let recovered = |(place, entry): (usize, &TableEntry)| {
            check_lengths(&entry.name, entry.value_bytes, record_bytes_max)?;
            let incarnation = incarnations.get(place).copied().unwrap_or(0);
            let uncounted = manifest.cold.as_ref().and_then(|cold| cold.uncounted.get(place));
            let uncounted = uncounted.copied().unwrap_or(0);
            Ok(TableState::recovered(entry.clone(), incarnation, end, uncounted, named))
        };
        let states = manifest.tables.iter().enumerate().map(recovered).collect::<Result<_>>()?;
        let list = RwLock::new(TableList::new(states));
        let tables = Tables { list, pages: lengths::no_pages(), record_bytes_max };
        for state in tables.list.read().there() {
            tables.set_length(state.id(), state.entry.width(), state.entry.value_bytes);
            // Tables without rows are noted too, because a deleted row leaves a record in the log.
            tables.note_written(state.id());
        }
        Ok(tables)
    }

    /// Returns the table's name; its number if the table does not exist.
    pub(crate) fn name(&self, table: TableId) -> String {
        self.list.read().find(table).map_or_else(
            || format!("number {} in this bank", table.number.0),
            |state| state.entry.name.clone(),
        )
    }

    /// True if this table's number was not given to another table.
    pub(crate) fn has_its_number(&self, table: TableId) -> bool {
        self.list.read().state(table).is_some()
    }

    /// Returns all tables that were not dropped, in the order of their numbers.
    pub(crate) fn infos(&self) -> Vec<TableInfo> {
        let info = |state: &TableState| TableInfo {
            id: state.id(),
            name: state.entry.name.clone(),
            width: state.entry.width(),
            value_bytes: state.entry.value_bytes,
            descriptor: state.entry.descriptor.clone(),
        };
        self.list.read().there().map(info).collect()
    }

    /// Locks the tables, for a caller that makes, drops or records them.
    pub(crate) fn lock(&self) -> TablesLock<'_> {
        TablesLock { list: self.list.write(), tables: self }
    }
}

/// The properties of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// The id that identifies the table in the store's other calls.
    pub id: TableId,
    /// The table's name.
    pub name: String,
    /// Says if all values have the same length, or if lengths differ.
    pub width: Width,
    /// Length of every value in bytes; for a table of variable width, the largest length of a
    /// value.
    pub value_bytes: u32,
    /// Bytes that the caller stored with the table when it was made.
    pub descriptor: Vec<u8>,
}

/// A table that [`Store::create_tables`](crate::Store::create_tables) makes.
#[derive(Debug, Clone, Copy)]
pub struct NewTable<'a> {
    /// The table's name.
    pub name: &'a str,
    /// Says if all values have the same length, or if lengths differ.
    pub width: Width,
    /// Length of every value in bytes; for a table of variable width, the largest length of a
    /// value.
    pub value_bytes: u32,
    /// Bytes that the store keeps with the table. Only the caller interprets them.
    pub descriptor: &'a [u8],
}

impl NewTable<'_> {
    fn entry(&self, id: TableId) -> TableEntry {
        TableEntry {
            number: id.number.0,
            name: self.name.into(),
            value_bytes: self.value_bytes,
            variable: self.width == Width::Variable,
            descriptor: self.descriptor.into(),
            rows: 0,
            record_bytes: 0,
            dropped: false,
        }
    }

    /// Checks what can be checked without a look at other tables.
    fn check(&self, record_bytes_max: usize) -> Result<()> {
        check_lengths(self.name, self.value_bytes, record_bytes_max)?;
        if self.descriptor.len() <= DESCRIPTOR_BYTES_MAX {
            return Ok(());
        }
        Err(Error::TooLong {
            what: format!("table {:?}: a descriptor", self.name),
            bytes: self.descriptor.len(),
            bytes_max: DESCRIPTOR_BYTES_MAX,
            limit: "a descriptor may have; make it shorter",
        })
    }
}

/// Checks the lengths in bytes of a table's name and values.
fn check_lengths(name: &str, value_bytes: u32, record_bytes_max: usize) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::TooLong {
            what: "a table's name".to_owned(),
            bytes: name.len(),
            bytes_max: NAME_BYTES_MAX,
            limit: "a name may have; take a shorter one",
        });
    }
    if record_bytes(value_bytes as usize) <= record_bytes_max {
        return Ok(());
    }
    Err(Error::TooLong {
        what: format!("table {name:?}: a value"),
        bytes: value_bytes as usize,
        bytes_max: record_bytes_max.saturating_sub(record_bytes(0)),
        limit: "a page of the bank has room for; give the bank a larger memory budget or page size, or make the rows \
                smaller",
    })
}

/// Returns the error for a call on a table that does not exist.
#[cold]
pub(crate) fn no_such_table(table: TableId) -> Error {
    Error::NoSuchTable(format!("number {} in this bank", table.number.0))
}
