//! Tests a program that locks its memory (`mlockall`): a store still takes no more memory than its
//! budget. This file has one test only, because a program locks all of its memory.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(target_os = "linux")]

mod common;

use common::put;
use embank_kv::{Store, StoreOptions};

const BUDGET_BYTES: u64 = 128 << 20;
const VALUE_BYTES: usize = 256;

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// The store's maps are longer than the budget, and the system made all of them resident: 588 MiB
/// with a budget of 256 MiB.
#[test]
fn a_store_keeps_its_budget_if_the_program_locks_its_memory() {
    // SAFETY: the call takes a number.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
        eprintln!("skipped: mlockall is refused: {}", std::io::Error::last_os_error());
        return;
    }
    let before = resident_bytes();
    let taken = || resident_bytes().saturating_sub(before);
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { memory_budget_bytes: BUDGET_BYTES, ..StoreOptions::default() };
    let store = match Store::open(dir.path(), &options) {
        Ok(store) => store,
        Err(error) => {
            // The limit of locked memory also counts reserved addresses (`ulimit -l`).
            eprintln!("skipped: the store can't be opened with locked memory: {error}");
            return;
        }
    };
    // Stacks and buffers are locked, the reserved maps are not.
    assert!(taken() < BUDGET_BYTES / 2, "{} bytes after opening", taken());

    // Fills the budget twice, so pages are evicted and the index grows.
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let rows = 2 * BUDGET_BYTES / VALUE_BYTES as u64;
    for first in (0..rows).step_by(4096) {
        let keys: Vec<u64> = (first..first + 4096).collect();
        put(&store, table, &keys, 1, VALUE_BYTES);
    }
    assert!(taken() < BUDGET_BYTES * 5 / 4, "{} bytes after filling", taken());
    drop(store);
}
