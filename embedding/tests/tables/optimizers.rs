//! Tests optimizers in tables: state stored with rows, settings that change while a table is open,
//! and clipping.

use crate::common::{new_bank, rows_of, small_options};
use embank::{
    Adagrad, Adam, AdamW, Bank, Error, Ftrl, Initializer, Optimizer, RowWiseAdagrad, Sgd,
    TableConfig,
};

const DIM: u32 = 11;

fn optimizers() -> [Optimizer; 6] {
    [
        Optimizer::Sgd(Sgd { momentum: 0.9, dampening: 0.5, ..Sgd::new(0.1) }),
        Optimizer::Adagrad(Adagrad { lr_decay: 0.5, ..Adagrad::new(0.1) }),
        Optimizer::RowWiseAdagrad(RowWiseAdagrad {
            initial_accumulator: 0.5,
            ..RowWiseAdagrad::new(0.1)
        }),
        Optimizer::Adam(Adam::new(0.1)),
        Optimizer::AdamW(AdamW::new(0.1)),
        Optimizer::Ftrl(Ftrl::new(0.1)),
    ]
}

fn config(optimizer: Optimizer) -> TableConfig {
    TableConfig::new(DIM).optimizer(optimizer).initializer(Initializer::Constant(1.0))
}

fn gradient(step: usize) -> Vec<f32> {
    (0..DIM as usize).map(|column| ((step * 7 + column * 3) % 11) as f32 / 4.0 - 1.0).collect()
}

/// Shows that a row's result depends only on its own steps, not on steps of other rows in between.
#[test]
fn each_row_counts_its_own_steps() {
    for optimizer in optimizers() {
        let test = new_bank();
        let table = test.bank.table("t", config(optimizer)).unwrap();
        for step in 0..5 {
            table.apply_gradients(&[1], &gradient(step)).unwrap();
            table.apply_gradients(&[2], &gradient(10 + step)).unwrap();
        }
        for step in 0..5 {
            table.apply_gradients(&[3], &gradient(step)).unwrap();
        }
        assert_eq!(rows_of(&table, &[1]), rows_of(&table, &[3]), "{optimizer:?}");
        assert_ne!(rows_of(&table, &[1]), rows_of(&table, &[2]), "{optimizer:?}");
    }
}

#[test]
fn state_and_steps_survive_a_reopen() {
    for optimizer in optimizers() {
        let dir = tempfile::tempdir().unwrap();
        let bank = Bank::open(dir.path(), small_options()).unwrap();
        let table = bank.table("t", config(optimizer)).unwrap();
        for step in 0..3 {
            table.apply_gradients(&[1], &gradient(step)).unwrap();
        }
        bank.checkpoint(b"").unwrap();
        table.apply_gradients(&[1], &gradient(3)).unwrap();
        let expected = rows_of(&table, &[1]);
        drop((table, bank));
        let bank = Bank::open(dir.path(), small_options()).unwrap();
        let table = bank.open_table("t").unwrap();
        assert_eq!(table.config(), config(optimizer));
        table.apply_gradients(&[1], &gradient(3)).unwrap();
        assert_eq!(rows_of(&table, &[1]), expected, "{optimizer:?}");
    }
}

#[test]
fn numbers_can_change_but_not_what_lies_beside_a_row() {
    let test = new_bank();
    let table = test.bank.table("t", config(Optimizer::adam(0.1))).unwrap();
    let other = Optimizer::Adam(Adam { betas: (0.5, 0.6), weight_decay: 1.0, ..Adam::new(0.2) });
    table.set_optimizer(other).unwrap();
    assert_eq!(test.bank.open_table("t").unwrap().config().optimizer, other);
    table.set_learning_rate(0.3).unwrap();
    assert_eq!(table.config().optimizer, other.with_learning_rate(0.3));
    for refused in [Optimizer::sgd(0.1), Optimizer::adamw(0.1), Optimizer::None] {
        let error = table.set_optimizer(refused).unwrap_err();
        assert!(matches!(error, Error::ConfigMismatch { .. }), "{error}");
    }
    let bad = Optimizer::Adam(Adam { betas: (2.0, 0.6), ..Adam::new(0.2) });
    assert!(matches!(table.set_optimizer(bad), Err(Error::InvalidConfig { .. })));
    assert_eq!(table.config().optimizer, other.with_learning_rate(0.3));

    let plain = test.bank.table("sgd", config(Optimizer::sgd(0.1))).unwrap();
    let with_momentum = Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::new(0.1) });
    let error = plain.set_optimizer(with_momentum).unwrap_err().to_string();
    assert!(error.contains("momentum"), "{error}");
}

#[test]
fn gradients_are_clipped_after_those_of_equal_keys_are_summed() {
    let test = new_bank();
    let config = TableConfig::new(2)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Zeros)
        .clip_row_norm(Some(5.0));
    let table = test.bank.table("t", config).unwrap();
    table.apply_gradients(&[1, 2, 1], &[3.0, 4.0, 3.0, 4.0, 3.0, 4.0]).unwrap();
    assert_eq!(rows_of(&table, &[1, 2]), [-3.0, -4.0, -3.0, -4.0]);

    table.set_clip_row_norm(Some(2.5)).unwrap();
    let lease = table.get(&[2], &mut [0.0; 2]).unwrap();
    lease.apply(&[3.0, 4.0]).unwrap();
    assert_eq!(rows_of(&table, &[2]), [-4.5, -6.0]);

    table.set_clip_row_norm(None).unwrap();
    table.apply_gradients(&[2], &[30.0, 40.0]).unwrap();
    assert_eq!(rows_of(&table, &[2]), [-34.5, -46.0]);
    assert!(matches!(table.set_clip_row_norm(Some(-1.0)), Err(Error::InvalidConfig { .. })));
    assert_eq!(table.config().clip_row_norm, None);
}
