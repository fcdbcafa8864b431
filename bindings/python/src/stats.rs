//! Statistics as nested dictionaries.

use embank::{BankStats, LeaseInfo, SpaceHolder, StalenessHistogram, TableStats};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};

/// The bank's counters as the dictionary that the type stub's `_BankStats` describes.
///
/// The crates `embank-kv` and `embank` list all counters in tables, each with its group and name.
pub(crate) fn bank<'py>(
    py: Python<'py>,
    stats: &BankStats,
    holders: &[SpaceHolder],
) -> PyResult<Bound<'py, PyDict>> {
    let store = &stats.store;
    let all = PyDict::new(py);
    all.set_item("device", store.device)?;
    for field in stats.all_fields() {
        let Some(place) = field.place else { continue };
        match place.group {
            Some(name) => group(&all, name)?.set_item(place.name, field.value)?,
            None => all.set_item(place.name, field.value)?,
        }
    }
    group(&all, "memory")?.set_item("used_bytes", stats.memory_used_bytes())?;
    let space = group(&all, "space")?;
    space.set_item("amplification", store.space_amplification())?;
    space.set_item("written_bytes_per_changed_row", store.written_bytes_per_changed_row())?;
    let compaction = group(&all, "compaction")?;
    compaction.set_item("bytes_per_s", store.compaction_bytes_per_s())?;
    compaction.set_item("stopped", &store.compaction_stopped)?;
    group(&all, "cold")?.set_item("debt", store.cold_debt())?;
    all.set_item("staleness", staleness(py, &stats.staleness)?)?;
    all.set_item("device_notes", &store.device_notes)?;
    all.set_item("not_removed", &store.not_removed)?;
    all.set_item("space_holders", space_holders(py, holders)?)?;
    all.set_item("log_address_warning", &store.log_address_warning)?;
    all.set_item("memory_budget_warning", &stats.memory_budget_warning)?;
    Ok(all)
}

/// The dictionary of a group. It is made at the first use.
fn group<'py>(all: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyDict>> {
    if let Some(found) = all.get_item(name)? {
        return Ok(found.cast_into()?);
    }
    let made = PyDict::new(all.py());
    all.set_item(name, &made)?;
    Ok(made)
}

/// Returns a list with one dictionary for each holder: a checkpoint or a scan that keeps disk space
/// in use. The type stub's `_SpaceHolder` lists the keys of such a dictionary.
pub(crate) fn space_holders(py: Python<'_>, holders: &[SpaceHolder]) -> PyResult<Py<PyAny>> {
    let list = PyList::empty(py);
    for holder in holders {
        let one = PyDict::new(py);
        one.set_item("kind", if holder.checkpoint.is_some() { "checkpoint" } else { "scan" })?;
        one.set_item("checkpoint", holder.checkpoint)?;
        let readers = holder.readers.iter().flat_map(|readers| &readers.0);
        one.set_item("readers", readers.map(|reader| reader.process).collect::<Vec<_>>())?;
        one.set_item("bytes", holder.bytes)?;
        list.append(one)?;
    }
    Ok(list.into_any().unbind())
}

/// A table's counters as the dictionary that the type stub's `_TableStats` describes.
pub(crate) fn table<'py>(py: Python<'py>, stats: &TableStats) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for field in stats.fields() {
        all.set_item(field.name, field.value)?;
    }
    all.set_item("staleness", staleness(py, &stats.staleness)?)?;
    Ok(all)
}

/// For each range of staleness clocks (a bucket): the largest clock of the range, and the number of
/// rows whose clock was in the range.
fn staleness<'py>(py: Python<'py>, histogram: &StalenessHistogram) -> PyResult<Bound<'py, PyDict>> {
    histogram.buckets().collect::<Vec<_>>().into_py_dict(py)
}

/// A list with the dictionary that the type stub's `_LeaseInfo` describes for each lease.
pub(crate) fn leases<'py>(
    py: Python<'py>,
    leases: &[LeaseInfo],
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let describe = |lease: &LeaseInfo| {
        let info = PyDict::new(py);
        info.set_item("table", &lease.table)?;
        info.set_item("keys", lease.keys)?;
        info.set_item("age_seconds", lease.age.as_secs_f64())?;
        info.set_item("thread", &lease.thread)?;
        Ok(info)
    };
    leases.iter().map(describe).collect()
}
