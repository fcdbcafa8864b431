//! Tests `Table::update`, which changes rows by a function of the caller.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{
    TestBank, damage_files_with, initial_of, new_bank, new_bank_with, push_to_disk, rows_of,
    small_options, table,
};
use embank::{
    Adagrad, Admission, Bank, BankOptions, Dtype, Error, Eviction, Initializer, Optimizer,
    Rounding, StoreError, Table, TableConfig, Tracking,
};
use fastrand::Rng;

const DIM: usize = 16;

fn zeros() -> TableConfig {
    TableConfig::new(DIM as u32).initializer(Initializer::Zeros)
}

fn bank_of(threads: usize) -> TestBank {
    new_bank_with(BankOptions { threads, ..small_options() })
}

fn refusal(result: embank::Result<()>) -> (u64, usize, String) {
    let error = result.unwrap_err();
    let text = error.to_string();
    match error {
        Error::UpdateRefused { key, rows, .. } => (key, rows, text),
        other => panic!("{other}"),
    }
}

/// Adds whole numbers from four threads, to rows in the mutable region, in the read-only region and
/// on disk. Large batches are shared by the threads of the bank. No addition may be lost.
#[test]
fn sums_are_exact_wherever_the_rows_lie() {
    const KEYS: u64 = 30_000;
    let test = bank_of(3);
    let sums = table(&test.bank, zeros());
    let keys: Vec<u64> = (0..KEYS).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (sums, mut keys) = (&sums, keys.clone());
            scope.spawn(move || {
                let mut random = Rng::with_seed(thread);
                for _ in 0..2 {
                    random.shuffle(&mut keys);
                    for batch in keys.chunks(5_000) {
                        let add = |key: u64, row: &mut [f32], _: &mut [f32]| {
                            row.iter_mut().for_each(|value| *value += (key % 7) as f32 + 1.0);
                        };
                        sums.update(batch, add).unwrap();
                    }
                    // A batch of one key.
                    sums.update(&[0], |_, row, _| row[1] += 1.0).unwrap();
                }
            });
        }
    });
    let check = |sums: &Table| {
        let rows = rows_of(sums, &keys);
        for (&key, row) in keys.iter().zip(rows.chunks(DIM)) {
            let mut expected = [8.0 * ((key % 7) as f32 + 1.0); DIM];
            expected[1] += if key == 0 { 8.0 } else { 0.0 };
            assert_eq!(row, expected, "key {key}");
        }
    };
    check(&sums);
    let stats = test.bank.stats().store;
    assert!(stats.hits_mutable > 0 && stats.hits_read_only > 0 && stats.hits_disk > 0, "{stats:?}");
    assert!(sums.stats().disk_reads > 0);
    assert_eq!((sums.stats().puts, sums.stats().put_rows), (4 * 2 * 7, 4 * 2 * (KEYS + 1)));
    test.bank.checkpoint(b"").unwrap();
    let path = test.bank.path().to_owned();
    drop((sums, test.bank));
    let bank = Bank::open(path, small_options()).unwrap();
    check(&bank.open_table("t").unwrap());
}

#[test]
fn missing_rows_begin_with_their_initial_values_and_a_repeated_key_is_changed_once() {
    for (dtype, admission) in [
        (Dtype::F32, Admission::Always),
        (Dtype::F16, Admission::Always),
        (Dtype::Int8, Admission::AfterGets(3)),
    ] {
        let test = new_bank();
        let adagrad = Adagrad { initial_accumulator: 0.25, ..Adagrad::new(0.1) };
        let config = TableConfig::new(4).dtype(dtype).admission(admission);
        let table = table(&test.bank, config.optimizer(Optimizer::Adagrad(adagrad)));
        let keys = [9, 5, 9, 7, 9];
        let initial = initial_of(&table, &[9, 5, 7]);
        let calls = AtomicUsize::new(0);
        table
            .update(&keys, |key, row, state| {
                calls.fetch_add(1, Ordering::Relaxed);
                let place = [9, 5, 7].iter().position(|&known| known == key).unwrap();
                assert_eq!(row, &initial[4 * place..][..4], "{dtype:?}");
                assert_eq!(state, [0.25; 4]);
                row.fill(1.0);
            })
            .unwrap();
        assert_eq!(calls.into_inner(), 3);
        assert_eq!(rows_of(&table, &[9, 5, 7]), [1.0; 12]);
        assert_eq!((table.rows().unwrap(), table.stats().put_rows), (3, 3));
        table.update(&[], |_, _, _| panic!("called without a key")).unwrap();
    }
}

#[test]
fn a_result_that_the_dtype_can_not_hold_leaves_its_row() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
        let mut bad = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        match dtype {
            Dtype::F16 => bad.extend([65_520.0, -1e30]),
            Dtype::Bf16 => bad.push(f32::MAX),
            _ => {}
        }
        for value in bad {
            let test = new_bank();
            let config = TableConfig::new(2).dtype(dtype).initializer(Initializer::Constant(0.5));
            let table = table(&test.bank, config.optimizer(Optimizer::adagrad(0.1)));
            table.put(&[1, 2, 3], &[1.0; 6]).unwrap();
            // Key 4 has no row yet.
            let refused = table.update(&[1, 2, 3, 4], |key, row, state| {
                row.fill(2.0);
                state.fill(3.0);
                row[1] = if key % 2 == 0 { value } else { 2.0 };
            });
            let (key, rows, text) = refusal(refused);
            assert_eq!((key, rows), (2, 2), "{dtype:?}, {value}");
            assert!(text.contains("key 2: the function makes column 1 "), "{text}");
            assert!(text.contains(dtype.name()) && text.contains("1 other row"), "{text}");
            assert_eq!(rows_of(&table, &[1, 2, 3, 4]), [2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 0.5, 0.5]);
            table
                .update(&[1, 2, 3, 4], |key, _, state| {
                    assert_eq!(state, if key % 2 == 0 { [0.0; 2] } else { [3.0; 2] });
                })
                .unwrap();
        }
    }
}

#[test]
fn a_function_changes_the_state_but_not_the_count_of_steps() {
    let test = new_bank();
    for (name, dtype, beyond) in [("a", Dtype::F32, f32::NAN), ("b", Dtype::F16, 70_000.0)] {
        let config = zeros().optimizer(Optimizer::adam(0.1)).state_dtype(dtype);
        let table = test.bank.table(name, config).unwrap();
        table
            .update(&[1], |_, row, state| {
                assert_eq!((row.len(), state.len()), (DIM, 2 * DIM));
                state[..DIM].fill(0.5);
                state[DIM..].fill(2.0);
            })
            .unwrap();
        push_to_disk(&test.bank);
        let (key, rows, text) = refusal(table.update(&[1], |_, _, state| state[DIM + 3] = beyond));
        assert_eq!((key, rows), (1, 1));
        assert!(text.contains(&format!("value {} of the optimizer's state", DIM + 3)), "{text}");
        let expected = [[0.5; DIM], [2.0; DIM]].concat();
        table.update(&[1], |_, _, state| assert_eq!(state, &expected[..])).unwrap();
        assert_eq!(rows_of(&table, &[1]), [0.0; DIM]);
    }
    let row_wise = test.bank.table("c", zeros().optimizer(Optimizer::row_wise_adagrad(0.1)));
    let row_wise = row_wise.unwrap();
    row_wise.update(&[1], |_, _, state| state[0] += 4.0).unwrap();
    let (_, _, text) = refusal(row_wise.update(&[1], |_, _, state| state[0] = f32::NAN));
    assert!(text.contains("value 0 of the optimizer's state NaN, which float32"), "{text}");
    row_wise.update(&[1], |_, _, state| assert_eq!(state, [4.0])).unwrap();
}

/// Shows that results are rounded like updates. A change of half a step reaches some rows and not
/// others with stochastic rounding, and no row with rounding to nearest.
#[test]
fn results_are_rounded_like_updates() {
    let keys: Vec<u64> = (0..1000).collect();
    for (rounding, least, most) in [(Rounding::Nearest, 0, 0), (Rounding::Stochastic, 400, 600)] {
        let test = new_bank();
        let config = TableConfig::new(1).dtype(Dtype::Bf16).rounding(Some(rounding));
        let table = table(&test.bank, config);
        table.put(&keys, &[256.0; 1000]).unwrap();
        table.update(&keys, |_, row, _| row[0] += 1.0).unwrap();
        let rows = rows_of(&table, &keys);
        assert!(rows.iter().all(|value| [256.0, 258.0].contains(value)));
        let moved = rows.iter().filter(|value| **value == 258.0).count();
        assert!((least..=most).contains(&moved), "{rounding:?}: {moved} rows");
    }
}

#[test]
fn a_function_that_changes_nothing_leaves_every_bit() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
        let test = new_bank();
        let table = table(&test.bank, zeros().dtype(dtype).optimizer(Optimizer::adagrad(0.1)));
        let keys: Vec<u64> = (0..500).collect();
        let mut random = Rng::with_seed(5);
        let rows: Vec<f32> = (0..500 * DIM).map(|_| random.f32() - 0.5).collect();
        table.put(&keys, &rows).unwrap();
        let before = rows_of(&table, &keys);
        table.update(&keys, |_, _, _| {}).unwrap();
        assert_eq!(rows_of(&table, &keys), before, "{dtype:?}");
        // A change of the state does not round the vector again.
        table.update(&keys, |_, _, state| state.fill(1.0)).unwrap();
        assert_eq!(rows_of(&table, &keys), before, "{dtype:?}");
    }
}

/// Shows that a panic on a thread of the bank leaves its row and releases the row's lock. All other
/// rows are changed.
#[test]
fn a_panic_leaves_its_row_and_the_bank_usable() {
    let test = bank_of(4);
    let table = table(&test.bank, zeros());
    let keys: Vec<u64> = (0..8192).collect();
    table.put(&keys, &vec![1.0; keys.len() * DIM]).unwrap();
    let refused = table.update(&keys, |key, row, _| {
        row.fill(5.0);
        assert!(![3000, 7000].contains(&key), "no row for {key}");
    });
    let (key, rows, text) = refusal(refused);
    assert_eq!((key, rows), (3000, 2));
    assert!(text.contains("key 3000: the function panicked: no row for 3000"), "{text}");
    for (&key, row) in keys.iter().zip(rows_of(&table, &keys).chunks(DIM)) {
        let expected = if [3000, 7000].contains(&key) { 1.0 } else { 5.0 };
        assert_eq!(row, [expected; DIM], "key {key}");
    }
    let (key, _, text) = refusal(table.update(&[4], |_, _, _| std::panic::panic_any(4_u8)));
    assert!(key == 4 && text.contains("not text"), "{text}");
    table.update(&keys, |_, row, _| row.fill(6.0)).unwrap();
    assert_eq!(rows_of(&table, &keys), vec![6.0; keys.len() * DIM]);
    table.get(&keys, &mut vec![0.0; keys.len() * DIM]).unwrap().release().unwrap();
}

/// Shows that a state that can't serve the next step is refused. Such a state would make the row
/// infinite or NaN at a later step, without an error.
#[test]
fn a_state_that_cannot_serve_the_next_step_is_refused() {
    let test = bank_of(1);
    let cases = [
        (Optimizer::adagrad(0.1), 0, -1.0),
        (Optimizer::row_wise_adagrad(0.1), 0, -1.0),
        (Optimizer::adam(0.1), 0, 3e38),
        (Optimizer::adam(0.1), DIM, -1.0),
        (Optimizer::ftrl(0.1), 0, -1.0),
    ];
    for (number, (optimizer, place, value)) in cases.into_iter().enumerate() {
        let config = TableConfig::new(DIM as u32).optimizer(optimizer);
        let table = test.bank.table(&format!("t{number}"), config).unwrap();
        let refused = table.update(&[1], |_, row, state| {
            row.fill(9.0);
            state[place] = value;
        });
        let (key, _, text) = refusal(refused);
        assert!(key == 1 && text.contains("the next step"), "{text}");
        assert_ne!(rows_of(&table, &[1])[0], 9.0);
        table.update(&[1], |_, _, state| state[place] = 2.0).unwrap();
        table.apply_gradients(&[1], &[0.1; DIM]).unwrap();
        assert!(rows_of(&table, &[1]).iter().all(|value| value.is_finite()));
    }
}

#[test]
fn a_function_that_ends_the_call_makes_no_row() {
    let test = bank_of(1);
    let table = table(&test.bank, zeros());
    let ended = table.update_with(&[1], |_, _, _| ControlFlow::Break(()));
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    assert_eq!(table.contains(&[1]).unwrap(), [false]);
}

#[test]
fn a_function_can_end_the_call() {
    let test = bank_of(1);
    let table = table(&test.bank, zeros());
    table.put(&[1, 2, 3], &[1.0; 3 * DIM]).unwrap();
    let calls = AtomicUsize::new(0);
    let ended = table.update_with(&[1, 2, 3, 4], |_, row, _| {
        row.fill(2.0);
        match calls.fetch_add(1, Ordering::Relaxed) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    assert_eq!(calls.into_inner(), 2);
    assert_eq!(table.contains(&[4]).unwrap(), [false]);
    let rows = rows_of(&table, &[1, 2, 3]);
    assert_eq!(rows.iter().filter(|value| **value == 2.0).count(), DIM, "one row is changed");
    assert_eq!(rows.iter().filter(|value| **value == 1.0).count(), 2 * DIM);
    // The call that ended has no effect on later calls.
    table.update_with(&[4], |_, _, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(table.contains(&[4]).unwrap(), [true]);
}

#[test]
fn clocks_stay_and_a_change_is_a_use() {
    let test = new_bank();
    let config = zeros().staleness_bound(Some(0)).tracking(Tracking::SetTime);
    let table = table(&test.bank, config);
    table.set_time(10).unwrap();
    let lease = table.get(&[1], &mut [0.0; DIM]).unwrap();
    table.set_time(20).unwrap();
    table.update(&[1], |_, row, _| row[0] = 3.0).unwrap();
    assert_eq!(table.outstanding(1).unwrap(), Some(1));
    lease.release().unwrap();
    assert_eq!(table.outstanding(1).unwrap(), Some(0));
    assert_eq!(rows_of(&table, &[1])[0], 3.0);
    test.bank.checkpoint(b"").unwrap();
    let old = |time| table.evict(&Eviction::new().unused_for(time).dry_run(true)).unwrap().rows;
    table.set_time(25).unwrap();
    assert_eq!((old(5), old(6)), (1, 0));
}

/// Shows that a row that can't be read fails the call, and that every other row is then changed
/// once or unchanged.
#[test]
fn a_row_that_can_not_be_read_fails_the_call_and_halves_no_row() {
    let test = new_bank();
    let table = table(&test.bank, zeros());
    let keys: Vec<u64> = (0..50).collect();
    let row = |key: u64| vec![1000.5 + key as f32; DIM];
    table.put(&keys, &keys.iter().flat_map(|&key| row(key)).collect::<Vec<_>>()).unwrap();
    push_to_disk(&test.bank);
    let damaged = 17;
    let written: Vec<u8> = row(damaged).iter().flat_map(|value| value.to_le_bytes()).collect();
    assert!(damage_files_with(test.dir.path(), &written) > 0);
    let add_one = |_: u64, row: &mut [f32], _: &mut [f32]| {
        row.iter_mut().for_each(|value| *value += 1.0);
    };
    let failed = table.update(&keys, add_one).unwrap_err();
    assert!(matches!(failed, Error::Store(StoreError::Damaged { .. })), "{failed}");
    let others: Vec<u64> = keys.into_iter().filter(|&key| key != damaged).collect();
    let rows = rows_of(&table, &others);
    for (&key, found) in others.iter().zip(rows.chunks(DIM)) {
        let changed: Vec<f32> = row(key).iter().map(|value| value + 1.0).collect();
        assert!(found == row(key) || found == changed, "key {key}: {found:?}");
    }
    table.update(&others, add_one).unwrap();
    let expected: Vec<f32> = rows.iter().map(|value| value + 1.0).collect();
    assert_eq!(rows_of(&table, &others), expected);
}
