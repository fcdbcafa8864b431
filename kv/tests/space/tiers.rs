//! Tests that a bank gets its second tier by itself, and works on it by itself.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use crate::common::{peek, put, value};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{ColdTier, Store, StoreOptions, TableId, with_threads_left};

/// The smallest budget with which a bank gets a second tier by itself.
const BUDGET_BYTES: u64 = 1 << 20;
const VALUE_BYTES: usize = 16;
/// With this number of rows, the index needs four times the budget's quarter.
const ROWS: u64 = 70_000;
const BATCH: usize = 1024;

fn open(dir: &Path, options: &StoreOptions) -> (Store, TableId) {
    let store = Store::open(dir, options).unwrap();
    let table = match store.tables().first() {
        Some(table) => table.id,
        None => store.create_table("rows", VALUE_BYTES as u32, b"").unwrap(),
    };
    (store, table)
}

/// Puts all rows, in this version.
fn fill(store: &Store, table: TableId, version: u64) {
    let keys: Vec<u64> = (0..ROWS).collect();
    for keys in keys.chunks(BATCH) {
        put(store, table, keys, version, VALUE_BYTES);
    }
}

fn check(store: &Store, table: TableId, version: u64) {
    let keys: Vec<u64> = (0..ROWS + 1).collect();
    for keys in keys.chunks(BATCH) {
        let rows = peek(store, table, keys).unwrap();
        for (&key, row) in keys.iter().zip(rows) {
            assert_eq!(row, (key < ROWS).then(|| value(key, version, VALUE_BYTES)), "key {key}");
        }
    }
    let stats = store.stats();
    assert_eq!((stats.live_rows, &stats.compaction_stopped), (ROWS, &None));
}

/// Options of a bank that is not asked to compact in the background.
fn with(cold_tier: ColdTier) -> StoreOptions {
    StoreOptions { memory_budget_bytes: BUDGET_BYTES, cold_tier, ..StoreOptions::default() }
}

/// Nothing asks the bank for compaction: the default options leave it off.
#[test]
fn a_bank_whose_index_outgrows_a_quarter_of_its_budget_gets_a_second_tier() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &with(ColdTier::Auto));
    assert_eq!(store.stats().tiers, 1);
    for version in 0..3 {
        fill(&store, table, version);
        let stats = store.stats();
        // Batches wait for the thread, so the log is short whatever the load of the machine is.
        assert!(stats.cold_parts > 0 && stats.spilled_rows > 0, "{stats:?}");
        assert!(stats.cold_debt() < 2.0, "{stats:?}");
        assert!(stats.log_tail - stats.log_begin < 2 * BUDGET_BYTES, "{stats:?}");
    }
    check(&store, table, 2);
    let stats = store.stats();
    assert_eq!(stats.tiers, 2);
    assert!(stats.cold_blocks_read > 0 && stats.memory_cold_bytes > 0, "{stats:?}");
    store.checkpoint(b"").unwrap();
    drop(store);
    let found = verify(dir.path(), &VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(found.damage.is_empty(), "{found:?}");
    // The cold tier stays, however large the budget and whatever the options are.
    let larger = StoreOptions { memory_budget_bytes: 64 << 20, ..with(ColdTier::Never) };
    let (store, table) = open(dir.path(), &larger);
    assert_eq!(store.stats().tiers, 2);
    check(&store, table, 2);
}

#[test]
fn a_bank_stays_in_one_tier_if_the_program_asks_for_it_or_the_budget_is_small() {
    let small = StoreOptions { memory_budget_bytes: BUDGET_BYTES - 4096, ..with(ColdTier::Auto) };
    for options in [with(ColdTier::Never), small] {
        let dir = tempfile::tempdir().unwrap();
        let (store, table) = open(dir.path(), &options);
        fill(&store, table, 1);
        store.compact().unwrap();
        check(&store, table, 1);
        let stats = store.stats();
        assert_eq!((stats.tiers, stats.cold_parts, stats.cold_disk_bytes), (1, 0, 0));
    }
}

#[test]
fn long_rows_keep_one_tier_because_their_index_is_small() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &with(ColdTier::Auto)).unwrap();
    let table = store.create_table("long", 4000, b"").unwrap();
    for first in (0..2000).step_by(100) {
        put(&store, table, &(first..first + 100).collect::<Vec<_>>(), 1, 4000);
    }
    let stats = store.stats();
    assert!(stats.log_head > stats.log_begin, "memory does not hold the log");
    assert_eq!(stats.tiers, 1);
}

#[test]
fn a_bank_without_a_thread_moves_rows_only_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &with(ColdTier::OnCompact));
    fill(&store, table, 1);
    let stats = store.stats();
    assert_eq!((stats.tiers, stats.cold_parts, stats.compaction_waits), (2, 0, 0));
    store.compact().unwrap();
    let stats = store.stats();
    assert!(stats.cold_parts > 0 && stats.log_tail - stats.log_begin < BUDGET_BYTES, "{stats:?}");
    check(&store, table, 1);
}

/// A bank in one tier, as older programs leave it, is far longer than the log of a bank in two
/// tiers may be. It shrinks as batches run, and no batch waits until all of it has gone.
#[test]
fn the_long_log_of_a_bank_in_one_tier_goes_cold_as_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &with(ColdTier::Never));
    (0..4).for_each(|version| fill(&store, table, version));
    store.checkpoint(b"").unwrap();
    let before = store.stats();
    drop(store);
    // The index of the bank leaves no memory of the smaller budget for a cold tier.
    let larger = StoreOptions { memory_budget_bytes: 2 * BUDGET_BYTES, ..with(ColdTier::Auto) };
    let (store, table) = open(dir.path(), &larger);
    assert_eq!(store.stats().tiers, 1, "nothing has been written yet");
    check(&store, table, 3);
    let length = |stats: &embank_kv::StoreStats| stats.log_tail - stats.log_begin;
    let mut version = 4;
    fill(&store, table, version);
    // The loop ends: a batch that is ahead of the thread waits at each page, until a spill has
    // passed more pages than one.
    while length(&store.stats()) >= length(&before) / 2 {
        assert!(version < 200, "{:?}", store.stats());
        version += 1;
        fill(&store, table, version);
    }
    assert_eq!(store.stats().tiers, 2);
    check(&store, table, version);
}

#[test]
fn a_bank_that_is_refused_the_thread_says_so_and_tries_again_after_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &with(ColdTier::Auto));
    with_threads_left(0, || fill(&store, table, 1));
    let stats = store.stats();
    assert_eq!((stats.tiers, stats.cold_parts), (2, 0));
    let why = stats.compaction_stopped.unwrap();
    assert!(why.contains("compactor"), "{why}");
    store.checkpoint(b"").unwrap();
    (2..4).for_each(|version| fill(&store, table, version));
    assert!(store.stats().cold_parts > 0);
    check(&store, table, 3);
}
