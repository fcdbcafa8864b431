//! Tests batches of rows that are written to tables and read from them.

use crate::common::{initial_of, new_bank, new_bank_with, rows_of, small_options, table};
use embank::{
    Adagrad, BankOptions, Error, Initializer, Missing, Optimizer, StoreError, TableConfig,
    UniqueKeys,
};

#[test]
fn handles_and_leases_go_between_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<embank::Bank>();
    check::<embank::Table>();
    check::<embank::Lease>();
    check::<Error>();
}

#[test]
fn a_get_inserts_missing_rows_with_their_initial_values() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(3));
    let mut rows = [0.0; 6];
    drop(table.get(&[5, 9], &mut rows).unwrap());
    assert_eq!(rows[..], initial_of(&table, &[5, 9]));
    assert_eq!(rows[..], rows_of(&table, &[5, 9]));
    assert!(rows.iter().all(|value| value.abs() <= 0.05));
}

#[test]
fn duplicates_get_the_same_row_and_their_gradients_are_summed() {
    let test = new_bank();
    let config = TableConfig::new(2).optimizer(Optimizer::sgd(0.5));
    let table = table(&test.bank, config.initializer(Initializer::Constant(10.0)));
    let keys = [4, 9, 4, 4, 9];
    let mut rows = [0.0; 10];
    let lease = table.get(&keys, &mut rows).unwrap();
    assert_eq!(rows, [10.0; 10]);
    lease.apply(&[1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 5.0, 6.0, 30.0, 40.0]).unwrap();
    assert_eq!(rows_of(&table, &[4, 9]), [5.5, 4.0, -10.0, -20.0]);

    drop(table.get(&keys, &mut rows).unwrap());
    assert_eq!(rows, [5.5, 4.0, -10.0, -20.0, 5.5, 4.0, 5.5, 4.0, -10.0, -20.0]);
}

#[test]
fn distinct_gets_hold_one_row_per_distinct_key() {
    let test = new_bank();
    let config = TableConfig::new(1).optimizer(Optimizer::sgd(1.0));
    let table = table(&test.bank, config.initializer(Initializer::Zeros));
    let mut rows = [f32::NAN; 2];
    let request = table.request(&[8, 7, 8]).unwrap().distinct();
    let lease = table.get_rows(request, &mut rows).unwrap();
    assert_eq!(lease.unique(), &UniqueKeys::new(&[8, 7, 8]).unwrap());
    lease.apply(&[-1.0, -2.0]).unwrap();
    assert_eq!(rows_of(&table, &[8, 7]), [1.0, 2.0]);
    let request = table.request(&[7, 8, 7]).unwrap().distinct();
    table.get_rows(request, &mut rows).unwrap().put(&[70.0, 80.0]).unwrap();
    assert_eq!(rows_of(&table, &[8, 7]), [80.0, 70.0]);
}

#[test]
fn of_equal_keys_the_last_put_wins() {
    let test = new_bank();
    for (name, optimizer) in [("plain", Optimizer::None), ("state", Optimizer::adagrad(0.1))] {
        let table = test.bank.table(name, TableConfig::new(1).optimizer(optimizer)).unwrap();
        table.put(&[1, 2, 1, 3, 1], &[10.0, 20.0, 11.0, 30.0, 12.0]).unwrap();
        assert_eq!(rows_of(&table, &[1, 2, 3]), [12.0, 20.0, 30.0]);
        let lease = table.get(&[3, 3, 2], &mut [0.0; 3]).unwrap();
        lease.put(&[31.0, 32.0, 21.0]).unwrap();
        assert_eq!(rows_of(&table, &[1, 2, 3]), [12.0, 21.0, 32.0]);
    }
}

#[test]
fn a_put_keeps_the_state_of_an_existing_row_and_starts_that_of_a_new_one() {
    let test = new_bank();
    let optimizer =
        Optimizer::Adagrad(Adagrad { eps: 0.0, initial_accumulator: 9.0, ..Adagrad::new(1.0) });
    let table = table(&test.bank, TableConfig::new(1).optimizer(optimizer));
    table.put(&[1], &[0.0]).unwrap();
    table.apply_gradients(&[1], &[4.0]).unwrap(); // sum 25
    assert_eq!(rows_of(&table, &[1]), [-0.8]);
    table.put(&[1], &[0.0]).unwrap();
    table.get(&[1], &mut [0.0]).unwrap().put(&[0.0]).unwrap();
    table.apply_gradients(&[1], &[12.0]).unwrap(); // sum 169
    assert_eq!(rows_of(&table, &[1]), [-12.0 / 13.0]);
}

#[test]
fn gradients_of_missing_rows_start_from_their_initial_values() {
    let test = new_bank();
    let config = TableConfig::new(1).optimizer(Optimizer::sgd(0.5));
    let table = table(&test.bank, config.initializer(Initializer::Constant(3.0)));
    table.apply_gradients(&[6, 6], &[1.0, 1.0]).unwrap();
    assert_eq!(rows_of(&table, &[6]), [2.0]);
    assert_eq!(table.outstanding(6).unwrap(), Some(0));
}

#[test]
fn a_peek_inserts_nothing_and_never_makes_up_zeros() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(2));
    table.put(&[1], &[1.0, 2.0]).unwrap();
    let keys = [3, 1, 3, 4];

    let mut rows = [7.0; 8];
    let outcome = table.peek(&keys, &mut rows, Missing::Skip).unwrap();
    assert_eq!(outcome.missing, [0, 2, 3]);
    assert_eq!(rows, [7.0, 7.0, 1.0, 2.0, 7.0, 7.0, 7.0, 7.0]);

    let outcome = table.peek(&keys, &mut rows, Missing::Initial).unwrap();
    assert_eq!(outcome.missing, [0, 2, 3]);
    let initial = initial_of(&table, &keys);
    assert_eq!(rows[2..4], [1.0, 2.0]);
    assert_eq!((&rows[..2], &rows[4..]), (&initial[..2], &initial[4..]));

    let error = table.peek(&keys, &mut rows, Missing::Error).unwrap_err();
    assert!(matches!(error, Error::MissingRow { key: 3, count: 3, .. }), "{error}");
    assert_eq!(table.contains(&keys).unwrap(), [false, true, false, false]);
    assert_eq!(table.outstanding(3).unwrap(), None);
}

#[test]
fn a_deleted_row_is_missing_and_starts_anew() {
    let test = new_bank();
    let config = TableConfig::new(1).optimizer(Optimizer::sgd(1.0));
    let table = table(&test.bank, config.initializer(Initializer::Constant(5.0)));
    table.put(&[1, 2], &[1.0, 2.0]).unwrap();
    assert_eq!(table.delete(&[1, 3, 1]).unwrap(), 1);
    assert_eq!(table.contains(&[1, 2]).unwrap(), [false, true]);
    let mut row = [0.0];
    drop(table.get(&[1], &mut row).unwrap());
    assert_eq!(row, [5.0]);
}

#[test]
fn a_row_deleted_under_a_lease_loses_its_gradient_and_keeps_a_put() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(1).optimizer(Optimizer::sgd(1.0)));
    let lease = table.get(&[1, 2], &mut [0.0; 2]).unwrap();
    table.delete(&[1]).unwrap();
    lease.apply(&[1.0, 1.0]).unwrap();
    assert_eq!(table.contains(&[1, 2]).unwrap(), [false, true]);

    let lease = table.get(&[1], &mut [0.0]).unwrap();
    table.delete(&[1]).unwrap();
    lease.put(&[8.0]).unwrap();
    assert_eq!(rows_of(&table, &[1]), [8.0]);
    let lease = table.get(&[1], &mut [0.0]).unwrap();
    table.delete(&[1]).unwrap();
    lease.release().unwrap();
    assert_eq!(table.outstanding(1).unwrap(), None);
}

#[test]
fn slices_of_the_wrong_length_are_refused_and_change_nothing() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(2).optimizer(Optimizer::sgd(1.0)));
    let keys = [1, 2, 1];
    let refused = |error: Error, expected| match error {
        Error::ShapeMismatch { expected: wanted, .. } => assert_eq!(wanted, expected),
        other => panic!("{other}"),
    };
    refused(table.get(&keys, &mut [0.0; 5]).unwrap_err(), 6);
    let distinct = || table.request(&keys).unwrap().distinct();
    refused(table.get_rows(distinct(), &mut [0.0; 6]).unwrap_err(), 4);
    refused(table.put(&keys, &[0.0; 7]).unwrap_err(), 6);
    refused(table.apply_gradients(&keys, &[]).unwrap_err(), 6);
    refused(table.peek(&keys, &mut [0.0; 3], Missing::Initial).unwrap_err(), 6);
    refused(table.initial(&keys, &mut [0.0; 3]).unwrap_err(), 6);
    assert_eq!(table.contains(&keys).unwrap(), [false; 3]);

    let mut rows = [0.0; 6];
    refused(table.get(&keys, &mut rows).unwrap().apply(&[1.0; 4]).unwrap_err(), 6);
    refused(table.get_rows(distinct(), &mut rows[..4]).unwrap().apply(&[1.0; 6]).unwrap_err(), 4);
    refused(table.get(&keys, &mut rows).unwrap().put(&[1.0; 4]).unwrap_err(), 6);
    refused(table.get_rows(distinct(), &mut rows[..4]).unwrap().put(&[1.0; 6]).unwrap_err(), 4);
    assert_eq!(rows_of(&table, &keys), initial_of(&table, &keys));
    assert_eq!(table.outstanding(1).unwrap(), Some(0));
}

#[test]
fn a_gradient_that_is_not_finite_is_refused_and_changes_nothing() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(2).optimizer(Optimizer::adagrad(1.0)));
    let mut rows = [0.0; 4];
    for bad in [f32::NAN, f32::INFINITY] {
        let lease = table.get(&[1, 2], &mut rows).unwrap();
        let error = lease.apply(&[1.0, 1.0, 1.0, bad]).unwrap_err();
        assert!(matches!(error, Error::NonFiniteGradient { key: 2, column: 1, .. }), "{error}");
        assert_eq!(table.outstanding(1).unwrap(), Some(0));
        assert!(table.apply_gradients(&[1, 2], &[1.0, bad, 1.0, 1.0]).is_err());
    }
    // One key has two finite gradients whose sum is infinite.
    assert!(table.apply_gradients(&[1, 1], &[f32::MAX; 4]).is_err());
    assert_eq!(rows_of(&table, &[1, 2]), initial_of(&table, &[1, 2]));
}

#[test]
fn a_table_without_an_optimizer_refuses_gradients() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(1));
    assert!(matches!(table.apply_gradients(&[1], &[1.0]), Err(Error::NoOptimizer { .. })));
    let lease = table.get(&[1], &mut [0.0]).unwrap();
    assert!(matches!(lease.apply(&[1.0]), Err(Error::NoOptimizer { .. })));
    assert_eq!(table.outstanding(1).unwrap(), Some(0));
    assert!(matches!(table.set_learning_rate(0.1), Err(Error::NoOptimizer { .. })));
}

#[test]
fn the_learning_rate_changes_for_all_handles() {
    let test = new_bank();
    let config = TableConfig::new(1).optimizer(Optimizer::sgd(1.0)).initializer(Initializer::Zeros);
    let first = table(&test.bank, config.clone());
    let second = table(&test.bank, config.clone());
    second.set_learning_rate(0.25).unwrap();
    first.apply_gradients(&[1], &[-1.0]).unwrap();
    assert_eq!(rows_of(&first, &[1]), [0.25]);
    table(&test.bank, config.optimizer(Optimizer::sgd(2.0)));
    first.apply_gradients(&[1], &[-1.0]).unwrap();
    assert_eq!(rows_of(&first, &[1]), [2.25]);
    assert!(first.set_learning_rate(f64::NAN).is_err());
}

#[test]
fn empty_batches_do_nothing() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(4).optimizer(Optimizer::sgd(1.0)));
    table.get(&[], &mut []).unwrap().apply(&[]).unwrap();
    table.get(&[], &mut []).unwrap().put(&[]).unwrap();
    table.put(&[], &[]).unwrap();
    table.apply_gradients(&[], &[]).unwrap();
    assert!(table.peek(&[], &mut [], Missing::Error).unwrap().missing.is_empty());
    assert_eq!(table.delete(&[]).unwrap(), 0);
    assert!(table.contains(&[]).unwrap().is_empty());
    assert_eq!(table.lookahead(&[]).unwrap().accepted(), 0);
}

#[test]
fn a_name_stands_for_one_table() {
    let test = new_bank();
    let bank = &test.bank;
    let config = TableConfig::new(2).seed(7).staleness_bound(Some(1));
    let table = bank.table("user", config.clone()).unwrap();
    bank.table("item", TableConfig::new(4)).unwrap();
    table.put(&[1], &[1.0, 2.0]).unwrap();
    assert_eq!(rows_of(&bank.open_table("user").unwrap(), &[1]), [1.0, 2.0]);
    assert_eq!(bank.open_table("item").unwrap().contains(&[1]).unwrap(), [false]);

    let error = bank.table("user", TableConfig::new(3).seed(7)).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("dim 2") && message.contains("dim 3"), "{message}");
    assert!(matches!(bank.table("new", TableConfig::new(0)), Err(Error::InvalidConfig { .. })));
    let error = bank.open_table("new").unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::NoSuchTable(_))), "{error}");
    let listed = "there is no table \"new\" in this bank, which has \"item\", \"user\"";
    assert_eq!(error.to_string(), listed);
    let names: Vec<_> = bank.tables().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["item", "user"]);
    assert_eq!(bank.tables()[1].config, config);
}

#[test]
fn a_table_larger_than_the_budget_keeps_every_row() {
    let test = new_bank();
    let config = TableConfig::new(16).optimizer(Optimizer::sgd(1.0));
    let table = table(&test.bank, config.initializer(Initializer::Zeros));
    let keys: Vec<u64> = (0..40_000).map(|key| key * 0x9E37_79B9).collect();
    let gradients = |batch: &[u64]| -> Vec<f32> {
        batch.iter().flat_map(|&key| [-((key % 1000) as f32); 16]).collect()
    };
    for _ in 0..2 {
        for batch in keys.chunks(1000) {
            let mut rows = vec![0.0; batch.len() * 16];
            table.get(batch, &mut rows).unwrap().apply(&gradients(batch)).unwrap();
        }
    }
    for batch in keys.chunks(1000) {
        let expected: Vec<f32> = gradients(batch).iter().map(|value| -2.0 * value).collect();
        assert_eq!(rows_of(&table, batch), expected);
    }
    assert!(table.stats().disk_reads > 0);
    assert_eq!(test.bank.stats().release_failures, 0);
}

#[test]
fn no_gradient_of_any_thread_is_lost() {
    let test = new_bank();
    let config = TableConfig::new(2).optimizer(Optimizer::sgd(1.0));
    let table = table(&test.bank, config.initializer(Initializer::Zeros));
    let keys: Vec<u64> = (0..200).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (table, keys) = (&table, &keys);
            scope.spawn(move || {
                for step in 0..100 {
                    if (thread + step) % 2 == 0 {
                        table.apply_gradients(keys, &[-1.0; 400]).unwrap();
                    } else {
                        let mut rows = [0.0; 400];
                        table.get(keys, &mut rows).unwrap().apply(&[-1.0; 400]).unwrap();
                        assert!(rows.chunks(2).all(|row| row[0] == row[1]), "a torn row");
                    }
                }
            });
        }
    });
    assert_eq!(rows_of(&table, &keys), [400.0; 400]);
    assert_eq!(table.outstanding(17).unwrap(), Some(0));
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_one_that_does() {
    let dir = tempfile::tempdir().unwrap();
    let open = |memory_budget_bytes| {
        let options = BankOptions { memory_budget_bytes, ..small_options() };
        embank::Bank::open(dir.path().join("bank"), options)
    };
    match open(4096).unwrap_err() {
        Error::Store(StoreError::BudgetTooSmall { budget_bytes, needed_bytes, .. }) => {
            assert_eq!(budget_bytes, 4096);
            assert!(open(needed_bytes).is_ok());
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_queue_given_by_hand_comes_out_of_the_budget() {
    let options = BankOptions { lookahead_queue_keys: Some(1000), ..small_options() };
    let test = new_bank_with(options);
    let stats = test.bank.stats();
    assert_eq!(stats.lookahead.capacity, 1000);
    assert!(stats.lookahead.memory_bytes > 1000 * 8);
    assert_eq!(stats.memory_budget_bytes, crate::common::SMALL_BUDGET_BYTES);
}
