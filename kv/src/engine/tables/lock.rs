//! Makes and drops tables, and records them for a checkpoint, under the lock of the tables.

use std::collections::HashSet;

use super::list::TableList;
use super::numbers::Reach;
use super::state::TableState;
use super::{NewTable, Tables, no_such_table};
use crate::checkpoint::manifest::TableEntry;
use crate::error::{Error, Result};
use crate::operation::Width;
use crate::record::address::TableId;
use crate::sync::RwLockWriteGuard;

/// The locked tables. A thread that has the lock may take the lock of the pins of the log, and must
/// not wait for pinned threads.
pub(crate) struct TablesLock<'a> {
    pub(super) list: RwLockWriteGuard<'a, TableList>,
    pub(super) tables: &'a Tables,
}

impl TablesLock<'_> {
    /// Makes all of `tables`, or none: returns `None` if too few table numbers are free. A call
    /// that makes no table takes no number.
    ///
    /// The caller reads where the rows begin and the checkpoints that are on disk or being taken
    /// under this lock. Otherwise another thread could take a checkpoint in between. The checkpoint
    /// could have a table whose number this call gives to another table.
    ///
    /// # Errors
    /// `TooLong` if a name, a value or a descriptor is too long. `TableMismatch` if a table has the
    /// name of one of `tables`. `InvalidArgument` if two of `tables` have the same name.
    pub(crate) fn make(
        &mut self,
        tables: &[NewTable<'_>],
        begin: Reach,
        checkpoints: &[u64],
    ) -> Result<Option<Vec<TableId>>> {
        tables.iter().try_for_each(|table| table.check(self.tables.record_bytes_max))?;
        self.check_names_are_free(tables)?;
        let Some(ids) = self.list.next_ids(tables.len(), begin, checkpoints) else {
            return Ok(None);
        };
        for (&id, table) in ids.iter().zip(tables) {
            self.list.add(TableState::new(table.entry(id), id.incarnation));
            // No batch finds a table before its word is set.
            self.tables.set_length(id, table.width, table.value_bytes);
        }
        Ok(Some(ids))
    }

    fn check_names_are_free(&self, tables: &[NewTable<'_>]) -> Result<()> {
        let mut names = HashSet::with_capacity(tables.len());
        for table in tables {
            let name = table.name;
            if let Some(found) = self.list.named(name).map(|state| &state.entry) {
                return Err(Error::TableMismatch {
                    name: name.into(),
                    expected: "a new table".into(),
                    found: match found.width() {
                        Width::Fixed => format!("values of {} bytes", found.value_bytes),
                        Width::Variable => format!("values of up to {} bytes", found.value_bytes),
                    },
                });
            }
            if !names.insert(name) {
                let problem = "two of the new tables have this name; give each table its own name";
                return Err(Error::InvalidArgument(format!("{name:?}: {problem}")));
            }
        }
        Ok(())
    }

    /// Drops `tables`. Returns the number of dropped tables: a table that is given twice is dropped
    /// once. After an error, the call has dropped no table.
    pub(crate) fn drop_tables(&mut self, tables: &[TableId]) -> Result<u64> {
        // Checked under the lock, so that only one of two concurrent calls drops a table.
        for &table in tables {
            self.list.find(table).ok_or_else(|| no_such_table(table))?;
        }
        let mut dropped = 0;
        for &table in tables {
            // `None` if the table was given before, and is dropped by now.
            if self.list.find(table).is_some() {
                self.list.mark_dropped(table);
                self.tables.clear_length(table.number);
                dropped += 1;
            }
        }
        Ok(dropped)
    }

    /// Returns for each table a bound on the number of its uncounted versions. Must be called while
    /// batches are paused.
    pub(crate) fn uncounted(&self) -> Vec<u64> {
        let of = |state: &TableState| if state.entry.dropped { 0 } else { state.uncounted() };
        self.list.states.iter().map(of).collect()
    }

    /// Returns the tables for the manifest of checkpoint `number`, whose rows lie from `begin` to
    /// `end`. Must be called while batches are paused. A batch that started before
    /// a drop finds the table gone when it continues, so the log gets no further record of that
    /// table. The caller has held this lock since before it pinned the checkpoint.
    pub(crate) fn cut(mut self, number: u64, begin: Reach, end: Reach) -> Vec<TableEntry> {
        let cut = self.list.states.iter_mut().map(|state| {
            if state.is_unsettled() {
                state.settle(end, self.tables.was_written(state.id().number));
            }
            state.cut(number, begin)
        });
        cut.collect()
    }
}
