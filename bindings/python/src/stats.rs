//! Statistics as nested dictionaries.

use embank::{BankStats, LeaseInfo, SpaceHolder, StalenessHistogram, TableStats};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};

/// The shape that the type stub's `BankStats` describes.
pub(crate) fn bank<'py>(
    py: Python<'py>,
    stats: &BankStats,
    holders: &[SpaceHolder],
) -> PyResult<Bound<'py, PyDict>> {
    let store = &stats.store;
    let ahead = &stats.lookahead;
    let all = PyDict::new(py);
    let used_bytes = store.memory_frames_bytes
        + store.memory_index_bytes
        + store.memory_cache_bytes
        + store.memory_buffers_bytes
        + ahead.memory_bytes;
    all.set_item("device", store.device)?;
    all.set_item(
        "memory",
        [
            ("budget_bytes", stats.memory_budget_bytes),
            ("frames_bytes", store.memory_frames_bytes),
            ("index_bytes", store.memory_index_bytes),
            ("cache_bytes", store.memory_cache_bytes),
            ("buffers_bytes", store.memory_buffers_bytes),
            ("lookahead_bytes", ahead.memory_bytes),
            ("used_bytes", used_bytes),
        ]
        .into_py_dict(py)?,
    )?;
    all.set_item(
        "hits",
        [
            ("mutable", store.hits_mutable),
            ("read_only", store.hits_read_only),
            ("cache", store.hits_cache),
            ("disk", store.hits_disk),
            ("missing", store.missing),
        ]
        .into_py_dict(py)?,
    )?;
    all.set_item(
        "log",
        [
            ("begin", store.log_begin),
            ("head", store.log_head),
            ("read_only", store.log_read_only),
            ("tail", store.log_tail),
            ("page_size_bytes", store.page_size_bytes),
            ("address_left_bytes", store.log_address_left_bytes),
        ]
        .into_py_dict(py)?,
    )?;
    all.set_item(
        "disk",
        [
            ("reads", store.disk_reads),
            ("reads_joined", store.disk_reads_joined),
            ("queue_depth_max", store.disk_queue_depth_max),
            ("read_bytes", store.disk_read_bytes),
            ("write_bytes", store.disk_write_bytes),
        ]
        .into_py_dict(py)?,
    )?;
    all.set_item(
        "lookahead",
        [
            ("requested", ahead.requested),
            ("resident", ahead.resident),
            ("queued", ahead.queued),
            ("merged", ahead.merged),
            ("dropped", ahead.dropped),
            ("moved", ahead.moved),
            ("on_time", ahead.on_time),
            ("late", ahead.late),
            ("wasted", ahead.wasted),
            ("missing", ahead.missing),
            ("cancelled", ahead.cancelled),
            ("failed", ahead.failed),
            ("kept", ahead.kept),
            ("reading_us", ahead.reading_us),
            ("depth", ahead.depth),
            ("pending", ahead.pending),
            ("capacity", ahead.capacity),
        ]
        .into_py_dict(py)?,
    )?;
    all.set_item(
        "operations",
        [
            ("batches", store.batches),
            ("peek_keys", store.peek_keys),
            ("get_keys", store.get_keys),
            ("update_keys", store.update_keys),
            ("put_keys", store.put_keys),
            ("delete_keys", store.delete_keys),
            ("changed", store.changed),
            ("deleted", store.deleted),
        ]
        .into_py_dict(py)?,
    )?;
    all.set_item(
        "stalls",
        [
            ("page_waits", store.page_waits),
            ("page_waits_us", store.page_waits_us),
            ("page_waits_us_max", store.page_waits_us_max),
            ("growth_steps", store.growth_steps),
            ("growth_steps_us", store.growth_steps_us),
            ("growth_steps_us_max", store.growth_steps_us_max),
            ("growth_steps_cpu_us_max", store.growth_steps_cpu_us_max),
            ("checkpoint_pauses_us", store.checkpoint_pauses_us),
            ("checkpoint_pauses_us_max", store.checkpoint_pauses_us_max),
            ("compaction_waits", store.compaction_waits),
            ("compaction_waits_us", store.compaction_waits_us),
            ("compaction_waits_us_max", store.compaction_waits_us_max),
        ]
        .into_py_dict(py)?,
    )?;
    let space = [
        ("live_rows", store.live_rows),
        ("live_bytes", store.live_bytes),
        ("log_disk_bytes", store.log_disk_bytes),
        ("log_held_bytes", store.log_held_bytes),
        ("freed_bytes", store.freed_bytes),
        ("segments_freed", store.segments_freed),
    ]
    .into_py_dict(py)?;
    space.set_item("amplification", store.space_amplification())?;
    space.set_item("written_bytes_per_changed_row", store.written_bytes_per_changed_row())?;
    all.set_item("space", space)?;
    let compaction = [
        ("compacted_bytes", store.compacted_bytes),
        ("copied_bytes", store.compaction_copied_bytes),
        ("us", store.compaction_us),
    ]
    .into_py_dict(py)?;
    compaction.set_item("bytes_per_s", store.compaction_bytes_per_s())?;
    compaction.set_item("stopped", &store.compaction_stopped)?;
    all.set_item("compaction", compaction)?;
    for (name, value) in [
        ("inserted", store.inserted),
        ("waits", stats.waits),
        ("wait_us", stats.wait_us),
        ("timeouts", stats.timeouts),
        ("release_failures", stats.release_failures),
        ("leases_expired", stats.leases_expired),
        ("checkpoints", store.checkpoints),
        ("last_checkpoint_us", store.last_checkpoint_us),
        ("last_checkpoint_pause_us", store.last_checkpoint_pause_us),
        ("newest_checkpoint", store.newest_checkpoint),
        ("changed_since_checkpoint", store.changed_since_checkpoint),
        ("records_appended", store.records_appended),
        ("copied_to_tail", store.copied_to_tail),
        ("retained", store.retained),
        ("index_entries", store.index_entries),
    ] {
        all.set_item(name, value)?;
    }
    all.set_item("staleness", staleness(py, &stats.staleness)?)?;
    all.set_item("device_notes", &store.device_notes)?;
    all.set_item("not_removed", &store.not_removed)?;
    all.set_item("space_holders", space_holders(py, holders)?)?;
    all.set_item("log_address_warning", &store.log_address_warning)?;
    all.set_item("memory_budget_warning", &stats.memory_budget_warning)?;
    Ok(all)
}

/// What the type stub's `_SpaceHolder` describes, one for each.
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

/// The shape that the type stub's `TableStats` describes.
pub(crate) fn table<'py>(py: Python<'py>, stats: &TableStats) -> PyResult<Bound<'py, PyDict>> {
    let all = [
        ("gets", stats.gets),
        ("get_rows", stats.get_rows),
        ("peeks", stats.peeks),
        ("peek_rows", stats.peek_rows),
        ("puts", stats.puts),
        ("put_rows", stats.put_rows),
        ("applies", stats.applies),
        ("apply_rows", stats.apply_rows),
        ("deleted_rows", stats.deleted_rows),
        ("evicted_rows", stats.evicted_rows),
        ("not_admitted_rows", stats.not_admitted_rows),
        ("saturated_rows", stats.saturated_rows),
        ("disk_reads", stats.disk_reads),
        ("waits", stats.waits),
        ("wait_us", stats.wait_us),
        ("timeouts", stats.timeouts),
        ("release_failures", stats.release_failures),
        ("leases_expired", stats.leases_expired),
    ]
    .into_py_dict(py)?;
    all.set_item("staleness", staleness(py, &stats.staleness)?)?;
    Ok(all)
}

/// Rows by the largest clock of their bucket.
fn staleness<'py>(py: Python<'py>, histogram: &StalenessHistogram) -> PyResult<Bound<'py, PyDict>> {
    histogram.buckets().collect::<Vec<_>>().into_py_dict(py)
}

/// What the type stub's `LeaseInfo` describes.
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
