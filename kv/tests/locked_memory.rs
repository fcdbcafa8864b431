//! Tests a program that locks its memory (`mlockall`): stores still take no more memory than their
//! budgets. This file has one test only, because a program locks all of its memory.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(target_os = "linux")]

mod common;

use std::path::Path;

use common::{ReadAll, put, value};
use embank_kv::{Clock, Result, Store, StoreOptions, TableId};

const BUDGET_BYTES: u64 = 128 << 20;
const VALUE_BYTES: usize = 256;
const BATCH_ROWS: u64 = 4096;
/// Rows of twice the budget, so pages are evicted and the index grows.
const ROWS: u64 = 2 * BUDGET_BYTES / VALUE_BYTES as u64;

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Returns false and prints the reason if the system refuses to lock the memory.
fn is_locked(flags: libc::c_int) -> bool {
    // SAFETY: the call takes a number.
    let locked = unsafe { libc::mlockall(flags) } == 0;
    if !locked {
        eprintln!("skipped: mlockall is refused: {}", std::io::Error::last_os_error());
    }
    locked
}

/// Returns `None` and prints the reason if the store can't be opened. The limit of locked memory
/// also counts reserved addresses (`ulimit -l`).
fn opened(store: Result<Store>) -> Option<Store> {
    let refused =
        |error| eprintln!("skipped: the store can't be opened, memory is locked: {error}");
    store.map_err(refused).ok()
}

fn options(budget_bytes: u64) -> StoreOptions {
    StoreOptions { memory_budget_bytes: budget_bytes, ..StoreOptions::default() }
}

fn fill(store: &Store, table: TableId, rows: u64) {
    for first in (0..rows).step_by(BATCH_ROWS as usize) {
        let keys: Vec<u64> = (first..(first + BATCH_ROWS).min(rows)).collect();
        put(store, table, &keys, 1, VALUE_BYTES);
    }
}

/// Checks the memory of a store that is written to. The store's maps are longer than the budget,
/// and the system made all of them resident: 588 MiB with a budget of 256 MiB.
fn a_store_of_one_table(dir: &Path) -> Option<()> {
    let before = resident_bytes();
    let taken = || resident_bytes().saturating_sub(before);
    let store = opened(Store::open(dir, &options(BUDGET_BYTES)))?;
    // Stacks and buffers are locked, the reserved maps are not.
    assert!(taken() < BUDGET_BYTES / 2, "{} bytes after opening", taken());
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    fill(&store, table, ROWS);
    assert!(taken() < BUDGET_BYTES * 5 / 4, "{} bytes after filling", taken());
    store.checkpoint(b"").unwrap();
    Some(())
}

/// Checks the memory of a store that was opened read-only, whose read cache fills.
fn a_store_that_is_read(dir: &Path) -> Option<()> {
    let before = resident_bytes();
    let taken = || resident_bytes().saturating_sub(before);
    let store = opened(Store::open_read_only(dir, &options(BUDGET_BYTES), None))?;
    assert!(taken() < BUDGET_BYTES / 2, "{} bytes after opening", taken());
    let table = store.tables()[0].id;
    for first in (0..ROWS).step_by(BATCH_ROWS as usize) {
        let keys: Vec<u64> = (first..first + BATCH_ROWS).collect();
        let mut values = vec![Vec::new(); keys.len()];
        store.execute(table, &keys, Clock::Keep, &mut ReadAll(&mut values)).unwrap();
        assert_eq!(values[7], value(first + 7, 1, VALUE_BYTES));
    }
    assert!(taken() < BUDGET_BYTES * 5 / 4, "{} bytes after reading", taken());
    Some(())
}

/// Checks the memory of two stores of many tables. Each has half of the budget.
fn two_stores_of_many_tables() -> Option<()> {
    const TABLES: u64 = 40;
    let before = resident_bytes();
    let taken = || resident_bytes().saturating_sub(before);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let open =
        |dir: &tempfile::TempDir| opened(Store::open(dir.path(), &options(BUDGET_BYTES / 2)));
    let stores = [open(&dirs[0])?, open(&dirs[1])?];
    assert!(taken() < BUDGET_BYTES / 2, "{} bytes after opening", taken());
    for number in 0..TABLES {
        for store in &stores {
            let name = format!("rows {number}");
            let table = store.create_table(&name, VALUE_BYTES as u32, b"").unwrap();
            fill(store, table, ROWS / 2 / TABLES);
        }
    }
    assert!(taken() < BUDGET_BYTES * 5 / 4, "{} bytes after filling", taken());
    Some(())
}

fn all_stores(dir: &Path) -> Option<()> {
    is_locked(libc::MCL_FUTURE).then_some(())?;
    a_store_of_one_table(&dir.join("future"))?;
    a_store_that_is_read(&dir.join("future"))?;
    two_stores_of_many_tables()?;
    // Also locks the memory that the program has now, such as free memory of the allocator.
    is_locked(libc::MCL_CURRENT | libc::MCL_FUTURE).then_some(())?;
    a_store_of_one_table(&dir.join("current and future"))
}

#[test]
fn stores_keep_their_budgets_if_the_program_locks_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let _skipped = all_stores(dir.path()).is_none();
}
