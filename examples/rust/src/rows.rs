//! Rows of embeddings, in a bank or in memory.
//!
//! A training step is
//!
//! 1. `let rows = embedding.forward(&keys)?`: one row per key, in the autograd graph;
//! 2. forward and `loss.backward()`;
//! 3. `tables.step()?`: the optimizer of each table takes its step, in the store.
//!
//! In `tch::no_grad`, `forward` creates and changes no row.
//!
//! With a bank, `embank-tch` does this. The twin in memory is a plain tensor with its own Adagrad
//! and the table's initial values. So a run on it gives the results of a run on a bank, except for
//! the last digits.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use embank::{Adagrad, Bank, Optimizer, Table, TableConfig, UniqueKeys};
use embank_tch::SparseOptimizer;
use tch::{Kind, Tensor, no_grad};

/// The tables of a model, and their optimizer step.
pub struct Tables {
    bank: Bank,
    in_memory: bool,
    optimizer: SparseOptimizer,
    twins: Vec<Rc<Twin>>,
    /// The time in which training waited for rows.
    waited: Rc<Cell<Duration>>,
}

/// Rows by key.
pub struct Embedding {
    rows: Rows,
    waited: Rc<Cell<Duration>>,
}

enum Rows {
    /// In a bank. Rows beyond the memory budget are on disk.
    Bank(embank_tch::Embedding),
    Memory(Rc<Twin>),
}

impl Tables {
    /// The tables are in `bank`, or have twins in memory.
    #[must_use]
    pub fn new(bank: Bank, in_memory: bool) -> Self {
        let (optimizer, waited) = (SparseOptimizer::new(), Rc::default());
        Self { bank, in_memory, optimizer, twins: Vec::new(), waited }
    }

    /// Opens the table in the bank, or makes its twin in memory. Only the twin uses `keys`, which
    /// are all keys that the program gets.
    pub fn open(
        &mut self,
        name: &str,
        config: TableConfig,
        keys: impl Iterator<Item = u64>,
    ) -> Result<Embedding> {
        let table = self.bank.table(name, config)?;
        if !self.in_memory {
            let module = embank_tch::Embedding::new(table, &self.optimizer);
            return Ok(Embedding { rows: Rows::Bank(module), waited: Rc::clone(&self.waited) });
        }
        let twin = Rc::new(Twin::of(&table, keys)?);
        self.twins.push(Rc::clone(&twin));
        Ok(Embedding { rows: Rows::Memory(twin), waited: Rc::clone(&self.waited) })
    }

    /// Returns the share of `seconds` of training in which it waited for rows, in percent: the time
    /// of all forward passes with a gradient. Such a pass finds the rows, reads the disk, waits at
    /// a staleness bound and copies. Updates do not count.
    #[must_use]
    pub fn waited_percent(&self, seconds: f64) -> f64 {
        100.0 * self.waited.get().as_secs_f64() / seconds
    }

    /// Takes one optimizer step of every row with a gradient.
    pub fn step(&self) -> Result<()> {
        self.twins.iter().for_each(|twin| twin.step());
        Ok(self.optimizer.step()?)
    }
}

impl Embedding {
    /// Returns the rows of `keys`, (keys, dim), which may repeat.
    pub fn forward(&self, keys: &Tensor) -> Result<Tensor> {
        let began = Instant::now();
        let rows = match &self.rows {
            Rows::Bank(module) => module.forward(keys)?,
            Rows::Memory(twin) => twin.forward(keys)?,
        };
        if rows.requires_grad() {
            self.waited.set(self.waited.get() + began.elapsed());
        }
        Ok(rows)
    }

    /// Announces that training will use these rows soon. Never waits.
    pub fn lookahead(&self, keys: &Tensor) -> Result<()> {
        if let Rows::Bank(module) = &self.rows {
            module.lookahead(keys)?;
        }
        Ok(())
    }
}

/// Makes a tensor of keys. `tch` has no unsigned 64-bit tensors; a key keeps its bits.
pub fn tensor_of(keys: &[u64]) -> Tensor {
    Tensor::from_slice(&keys.iter().map(|&key| key as i64).collect::<Vec<_>>())
}

/// A table's twin in memory, with the Adagrad of `torch.optim`.
pub struct Twin {
    weight: Tensor,
    /// The sum of each value's squared gradients.
    sums: Tensor,
    lr: f64,
    eps: f64,
    /// Each key's row number.
    positions: HashMap<u64, i64>,
    /// The forward passes since the last step: rows with a gradient, and their numbers.
    passes: RefCell<Vec<(Tensor, Tensor)>>,
}

impl Twin {
    /// Makes the twin from the table's initial values, which depend only on its seed, its name and
    /// the keys.
    fn of(table: &Table, keys: impl Iterator<Item = u64>) -> Result<Self> {
        let keys: Vec<u64> = keys.collect();
        let unique = UniqueKeys::new(&keys)?;
        let mut rows = vec![0.0; unique.len() * table.dim()];
        table.initial(unique.keys(), &mut rows)?;
        let weight = Tensor::from_slice(&rows).view([-1, table.dim() as i64]);
        let (lr, eps) = match table.config().optimizer {
            Optimizer::Adagrad(Adagrad { lr, eps, .. }) => (lr, eps),
            other => anyhow::bail!("the twin in memory has no {other:?}"),
        };
        let positions = unique.keys().iter().copied().zip(0..).collect();
        let passes = RefCell::default();
        Ok(Self { sums: weight.zeros_like(), weight, lr, eps, positions, passes })
    }

    fn forward(&self, keys: &Tensor) -> Result<Tensor> {
        let keys: Vec<u64> =
            Vec::<i64>::try_from(keys)?.into_iter().map(|key| key as u64).collect();
        let unique = UniqueKeys::new(&keys)?;
        let found = unique.keys().iter().map(|key| self.positions.get(key).copied());
        let found: Option<Vec<i64>> = found.collect();
        let positions = Tensor::from_slice(&found.context("a key that the twin was not told of")?);
        let leaf = self.weight.index_select(0, &positions).set_requires_grad(true);
        let places: Vec<i64> = unique.inverse().iter().map(|&place| place.into()).collect();
        let rows = leaf.index_select(0, &Tensor::from_slice(&places));
        if rows.requires_grad() {
            self.passes.borrow_mut().push((leaf, positions));
        }
        Ok(rows)
    }

    fn step(&self) {
        for (leaf, positions) in self.passes.take() {
            let gradient = leaf.grad();
            no_grad(|| {
                let sums = self.sums.index_select(0, &positions) + gradient.square();
                let step = gradient / (sums.sqrt() + self.eps) * -self.lr;
                let _ = self.sums.shallow_clone().index_copy_(0, &positions, &sums);
                let step = step.to_kind(Kind::Float);
                let _ = self.weight.shallow_clone().index_add_(0, &positions, &step);
            });
        }
    }
}
