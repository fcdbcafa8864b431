//! Rows of embeddings as tensors with a gradient.
//!
//! [`Embedding`] replaces `tch::nn::embedding`. A training step is
//!
//! 1. `let rows = embedding.get(&keys)?`: the rows of the distinct keys become a leaf of the
//!    autograd graph, and `rows.tensor()` has one row per key;
//! 2. forward and `loss.backward()`: the leaf collects the gradient, summed over equal keys;
//! 3. `rows.step()?`: the gradient goes back with the lease, and the optimizer runs in the store.
//!
//! If the rows are dropped without a step, they stay unchanged.
//!
//! The twin in memory ([`Twin`]) is a plain tensor with its own Adagrad and the table's initial
//! values. So a run on it gives the results of a run on a bank, except for the last digits.

use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use embank::{Adagrad, Bank, Lease, Missing, Optimizer, Request, Table, TableConfig, UniqueKeys};
use tch::{Kind, Tensor, no_grad};

/// Rows by key.
pub enum Embedding {
    /// In a bank. Rows beyond the memory budget are on disk.
    Bank(Table),
    /// In memory.
    Memory(Twin),
}

/// Rows that were got for training.
pub struct Rows {
    /// (distinct keys, dim), with a gradient after the backward pass.
    leaf: Tensor,
    /// Place of each key's row in `leaf`. `None` if key `i` has row `i`.
    places: Option<Tensor>,
    origin: Origin,
}

enum Origin {
    Bank(Lease),
    Memory { twin: Twin, positions: Tensor },
}

impl Embedding {
    /// Opens the table in the bank, or makes its twin in memory. Only the twin uses `keys`, which
    /// are all keys that the program gets.
    pub fn open(
        bank: &Bank,
        name: &str,
        config: TableConfig,
        in_memory: bool,
        keys: impl Iterator<Item = u64>,
    ) -> Result<Self> {
        let table = bank.table(name, config)?;
        Ok(if in_memory { Self::Memory(Twin::of(&table, keys)?) } else { Self::Bank(table) })
    }

    /// Gets the rows of `keys`, which may repeat, for training.
    pub fn get(&self, keys: &[u64]) -> Result<Rows> {
        let request = Request::new(keys)?.distinct();
        let unique = request.unique();
        let places = (!unique.all_distinct()).then(|| {
            let places: Vec<i64> = unique.inverse().iter().map(|&place| place.into()).collect();
            Tensor::from_slice(&places)
        });
        let (leaf, origin) = match self {
            Self::Bank(table) => {
                let mut rows = vec![0.0; unique.len() * table.dim()];
                let lease = table.get_rows(request, &mut rows)?;
                (matrix(&rows, table.dim()), Origin::Bank(lease))
            }
            Self::Memory(twin) => {
                let positions = twin.positions(unique.keys())?;
                let leaf = twin.weight.index_select(0, &positions);
                (leaf, Origin::Memory { twin: twin.share(), positions })
            }
        };
        Ok(Rows { leaf: leaf.set_requires_grad(true), places, origin })
    }

    /// Reads the rows of `keys` for evaluation. Creates and changes no row.
    pub fn look(&self, keys: &[u64]) -> Result<Tensor> {
        match self {
            Self::Bank(table) => {
                let mut rows = vec![0.0; keys.len() * table.dim()];
                table.peek(keys, &mut rows, Missing::Initial)?;
                Ok(matrix(&rows, table.dim()))
            }
            Self::Memory(twin) => Ok(twin.weight.index_select(0, &twin.positions(keys)?)),
        }
    }

    /// Announces that training will use these rows soon. Never waits.
    pub fn lookahead(&self, keys: &[u64]) -> Result<()> {
        if let Self::Bank(table) = self {
            table.lookahead(keys)?;
        }
        Ok(())
    }
}

impl Rows {
    /// (keys, dim): one row per key, in the order of the keys.
    pub fn tensor(&self) -> Tensor {
        match &self.places {
            Some(places) => self.leaf.index_select(0, places),
            None => self.leaf.shallow_clone(),
        }
    }

    /// Takes one optimizer step per distinct key, with the gradient of the backward pass.
    pub fn step(self) -> Result<()> {
        let gradient = self.leaf.grad();
        ensure!(
            gradient.defined(),
            "there is no gradient: call `backward` on the loss before `step`"
        );
        match self.origin {
            Origin::Bank(lease) => {
                let mut values = vec![0.0; gradient.numel()];
                gradient.contiguous().copy_data(&mut values, gradient.numel());
                lease.apply(&values)?;
            }
            Origin::Memory { twin, positions } => twin.step(&positions, &gradient),
        }
        Ok(())
    }
}

/// Makes a tensor (rows, dim) from rows one after the other.
fn matrix(rows: &[f32], dim: usize) -> Tensor {
    Tensor::from_slice(rows).view([-1, dim as i64])
}

/// A table's twin in memory, with the Adagrad of `torch.optim`.
pub struct Twin {
    weight: Tensor,
    /// The sum of each value's squared gradients.
    sums: Tensor,
    lr: f64,
    eps: f64,
    /// Each key's row number.
    positions: Rc<HashMap<u64, i64>>,
}

impl Twin {
    /// Makes the twin from the table's initial values, which depend only on its seed, its name and
    /// the keys.
    fn of(table: &Table, keys: impl Iterator<Item = u64>) -> Result<Self> {
        let keys: Vec<u64> = keys.collect();
        let unique = UniqueKeys::new(&keys)?;
        let mut rows = vec![0.0; unique.len() * table.dim()];
        table.initial(unique.keys(), &mut rows)?;
        let weight = matrix(&rows, table.dim());
        let (lr, eps) = match table.config().optimizer {
            Optimizer::Adagrad(Adagrad { lr, eps, .. }) => (lr, eps),
            Optimizer::None => (0.0, 1.0),
            other => anyhow::bail!("the twin in memory has no {other:?}"),
        };
        let positions = unique.keys().iter().copied().zip(0..).collect();
        Ok(Self { sums: weight.zeros_like(), weight, lr, eps, positions: Rc::new(positions) })
    }

    /// Returns new handles of the tensors.
    fn share(&self) -> Self {
        Self {
            weight: self.weight.shallow_clone(),
            sums: self.sums.shallow_clone(),
            positions: self.positions.clone(),
            ..*self
        }
    }

    fn positions(&self, keys: &[u64]) -> Result<Tensor> {
        let found: Option<Vec<i64>> =
            keys.iter().map(|key| self.positions.get(key).copied()).collect();
        Ok(Tensor::from_slice(&found.context("a key that the twin was not told of")?))
    }

    fn step(mut self, positions: &Tensor, gradient: &Tensor) {
        no_grad(|| {
            let sums = self.sums.index_select(0, positions) + gradient.square();
            let step = gradient / (sums.sqrt() + self.eps) * -self.lr;
            let _ = self.sums.index_copy_(0, positions, &sums);
            let _ = self.weight.index_add_(0, positions, &step.to_kind(Kind::Float));
        });
    }
}
