//! Tests that a scan returns each row of its checkpoint once, while other threads change the store.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::compacting::by_hand;
use crate::common::{Add, Random, options, put, value};
use embank_kv::device::{Device, DeviceOptions, FaultyDevice, MemoryDevice};
use embank_kv::{Clock, Error, Scan, Store, StoreOptions, TableId};

const VALUE_BYTES: usize = 60;

fn collect(scan: &mut Scan<'_>) -> HashMap<u64, Vec<u8>> {
    let mut rows = HashMap::new();
    while let Some(row) = scan.next_row().unwrap() {
        assert_eq!(rows.insert(row.key, row.value.to_vec()), None, "key {} came twice", row.key);
    }
    assert!(scan.next_row().unwrap().is_none());
    assert_eq!(rows.len() as u64, scan.rows());
    rows
}

fn expect(versions: &HashMap<u64, u64>) -> HashMap<u64, Vec<u8>> {
    versions.iter().map(|(&key, &version)| (key, value(key, version, VALUE_BYTES))).collect()
}

/// Puts rows into a table in many steps, deletes some, and puts rows of another table in between.
/// Returns the version of each row.
fn churn(store: &Store, table: TableId, other: TableId, random: &mut Random) -> HashMap<u64, u64> {
    let mut versions = HashMap::new();
    for version in 0..60 {
        let first = random.below(20_000);
        let keys: Vec<u64> = (first..first + 1000).collect();
        put(store, table, &keys, version, VALUE_BYTES);
        versions.extend(keys.iter().map(|&key| (key, version)));
        put(store, other, &keys[..200], version, 16);
        let first = random.below(20_000);
        let keys: Vec<u64> = (first..first + 100).collect();
        store.delete(table, &keys).unwrap();
        versions.retain(|key, _| !keys.contains(key));
    }
    versions
}

#[test]
fn a_scan_yields_each_row_of_its_table_once() {
    // With the smallest budget, keys share slots and the scan must read most chains.
    for budget_bytes in [256 << 10, 1 << 20, 64 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let mut random = Random::new();
        let store = Store::open(dir.path(), &options(budget_bytes)).unwrap();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        let other = store.create_table("other", 16, b"").unwrap();
        let versions = churn(&store, table, other, &mut random);
        store.checkpoint(b"").unwrap();
        assert_eq!(collect(&mut store.scan(table).unwrap()), expect(&versions));
        let others = collect(&mut store.scan(other).unwrap());
        assert_eq!(others.len() as u64, store.stats().live_rows - versions.len() as u64);
        drop(store);
        let store = Store::open(dir.path(), &options(budget_bytes)).unwrap();
        assert_eq!(collect(&mut store.scan(table).unwrap()), expect(&versions));
    }
}

#[test]
fn a_scan_stays_at_its_checkpoint_while_everything_changes() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::new();
    let options = StoreOptions { checkpoints_kept: 1, ..options(512 << 10) };
    let store = Store::open(dir.path(), &options).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let other = store.create_table("other", 16, b"").unwrap();
    let versions = churn(&store, table, other, &mut random);
    store.checkpoint(b"").unwrap();
    let mut scan = store.scan(table).unwrap();
    let first = scan.next_row().unwrap().map(|row| (row.key, row.value.to_vec())).unwrap();
    let begin = store.stats().log_begin;
    let changer = || {
        let keys: Vec<u64> = versions.keys().copied().collect();
        for _ in 0..4 {
            store.execute(table, &keys, Clock::Keep, &mut Add { by: 1, insert: false }).unwrap();
            store.checkpoint(b"").unwrap();
            store.compact().unwrap();
        }
        store.delete(table, &keys).unwrap();
        store.checkpoint(b"").unwrap();
        store.drop_table(table).unwrap();
        store.checkpoint(b"").unwrap();
        store.compact().unwrap();
    };
    changer();
    let stats = store.stats();
    assert!(stats.log_begin > begin && stats.log_held_bytes > 0, "{stats:?}");
    let mut rows = HashMap::from([first]);
    while let Some(row) = scan.next_row().unwrap() {
        assert_eq!(rows.insert(row.key, row.value.to_vec()), None, "key {} came twice", row.key);
    }
    assert_eq!(rows, expect(&versions));
    drop(scan);
    store.checkpoint(b"").unwrap();
    let stats = store.stats();
    assert_eq!(stats.log_held_bytes, 0, "{stats:?}");
    assert!(matches!(store.scan(table), Err(Error::NoSuchTable(_))));
}

#[test]
fn a_scan_needs_a_checkpoint_that_knows_the_table_and_some_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(256 << 10)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    assert!(matches!(store.scan(table), Err(Error::NoSuchCheckpoint { number: None, .. })));
    store.checkpoint(b"").unwrap();
    assert!(store.scan(table).unwrap().next_row().unwrap().is_none());
    let later = store.create_table("later", VALUE_BYTES as u32, b"").unwrap();
    let Err(Error::NoSuchTable(what)) = store.scan(later) else { panic!("not there") };
    assert!(what.contains("later") && what.contains("checkpoint 1"), "{what}");
    let frames = store.stats().memory_frames_bytes;
    let held = store.scan(table).unwrap();
    let Err(Error::BudgetTooSmall { needed_bytes, .. }) = store.scan(table) else {
        panic!("lent twice")
    };
    assert!(needed_bytes > 256 << 10);
    drop(held);
    assert!(store.scan(table).is_ok());
    assert!(store.stats().memory_frames_bytes <= frames);
}

#[test]
fn damage_and_failures_reach_the_scan() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
    let device = Arc::new(FaultyDevice::new(disk));
    let wrapped: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&device);
    let store = Store::open_on(dir.path(), &options(256 << 10), |_| Ok(wrapped)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..3000).collect();
    put(&store, table, &keys, 1, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    let all = |store: &Store| -> Result<u64, Error> {
        let mut scan = store.scan(table)?;
        let mut rows = 0;
        while scan.next_row()?.is_some() {
            rows += 1;
        }
        Ok(rows)
    };
    assert_eq!(all(&store).unwrap(), 3000);
    device.flip_bit_on_read(3 * store.stats().page_size_bytes + 500, 1);
    assert!(matches!(all(&store), Err(Error::Damaged { .. })));
    device.mend();
    for n in [1, 2, 5] {
        device.fail_read(n, std::io::ErrorKind::Other);
        assert!(matches!(all(&store), Err(Error::Io { operation: "read", .. })));
    }
    device.mend();
    assert_eq!(all(&store).unwrap(), 3000);
    let index = dir.path().join("checkpoints/0000000001/index.0000000001");
    let bytes = std::fs::read(&index).unwrap();
    std::fs::write(&index, &bytes[..bytes.len() - 9]).unwrap();
    assert!(matches!(all(&store), Err(Error::Truncated { .. })));
}

/// Regression test: a scan that failed because it could not read an index file kept the log's space
/// until the bank was opened again.
#[test]
fn a_scan_that_can_not_begin_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { checkpoints_kept: 1, ..by_hand(512 << 10) };
    let store = Store::open(dir.path(), &options).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..10_000).collect();
    put(&store, table, &keys, 0, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    let later = store.create_table("later", VALUE_BYTES as u32, b"").unwrap();
    let image = dir.path().join("checkpoints/0000000001/index.0000000001");
    let whole = std::fs::read(&image).unwrap();
    for damaged_at in [0, 40] {
        let mut damaged = whole.clone();
        damaged[damaged_at] ^= 1;
        std::fs::write(&image, &damaged).unwrap();
        let Err(error) = store.scan(table) else { panic!("damage at {damaged_at} was not seen") };
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }
    std::fs::write(&image, &whole).unwrap();
    assert!(matches!(store.scan(later), Err(Error::NoSuchTable(_))));
    // If the failed scan held the log of checkpoint 1, that log would not be freed here.
    for version in 1..4 {
        put(&store, table, &keys, version, VALUE_BYTES);
        store.compact().unwrap();
        store.checkpoint(b"").unwrap();
    }
    let stats = store.stats();
    assert!(stats.freed_bytes > 0, "{stats:?}");
    assert_eq!(stats.log_held_bytes, 0, "{stats:?}");
}
