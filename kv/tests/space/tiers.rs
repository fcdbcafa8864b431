//! Tests that a bank gets its second tier by itself, and works on it by itself.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use crate::common::{peek, put, value};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{ColdTier, Error, Store, StoreOptions, TableId, with_threads_left};

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

/// Rows of a bank whose index does not fit `BUDGET_BYTES`, by the version that each must have.
/// Every third row was written again, and every tenth row was deleted.
fn version_of(key: u64) -> Option<u64> {
    (!key.is_multiple_of(10)).then_some(if key.is_multiple_of(3) { 2 } else { 1 })
}

const MANY_ROWS: u64 = 200_000;

fn write_many(store: &Store, table: TableId) {
    let of = |keys: &mut dyn Iterator<Item = u64>| keys.collect::<Vec<u64>>();
    for keys in of(&mut (0..MANY_ROWS)).chunks(BATCH) {
        put(store, table, keys, 1, VALUE_BYTES);
    }
    for keys in of(&mut (0..MANY_ROWS).step_by(3)).chunks(BATCH) {
        put(store, table, keys, 2, VALUE_BYTES);
    }
    for keys in of(&mut (0..MANY_ROWS).step_by(10)).chunks(BATCH) {
        store.delete(table, keys).unwrap();
    }
}

fn check_many(store: &Store, table: TableId) {
    let keys: Vec<u64> = (0..MANY_ROWS).collect();
    for keys in keys.chunks(BATCH) {
        let rows = peek(store, table, keys).unwrap();
        for (&key, row) in keys.iter().zip(rows) {
            let expected = version_of(key).map(|version| value(key, version, VALUE_BYTES));
            assert_eq!(row, expected, "key {key}");
        }
    }
    let rows = keys.iter().filter(|&&key| version_of(key).is_some()).count() as u64;
    assert_eq!(store.stats().live_rows, rows);
}

/// Opens the bank twice with little memory: the first opening ends without a checkpoint.
fn opens_with_little_memory(dir: &Path, cold_tier: ColdTier) {
    for _ in 0..2 {
        let (store, table) = open(dir, &with(cold_tier));
        let stats = store.stats();
        assert_eq!((stats.tiers, stats.index_entries), (2, 0));
        assert!(stats.cold_parts > 0 && stats.log_tail - stats.log_begin < BUDGET_BYTES / 8);
        check_many(&store, table);
        put(&store, table, &[0, MANY_ROWS + 1], 3, VALUE_BYTES);
        assert_eq!(peek(&store, table, &[0]).unwrap(), [Some(value(0, 3, VALUE_BYTES))]);
        store.delete(table, &[0, MANY_ROWS + 1]).unwrap();
    }
    let (store, table) = open(dir, &with(cold_tier));
    store.checkpoint(b"").unwrap();
    drop(store);
    let found = verify(dir, &VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(found.damage.is_empty(), "{found:?}");
    let (store, table_again) = open(dir, &with(ColdTier::Never));
    assert_eq!((store.stats().tiers, table_again), (2, table));
    check_many(&store, table);
    store.checkpoint(b"").unwrap();
    drop(store);
    // The index of the larger budget's log grows again, from nothing.
    let (store, table) =
        open(dir, &StoreOptions { memory_budget_bytes: 16 << 20, ..with(cold_tier) });
    fill(&store, table, 7);
    check_filled(&store, table, 7);
}

fn check_filled(store: &Store, table: TableId, version: u64) {
    let keys: Vec<u64> = (0..ROWS).collect();
    for keys in keys.chunks(BATCH) {
        let rows = peek(store, table, keys).unwrap();
        let expected = keys.iter().map(|&key| Some(value(key, version, VALUE_BYTES)));
        assert!(rows.into_iter().eq(expected));
    }
}

/// Options with pages that fit a budget of `BUDGET_BYTES`, too.
fn with_much_memory(cold_tier: ColdTier) -> StoreOptions {
    StoreOptions {
        memory_budget_bytes: 16 << 20,
        page_size_bytes: Some(16 << 10),
        ..with(cold_tier)
    }
}

#[test]
fn a_bank_in_one_tier_whose_index_does_not_fit_opens_with_its_rows_in_the_cold_tier() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &with_much_memory(ColdTier::Never));
    write_many(&store, table);
    store.checkpoint(b"").unwrap();
    assert_eq!(store.stats().tiers, 1);
    drop(store);
    let refused = Store::open(dir.path(), &with(ColdTier::Never)).unwrap_err();
    assert!(matches!(refused, Error::BudgetTooSmall { .. }), "{refused}");
    opens_with_little_memory(dir.path(), ColdTier::Auto);
}

/// The first budget has room for a longer log, whose index takes most of the second one.
#[test]
fn a_bank_in_two_tiers_whose_index_leaves_parts_no_memory_moves_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { memory_budget_bytes: 8 << 20, ..with_much_memory(ColdTier::Auto) };
    let (store, table) = open(dir.path(), &options);
    write_many(&store, table);
    store.checkpoint(b"").unwrap();
    let stats = store.stats();
    assert!(stats.tiers == 2 && stats.memory_index_bytes > BUDGET_BYTES, "{stats:?}");
    drop(store);
    opens_with_little_memory(dir.path(), ColdTier::Never);
}
