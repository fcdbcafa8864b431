//! The core of a store: the state that batches, the log's writer, compaction and scans share. It is
//! made in the state of a checkpoint.

use std::sync::Arc;

use crate::cache::ReadCache;
use crate::checkpoint::lineage::Lineage;
use crate::checkpoint::manifest::Manifest;
use crate::cold::head::{Kind, PartHead, PartSite};
use crate::device::contract::Device;
use crate::engine::cold::Cold;
use crate::engine::read_at::ReadAt;
use crate::engine::retention::Retention;
use crate::engine::space::tier_memory::TierMemory;
use crate::engine::space::{Headroom, Space};
use crate::engine::tables::{Named, Reach, Tables};
use crate::engine::waiters::Waiters;
use crate::epoch::Gate;
use crate::error::Result;
use crate::hints::StoreNumber;
use crate::index::Index;
use crate::log::page::{PAGE_HEADER_BYTES, PageIdentity};
use crate::log::{Extent, Log};
use crate::memory::budget::Budget;
use crate::memory::read_buffers::Buffers;
use crate::process::home::Home;
use crate::record::address::Address;
use crate::record::clock::ClockWord;
use crate::record::hash::KeyHash;
use crate::record::layout::{RecordImage, VALUE_BYTES_MAX, record_bytes};
use crate::stats::Counters;
use crate::sync::{Planted, planted};

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
    pub(crate) cold: Cold,
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

/// The parts of a core that do not come from a checkpoint's manifest.
pub(crate) struct CoreParts {
    pub(crate) index: Index,
    pub(crate) budget: Arc<Budget>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) space: Space,
    pub(crate) cold: Cold,
    /// For each table number, the checkpoints that have the table.
    pub(crate) named: Named,
    /// The incarnation of each table's number, in the order of the manifest's tables. The list may
    /// be shorter: the remaining numbers have incarnation 0.
    pub(crate) incarnations: Vec<u32>,
}

impl Core {
    /// Makes a core in the state of a checkpoint. The whole log of the checkpoint is on the device.
    pub(crate) fn new(parts: CoreParts, manifest: &Manifest, lineage: Lineage) -> Result<Core> {
        let CoreParts { index, budget, device, counters, waiters, space, cold, .. } = parts;
        let extent = Extent {
            page_bits: manifest.page_bits,
            begin: manifest.log_begin,
            tail_page: manifest.log_end >> manifest.page_bits,
        };
        let log = Log::new(
            Arc::clone(&budget),
            device,
            Arc::clone(&counters),
            lineage,
            extent,
            Arc::clone(space.signal()),
        )?;
        let read_bytes = Budget::read_buffer_bytes_for(budget.total_bytes());
        let buffers = Buffers::new(read_bytes as usize, 1 << manifest.page_bits);
        let record_bytes_max = record_bytes_max(&log, &buffers);
        let next_part = cold.parts_end();
        let tables =
            Tables::new(manifest, &parts.incarnations, &parts.named, next_part, record_bytes_max)?;
        Ok(Core {
            log,
            index,
            key_hash: KeyHash::new(manifest.hash_seed),
            buffers,
            gate: Gate::default(),
            cache: ReadCache::new(Arc::clone(&budget)),
            session_start: manifest.log_end,
            space,
            cold,
            retention: Retention::new(budget.frames_max() * budget.page_bytes()),
            budget,
            counters,
            waiters,
            tables,
            store: StoreNumber::new(),
            reading: None,
            home: Home::here(),
        })
    }

    /// Returns the parts that decide if the log may take another page.
    #[inline]
    pub(crate) fn headroom(&self) -> Headroom<'_> {
        Headroom { space: &self.space, log: &self.log, tables: &self.tables, cold: &self.cold }
    }

    /// Returns where the store's rows begin: no record lies in the log below the address, and no
    /// part has a lower number.
    pub(crate) fn rows_begin(&self) -> Reach {
        // The log's beginning is read first. A spill shows its part in the view before it moves the
        // beginning. So a view that is read later has the rows that left the log.
        let log = self.log.begin();
        Reach { log, part: self.cold.view().oldest_part() }
    }

    /// Returns where the rows end that were written before the last barrier. Must be called after
    /// that barrier.
    pub(crate) fn rows_end(&self) -> Reach {
        Reach { log: self.log.records_end(), part: self.cold.parts_end() }
    }

    /// Returns where the parts of the cold tier lie.
    pub(crate) fn part_site(&self) -> PartSite<'_> {
        let segment_size_bytes = self.cold.segment_bytes();
        PartSite { device: &*self.log.device, segment_size_bytes, key_hash: self.key_hash }
    }

    /// Returns the head of a part that the present opening writes, without what describes its rows.
    pub(crate) fn part_head(&self) -> PartHead {
        // The last page of the address space belongs to the present opening.
        let PageIdentity { bank, salt, .. } = self.log.lineage().page(u64::MAX);
        PartHead {
            bank,
            salt,
            number: 0,
            kind: Kind::Run,
            level: 0,
            block_bits: 0,
            runs: 0..=0,
            hashes: 0..=u64::MAX,
            log: 0..0,
        }
    }

    /// Makes sure that the budget provides the buffers of spills and merges. Called when the bank
    /// gets its second tier, and before each spill and merge: a new table may have longer rows.
    /// Waits until the log's writer has written pages. Must be called while not pinned.
    ///
    /// # Errors
    /// `BudgetTooSmall` if the budget can't provide them. The errors of [`Log::give_way`].
    pub(crate) fn reserve_for_tiers(&self) -> Result<TierMemory> {
        let memory = self.headroom().tier_memory();
        self.budget.reserve_for_tiers(memory.bytes_of(self.budget.limits()))?;
        self.give_way()?;
        Ok(memory)
    }

    /// Frees the memory of parts that no reader has, and removes the files that no checkpoint
    /// needs. Wakes the threads that wait for this memory.
    pub(crate) fn remove_unneeded_parts(&self) {
        let has_freed = self.cold.remove_unneeded(&*self.log.device, || self.space.note_file());
        if has_freed && !planted(Planted::PartMemoryUntold) {
            self.log.allowance_changed();
        }
    }

    /// Makes frames and read cache give up memory after the compactor has added a part. Waits until
    /// the log's writer has written pages. Must be called while not pinned.
    ///
    /// # Errors
    /// The errors of [`Log::give_way`].
    pub(crate) fn give_way(&self) -> Result<()> {
        if !self.budget.is_over() {
            return Ok(());
        }
        self.cache.give_way(&self.log);
        self.log.give_way()
    }

    /// Returns the clock of a row whose record lies on disk. An outstanding Get does not survive a
    /// restart. So the clock of a record that was written before this opening gets the count 0. A
    /// record of an older program is not clean, whatever its bits are.
    pub(crate) fn word_on_disk(&self, image: RecordImage<'_>, address: Address) -> ClockWord {
        let word = image.clock().for_disk();
        let word = word.with_clean(word.is_clean() && self.cold.knows_clean(address));
        if address.raw() >= self.session_start { word } else { word.with_outstanding(0) }
    }
}

/// Returns the largest length in bytes of a record. A record must fit a page and a read buffer.
fn record_bytes_max(log: &Log, buffers: &Buffers) -> usize {
    let in_page = (log.page_bytes() - PAGE_HEADER_BYTES) as usize;
    let in_buffer = match buffers.bytes_each() {
        // A read ends with the page, so a buffer of a page's length holds each record.
        bytes if bytes as u64 >= log.page_bytes() => in_page,
        bytes => bytes - 2 * log.device.block_bytes(),
    };
    in_page.min(in_buffer).min(record_bytes(VALUE_BYTES_MAX))
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
