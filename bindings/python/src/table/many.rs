//! Functions that get rows of several tables in one call, and apply their gradients.

use std::sync::Arc;
use std::time::Duration;

use embank::{GradientPer, RunningTime, TableGradients, UniqueKeys};
use numpy::PyReadonlyArray2;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyTable;
use super::training::within;
use crate::arrays::{self, Keys, Rows};
use crate::cell::BankCell;
use crate::lease::{AnyLease, PyDistinctLease};
use crate::{errors, scalars};

/// A request of `get_many`: the keys of one table.
struct Request<'py> {
    table: Bound<'py, PyTable>,
    keys: Keys<'py>,
    /// Keys that this training step has got before.
    earlier: Option<Keys<'py>>,
    /// The request's index among all requests.
    place: usize,
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
///     A list of `DistinctLease`, one for each request.
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
) -> PyResult<Vec<PyDistinctLease>> {
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
    let mut requests: Vec<_> = requests.into_iter().zip(earlier).enumerate().collect();
    requests.sort_by_key(|(_, ((table, _), _))| table.get().key.id);
    check_distinct(&cell, requests.iter().map(|(_, ((table, _), _))| table.get()))?;
    let in_order = requests
        .into_iter()
        .map(|(place, ((table, keys), earlier))| {
            let earlier = earlier.as_ref().map(Keys::new).transpose()?;
            Ok(Request { table, keys: Keys::new(&keys)?, earlier, place })
        })
        .collect::<PyResult<Vec<_>>>()?;
    let taken = take(py, &cell, &in_order, timeout)?;
    let mut leases: Vec<_> = in_order.iter().map(|request| request.place).zip(taken).collect();
    leases.sort_by_key(|(place, _)| *place);
    Ok(leases.into_iter().map(|(_, lease)| lease).collect())
}

/// Fails if a table occurs twice in `tables`, which are in the order of their ids.
pub(super) fn check_distinct<'t>(
    cell: &BankCell,
    tables: impl Iterator<Item = &'t PyTable>,
) -> PyResult<()> {
    let mut before: Option<&PyTable> = None;
    for table in tables {
        let key = &table.key;
        if let Some(before) = before.replace(table)
            && cell.is_one_table(&before.key, key)?
        {
            return Err(PyValueError::new_err(format!(
                "table {:?} comes twice: join its keys into one request",
                &*key.name
            )));
        }
    }
    Ok(())
}

/// Fails if a table belongs to another bank than `cell`.
pub(super) fn check_bank<'t>(
    cell: &Arc<BankCell>,
    mut tables: impl Iterator<Item = &'t PyTable>,
) -> PyResult<()> {
    let Some(other) = tables.find(|table| !Arc::ptr_eq(&table.cell, cell)) else { return Ok(()) };
    Err(PyValueError::new_err(format!(
        "table {:?} of {} and the first one, of {}, are of two banks: make one call for each bank",
        &*other.key.name,
        other.cell.path().display(),
        cell.path().display()
    )))
}

/// A table, leases of it, their keys and gradients.
type GivenPart<'py> =
    (Bound<'py, PyTable>, Vec<AnyLease<'py>>, Option<Bound<'py, PyAny>>, Bound<'py, PyAny>);

/// A part of `apply_many`: the step of one table.
struct Part<'py> {
    table: Bound<'py, PyTable>,
    leases: Vec<AnyLease<'py>>,
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
        if let ([], AnyLease::Distinct(lease)) = (others, lease) {
            let keys = Keys::new(lease.get().keys.bind(lease.py()).as_any())?;
            let grads = arrays::values("grads", &self.grads, keys.as_slice()?.len(), key.dim)?;
            return Ok(PartArrays { keys: Some(keys), grads });
        }
        if !others.is_empty() {
            return Err(PyValueError::new_err(format!(
                "table {:?} comes with several leases, so its part needs the keys of the gradients",
                &*key.name
            )));
        }
        let [rows, dim] = lease.leased().shape();
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
    let mut slices = Vec::with_capacity(arrays.len());
    for (part, arrays) in parts.iter().zip(&arrays) {
        let (keys, per) = match (&arrays.keys, &part.leases[0]) {
            (Some(keys), _) => (keys.as_slice()?, GradientPer::Key),
            (None, AnyLease::Distinct(_) | AnyLease::Each(_)) => (&[][..], GradientPer::Place),
            (None, AnyLease::Bags(lease)) => {
                (&[][..], GradientPer::Bag(lease.get().bags.as_bags()))
            }
        };
        slices.push((keys, arrays.grads.as_slice()?, per));
    }
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
            .map(|(leases, (keys, gradients, per))| TableGradients { leases, keys, gradients, per })
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

/// One lease for each request, in their order.
fn take(
    py: Python<'_>,
    cell: &Arc<BankCell>,
    requests: &[Request<'_>],
    timeout: Option<Duration>,
) -> PyResult<Vec<PyDistinctLease>> {
    let keys =
        requests.iter().map(|request| request.keys.as_slice()).collect::<PyResult<Vec<_>>>()?;
    let earlier = requests
        .iter()
        .map(|request| request.earlier.as_ref().map_or(Ok(&[][..]), Keys::as_slice))
        .collect::<PyResult<Vec<_>>>()?;
    let distinct: embank::Result<Vec<UniqueKeys>> =
        py.detach(|| keys.into_iter().map(UniqueKeys::new).collect());
    let distinct = distinct.map_err(|error| errors::to_python(py, &error))?;
    let names: Vec<_> = distinct.iter().map(|unique| arrays::unique(py, unique)).collect();
    let mut rows = requests
        .iter()
        .zip(&distinct)
        .map(|(request, unique)| Rows::new(py, None, unique.len(), request.table.get().key.dim))
        .collect::<PyResult<Vec<_>>>()?;
    let values = rows.iter_mut().map(Rows::as_slice_mut).collect::<PyResult<Vec<_>>>()?;
    let began = RunningTime::now();
    let calls = requests
        .iter()
        .zip(distinct.into_iter().zip(values).zip(earlier))
        .map(|(request, ((unique, values), earlier))| {
            (request.table.get().key.handle, move |table: &embank::Table| {
                let left =
                    timeout.map(|timeout| timeout.saturating_sub(RunningTime::now().since(began)));
                within(table, left).get_distinct_again(unique, values, earlier)
            })
        })
        .collect();
    let ids = cell.take_leases(py, calls)?;
    let mut leases = Vec::with_capacity(requests.len());
    for (((request, id), rows), (keys, inverse)) in requests.iter().zip(ids).zip(rows).zip(names) {
        leases.push(PyDistinctLease {
            leased: request.table.get().leased(id, rows),
            keys: keys.unbind(),
            inverse: inverse.unbind(),
        });
    }
    Ok(leases)
}
