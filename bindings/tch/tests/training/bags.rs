//! `EmbeddingBag` beside the operator `embedding_bag` of `torch`.

use embank::Pooling;
use embank_tch::{EmbeddingBag, SparseOptimizer};
use tch::{Kind, Tensor, no_grad};

use crate::{DIM, assert_near, bank, keys, loss, rows, step, table, twin, values};

/// `torch`'s numbers of the modes.
fn mode(pooling: Pooling) -> i64 {
    match pooling {
        Pooling::Sum => 0,
        Pooling::Mean => 1,
    }
}

/// The result of `torch`.
fn pooled(
    weight: &Tensor,
    keys: &Tensor,
    offsets: &Tensor,
    pooling: Pooling,
    weights: Option<&Tensor>,
) -> Tensor {
    let (output, ..) =
        Tensor::embedding_bag(weight, keys, offsets, false, mode(pooling), false, weights, false);
    output
}

#[test]
fn bags_learn_as_those_of_torch() {
    for (pooling, weighted) in [(Pooling::Sum, false), (Pooling::Mean, false), (Pooling::Sum, true)]
    {
        let (bank, _folder) = bank();
        let table = table(&bank, "genre");
        let mut weight = twin(&table);
        let tables = SparseOptimizer::new();
        let module = EmbeddingBag::new(table.clone(), pooling, &tables);
        let offsets = Tensor::from_slice(&[0_i64, 3, 3, 4]); // the second bag is empty
        let factors = Tensor::arange(9, (Kind::Float, tch::Device::Cpu)) / 8.0;
        let factors = weighted.then_some(&factors);
        for number in 0..10 {
            let keys = keys(number, 9);
            let output = module.forward(&keys, Some(&offsets), factors).unwrap();
            let expected = pooled(&weight, &keys, &offsets, pooling, factors);
            assert_near(&values(&output), &values(&expected));
            loss(&output).backward();
            tables.step().unwrap();
            loss(&expected).backward();
            step(&mut weight);
        }
        assert_near(&rows(&table), &values(&weight));
        let peeked = no_grad(|| module.forward(&keys(0, 9), Some(&offsets), factors).unwrap());
        let expected = pooled(&weight, &keys(0, 9), &offsets, pooling, factors);
        assert_near(&values(&peeked), &values(&expected));
        assert!(bank.outstanding_leases().is_empty());
    }
}

#[test]
fn keys_in_two_dimensions_are_bags_of_one_length() {
    let (bank, _folder) = bank();
    let table = table(&bank, "genre");
    let weight = twin(&table);
    let module = EmbeddingBag::new(table, Pooling::Mean, &SparseOptimizer::new());
    let output = module.forward(&keys(1, 8).view([4, 2]), None, None).unwrap();
    assert_eq!(output.size(), [4, DIM as i64]);
    let offsets = Tensor::from_slice(&[0_i64, 2, 4, 6]);
    assert_near(
        &values(&output),
        &values(&pooled(&weight, &keys(1, 8), &offsets, Pooling::Mean, None)),
    );
}

#[test]
fn an_output_can_be_changed_in_place() {
    let (bank, _folder) = bank();
    let tables = SparseOptimizer::new();
    let module = EmbeddingBag::new(table(&bank, "genre"), Pooling::Sum, &tables);
    let mut output = module.forward(&keys(1, 8).view([4, 2]), None, None).unwrap();
    let _ = output.relu_();
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let (bank, _folder) = bank();
    let sum = EmbeddingBag::new(table(&bank, "genre"), Pooling::Sum, &SparseOptimizer::new());
    let mean = EmbeddingBag::new(table(&bank, "genre"), Pooling::Mean, &SparseOptimizer::new());
    let flat = keys(1, 4);
    let starts = Tensor::from_slice(&[0_i64, 2]);
    let refused = |module: &EmbeddingBag,
                   keys: &Tensor,
                   offsets: Option<&Tensor>,
                   weights: Option<&Tensor>| {
        module.forward(keys, offsets, weights).unwrap_err().to_string()
    };
    assert!(refused(&sum, &flat, None, None).contains("[4] without offsets"));
    assert!(refused(&sum, &flat.view([2, 2]), Some(&starts), None).contains("with offsets"));
    let late = Tensor::from_slice(&[1_i64, 2]);
    assert!(refused(&sum, &flat, Some(&late), None).contains("offsets must begin with 0"));
    let ones = Tensor::ones([4], (Kind::Float, tch::Device::Cpu));
    assert!(refused(&mean, &flat, Some(&starts), Some(&ones)).contains("Pooling::Sum"));
    let short = ones.narrow(0, 0, 3);
    assert!(refused(&sum, &flat, Some(&starts), Some(&short)).contains("the shape of keys, [4]"));
    let trained = ones.copy().set_requires_grad(true);
    assert!(refused(&sum, &flat, Some(&starts), Some(&trained)).contains("no gradient"));
    let double = ones.to_kind(Kind::Double);
    assert!(refused(&sum, &flat, Some(&starts), Some(&double)).contains("float32"));
    assert!(bank.outstanding_leases().is_empty());
}
