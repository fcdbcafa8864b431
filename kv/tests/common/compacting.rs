//! Options and checks that the compaction tests share.
#![expect(clippy::unwrap_used, reason = "a test")]
#![allow(dead_code, reason = "each test binary uses some of these")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use embank_kv::{CompactionOptions, Store, StoreOptions, TableId};

use super::{options, peek, value};

pub(crate) const VALUE_BYTES: usize = 96;
pub(crate) const RECORD_BYTES: u64 = 128;

/// Options of a store that compacts only when a test calls `Store::compact`.
pub(crate) fn by_hand(budget_bytes: u64) -> StoreOptions {
    let compaction = CompactionOptions { background: false, ..CompactionOptions::default() };
    StoreOptions { compaction, ..options(budget_bytes) }
}

pub(crate) fn open(dir: &Path, options: &StoreOptions) -> (Store, TableId) {
    let store = Store::open(dir, options).unwrap();
    let table = store.tables().first().map(|table| table.id);
    let table =
        table.unwrap_or_else(|| store.create_table("rows", VALUE_BYTES as u32, b"").unwrap());
    (store, table)
}

pub(crate) fn check(
    store: &Store,
    table: TableId,
    versions: &HashMap<u64, u64>,
    keys: std::ops::Range<u64>,
) {
    let keys: Vec<u64> = keys.collect();
    for (&key, row) in keys.iter().zip(peek(store, table, &keys).unwrap()) {
        let expected = versions.get(&key).map(|&version| value(key, version, VALUE_BYTES));
        assert_eq!(row, expected, "key {key}");
    }
}

/// Runs `work` on a new thread. Returns false if it has not ended after `seconds` seconds; the
/// thread then keeps running.
pub(crate) fn ends(seconds: u64, work: impl FnOnce() + Send + 'static) -> bool {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = tell.send(());
    });
    match told.recv_timeout(Duration::from_secs(seconds)) {
        Err(RecvTimeoutError::Timeout) => false,
        _ => thread.join().map(|()| true).unwrap(),
    }
}
