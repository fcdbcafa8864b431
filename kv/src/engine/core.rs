//! The core of a store: the state that batches, the log's writer, compaction and scans share.

use std::sync::Arc;

use crate::cache::ReadCache;
use crate::engine::read_at::ReadAt;
use crate::engine::retention::Retention;
use crate::engine::space::{Headroom, Space};
use crate::engine::tables::Tables;
use crate::engine::waiters::Waiters;
use crate::epoch::Gate;
use crate::hints::StoreNumber;
use crate::index::Index;
use crate::log::Log;
use crate::memory::budget::Budget;
use crate::memory::read_buffers::Buffers;
use crate::process::home::Home;
use crate::record::hash::KeyHash;
use crate::stats::Counters;

/// The state of a store that its batches and its other threads share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) log: Log,
    pub(crate) index: Index,
    /// The hash that maps a key to its bucket and tag in the index.
    pub(crate) key_hash: KeyHash,
    pub(crate) gate: Gate,
    pub(crate) budget: Arc<Budget>,
    pub(crate) buffers: Buffers,
    pub(crate) cache: ReadCache,
    /// The end of the log when the store was opened. Records at or above this address were written
    /// since then.
    pub(crate) session_start: u64,
    pub(crate) space: Space,
    pub(crate) retention: Retention,
    pub(crate) counters: Arc<Counters>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) tables: Tables,
    /// Number of this store object. Hints carry it, so a store ignores the hints of other stores.
    pub(crate) store: StoreNumber,
    /// The checkpoint that a read-only store shows. `None` in a store that is open for writing.
    pub(crate) reading: Option<ReadAt>,
    pub(crate) home: Home,
}

impl Core {
    /// Returns the parts that decide if the log may take another page.
    pub(crate) fn headroom(&self) -> Headroom<'_> {
        Headroom { space: &self.space, log: &self.log, tables: &self.tables }
    }
}

#[cfg(test)]
mod tests {
    use crate::index::Candidates;
    use crate::record::address::TableNumber;
    use crate::record::hash::unhash;
    use crate::{Access, Clock, Operation, Store, StoreOptions};

    struct PutZeros;

    impl Operation for PutZeros {
        const ACCESS: Access = Access::Put;
        fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
            true
        }
    }

    /// Returns the mean number of records that a search for a key passes in a new bank. All records
    /// lie in memory.
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
                    // SAFETY: the duty is to pass the address of a complete record in memory. The
                    // thread is pinned, no page has been evicted, and the address came from the
                    // index or from a link.
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

    /// Regression test: the hash had no secret seed. So keys that were chosen to share bucket and
    /// tag at every size of the index made one chain of 16,000 records.
    #[test]
    fn keys_that_were_chosen_to_collide_take_no_longer_than_others() {
        let count = 16_000;
        // Without a seed, these hashes have equal lowest 48 bits. Buckets use fewer than 32 of
        // them, and tags use 16.
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
