//! Life of a row: admission, tracking and eviction.

use std::ops::ControlFlow;

use embank::{Admission, Evicted, Eviction, Tracking};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cell::bank_cell::{BankCell, CellTableId};
use crate::scalars;
use crate::table::files::Progress;

pub(crate) fn tracking(name: Option<&str>) -> PyResult<Tracking> {
    match name {
        None => Ok(Tracking::None),
        Some("minutes") => Ok(Tracking::Minutes),
        Some("set_time") => Ok(Tracking::SetTime),
        Some(other) => Err(PyValueError::new_err(format!(
            "tracking must be \"minutes\", \"set_time\" or None, not {other:?}"
        ))),
    }
}

pub(crate) fn admission(
    after_gets: Option<&Bound<'_, PyAny>>,
    probability: Option<f64>,
) -> PyResult<Admission> {
    match (after_gets, probability) {
        (None, None) => Ok(Admission::Always),
        (Some(gets), None) => {
            Ok(Admission::AfterGets(scalars::unsigned_32("admit_after_gets", gets)?))
        }
        (None, Some(probability)) => Ok(Admission::Probability(probability as f32)),
        (Some(_), Some(_)) => Err(PyValueError::new_err(
            "give one of admit_after_gets and admit_probability, not both",
        )),
    }
}

/// What `Table.evict` takes.
pub(crate) struct EvictArguments<'py> {
    pub(crate) unused_for: Option<Bound<'py, PyAny>>,
    pub(crate) used_fewer_than: Option<Bound<'py, PyAny>>,
    pub(crate) norm_below: Option<f64>,
    pub(crate) dry_run: bool,
    pub(crate) keys: bool,
    pub(crate) progress: Option<Bound<'py, PyAny>>,
}

pub(crate) fn evict<'py>(
    py: Python<'py>,
    table: (&BankCell, CellTableId),
    arguments: EvictArguments<'py>,
) -> PyResult<Bound<'py, PyDict>> {
    let EvictArguments { unused_for, used_fewer_than, norm_below, dry_run, keys, progress } =
        arguments;
    let number = |name, value: Option<Bound<'py, PyAny>>| {
        value.map(|value| scalars::unsigned_32(name, &value)).transpose()
    };
    let mut eviction = Eviction::new().dry_run(dry_run);
    eviction.unused_for = number("unused_for", unused_for)?;
    eviction.used_fewer_than = number("used_fewer_than", used_fewer_than)?;
    eviction.norm_below = norm_below.map(|norm| norm as f32);
    let (evicted, gone): (Evicted, Vec<u64>) =
        Progress::new(progress).through(py, table, |table, tell| {
            let mut gone = Vec::new();
            let list = |batch: &[u64]| {
                if keys {
                    gone.extend_from_slice(batch);
                }
            };
            let tell = |progress| -> ControlFlow<()> { tell(progress) };
            let evicted = table.evict_with(&eviction, list, tell)?;
            Ok((evicted, gone))
        })?;
    let found = PyDict::new(py);
    found.set_item("checkpoint", evicted.checkpoint)?;
    found.set_item("examined", evicted.examined)?;
    found.set_item("rows", evicted.rows)?;
    found.set_item("leased", evicted.leased)?;
    found.set_item("counts", evicted.counts)?;
    found.set_item("keys", keys.then(|| PyArray1::from_vec(py, gone)))?;
    Ok(found)
}
