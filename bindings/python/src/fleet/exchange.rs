//! What an exchange of `embank.torch.distributed` computes for all of its tables at once: the
//! owners of keys, and copies and sums of rows.
//!
//! A table of a small batch has some hundred rows. NumPy takes longer to start a copy of them than
//! to copy them, and an exchange has several copies for each table and rank. So each function here
//! does the work of all tables, or of all ranks, in one call.

use embank::UniqueKeys;
use embank::fleet::Routing;
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2,
    PyReadwriteArray2, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Keys;
use crate::{errors, scalars};

/// A table's name, keys, and the one shard that holds all of its rows, if there is one.
type Asked<'py> = (String, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Distinct keys, the place of each key of the call among them, the order by rank, and counts.
type Routed<'py> =
    (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Vec<usize>);

/// Finds the distinct keys of several tables, and the ranks that own their rows.
///
/// A pure function of its arguments.
///
/// Args:
///     requests: For each table its name, its keys (integers `(n,)`), and the number of the shard
///         that holds the whole table. None if the keys determine the shard.
///     shard_of_rank: The shard of each rank: each number below the number of ranks once, and at
///         most 4,096 of them.
///
/// Returns:
///     For each table `(distinct, inverse, order, counts)`. `distinct` int64 `(u,)` are the keys,
///     each once, in the order of their first places. `inverse` int64 `(n,)` has the place in
///     `distinct` of each key of the call. `order` int64 `(u,)` are the places in `distinct`,
///     sorted by rank; places of one rank ascend. `counts` is a list with the number of distinct
///     keys of each rank.
///
/// Raises:
///     ValueError, TypeError: An argument is wrong.
#[pyfunction]
pub(crate) fn route_keys<'py>(
    py: Python<'py>,
    requests: Vec<Asked<'py>>,
    shard_of_rank: Vec<usize>,
) -> PyResult<Vec<Routed<'py>>> {
    check_ranks(&shard_of_rank)?;
    // Its upper limit is checked by `Routing::new`.
    let shards = u32::try_from(shard_of_rank.len()).unwrap_or(u32::MAX);
    requests
        .iter()
        .map(|(table, keys, whole)| {
            let routing =
                Routing::new(table, shards).map_err(|error| errors::to_python(py, &error))?;
            let last = u64::from(shards) - 1;
            let whole = whole
                .as_ref()
                .map(|shard| scalars::unsigned("shard", shard, last))
                .transpose()?
                .map(|shard| shard as usize);
            let keys = Keys::new(keys)?;
            let keys = keys.as_slice()?;
            let of_table = py.detach(|| OfTable::new(keys, routing, whole, &shard_of_rank));
            Ok(of_table.map_err(|error| errors::to_python(py, &error))?.into_arrays(py))
        })
        .collect()
}

/// Fails unless each number below the number of ranks occurs once.
fn check_ranks(shard_of_rank: &[usize]) -> PyResult<()> {
    let mut seen = vec![false; shard_of_rank.len()];
    for &shard in shard_of_rank {
        if seen.get(shard) != Some(&false) {
            return Err(PyValueError::new_err(format!(
                "shard_of_rank must have each of the shards 0 to {} once, not {shard_of_rank:?}",
                seen.len().saturating_sub(1)
            )));
        }
        seen[shard] = true;
    }
    Ok(())
}

/// The keys of one table, in the form of `Routed`.
struct OfTable {
    unique: UniqueKeys,
    order: Vec<i64>,
    counts: Vec<usize>,
}

impl OfTable {
    fn new(
        keys: &[u64],
        routing: Routing,
        whole: Option<usize>,
        shard_of_rank: &[usize],
    ) -> embank::Result<Self> {
        let unique = UniqueKeys::new(keys)?;
        let distinct = unique.len();
        if let Some(whole) = whole {
            let of_rank = |&shard: &usize| if shard == whole { distinct } else { 0 };
            return Ok(OfTable {
                unique,
                order: (0..distinct as i64).collect(),
                counts: shard_of_rank.iter().map(of_rank).collect(),
            });
        }
        let routed = routing.route(unique.keys());
        let mut ends = routed.counts.clone();
        for shard in 1..ends.len() {
            ends[shard] += ends[shard - 1];
        }
        let mut order = Vec::with_capacity(distinct);
        for &shard in shard_of_rank {
            let places = &routed.order[ends[shard] - routed.counts[shard]..ends[shard]];
            order.extend(places.iter().map(|&place| place as i64));
        }
        let counts = shard_of_rank.iter().map(|&shard| routed.counts[shard]).collect();
        Ok(OfTable { unique, order, counts })
    }

    fn into_arrays(self, py: Python<'_>) -> Routed<'_> {
        let (keys, inverse) = self.unique.into_parts();
        let keys: Vec<i64> = bytemuck::cast_vec(keys);
        let inverse: Vec<i64> = inverse.into_iter().map(i64::from).collect();
        (keys.into_pyarray(py), inverse.into_pyarray(py), self.order.into_pyarray(py), self.counts)
    }
}

/// Rows `(n, dim)`, and places in them.
type Places<'py> = (Bound<'py, PyArray2<f32>>, Bound<'py, PyArray1<i64>>);
type BorrowedPlaces<'py> = (PyReadonlyArray2<'py, f32>, PyReadonlyArray1<'py, i64>);

fn borrowed<'py>(parts: &[Places<'py>]) -> PyResult<Vec<BorrowedPlaces<'py>>> {
    parts
        .iter()
        .map(|(rows, places)| {
            check_order(rows)?;
            Ok((rows.try_readonly()?, places.try_readonly()?))
        })
        .collect()
}

/// Fails unless the values of a row are side by side. `as_slice` also takes arrays in Fortran's
/// order.
fn check_order(rows: &Bound<'_, PyArray2<f32>>) -> PyResult<()> {
    match rows.is_c_contiguous() {
        true => Ok(()),
        false => Err(PyValueError::new_err("rows must be C-contiguous")),
    }
}

/// Copies rows of several arrays one behind the other.
///
/// Args:
///     parts: Pairs of rows, float32 `(n, dim)`, and the places of the rows to copy, int64 `(m,)`.
///         All arrays are C-contiguous. `dim` may differ.
///     out: The float32 array `(k,)` for the values. It must have room for these values and no
///         others.
///
/// Raises:
///     ValueError: A place is out of range, `out` has another length, or rows are not
///         C-contiguous.
#[pyfunction]
pub(crate) fn take_rows(
    py: Python<'_>,
    parts: Vec<Places<'_>>,
    out: &Bound<'_, PyArray1<f32>>,
) -> PyResult<()> {
    let parts = borrowed(&parts)?;
    let slices = parts
        .iter()
        .map(|(rows, places)| Ok((rows.as_slice()?, rows.shape()[1], places.as_slice()?)))
        .collect::<PyResult<Vec<_>>>()?;
    let mut out = out.try_readwrite()?;
    let mut out = out.as_slice_mut()?;
    let done = py.detach(|| {
        for (rows, dim, places) in slices {
            let (to, rest) = out.split_at_mut_checked(places.len() * dim)?;
            for (to, &place) in to.chunks_exact_mut(dim.max(1)).zip(places) {
                to.copy_from_slice(row(rows, dim, place)?);
            }
            out = rest;
        }
        out.is_empty().then_some(())
    });
    done.ok_or_else(|| PyValueError::new_err("a place is out of range, or out has another length"))
}

/// Copies rows that lie one behind the other to places in several arrays: the inverse of
/// `take_rows`.
///
/// Args:
///     parts: Pairs of rows, float32 `(n, dim)`, and the places to write to, int64 `(m,)`. All
///         arrays are C-contiguous. `dim` may differ.
///     values: The float32 array `(k,)` with the values of all these rows and no others.
///
/// Raises:
///     ValueError: A place is out of range, `values` has another length, or rows are not
///         C-contiguous.
#[pyfunction]
pub(crate) fn place_rows(
    py: Python<'_>,
    parts: Vec<Places<'_>>,
    values: &Bound<'_, PyArray1<f32>>,
) -> PyResult<()> {
    let mut parts = parts
        .iter()
        .map(|(rows, places)| {
            check_order(rows)?;
            Ok((rows.try_readwrite()?, places.try_readonly()?))
        })
        .collect::<PyResult<Vec<(PyReadwriteArray2<'_, f32>, PyReadonlyArray1<'_, i64>)>>>()?;
    let slices = parts
        .iter_mut()
        .map(|(rows, places)| {
            let dim = rows.shape()[1];
            Ok((rows.as_slice_mut()?, dim, places.as_slice()?))
        })
        .collect::<PyResult<Vec<_>>>()?;
    let values = values.try_readonly()?;
    let mut values = values.as_slice()?;
    let done = py.detach(|| {
        for (rows, dim, places) in slices {
            let (from, rest) = values.split_at_checked(places.len() * dim)?;
            for (from, &place) in from.chunks_exact(dim.max(1)).zip(places) {
                row_mut(rows, dim, place)?.copy_from_slice(from);
            }
            values = rest;
        }
        values.is_empty().then_some(())
    });
    done.ok_or_else(|| {
        PyValueError::new_err("a place is out of range, or values has another length")
    })
}

/// Adds rows of several ranks, and divides the sums.
///
/// Args:
///     count: The number of sums.
///     dim: The width of a row.
///     parts: For each rank, in the order in which they are added, its rows, float32 `(m, dim)`,
///         and the place of each in the sums, int64 `(m,)`. All arrays are C-contiguous.
///     divisor: The number by which each sum is divided.
///
/// Returns:
///     The sums, float32 `(count, dim)`. A sum without a row is 0.
///
/// Raises:
///     ValueError: A place is out of range, rows have another width or number than places, or they
///         are not C-contiguous.
#[pyfunction]
pub(crate) fn sum_rows<'py>(
    py: Python<'py>,
    count: usize,
    dim: usize,
    parts: Vec<Places<'py>>,
    divisor: f32,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let parts = borrowed(&parts)?;
    let slices = parts
        .iter()
        .map(|(rows, places)| Ok((rows.as_slice()?, places.as_slice()?)))
        .collect::<PyResult<Vec<_>>>()?;
    let sums = PyArray2::<f32>::zeros(py, [count, dim], false);
    let mut borrowed = sums.try_readwrite()?;
    let values = borrowed.as_slice_mut()?;
    let done = py.detach(|| {
        for (rows, places) in slices {
            if rows.len() != places.len() * dim {
                return None;
            }
            for (row, &place) in rows.chunks_exact(dim.max(1)).zip(places) {
                let sum = row_mut(values, dim, place)?;
                sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
        // Division by 1 changes no value.
        values.iter_mut().for_each(|sum| *sum /= divisor);
        Some(())
    });
    drop(borrowed);
    done.ok_or_else(|| {
        PyValueError::new_err("a place is out of range, or rows have another width or number")
    })?;
    Ok(sums)
}

/// `None` if `place` is out of range.
#[inline]
fn row(rows: &[f32], dim: usize, place: i64) -> Option<&[f32]> {
    let begin = usize::try_from(place).ok()?.checked_mul(dim)?;
    rows.get(begin..begin.checked_add(dim)?)
}

/// `None` if `place` is out of range.
#[inline]
fn row_mut(rows: &mut [f32], dim: usize, place: i64) -> Option<&mut [f32]> {
    let begin = usize::try_from(place).ok()?.checked_mul(dim)?;
    rows.get_mut(begin..begin.checked_add(dim)?)
}
