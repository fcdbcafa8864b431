//! Options and checks for tests that read and write a bank at the same time.

use std::collections::BTreeMap;

use embank_kv::{CompactionOptions, Store, StoreOptions, TableId};

use super::{options, value};

pub(crate) const BUDGET: u64 = 1 << 20;

/// Options of a writer that compacts only when a test calls `Store::compact`.
pub(crate) fn by_hand(checkpoints_kept: usize) -> StoreOptions {
    StoreOptions {
        checkpoints_kept,
        compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
        ..options(BUDGET)
    }
}

pub(crate) fn keys(count: u64) -> Vec<u64> {
    (0..count).collect()
}

/// Returns the values of the rows of `keys` in `version`.
pub(crate) fn rows_of(keys: &[u64], version: u64, bytes: usize) -> Vec<Option<Vec<u8>>> {
    keys.iter().map(|&key| Some(value(key, version, bytes))).collect()
}

pub(crate) fn scanned(store: &Store, table: TableId) -> BTreeMap<u64, Vec<u8>> {
    let mut scan = store.scan(table).unwrap();
    let mut rows = BTreeMap::new();
    while let Some(row) = scan.next_row().unwrap() {
        assert_eq!(rows.insert(row.key, row.value.to_vec()), None, "each row once");
    }
    assert_eq!(rows.len() as u64, scan.rows());
    rows
}
