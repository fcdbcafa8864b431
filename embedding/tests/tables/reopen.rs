//! Tests that a reopened bank has exactly the state of its newest checkpoint.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::HashMap;

use crate::common::{initial_of, new_bank, rows_of, small_options, table};
use embank::{
    Adagrad, Bank, BankOptions, Error, Initializer, Missing, Optimizer, StoreError, Table,
    TableConfig,
};
use proptest::prelude::*;

#[test]
fn tables_settings_and_blob_come_back() {
    let test = new_bank();
    assert!(test.bank.recovered().is_none());
    let config = TableConfig::new(3)
        .optimizer(Optimizer::adagrad(0.5))
        .initializer(Initializer::Normal { mean: 0.0, std: 0.1 })
        .seed(9)
        .staleness_bound(Some(2));
    let first = table(&test.bank, config.clone());
    first.put(&[1], &[1.0, 2.0, 3.0]).unwrap();
    let initial = initial_of(&first, &[77]);
    let number = test.bank.checkpoint(b"the trainer's own").unwrap();
    first.put(&[1], &[9.0; 3]).unwrap();
    test.bank.table("too late", TableConfig::new(1)).unwrap();
    let path = test.bank.path().to_owned();
    drop((first, test.bank));

    let bank = Bank::open(&path, small_options()).unwrap();
    let recovered = bank.recovered().unwrap();
    assert_eq!(
        (recovered.checkpoint, recovered.blob.as_slice()),
        (number, &b"the trainer's own"[..])
    );
    assert_eq!(bank.tables().len(), 1);
    let again = bank.open_table("t").unwrap();
    assert_eq!(again.config(), config);
    assert_eq!(rows_of(&again, &[1]), [1.0, 2.0, 3.0]);
    assert_eq!(initial_of(&again, &[77]), initial);
    assert!(matches!(bank.table("t", config.seed(8)), Err(Error::ConfigMismatch { .. })));
    assert!(bank.table("too late", TableConfig::new(5)).is_ok());
}

#[test]
fn a_bank_is_open_once() {
    let test = new_bank();
    let error = Bank::open(test.bank.path(), small_options()).unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::Locked { .. })), "{error}");
}

#[test]
fn handles_and_leases_keep_the_bank_open() {
    let test = new_bank();
    let path = test.bank.path().to_owned();
    let lease = table(&test.bank, TableConfig::new(1)).get(&[1], &mut [0.0]).unwrap();
    drop(test.bank);
    lease.table().put(&[2], &[2.0]).unwrap();
    assert!(Bank::open(&path, small_options()).is_err());
    drop(lease);
    assert!(Bank::open(&path, small_options()).is_ok());
}

const DIM: usize = 32;
const KEYS: u64 = 3000;
const LR: f32 = 0.25;
const LR_F64: f64 = LR as f64;
const TABLES: [&str; 2] = ["plain", "adagrad"];

#[derive(Debug, Clone)]
enum Step {
    Train { table: usize, keys: Vec<u64>, gradient: f32 },
    Put { table: usize, keys: Vec<u64>, value: f32 },
    ApplyWithoutLease { table: usize, keys: Vec<u64>, gradient: f32 },
    GetAndDrop { table: usize, keys: Vec<u64> },
    Peek { table: usize, keys: Vec<u64> },
    Delete { table: usize, keys: Vec<u64> },
    Lookahead { table: usize, keys: Vec<u64> },
    Checkpoint,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let table = || 0..TABLES.len();
    // A run of keys with gaps and repetitions.
    let keys = || {
        (0..KEYS, 1..600_u64, 1..4_u64).prop_map(|(first, count, stride)| {
            (0..count).map(|place| (first + place * stride % 400) % KEYS).collect::<Vec<_>>()
        })
    };
    let value = || -2.0_f32..2.0;
    let step = prop_oneof![
        4 => (table(), keys(), value())
            .prop_map(|(table, keys, gradient)| Step::Train { table, keys, gradient }),
        3 => (table(), keys(), value())
            .prop_map(|(table, keys, value)| Step::Put { table, keys, value }),
        2 => (table(), keys(), value()).prop_map(|(table, keys, gradient)| {
            Step::ApplyWithoutLease { table, keys, gradient }
        }),
        1 => (table(), keys()).prop_map(|(table, keys)| Step::GetAndDrop { table, keys }),
        3 => (table(), keys()).prop_map(|(table, keys)| Step::Peek { table, keys }),
        1 => (table(), keys()).prop_map(|(table, keys)| Step::Delete { table, keys }),
        2 => (table(), keys()).prop_map(|(table, keys)| Step::Lookahead { table, keys }),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

/// A row of the model: its vector, and its accumulators if the table uses Adagrad.
#[derive(Debug, Clone, PartialEq)]
struct ModelRow {
    vector: Vec<f32>,
    sums: Vec<f32>,
}

type Model = HashMap<(usize, u64), ModelRow>;

fn configs() -> [TableConfig; 2] {
    let adagrad = Optimizer::Adagrad(Adagrad { initial_accumulator: 0.5, ..Adagrad::new(LR_F64) });
    [
        TableConfig::new(DIM as u32).optimizer(Optimizer::sgd(LR_F64)).staleness_bound(Some(0)),
        TableConfig::new(DIM as u32).optimizer(adagrad).seed(1),
    ]
}

fn open_tables(bank: &Bank) -> Vec<Table> {
    TABLES.iter().zip(configs()).map(|(name, config)| bank.table(name, config).unwrap()).collect()
}

fn new_row(table: &Table, key: u64) -> ModelRow {
    ModelRow { vector: initial_of(table, &[key]), sums: vec![0.5; DIM] }
}

/// Returns a * b + c, computed in f64 and rounded to f32. The crate uses `f32::mul_add`, which
/// differs in about one of 2^29 cases. This test computes fewer cases.
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    (f64::from(a) * f64::from(b) + f64::from(c)) as f32
}

fn model_step(row: &mut ModelRow, gradient: f32, adagrad: bool) {
    for (value, sum) in row.vector.iter_mut().zip(&mut row.sums) {
        if adagrad {
            *sum = multiply_add(gradient, gradient, *sum);
            *value -= LR * gradient / (sum.sqrt() + 1e-10);
        } else {
            *value = multiply_add(gradient, -LR, *value);
        }
    }
}

/// Applies one gradient per key of the batch to the model. The gradients of a repeated key are
/// summed in order.
fn model_apply(model: &mut Model, tables: &[Table], table: usize, keys: &[u64], gradient: f32) {
    let mut sums: HashMap<u64, f32> = HashMap::new();
    for &key in keys {
        *sums.entry(key).or_insert(0.0) += gradient;
    }
    for (key, sum) in sums {
        let row = model.entry((table, key)).or_insert_with(|| new_row(&tables[table], key));
        model_step(row, sum, table == 1);
    }
}

fn check_rows(model: &Model, tables: &[Table], table: usize, keys: &[u64]) {
    let mut rows = vec![f32::NAN; keys.len() * DIM];
    let outcome = tables[table].peek(keys, &mut rows, Missing::Initial).unwrap();
    let missing: Vec<u32> = (0..keys.len() as u32)
        .filter(|&place| !model.contains_key(&(table, keys[place as usize])))
        .collect();
    assert_eq!(outcome.missing, missing, "table {table}");
    for (&key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
        match model.get(&(table, key)) {
            Some(expected) => assert_eq!(row, expected.vector, "table {table}, key {key}"),
            None => assert_eq!(row, initial_of(&tables[table], &[key])),
        }
    }
}

fn perform(step: &Step, model: &mut Model, tables: &[Table]) {
    match step {
        Step::Train { table, keys, gradient } => {
            let mut rows = vec![f32::NAN; keys.len() * DIM];
            let lease = tables[*table].get(keys, &mut rows).unwrap();
            for (&key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
                let expected =
                    model.entry((*table, key)).or_insert_with(|| new_row(&tables[*table], key));
                assert_eq!(row, expected.vector, "table {table}, key {key}");
            }
            lease.apply(&vec![*gradient; keys.len() * DIM]).unwrap();
            model_apply(model, tables, *table, keys, *gradient);
        }
        Step::Put { table, keys, value } => {
            let rows: Vec<f32> =
                (0..keys.len()).flat_map(|place| [value + place as f32; DIM]).collect();
            tables[*table].put(keys, &rows).unwrap();
            for (&key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
                let held =
                    model.entry((*table, key)).or_insert_with(|| new_row(&tables[*table], key));
                held.vector.copy_from_slice(row);
            }
        }
        Step::ApplyWithoutLease { table, keys, gradient } => {
            tables[*table].apply_gradients(keys, &vec![*gradient; keys.len() * DIM]).unwrap();
            model_apply(model, tables, *table, keys, *gradient);
        }
        Step::GetAndDrop { table, keys } => {
            drop(tables[*table].get(keys, &mut vec![0.0; keys.len() * DIM]).unwrap());
            for &key in keys {
                model.entry((*table, key)).or_insert_with(|| new_row(&tables[*table], key));
            }
        }
        Step::Peek { table, keys } => check_rows(model, tables, *table, keys),
        Step::Delete { table, keys } => {
            let before = model.len();
            for &key in keys {
                model.remove(&(*table, key));
            }
            assert_eq!(tables[*table].delete(keys).unwrap(), (before - model.len()) as u64);
        }
        Step::Lookahead { table, keys } => {
            tables[*table].lookahead(keys).unwrap();
        }
        Step::Checkpoint | Step::Reopen => unreachable!("the caller's"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_model_across_checkpoints_and_reopens(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bank");
        let mut bank = Bank::open(&path, small_options()).unwrap();
        let mut tables = open_tables(&bank);
        let (mut model, mut saved) = (Model::new(), Model::new());
        let mut checkpoints = 0;
        for step in &steps {
            match step {
                Step::Checkpoint => {
                    checkpoints += 1;
                    bank.checkpoint(&[checkpoints]).unwrap();
                    saved = model.clone();
                }
                Step::Reopen => {
                    tables.clear();
                    drop(bank);
                    bank = Bank::open(&path, small_options()).unwrap();
                    let blob = bank.recovered().map(|recovered| recovered.blob.clone());
                    prop_assert_eq!(blob, (checkpoints > 0).then(|| vec![checkpoints]));
                    tables = open_tables(&bank);
                    model = saved.clone();
                }
                other => perform(other, &mut model, &tables),
            }
        }
        let keys: Vec<u64> = (0..KEYS).collect();
        for table in 0..TABLES.len() {
            check_rows(&model, &tables, table, &keys);
        }
        prop_assert_eq!(bank.stats().release_failures, 0);
    }
}

#[test]
fn a_bank_that_is_read_shows_checkpoints_beside_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let training = Bank::open(dir.path(), BankOptions::default()).unwrap();
    let config = TableConfig::new(2).optimizer(Optimizer::sgd(1.0));
    let users = training.table("user", config.clone()).unwrap();
    users.put(&[1, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    training.table("doomed", TableConfig::new(1)).unwrap();
    assert_eq!(training.checkpoint(b"one").unwrap(), 1);

    let serving = Bank::open_read_only(dir.path(), BankOptions::default(), Some(1)).unwrap();
    let (table, doomed) =
        (serving.open_table("user").unwrap(), serving.open_table("doomed").unwrap());
    let peeked = |table: &Table| {
        let mut rows = [0.0; 4];
        table.peek(&[1, 2], &mut rows, Missing::Error).unwrap();
        rows
    };
    users.apply_gradients(&[1], &[1.0, 1.0]).unwrap();
    training.drop_table("doomed").unwrap();
    training.table("new", TableConfig::new(3)).unwrap();
    for _ in 0..3 {
        training.checkpoint(b"two").unwrap();
    }
    assert_eq!(peeked(&table), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(serving.reading().unwrap().blob, b"one");
    assert_eq!(table.contains(&[1, 3]).unwrap(), [true, false]);
    assert_eq!(table.lookahead(&[1, 2]).unwrap().accepted(), 0);

    assert_eq!(serving.refresh().unwrap(), 4);
    assert_eq!(serving.reading().unwrap().blob, b"two");
    assert_eq!(peeked(&table), [0.0, 1.0, 3.0, 4.0]);
    assert!(matches!(doomed.contains(&[1]), Err(Error::TableDropped { .. })));
    let names: Vec<_> = serving.tables().into_iter().map(|table| table.name).collect();
    assert_eq!(names, ["new", "user"]);
    let mut scan = table.scan().unwrap();
    let mut found = 0;
    while scan.next_row().unwrap().is_some() {
        found += 1;
    }
    assert_eq!(found, 2);

    let read_only = |result: embank::Result<()>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Store(StoreError::ReadOnly { .. })), "{error}");
    };
    let mut rows = [0.0; 2];
    read_only(table.put(&[1], &[0.0, 0.0]));
    read_only(table.get(&[1], &mut rows).map(drop));
    read_only(table.apply_gradients(&[1], &[0.0, 0.0]));
    read_only(table.update(&[1], |_, _, _| panic!("called in a read-only bank")));
    read_only(table.delete(&[1]).map(drop));
    read_only(serving.table("more", TableConfig::new(2)).map(drop));
    read_only(serving.drop_table("user"));
    read_only(serving.checkpoint(b"").map(drop));
    read_only(serving.compact().map(drop));
    assert_eq!(serving.table("user", config).unwrap().dim(), 2);
    assert_eq!(peeked(&table), [0.0, 1.0, 3.0, 4.0]);
    assert!(training.refresh().is_err() && training.reading().is_none());
}
