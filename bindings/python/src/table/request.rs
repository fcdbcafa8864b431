//! Requests for rows. Every call that gets rows for training makes requests, and `take` serves
//! them.

use std::sync::Arc;
use std::time::Duration;

use embank::{Bags, Pooling, Request, RunningTime};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyTable;
use crate::arrays::{self, Keys, Rows};
use crate::cell::BankCell;
use crate::errors;
use crate::lease::{PyLease, RowsPer};

/// A copy of the bags that Python passed. Another thread may change the arrays while a get waits.
#[derive(Debug)]
pub(super) struct GivenBags {
    offsets: Vec<u64>,
    pooling: Pooling,
    weights: Option<Vec<f32>>,
}

impl GivenBags {
    /// Reads the arguments of a call with `keys` keys.
    ///
    /// # Errors
    /// `TypeError` or `ValueError` for an array of another dtype or shape, or an unknown `pooling`.
    /// The store checks later whether the offsets fit the keys.
    pub(super) fn new(
        keys: usize,
        offsets: &Bound<'_, PyAny>,
        pooling: &str,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let pooling = match pooling {
            "sum" => Pooling::Sum,
            "mean" => Pooling::Mean,
            other => {
                return Err(PyValueError::new_err(format!(
                    "pooling must be \"sum\" or \"mean\", not {other:?}"
                )));
            }
        };
        let offsets = Keys::numbers("offsets", offsets)?.as_slice()?.to_vec();
        let weights = weights.map(|weights| arrays::weights(weights, keys)).transpose()?;
        let weights = weights.map(|weights| weights.as_slice().map(<[f32]>::to_vec)).transpose()?;
        Ok(Self { offsets, pooling, weights })
    }

    pub(super) fn as_bags(&self) -> Bags<'_> {
        let Self { offsets, pooling, weights } = self;
        Bags { offsets, pooling: *pooling, weights: weights.as_deref() }
    }
}

/// What the rows of a request stand for.
#[derive(Debug)]
pub(super) enum GivenPer {
    Key,
    Distinct,
    Bag(GivenBags),
}

/// A request for rows of one table.
pub(super) struct Given<'t, 'py> {
    pub(super) table: &'t PyTable,
    pub(super) keys: Keys<'py>,
    pub(super) per: GivenPer,
    /// Keys that this training step has got before.
    pub(super) earlier: Option<Keys<'py>>,
    /// The array for the rows.
    pub(super) out: Option<Bound<'py, PyAny>>,
}

impl<'t, 'py> Given<'t, 'py> {
    pub(super) fn new(table: &'t PyTable, keys: Keys<'py>, per: GivenPer) -> Self {
        Self { table, keys, per, earlier: None, out: None }
    }

    fn rows(&self, py: Python<'py>, prepared: Option<&Request<'_>>) -> PyResult<Rows<'py>> {
        let (out, dim) = (self.out.as_ref(), self.table.key.dim);
        match (&self.per, prepared) {
            (GivenPer::Bag(bags), _) => Rows::new(py, out, bags.as_bags().len(), dim),
            (_, Some(distinct)) => Rows::first_of(py, out, distinct.row_count(), dim),
            (_, None) => Rows::new(py, out, self.keys.as_slice()?.len(), dim),
        }
    }
}

/// Finds the distinct keys of the requests whose number of rows depends on them. Releases the GIL
/// once.
fn prepared<'g>(
    py: Python<'_>,
    requests: &[&'g Given<'_, '_>],
) -> PyResult<Vec<Option<Request<'g>>>> {
    let distinct = |request: &&'g Given<'_, '_>| {
        let is_distinct = matches!(request.per, GivenPer::Distinct);
        is_distinct.then(|| request.keys.as_slice()).transpose()
    };
    let batches = requests.iter().map(distinct).collect::<PyResult<Vec<_>>>()?;
    if batches.iter().all(Option::is_none) {
        return Ok(batches.iter().map(|_| None).collect());
    }
    let prepare = |keys: &'g [u64]| Request::new(keys).map(Request::distinct);
    let prepared = py.detach(|| {
        let prepared = batches.into_iter().map(|keys| keys.map(prepare).transpose());
        prepared.collect::<embank::Result<Vec<_>>>()
    });
    prepared.map_err(|error| errors::to_python(py, &error))
}

/// Says how long a get may wait for rows above their staleness bound.
#[derive(Debug, Clone, Copy)]
pub(super) enum Waits {
    /// At most for this time, for all requests together. `None` stands for the bank's
    /// `wait_timeout`, for each of them.
    Within(Option<Duration>),
    No,
}

/// Takes one lease for each request, with the GIL released. `None` if a row would make the call
/// wait, and `waits` does not allow that. If one lease can't be taken, none is.
///
/// Takes the leases in the order of the tables' ids. Two calls that wait at staleness bounds
/// therefore never wait for each other.
pub(super) fn take<'py>(
    py: Python<'py>,
    cell: &Arc<BankCell>,
    requests: &[Given<'_, 'py>],
    waits: Waits,
) -> PyResult<Option<Vec<PyLease>>> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&place| requests[place].table.key.id);
    check_distinct(cell, order.iter().map(|&place| requests[place].table))?;
    let requests: Vec<_> = order.iter().map(|&place| &requests[place]).collect();
    let mut rows = Vec::with_capacity(requests.len());
    let mut parts = Vec::with_capacity(requests.len());
    let mut uniques = Vec::with_capacity(requests.len());
    for (request, prepared) in requests.iter().zip(prepared(py, &requests)?) {
        uniques.push(prepared.as_ref().map(|request| {
            let (keys, inverse) = arrays::unique(py, request.unique());
            (keys.unbind(), inverse.unbind())
        }));
        rows.push(request.rows(py, prepared.as_ref())?);
        let bags = match &request.per {
            GivenPer::Bag(bags) => Some(bags.as_bags()),
            GivenPer::Key | GivenPer::Distinct => None,
        };
        let earlier = request.earlier.as_ref().map_or(Ok(&[][..]), Keys::as_slice)?;
        parts.push((prepared, request.keys.as_slice()?, bags, earlier));
    }
    let began = RunningTime::now();
    let mut calls = Vec::with_capacity(requests.len());
    for ((request, part), rows) in requests.iter().zip(parts).zip(&mut rows) {
        let (prepared, keys, bags, earlier) = part;
        let values = rows.as_slice_mut()?;
        let call = move |table: &embank::Table| {
            let request = prepared.map_or_else(|| table.request(keys), Ok)?.earlier(earlier);
            let request = match bags {
                Some(bags) => request.bags(bags),
                None => request,
            };
            match waits {
                Waits::No => table.try_get_rows(request, values),
                Waits::Within(None) => table.get_rows(request, values).map(Some),
                Waits::Within(Some(timeout)) => {
                    let left = timeout.saturating_sub(RunningTime::now().since(began));
                    table.get_rows(request.within(left), values).map(Some)
                }
            }
        };
        calls.push((request.table.key.handle, call));
    }
    let Some(ids) = cell.take_leases(py, calls)? else { return Ok(None) };
    let taken = requests.iter().zip(ids).zip(rows.into_iter().zip(uniques));
    let taken = taken.map(|((request, id), (rows, unique))| {
        let per = match &request.per {
            GivenPer::Key => RowsPer::Key,
            GivenPer::Distinct => RowsPer::Distinct,
            GivenPer::Bag(_) => RowsPer::Bag,
        };
        let name = request.table.key.name.clone();
        PyLease::new(cell.clone(), id, rows.into_array(), name, per, unique)
    });
    let mut leases: Vec<_> = order.into_iter().zip(taken).collect();
    leases.sort_by_key(|(place, _)| *place);
    Ok(Some(leases.into_iter().map(|(_, lease)| lease).collect()))
}

/// Takes one lease for each request. Waits for rows above their staleness bound, for at most
/// `timeout` in all.
pub(super) fn take_all(
    py: Python<'_>,
    cell: &Arc<BankCell>,
    requests: &[Given<'_, '_>],
    timeout: Option<Duration>,
) -> PyResult<Vec<PyLease>> {
    let taken = take(py, cell, requests, Waits::Within(timeout))?;
    Ok(taken.expect("a get that waits ends with leases or an error"))
}

/// Takes one lease on one table. Waits as `take_all` does.
pub(super) fn take_waiting(
    py: Python<'_>,
    request: Given<'_, '_>,
    timeout: Option<Duration>,
) -> PyResult<PyLease> {
    let cell = &request.table.cell.clone();
    let mut leases = take_all(py, cell, &[request], timeout)?;
    Ok(leases.swap_remove(0))
}

/// Fails if a table occurs twice in `tables`, which are in the order of their ids.
fn check_distinct<'t>(cell: &BankCell, tables: impl Iterator<Item = &'t PyTable>) -> PyResult<()> {
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
