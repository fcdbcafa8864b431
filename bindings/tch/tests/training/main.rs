//! Models of `tch` on tables of a bank, beside the same models with the embeddings of `torch`.

#![expect(clippy::unwrap_used, reason = "a test")]

mod bags;
mod checkpoint;
mod embedding;
mod steps;

use embank::{Bank, BankOptions, Initializer, Optimizer, Table, TableConfig};
use tch::{Kind, Tensor, no_grad};
use tempfile::TempDir;

/// Learning rate of tables and twins. A product with this power of two is exact, so the order of
/// roundings in an SGD step does not change its result.
const LR: f64 = 0.25;
const DIM: usize = 3;
/// Number of keys that the tests use, from 0 on.
const KEYS: i64 = 12;

fn bank() -> (Bank, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Bank::open(folder.path().join("bank"), BankOptions::default()).unwrap(), folder)
}

/// Makes a table with SGD.
fn table(bank: &Bank, name: &str) -> Table {
    let initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
    let config = TableConfig::new(DIM as u32).optimizer(Optimizer::sgd(LR));
    bank.table(name, config.initializer(initializer)).unwrap()
}

/// Returns a weight of `torch` with the table's initial values, which is trained.
fn twin(table: &Table) -> Tensor {
    let keys: Vec<u64> = (0..KEYS as u64).collect();
    let mut rows = vec![0.0; keys.len() * DIM];
    table.initial(&keys, &mut rows).unwrap();
    Tensor::from_slice(&rows).view([KEYS, DIM as i64]).set_requires_grad(true)
}

/// Takes a step of SGD, as `torch.optim` does.
fn step(weight: &mut Tensor) {
    no_grad(|| {
        let _ = weight.g_sub_(&(weight.grad() * LR));
        weight.zero_grad();
    });
}

/// Returns the rows of all keys.
fn rows(table: &Table) -> Vec<f32> {
    let keys: Vec<u64> = (0..KEYS as u64).collect();
    let mut rows = vec![0.0; keys.len() * DIM];
    table.peek(&keys, &mut rows, embank::Missing::Initial).unwrap();
    rows
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().reshape(-1)).unwrap()
}

/// Fails if two values differ by more than 1e-6.
fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= 1e-6, "place {place}: {found}, not {expected}");
    }
}

/// Returns `count` keys that depend on `step`. Some of them repeat.
fn keys(step: i64, count: i64) -> Tensor {
    let keys: Vec<i64> = (0..count).map(|place| (step * 5 + place * place) % KEYS).collect();
    Tensor::from_slice(&keys)
}

/// A loss whose gradient differs from place to place.
fn loss(output: &Tensor) -> Tensor {
    let slopes = Tensor::arange(output.numel() as i64, (Kind::Float, output.device()));
    let slopes = (slopes + 1.0).view(&output.size()[..]) / output.numel() as f64;
    (output.square() * slopes).sum(Kind::Float)
}
