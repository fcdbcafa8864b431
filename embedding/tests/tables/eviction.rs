//! Tests that evictions by age, frequency and norm remove exactly the matching rows, in memory and
//! on disk.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::HashMap;
use std::ops::ControlFlow;

use crate::common::{new_bank, push_to_disk, small_options, table};
use embank::{Bank, Error, Eviction, Initializer, Optimizer, Table, TableConfig, Tracking};
use proptest::prelude::*;

fn config() -> TableConfig {
    TableConfig::new(2)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Constant(1.0))
        .tracking(Tracking::SetTime)
}

fn evicted(table: &Table, eviction: &Eviction) -> Vec<u64> {
    let mut gone = Vec::new();
    let list = |keys: &[u64]| gone.extend_from_slice(keys);
    let done = table.evict_with(eviction, list, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(done.rows, gone.len() as u64);
    gone.sort_unstable();
    gone
}

#[test]
fn rows_on_disk_and_in_memory_go_by_age_and_a_dry_run_says_which() {
    let test = new_bank();
    let table = table(&test.bank, config());
    let keys: Vec<u64> = (0..4000).collect();
    table.set_time(10).unwrap();
    table.put(&keys, &[1.0; 8000]).unwrap();
    push_to_disk(&test.bank);
    table.set_time(20).unwrap();
    let fresh: Vec<u64> = keys.iter().copied().filter(|key| key % 5 == 0).collect();
    table.apply_gradients(&fresh, &vec![0.0; 2 * fresh.len()]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    // These rows are used after the checkpoint. The eviction scans the checkpoint, in which they
    // look old.
    let later: Vec<u64> = keys.iter().copied().filter(|key| key % 5 == 1).collect();
    table.put(&later, &vec![2.0; 2 * later.len()]).unwrap();
    let old: Vec<u64> = keys.iter().copied().filter(|key| key % 5 > 1).collect();

    let stale = Eviction::new().unused_for(10);
    assert!(evicted(&table, &stale.unused_for(11)).is_empty());
    assert_eq!(evicted(&table, &stale.dry_run(true)), old);
    let present = table.contains(&keys).unwrap();
    assert!(present.iter().all(|&present| present), "a dry run changes nothing");
    assert_eq!(evicted(&table, &stale), old);
    let present = table.contains(&keys).unwrap();
    for (&key, present) in keys.iter().zip(present) {
        assert_eq!(present, key % 5 <= 1, "{key}");
    }
    assert!(evicted(&table, &stale).is_empty());
    assert_eq!(table.stats().evicted_rows, old.len() as u64);

    // Only the next checkpoint makes the eviction durable. Without it, a reopen brings the rows
    // back.
    let path = test.dir.path().join("bank");
    let crate::common::TestBank { bank, dir } = test;
    drop((table, bank));
    let bank = Bank::open(&path, small_options()).unwrap();
    let table = bank.open_table("t").unwrap();
    assert_eq!(table.contains(&old[..3]).unwrap(), [true; 3]);
    table.set_time(20).unwrap();
    // The reopen lost the puts after the checkpoint, so the rows of `later` are old again.
    assert_eq!(table.evict(&stale).unwrap().rows, 3200);
    bank.checkpoint(b"").unwrap();
    drop((table, bank));
    let bank = Bank::open(&path, small_options()).unwrap();
    assert_eq!(bank.open_table("t").unwrap().scan().unwrap().rows(), 800);
    drop(dir);
}

#[test]
fn leased_rows_stay() {
    let test = new_bank();
    let table = table(&test.bank, config());
    table.put(&[1, 2], &[0.0; 4]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let lease = table.get(&[2], &mut [0.0; 2]).unwrap();
    for dry_run in [true, false] {
        let done = table.evict(&Eviction::new().norm_below(0.5).dry_run(dry_run)).unwrap();
        assert_eq!((done.examined, done.rows, done.leased), (2, 1, 1));
    }
    lease.apply(&[-3.0, 0.0]).unwrap();
    assert_eq!(crate::common::rows_of(&table, &[2]), [3.0, 0.0], "the gradient was not lost");
    assert_eq!(evicted(&table, &Eviction::new().norm_below(3.5)), [2]);
}

#[test]
fn every_condition_must_hold() {
    let test = new_bank();
    let table = table(&test.bank, config());
    table.put(&[1, 2, 3], &[0.1, 0.0, 9.0, 0.0, 0.1, 0.0]).unwrap();
    table.put(&[3], &[0.1, 0.0]).unwrap();
    drop(table.get(&[4], &mut [0.0; 2]).unwrap());
    test.bank.checkpoint(b"").unwrap();
    assert_eq!(evicted(&table, &Eviction::new().used_fewer_than(1)), [4], "a get is no use");
    let rare_and_small = Eviction::new().used_fewer_than(2).norm_below(1.0);
    assert_eq!(evicted(&table, &rare_and_small), [1]);
    assert_eq!(table.contains(&[1, 2, 3, 4]).unwrap(), [false, true, true, false]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let test = new_bank();
    let plain = table(&test.bank, TableConfig::new(2));
    plain.put(&[1], &[0.0; 2]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    for (eviction, expected) in [
        (Eviction::new(), "needs a condition"),
        (Eviction::new().unused_for(3), "does not track"),
        (Eviction::new().used_fewer_than(3).norm_below(1.0), "does not track"),
        (Eviction::new().norm_below(f32::NAN), "above 0"),
    ] {
        let error = plain.evict(&eviction).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(plain.set_time(3).unwrap_err().to_string().contains("Tracking::SetTime"));
    let tracked = TableConfig::new(2).tracking(Tracking::Minutes);
    assert!(matches!(test.bank.table("t", tracked.clone()), Err(Error::ConfigMismatch { .. })));
    let by_clock = test.bank.table("by clock", tracked).unwrap();
    by_clock.set_time(3).unwrap_err();
    by_clock.put(&[1], &[0.0; 2]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    assert_eq!(by_clock.evict(&Eviction::new().unused_for(60)).unwrap().rows, 0);
    assert_eq!(by_clock.evict(&Eviction::new().used_fewer_than(2)).unwrap().rows, 1);
    let ended =
        plain.evict_with(&Eviction::new().norm_below(1.0), |_| (), |_| ControlFlow::Break(()));
    assert!(matches!(ended, Err(Error::Cancelled)));
}

#[derive(Debug, Clone)]
enum Step {
    Put(u64, u8),
    Apply(u64),
    Get(u64),
    Delete(u64),
    Time(u32),
    Checkpoint,
    Reopen,
    Evict(Option<u32>, Option<u32>, Option<u8>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u64..12;
    let step = prop_oneof![
        4 => (key.clone(), 0_u8..6).prop_map(|(key, size)| Step::Put(key, size)),
        4 => key.clone().prop_map(Step::Apply),
        2 => key.clone().prop_map(Step::Get),
        1 => key.prop_map(Step::Delete),
        3 => (0_u32..30).prop_map(Step::Time),
        3 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
        3 => (prop::option::of(0_u32..20), prop::option::of(0_u32..5), prop::option::of(1_u8..6))
            .prop_map(|(age, uses, norm)| Step::Evict(age, uses, norm)),
    ];
    prop::collection::vec(step, 1..60)
}

/// A row in the model: its vector's size, the time of its last use, and its number of uses.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Row {
    size: f32,
    last: u32,
    uses: u32,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn it_does_what_a_map_would(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let mut bank = Bank::open(dir.path(), small_options()).unwrap();
        let mut table = bank.table("t", config()).unwrap();
        let (mut rows, mut kept) = (HashMap::<u64, Row>::new(), HashMap::new());
        table.set_time(0).unwrap();
        bank.checkpoint(b"").unwrap();
        // The present time, the largest time that was set, and the largest time in the checkpoint.
        let (mut now, mut largest, mut kept_time) = (0, 0, 0);
        for step in steps {
            let made = Row { size: 1.0, last: now, uses: 0 };
            match step {
                Step::Put(key, size) => {
                    let size = f32::from(size);
                    table.put(&[key], &[size, 0.0]).unwrap();
                    let row = rows.entry(key).or_insert(made);
                    *row = Row { size, last: row.last.max(now), uses: row.uses + 1 };
                }
                Step::Apply(key) => {
                    // The gradient changes a new row's second column from 1 to 0, the value that a
                    // put writes.
                    let new = !rows.contains_key(&key);
                    table.apply_gradients(&[key], &[-1.0, f32::from(u8::from(new))]).unwrap();
                    let row = rows.entry(key).or_insert(made);
                    *row = Row { size: row.size + 1.0, last: row.last.max(now), uses: row.uses + 1 };
                }
                Step::Get(key) => {
                    if rows.contains_key(&key) {
                        table.get(&[key], &mut [0.0; 2]).unwrap().release().unwrap();
                    }
                }
                Step::Delete(key) => {
                    table.delete(&[key]).unwrap();
                    rows.remove(&key);
                }
                Step::Time(time) => {
                    table.set_time(time).unwrap();
                    now = time;
                    largest = time.max(largest);
                }
                Step::Checkpoint => {
                    bank.checkpoint(b"").unwrap();
                    kept = rows.clone();
                    kept_time = largest;
                }
                Step::Reopen => {
                    drop((table, bank));
                    bank = Bank::open(dir.path(), small_options()).unwrap();
                    table = match bank.open_table("t") {
                        Ok(table) => table,
                        Err(error) => panic!("{error}"),
                    };
                    rows = kept.clone();
                    largest = kept_time;
                    now = kept_time;
                }
                Step::Evict(age, uses, norm) => {
                    let mut eviction = Eviction::new();
                    eviction.unused_for = age;
                    eviction.used_fewer_than = uses;
                    eviction.norm_below = norm.map(f32::from);
                    if (age, uses, norm) == (None, None, None) {
                        continue;
                    }
                    let by_uses = |row: &Row| {
                        age.is_none_or(|age| now.saturating_sub(row.last) >= age)
                            && uses.is_none_or(|uses| row.uses < uses)
                    };
                    let goes = |key: &u64, row: &Row| {
                        kept.get(key).is_some_and(by_uses)
                            && by_uses(row)
                            && norm.is_none_or(|norm| row.size < f32::from(norm))
                    };
                    let mut expected: Vec<u64> =
                        rows.iter().filter(|(key, row)| goes(key, row)).map(|(&key, _)| key).collect();
                    expected.sort_unstable();
                    prop_assert_eq!(evicted(&table, &eviction.dry_run(true)), expected.clone());
                    prop_assert_eq!(evicted(&table, &eviction), expected);
                    rows.retain(|key, row| !goes(key, row));
                }
            }
            let keys: Vec<u64> = (0..12).collect();
            let present = table.contains(&keys).unwrap();
            for (key, present) in keys.iter().zip(present) {
                prop_assert_eq!(present, rows.contains_key(key), "key {}", key);
                if let Some(row) = rows.get(key) {
                    prop_assert_eq!(crate::common::rows_of(&table, &[*key]), [row.size, 0.0]);
                }
            }
        }
    }
}
