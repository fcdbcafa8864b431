//! Tests of spills and merges with very little memory: for fences and filters, or for the rows that
//! a training step has got.

use crate::cold::head::Kind;
use crate::cold::keep::Keep;
use crate::engine::cold::memory_plan::bytes_left;
use crate::engine::space::compactor::work_on_tiers;
use crate::engine::space::options::CompactionOptions;
use crate::{Access, Clock, Error, Operation, Store, StoreOptions, TableId, TierLimits};

const KEYS: u64 = 9_000;

/// Puts a version into each row, or reads the versions.
struct Versions(Vec<u64>);

impl Operation for Versions {
    const ACCESS: Access = Access::Put;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.fill(self.0[i] as u8);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

struct Read(Vec<Option<u8>>);

impl Operation for Read {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, i: usize, value: &[u8]) {
        assert!(value.iter().all(|&byte| byte == value[0]));
        self.0[i] = Some(value[0]);
    }
}

fn open(dir: &std::path::Path) -> (Store, TableId) {
    open_with(dir, 0)
}

fn open_with(dir: &std::path::Path, log_bytes: u64) -> (Store, TableId) {
    let compaction = CompactionOptions { background: false, ..CompactionOptions::default() };
    let memory_budget_bytes = 1 << 20;
    let options = StoreOptions { memory_budget_bytes, compaction, ..StoreOptions::default() };
    let store = Store::open(dir, &options).unwrap();
    let (sort_buffer_bytes, base_part_bytes) = (32 << 10, 4 << 20);
    store.begin_second_tier(TierLimits {
        log_bytes,
        sort_buffer_bytes,
        base_part_bytes,
        level_runs: 16,
    });
    let table = store.create_table("rows", 64, b"").unwrap();
    (store, table)
}

/// Puts `version` into each row whose key is a multiple of `step`.
fn put(store: &Store, table: TableId, version: u64, step: usize) {
    let keys: Vec<u64> = (0..KEYS).step_by(step).collect();
    for keys in keys.chunks(1000) {
        let mut put = Versions(vec![version; keys.len()]);
        store.execute(table, keys, Clock::Keep, &mut put).unwrap();
    }
}

/// Asserts that each row has the newest version that `of` names, and that other keys have no row.
fn check(store: &Store, table: TableId, of: impl Fn(u64) -> u64) {
    let keys: Vec<u64> = (0..KEYS + 500).collect();
    let mut read = Read(vec![None; keys.len()]);
    store.execute(table, &keys, Clock::Keep, &mut read).unwrap();
    for (&key, version) in keys.iter().zip(read.0) {
        assert_eq!(version, (key < KEYS).then(|| of(key) as u8), "key {key}");
    }
}

/// Runs have memory for a few groups of fences, or for one and few columns of a filter. So base
/// merges come before spills. Nothing stops.
#[test]
fn a_bank_with_memory_for_few_fences_works() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path());
    let core = store.core();
    put(&store, table, 1, 1);
    store.compact().unwrap();
    // What the present runs have will be free after merges.
    let view = core.cold.view();
    let of_runs: usize = view.runs().flat_map(|(_, parts)| parts).map(|p| p.memory_bytes()).sum();
    let left = bytes_left(&core.budget, Kind::Run) + of_runs as u64;
    let _taken = core.budget.charge_cold(left - 600).unwrap();
    drop(view);
    for version in 2..6 {
        put(&store, table, version, version as usize);
        store.compact().unwrap();
        let of = |key| (2..=version).rev().find(|by| key % by == 0).unwrap_or(1);
        check(&store, table, of);
    }
    let view = core.cold.view();
    let keeps: Vec<Keep> = view.runs().flat_map(|(_, parts)| parts).map(|p| p.keep()).collect();
    assert!(keeps.len() <= 4, "{keeps:?}");
    assert_eq!(store.stats().compaction_stopped, None);
}

/// Without memory for the fences of the base, spills stop, and the error names a budget. They go on
/// once there is memory.
#[test]
fn a_bank_without_memory_for_its_base_says_so_and_keeps_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path());
    let core = store.core();
    put(&store, table, 1, 1);
    store.compact().unwrap();
    let taken = core.budget.charge_cold(core.budget.cold_bytes_left()).unwrap();
    put(&store, table, 2, 1);
    let error = store.compact().unwrap_err();
    let Error::BudgetTooSmall { budget_bytes, needed_bytes, .. } = error else { panic!("{error}") };
    assert!(needed_bytes > budget_bytes);
    check(&store, table, |_| 2);
    drop(taken);
    store.compact().unwrap();
    check(&store, table, |_| 2);
    assert_eq!(store.stats().compaction_stopped, None);
}

/// Gets rows for a training step.
struct GetRows;

impl Operation for GetRows {
    const ACCESS: Access = Access::Get;
}

/// A training step may get more rows than the log should have. Spills do not copy them to the tail
/// without end, and the log becomes short after the step.
#[test]
fn the_rows_of_a_long_step_are_copied_a_few_times() {
    const LIMIT: u64 = 64 << 10;
    const RECORD_BYTES: u64 = 96;
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open_with(dir.path(), LIMIT);
    let core = store.core();
    let do_due_work = || {
        let is_due = || core.headroom().tier_work(&mut core.space.signal.state.lock(), false);
        for _ in 0..200 {
            if is_due().is_none() {
                return;
            }
            work_on_tiers(&core).unwrap();
        }
        panic!("spills do not end");
    };
    let log_bytes = || core.log.tail_address() - core.log.begin();
    put(&store, table, 1, 1);
    do_due_work();
    for step in 0..3 {
        let keys: Vec<u64> = (step * 500..step * 500 + 8000).collect();
        let held_bytes = keys.len() as u64 * RECORD_BYTES;
        let before = core.counters.compaction_copied_bytes.get();
        for keys in keys.chunks(100) {
            store.execute(table, keys, Clock::Acquire { bound: None }, &mut GetRows).unwrap();
            do_due_work();
        }
        assert!(log_bytes() >= held_bytes && held_bytes > 4 * LIMIT);
        let copied = core.counters.compaction_copied_bytes.get() - before;
        println!("{copied} bytes were copied, {held_bytes} are held");
        assert!(copied > 0 && copied < held_bytes);
        let mut update = Versions(vec![2; keys.len()]);
        store.execute(table, &keys, Clock::Release, &mut update).unwrap();
        // Other rows make the log move on.
        let mut rounds = 0;
        while log_bytes() > held_bytes {
            put(&store, table, 2, 1);
            do_due_work();
            rounds += 1;
            assert!(rounds < 100, "the log stays long");
        }
        put(&store, table, 2, 1);
        check(&store, table, |_| 2);
    }
}
