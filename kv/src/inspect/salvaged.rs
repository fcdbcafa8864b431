//! The new bank into which salvage writes rows.

use std::collections::HashMap;
use std::path::Path;

use crate::checkpoint::manifest::TableEntry;
use crate::engine::space::options::CompactionOptions;
use crate::error::{Error, Result};
use crate::operation::{Access, Clock, Operation, Width};
use crate::options::StoreOptions;
use crate::record::address::{TableId, TableNumber};
use crate::store::Store;

/// Limits of a table's pending rows, in rows and in value bytes. When either limit is reached, the
/// pending rows are written as a batch.
const BATCH_ROWS: usize = 4096;
const BATCH_BYTES: usize = 8 << 20;

/// The rows of a table that wait for the next batch. The map has the newest value of each key.
/// `None` deletes the row.
type Pending = HashMap<u64, Option<Vec<u8>>>;

/// A new bank with the same tables as the old bank, which is the bank that salvage reads.
pub(super) struct NewBank {
    store: Store,
    /// The new table for each table number of the old bank, from number 1. `None` for a dropped
    /// table.
    tables: Vec<Option<(TableId, Width)>>,
    pending: Vec<Pending>,
    pending_bytes: Vec<usize>,
}

/// Returns a name that no table has.
fn placeholder_name(tables: &[TableEntry]) -> String {
    let longest = tables.iter().map(|table| table.name.len()).max().unwrap_or(0);
    "-".repeat(longest + 1)
}

impl NewBank {
    pub(super) fn create(
        dir: &Path,
        tables: &[TableEntry],
        page_bytes: u64,
        memory_bytes: u64,
    ) -> Result<Self> {
        let taken = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        if taken {
            let why = "is not empty; give a new directory".to_owned();
            return Err(Error::UnusableOutput { path: dir.to_owned(), why });
        }
        let store = Store::open(
            dir,
            &StoreOptions {
                memory_budget_bytes: memory_bytes,
                page_size_bytes: u32::try_from(page_bytes).ok(),
                compaction: CompactionOptions { background: true, ..CompactionOptions::default() },
                ..StoreOptions::default()
            },
        )?;
        let mut made = Vec::new();
        for table in tables {
            let name = &table.name;
            let bytes = table.value_bytes;
            let about = &table.descriptor;
            made.push(match (table.dropped, table.width()) {
                // For a dropped table of the old bank, the new bank creates a table and drops it.
                // Each later table then gets the same number as in the old bank. Internal rows of
                // the bank may contain table numbers, so the numbers must not change.
                (true, _) => {
                    let placeholder = store.create_table(&placeholder_name(tables), 0, b"")?;
                    store.drop_table(placeholder)?;
                    None
                }
                (false, Width::Fixed) => {
                    Some((store.create_table(name, bytes, about)?, Width::Fixed))
                }
                (false, Width::Variable) => {
                    Some((store.create_variable_table(name, bytes, about)?, Width::Variable))
                }
            });
        }
        let count = made.len();
        Ok(NewBank {
            store,
            tables: made,
            pending: vec![Pending::new(); count],
            pending_bytes: vec![0; count],
        })
    }

    /// Sets a row of the new bank. `table` is the table's number in the old bank. If `value` is
    /// `None`, the row is deleted. The last call for a key counts.
    pub(super) fn set(&mut self, table: TableNumber, key: u64, value: Option<&[u8]>) -> Result<()> {
        let i = usize::from(table.0) - 1;
        self.pending_bytes[i] += value.map_or(0, <[u8]>::len);
        self.pending[i].insert(key, value.map(<[u8]>::to_vec));
        if self.pending[i].len() >= BATCH_ROWS || self.pending_bytes[i] >= BATCH_BYTES {
            self.write(i)?;
        }
        Ok(())
    }

    fn write(&mut self, i: usize) -> Result<()> {
        self.pending_bytes[i] = 0;
        let pending = std::mem::take(&mut self.pending[i]);
        let Some((table, width)) = self.tables[i] else { return Ok(()) };
        let mut keys = Vec::new();
        let mut values = Vec::new();
        let mut deleted = Vec::new();
        for (key, value) in pending {
            match value {
                Some(value) => {
                    keys.push(key);
                    values.push(value);
                }
                None => deleted.push(key),
            }
        }
        let store = &self.store;
        let clock = Clock::Keep;
        match width {
            Width::Fixed => store.execute(table, &keys, clock, &mut Put::<false>(&values))?,
            Width::Variable => store.execute(table, &keys, clock, &mut Put::<true>(&values))?,
        };
        self.store.delete(table, &deleted)?;
        Ok(())
    }

    /// True if the new bank has a row of this key. `table` is the table's number in the old bank.
    pub(super) fn has(&mut self, table: TableNumber, key: u64) -> Result<bool> {
        let i = usize::from(table.0) - 1;
        if let Some(value) = self.pending[i].get(&key) {
            return Ok(value.is_some());
        }
        let Some((table, _)) = self.tables[i] else { return Ok(false) };
        Ok(self.store.clock_of(table, key)?.is_some())
    }

    /// Writes the pending rows and takes a checkpoint. Returns the checkpoint's number.
    pub(super) fn finish(mut self, blob: &[u8]) -> Result<u64> {
        for i in 0..self.tables.len() {
            self.write(i)?;
        }
        self.store.checkpoint(blob)
    }
}

/// Puts values. `VARIABLE` is true for a table of variable width.
struct Put<'a, const VARIABLE: bool>(&'a [Vec<u8>]);

impl<const VARIABLE: bool> Operation for Put<'_, VARIABLE> {
    const ACCESS: Access = Access::Put;
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };

    fn value_bytes(&mut self, i: usize, _old: Option<&[u8]>) -> usize {
        self.0[i].len()
    }

    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&self.0[i]);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}
