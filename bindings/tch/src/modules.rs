//! The modules: rows by key, and pooled rows by bag.

use embank::{Bags, Missing, Pooling, Table};
use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::optimizer::SparseOptimizer;
use crate::tensors::{floats, is_recording, matrix, numbers};

/// Rows of a table by key, in place of `tch::nn::embedding`.
///
/// The modules of this crate are no `tch::nn::Module`, because their forward pass can fail.
///
/// # Examples
/// See the [crate](crate).
#[derive(Debug)]
pub struct Embedding {
    table: Table,
    optimizer: SparseOptimizer,
}

impl Embedding {
    /// Makes a module over `table`. `optimizer` takes the steps of the table.
    #[must_use]
    pub fn new(table: Table, optimizer: &SparseOptimizer) -> Self {
        Self { table, optimizer: optimizer.clone() }
    }

    /// Returns the rows of `keys`, an int64 tensor of any shape. The result has the shape of `keys`
    /// with one more dimension, of `dim` values, on the device of `keys`. It is float32. A negative
    /// number stands for the key with the same 64 bits, which is 2^63 or larger.
    ///
    /// A pass for training gets the rows with a lease, and initialises missing rows. The lease ends
    /// in the next [`SparseOptimizer::step`]. In `tch::no_grad` the call peeks: it takes no lease,
    /// and a missing row has its initial values in the result only.
    ///
    /// # Errors
    /// [`BadTensor`](Error::BadTensor), the errors of [`Table::get_rows`] or [`Table::peek`], and
    /// failures of PyTorch.
    pub fn forward(&self, keys: &Tensor) -> Result<Tensor> {
        let dim = self.table.dim();
        let mut shape = keys.size();
        shape.push(dim as i64);
        let device = keys.device();
        let keys = int64(&self.table, "keys", keys)?;
        if !is_recording() {
            let mut rows = vec![0.0; keys.len() * dim];
            self.table.peek(&keys, &mut rows, Missing::Initial)?;
            return Ok(matrix(&rows, dim)?.f_to_device(device)?.f_view(&shape[..])?);
        }
        let request = self.table.request(&keys)?.distinct();
        let mut rows = vec![0.0; request.row_count() * dim];
        let lease = self.table.get_rows(request, &mut rows)?;
        let places = lease.unique().inverse().iter().map(|&place| i64::from(place));
        let places = Tensor::f_from_slice(&places.collect::<Vec<_>>())?.f_to_device(device)?;
        let leaf = matrix(&rows, dim)?.f_set_requires_grad(true)?;
        // The result is never the leaf itself: autograd allows no change of a leaf in place.
        let rows = leaf.f_to_device(device)?.f_index_select(0, &places)?;
        self.optimizer.add(lease, leaf);
        Ok(rows.f_view(&shape[..])?)
    }

    /// Announces that a pass for training will soon get the rows of `keys`, so that the bank reads
    /// them from disk meanwhile. Never waits for the disk.
    ///
    /// # Errors
    /// [`BadTensor`](Error::BadTensor) and the errors of [`Table::lookahead`].
    pub fn lookahead(&self, keys: &Tensor) -> Result<()> {
        lookahead(&self.table, keys)
    }

    /// The table of the rows.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }
}

/// Rows of a table, pooled into one row per bag of keys, in place of `torch.nn.EmbeddingBag`.
///
/// The store pools the rows by [`Pooling::Sum`] or [`Pooling::Mean`], so the single rows are not
/// copied. `torch` also has a mode `max`, which the store does not have. For it, a program gets
/// the single rows from an [`Embedding`] and pools them with `tch`.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Initializer, Optimizer, Pooling, TableConfig};
/// use embank_tch::{EmbeddingBag, SparseOptimizer};
/// use tch::{Kind, Tensor};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let config = TableConfig::new(2).optimizer(Optimizer::sgd(0.5));
/// let genres = bank.table("genre", config.initializer(Initializer::Constant(1.0)))?;
/// let tables = SparseOptimizer::new();
/// let genres = EmbeddingBag::new(genres, Pooling::Sum, &tables);
/// let keys = Tensor::from_slice(&[5_i64, 6, 5]);
/// let starts = Tensor::from_slice(&[0_i64, 2]); // the bags are [5, 6] and [5]
/// let pooled = genres.forward(&keys, Some(&starts), None)?;
/// assert_eq!(Vec::<f32>::try_from(pooled.view(-1))?, [2.0, 2.0, 1.0, 1.0]);
/// pooled.sum(Kind::Float).backward();
/// tables.step()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EmbeddingBag {
    table: Table,
    pooling: Pooling,
    optimizer: SparseOptimizer,
}

impl EmbeddingBag {
    /// Makes a module over `table`. `optimizer` takes the steps of the table.
    #[must_use]
    pub fn new(table: Table, pooling: Pooling, optimizer: &SparseOptimizer) -> Self {
        Self { table, pooling, optimizer: optimizer.clone() }
    }

    /// Returns one pooled row per bag, a float32 tensor (bags, dim) on the device of `keys`. An
    /// empty bag has zeros.
    ///
    /// `keys` is an int64 tensor. With `offsets`, it has one dimension, and `offsets` (bags,) holds
    /// the place where each bag begins, as in `torch`: the first is 0, and they never decrease.
    /// Without `offsets`, `keys` has the shape (bags, keys of a bag).
    ///
    /// `weights` holds one float32 factor per key, in the shape of `keys`, for [`Pooling::Sum`]
    /// only. The factors get no gradient.
    ///
    /// Leases, missing rows and `tch::no_grad` are as for [`Embedding::forward`].
    ///
    /// # Errors
    /// [`BadTensor`](Error::BadTensor), [`BadBags`](embank::Error::BadBags) if offsets or weights
    /// do not fit the keys, the errors of [`Table::get_rows`] or [`Table::peek_bags`], and failures
    /// of PyTorch.
    pub fn forward(
        &self,
        keys: &Tensor,
        offsets: Option<&Tensor>,
        weights: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Self { table, pooling, optimizer } = self;
        let (device, dim) = (keys.device(), table.dim());
        let offsets = bounds(table, keys, offsets)?;
        let weights = weights.map(|weights| self.factors(keys, weights)).transpose()?;
        let keys = int64(table, "keys", keys)?;
        let bags = Bags { offsets: &offsets, pooling: *pooling, weights: weights.as_deref() };
        let mut pooled = vec![0.0; bags.len() * dim];
        if !is_recording() {
            table.peek_bags(&keys, bags, &mut pooled)?;
            return Ok(matrix(&pooled, dim)?.f_to_device(device)?);
        }
        let lease = table.get_rows(table.request(&keys)?.bags(bags), &mut pooled)?;
        let leaf = matrix(&pooled, dim)?.f_set_requires_grad(true)?;
        // A copy, because autograd allows no change of a leaf in place.
        let pooled = leaf.f_to_device_(device, Kind::Float, false, true)?;
        optimizer.add(lease, leaf);
        Ok(pooled)
    }

    /// Announces keys, as [`Embedding::lookahead`] does.
    ///
    /// # Errors
    /// The errors of [`Embedding::lookahead`].
    pub fn lookahead(&self, keys: &Tensor) -> Result<()> {
        lookahead(&self.table, keys)
    }

    /// The table of the rows.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the factors of the keys.
    fn factors(&self, keys: &Tensor, weights: &Tensor) -> Result<Vec<f32>> {
        let (kind, size) = (weights.f_kind()?, weights.size());
        if kind != Kind::Float {
            return Err(bad(&self.table, format!("weights must be float32, not {kind:?}")));
        }
        if size != keys.size() {
            let wanted = keys.size();
            let what = format!("weights must have the shape of keys, {wanted:?}, not {size:?}");
            return Err(bad(&self.table, what));
        }
        if weights.requires_grad() {
            let what = "weights get no gradient: pass weights.detach(), or multiply the rows of an \
                        Embedding by them";
            return Err(bad(&self.table, what.to_owned()));
        }
        floats(weights)
    }
}

/// Returns the places where bags begin, and the end of the last bag.
fn bounds(table: &Table, keys: &Tensor, offsets: Option<&Tensor>) -> Result<Vec<u64>> {
    match (&keys.size()[..], offsets) {
        (&[count], Some(offsets)) => {
            let mut offsets = int64(table, "offsets", offsets)?;
            offsets.push(count as u64);
            Ok(offsets)
        }
        (&[bags, count], None) => Ok((0..=bags as u64).map(|bag| bag * count as u64).collect()),
        (size, offsets) => {
            let given = if offsets.is_some() { "with" } else { "without" };
            let what = format!(
                "keys must be (keys,) with offsets, or (bags, keys of a bag) without offsets; found \
                 the shape {size:?} {given} offsets"
            );
            Err(bad(table, what))
        }
    }
}

fn lookahead(table: &Table, keys: &Tensor) -> Result<()> {
    table.lookahead(&int64(table, "keys", keys)?)?;
    Ok(())
}

/// Returns the values of an int64 tensor. The error calls it `name`.
fn int64(table: &Table, name: &str, tensor: &Tensor) -> Result<Vec<u64>> {
    let kind = tensor.f_kind()?;
    if kind != Kind::Int64 {
        let what = format!("{name} must be int64, not {kind:?}: use to_kind(Kind::Int64)");
        return Err(bad(table, what));
    }
    numbers(tensor)
}

fn bad(table: &Table, what: String) -> Error {
    Error::BadTensor { table: table.name().to_owned(), what }
}
