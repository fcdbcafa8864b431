//! The methods of a training step: gets under a lease, puts, gradients.

use pyo3::prelude::*;

use super::PyTable;
use super::request::{Given, GivenPer, Waits, take, take_waiting};
use crate::arrays::{self, Keys};
use crate::cell::{LeaseId, lease_of_another_table};
use crate::lease::PyLease;
use crate::scalars;

impl PyTable {
    /// The ids of leases of this bank within its cell.
    pub(crate) fn lease_ids(&self, leases: &[Bound<'_, PyLease>]) -> PyResult<Vec<LeaseId>> {
        let ids = leases.iter().map(|lease| lease.get().id_in(&self.cell));
        ids.collect::<Option<Vec<_>>>().ok_or_else(lease_of_another_table)
    }

    /// Calls the table with keys and one row of values for each key. Errors call the values `name`.
    fn with_batch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        (name, values): (&'static str, &Bound<'_, PyAny>),
        call: fn(&embank::Table, &[u64], &[f32]) -> embank::Result<()>,
    ) -> PyResult<()> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let values = arrays::values(name, values, keys.len(), self.key.dim)?;
        let values = values.as_slice()?;
        self.with(py, |table| call(table, keys, values))
    }
}

#[pymethods]
impl PyTable {
    /// Reads rows for training, and counts a lease on each.
    ///
    /// A key without a row gets one with its initial value. The call waits while more leases hold a
    /// row than the staleness bound allows. A call that fails takes no lease; rows that it has made
    /// before stay, with their initial values.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     out: The array that gets the rows, C-contiguous float32 `(n, dim)`. It is then
    ///         `lease.rows`. After an error its content is unspecified. Default: None, a new array.
    ///     timeout: The longest wait in seconds. Default: the bank's `wait_timeout`.
    ///
    /// Returns:
    ///     A `Lease` with `rows`, float32 `(n, dim)`. The lease counts once on a row whose key
    ///         occurs several times.
    ///
    /// Raises:
    ///     StalenessTimeout: A row stayed over the bound; no lease is taken.
    ///     SelfBlocked: Only leases of this thread hold a row at its bound; no lease is taken.
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it; no lease is taken.
    ///     ValueError, TypeError: The keys are not 1-D, or not integers.
    #[pyo3(signature = (keys, *, out = None, timeout = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<PyLease> {
        let timeout = timeout.map(|timeout| scalars::seconds("timeout", timeout)).transpose()?;
        let request = Given::new(self, Keys::new(keys)?, GivenPer::Key);
        take_waiting(py, Given { out: out.cloned(), ..request }, timeout)
    }

    /// Works as `get`, but returns None if the staleness bound would make it wait. Like `get`, it
    /// reads rows from disk.
    ///
    /// Args:
    ///     keys, out: See `get`.
    ///
    /// Returns:
    ///     A `Lease`, or None if a row is at the staleness bound or is reserved for a get that has
    ///         waited long. With None, the content of `out` is unspecified.
    ///
    /// Raises: the errors of `get`, except `StalenessTimeout` and `SelfBlocked`.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("try.bank", memory_budget="16MiB") as bank:
    /// ...     table = bank.table("user", dim=2, staleness_bound=0)
    /// ...     with table.get([1]):
    /// ...         print(table.try_get([1]))
    /// ...     with table.try_get([1]) as lease:
    /// ...         print(lease.rows.shape)
    /// None
    /// (1, 2)
    #[pyo3(signature = (keys, *, out = None))]
    fn try_get<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<PyLease>> {
        let request = Given::new(self, Keys::new(keys)?, GivenPer::Key);
        let request = Given { out: out.cloned(), ..request };
        let taken = take(py, &self.cell, &[request], Waits::No)?;
        Ok(taken.and_then(|mut leases| leases.pop()))
    }

    /// Works as `get`, with one row for each distinct key.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     out: The array that gets the rows: C-contiguous float32 with `u` or more rows of `dim`,
    ///         where `u` is the number of distinct keys. Its first `u` rows are then `lease.rows`.
    ///         Default: None, a new array.
    ///     earlier: Keys, integers `(m,)`, that this training step has got before, for example for
    ///         another module. The table's admission counts the two gets of such a key as one.
    ///     timeout: The longest wait in seconds. Default: the bank's `wait_timeout`.
    ///
    /// Returns:
    ///     A `Lease` with `rows`, float32 `(u, dim)`, `keys` and `inverse`.
    ///
    /// Raises: the errors of `get`.
    #[pyo3(signature = (keys, *, out = None, earlier = None, timeout = None))]
    fn get_distinct<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        earlier: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<PyLease> {
        let timeout = timeout.map(|timeout| scalars::seconds("timeout", timeout)).transpose()?;
        let earlier = earlier.map(Keys::new).transpose()?;
        let request = Given::new(self, Keys::new(keys)?, GivenPer::Distinct);
        take_waiting(py, Given { earlier, out: out.cloned(), ..request }, timeout)
    }

    /// Writes rows, without a lease.
    ///
    /// An existing row keeps its optimizer state. A new row gets the optimizer's initial state.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     rows: float32 `(n, dim)`. If a key occurs more than once, its last row is kept.
    ///
    /// Raises:
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it; no row changes.
    fn put(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.with_batch(py, keys, ("rows", rows), embank::Table::put)
    }

    /// Applies gradients with the table's optimizer, without a lease.
    ///
    /// A key without a row first gets one with its initial value.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     grads: float32 `(n, dim)`. The gradients of equal keys are summed first.
    ///
    /// Raises:
    ///     ValueError: A gradient is NaN or infinite, or the table has no optimizer; no row
    ///         changes.
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it; no row changes.
    fn apply_gradients(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        grads: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.with_batch(py, keys, ("grads", grads), embank::Table::apply_gradients)
    }

    /// Takes one step for each row of several leases of this table, and consumes the leases.
    ///
    /// Use it for gradients that were summed over several forward passes. The call consumes all
    /// leases or no lease. Rows that were deleted after their get stay deleted. Keys that no lease
    /// holds get no row.
    ///
    /// Args:
    ///     leases: `Lease` objects of this table.
    ///     keys: Integers `(n,)`: the keys of the leases.
    ///     grads: float32 `(n, dim)`. The gradients of equal keys are summed first.
    ///
    /// Raises:
    ///     ValueError: A lease was consumed before or belongs to another table, or a shape is wrong
    ///         (the leases stay as they were). A gradient is NaN or infinite, or the table has no
    ///         optimizer (the call releases the leases).
    ///     LeaseExpired: A lease has expired; no row changes, and the call releases the other
    ///         leases.
    ///     EmbankError: The store failed; the call releases the leases.
    ///
    /// >>> import embank
    /// >>> bank = embank.Bank("together.bank", memory_budget="16MiB")
    /// >>> table = bank.table(
    /// ...     "item", dim=1, optimizer=embank.Adagrad(lr=1.0), initializer=embank.Zeros()
    /// ... )
    /// >>> leases = [table.get_distinct([7, 8]), table.get_distinct([7])]
    /// >>> table.apply_leases(leases, [7, 8, 7], [[1.0], [1.0], [1.0]])
    /// >>> table.peek([7, 8]).tolist(), table.outstanding(7)
    /// ([[-1.0], [-1.0]], 0)
    /// >>> bank.close()
    fn apply_leases(
        &self,
        py: Python<'_>,
        leases: Vec<Bound<'_, PyLease>>,
        keys: &Bound<'_, PyAny>,
        grads: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let grads = arrays::values("grads", grads, keys.len(), self.key.dim)?;
        let grads = grads.as_slice()?;
        let ids = self.lease_ids(&leases)?;
        self.cell.with_leases(py, &[(self.key.handle, ids)], |mut leases| {
            embank::Lease::apply_together(leases.swap_remove(0), keys, grads)
        })
    }
}
