//! The step of all tables after a backward pass.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use embank::{Lease, TableGradients};
use tch::Tensor;

use crate::error::Result;
use crate::tensors::floats;

/// Takes the optimizer step of the tables of several modules, as an optimizer of `tch` takes that
/// of variables.
///
/// Each forward pass of a module that was made with this object adds its lease and its leaf tensor.
/// [`step`](Self::step) takes one step with all gradients since the last step. Each training thread
/// makes one object for all its modules: a step of another thread would take passes whose backward
/// pass is still to come. Clones are handles of one object.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Initializer, Optimizer, TableConfig};
/// use embank_tch::{Embedding, SparseOptimizer};
/// use tch::{Kind, Tensor, no_grad};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let config = TableConfig::new(1).optimizer(Optimizer::sgd(0.5));
/// let words = bank.table("word", config.initializer(Initializer::Zeros))?;
/// let tables = SparseOptimizer::new();
/// let words = Embedding::new(words, &tables);
/// for part in [[7_i64, 8], [7, 9]] {
///     words.forward(&Tensor::from_slice(&part))?.sum(Kind::Float).backward();
/// }
/// tables.step()?; // one step of SGD; the gradient of key 7 is the sum of two
/// let rows = no_grad(|| words.forward(&Tensor::from_slice(&[7_i64, 8])))?;
/// assert_eq!(Vec::<f32>::try_from(rows.view(-1))?, [-1.0, -0.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct SparseOptimizer {
    /// The forward passes since the last step.
    passes: Arc<Mutex<Vec<Pass>>>,
}

/// A forward pass of a module.
#[derive(Debug)]
struct Pass {
    lease: Lease,
    /// One row per row of the lease, with a gradient after the backward pass.
    leaf: Tensor,
}

/// The leases of one table, each with one gradient per row of the lease.
type OfTable = Vec<(Lease, Vec<f32>)>;

/// A table's part of a step. The fields are those of [`TableGradients`].
struct Part {
    leases: Vec<Lease>,
    keys: Option<Vec<u64>>,
    gradients: Vec<f32>,
}

impl SparseOptimizer {
    /// Makes an optimizer without modules.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one step of each table's own optimizer, with the gradients that `backward` has left
    /// since the last step. If several forward passes used a row, its gradients are summed first.
    ///
    /// The leases of these forward passes end. A forward pass that no backward pass has reached
    /// changes no row, so call `backward` first.
    ///
    /// # Errors
    /// The errors of [`Lease::apply_many`]: if the check of a table's gradients fails, no row of
    /// any table changes.
    pub fn step(&self) -> Result<()> {
        let mut tables: Vec<OfTable> = Vec::new();
        for Pass { lease, leaf } in mem::take(&mut *self.passes()) {
            let gradient = leaf.f_grad()?;
            if !gradient.defined() {
                continue; // drops the lease, which ends it without an update
            }
            let answer = (lease, floats(&gradient)?);
            let is_of_table = |of: &&mut OfTable| of[0].0.table().is_same(answer.0.table());
            match tables.iter_mut().find(is_of_table) {
                Some(of) => of.push(answer),
                None => tables.push(vec![answer]),
            }
        }
        let mut parts = tables.into_iter().map(Part::new).collect::<Result<Vec<_>>>()?;
        let parts = parts.iter_mut().map(|part| TableGradients {
            leases: mem::take(&mut part.leases),
            keys: part.keys.as_deref(),
            gradients: &part.gradients,
        });
        Ok(Lease::apply_many(parts.collect())?)
    }

    /// Gives up the gradients since the last step, and the leases of their forward passes. Their
    /// rows stay unchanged. A program calls it to leave a batch out, after `backward`. No call is
    /// needed after a step. A forward pass that no backward pass has reached stays for the next
    /// step; [`step`](Self::step) ends it.
    pub fn zero_grad(&self) {
        self.passes().retain(|pass| !pass.leaf.grad().defined());
    }

    /// Adds a forward pass.
    pub(crate) fn add(&self, lease: Lease, leaf: Tensor) {
        self.passes().push(Pass { lease, leaf });
    }

    fn passes(&self) -> MutexGuard<'_, Vec<Pass>> {
        // Each change of the list is one call on it, so a panic leaves a whole list.
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    fn new(mut of: OfTable) -> Result<Self> {
        if let [(_, gradients)] = &mut of[..] {
            let gradients = mem::take(gradients);
            let leases = of.into_iter().map(|(lease, _)| lease).collect();
            return Ok(Self { leases, keys: None, gradients });
        }
        let (mut leases, mut keys, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for (lease, gradients) in of {
            sums.extend(lease.sum_gradients(&gradients)?);
            keys.extend_from_slice(lease.unique().keys());
            leases.push(lease);
        }
        Ok(Self { leases, keys: Some(keys), gradients: sums })
    }
}
