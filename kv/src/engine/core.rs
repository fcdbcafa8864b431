//! What all parts of a store share that work on it: batches, the log's writer, compaction, scans.

use std::sync::Arc;

use super::lengths::Lengths;
use crate::cache::RowCache;
use crate::device;
use crate::engine::compaction::space::Space;
use crate::engine::read_at::ReadAt;
use crate::engine::retention::state::Retention;
use crate::engine::tables::Numbers;
use crate::engine::tables::TableState;
use crate::engine::waiters::Waiters;
use crate::epoch::Gate;
use crate::error::{Error, Result};
use crate::hints::StoreNumber;
use crate::index::Index;
use crate::log::Log;
use crate::log::page::PAGE_HEADER_BYTES;
use crate::memory::budget::Budget;
use crate::memory::read_buffers::Buffers;
use crate::operation::Width;
use crate::record::address::{TableId, TableNumber};
use crate::record::hash::KeyHash;
use crate::record::layout::{VALUE_BYTES_MAX, record_bytes};
use crate::stats::Counters;
use crate::sync::{Ordering, RwLock};

/// What batches and the writer thread share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) log: Log,
    pub(crate) index: Index,
    /// Which places of the index a key has.
    pub(crate) key_hash: KeyHash,
    pub(crate) gate: Gate,
    pub(crate) budget: Arc<Budget>,
    pub(crate) buffers: Buffers,
    pub(crate) cache: RowCache,
    /// Records at or above this address were written since the store was opened.
    pub(crate) session_start: u64,
    pub(crate) space: Space,
    pub(crate) retention: Retention,
    pub(crate) counters: Arc<Counters>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) tables: RwLock<Vec<TableState>>,
    /// Of `tables`, for every batch.
    pub(crate) lengths: Lengths,
    pub(crate) numbers: Numbers,
    /// Tells the hints of this store from those of others.
    pub(crate) store: StoreNumber,
    /// The checkpoint that a store shows that is open to read only.
    pub(crate) reading: Option<ReadAt>,
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
        let found = tables.iter().find(|state| state.id() == table && !state.entry.dropped);
        found.map_or_else(|| format!("number {}", table.number.0), |state| state.entry.name.clone())
    }

    /// The table that has the number now, for a record that was read. `None` if the record's table
    /// was dropped, or made after the checkpoint that the store was opened at.
    pub(crate) fn table_of(&self, number: TableNumber) -> Option<TableId> {
        self.lengths.table(number)
    }

    /// Marks the table as one of which the log may have a record. Must be called while pinned.
    #[inline]
    pub(crate) fn note_written(&self, table: TableId) {
        self.lengths.note_written(table.number);
    }

    /// The length in bytes of the values of a table of this width; the largest length if the
    /// lengths vary.
    #[inline]
    pub(crate) fn value_bytes(&self, table: TableId, width: Width) -> Result<usize> {
        self.value_bytes_if(table, width).ok_or_else(|| self.not_of_width(table, width))
    }

    /// The length in bytes of the values of a table of this width; `None` if there is no such
    /// table.
    #[inline]
    pub(crate) fn value_bytes_if(&self, table: TableId, width: Width) -> Option<usize> {
        self.lengths.get(table, width)
    }

    #[cold]
    fn not_of_width(&self, table: TableId, width: Width) -> Error {
        if let Err(error) = self.width(table) {
            return error;
        }
        let why = match width {
            Width::Fixed => {
                "has values of variable width: it takes operations whose WIDTH is Variable"
            }
            Width::Variable => {
                "has values of fixed width: it takes operations whose WIDTH is Fixed"
            }
        };
        Error::WrongKind { of: format!("table {:?}", self.table_name(table)), why: why.to_owned() }
    }

    pub(crate) fn width(&self, table: TableId) -> Result<Width> {
        self.lengths.width(table).ok_or_else(|| self.no_such_table(table))
    }

    #[cold]
    pub(crate) fn no_such_table(&self, table: TableId) -> Error {
        Error::NoSuchTable(format!("number {}", table.number.0))
    }

    /// Mean bytes of a table's records; `None` while the table has no rows.
    pub(crate) fn mean_record_bytes(&self, table: TableId) -> Option<usize> {
        let tables = self.tables.read();
        let state = tables.get(usize::from(table.number.0).wrapping_sub(1))?;
        if state.id() != table {
            return None;
        }
        let rows = state.rows.load(Ordering::Relaxed).cast_signed();
        let rows = u64::try_from(rows).ok().filter(|&rows| rows > 0)?;
        Some(state.live_bytes(rows).div_ceil(rows) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Candidates;
    use crate::record::hash::unhash;
    use crate::{Access, Clock, Operation, Store, StoreOptions};

    struct PutZeros;

    impl Operation for PutZeros {
        const ACCESS: Access = Access::Put;
        fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
            true
        }
    }

    /// Mean number of records that a search passes for each key of a new bank. All records lie in
    /// memory.
    fn records_passed(keys: &[u64]) -> f64 {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        let table = store.create_table("rows", 8, b"").unwrap();
        assert_eq!(table.number(), 1);
        store.execute(table, keys, Clock::Keep, &mut PutZeros).unwrap();
        let core = store.core();
        let _pin = core.gate.enter();
        let view = core.log.view();
        let mut candidates = Candidates::default();
        let mut passed = 0_u64;
        for &key in keys {
            core.index.candidates(core.key_hash.of(table.number, key), &mut candidates);
            let mut found = false;
            for entry in candidates.iter() {
                let mut address = entry.address();
                while !address.is_none() && !found {
                    // SAFETY: pinned, and nothing has left memory; the address came from the index
                    // or a link.
                    let record = unsafe { view.record(address) };
                    found = record.is(table.number, key);
                    passed += 1;
                    address = record.link().previous();
                }
            }
            assert!(found, "key {key}");
        }
        passed as f64 / keys.len() as f64
    }

    /// The hash had no secret: keys that were chosen to share bucket and tag, whatever the index's
    /// size, made one chain of 16,000 records.
    #[test]
    fn keys_that_were_chosen_to_collide_take_no_longer_than_others() {
        let count = 16_000;
        // All agree in their lowest 48 bits: buckets have fewer than 32, tags 16.
        let chosen: Vec<u64> = (0..count).map(|i| unhash(TableNumber(1), i << 48 | 77)).collect();
        let others: Vec<u64> = (0..count).collect();
        let chosen = records_passed(&chosen);
        let others = records_passed(&others);
        assert!(others < 1.1, "{others} records for each key");
        assert!(chosen < 1.1, "{chosen} records for each chosen key, {others} for others");
    }

    #[test]
    fn each_new_bank_has_a_seed_of_its_own() {
        let seed = || {
            let dir = tempfile::tempdir().unwrap();
            let open = || Store::open(dir.path(), &StoreOptions::default()).unwrap();
            let store = open();
            let made = store.core().key_hash;
            store.checkpoint(b"").unwrap();
            drop(store);
            assert_eq!(open().core().key_hash, made, "it stays with the bank");
            made
        };
        assert_ne!(seed(), seed());
        assert_ne!(seed(), crate::record::hash::KeyHash::new(0));
    }
}
