//! Gets ahead: gets that a thread of the bank makes while the program computes an earlier batch.

use std::sync::Arc;

use embank::{AheadQueue, Pending};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyTable;
use super::request::GivenBags;
use crate::arrays::{Keys, Rows};
use crate::cell::{AheadQueueId, BankCell, PendingId};
use crate::lease::{PyLease, RowsPer};
use crate::scalars;

/// A queue of gets that a thread of the bank makes in order. Made by `Bank.ahead_queue`.
///
/// `Table.get_ahead` adds a get of any table of the bank. A training loop has one queue. `close`,
/// the end of a `with` block and dropping the object end the thread; a get that it has not made
/// then raises `EmbankError` in `Pending.wait`.
///
/// >>> import embank, numpy as np
/// >>> bank = embank.Bank("ahead.bank", memory_budget="16MiB")
/// >>> table = bank.table("item", dim=1, optimizer=embank.SGD(lr=1.0),
/// ...                    initializer=embank.Zeros(), staleness_bound=1)
/// >>> batches = [[1, 2], [2, 3], [3, 1]]
/// >>> with bank.ahead_queue() as queue:
/// ...     pending = table.get_ahead(batches[0], queue)
/// ...     for coming in [*batches[1:], None]:
/// ...         lease = pending.wait()
/// ...         if coming is not None:
/// ...             pending = table.get_ahead(coming, queue)  # while this batch is computed
/// ...         lease.apply(np.full((2, 1), -1, np.float32))
/// >>> table.peek([1, 2, 3]).ravel().tolist()
/// [2.0, 2.0, 2.0]
/// >>> bank.close()
#[pyclass(name = "AheadQueue", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyAheadQueue {
    cell: Arc<BankCell>,
    id: AheadQueueId,
}

impl PyAheadQueue {
    pub(crate) fn new(py: Python<'_>, cell: &Arc<BankCell>) -> PyResult<Self> {
        let id = cell.keep_of_bank(py, |bank| bank.ahead_queue().map(Arc::new))?;
        Ok(Self { cell: Arc::clone(cell), id })
    }
}

#[pymethods]
impl PyAheadQueue {
    /// Ends the queue's thread. Gets that it has not made fail.
    fn close(&self) {
        self.cell.forget(self.id);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        format!("<embank.AheadQueue of {}>", self.cell.path().display())
    }
}

impl Drop for PyAheadQueue {
    fn drop(&mut self) {
        self.cell.forget(self.id);
    }
}

/// A get that a queue makes. Made by `Table.get_ahead`.
///
/// `wait()` returns its lease, once. `cancel`, the end of a `with` block and dropping the object
/// cancel the get, or end its lease without an update. `len` is the number of rows.
#[pyclass(name = "Pending", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyPending {
    cell: Arc<BankCell>,
    id: PendingId,
    table: Arc<str>,
    keys: usize,
    rows: usize,
    dim: usize,
    per: RowsPer,
}

#[pymethods]
impl PyPending {
    /// Waits for the get and returns its lease. The rows have all updates up to now.
    ///
    /// This thread then counts as the one that took the lease. The time limit of the get begins
    /// with this call. An `out`, `pooling` or `weights` that does not fit leaves the get as it is.
    /// After any other error it holds no lease, and this object is used up.
    ///
    /// Args:
    ///     out: The array that gets the rows, C-contiguous float32 with `len(self)` rows of `dim`;
    ///         for distinct keys it may have more rows. Default: None, a new array.
    ///     offsets, pooling, weights: Bags, as for `get_bags`, in place of the rows that were asked
    ///         for: the rows are pooled in this call. Default: the rows that were asked for.
    ///
    /// Returns:
    ///     A `Lease`, as `Table.get`, `Table.get_distinct` or `Table.get_bags` returns it.
    ///
    /// Raises:
    ///     StalenessTimeout: A row stayed over the bound.
    ///     SelfBlocked: Only leases of this thread hold a row at its bound.
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it.
    ///     ValueError: The get was cancelled or waited for before, its bank is closed, or offsets
    ///         or weights do not fit the keys.
    ///     EmbankError: The queue was closed before it made the get.
    #[pyo3(signature = (*, out = None, offsets = None, pooling = "sum", weights = None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
        offsets: Option<&Bound<'py, PyAny>>,
        pooling: &str,
        weights: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<PyLease> {
        let bags = given_bags(self.keys, offsets, pooling, weights)?;
        let (per, count) = match &bags {
            Some(bags) => (RowsPer::Bag, bags.as_bags().len()),
            None => (self.per, self.rows),
        };
        let mut rows = match per {
            RowsPer::Distinct => Rows::first_of(py, out, count, self.dim)?,
            RowsPer::Key | RowsPer::Bag => Rows::new(py, out, count, self.dim)?,
        };
        let values = rows.as_slice_mut()?;
        let is_distinct = per == RowsPer::Distinct;
        let waited = self.cell.wait_for_lease(py, self.id, |mut pending| {
            if let Some(bags) = &bags {
                pending = pending.bags(bags.as_bags())?;
            }
            let lease = pending.wait(values)?;
            let unique = is_distinct.then(|| {
                let unique = lease.unique();
                let inverse = unique.inverse().iter().map(|&place| i64::from(place));
                (unique.keys().to_vec(), inverse.collect::<Vec<_>>())
            });
            Ok((lease, unique))
        })?;
        let (id, unique) = waited.ok_or_else(|| {
            PyValueError::new_err(
                "this get was cancelled, or was waited for before: ask for the rows again",
            )
        })?;
        let unique = unique.map(|(keys, inverse)| {
            (PyArray1::from_vec(py, keys).unbind(), PyArray1::from_vec(py, inverse).unbind())
        });
        let (cell, table) = (Arc::clone(&self.cell), Arc::clone(&self.table));
        Ok(PyLease::new(cell, id, rows.into_array(), table, per, unique))
    }

    /// True if `wait` would not wait for the get.
    #[getter]
    fn ready(&self) -> bool {
        self.cell.look_at(self.id, Pending::is_ready).is_ok_and(|ready| ready == Some(true))
    }

    /// Cancels the get, or ends its lease without an update. Does nothing after `wait`.
    fn cancel(&self) {
        self.cell.forget(self.id);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.cancel();
    }

    fn __len__(&self) -> usize {
        self.rows
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self) -> String {
        format!("<embank.Pending of table {:?}, rows ({}, {})>", &*self.table, self.rows, self.dim)
    }
}

/// Returns the bags of a batch of `keys` keys. `None` if there are no offsets.
fn given_bags(
    keys: usize,
    offsets: Option<&Bound<'_, PyAny>>,
    pooling: &str,
    weights: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<GivenBags>> {
    match (offsets, weights) {
        (Some(offsets), weights) => GivenBags::new(keys, offsets, pooling, weights).map(Some),
        (None, Some(_)) => Err(PyValueError::new_err("weights go with offsets")),
        (None, None) => Ok(None),
    }
}

impl Drop for PyPending {
    fn drop(&mut self) {
        self.cell.forget(self.id);
    }
}

#[pymethods]
impl PyTable {
    /// Asks for the rows of a later batch, and returns at once.
    ///
    /// The queue's thread makes the get after the earlier gets of the queue: it takes the lease and
    /// brings rows from disk into memory. `wait` of the result returns the lease and the rows. The
    /// lease counts for the staleness bound from the time of the get, so n batches ahead of the
    /// batch in hand need a bound of n or more. While no thread waits for it, the get has no time
    /// limit.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     queue: The queue that makes the get, of this table's bank.
    ///     distinct: Whether to return one row for each distinct key, as `get_distinct`.
    ///     offsets, pooling, weights: Bags, as for `get_bags`. Default: no bags.
    ///     earlier: Keys that this training step has got before, as for `get_distinct`.
    ///     timeout: The longest wait in seconds. Default: the bank's `wait_timeout`.
    ///
    /// Returns:
    ///     A `Pending`.
    ///
    /// Raises:
    ///     ValueError, TypeError: The arguments of `get_bags` or `get` do not fit, or the queue is
    ///         closed or of another bank.
    #[pyo3(signature = (keys, queue, *, distinct = false, offsets = None, pooling = "sum", weights = None, earlier = None, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn get_ahead<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        queue: &Bound<'py, PyAheadQueue>,
        distinct: bool,
        offsets: Option<&Bound<'py, PyAny>>,
        pooling: &str,
        weights: Option<&Bound<'py, PyAny>>,
        earlier: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<PyPending> {
        let timeout = timeout.map(|timeout| scalars::seconds("timeout", timeout)).transpose()?;
        let earlier = earlier.map(Keys::new).transpose()?;
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        if distinct && offsets.is_some() {
            return Err(PyValueError::new_err("give offsets or distinct=True, not both"));
        }
        let bags = given_bags(keys.len(), offsets, pooling, weights)?;
        let queue = queue.get();
        if !Arc::ptr_eq(&queue.cell, &self.cell) {
            return Err(PyValueError::new_err(format!(
                "the queue is of {}, and table {:?} of {}: make a queue of the table's bank",
                queue.cell.path().display(),
                &*self.key.name,
                self.cell.path().display()
            )));
        }
        let earlier = earlier.as_ref().map_or(Ok(&[][..]), Keys::as_slice)?;
        let ask = |table: &embank::Table, queue: &AheadQueue| {
            let mut request = table.request(keys)?.earlier(earlier);
            if distinct {
                request = request.distinct();
            }
            if let Some(bags) = &bags {
                request = request.bags(bags.as_bags());
            }
            if let Some(timeout) = timeout {
                request = request.within(timeout);
            }
            let pending = table.get_ahead(request, queue)?;
            let rows = pending.row_count();
            Ok((pending, rows))
        };
        let asked = self.cell.get_ahead(py, self.key.handle, queue.id, ask)?;
        let (id, rows) = asked.ok_or_else(|| {
            PyValueError::new_err("this queue is closed: make a new one (Bank.ahead_queue)")
        })?;
        let per = match bags {
            Some(_) => RowsPer::Bag,
            None if distinct => RowsPer::Distinct,
            None => RowsPer::Key,
        };
        let (cell, table) = (Arc::clone(&self.cell), Arc::clone(&self.key.name));
        Ok(PyPending { cell, id, table, keys: keys.len(), rows, dim: self.key.dim, per })
    }
}
