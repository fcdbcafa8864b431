//! Tests which optimizer state an import takes.

use crate::common::{new_bank, rows_of, table};
use crate::imports::safetensors;
use embank::{ExportOptions, ImportOptions, Optimizer, Sgd, TableConfig};

/// Checks negative sums of squares and negative counts.
#[test]
fn a_negative_square_or_count_is_named_with_its_place() {
    let adam = [0.5, -0.5, 0.25, 0.0, 3.0];
    let cases = [
        (Optimizer::adagrad(0.1), &[0.5, 0.25][..], 1, -1.0),
        (Optimizer::row_wise_adagrad(0.1), &[0.5], 0, -1.0e-30),
        (Optimizer::adam(0.1), &adam, 3, -0.5),
        (Optimizer::adam(0.1), &adam, 4, -1.0),
    ];
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for (optimizer, good, column, value) in cases {
        let test = new_bank();
        let table = table(&test.bank, TableConfig::new(2).optimizer(optimizer));
        let mut wrong = good.to_vec();
        wrong[column] = value;
        let path = test.dir.path().join("t.safetensors");
        let write = |second: &[f32]| {
            safetensors(
                &path,
                &[
                    ("keys", "U32", &[2], [40_u32, 50].map(u32::to_le_bytes).concat()),
                    ("rows", "F32", &[2, 2], bytes(&[1.0, 2.0, 3.0, 4.0])),
                    ("state", "F32", &[2, good.len()], bytes(&[good, second].concat())),
                ],
            );
        };
        write(&wrong);
        let error = table.import(&path, &ImportOptions::default()).unwrap_err().to_string();
        let place = format!("row 1 (key 50), column {column} of the state is {value}");
        assert!(error.contains(&place) && error.contains("`non_finite`"), "{error}");
        assert_eq!(table.contains(&[40, 50]).unwrap(), [false, false]);
        let options = ImportOptions { non_finite: true, ..Default::default() };
        assert!(table.import(&path, &options).unwrap().with_state);
        write(good);
        assert!(table.import(&path, &ImportOptions::default()).unwrap().with_state);
        assert_eq!(rows_of(&table, &[40, 50]), [1.0, 2.0, 3.0, 4.0]);
    }
}

/// Checks that a table takes what it has exported, also after steps that made its state large.
#[test]
fn a_large_state_that_steps_have_made_is_imported() {
    let test = new_bank();
    let momentum = Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::new(1e-10) });
    let table = table(&test.bank, TableConfig::new(1).optimizer(momentum));
    for _ in 0..20 {
        table.apply_gradients(&[4], &[2.0_f32.powi(49)]).unwrap();
    }
    test.bank.checkpoint(b"").unwrap();
    let path = test.dir.path().join("t.safetensors");
    table.export(&path, &ExportOptions { state: true, ..Default::default() }).unwrap();
    let into = test.bank.table("into", table.config().clone()).unwrap();
    assert!(into.import(&path, &ImportOptions::default()).unwrap().with_state);
    assert_eq!(rows_of(&into, &[4]), rows_of(&table, &[4]));
}
