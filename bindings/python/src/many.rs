//! Rows of several tables in one call.

use std::sync::Arc;

use embank::UniqueKeys;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::{self, Keys, Rows};
use crate::bank_cell::BankCell;
use crate::lease::{Held, PyDistinctLease};
use crate::table::PyTable;

/// Reads rows of several tables of one bank for training: `Table.get_distinct` on each, in one call.
///
/// The GIL is released once. All leases are taken or none, in the order of the tables and not of `requests`, so
/// threads that ask for several tables at once never wait for each other for ever.
///
/// Args:
///     requests: Pairs of a table and its keys, integers `(n,)`; each table once.
///
/// Returns:
///     A list of `DistinctLease`, one for each request.
///
/// Raises:
///     StalenessTimeout: A row of one of the tables stayed beyond its bound; nothing is held.
///     SelfBlocked: Leases of this thread alone hold a row at its bound; nothing is held.
///     UnknownValue: A table has a vocabulary, and a key is no id of it; nothing is held.
///     ValueError, TypeError: Keys are not 1-D, or no integers; a table comes twice; tables of two banks.
///
/// >>> import embank
/// >>> bank = embank.Bank("many.bank", memory_budget="16MiB")
/// >>> users, items = bank.table("user", dim=2), bank.table("item", dim=3)
/// >>> leases = embank.get_many([(users, [7, 7, 9]), (items, [1])])
/// >>> [lease.rows.shape for lease in leases]
/// [(2, 2), (1, 3)]
/// >>> bank.close()
#[pyfunction]
pub(crate) fn get_many<'py>(
    py: Python<'py>,
    requests: Vec<(Bound<'py, PyTable>, Bound<'py, PyAny>)>,
) -> PyResult<Vec<PyDistinctLease>> {
    let Some((first, _)) = requests.first() else { return Ok(Vec::new()) };
    let cell = first.get().cell.clone();
    if let Some((other, _)) = requests.iter().find(|(of, _)| !Arc::ptr_eq(&of.get().cell, &cell)) {
        return Err(PyValueError::new_err(format!(
            "tables {:?} and {:?} are of two banks: make one call for each bank",
            &*first.get().key.name,
            &*other.get().key.name
        )));
    }
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&at| requests[at].0.get().key.number);
    for pair in order.windows(2) {
        let table = &requests[pair[1]].0.get().key;
        if requests[pair[0]].0.get().key.number == table.number {
            return Err(PyValueError::new_err(format!(
                "table {:?} comes twice: join its keys into one request",
                &*table.name
            )));
        }
    }
    let mut leases: Vec<_> =
        order.iter().copied().zip(take(py, &cell, &requests, &order)?).collect();
    leases.sort_by_key(|(at, _)| *at);
    Ok(leases.into_iter().map(|(_, lease)| lease).collect())
}

/// One lease for each request, in the given order.
fn take<'py>(
    py: Python<'py>,
    cell: &Arc<BankCell>,
    requests: &[(Bound<'py, PyTable>, Bound<'py, PyAny>)],
    order: &[usize],
) -> PyResult<Vec<PyDistinctLease>> {
    let requests: Vec<_> = order.iter().map(|&at| &requests[at]).collect();
    let tables: Vec<&PyTable> = requests.iter().map(|(table, _)| table.get()).collect();
    let keys = requests.iter().map(|(_, keys)| Keys::new(keys)).collect::<PyResult<Vec<_>>>()?;
    let slices = keys.iter().map(Keys::as_slice).collect::<PyResult<Vec<_>>>()?;
    let distinct: Vec<UniqueKeys> = py.detach(|| slices.into_iter().map(UniqueKeys::new).collect());
    let names: Vec<_> = distinct.iter().map(|unique| arrays::unique(py, unique)).collect();
    let mut rows = tables
        .iter()
        .zip(&distinct)
        .map(|(table, unique)| Rows::new(py, None, unique.len(), table.key.dim))
        .collect::<PyResult<Vec<_>>>()?;
    let values = rows.iter_mut().map(Rows::as_slice_mut).collect::<PyResult<Vec<_>>>()?;
    let calls = tables
        .iter()
        .zip(distinct.into_iter().zip(values))
        .map(|(table, (unique, values))| {
            (table.key.number, move |table: &embank::Table| table.get_distinct(unique, values))
        })
        .collect();
    let ids = cell.take_leases(py, calls)?;
    let made = tables.into_iter().zip(ids).zip(rows).zip(names);
    Ok(made
        .map(|(((table, id), rows), (keys, inverse))| PyDistinctLease {
            held: Held::new(cell.clone(), id, rows.into_array(), table.key.name.clone()),
            keys: keys.unbind(),
            inverse: inverse.unbind(),
        })
        .collect())
}
