//! Tests one step over several tables. A refused step changes no table, or names the tables that it
//! changed.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::time::Duration;

use crate::common::{new_bank, new_bank_with, small_options};
use embank::{
    Bank, BankOptions, Error, Initializer, Lease, Optimizer, Table, TableConfig, TableGradients,
};

fn config() -> TableConfig {
    TableConfig::new(1).optimizer(Optimizer::sgd(1.0)).initializer(Initializer::Zeros)
}

fn tables(bank: &Bank) -> [Table; 3] {
    ["a", "b", "c"].map(|name| bank.table(name, config()).unwrap())
}

fn get(table: &Table, keys: &[u64]) -> Lease {
    table.get(keys, &mut vec![0.0; keys.len()]).unwrap()
}

fn row(table: &Table, key: u64) -> f32 {
    let mut row = [0.0];
    table.peek(&[key], &mut row, embank::Missing::Initial).unwrap();
    row[0]
}

fn part<'g>(leases: Vec<Lease>, keys: &'g [u64], gradients: &'g [f32]) -> TableGradients<'g> {
    TableGradients { leases, keys: Some(keys), gradients }
}

fn nothing_moved(tables: &[Table]) {
    for table in tables {
        assert_eq!((row(table, 1), row(table, 2)), (0.0, 0.0), "{}", table.name());
        assert_eq!(table.outstanding(1).unwrap(), Some(0), "{}", table.name());
    }
}

#[test]
fn a_gradient_that_is_not_finite_stops_the_step_of_every_table() {
    let test = new_bank();
    let tables = tables(&test.bank);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in 0..3 {
            let gradients: Vec<[f32; 2]> =
                (0..3).map(|i| if i == at { [1.0, bad] } else { [1.0, 1.0] }).collect();
            let parts = tables.iter().zip(&gradients);
            let parts =
                parts.map(|(of, gradients)| part(vec![get(of, &[1, 2])], &[1, 2], gradients));
            match Lease::apply_many(parts.collect()) {
                Err(Error::NonFiniteGradient { table, key: 2, .. }) => {
                    assert_eq!(table, tables[at].name());
                }
                other => panic!("{other:?}"),
            }
            nothing_moved(&tables);
        }
    }
}

/// Shows that an infinite sum stops the step, although each gradient of the key is finite.
#[test]
fn a_sum_over_two_leases_that_overflows_stops_the_step() {
    let test = new_bank();
    let tables = tables(&test.bank);
    let two = vec![get(&tables[1], &[1]), get(&tables[1], &[1])];
    let step = Lease::apply_many(vec![
        part(vec![get(&tables[0], &[1])], &[1], &[1.0]),
        part(two, &[1, 1], &[3e38, 3e38]),
    ]);
    assert!(matches!(step, Err(Error::NonFiniteGradient { key: 1, .. })), "{step:?}");
    nothing_moved(&tables[..2]);
}

#[test]
fn a_wrong_shape_or_a_table_without_an_optimizer_stops_the_step() {
    let test = new_bank();
    let tables = tables(&test.bank);
    let plain = test.bank.table("plain", TableConfig::new(1)).unwrap();
    let step = Lease::apply_many(vec![
        part(vec![get(&tables[0], &[1])], &[1], &[1.0]),
        part(vec![get(&plain, &[1])], &[1], &[1.0]),
    ]);
    assert!(matches!(step, Err(Error::NoOptimizer { .. })), "{step:?}");
    let step = Lease::apply_many(vec![
        part(vec![get(&tables[0], &[1])], &[1], &[1.0]),
        part(vec![get(&tables[1], &[1])], &[1], &[1.0, 2.0]),
    ]);
    assert!(matches!(step, Err(Error::ShapeMismatch { .. })), "{step:?}");
    assert_eq!(plain.outstanding(1).unwrap(), Some(0));
    nothing_moved(&tables[..2]);
}

#[test]
fn a_lease_that_has_expired_stops_the_step() {
    let timeout = Duration::from_millis(1);
    let options = BankOptions { lease_timeout: Some(timeout), ..small_options() };
    let test = new_bank_with(options);
    let tables = tables(&test.bank);
    tables[1].set_staleness_bound(Some(0));
    let old = get(&tables[1], &[1]);
    // Another thread's Get of the row expires the lease once the lease is older than its timeout.
    std::thread::scope(|scope| {
        scope.spawn(|| get(&tables[1], &[1]).release().unwrap()).join().unwrap();
    });
    assert!(old.is_expired());
    let fresh = get(&tables[0], &[1]);
    let step =
        Lease::apply_many(vec![part(vec![fresh], &[1], &[1.0]), part(vec![old], &[1], &[1.0])]);
    assert!(matches!(step, Err(Error::LeaseExpired { .. })), "{step:?}");
    nothing_moved(&tables[..2]);
}

#[test]
fn a_table_that_was_dropped_ends_the_step_with_the_names_of_those_that_moved() {
    let test = new_bank();
    let tables = tables(&test.bank);
    let leases: Vec<_> = tables.iter().map(|table| vec![get(table, &[1])]).collect();
    test.bank.drop_table("b").unwrap();
    let parts = leases.into_iter().map(|leases| part(leases, &[1], &[1.0]));
    match Lease::apply_many(parts.collect()) {
        Err(error @ Error::StepIncomplete { .. }) => {
            let text = error.to_string();
            assert!(text.contains("tables \"a\" is taken") && text.contains("\"b\""), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((row(&tables[0], 1), row(&tables[2], 1)), (-1.0, 0.0));
    assert_eq!(tables[2].outstanding(1).unwrap(), Some(0));
}

/// The error of a step that ended early said nothing of a row of an earlier table that would have
/// overflowed and was left out.
#[test]
fn a_step_that_ends_early_tells_of_the_rows_that_overflowed_before() {
    for overflows in [vec![], vec!["a"], vec!["a", "b"], vec!["b"]] {
        let test = new_bank();
        let tables = ["a", "b", "c"].map(|name| {
            let lr = if overflows.contains(&name) { f64::from(f32::MAX) } else { 1.0 };
            test.bank.table(name, config().optimizer(Optimizer::sgd(lr))).unwrap()
        });
        let leases: Vec<_> = tables.iter().map(|table| vec![get(table, &[1, 2])]).collect();
        test.bank.drop_table("c").unwrap();
        let parts = leases.into_iter().map(|leases| part(leases, &[1, 2], &[0.25, 4.0]));
        let step = Lease::apply_many(parts.collect());
        let Err(Error::StepIncomplete { moved, overflow, .. }) = &step else { panic!("{step:?}") };
        assert_eq!(moved[..], ["a", "b"]);
        let text = step.as_ref().unwrap_err().to_string();
        match (overflow.as_deref(), overflows.first()) {
            (None, None) => assert!(!text.contains("besides"), "{text}"),
            (Some(Error::RowOverflow { table, key: 2, .. }), Some(first)) => {
                assert_eq!(table, first);
                assert!(text.contains(&format!("besides, table {first:?}, key 2")), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(row(&tables[0], 2), if overflows.contains(&"a") { 0.0 } else { -4.0 });
    }
}

#[test]
fn a_good_step_moves_every_table_once() {
    let test = new_bank();
    let tables = tables(&test.bank);
    let two = vec![get(&tables[1], &[1, 2]), get(&tables[1], &[2])];
    Lease::apply_many(vec![
        part(vec![get(&tables[0], &[2, 1])], &[2, 1], &[1.0, 2.0]),
        part(two, &[1, 2, 2], &[1.0, 2.0, 3.0]),
    ])
    .unwrap();
    assert_eq!((row(&tables[0], 1), row(&tables[0], 2)), (-2.0, -1.0));
    assert_eq!((row(&tables[1], 1), row(&tables[1], 2)), (-1.0, -5.0));
    assert_eq!(tables[1].outstanding(2).unwrap(), Some(0));
}
