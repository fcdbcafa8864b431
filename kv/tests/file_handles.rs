//! Tests that a store needs few file handles, however many segments lie between two checkpoints. It
//! must also work when the process has no free handle for a moment. This file has one test only,
//! because the limit applies to the whole process.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs::File;

use common::reading::{by_hand, keys, rows_of};
use common::{peek, put};
use embank_kv::{Store, StoreOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: u64 = 96;

fn handles() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Opens files until the process has no free handle.
fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn a_store_writes_a_hundred_segments_between_two_checkpoints() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), ..limit }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        page_size_bytes: Some(8 << 10),
        segment_size_bytes: Some(16 << 10),
        device: embank_kv::DeviceChoice::Threads,
        ..by_hand(2)
    };
    let store = Store::open(dir.path(), &options).unwrap();
    let table = store.create_table("rows", 120, b"").unwrap();
    store.checkpoint(b"").unwrap();
    let all = keys(20_000);
    let mut most = 0;
    for version in 1..4 {
        put(&store, table, &all, version, 120);
        most = most.max(handles());
    }
    let segments = std::fs::read_dir(dir.path().join("log")).unwrap().count();
    assert!(segments > 2 * LIMIT as usize, "{segments} segments");
    assert!(most < LIMIT as usize - 30, "{most} handles are open");
    assert_eq!(peek(&store, table, &all).unwrap(), rows_of(&all, 3, 120));

    // Now the process has no free handle, so the store can only reuse handles that it closes
    // itself.
    let taken = take_all();
    assert_eq!(peek(&store, table, &all).unwrap(), rows_of(&all, 3, 120));
    put(&store, table, &all, 8, 120);
    let after = store.checkpoint(b"with few");
    drop(taken);
    after.unwrap();

    // Now the store has no handle left. A checkpoint fails before it changes anything, and the
    // store stays usable.
    store.checkpoint(b"before").unwrap();
    let mut taken = take_all();
    for _ in 0..LIMIT {
        let _ = store.checkpoint(b"with none");
        taken.extend(take_all());
    }
    let error = store.checkpoint(b"with none").unwrap_err();
    assert!(error.to_string().contains("Too many open files"), "{error}");
    drop(taken);
    put(&store, table, &all[..50], 9, 120);
    store.checkpoint(b"with enough").unwrap();
    drop(store);
    let store = Store::open(dir.path(), &options).unwrap();
    assert_eq!(store.recovered().unwrap().blob, b"with enough");
    assert_eq!(peek(&store, table, &all[50..]).unwrap(), rows_of(&all[50..], 8, 120));
    assert_eq!(peek(&store, table, &all[..50]).unwrap(), rows_of(&all[..50], 9, 120));
}
