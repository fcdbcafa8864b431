//! The calls that get rows under a lease: on a table, and on several tables at once.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyTable;
use super::request::{Given, GivenBags, GivenPer, Waits, check_bank, take, take_all, take_waiting};
use crate::arrays::Keys;
use crate::lease::PyLease;
use crate::scalars;

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
}

/// Reads rows of several tables of one bank for training: `Table.get_distinct` on each, in one
/// call.
///
/// The call releases the GIL once. It takes all leases or no lease. It takes them in an order of
/// the tables that does not depend on `requests`. So threads that get rows of several tables never
/// block each other forever.
///
/// Args:
///     requests: Pairs of a table and its keys, integers `(n,)`. No table may occur twice.
///     earlier: For each request the `earlier` of `get_distinct`, or None. Default: None for all.
///     timeout: The longest wait in seconds for the rows of all tables together. Default: the
///         bank's `wait_timeout` for each table.
///
/// Returns:
///     A list of `Lease`, one for each request.
///
/// Raises:
///     StalenessTimeout: A row of one of the tables stayed over its bound; no lease is taken.
///     SelfBlocked: Only leases of this thread hold a row at its bound; no lease is taken.
///     UnknownValue: A table has a vocabulary, and a key is no id of it; no lease is taken.
///     ValueError, TypeError: Keys are not 1-D or not integers, a table occurs twice, or the tables
///         belong to two banks.
///
/// >>> import embank
/// >>> bank = embank.Bank("many.bank", memory_budget="16MiB")
/// >>> users, items = bank.table("user", dim=2), bank.table("item", dim=3)
/// >>> leases = embank.get_many([(users, [7, 7, 9]), (items, [1])])
/// >>> [lease.rows.shape for lease in leases]
/// [(2, 2), (1, 3)]
/// >>> bank.close()
#[pyfunction]
#[pyo3(signature = (requests, *, earlier = None, timeout = None))]
pub(crate) fn get_many<'py>(
    py: Python<'py>,
    requests: Vec<(Bound<'py, PyTable>, Bound<'py, PyAny>)>,
    earlier: Option<Vec<Option<Bound<'py, PyAny>>>>,
    timeout: Option<f64>,
) -> PyResult<Vec<PyLease>> {
    let timeout = timeout.map(|timeout| scalars::seconds("timeout", timeout)).transpose()?;
    let earlier = earlier.unwrap_or_else(|| requests.iter().map(|_| None).collect());
    if earlier.len() != requests.len() {
        return Err(PyValueError::new_err(format!(
            "earlier must have one entry for each of the {} requests, found {}",
            requests.len(),
            earlier.len()
        )));
    }
    let Some((first, _)) = requests.first() else { return Ok(Vec::new()) };
    let cell = first.get().cell.clone();
    check_bank(&cell, requests.iter().map(|(table, _)| table.get()))?;
    let requests = requests
        .iter()
        .zip(&earlier)
        .map(|((table, keys), earlier)| {
            let request = Given::new(table.get(), Keys::new(keys)?, GivenPer::Distinct);
            Ok(Given { earlier: earlier.as_ref().map(Keys::new).transpose()?, ..request })
        })
        .collect::<PyResult<Vec<_>>>()?;
    take_all(py, &cell, &requests, timeout)
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
