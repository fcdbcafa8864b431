//! Leases: rows that were read for training, and the calls that return their update.

use std::sync::Arc;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::{self, Keys};
use crate::cell::{BankCell, LeaseId};

/// What the rows of a lease stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowsPer {
    Key,
    Distinct,
    Bag,
}

/// The distinct keys of a batch, and for each key of the batch its place among them.
type Unique = (Py<PyArray1<u64>>, Py<PyArray1<i64>>);

/// Rows that `Table.get`, `Table.get_distinct` or `Table.get_bags` read for training. The caller
/// owes them an update.
///
/// Every row's staleness clock counts the lease until it ends: `apply` or `put` consumes it,
/// `release` or the end of a `with` block gives it back, or it is garbage collected. `rows` is a
/// copy and stays valid after that. Threads may share a lease; one of them consumes it.
///
/// `rows`, and what `apply` and `put` take, have one row for each key of the batch (`get`), for
/// each distinct key in order of first appearance (`get_distinct`), or for each bag (`get_bags`).
/// `rows[inverse]` of a lease on distinct keys has one row for each key. If a model uses
/// `rows[inverse]`, its gradient with respect to `rows` already sums the gradients of equal keys.
///
/// >>> import embank, numpy as np
/// >>> bank = embank.Bank("lease.bank", memory_budget="16MiB")
/// >>> table = bank.table("item", dim=2, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros())
/// >>> with table.get([3, 4, 3]) as lease:
/// ...     print(lease.rows.shape, table.outstanding(3))
/// ...     lease.apply(np.ones((3, 2), np.float32))
/// (3, 2) 1
/// >>> table.peek([3, 4]).tolist(), table.outstanding(3)
/// ([[-2.0, -2.0], [-1.0, -1.0]], 0)
/// >>> lease = table.get_distinct([3, 4, 3])
/// >>> lease.keys.tolist(), lease.inverse.tolist(), lease.rows.shape
/// ([3, 4], [0, 1, 0], (2, 2))
/// >>> lease.apply(np.ones((2, 2), np.float32))
/// >>> lease = table.get_bags([3, 4, 3], offsets=[0, 2, 3])
/// >>> lease.rows.tolist(), lease.per
/// ([[-5.0, -5.0], [-3.0, -3.0]], 'bag')
/// >>> lease.apply(np.ones((2, 2), np.float32))
/// >>> table.peek([3, 4]).tolist()
/// [[-5.0, -5.0], [-3.0, -3.0]]
/// >>> bank.close()
#[pyclass(name = "Lease", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyLease {
    pub(crate) cell: Arc<BankCell>,
    pub(crate) id: LeaseId,
    rows: Py<PyArray2<f32>>,
    /// The number of rows and `dim`. Stored here, because the user may change the shape of the
    /// array `rows`.
    shape: [usize; 2],
    table: Arc<str>,
    per: RowsPer,
    /// Stored only if the rows are those of the distinct keys.
    unique: Option<Unique>,
}

impl PyLease {
    pub(crate) fn new(
        cell: Arc<BankCell>,
        id: LeaseId,
        rows: Bound<'_, PyArray2<f32>>,
        table: Arc<str>,
        per: RowsPer,
        unique: Option<Unique>,
    ) -> Self {
        let shape = [rows.shape()[0], rows.shape()[1]];
        Self { cell, id, rows: rows.unbind(), shape, table, per, unique }
    }

    /// The lease's id within `cell`. `None` if the lease belongs to another cell.
    pub(crate) fn id_in(&self, cell: &Arc<BankCell>) -> Option<LeaseId> {
        Arc::ptr_eq(&self.cell, cell).then_some(self.id)
    }

    /// The number of rows and `dim`.
    pub(crate) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Runs `call` on the lease, which stays held.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&embank::Lease) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        self.cell.check_lease(self.id)?;
        self.cell.with_kept_lease(py, self.id, call)
    }

    /// Consumes the lease with values of its rows' shape. A wrong shape leaves the lease held.
    fn consume(
        &self,
        what: &str,
        object: &Bound<'_, PyAny>,
        update: fn(embank::Lease, &[f32]) -> embank::Result<()>,
    ) -> PyResult<()> {
        let py = object.py();
        self.cell.check_lease(self.id)?;
        let [rows, dim] = self.shape;
        let values = arrays::values(what, object, rows, dim)?;
        let values = values.as_slice()?;
        self.cell.consume_lease(py, self.id, |lease| update(lease, values))
    }
}

impl Drop for PyLease {
    fn drop(&mut self) {
        // A drop can't return an error. The store counts releases that fail.
        self.cell.forget(self.id);
    }
}

#[pymethods]
impl PyLease {
    /// The rows as the get read them, float32 `(n, dim)`: one for each key, distinct key or bag.
    /// The caller may write to them.
    #[getter]
    fn rows(&self, py: Python<'_>) -> Py<PyArray2<f32>> {
        self.rows.clone_ref(py)
    }

    /// What a row of `rows` stands for: "key", "distinct" (a distinct key) or "bag".
    #[getter]
    fn per(&self) -> &'static str {
        match self.per {
            RowsPer::Key => "key",
            RowsPer::Distinct => "distinct",
            RowsPer::Bag => "bag",
        }
    }

    /// The distinct keys in order of first appearance, uint64 `(u,)`.
    ///
    /// Raises:
    ///     ValueError: The lease was consumed before, or the bank is closed. A lease on distinct
    ///         keys does not raise.
    #[getter]
    fn keys(&self, py: Python<'_>) -> PyResult<Py<PyArray1<u64>>> {
        if let Some((keys, _)) = &self.unique {
            return Ok(keys.clone_ref(py));
        }
        let keys = self.with(py, |lease| Ok(lease.unique().keys().to_vec()))?;
        Ok(PyArray1::from_vec(py, keys).unbind())
    }

    /// For each key of the batch, its place in `keys`: int64 `(n,)`.
    ///
    /// Raises: the errors of `keys`.
    #[getter]
    fn inverse(&self, py: Python<'_>) -> PyResult<Py<PyArray1<i64>>> {
        if let Some((_, inverse)) = &self.unique {
            return Ok(inverse.clone_ref(py));
        }
        let places = |lease: &embank::Lease| {
            Ok(lease.unique().inverse().iter().map(|&place| i64::from(place)).collect())
        };
        Ok(PyArray1::from_vec(py, self.with(py, places)?).unbind())
    }

    /// True if the lease can be consumed: its rows' clocks count it, and its bank is open.
    #[getter]
    fn held(&self) -> bool {
        self.cell.is_held(self.id)
    }

    /// The lease's state: "held", "expired", "ended" (applied, put or released), or "closed" with
    /// its bank.
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        self.cell.lease_state(self.id)
    }

    /// Raises what `apply` would raise if the lease is not held any more. Consumes nothing.
    ///
    /// Raises:
    ///     ValueError: The lease was consumed before, or the bank is closed.
    ///     LeaseExpired: It has expired.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.cell.check_consumable(py, self.id)
    }

    /// Sums the gradients of `rows` for each distinct key. Consumes nothing.
    ///
    /// Args:
    ///     grads: float32 of the shape of `rows`.
    ///
    /// Returns:
    ///     float32 `(u, dim)`, one row for each of `keys`. `Table.apply_leases` takes such sums of
    ///         several leases.
    fn sum_gradients<'py>(&self, grads: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let py = grads.py();
        self.cell.check_lease(self.id)?;
        let [rows, dim] = self.shape;
        let grads = arrays::values("grads", grads, rows, dim)?;
        let grads = grads.as_slice()?;
        let sums = self.with(py, |lease| lease.sum_gradients(grads))?;
        let keys = sums.len() / dim;
        PyArray1::from_vec(py, sums).reshape([keys, dim])
    }

    /// Applies gradients with the table's optimizer and consumes the lease.
    ///
    /// Args:
    ///     grads: float32 of the shape of `rows`. The gradients of equal keys are summed first, in
    ///         order, so a row takes one step. The gradient of a bag goes to each of its places.
    ///
    /// Raises:
    ///     ValueError: Wrong shape, lease already consumed or bank closed (the lease stays as it
    ///         was); a gradient is NaN or infinite, or the table has no optimizer (no row changes,
    ///         the lease is given back).
    ///     TypeError: An array of another dtype.
    ///     LeaseExpired: It was kept for longer than the bank's `lease_timeout`; no row changes.
    ///     EmbankError: The store failed; the lease is given back.
    fn apply(&self, grads: &Bound<'_, PyAny>) -> PyResult<()> {
        self.consume("grads", grads, embank::Lease::apply)
    }

    /// Replaces the rows and consumes the lease. The optimizer's state stays.
    ///
    /// For a read-modify-write, change the `rows` of a `Table.get_distinct` and put them. With
    /// `staleness_bound=0`, no other lease holds these rows meanwhile.
    ///
    /// Args:
    ///     rows: float32 of the shape of `rows`. If a key occurs more than once, its last row is
    ///         kept.
    ///
    /// Raises:
    ///     ValueError: Wrong shape, lease already consumed or bank closed; the rows are bags.
    ///     TypeError: An array of another dtype.
    ///     LeaseExpired: It was kept for longer than the bank's `lease_timeout`; no row changes.
    ///     EmbankError: The store failed; the lease is given back.
    fn put(&self, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.per == RowsPer::Bag {
            return Err(PyValueError::new_err(
                "a pooled row can't be put: get the rows with table.get or table.get_distinct",
            ));
        }
        self.consume("rows", rows, embank::Lease::put)
    }

    /// Writes rows that the lease holds, and keeps the lease.
    ///
    /// Rows that the lease does not hold stay as they are: rows of keys that were not admitted, and
    /// rows that were deleted after the get. The write does not count as a use of a row.
    ///
    /// Args:
    ///     places: Integers `(n,)`: places among the distinct keys, each at most once.
    ///     rows: float32 `(n, dim)`.
    ///
    /// Raises:
    ///     ValueError: Wrong shapes, a place beyond the distinct keys, a row that is not finite in
    ///         the table's dtype, or the lease was consumed before.
    ///     LeaseExpired: The lease has expired; no row changes.
    ///
    /// >>> import embank
    /// >>> bank = embank.Bank("rewrite.bank", memory_budget="16MiB")
    /// >>> table = bank.table("item", dim=1, initializer=embank.Zeros())
    /// >>> with table.get_distinct([7, 8]) as lease:
    /// ...     lease.rewrite([1], [[0.5]])
    /// >>> table.peek([7, 8]).tolist()
    /// [[0.0], [0.5]]
    /// >>> bank.close()
    fn rewrite(
        &self,
        py: Python<'_>,
        places: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let places = Keys::numbers("places", places)?;
        let places = places.as_slice()?;
        let rows = arrays::values("rows", rows, places.len(), self.shape[1])?;
        let rows = rows.as_slice()?;
        let beyond = self.cell.with_kept_lease(py, self.id, |lease| {
            let distinct = lease.unique().len();
            if let Some(&beyond) = places.iter().find(|&&place| place >= distinct as u64) {
                return Ok(Some((beyond, distinct)));
            }
            let places: Vec<u32> = places.iter().map(|&place| place as u32).collect();
            lease.rewrite(&places, rows).map(|()| None)
        })?;
        let Some((beyond, distinct)) = beyond else { return Ok(()) };
        Err(PyValueError::new_err(format!(
            "place {beyond} is beyond the {distinct} distinct keys of the lease"
        )))
    }

    /// Says that another thread will end this lease: apply, put or release it, or let it be garbage
    /// collected. Call it before the other thread gets the lease.
    ///
    /// A get of this thread that finds a row blocked by this lease then waits. Without the call it
    /// raises `SelfBlocked`. The call is needed only until a thread has ended a lease that another
    /// thread took: from then on all gets of the bank wait.
    ///
    /// Raises:
    ///     ValueError: The lease was consumed before, or the bank is closed.
    fn hand_over(&self) -> PyResult<()> {
        self.cell.hand_over(self.id)
    }

    /// Ends the lease without an update, so that the staleness clocks of its rows no longer count
    /// it. Does nothing if the lease is not held.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.cell.release(py, self.id)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release(py)
    }

    fn __len__(&self) -> usize {
        self.shape[0]
    }

    fn __repr__(&self) -> String {
        let [rows, dim] = self.shape;
        let state = if self.held() { "held" } else { "given back" };
        let of = match self.per {
            RowsPer::Key => "",
            RowsPer::Distinct => " of distinct keys",
            RowsPer::Bag => " of bags",
        };
        format!("<embank.Lease on table {:?}, rows ({rows}, {dim}){of}, {state}>", &*self.table)
    }
}
