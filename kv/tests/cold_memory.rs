//! Tests of a bank in two tiers with little memory.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::HashMap;

use common::{options, peek, put, value};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{ColdTier, CompactionOptions, Store, StoreOptions, TableId, TierLimits};

/// A bank in two tiers with one table. The value of a row follows from its key and its version.
struct Plain {
    store: Store,
    table: TableId,
    versions: HashMap<u64, u64>,
}

impl Plain {
    const BYTES: usize = 24;

    fn open(path: &std::path::Path, options: &StoreOptions, limits: TierLimits) -> Self {
        let store = Store::open(path, options).unwrap();
        store.begin_second_tier(limits);
        let table = match store.tables().first() {
            Some(table) => table.id,
            None => store.create_table("rows", Self::BYTES as u32, b"").unwrap(),
        };
        Plain { store, table, versions: HashMap::new() }
    }

    fn put(&mut self, keys: std::ops::Range<u64>, version: u64) {
        let keys: Vec<u64> = keys.collect();
        for keys in keys.chunks(500) {
            put(&self.store, self.table, keys, version, Self::BYTES);
            self.versions.extend(keys.iter().map(|&key| (key, version)));
        }
    }

    fn delete(&mut self, keys: std::ops::Range<u64>) {
        let keys: Vec<u64> = keys.collect();
        self.store.delete(self.table, &keys).unwrap();
        keys.iter().for_each(|key| _ = self.versions.remove(key));
    }

    fn row(&self, key: u64) -> Option<Vec<u8>> {
        self.versions.get(&key).map(|&version| value(key, version, Self::BYTES))
    }

    /// Compares rows, and keys without a row.
    fn check(&self, keys: impl Iterator<Item = u64>) {
        let keys: Vec<u64> = keys.collect();
        for keys in keys.chunks(500) {
            let there = peek(&self.store, self.table, keys).unwrap();
            for (key, row) in keys.iter().zip(there) {
                assert_eq!(row, self.row(*key), "key {key}");
            }
        }
        assert_eq!(self.store.stats().live_rows, self.versions.len() as u64);
        assert_eq!(self.store.stats().compaction_stopped, None);
    }
}

fn by_hand(budget_bytes: u64) -> StoreOptions {
    let compaction = CompactionOptions { background: false, ..CompactionOptions::default() };
    StoreOptions { compaction, ..options(budget_bytes) }
}

/// A scan, a checkpoint and spills have memory beside each other at each budget that a store
/// accepts.
#[test]
fn a_scan_has_memory_beside_spills_at_small_budgets() {
    for budget_kib in [256, 384, 512, 1 << 10, 4 << 10, 10 << 10] {
        let dir = tempfile::tempdir().unwrap();
        let limits = TierLimits {
            log_bytes: 64 << 10,
            sort_buffer_bytes: 16 << 10,
            base_part_bytes: 128 << 10,
            level_runs: 16,
        };
        let mut bank = Plain::open(dir.path(), &by_hand(budget_kib << 10), limits);
        for version in 1..4 {
            bank.put(0..4000 + version * 500, version);
            bank.store.compact().unwrap();
        }
        bank.store.checkpoint(b"").unwrap();
        let durable = bank.versions.len();
        let mut scan = bank.store.scan(bank.table).unwrap();
        let mut found = 0;
        while let Some(row) = scan.next_row().unwrap() {
            assert_eq!(Some(row.value.to_vec()), bank.row(row.key), "{budget_kib} KiB");
            found += 1;
            if found == 100 {
                break;
            }
        }
        let keys: Vec<u64> = (10_000..12_000).collect();
        for keys in keys.chunks(500) {
            put(&bank.store, bank.table, keys, 9, Plain::BYTES);
        }
        bank.store.compact().unwrap();
        while let Some(row) = scan.next_row().unwrap() {
            assert_eq!(Some(row.value.to_vec()), bank.row(row.key), "{budget_kib} KiB");
            found += 1;
        }
        assert_eq!(found, durable, "{budget_kib} KiB");
        drop(scan);
        bank.store.checkpoint(b"").unwrap();
        bank.versions.extend(keys.iter().map(|&key| (key, 9)));
        bank.check((0..12_000).step_by(7));
    }
}

/// Opens a bank with much less memory than the opening before. `rows` rows are written with the
/// larger budget, in batches of `batch`.
fn opens_with_a_fraction(small: &StoreOptions, large: &StoreOptions, rows: u64, batch: u64) {
    let dir = tempfile::tempdir().unwrap();
    let limits = TierLimits {
        log_bytes: 64 << 10,
        sort_buffer_bytes: 16 << 10,
        base_part_bytes: 256 << 10,
        level_runs: 16,
    };
    let reopened = |bank: Plain, options| {
        let Plain { store, versions, .. } = bank;
        store.checkpoint(b"").unwrap();
        drop(store);
        Plain { versions, ..Plain::open(dir.path(), options, limits) }
    };
    // The pages of the log follow from the first budget.
    let bank = Plain::open(dir.path(), small, limits);
    let mut bank = reopened(bank, large);
    for first in (0..rows).step_by(batch as usize) {
        bank.put(first..first + batch, 1);
        // A checkpoint writes the pages of the log. Then they go to the cold tier, and the index
        // stays so short that it fits the small budget.
        bank.store.checkpoint(b"").unwrap();
        bank.store.compact().unwrap();
    }
    bank.delete(500..600);
    let sample = || (0..rows + 500).step_by(1 + rows as usize / 4000);
    bank.check(sample());
    let mut bank = reopened(bank, small);
    bank.check(sample());
    bank.put(1000..4000, 2);
    bank.delete(5000..6000);
    bank.store.compact().unwrap();
    bank.check(sample());
    let mut bank = reopened(bank, small);
    bank.put(rows - 1000..rows + 1000, 3);
    bank.store.compact().unwrap();
    bank.check(sample().chain(500..4000));
    let mut scan = bank.store.scan(bank.table).unwrap();
    assert!(scan.next_row().unwrap().is_some());
}

#[test]
fn a_bank_opens_with_a_fraction_of_the_memory_that_wrote_it() {
    opens_with_a_fraction(&by_hand(512 << 10), &by_hand(8 << 20), 30_000, 2000);
}

/// A bank begins in one tier, and its index has an entry for each row. Once the rows have left the
/// log, the index gives its memory to the log's frames.
#[test]
fn the_index_gives_its_memory_to_frames_once_rows_have_left_the_log() {
    const BUDGET_BYTES: u64 = 8 << 20;
    const ROWS: u64 = 180_000;
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { cold_tier: ColdTier::OnCompact, ..by_hand(BUDGET_BYTES) };
    let open = |versions| {
        let store = Store::open(dir.path(), &options).unwrap();
        let table = match store.tables().first() {
            Some(table) => table.id,
            None => store.create_table("rows", Plain::BYTES as u32, b"").unwrap(),
        };
        Plain { store, table, versions }
    };
    let used = |bank: &Plain| {
        let stats = bank.store.stats();
        let shared = stats.memory_frames_bytes + stats.memory_cache_bytes;
        let all = shared
            + stats.memory_index_bytes
            + stats.memory_cold_bytes
            + stats.memory_buffers_bytes;
        assert!(all <= BUDGET_BYTES, "{stats:?}");
        (stats.memory_index_bytes, stats.memory_frames_bytes)
    };
    let mut bank = open(HashMap::new());
    bank.put(0..ROWS, 1);
    let (index_before, frames_before) = used(&bank);
    assert!(index_before > BUDGET_BYTES / 5, "{index_before} bytes of index");
    // A checkpoint before the folds, so that the next one has images to build on.
    bank.store.checkpoint(b"").unwrap();
    bank.store.compact().unwrap();
    assert_eq!(bank.store.stats().tiers, 2);
    // Rows of the log come and go as before.
    for round in 0..4 {
        bank.put(ROWS..ROWS + 40_000, 2 + round);
        bank.delete(1000 * round..1000 * round + 500);
        bank.store.compact().unwrap();
        bank.store.checkpoint(b"").unwrap();
    }
    bank.put(0..20_000, 9);
    let (index_after, frames_after) = used(&bank);
    println!("index {index_before} to {index_after}, frames {frames_before} to {frames_after}");
    assert!(index_after < index_before / 2, "{index_before} bytes of index, now {index_after}");
    assert!(frames_after > frames_before, "{frames_before} bytes of frames, now {frames_after}");
    let sample = || (0..ROWS + 41_000).step_by(7);
    bank.check(sample());
    bank.store.checkpoint(b"").unwrap();
    let Plain { store, versions, .. } = bank;
    drop(store);
    let found = verify(dir.path(), &VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(found.damage.is_empty(), "{found:?}");
    let mut bank = open(versions);
    assert!(used(&bank).0 < index_before / 2);
    bank.check(sample());
    let mut scan = bank.store.scan(bank.table).unwrap();
    let mut scanned = 0;
    while let Some(row) = scan.next_row().unwrap() {
        assert_eq!(Some(row.value.to_vec()), bank.row(row.key), "key {}", row.key);
        scanned += 1;
    }
    drop(scan);
    assert_eq!(scanned, bank.versions.len());
    // The index grows and folds again, and changes after the fold are in the next checkpoint.
    bank.put(0..100_000, 10);
    bank.store.checkpoint(b"").unwrap();
    bank.store.compact().unwrap();
    bank.put(5000..6000, 11);
    bank.store.checkpoint(b"").unwrap();
    bank.put(6000..6100, 12);
    bank.store.checkpoint(b"").unwrap();
    bank.check(sample());
    let Plain { store, versions, .. } = bank;
    drop(store);
    open(versions).check(sample().chain(5000..6200));
}
