//! Tests that counts of Gets before admission stay within their limit, and that keys that come
//! again in time get rows.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::HashMap;
use std::path::Path;

use embank::{Admission, Bank, BankOptions, Eviction, Table, TableConfig, Tracking};
use embank_kv::inspect;

/// A generation of counts is full when it has as many counts as the table has rows, but at least
/// this number (docs/life.md).
const COUNTS_MIN: usize = 65_536;

fn config(needed: u32) -> TableConfig {
    TableConfig::new(1).admission(Admission::AfterGets(needed)).tracking(Tracking::SetTime)
}

/// Options with a budget that has room for the index of several generations of counts.
fn options() -> BankOptions {
    BankOptions { memory_budget_bytes: 32 << 20, ..Default::default() }
}

fn get(table: &Table, keys: &[u64]) {
    table.get(keys, &mut vec![0.0; keys.len()]).unwrap().release().unwrap();
}

/// Gets `COUNTS_MIN` keys once each, from `first` on, which is enough to end a generation.
fn one_off(table: &Table, first: u64) {
    for batch in 0..16 {
        let first = first + batch * (COUNTS_MIN as u64 / 16);
        get(table, &(first..first + COUNTS_MIN as u64 / 16).collect::<Vec<_>>());
    }
}

/// Returns the name and row count of each table of counts in the newest checkpoint.
fn counts_on_disk(dir: &Path) -> Vec<(String, u64)> {
    let newest = inspect::summary(dir).unwrap().checkpoints.into_iter().next_back().unwrap();
    let counts = newest.tables.into_iter();
    let counts = counts.filter(|table| embank::table_of_counts(&table.name).is_some());
    let mut found: Vec<(String, u64)> = counts.map(|table| (table.name, table.rows)).collect();
    found.sort();
    found
}

/// Shows that counts of keys that come once have a limit. In an earlier version they were never
/// removed, and slowed down Gets of new keys.
#[test]
fn counts_of_keys_that_come_once_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path(), options()).unwrap();
    let table = bank.table("t", config(2)).unwrap();
    for batch in 0..700_u64 {
        get(&table, &(batch * 1000..(batch + 1) * 1000).collect::<Vec<_>>());
    }
    bank.checkpoint(b"").unwrap();
    let counts = counts_on_disk(dir.path());
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!(counts.iter().all(|&(_, rows)| rows < COUNTS_MIN as u64 + 1000), "{counts:?}");
    assert_eq!(bank.tables().len(), 1);
    // The counts of the last keys still exist.
    get(&table, &[699_999, 640_000]);
    assert_eq!(table.contains(&[699_999, 640_000]).unwrap(), [true, true]);
}

#[test]
fn a_key_that_comes_again_in_time_gets_its_row() {
    let dir = tempfile::tempdir().unwrap();
    let mut bank = Bank::open(dir.path(), options()).unwrap();
    let mut table = bank.table("t", config(3)).unwrap();
    for round in 0..3 {
        assert_eq!(table.contains(&[7]).unwrap(), [false]);
        get(&table, &[7, 8 + round]);
        one_off(&table, 1_000_000 * (round + 1));
        // A checkpoint makes the generations durable, like rows.
        bank.checkpoint(b"").unwrap();
        drop((table, bank));
        bank = Bank::open(dir.path(), options()).unwrap();
        table = bank.open_table("t").unwrap();
    }
    assert_eq!(table.contains(&[7, 8, 9]).unwrap(), [true, false, false]);
    // Key 8 was read once, and two generations have ended since, so its count begins at 1 again.
    get(&table, &[8]);
    get(&table, &[8]);
    assert_eq!(table.contains(&[8]).unwrap(), [false]);
    get(&table, &[8]);
    assert_eq!(table.contains(&[8]).unwrap(), [true]);
}

#[test]
fn both_generations_go_with_a_deletion_an_eviction_and_their_table() {
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path(), options()).unwrap();
    let table = bank.table("t", config(2)).unwrap();
    table.set_time(10).unwrap();
    get(&table, &[1, 2, 3]);
    one_off(&table, 1_000_000);
    table.set_time(20).unwrap();
    get(&table, &[4, 5]);
    table.delete(&[1, 4]).unwrap();
    get(&table, &[1, 4]);
    assert_eq!(table.contains(&[1, 4]).unwrap(), [false, false]);
    bank.checkpoint(b"").unwrap();

    let reader = Bank::open_read_only(dir.path(), options(), None).unwrap();
    let read = reader.open_table("t").unwrap();
    let old = Eviction::new().unused_for(5);
    let dry = read.evict(&old.dry_run(true)).unwrap();
    assert_eq!(dry.counts, COUNTS_MIN as u64 + 2, "2 and 3 of time 10, and those that came once");
    assert_eq!(table.evict(&old).unwrap().counts, dry.counts);
    get(&table, &[2, 5]);
    assert_eq!(table.contains(&[2, 5]).unwrap(), [false, true]);

    one_off(&table, 2_000_000);
    one_off(&table, 3_000_000);
    bank.checkpoint(b"").unwrap();
    reader.refresh().unwrap();
    assert_eq!(read.evict(&old.dry_run(true)).unwrap().counts, 0, "it sees the new generations");

    bank.drop_table("t").unwrap();
    bank.checkpoint(b"").unwrap();
    assert_eq!(counts_on_disk(dir.path()), []);
}

#[test]
fn a_generation_of_a_large_table_is_as_large_as_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path(), options()).unwrap();
    let table = bank.table("t", config(2)).unwrap();
    let rows: Vec<u64> = (0..3 * COUNTS_MIN as u64).collect();
    for keys in rows.chunks(8192) {
        table.put(keys, &vec![1.0; keys.len()]).unwrap();
    }
    for round in 1..=4 {
        one_off(&table, 1_000_000 * round);
    }
    bank.checkpoint(b"").unwrap();
    let rows: Vec<u64> = counts_on_disk(dir.path()).into_iter().map(|(_, rows)| rows).collect();
    assert_eq!(rows, [3 * COUNTS_MIN as u64, COUNTS_MIN as u64]);
}

/// Compares the counts with a model of two maps. A reopen loses all counts after the last
/// checkpoint.
#[test]
fn generations_do_what_two_maps_would() {
    #[derive(Clone, Default)]
    struct Model {
        newer: HashMap<u64, u32>,
        older: HashMap<u64, u32>,
        rows: std::collections::HashSet<u64>,
    }
    const NEEDED: u32 = 3;
    let dir = tempfile::tempdir().unwrap();
    let mut bank = Bank::open(dir.path(), options()).unwrap();
    let mut table = bank.table("t", config(NEEDED)).unwrap();
    bank.checkpoint(b"").unwrap();
    let (mut model, mut kept) = (Model::default(), Model::default());
    // A SplitMix64 generator.
    let mut state = 20_261_125_u64;
    let mut below = |bound: u64| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % bound
    };
    for step in 0..60 {
        let first = below(600_000);
        let keys: Vec<u64> = (0..8_000).map(|i| (first + i * 7) % 600_000).collect();
        get(&table, &keys);
        let missing: Vec<u64> =
            keys.iter().copied().filter(|key| !model.rows.contains(key)).collect();
        for &key in &missing {
            let before = model.older.remove(&key);
            let count = model.newer.entry(key).or_insert(before.unwrap_or(0));
            *count += 1;
        }
        // The model ends a generation before it removes the counts of admitted keys, as the store
        // does.
        if !missing.is_empty() && model.newer.len() >= COUNTS_MIN.max(model.rows.len()) {
            model.older = std::mem::take(&mut model.newer);
        }
        for key in missing {
            let count = model.newer.get(&key).or(model.older.get(&key));
            if count.is_some_and(|&count| count >= NEEDED) {
                model.newer.remove(&key);
                model.older.remove(&key);
                model.rows.insert(key);
            }
        }
        let found = table.contains(&keys).unwrap();
        let expected: Vec<bool> = keys.iter().map(|key| model.rows.contains(key)).collect();
        assert!(found == expected, "step {step}");
        if below(4) == 0 {
            bank.checkpoint(b"").unwrap();
            kept = model.clone();
        }
        if below(12) == 0 {
            drop((table, bank));
            bank = Bank::open(dir.path(), options()).unwrap();
            table = bank.open_table("t").unwrap();
            model = kept.clone();
        }
    }
    assert!(model.rows.len() > 1000, "the test admits rows: {}", model.rows.len());
    bank.checkpoint(b"").unwrap();
    let counts: u64 = counts_on_disk(dir.path()).into_iter().map(|(_, rows)| rows).sum();
    assert_eq!(counts, (model.newer.len() + model.older.len()) as u64);
}
