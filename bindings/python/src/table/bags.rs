//! Bags: several rows that the store pools to one.

use numpy::PyArray2;
use pyo3::prelude::*;

use super::PyTable;
use super::request::{Given, GivenBags, GivenPer, check_bank, take_all, take_waiting};
use crate::arrays::{Keys, Rows};
use crate::lease::PyLease;
use crate::scalars;

#[pymethods]
impl PyTable {
    /// Reads rows for training, pools the rows of each bag to one, and counts a lease on each row.
    ///
    /// The call does not return the single rows. A key without a row gets one with its initial
    /// value. The call waits as `get` does.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     offsets: Integers `(bags + 1,)`: bag i has the keys `keys[offsets[i]:offsets[i + 1]]`.
    ///         The first offset is 0 and the last one n. An empty bag gives zeros.
    ///     pooling: "sum" or "mean".
    ///     weights: float32 `(n,)`: the factor of each key's row. Allowed only with pooling "sum".
    ///         Default: None, all factors are 1.
    ///     out: The array that gets the bags, C-contiguous float32 `(bags, dim)`. It is then
    ///         `lease.rows`. Default: None, a new array.
    ///     timeout: The longest wait in seconds. Default: the bank's `wait_timeout`.
    ///
    /// Returns:
    ///     A `Lease` with `rows`, float32 `(bags, dim)`. The lease counts once on a row whose
    ///         key occurs several times.
    ///
    /// Raises: the errors of `get`; `ValueError` for offsets or weights that do not fit the keys.
    #[pyo3(signature = (keys, offsets, *, pooling = "sum", weights = None, out = None, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn get_bags<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        pooling: &str,
        weights: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<PyLease> {
        let timeout = timeout.map(|timeout| scalars::seconds("timeout", timeout)).transpose()?;
        let keys = Keys::new(keys)?;
        let bags = GivenBags::new(keys.as_slice()?.len(), offsets, pooling, weights)?;
        let request = Given::new(self, keys, GivenPer::Bag(bags));
        let request = Given { out: out.cloned(), ..request };
        take_waiting(py, request, timeout)
    }

    /// Reads rows for evaluation and pools the rows of each bag to one. It takes no lease, inserts
    /// nothing and never waits for a bound. A key without a row counts with its initial value.
    ///
    /// Args:
    ///     keys, offsets, pooling, weights, out: See `get_bags`.
    ///
    /// Returns:
    ///     float32 `(bags, dim)`.
    ///
    /// Raises:
    ///     UnknownValue: A key without a row is no id of the table's vocabulary.
    ///     ValueError: Offsets or weights do not fit the keys.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("peek_bags.bank", memory_budget="16MiB") as bank:
    /// ...     table = bank.table("item", dim=1)
    /// ...     table.put([1, 2], [[3.0], [5.0]])
    /// ...     table.peek_bags([1, 2], [0, 2, 2], pooling="mean").tolist()
    /// [[4.0], [0.0]]
    #[pyo3(signature = (keys, offsets, *, pooling = "sum", weights = None, out = None))]
    fn peek_bags<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        pooling: &str,
        weights: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let bags = GivenBags::new(keys.len(), offsets, pooling, weights)?;
        let bags = bags.as_bags();
        let mut rows = Rows::new(py, out, bags.len(), self.key.dim)?;
        let values = rows.as_slice_mut()?;
        self.with(py, |table| table.peek_bags(keys, bags, values))?;
        Ok(rows.into_array())
    }
}

/// A table, its keys, offsets, pooling, and weights or None.
type GivenRequest<'py> =
    (Bound<'py, PyTable>, Bound<'py, PyAny>, Bound<'py, PyAny>, String, Option<Bound<'py, PyAny>>);

/// Reads bags of several tables of one bank for training: `Table.get_bags` on each, in one call.
///
/// The call releases the GIL once. It takes all leases or no lease, in the order of the tables, as
/// `get_many` does.
///
/// Args:
///     requests: Tuples `(table, keys, offsets, pooling, weights)` as for `Table.get_bags`; weights
///         may be None. No table may occur twice.
///
/// Returns:
///     A list of `Lease`, one for each request.
///
/// Raises: the errors of `get_many`.
///
/// >>> import embank
/// >>> bank = embank.Bank("many_bags.bank", memory_budget="16MiB")
/// >>> users, items = bank.table("user", dim=2), bank.table("item", dim=3)
/// >>> leases = embank.get_bags_many(
/// ...     [(users, [7, 7, 9], [0, 3], "sum", None), (items, [1], [0, 1, 1], "mean", None)]
/// ... )
/// >>> [lease.rows.shape for lease in leases]
/// [(1, 2), (2, 3)]
/// >>> bank.close()
#[pyfunction]
pub(crate) fn get_bags_many(
    py: Python<'_>,
    requests: Vec<GivenRequest<'_>>,
) -> PyResult<Vec<PyLease>> {
    let Some((first, ..)) = requests.first() else { return Ok(Vec::new()) };
    let cell = first.get().cell.clone();
    check_bank(&cell, requests.iter().map(|(table, ..)| table.get()))?;
    let requests = requests
        .iter()
        .map(|(table, keys, offsets, pooling, weights)| {
            let keys = Keys::new(keys)?;
            let bags = GivenBags::new(keys.as_slice()?.len(), offsets, pooling, weights.as_ref())?;
            Ok(Given::new(table.get(), keys, GivenPer::Bag(bags)))
        })
        .collect::<PyResult<Vec<_>>>()?;
    take_all(py, &cell, &requests, None)
}
