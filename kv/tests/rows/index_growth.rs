//! Tests that the index grows with the rows, stays within the budget and loses no row.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use crate::common::{Random, options};
use embank_kv::device::{Device, DeviceOptions, MemoryDevice};
use embank_kv::{
    Access, Clock, DeviceChoice, Error, Operation, Store, StoreOptions, StoreStats, TableId,
};

const BATCH: u64 = 4096;

/// Returns the value of a key's row, a number.
fn number(key: u64) -> u64 {
    key.rotate_left(17) ^ 0xE3BA_4C5D
}

/// Returns the `i`th key. The keys are not sorted.
fn key(i: u64) -> u64 {
    i.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

struct Put<'a>(&'a [u64]);

impl Operation for Put<'_> {
    const ACCESS: Access = Access::Put;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&number(self.0[i]).to_le_bytes());
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

struct Check<'a>(&'a [u64], u64);

impl Operation for Check<'_> {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, i: usize, value: &[u8]) {
        assert_eq!(value, number(self.0[i]).to_le_bytes(), "key {}", self.0[i]);
        self.1 += 1;
    }
}

fn keys(first: u64, end: u64) -> Vec<u64> {
    (first..end).map(key).collect()
}

/// Inserts the rows with numbers `first` to `end` - 1. Calls `after` after each batch.
fn insert(store: &Store, table: TableId, first: u64, end: u64, mut after: impl FnMut(u64)) {
    for start in (first..end).step_by(BATCH as usize) {
        let stop = end.min(start + BATCH);
        let keys = keys(start, stop);
        let outcome = store.execute(table, &keys, Clock::Keep, &mut Put(&keys)).unwrap();
        assert!(outcome.missing.is_empty());
        after(stop);
    }
}

/// Asserts that each of the first `rows` rows is found, and that other keys have no row.
fn check_all(store: &Store, table: TableId, rows: u64) {
    for start in (0..rows).step_by(1 << 16) {
        let keys = keys(start, rows.min(start + (1 << 16)));
        let mut check = Check(&keys, 0);
        let outcome = store.execute(table, &keys, Clock::Keep, &mut check).unwrap();
        assert!(outcome.missing.is_empty(), "{} rows are missing", outcome.missing.len());
        assert_eq!(check.1, keys.len() as u64);
    }
    let never = keys(rows, rows + rows.min(10_000));
    let outcome = store.execute(table, &never, Clock::Keep, &mut Check(&never, 0)).unwrap();
    assert_eq!(outcome.missing.len(), never.len());
}

fn used_bytes(stats: &StoreStats) -> u64 {
    stats.memory_frames_bytes + stats.memory_index_bytes + stats.memory_buffers_bytes
}

fn open(dir: &tempfile::TempDir, options: &StoreOptions) -> (Store, TableId) {
    with_table(Store::open(dir.path(), options).unwrap())
}

fn with_table(store: Store) -> (Store, TableId) {
    let table = match store.tables().first() {
        Some(table) => table.id,
        None => store.create_table("rows", 8, b"").unwrap(),
    };
    (store, table)
}

/// Inserts `rows` rows and measures the memory after each batch. The index takes memory in units of
/// `granule_bytes`, separately for buckets and for overflow buckets. It also keeps overflow buckets
/// of a sixteenth of a page in reserve.
fn grow_and_measure(budget_bytes: u64, rows: u64, granule_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(&dir, &options(budget_bytes));
    let mut worst = 0.0;
    let mut next_check = 1000;
    insert(&store, table, 0, rows, |inserted| {
        let stats = store.stats();
        let index_bytes = stats.memory_index_bytes;
        let limit = 16 * inserted + 2 * granule_bytes + stats.page_size_bytes / 16;
        assert!(index_bytes <= limit, "{index_bytes} bytes of index at {inserted} rows");
        worst = f64::max(worst, index_bytes as f64 / inserted as f64);
        if inserted >= next_check {
            println!("{inserted} rows: {:.2} bytes", index_bytes as f64 / inserted as f64);
            next_check *= 4;
        }
    });
    println!("at most {worst:.2} bytes of index a row");
    check_all(&store, table, rows);
    assert_eq!(store.stats().inserted, rows);
    // The reopened index must have the same number of entries.
    let entries = store.stats().index_entries;
    store.checkpoint(b"").unwrap();
    drop(store);
    let (store, table) = open(&dir, &options(budget_bytes));
    assert_eq!(store.stats().index_entries, entries);
    let limit = 16 * rows + 2 * granule_bytes;
    assert!(store.stats().memory_index_bytes <= limit);
    check_all(&store, table, rows);
    // The reopened index must be able to grow.
    insert(&store, table, rows, rows + rows / 8, |_| ());
    check_all(&store, table, rows + rows / 8);
}

#[test]
fn two_million_rows_take_16_bytes_of_index_each() {
    grow_and_measure(100 << 20, 2_000_000, 4096);
}

#[test]
fn a_budget_with_huge_pages_takes_index_memory_in_their_size() {
    grow_and_measure(1 << 30, 300_000, 2 << 20);
}

/// Inserts far more rows than the index has slots for. Keys then share slots, and the long chains
/// are on disk.
fn overfill(
    budget_bytes: u64,
    rows: u64,
    open: impl Fn(&tempfile::TempDir, &StoreOptions) -> (Store, TableId),
) {
    let dir = tempfile::tempdir().unwrap();
    let options = options(budget_bytes);
    let (store, table) = open(&dir, &options);
    insert(&store, table, 0, rows, |_| ());
    let stats = store.stats();
    assert!(stats.index_entries < rows, "the index is not full yet: {stats:?}");
    assert!(used_bytes(&stats) <= budget_bytes, "{stats:?}");
    check_all(&store, table, rows);
    // Rows that share a slot can be put, deleted and promoted like other rows.
    let mut random = Random::new();
    let some: Vec<u64> = (0..2000).map(|_| key(random.below(rows))).collect();
    store.execute(table, &some, Clock::Keep, &mut Put(&some)).unwrap();
    check_all(&store, table, rows);
    store.checkpoint(b"").unwrap();
    drop(store);
    let (store, table) = open(&dir, &options);
    check_all(&store, table, rows);
    let mut gone = keys(0, 1000);
    assert_eq!(store.delete(table, &gone).unwrap(), 1000);
    gone.reverse();
    let outcome = store.execute(table, &gone, Clock::Keep, &mut Check(&gone, 0)).unwrap();
    assert_eq!(outcome.missing.len(), 1000);
    insert(&store, table, 0, 1000, |_| ());
    check_all(&store, table, rows);
}

#[test]
fn a_full_index_of_256_kib_finds_every_row() {
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
    overfill(256 << 10, 100_000, |dir, options| {
        let store = Store::open_on(dir.path(), options, |_| Ok(Arc::clone(&memory))).unwrap();
        with_table(store)
    });
}

#[test]
fn a_full_index_of_512_kib_finds_every_row_on_a_real_disk() {
    overfill(512 << 10, 120_000, open);
}

#[test]
fn the_budget_is_kept_at_every_step() {
    // Regression test: the index took memory at once, but the log released frames only when it
    // began a later page. In between, the store exceeded its budget.
    for budget_bytes in [256 << 10, 384 << 10, 512 << 10, 3 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { device: DeviceChoice::Memory, ..options(budget_bytes) };
        let (store, table) = open(&dir, &options);
        insert(&store, table, 0, 60_000, |rows| {
            let stats = store.stats();
            assert!(used_bytes(&stats) <= budget_bytes, "at {rows} rows: {stats:?}");
        });
    }
}

#[test]
fn promote_in_one_thread_moves_every_row_of_shared_slots() {
    // Regression test: if two rows shared a slot, `promote` left the second row on disk and counted
    // it as overtaken.
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { device: DeviceChoice::Memory, ..options(256 << 10) };
    let (store, table) = open(&dir, &options);
    insert(&store, table, 0, 100_000, |_| ());
    // When these rows were inserted, slots were already shared.
    let wanted = keys(50_000, 51_000);
    let promoted = store.promote(table, &wanted).unwrap();
    // No other thread can move a row meanwhile.
    assert_eq!((promoted.missing, promoted.overtaken), (0, 0), "{promoted:?}");
    assert_eq!(promoted.moved + promoted.resident, 1000);
}

#[test]
fn an_index_that_does_not_fit_is_refused_with_the_budget_that_does() {
    // Regression test: the budget that an error named did not include overflow buckets, so the
    // store refused that budget too.
    for rows in [60_000, 330_000, 1_000_000, 1_400_000] {
        let dir = tempfile::tempdir().unwrap();
        let large = StoreOptions { page_size_bytes: Some(16 << 10), ..options(96 << 20) };
        let (store, table) = open(&dir, &large);
        insert(&store, table, 0, rows, |_| ());
        let index_bytes = store.stats().memory_index_bytes;
        store.checkpoint(b"").unwrap();
        drop(store);
        for small_bytes in [512 << 10, index_bytes / 2, index_bytes] {
            let error = Store::open(dir.path(), &options(small_bytes)).unwrap_err();
            let Error::BudgetTooSmall { budget_bytes, needed_bytes, what } = error else {
                panic!("{error}")
            };
            assert_eq!(budget_bytes, small_bytes);
            assert!(what.contains("index"), "{what}");
            let place = format!("{rows} rows, {index_bytes} bytes of index, {needed_bytes} needed");
            let reopened = Store::open(dir.path(), &options(needed_bytes));
            let store = reopened.unwrap_or_else(|error| panic!("{place}: {error}"));
            let stats = store.stats();
            assert!(used_bytes(&stats) <= needed_bytes, "{place}: {stats:?}");
            assert!(needed_bytes <= 2 * index_bytes + (2 << 20), "{place}: too much is asked for");
        }
    }
}
