//! Tests how many reading threads the banks of a process have without `io_uring`.
//!
//! This file has one test only, because another test could open a bank in the same process.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(all(target_os = "linux", not(miri)))]

mod common;

use common::threads::{await_no_thread_named, await_thread_named, threads_named};
use common::{options, peek, put, value};
use embank_kv::{DeviceChoice, Store, StoreOptions, TableId};

const BYTES: usize = 256;
/// Number of rows. Their records take more than four times the memory budget.
const ROWS: u64 = 16_000;
const READERS: &str = "embank-read-";

fn open(dir: &std::path::Path) -> (Store, TableId) {
    let options = StoreOptions { device: DeviceChoice::Threads, ..options(1 << 20) };
    let store = Store::open(dir, &options).unwrap();
    let table = store.create_table("rows", BYTES as u32, b"").unwrap();
    (store, table)
}

fn check_some(store: &Store, table: TableId) {
    let keys: Vec<u64> = (0..ROWS).step_by(61).collect();
    let expected: Vec<_> = keys.iter().map(|&key| Some(value(key, 1, BYTES))).collect();
    assert_eq!(peek(store, table, &keys).unwrap(), expected);
}

/// Regression test: each open bank had 32 reading threads of its own.
#[test]
fn the_banks_of_a_process_share_their_threads() {
    let dir = tempfile::tempdir().unwrap();
    let mut banks: Vec<_> = (0..4).map(|i| open(&dir.path().join(i.to_string()))).collect();
    assert_eq!(threads_named(READERS), 0, "no bank has read anything");
    for (store, table) in &banks {
        put(store, *table, &(0..ROWS).collect::<Vec<_>>(), 1, BYTES);
        check_some(store, *table);
    }
    await_thread_named(READERS);
    let readers = threads_named(READERS);
    assert!((1..=32).contains(&readers), "{readers}");
    while banks.len() > 1 {
        drop(banks.pop());
        assert!(threads_named(READERS) >= readers);
        banks.iter().for_each(|(store, table)| check_some(store, *table));
    }
    drop(banks);
    await_no_thread_named(READERS); // The last bank has ended them.
    let (store, table) = open(&dir.path().join("another"));
    put(&store, table, &(0..ROWS).collect::<Vec<_>>(), 1, BYTES);
    check_some(&store, table);
    await_thread_named(READERS);
}
