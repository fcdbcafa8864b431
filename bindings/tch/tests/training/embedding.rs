//! `Embedding` beside `tch::nn::embedding`.

use embank_tch::{Embedding, Error, SparseOptimizer};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor, no_grad};

use crate::{DIM, KEYS, LR, bank, keys, loss, rows, table, twin, values};

#[test]
fn rows_and_losses_are_those_of_nn_embedding() {
    let (bank, _folder) = bank();
    let table = table(&bank, "word");
    let variables = nn::VarStore::new(Device::Cpu);
    let reference = nn::embedding(variables.root(), KEYS, DIM as i64, Default::default());
    no_grad(|| reference.ws.shallow_clone().copy_(&twin(&table)));
    let mut sgd = nn::Sgd::default().build(&variables, LR).unwrap();
    let tables = SparseOptimizer::new();
    let module = Embedding::new(table.clone(), &tables);
    for step in 0..20 {
        let keys = keys(step, 8).view([2, 4]);
        let output = module.forward(&keys).unwrap();
        assert_eq!(output.size(), [2, 4, DIM as i64]);
        let (found, expected) = (loss(&output), loss(&reference.forward(&keys)));
        assert_eq!(values(&found), values(&expected));
        found.backward();
        tables.step().unwrap();
        sgd.backward_step(&expected);
    }
    assert_eq!(rows(&table), values(&reference.ws));
}

#[test]
fn a_pass_without_autograd_takes_no_lease_and_creates_no_row() {
    let (bank, _folder) = bank();
    let table = table(&bank, "word");
    let tables = SparseOptimizer::new();
    let module = Embedding::new(table.clone(), &tables);
    let output = no_grad(|| module.forward(&keys(0, 5)).unwrap());
    assert!(!output.requires_grad());
    assert_eq!(values(&output), values(&twin(&table).index_select(0, &keys(0, 5))));
    assert!(bank.outstanding_leases().is_empty());
    assert_eq!(table.rows().unwrap(), 0);
    tables.step().unwrap();
}

#[test]
fn an_output_can_be_changed_in_place() {
    let (bank, _folder) = bank();
    let module = Embedding::new(table(&bank, "word"), &SparseOptimizer::new());
    // Distinct keys: the output could be the leaf, which autograd protects.
    let mut output = module.forward(&Tensor::from_slice(&[1_i64, 2])).unwrap();
    let _ = output.relu_();
}

#[test]
fn no_keys_have_no_rows() {
    let (bank, _folder) = bank();
    let tables = SparseOptimizer::new();
    let module = Embedding::new(table(&bank, "word"), &tables);
    let output = module.forward(&Tensor::zeros([0, 4], (Kind::Int64, Device::Cpu))).unwrap();
    assert_eq!(output.size(), [0, 4, DIM as i64]);
    output.sum(Kind::Float).backward();
    tables.step().unwrap();
}

#[test]
fn a_negative_number_is_a_key_from_2_to_the_63_on() {
    let (bank, _folder) = bank();
    let table = table(&bank, "word");
    let module = Embedding::new(table.clone(), &SparseOptimizer::new());
    let output = module.forward(&Tensor::from_slice(&[-1_i64])).unwrap();
    let mut row = [0.0; DIM];
    table.initial(&[u64::MAX], &mut row).unwrap();
    assert_eq!(values(&output), row);
}

#[test]
fn keys_of_another_kind_are_refused() {
    let (bank, _folder) = bank();
    let module = Embedding::new(table(&bank, "word"), &SparseOptimizer::new());
    let error = module.forward(&Tensor::from_slice(&[1.0_f32])).unwrap_err();
    assert!(matches!(error, Error::BadTensor { .. }));
    let text = error.to_string();
    assert_eq!(text, "table \"word\": keys must be int64, not Float: use to_kind(Kind::Int64)");
    assert!(module.lookahead(&Tensor::from_slice(&[1_i32])).is_err());
    module.lookahead(&Tensor::from_slice(&[1_i64])).unwrap();
}
