//! Tests a bank that was made with little memory and is opened with more.

use crate::common::compacting::by_hand;
use crate::common::{peek, put, value};
use embank_kv::Store;
use embank_kv::inspect::{SalvageOptions, TableReader, VerifyOptions, salvage, verify};

const VALUE_BYTES: usize = 64;
const ROWS: u64 = 100_000;

/// Regression test: a bank with 1 MiB has index entries with short tags, and with more memory,
/// splits copy such entries. The store counted the copies when it removed them, but not when it
/// made them. The count went below zero, and the index grew without rows.
#[test]
fn copies_of_entries_are_counted_and_go_with_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &by_hand(1 << 20)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let insert = |store: &Store, table, keys: std::ops::Range<u64>| {
        for chunk in keys.collect::<Vec<_>>().chunks(4096) {
            put(store, table, chunk, 0, VALUE_BYTES);
        }
    };
    insert(&store, table, 0..ROWS);
    store.checkpoint(b"").unwrap();
    assert!(store.stats().index_entries < ROWS * 3 / 4, "{:?}", store.stats());
    drop(store);

    let store = Store::open(dir.path(), &by_hand(64 << 20)).unwrap();
    insert(&store, table, ROWS..4 * ROWS);
    let stats = store.stats();
    // The bound is 20 bytes a row: 12.8 bytes for buckets of 5 rows, and 7.2 bytes for overflow
    // buckets. Copies of entries need only overflow buckets.
    assert!(stats.memory_index_bytes < 4 * ROWS * 20, "{stats:?}");
    let keys: Vec<u64> = (0..ROWS).collect();
    for (key, row) in keys.iter().zip(peek(&store, table, &keys).unwrap()) {
        assert_eq!(row, Some(value(*key, 0, VALUE_BYTES)), "key {key}");
    }
    store.drop_table(table).unwrap();
    for _ in 0..3 {
        store.checkpoint(b"").unwrap();
        store.compact().unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.index_entries.cast_signed(), stats.live_rows), (0, 0), "{stats:?}");
    let index_bytes = stats.memory_index_bytes;
    let other = store.create_table("other", VALUE_BYTES as u32, b"").unwrap();
    insert(&store, other, 0..ROWS);
    assert_eq!(store.stats().memory_index_bytes, index_bytes, "the index grew without need");
}

/// Regression test: a split gives an entry without tag bits the bits of those records that belong
/// to one of the two buckets. The entry's first record may belong to the other bucket. `verify`
/// then reported an intact chain as damaged, and a repair skipped its other rows.
#[test]
fn entries_that_a_split_took_apart_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let bank = dir.path().join("bank");
    let store = Store::open(&bank, &by_hand(1 << 20)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let update = |store: &Store, keys: std::ops::Range<u64>, version| {
        for chunk in keys.collect::<Vec<_>>().chunks(4096) {
            put(store, table, chunk, version, VALUE_BYTES);
        }
    };
    update(&store, 0..ROWS, 0);
    store.checkpoint(b"").unwrap();
    drop(store);

    let store = Store::open(&bank, &by_hand(64 << 20)).unwrap();
    // The updates bring all rows to memory, and compaction frees the older records. Chains of
    // several keys are then in memory as a whole, so the splits below divide them.
    update(&store, 0..ROWS, 1);
    for _ in 0..3 {
        store.checkpoint(b"").unwrap();
        store.compact().unwrap();
    }
    update(&store, ROWS..4 * ROWS, 1);
    store.checkpoint(b"").unwrap();
    let rows = store.rows(table).unwrap();
    drop(store);

    let report = verify(&bank, &VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(rows, 4 * ROWS);
    let mut reader = TableReader::open(&bank, None, "rows").unwrap();
    let keys: Vec<u64> = (0..ROWS).step_by(50).collect();
    for (key, row) in keys.iter().zip(reader.get(&keys).unwrap()) {
        assert_eq!(row, Some(value(*key, 1, VALUE_BYTES)), "key {key}");
    }
    let mut read = 0;
    let damage = reader.for_each_row(&mut |_, _| {
        read += 1;
        true
    });
    assert!(damage.unwrap().is_empty());
    assert_eq!(read, rows);
    let options = SalvageOptions::default();
    let report = salvage(&bank, &dir.path().join("new"), &options, &mut |_| {}).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.tables[0].rows, rows);
}
