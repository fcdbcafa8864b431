//! Functions that get rows of several tables in one call, and apply their gradients.

use embank::TableGradients;
use numpy::PyReadonlyArray2;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyTable;
use super::request::{Given, GivenPer, check_bank, take_all};
use crate::arrays::{self, Keys};
use crate::cell::BankCell;
use crate::lease::PyLease;
use crate::scalars;

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

/// A table, leases of it, their keys and gradients.
type GivenPart<'py> =
    (Bound<'py, PyTable>, Vec<Bound<'py, PyLease>>, Option<Bound<'py, PyAny>>, Bound<'py, PyAny>);

/// A part of `apply_many`: the step of one table.
struct Part<'py> {
    table: Bound<'py, PyTable>,
    leases: Vec<Bound<'py, PyLease>>,
    /// `None` if the part has one lease and the gradients have the shape of its rows.
    keys: Option<Bound<'py, PyAny>>,
    grads: Bound<'py, PyAny>,
}

/// The arrays of a part, borrowed.
struct PartArrays<'py> {
    keys: Option<Keys<'py>>,
    grads: PyReadonlyArray2<'py, f32>,
}

impl<'py> Part<'py> {
    fn arrays(&self) -> PyResult<PartArrays<'py>> {
        let key = &self.table.get().key;
        let [lease, others @ ..] = &self.leases[..] else {
            let name = &*key.name;
            return Err(PyValueError::new_err(format!("table {name:?} comes without a lease")));
        };
        if let Some(keys) = &self.keys {
            let keys = Keys::new(keys)?;
            let grads = arrays::values("grads", &self.grads, keys.as_slice()?.len(), key.dim)?;
            return Ok(PartArrays { keys: Some(keys), grads });
        }
        if !others.is_empty() {
            return Err(PyValueError::new_err(format!(
                "table {:?} comes with several leases, so its part needs the keys of the gradients",
                &*key.name
            )));
        }
        let [rows, dim] = lease.get().shape();
        Ok(PartArrays { keys: None, grads: arrays::values("grads", &self.grads, rows, dim)? })
    }
}

/// Applies the gradients of several tables of one bank as one step, and consumes the leases.
///
/// The store checks all parts first. If it refuses one part, no row of any table changes.
///
/// Args:
///     parts: Tuples of a table, leases of it, keys (integers `(n,)`, the keys of the leases), and
///         gradients (float32 `(n, dim)`). The gradients of equal keys are summed first. With one
///         lease, keys may be None; the gradients then have the shape of `lease.rows`. No table may
///         occur twice.
///
/// Raises:
///     ValueError: A lease was consumed before or belongs to another table, the tables belong to
///         two banks, or a shape is wrong (the leases stay as they were). A gradient is NaN or
///         infinite, or a table has no optimizer (the call releases the leases). A row would become
///         infinite (it stays as it was, and all other rows took their step).
///     LeaseExpired: A lease has expired; no row changes, and the call releases the other leases.
///     EmbankError: The store failed. The message names the tables that have changed already. The
///         call releases the leases.
///
/// >>> import embank
/// >>> bank = embank.Bank("step.bank", memory_budget="16MiB")
/// >>> a, b = (bank.table(name, dim=1, optimizer=embank.SGD(lr=1.0)) for name in "ab")
/// >>> of_a, of_b = embank.get_many([(a, [7]), (b, [8])])
/// >>> embank.apply_many([(a, [of_a], [7], [[1.0]]), (b, [of_b], [8], [[1.0]])])
/// >>> a.outstanding(7), b.stats()["apply_rows"]
/// (0, 1)
/// >>> bank.close()
#[pyfunction]
pub(crate) fn apply_many(py: Python<'_>, parts: Vec<GivenPart<'_>>) -> PyResult<()> {
    let parts: Vec<Part<'_>> = parts
        .into_iter()
        .map(|(table, leases, keys, grads)| Part { table, leases, keys, grads })
        .collect();
    let Some(first) = parts.first() else { return Ok(()) };
    let cell = first.table.get().cell.clone();
    check_bank(&cell, parts.iter().map(|part| part.table.get()))?;
    check_once(&cell, &parts)?;
    let arrays = parts.iter().map(Part::arrays).collect::<PyResult<Vec<_>>>()?;
    let slices = arrays.iter().map(|PartArrays { keys, grads }| {
        let keys = keys.as_ref().map(Keys::as_slice).transpose()?;
        Ok((keys, grads.as_slice()?))
    });
    let slices = slices.collect::<PyResult<Vec<_>>>()?;
    let ids = parts
        .iter()
        .map(|part| {
            let table = part.table.get();
            Ok((table.key.handle, table.lease_ids(&part.leases)?))
        })
        .collect::<PyResult<Vec<_>>>()?;
    cell.with_leases(py, &ids, |leases| {
        let parts = leases.into_iter().zip(slices);
        let parts = parts
            .map(|(leases, (keys, gradients))| TableGradients { leases, keys, gradients })
            .collect();
        embank::Lease::apply_many(parts)
    })
}

/// Fails if two parts have the same table.
fn check_once(cell: &BankCell, parts: &[Part<'_>]) -> PyResult<()> {
    for (place, part) in parts.iter().enumerate() {
        let key = &part.table.get().key;
        let mut comes_twice = false;
        for earlier in &parts[..place] {
            comes_twice |= cell.is_one_table(&earlier.table.get().key, key)?;
        }
        if comes_twice {
            return Err(PyValueError::new_err(format!(
                "table {:?} comes twice: join its leases, keys and gradients into one part",
                &*key.name
            )));
        }
    }
    Ok(())
}
