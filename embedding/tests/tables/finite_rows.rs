//! Tests that rows and optimizer state stay finite. Sums saturate, and an update that would make a
//! row infinite is refused with the row's key.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::new_bank;
use embank::{
    Adagrad, Adam, Dtype, Error, Initializer, Missing, Optimizer, Rounding, RowWiseAdagrad, Sgd,
    Table, TableConfig,
};

fn row(table: &Table, key: u64) -> Vec<f32> {
    let mut row = vec![0.0; table.dim()];
    table.peek(&[key], &mut row, Missing::Error).unwrap();
    row
}

fn optimizers() -> [Optimizer; 6] {
    let momentum = Sgd { momentum: 0.9, ..Sgd::new(0.1) };
    [
        Optimizer::adagrad(0.1),
        Optimizer::row_wise_adagrad(0.1),
        Optimizer::adam(0.1),
        Optimizer::adamw(0.1),
        Optimizer::ftrl(0.1),
        Optimizer::Sgd(momentum),
    ]
}

/// Shows that a row still learns after a gradient whose square no state can hold. With an infinite
/// sum of squares, no later gradient would move the row.
#[test]
fn a_row_learns_on_after_a_gradient_whose_square_no_state_can_hold() {
    for optimizer in optimizers() {
        for (state, large) in [(Dtype::F16, 9_000.0), (Dtype::Bf16, 1e20), (Dtype::F32, 1e20)] {
            let test = new_bank();
            let config = TableConfig::new(3)
                .optimizer(optimizer)
                .state_dtype(state)
                .initializer(Initializer::Zeros);
            let table = test.bank.table("t", config).unwrap();
            let case = format!("{optimizer:?}, {state:?}");
            table.apply_gradients(&[1], &[large; 3]).expect(&case);
            let before = row(&table, 1);
            assert!(before.iter().all(|value| value.is_finite()), "{case}: {before:?}");
            // These gradients have the opposite sign. They are as large as the first, so they
            // matter compared with the state.
            for _ in 0..3 {
                table.apply_gradients(&[1], &[-large; 3]).expect(&case);
            }
            let after = row(&table, 1);
            assert!(after.iter().all(|value| value.is_finite()), "{case}: {after:?}");
            assert_ne!(before, after, "{case}");
            test.bank.checkpoint(b"").unwrap();
            let file = test.dir.path().join("rows.safetensors");
            table
                .export(&file, &embank::ExportOptions { state: true, ..Default::default() })
                .unwrap();
            table.import(&file, &embank::ImportOptions::default()).expect(&case);
        }
    }
}

/// Shows that a long sum in f16 saturates and is counted. The sum of squares of 3.0 exceeds the
/// largest f16 after about 7,300 steps.
#[test]
fn a_long_sum_in_16_bits_saturates_and_is_counted() {
    let test = new_bank();
    let config = TableConfig::new(1)
        .optimizer(Optimizer::adagrad(0.1))
        .initializer(Initializer::Zeros)
        .state_dtype(Dtype::F16);
    let table = test.bank.table("t", config).unwrap();
    let mut steps = 0;
    while table.stats().saturated_rows == 0 {
        table.apply_gradients(&[0], &[3.0]).unwrap();
        steps += 1;
        assert!(steps < 20_000);
    }
    let before = row(&table, 0)[0];
    table.apply_gradients(&[0], &[3.0]).unwrap();
    let moved = before - row(&table, 0)[0];
    assert!((moved - 0.3 / 65_504.0_f32.sqrt()).abs() < 1e-4, "{moved}");
    assert_eq!(table.stats().saturated_rows, 2);
}

#[test]
fn a_step_that_would_make_a_row_infinite_is_refused_and_the_others_are_taken() {
    for (dtype, rounding) in [
        (Dtype::F16, Rounding::Nearest),
        (Dtype::F16, Rounding::Stochastic),
        (Dtype::Bf16, Rounding::Nearest),
        (Dtype::F32, Rounding::Nearest),
        (Dtype::Int8, Rounding::Stochastic),
    ] {
        let test = new_bank();
        let limit = if dtype == Dtype::F16 { 6e4 } else { 3e38 };
        let config = TableConfig::new(2)
            .dtype(dtype)
            .rounding((dtype != Dtype::F32).then_some(rounding))
            .optimizer(Optimizer::sgd(1.0))
            .initializer(Initializer::Zeros);
        let table = test.bank.table("t", config).unwrap();
        table.put(&[1, 2, 3], &[0.0, limit, 1.0, 1.0, 0.0, -limit]).unwrap();
        let before = [row(&table, 1), row(&table, 3)];
        let gradients = [1.0, -limit, 1.0, 1.0, 1.0, limit];
        let mut got = [0.0; 6];
        let lease = table.get(&[1, 2, 3], &mut got).unwrap();
        match lease.apply(&gradients) {
            Err(error @ Error::RowOverflow { key: 1, column: 1, rows: 2, .. }) => {
                let text = error.to_string();
                assert!(text.contains(dtype.name()) && text.contains("1 other row"), "{text}");
            }
            other => panic!("{dtype:?}: {other:?}"),
        }
        assert_eq!([row(&table, 1), row(&table, 3)], before, "{dtype:?}");
        assert_eq!(row(&table, 2), [0.0, 0.0], "{dtype:?}");
        assert_eq!(table.outstanding(1).unwrap(), Some(0));
        // A refused gradient leaves no trace: an ordinary gradient is applied again.
        table.apply_gradients(&[1], &[1.0, 0.0]).unwrap();
    }
}

/// Shows that a row never becomes infinite, even with settings that turn a small gradient into a
/// large step.
#[test]
fn a_learning_rate_that_makes_rows_infinite_is_refused() {
    let decay = |weight_decay| Optimizer::Sgd(Sgd { weight_decay, ..Sgd::new(1e10) });
    let adagrad = Optimizer::Adagrad(Adagrad { eps: 0.0, ..Adagrad::new(1e38) });
    let adam = Optimizer::Adam(Adam { weight_decay: 1e20, ..Adam::new(1e38) });
    let row_wise = Optimizer::RowWiseAdagrad(RowWiseAdagrad::new(3e38));
    for optimizer in [Optimizer::sgd(1e38), decay(1e35), adagrad, adam, row_wise] {
        let test = new_bank();
        let config =
            TableConfig::new(1).optimizer(optimizer).initializer(Initializer::Constant(1e3));
        let table = test.bank.table("t", config).unwrap();
        for _ in 0..10 {
            match table.apply_gradients(&[1], &[-100.0]) {
                Ok(()) | Err(Error::RowOverflow { .. }) => {}
                other => panic!("{optimizer:?}: {other:?}"),
            }
            let found = row(&table, 1);
            assert!(found[0].is_finite(), "{optimizer:?}: {found:?}");
        }
    }
}

#[test]
fn a_put_refuses_what_an_import_refuses() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
        let test = new_bank();
        let config = TableConfig::new(2).dtype(dtype).optimizer(Optimizer::adagrad(0.1));
        let table = test.bank.table("t", config).unwrap();
        table.put(&[1, 2], &[1.0, 2.0, 0.5, 1.0]).unwrap();
        let before = [row(&table, 1), row(&table, 2)];
        let mut bad = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        match dtype {
            Dtype::F16 => bad.extend([65_520.0, -1e30]),
            Dtype::Bf16 => bad.push(f32::MAX),
            _ => {}
        }
        for value in bad {
            let rows = [0.0, 0.0, 0.0, value];
            let refused = |result: embank::Result<()>, key: u64| match result {
                Err(Error::NonFiniteRow { key: found, column: 1, .. }) => assert_eq!(found, key),
                other => panic!("{dtype:?}, {value}: {other:?}"),
            };
            refused(table.put(&[1, 2], &rows), 2);
            let lease = table.get(&[1, 2], &mut [0.0; 4]).unwrap();
            refused(lease.put(&rows), 2);
            let request = table.request(&[2, 1]).unwrap().distinct();
            refused(table.get_rows(request, &mut [0.0; 4]).unwrap().put(&rows), 1);
            assert_eq!([row(&table, 1), row(&table, 2)], before);
            assert_eq!(table.outstanding(1).unwrap(), Some(0));
        }
        // The largest value that each dtype stores as a finite one.
        let largest = match dtype {
            Dtype::F16 => 65_519.0,
            Dtype::Bf16 => f32::from_bits(0x7F7F_7FFF),
            _ => f32::MAX,
        };
        table.put(&[1], &[largest, -largest]).unwrap();
        assert!(row(&table, 1).iter().all(|value| value.is_finite()));
    }
}

#[test]
fn new_rows_are_finite() {
    let test = new_bank();
    let config = |initializer| TableConfig::new(64).dtype(Dtype::F16).initializer(initializer);
    for initializer in [
        Initializer::Constant(1e5),
        Initializer::Uniform { low: -1.0, high: 7e4 },
        Initializer::Normal { mean: -1e5, std: 1.0 },
    ] {
        let refused = test.bank.table("t", config(initializer));
        assert!(matches!(refused, Err(Error::InvalidConfig { .. })), "{refused:?}");
    }
    let wide = config(Initializer::Normal { mean: 0.0, std: 6e4 });
    let table = test.bank.table("wide", wide).unwrap();
    let mut got = [0.0; 64];
    table.get(&[1], &mut got).unwrap().release().unwrap();
    assert!(got.iter().all(|value| value.is_finite()) && got.contains(&65_504.0), "{got:?}");
    let accumulator = Adagrad { initial_accumulator: 1e6, ..Adagrad::new(0.1) };
    let state = TableConfig::new(1).optimizer(Optimizer::Adagrad(accumulator));
    let refused = test.bank.table("state", state.state_dtype(Dtype::F16));
    assert!(matches!(refused, Err(Error::InvalidConfig { .. })), "{refused:?}");
}
