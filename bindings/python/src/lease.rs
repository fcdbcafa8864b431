//! Leases: rows that were read for training, and the calls that return their update.

use std::sync::Arc;

use embank::Bags;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::{self, Keys};
use crate::cell::{BankCell, LeaseId};
use crate::table::bags::GivenBags;

/// Rows under a lease: the part that the three classes of leases share.
#[derive(Debug)]
pub(crate) struct LeasedRows {
    cell: Arc<BankCell>,
    id: LeaseId,
    rows: Py<PyArray2<f32>>,
    /// The number of rows and `dim`. Stored here, because the user may change the shape of the
    /// array `rows`.
    shape: [usize; 2],
    table: Arc<str>,
}

impl LeasedRows {
    pub(crate) fn new(
        cell: Arc<BankCell>,
        id: LeaseId,
        rows: Bound<'_, PyArray2<f32>>,
        table: Arc<str>,
    ) -> Self {
        let shape = [rows.shape()[0], rows.shape()[1]];
        Self { cell, id, rows: rows.unbind(), shape, table }
    }

    /// The lease's id within `cell`. `None` if the lease belongs to another cell.
    pub(crate) fn id_in(&self, cell: &Arc<BankCell>) -> Option<LeaseId> {
        Arc::ptr_eq(&self.cell, cell).then_some(self.id)
    }

    /// The number of rows and `dim`.
    pub(crate) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn is_held(&self) -> bool {
        self.cell.is_held(self.id)
    }

    /// The distinct keys of the lease's batch.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        self.cell.check_lease(self.id)?;
        let keys = |lease: &embank::Lease| Ok(lease.unique().keys().to_vec());
        let keys = self.cell.with_kept_lease(py, self.id, keys)?;
        Ok(PyArray1::from_vec(py, keys))
    }

    /// Sums `grads`, which have the shape of the rows, for each distinct key.
    fn sum_gradients<'py>(
        &self,
        grads: &Bound<'py, PyAny>,
        bags: Option<Bags<'_>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let py = grads.py();
        self.cell.check_lease(self.id)?;
        let [rows, dim] = self.shape;
        let grads = arrays::values("grads", grads, rows, dim)?;
        let grads = grads.as_slice()?;
        let sum = |lease: &embank::Lease| lease.sum_gradients(bags, grads);
        let sums = self.cell.with_kept_lease(py, self.id, sum)?;
        let keys = sums.len() / dim;
        PyArray1::from_vec(py, sums).reshape([keys, dim])
    }

    /// Consumes the lease with values of its rows' shape. A wrong shape leaves the lease held.
    fn consume(
        &self,
        what: &str,
        object: &Bound<'_, PyAny>,
        update: impl FnOnce(embank::Lease, &[f32]) -> embank::Result<()> + Send,
    ) -> PyResult<()> {
        let py = object.py();
        self.cell.check_lease(self.id)?;
        let [keys, dim] = self.shape;
        let values = arrays::values(what, object, keys, dim)?;
        let values = values.as_slice()?;
        self.cell.consume_lease(py, self.id, |lease| update(lease, values))
    }

    fn describe(&self, class: &str) -> String {
        let [keys, dim] = self.shape;
        let state = if self.is_held() { "held" } else { "given back" };
        format!("<embank.{class} on table {:?}, rows ({keys}, {dim}), {state}>", &*self.table)
    }
}

impl Drop for LeasedRows {
    fn drop(&mut self) {
        // A drop can't return an error. The store counts releases that fail.
        self.cell.forget(self.id);
    }
}

/// Rows that `Table.get` read for training, one for each key. The caller owes them an update.
///
/// Every row's staleness clock counts the lease until it ends: `apply` or `put` consumes it,
/// `release` or the end of a `with` block gives it back, or it is garbage collected. `rows` is a
/// copy and stays valid after that. Threads may share a lease; one of them consumes it.
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
/// >>> bank.close()
#[pyclass(name = "Lease", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyLease(pub(crate) LeasedRows);

#[pymethods]
impl PyLease {
    /// The rows as the get read them, float32 `(n, dim)`, one for each key. The caller may write to
    /// them.
    #[getter]
    fn rows(&self, py: Python<'_>) -> Py<PyArray2<f32>> {
        self.0.rows.clone_ref(py)
    }

    /// True if the lease can be consumed: its rows' clocks count it, and its bank is open.
    #[getter]
    fn held(&self) -> bool {
        self.0.is_held()
    }

    /// The lease's state: "held", "expired", "ended" (applied, put or released), or "closed" with
    /// its bank.
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        self.0.cell.lease_state(self.0.id)
    }

    /// Raises what `apply` would raise if the lease is not held any more. Consumes nothing.
    ///
    /// Raises:
    ///     ValueError: The lease was consumed before, or the bank is closed.
    ///     LeaseExpired: It has expired.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.cell.check_consumable(py, self.0.id)
    }

    /// The distinct keys in order of first appearance, uint64 `(u,)`.
    ///
    /// Raises:
    ///     ValueError: The lease was consumed before, or the bank is closed.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        self.0.keys(py)
    }

    /// Sums the gradients of equal keys. Consumes nothing.
    ///
    /// Args:
    ///     grads: float32 `(n, dim)`, one row for each key.
    ///
    /// Returns:
    ///     float32 `(u, dim)`, one row for each of `keys`. `Table.apply_leases` takes such sums of
    ///         several leases.
    fn sum_gradients<'py>(&self, grads: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.0.sum_gradients(grads, None)
    }

    /// Applies gradients with the table's optimizer and consumes the lease.
    ///
    /// Args:
    ///     grads: float32 `(n, dim)`, one row for each key. The gradients of equal keys are summed
    ///         first, in order, so a row takes one step.
    ///
    /// Raises:
    ///     ValueError: Wrong shape, lease already consumed or bank closed (the lease stays as it
    ///         was); a gradient is NaN or infinite, or the table has no optimizer (no row changes,
    ///         the lease is given back).
    ///     TypeError: An array of another dtype.
    ///     LeaseExpired: It was kept for longer than the bank's `lease_timeout`; no row changes.
    ///     EmbankError: The store failed; the lease is given back.
    fn apply(&self, grads: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.consume("grads", grads, |lease, grads| lease.apply(grads))
    }

    /// Replaces the rows and consumes the lease. The optimizer's state stays.
    ///
    /// Args:
    ///     rows: float32 `(n, dim)`, one row for each key. If a key occurs more than once, its last
    ///         row is kept.
    ///
    /// Raises:
    ///     ValueError: Wrong shape, lease already consumed or bank closed.
    ///     TypeError: An array of another dtype.
    ///     LeaseExpired: It was kept for longer than the bank's `lease_timeout`; no row changes.
    ///     EmbankError: The store failed; the lease is given back.
    fn put(&self, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.consume("rows", rows, |lease, rows| lease.put(rows))
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
        self.0.cell.hand_over(self.0.id)
    }

    /// Ends the lease without an update, so that the staleness clocks of its rows no longer count
    /// it. Does nothing if the lease is not held.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.0.cell.release(py, self.0.id)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release(py)
    }

    fn __len__(&self) -> usize {
        self.0.shape[0]
    }

    fn __repr__(&self) -> String {
        self.0.describe("Lease")
    }
}

/// Rows that `Table.get_distinct` read for training, one for each distinct key.
///
/// It works as `Lease` does, but `rows`, `apply` and `put` have one row for each distinct key, in
/// order of first appearance. `inverse` has the place of each key of the batch in `rows`, so
/// `rows[inverse]` has one row for each key. If a model uses `rows[inverse]`, its gradient with
/// respect to `rows` already sums the gradients of equal keys.
///
/// >>> import embank, numpy as np
/// >>> bank = embank.Bank("distinct.bank", memory_budget="16MiB")
/// >>> table = bank.table("item", dim=2, optimizer=embank.SGD(lr=1.0), initializer=embank.Zeros())
/// >>> lease = table.get_distinct([3, 4, 3])
/// >>> lease.keys.tolist(), lease.inverse.tolist(), lease.rows.shape
/// ([3, 4], [0, 1, 0], (2, 2))
/// >>> lease.apply(np.ones((2, 2), np.float32))
/// >>> bank.close()
#[pyclass(name = "DistinctLease", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyDistinctLease {
    pub(crate) leased: LeasedRows,
    pub(crate) keys: Py<PyArray1<u64>>,
    pub(crate) inverse: Py<PyArray1<i64>>,
}

#[pymethods]
impl PyDistinctLease {
    /// The rows as the get read them, float32 `(u, dim)`, one for each distinct key. The caller may
    /// write to them.
    #[getter]
    fn rows(&self, py: Python<'_>) -> Py<PyArray2<f32>> {
        self.leased.rows.clone_ref(py)
    }

    /// The distinct keys in order of first appearance, uint64 `(u,)`.
    #[getter]
    fn keys(&self, py: Python<'_>) -> Py<PyArray1<u64>> {
        self.keys.clone_ref(py)
    }

    /// For each key of the batch, its place in `keys` and `rows`: int64 `(n,)`.
    #[getter]
    fn inverse(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.inverse.clone_ref(py)
    }

    /// True if the lease can be consumed: its rows' clocks count it, and its bank is open.
    #[getter]
    fn held(&self) -> bool {
        self.leased.is_held()
    }

    /// The lease's state: "held", "expired", "ended" (applied, put or released), or "closed" with
    /// its bank.
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        self.leased.cell.lease_state(self.leased.id)
    }

    /// Raises what `apply` would raise if the lease is not held any more. Consumes nothing.
    ///
    /// Raises:
    ///     ValueError: The lease was consumed before, or the bank is closed.
    ///     LeaseExpired: It has expired.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.leased.cell.check_consumable(py, self.leased.id)
    }

    /// Applies gradients with the table's optimizer and consumes the lease.
    ///
    /// Args:
    ///     grads: float32 `(u, dim)`, one row for each distinct key.
    ///
    /// Raises: the errors of `Lease.apply`.
    fn apply(&self, grads: &Bound<'_, PyAny>) -> PyResult<()> {
        self.leased.consume("grads", grads, |lease, grads| lease.apply_distinct(grads))
    }

    /// Replaces the rows and consumes the lease. The optimizer's state stays.
    ///
    /// Args:
    ///     rows: float32 `(u, dim)`, one row for each distinct key.
    ///
    /// Raises: the errors of `Lease.put`.
    fn put(&self, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        self.leased.consume("rows", rows, |lease, rows| lease.put_distinct(rows))
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
        let [distinct, dim] = self.leased.shape;
        let places = Keys::numbers("places", places)?;
        let places = places.as_slice()?;
        if let Some(beyond) = places.iter().find(|&&place| place >= distinct as u64) {
            return Err(PyValueError::new_err(format!(
                "place {beyond} is beyond the {distinct} distinct keys of the lease"
            )));
        }
        let rows = arrays::values("rows", rows, places.len(), dim)?;
        let rows = rows.as_slice()?;
        let places: Vec<u32> = places.iter().map(|&place| place as u32).collect();
        let id = self.leased.id;
        self.leased.cell.with_kept_lease(py, id, |lease| lease.rewrite(&places, rows))
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
        self.leased.cell.hand_over(self.leased.id)
    }

    /// Ends the lease without an update, so that the staleness clocks of its rows no longer count
    /// it. Does nothing if the lease is not held.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.leased.cell.release(py, self.leased.id)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release(py)
    }

    fn __len__(&self) -> usize {
        self.leased.shape[0]
    }

    fn __repr__(&self) -> String {
        self.leased.describe("DistinctLease")
    }
}

/// Bags that `Table.get_bags` read for training. The caller owes their rows an update.
///
/// A bag is the sum or the mean of several rows. The staleness clock of every row of the batch
/// counts the lease until it ends: `apply` consumes it, `release` or the end of a `with` block
/// gives it back, or it is garbage collected.
///
/// >>> import embank, numpy as np
/// >>> bank = embank.Bank("bags.bank", memory_budget="16MiB")
/// >>> genres = bank.table(
/// ...     "genre", dim=2, optimizer=embank.SGD(lr=1.0), initializer=embank.Constant(1.0)
/// ... )
/// >>> lease = genres.get_bags([5, 6, 5], offsets=[0, 2, 3])
/// >>> lease.rows.tolist()
/// [[2.0, 2.0], [1.0, 1.0]]
/// >>> lease.apply(np.ones((2, 2), np.float32))
/// >>> genres.peek([5, 6]).tolist()
/// [[-1.0, -1.0], [0.0, 0.0]]
/// >>> bank.close()
#[pyclass(name = "BagLease", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyBagLease {
    pub(crate) leased: LeasedRows,
    pub(crate) bags: GivenBags,
}

#[pymethods]
impl PyBagLease {
    /// The pooled rows as the get read them, float32 `(bags, dim)`. The caller may write to them.
    #[getter]
    fn rows(&self, py: Python<'_>) -> Py<PyArray2<f32>> {
        self.leased.rows.clone_ref(py)
    }

    /// The distinct keys in order of first appearance, uint64 `(u,)`.
    ///
    /// Raises:
    ///     ValueError: The lease was consumed before, or the bank is closed.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        self.leased.keys(py)
    }

    /// True if the lease can be consumed: its rows' clocks count it, and its bank is open.
    #[getter]
    fn held(&self) -> bool {
        self.leased.is_held()
    }

    /// The lease's state: "held", "expired", "ended" (applied or released), or "closed" with its
    /// bank.
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        self.leased.cell.lease_state(self.leased.id)
    }

    /// Raises what `apply` would raise if the lease is not held any more. Consumes nothing.
    ///
    /// Raises:
    ///     ValueError: The lease was consumed before, or the bank is closed.
    ///     LeaseExpired: It has expired.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.leased.cell.check_consumable(py, self.leased.id)
    }

    /// Sums the gradients of the bags for each row. Consumes nothing.
    ///
    /// Args:
    ///     grads: float32 `(bags, dim)`, one row for each bag.
    ///
    /// Returns:
    ///     float32 `(u, dim)`, one row for each of `keys`. `Table.apply_leases` takes such sums of
    ///         several leases.
    fn sum_gradients<'py>(&self, grads: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.leased.sum_gradients(grads, Some(self.bags.as_bags()))
    }

    /// Applies the gradients of the bags with the table's optimizer and consumes the lease.
    ///
    /// Args:
    ///     grads: float32 `(bags, dim)`, one row for each bag. A row that occurs in several places
    ///         of the batch sums their gradients in order, and takes one step.
    ///
    /// Raises: the errors of `Lease.apply`.
    fn apply(&self, grads: &Bound<'_, PyAny>) -> PyResult<()> {
        let bags = self.bags.as_bags();
        self.leased.consume("grads", grads, |lease, grads| lease.apply_bags(bags, grads))
    }

    /// Says that another thread will end this lease; see `Lease.hand_over`.
    ///
    /// Raises:
    ///     ValueError: The lease was consumed before, or the bank is closed.
    fn hand_over(&self) -> PyResult<()> {
        self.leased.cell.hand_over(self.leased.id)
    }

    /// Ends the lease without an update, so that the staleness clocks of its rows no longer count
    /// it. Does nothing if the lease is not held.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.leased.cell.release(py, self.leased.id)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release(py)
    }

    fn __len__(&self) -> usize {
        self.leased.shape[0]
    }

    fn __repr__(&self) -> String {
        self.leased.describe("BagLease")
    }
}

/// A lease of any kind.
#[derive(FromPyObject)]
pub(crate) enum AnyLease<'py> {
    Distinct(Bound<'py, PyDistinctLease>),
    Each(Bound<'py, PyLease>),
    Bags(Bound<'py, PyBagLease>),
}

impl AnyLease<'_> {
    pub(crate) fn leased(&self) -> &LeasedRows {
        match self {
            Self::Distinct(lease) => &lease.get().leased,
            Self::Each(lease) => &lease.get().0,
            Self::Bags(lease) => &lease.get().leased,
        }
    }
}
