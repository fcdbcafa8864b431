//! Tests keys that are not admitted: the values that a Get returns, their gradients, and their
//! counts.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::HashMap;

use crate::common::{new_bank, push_to_disk, rows_of, small_options, table};
use embank::{Admission, Bank, Error, Initializer, Missing, Optimizer, Table, TableConfig};
use embank_kv::{Store, StoreOptions};
use proptest::prelude::*;

/// Makes settings with rows of one column that begin at 1. A gradient of -1 adds 1.
fn config(admission: Admission) -> TableConfig {
    TableConfig::new(1)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Constant(1.0))
        .admission(admission)
}

fn value(table: &Table, key: u64) -> Option<f32> {
    let mut row = [f32::NAN];
    let found = table.peek(&[key], &mut row, Missing::Skip).unwrap();
    found.missing.is_empty().then_some(row[0])
}

#[test]
fn a_key_gets_its_row_with_the_third_get() {
    let test = new_bank();
    let table = table(&test.bank, config(Admission::AfterGets(3)));
    table.put(&[50], &[9.0]).unwrap();
    for round in 1..=3 {
        // Key 50 has a row, key 7 is in the batch twice, and the last key is new in each round.
        let keys = [50, 7, 7, 100 + round];
        let mut rows = [f32::NAN; 4];
        let lease = table.get(&keys, &mut rows).unwrap();
        assert_eq!(rows, [8.0 + round as f32, 1.0, 1.0, 1.0]);
        assert_eq!(lease.unique().keys(), [50, 7, 100 + round], "all of the batch");
        let admitted = round == 3;
        assert_eq!(table.outstanding(7).unwrap(), admitted.then_some(1));
        assert_eq!(table.outstanding(50).unwrap(), Some(1));
        lease.apply(&[-1.0, -2.0, -3.0, -4.0]).unwrap();
        assert_eq!(value(&table, 7), admitted.then_some(6.0));
        assert_eq!(value(&table, 50), Some(9.0 + round as f32));
        assert_eq!(value(&table, 100 + round), None);
    }
    assert_eq!(table.stats().not_admitted_rows, 2 + 3);
    assert_eq!(table.outstanding(7).unwrap(), Some(0));

    // A put through a lease writes only rows that the lease holds. A put without a lease writes any
    // row.
    table.get(&[300, 7], &mut [0.0; 2]).unwrap().put(&[5.0, 6.0]).unwrap();
    assert_eq!((value(&table, 300), value(&table, 7)), (None, Some(6.0)));
    table.apply_gradients(&[300], &[-1.0]).unwrap();
    assert_eq!(value(&table, 300), None);
    table.put(&[300], &[5.0]).unwrap();
    assert_eq!(value(&table, 300), Some(5.0));
    // After the deletion, counting begins at zero.
    table.delete(&[7]).unwrap();
    for _ in 0..2 {
        table.get(&[7], &mut [0.0]).unwrap().release().unwrap();
        assert_eq!(value(&table, 7), None);
    }
    table.get(&[7], &mut [0.0]).unwrap().release().unwrap();
    assert_eq!(value(&table, 7), Some(1.0));
}

#[test]
fn counts_are_as_durable_as_rows_and_no_table_of_the_bank() {
    let dir = tempfile::tempdir().unwrap();
    let get = |table: &Table, keys: &[u64]| {
        table.get(keys, &mut vec![0.0; keys.len()]).unwrap().release().unwrap();
    };
    let keys: Vec<u64> = (0..3000).collect();
    {
        let bank = Bank::open(dir.path(), small_options()).unwrap();
        let table = bank.table("t", config(Admission::AfterGets(3))).unwrap();
        get(&table, &keys);
        push_to_disk(&bank);
        bank.checkpoint(b"").unwrap();
        get(&table, &keys); // lost with the process
    }
    {
        let bank = Bank::open(dir.path(), small_options()).unwrap();
        let table = bank.open_table("t").unwrap();
        let names: Vec<String> = bank.tables().into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["filler", "t"]);
        get(&table, &keys);
        assert_eq!(value(&table, 5), None);
        get(&table, &keys);
        assert!(table.contains(&keys).unwrap().iter().all(|&present| present));
        assert!(matches!(
            bank.table("t", config(Admission::AfterGets(4))),
            Err(Error::ConfigMismatch { .. })
        ));
        get(&table, &[5000]);
        get(&table, &[5000]);
        bank.drop_table("t").unwrap();
        let table = bank.table("t", config(Admission::AfterGets(3))).unwrap();
        get(&table, &[5000]);
        assert_eq!(value(&table, 5000), None, "a new table knows nothing of the old one's counts");
        bank.checkpoint(b"").unwrap();
    }
    let bank = Bank::open(dir.path(), small_options()).unwrap();
    let table = bank.open_table("t").unwrap();
    assert_eq!(table.config().admission, Admission::AfterGets(3));
    get(&table, &[5000]);
    get(&table, &[5000]);
    assert_eq!(value(&table, 5000), Some(1.0));
}

#[test]
fn chance_admits_as_many_as_it_says_and_the_same_each_time() {
    let keys: Vec<u64> = (0..20_000).collect();
    let admitted = |seed: u64, probability: f32| {
        let test = new_bank();
        let config = config(Admission::Probability(probability)).seed(seed);
        let table = table(&test.bank, config);
        let lease = table.get(&keys, &mut vec![0.0; keys.len()]).unwrap();
        lease.release().unwrap();
        let first = table.contains(&keys).unwrap();
        let lease = table.get(&keys, &mut vec![0.0; keys.len()]).unwrap();
        lease.release().unwrap();
        let second = table.contains(&keys).unwrap();
        assert!(first.iter().zip(&second).all(|(&first, &second)| second || !first));
        (first, second.iter().filter(|&&present| present).count())
    };
    let (first, after_two) = admitted(1, 0.25);
    let count = first.iter().filter(|&&present| present).count();
    assert!((4700..5300).contains(&count), "{count}");
    assert!((8400..9100).contains(&after_two), "{after_two}");
    assert_eq!(admitted(1, 0.25).0, first);
    assert_ne!(admitted(2, 0.25).0, first);
    assert_eq!(admitted(1, 1.0).1, keys.len());
}

/// Shows that the draws of random admission continue after a restart. In an earlier version each
/// process repeated the same draws, so a key that was refused once was refused in every process.
#[test]
fn draws_go_on_after_a_restart() {
    let keys: Vec<u64> = (0..10_000).collect();
    let get = |table: &Table| table.get(&keys, &mut vec![0.0; keys.len()]).unwrap().release();
    let rows = |table: &Table| {
        let present = table.contains(&keys).unwrap();
        keys.iter().copied().filter(|&key| present[key as usize]).collect::<Vec<u64>>()
    };
    let config = || config(Admission::Probability(0.1));
    let whole = new_bank();
    let unbroken = table(&whole.bank, config());
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        get(&unbroken).unwrap();
        let bank = Bank::open(dir.path(), small_options()).unwrap();
        let broken = bank.table("t", config()).unwrap();
        get(&broken).unwrap();
        bank.checkpoint(b"").unwrap();
        // A Get after the last checkpoint is lost with the process, so its draws do not count.
        get(&broken).unwrap();
    }
    let bank = Bank::open(dir.path(), small_options()).unwrap();
    let broken = bank.open_table("t").unwrap();
    let found = rows(&broken);
    // 20 draws with probability 0.1 admit 1 - 0.9^20 of the keys, about 8,784.
    assert!((8_600..8_970).contains(&found.len()), "{} rows", found.len());
    assert_eq!(
        found,
        rows(&unbroken),
        "a resumed run gives rows to other keys than an unbroken one"
    );
    bank.drop_table("t").unwrap();
    assert_eq!(rows(&bank.table("t", config()).unwrap()), [0; 0]);
}

/// Shows that a bank of an earlier version, which has no table with the number of draws, gets one.
#[test]
fn a_bank_without_a_number_of_draws_begins_one() {
    let keys: Vec<u64> = (0..1000).collect();
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path(), small_options()).unwrap();
    bank.table("t", config(Admission::Probability(0.1))).unwrap();
    bank.checkpoint(b"").unwrap();
    drop(bank);
    let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
    let beside = store.tables().into_iter().find(|table| table.name.starts_with("t (")).unwrap();
    store.drop_table(beside.id).unwrap();
    store.checkpoint(b"").unwrap();
    drop(store);
    let mut counts = Vec::new();
    for _ in 0..10 {
        let bank = Bank::open(dir.path(), small_options()).unwrap();
        let table = bank.open_table("t").unwrap();
        table.get(&keys, &mut vec![0.0; keys.len()]).unwrap().release().unwrap();
        counts.push(table.contains(&keys).unwrap().iter().filter(|&&present| present).count());
        bank.checkpoint(b"").unwrap();
    }
    assert!(counts.is_sorted() && counts[9] > 5 * counts[0], "{counts:?}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let test = new_bank();
    for admission in [
        Admission::AfterGets(0),
        Admission::Probability(0.0),
        Admission::Probability(1.5),
        Admission::Probability(f32::NAN),
    ] {
        let refused = test.bank.table("t", config(admission));
        assert!(matches!(refused, Err(Error::InvalidConfig { .. })), "{admission:?}");
    }
}

/// Shows that gradients of several threads are neither lost nor counted twice while keys are
/// admitted. A gradient for a key without a row is dropped and counted in `not_admitted_rows`; all
/// others are in the rows. With bound 0, Gets wait for each other. At the end every clock is 0.
#[test]
fn threads_lose_no_gradient_and_no_count() {
    for admission in [Admission::AfterGets(3), Admission::Probability(0.3)] {
        let test = new_bank();
        let table = table(&test.bank, config(admission).staleness_bound(Some(0)));
        let (threads, rounds, keys) = (4_u64, 400_u64, 12_u64);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..rounds {
                        // Each round adds new keys. The threads' batches overlap in different
                        // orders.
                        let new = round * keys / rounds;
                        let batch: Vec<u64> =
                            (0..4).map(|i| (thread * 5 + i * 7 + round) % (new + 1)).collect();
                        let request = table.request(&batch).unwrap().distinct();
                        let mut rows = vec![0.0; request.row_count()];
                        let lease = table.get_rows(request, &mut rows).unwrap();
                        lease.apply(&vec![-1.0; rows.len()]).unwrap();
                        if round % 16 == 0 {
                            table.delete(&[1000 + round]).unwrap();
                        }
                    }
                });
            }
        });
        let stats = table.stats();
        assert_eq!(stats.get_rows, stats.apply_rows + stats.not_admitted_rows);
        let all: Vec<u64> = (0..keys).collect();
        let grown: f32 = rows_of(&table, &all).iter().map(|value| value - 1.0).sum();
        assert_eq!(grown as u64, stats.apply_rows);
        assert!(stats.not_admitted_rows > 0);
        for &key in &all {
            assert_eq!(table.outstanding(key).unwrap(), Some(0), "key {key}");
        }
    }
}

/// Shows that a lease holds the row of a key that the Get's first attempt refused, if another Get
/// made the row during the wait. A waiting Get tries again, and then finds such rows. The row's
/// clock must return to 0.
#[test]
fn a_key_that_was_refused_before_a_wait_is_held_after_it() {
    let test = new_bank();
    let config = config(Admission::AfterGets(2)).staleness_bound(Some(0));
    let table = table(&test.bank, config);
    let waits = || table.stats().waits;
    // In each round a thread gets two new keys. The Get refuses `a`, and admits `b`. If the other
    // thread already holds `b`, the Get waits for `b`, and meanwhile the other thread's Get makes
    // the row of `a`. In many rounds this does not happen, but these rounds check the clocks too.
    for round in 0..2000 {
        let a = 2 * round;
        let b = a + 1;
        table.get(&[b], &mut [0.0]).unwrap().release().unwrap();
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                table.get(&[a, b], &mut [0.0; 2]).unwrap().apply(&[-1.0; 2]).unwrap();
            });
            let before = waits();
            start.wait();
            let holder = table.get(&[b], &mut [0.0]).unwrap();
            if waits() > before {
                table.get(&[a], &mut [0.0]).unwrap().release().unwrap();
            }
            holder.release().unwrap();
        });
        for key in [a, b] {
            assert!(matches!(table.outstanding(key).unwrap(), None | Some(0)), "key {key}");
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Train(Vec<u64>),
    PutLeased(Vec<u64>),
    Give(Vec<u64>),
    Put(u64),
    Apply(u64),
    Delete(u64),
    Checkpoint,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u64..10;
    let keys = prop::collection::vec(key.clone(), 0..6);
    let step = prop_oneof![
        6 => keys.clone().prop_map(Step::Train),
        2 => keys.clone().prop_map(Step::PutLeased),
        2 => keys.prop_map(Step::Give),
        1 => key.clone().prop_map(Step::Put),
        1 => key.clone().prop_map(Step::Apply),
        1 => key.prop_map(Step::Delete),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..50)
}

#[derive(Debug, Clone, Default)]
struct Model {
    rows: HashMap<u64, f32>,
    counts: HashMap<u64, u32>,
}

impl Model {
    /// Models a Get of the batch's distinct keys: counts keys without a row, and admits keys with
    /// `needed` Gets.
    fn get(&mut self, keys: &[u64], needed: u32) {
        let mut distinct = keys.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        for key in distinct {
            if !self.rows.contains_key(&key) {
                let count = self.counts.entry(key).or_insert(0);
                *count += 1;
                if *count >= needed {
                    self.counts.remove(&key);
                    self.rows.insert(key, 1.0);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn it_does_what_a_map_would(steps in steps(), needed in 1_u32..4) {
        let dir = tempfile::tempdir().unwrap();
        let config = config(Admission::AfterGets(needed));
        let mut bank = Bank::open(dir.path(), small_options()).unwrap();
        let mut table = bank.table("t", config.clone()).unwrap();
        bank.checkpoint(b"").unwrap();
        let (mut model, mut kept) = (Model::default(), Model::default());
        for step in steps {
            match step {
                Step::Train(keys) => {
                    model.get(&keys, needed);
                    let mut rows = vec![f32::NAN; keys.len()];
                    let lease = table.get(&keys, &mut rows).unwrap();
                    for (key, row) in keys.iter().zip(rows) {
                        prop_assert_eq!(row, *model.rows.get(key).unwrap_or(&1.0));
                    }
                    lease.apply(&vec![-1.0; keys.len()]).unwrap();
                    for key in keys {
                        model.rows.entry(key).and_modify(|row| *row += 1.0);
                    }
                }
                Step::PutLeased(keys) => {
                    model.get(&keys, needed);
                    let lease = table.get(&keys, &mut vec![0.0; keys.len()]).unwrap();
                    let rows: Vec<f32> = (0..keys.len()).map(|i| i as f32).collect();
                    lease.put(&rows).unwrap();
                    for (key, value) in keys.into_iter().zip(rows) {
                        model.rows.entry(key).and_modify(|row| *row = value);
                    }
                }
                Step::Give(keys) => {
                    model.get(&keys, needed);
                    drop(table.get(&keys, &mut vec![0.0; keys.len()]).unwrap());
                }
                Step::Put(key) => {
                    table.put(&[key], &[30.0]).unwrap();
                    model.rows.insert(key, 30.0);
                }
                Step::Apply(key) => {
                    table.apply_gradients(&[key], &[-1.0]).unwrap();
                    model.rows.entry(key).and_modify(|row| *row += 1.0);
                }
                Step::Delete(key) => {
                    table.delete(&[key]).unwrap();
                    model.rows.remove(&key);
                    model.counts.remove(&key);
                }
                Step::Checkpoint => {
                    bank.checkpoint(b"").unwrap();
                    kept = model.clone();
                }
                Step::Reopen => {
                    drop((table, bank));
                    bank = Bank::open(dir.path(), small_options()).unwrap();
                    table = bank.table("t", config.clone()).unwrap();
                    model = kept.clone();
                }
            }
            for key in 0..10 {
                prop_assert_eq!(value(&table, key), model.rows.get(&key).copied(), "key {}", key);
                let clock = table.outstanding(key).unwrap();
                prop_assert_eq!(clock, model.rows.contains_key(&key).then_some(0));
            }
        }
    }
}

/// Shows that a rewrite changes only rows that the lease holds. It admits no key and does not count
/// as a Get.
#[test]
fn a_rewrite_changes_rows_that_the_lease_holds_alone() {
    let test = new_bank();
    let config = TableConfig::new(1).admission(Admission::AfterGets(2));
    let table = table(&test.bank, config);
    table.put(&[1], &[1.0]).unwrap();
    let lease = table.get(&[1, 2], &mut [0.0; 2]).unwrap();
    lease.rewrite(&[0, 1], &[0.5, 0.25]).unwrap();
    lease.release().unwrap();
    assert_eq!(table.contains(&[1, 2]).unwrap(), [true, false]);
    assert_eq!(rows_of(&table, &[1]), [0.5]);
    let lease = table.get(&[1, 2], &mut [0.0; 2]).unwrap();
    assert_eq!(table.contains(&[2]).unwrap(), [true], "its second Get");
    table.delete(&[2]).unwrap();
    lease.rewrite(&[1], &[0.25]).unwrap();
    assert_eq!(table.contains(&[2]).unwrap(), [false]);
    assert!(matches!(lease.rewrite(&[0], &[f32::NAN]), Err(Error::NonFiniteRow { key: 1, .. })));
    assert!(matches!(lease.rewrite(&[0], &[]), Err(Error::ShapeMismatch { .. })));
}

#[test]
fn a_second_get_of_a_step_counts_no_key_again() {
    for admission in [Admission::AfterGets(3), Admission::Probability(0.5)] {
        let test = new_bank();
        let table = table(&test.bank, TableConfig::new(1).admission(admission));
        let keys: Vec<u64> = (0..1_000).collect();
        let request = || table.request(&keys).unwrap();
        let mut rows = vec![0.0; keys.len()];
        for step in 0..3 {
            let first = table.get_rows(request(), &mut rows).unwrap();
            let admitted = |table: &embank::Table| {
                table.contains(&keys).unwrap().into_iter().filter(|&there| there).count()
            };
            let after_first = admitted(&table);
            let second = table.get_rows(request().earlier(&keys), &mut rows).unwrap();
            assert_eq!(admitted(&table), after_first, "{admission:?}, step {step}");
            drop((first, second));
        }
        let admitted = table.contains(&keys).unwrap().into_iter().filter(|&there| there).count();
        match admission {
            Admission::AfterGets(_) => assert_eq!(admitted, 1_000),
            // Each key had three draws with probability 0.5, so 7 of 8 keys are admitted.
            _ => assert!((825..925).contains(&admitted), "{admitted}"),
        }
    }
}

/// Shows that an eviction by age and a deletion remove counts. In an earlier version counts of keys
/// that never came again could not be removed.
#[test]
fn counts_age_out_with_an_eviction_and_go_with_a_deletion() {
    let test = new_bank();
    let config = config(Admission::AfterGets(3)).tracking(embank::Tracking::SetTime);
    let table = table(&test.bank, config);
    let get = |keys: &[u64]| drop(table.get(keys, &mut vec![0.0; keys.len()]).unwrap());
    table.set_time(10).unwrap();
    get(&[1, 2, 3, 4]);
    table.set_time(20).unwrap();
    get(&[2, 3]);
    test.bank.checkpoint(b"").unwrap();
    table.set_time(25).unwrap();
    get(&[4]);
    let old = embank::Eviction::new().unused_for(10);
    // Only key 1 is old: keys 2 and 3 were read at time 20, and key 4 after the checkpoint.
    assert_eq!(table.evict(&old.dry_run(true)).unwrap().counts, 1);
    let evicted = table.evict(&old).unwrap();
    assert_eq!((evicted.counts, evicted.rows), (1, 0));
    // The next Get is the third of key 2. Keys 1 and 3 count from 0 again: the eviction removed the
    // count of key 1, and the deletion that of key 3.
    table.delete(&[3]).unwrap();
    get(&[1, 2, 3, 4]);
    assert_eq!(table.contains(&[1, 2, 3, 4]).unwrap(), [false, true, false, true]);
    get(&[1, 3]);
    assert_eq!(table.contains(&[1, 3]).unwrap(), [false, false]);
    get(&[1, 3]);
    assert_eq!(table.contains(&[1, 3]).unwrap(), [true, true]);
}

#[test]
fn counts_of_a_table_without_tracking_are_forgotten_by_the_clock() {
    let test = new_bank();
    let table = table(&test.bank, config(Admission::AfterGets(2)));
    let keys: Vec<u64> = (0..10_000).collect();
    table.get(&keys, &mut vec![0.0; keys.len()]).unwrap().release().unwrap();
    test.bank.checkpoint(b"").unwrap();
    let rows = test.bank.stats().store.live_rows;
    assert_eq!(table.forget_counts(1_000, false).unwrap().counts, 0);
    assert_eq!(table.forget_counts(0, false).unwrap().counts, 10_000);
    assert_eq!(test.bank.stats().store.live_rows, rows - 10_000);
    assert_eq!(table.forget_counts(0, false).unwrap().counts, 0);
}
