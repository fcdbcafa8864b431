//! Tests tables whose rows or optimizer state are stored in f16, bf16 or int8.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{initial_of, new_bank, push_to_disk, rows_of, small_options};
use embank::{Bank, Dtype, Error, Initializer, Missing, Optimizer, Rounding, Table, TableConfig};

const DIM: u32 = 21;
const LOW: [Dtype; 3] = [Dtype::F16, Dtype::Bf16, Dtype::Int8];

fn config(dtype: Dtype) -> TableConfig {
    TableConfig::new(DIM).dtype(dtype).optimizer(Optimizer::adagrad(0.1)).seed(3)
}

fn row(key: u64) -> Vec<f32> {
    (0..DIM).map(|column| ((key * 31 + u64::from(column) * 7) as f32 * 0.37).sin()).collect()
}

/// Returns the largest rounding error of a row in this dtype: half a step of its largest value.
fn half_step(dtype: Dtype, row: &[f32]) -> f32 {
    let largest = row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    largest
        * match dtype {
            Dtype::F16 => 1.0 / 2048.0,
            Dtype::Bf16 => 1.0 / 256.0,
            _ => 0.5001 / 127.0,
        }
}

fn assert_near(dtype: Dtype, found: &[f32], expected: &[f32]) {
    for (found, value) in found.iter().zip(expected) {
        assert!((found - value).abs() <= half_step(dtype, expected), "{dtype:?} {found} {value}");
    }
}

#[test]
fn rows_come_back_as_near_as_the_dtype_can_tell_wherever_they_lie() {
    for dtype in LOW {
        let test = new_bank();
        let table = test.bank.table("t", config(dtype)).unwrap();
        let keys: Vec<u64> = (0..50).collect();
        let rows: Vec<f32> = keys.iter().flat_map(|&key| row(key)).collect();
        table.put(&keys, &rows).unwrap();
        let held = rows_of(&table, &keys);
        for (found, expected) in held.chunks(DIM as usize).zip(rows.chunks(DIM as usize)) {
            assert_near(dtype, found, expected);
        }
        let mut got = vec![0.0; rows.len()];
        drop(table.get(&keys, &mut got).unwrap());
        assert_eq!(got, held);
        push_to_disk(&test.bank);
        assert_eq!(rows_of(&table, &keys), held, "{dtype:?}: from disk");
        // Rows that were read can be put back unchanged, except for the last bit of an int8 scale.
        table.put(&keys, &held).unwrap();
        for (found, expected) in rows_of(&table, &keys).iter().zip(&held) {
            assert!((found - expected).abs() <= 2e-7 * expected.abs(), "{dtype:?}");
        }
    }
}

#[test]
fn a_peek_of_a_missing_row_is_what_a_get_makes() {
    for dtype in LOW {
        let test = new_bank();
        let table = test.bank.table("t", config(dtype)).unwrap();
        let initial = initial_of(&table, &[7]);
        let mut peeked = vec![0.0; DIM as usize];
        table.peek(&[7], &mut peeked, Missing::Initial).unwrap();
        let mut got = vec![0.0; DIM as usize];
        drop(table.get(&[7], &mut got).unwrap());
        assert_eq!((&initial, &initial, &initial), (&peeked, &got, &rows_of(&table, &[7])));
        let in_f32 = test.bank.table("t32", config(Dtype::F32)).unwrap();
        assert_ne!(initial, initial_of(&in_f32, &[7]), "another name, other values");
    }
}

/// Trains `table`, and `exact` in f32. Returns the largest distance between their rows.
fn distance_to_f32(table: &Table, exact: &Table, steps: u64) -> f32 {
    for step in 0..steps {
        for key in 0..4 {
            let gradient = row(step * 13 + key);
            table.apply_gradients(&[key], &gradient).unwrap();
            exact.apply_gradients(&[key], &gradient).unwrap();
        }
    }
    let keys = [0, 1, 2, 3];
    let apart = rows_of(table, &keys).into_iter().zip(rows_of(exact, &keys));
    apart.map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max)
}

#[test]
fn training_follows_f32() {
    let optimizers =
        [Optimizer::sgd(0.05), Optimizer::adagrad(0.1), Optimizer::row_wise_adagrad(0.1)];
    for dtype in LOW {
        for optimizer in optimizers.into_iter().chain([Optimizer::adam(0.01)]) {
            let test = new_bank();
            let start = config(Dtype::F32).optimizer(optimizer).initializer(Initializer::Zeros);
            let low = start.clone().dtype(dtype).rounding(Some(Rounding::Stochastic));
            let table = test.bank.table("low", low).unwrap();
            let exact = test.bank.table("exact", start).unwrap();
            let apart = distance_to_f32(&table, &exact, 200);
            let bound = if dtype == Dtype::F16 { 0.01 } else { 0.1 };
            assert!(apart < bound, "{dtype:?} {optimizer:?}: {apart}");
        }
    }
}

#[test]
fn state_below_f32_follows_f32_too() {
    for state_dtype in [Dtype::F16, Dtype::Bf16] {
        let test = new_bank();
        let start = config(Dtype::F32).optimizer(Optimizer::adagrad(0.1));
        let table = test.bank.table("t", start.clone().state_dtype(state_dtype)).unwrap();
        assert_eq!(
            table.config().value_bytes(),
            (4 * DIM + (2 * DIM).next_multiple_of(4) + 4).next_multiple_of(8)
        );
        let exact = test.bank.table("t2", start).unwrap();
        table.put(&[0, 1, 2, 3], &vec![0.0; 4 * DIM as usize]).unwrap();
        exact.put(&[0, 1, 2, 3], &vec![0.0; 4 * DIM as usize]).unwrap();
        let apart = distance_to_f32(&table, &exact, 200);
        assert!(apart > 0.0 && apart < 0.05, "{state_dtype:?}: {apart}");
    }
}

/// Shows that stochastic rounding adds up updates below half a step. Rounding to nearest would
/// never move these rows. Draws that ignore the number of steps would never move half of the
/// values.
#[test]
fn updates_below_half_a_step_add_up() {
    for dtype in [Dtype::Bf16, Dtype::Int8] {
        let test = new_bank();
        let start = TableConfig::new(DIM)
            .dtype(dtype)
            .optimizer(Optimizer::sgd(1.0))
            .initializer(Initializer::Constant(1.0))
            .rounding(Some(Rounding::Stochastic));
        let table = test.bank.table("t", start.clone()).unwrap();
        let nearest = start.rounding(Some(Rounding::Nearest));
        let nearest = test.bank.table("nearest", nearest).unwrap();
        // A gradient of 0 in the first column keeps the scale of an int8 row.
        let mut gradient = vec![1e-4; DIM as usize];
        gradient[0] = 0.0;
        for key in 0..20 {
            for _ in 0..1000 {
                table.apply_gradients(&[key], &gradient).unwrap();
            }
        }
        for _ in 0..1000 {
            nearest.apply_gradients(&[1], &gradient).unwrap();
        }
        assert_eq!(rows_of(&nearest, &[1]), vec![1.0; DIM as usize]);
        let rows = rows_of(&table, &(0..20).collect::<Vec<_>>());
        let moved: Vec<f32> =
            rows.chunks(DIM as usize).flat_map(|row| row[1..].iter().copied()).collect();
        let mean = moved.iter().sum::<f32>() / moved.len() as f32;
        assert!((mean - 0.9).abs() < 0.01, "{dtype:?}: {mean}");
    }
}

#[test]
fn the_same_run_rounds_the_same_and_another_seed_otherwise() {
    let run = |seed: u64, keys: &[u64]| {
        let dir = tempfile::tempdir().unwrap();
        let start = config(Dtype::Int8).seed(seed).initializer(Initializer::Constant(0.5));
        let mut bank = Bank::open(dir.path(), small_options()).unwrap();
        let mut table = bank.table("t", start).unwrap();
        for step in 0..20 {
            for &key in keys {
                table.apply_gradients(&[key], &row(step * 7 + key)).unwrap();
            }
            if step == 10 {
                bank.checkpoint(b"").unwrap();
                drop((table, bank));
                bank = Bank::open(dir.path(), small_options()).unwrap();
                table = bank.open_table("t").unwrap();
            }
        }
        rows_of(&table, &[1, 2, 3])
    };
    let first = run(5, &[1, 2, 3]);
    assert_eq!(first, run(5, &[3, 1, 2]), "whatever the order");
    assert_ne!(first, run(6, &[1, 2, 3]));
}

#[test]
fn puts_through_a_lease_are_updates_and_others_are_exact() {
    let test = new_bank();
    let start = TableConfig::new(2).dtype(Dtype::Int8).initializer(Initializer::Constant(1.0));
    let table = test.bank.table("t", start).unwrap();
    let keys: Vec<u64> = (0..400).collect();
    // The second value is 100 steps of 1/127, plus a quarter of a step.
    let rows = [1.0, 100.25 / 127.0].repeat(keys.len());
    let mut seen = vec![0.0; rows.len()];
    table.get(&keys, &mut seen).unwrap().put(&rows).unwrap();
    let up = rows_of(&table, &keys).chunks(2).filter(|row| row[1] > 100.5 / 127.0).count();
    assert!((60..140).contains(&up), "{up} of 400 went up; 100 are expected");
    table.put(&keys, &rows).unwrap();
    assert!(rows_of(&table, &keys).chunks(2).all(|row| row[1] < 100.25 / 127.0));
}

#[test]
fn dtypes_are_the_tables_for_good_and_checked() {
    let test = new_bank();
    test.bank.table("t", config(Dtype::Int8)).unwrap();
    for other in [
        config(Dtype::F32),
        config(Dtype::Int8).state_dtype(Dtype::Bf16),
        config(Dtype::Int8).rounding(Some(Rounding::Nearest)),
    ] {
        let error = test.bank.table("t", other).unwrap_err();
        assert!(matches!(error, Error::ConfigMismatch { .. }), "{error}");
    }
    test.bank.table("t", config(Dtype::Int8).rounding(Some(Rounding::Stochastic))).unwrap();
    for bad in [
        config(Dtype::F32).state_dtype(Dtype::Int8),
        config(Dtype::F32).rounding(Some(Rounding::Stochastic)),
    ] {
        assert!(matches!(test.bank.table("bad", bad), Err(Error::InvalidConfig { .. })));
    }
}

/// Shows that the bytes of a row follow docs/format.md.
#[test]
fn the_bytes_of_a_row_are_those_of_the_format() {
    let config = |dtype| TableConfig::new(3).dtype(dtype).optimizer(Optimizer::adam(0.1));
    let words = |bytes: &[u8]| config(Dtype::Int8).decode_row(bytes).unwrap();
    let mut bytes = vec![127_u8, 0x81, 1, 0];
    bytes.extend(0.5_f32.to_le_bytes());
    for value in [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(9_u32.to_le_bytes());
    bytes.extend([0; 4]);
    let row = words(&bytes);
    assert_eq!(row.vector, [63.5, -63.5, 0.5]);
    assert_eq!((row.state, row.steps), (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], Some(9)));
    assert_eq!(config(Dtype::Int8).value_bytes(), 40);

    let half = config(Dtype::F16).state_dtype(Dtype::Bf16).optimizer(Optimizer::adagrad(0.1));
    let halves = [0x3C00_u16, 0xC000, 0x0001, 0, 0x3F80, 0x4000, 0x4040, 0];
    let mut bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    bytes.extend(5_u32.to_le_bytes());
    bytes.extend([0; 4]);
    let row = half.decode_row(&bytes).unwrap();
    assert_eq!(row.vector, [1.0, -2.0, 2.0_f32.powi(-24)]);
    assert_eq!((row.state, row.steps), (vec![1.0, 2.0, 3.0], Some(5)));
    assert_eq!(half.decode_row(&bytes[..20]), None);
}
