//! `SparseOptimizer`: which gradients a step applies, and which leases it ends.

use embank::{Optimizer, Pooling, TableConfig};
use embank_tch::{Embedding, EmbeddingBag, Error, SparseOptimizer};
use tch::{Kind, Tensor};

use crate::{DIM, assert_near, bank, keys, loss, rows, step, table, twin, values};

#[test]
fn several_passes_of_one_step_sum_their_gradients() {
    let (bank, _folder) = bank();
    let table = table(&bank, "word");
    let mut weight = twin(&table);
    let tables = SparseOptimizer::new();
    let first = Embedding::new(table.clone(), &tables);
    let second = EmbeddingBag::new(table.clone(), Pooling::Sum, &tables);
    for number in 0..10 {
        let (one, two) = (keys(number, 7), keys(number + 1, 6).view([3, 2]));
        loss(&first.forward(&one).unwrap()).backward();
        // Equal keys in two passes, and two backward passes before one step.
        (loss(&first.forward(&two).unwrap()) + loss(&second.forward(&two, None, None).unwrap()))
            .backward();
        assert_eq!(bank.outstanding_leases().len(), 3);
        tables.step().unwrap();
        assert!(bank.outstanding_leases().is_empty());
        let of = |keys: &Tensor| Tensor::embedding(&weight, keys, -1, false, false);
        let sums = of(&two).sum_dim_intlist(1, false, Kind::Float);
        (loss(&of(&one)) + loss(&of(&two)) + loss(&sums)).backward();
        step(&mut weight);
    }
    assert_near(&rows(&table), &values(&weight));
}

#[test]
fn one_step_takes_the_tables_of_two_banks() {
    let ((one, _first), (other, _second)) = (bank(), bank());
    let found = [table(&one, "word"), table(&other, "word")]; // with equal numbers
    let tables = SparseOptimizer::new();
    for table in &found {
        let module = Embedding::new(table.clone(), &tables);
        loss(&module.forward(&keys(1, 5)).unwrap()).backward();
    }
    tables.step().unwrap();
    assert_eq!(rows(&found[0]), rows(&found[1]));
    assert_ne!(rows(&found[0]), values(&twin(&found[0])));
}

#[test]
fn a_pass_without_a_gradient_changes_no_row() {
    let (bank, _folder) = bank();
    let table = table(&bank, "word");
    let tables = SparseOptimizer::new();
    let module = Embedding::new(table.clone(), &tables);
    let initial = rows(&table);
    let _unused = module.forward(&keys(1, 5)).unwrap();
    tables.step().unwrap();
    assert_eq!(rows(&table), initial);
    assert!(bank.outstanding_leases().is_empty());
}

#[test]
fn zero_grad_leaves_a_batch_out_and_keeps_a_pass_for_later() {
    let (bank, _folder) = bank();
    let table = table(&bank, "word");
    let tables = SparseOptimizer::new();
    let module = Embedding::new(table.clone(), &tables);
    let initial = rows(&table);
    loss(&module.forward(&keys(1, 5)).unwrap()).backward();
    tables.zero_grad();
    assert!(bank.outstanding_leases().is_empty());
    tables.step().unwrap();
    assert_eq!(rows(&table), initial);
    // The order of `nn::Optimizer::backward_step`: forward, zero_grad, backward, step.
    let output = module.forward(&keys(1, 5)).unwrap();
    tables.zero_grad();
    loss(&output).backward();
    tables.step().unwrap();
    assert_ne!(rows(&table), initial);
}

#[test]
fn a_gradient_that_is_not_finite_changes_no_table() {
    let (bank, _folder) = bank();
    let found = [table(&bank, "user"), table(&bank, "item")];
    let tables = SparseOptimizer::new();
    let [users, items] = [0, 1].map(|place| Embedding::new(found[place].clone(), &tables));
    let initial = rows(&found[0]);
    loss(&users.forward(&keys(1, 5)).unwrap()).backward();
    (loss(&items.forward(&keys(1, 5)).unwrap()) * f64::NAN).backward();
    let error = tables.step().unwrap_err();
    assert!(matches!(error, Error::Bank(embank::Error::NonFiniteGradient { .. })), "{error}");
    assert_eq!(rows(&found[0]), initial);
    assert!(bank.outstanding_leases().is_empty());
    loss(&users.forward(&keys(1, 5)).unwrap()).backward();
    tables.step().unwrap(); // the failed step left nothing behind
}

#[test]
fn a_table_without_an_optimizer_is_named() {
    let (bank, _folder) = bank();
    let config = TableConfig::new(DIM as u32).optimizer(Optimizer::None);
    let tables = SparseOptimizer::new();
    let module = Embedding::new(bank.table("feature", config).unwrap(), &tables);
    loss(&module.forward(&keys(1, 5)).unwrap()).backward();
    let error = tables.step().unwrap_err();
    assert!(matches!(error, Error::Bank(embank::Error::NoOptimizer { .. })), "{error}");
}
