//! Kept checkpoints of a bank that need not be open.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use embank::{Bank, StateId};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::{errors, scalars};

/// Lists the kept checkpoints of a bank, oldest first.
///
/// Works beside whoever has the bank open, and changes nothing.
///
/// Args:
///     path: The bank's directory.
///
/// Returns:
///     A dictionary for each: `number`; `id`, a random number that tells it from others of that
///     number, in copies of the bank and after a roll back; `time`, when it was taken, in seconds
///     since 1970; `blob_bytes`; `file_bytes` of its own files and those that it shares with
///     others; `tables`, from name to rows.
///
/// Raises:
///     ValueError: There is no bank.
///     StoreIOError: It can't be read.
///
/// >>> import embank
/// >>> with embank.Bank("kept.bank", memory_budget="16MiB") as bank:
/// ...     bank.table("user", dim=2).put([1, 2], [[1.0, 2.0], [3.0, 4.0]])
/// ...     number = bank.checkpoint(b"step 1")
/// ...     print([(of["number"], of["tables"]) for of in embank.list_checkpoints("kept.bank")])
/// [(1, {'user': 2})]
#[pyfunction]
pub(crate) fn list_checkpoints(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyList>> {
    let found = py.detach(|| Bank::checkpoints(path)).map_err(|e| errors::to_python(py, &e))?;
    let list = PyList::empty(py);
    for of in found {
        let one = PyDict::new(py);
        let tables = PyDict::new(py);
        for table in &of.tables {
            tables.set_item(&table.name, table.rows)?;
        }
        one.set_item("number", of.number)?;
        one.set_item("id", of.id)?;
        one.set_item(
            "time",
            of.taken.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        )?;
        one.set_item("blob_bytes", of.blob_bytes)?;
        one.set_item("pinned", of.pinned)?;
        one.set_item("file_bytes", of.file_bytes)?;
        one.set_item("tables", tables)?;
        list.append(one)?;
    }
    Ok(list)
}

/// The id of a checkpoint that holds a state of a bank.
///
/// A program that keeps `Bank.state_id` in a file of its own finds by it the checkpoint that
/// belongs to the file, whether it was taken before or after. A state of which no kept checkpoint
/// has the id is in none.
///
/// Args:
///     state_id: What `Bank.state_id` was.
///     checkpoint: The number of a checkpoint.
///
/// Returns:
///     What `list_checkpoints` gives as its `id` if it holds that state.
///
/// Raises:
///     ValueError: `state_id` is no state of a bank.
///
/// >>> import embank
/// >>> with embank.Bank("states.bank", memory_budget="16MiB") as bank:
/// ...     bank.table("user", dim=2).put([1], [[1.0, 2.0]])
/// ...     kept_in_a_file = bank.state_id
/// ...     number = bank.checkpoint()
/// >>> embank.list_checkpoints("states.bank")[0]["id"] == embank.checkpoint_id(kept_in_a_file, number)
/// True
#[pyfunction]
pub(crate) fn checkpoint_id(
    py: Python<'_>,
    state_id: &str,
    checkpoint: &Bound<'_, PyAny>,
) -> PyResult<u64> {
    let number = scalars::unsigned("checkpoint", checkpoint, u64::MAX)?;
    let state: StateId =
        state_id.parse().map_err(|error| errors::to_python(py, &embank::Error::from(error)))?;
    Ok(state.checkpoint_id(number))
}

/// Takes a bank back to an older checkpoint for good.
///
/// All newer checkpoints are removed, and there is no way back; copy the bank first if in doubt.
///
/// Args:
///     path: The directory of a bank that nobody has open for writing.
///     checkpoint: The number of a kept checkpoint; its newer ones must not be read by anybody.
///
/// Returns:
///     The numbers of the checkpoints that are gone, the newest first; they are given anew.
///
/// Raises:
///     ValueError: There is no bank, or no such checkpoint.
///     Locked: The bank is open.
///     EmbankError: Somebody reads a newer checkpoint.
///     Damaged, StoreIOError: The checkpoint does not verify; nothing has changed.
///
/// >>> import embank
/// >>> with embank.Bank("back.bank", memory_budget="16MiB") as bank:
/// ...     numbers = bank.checkpoint(b"step 1"), bank.checkpoint(b"step 2")
/// >>> embank.roll_back("back.bank", 1)
/// [2]
#[pyfunction]
pub(crate) fn roll_back(
    py: Python<'_>,
    path: PathBuf,
    checkpoint: &Bound<'_, PyAny>,
) -> PyResult<Vec<u64>> {
    let checkpoint = scalars::unsigned("checkpoint", checkpoint, u64::MAX)?;
    py.detach(|| Bank::roll_back(path, checkpoint)).map_err(|e| errors::to_python(py, &e))
}

/// Copies a checkpoint to another directory, a bank of its own then.
///
/// Works beside whoever has the bank open. On the same file system, files that never change are
/// shared (hard links), so it takes seconds and hardly any space; that is no backup against a bad
/// disk. To another file system everything is copied.
///
/// Args:
///     path: The bank's directory.
///     to: The copy's; must be empty or not there.
///     checkpoint: The checkpoint's number; the newest by default.
///
/// Returns:
///     The number of the checkpoint that was copied.
///
/// Raises:
///     ValueError: There is no bank or no such checkpoint, or `to` holds something.
///     Damaged, StoreIOError: A file can't be read or written; nothing but an empty `LOCK` is left
///         in `to`.
///
/// >>> import embank
/// >>> with embank.Bank("first.bank", memory_budget="16MiB") as bank:
/// ...     bank.table("user", dim=2).put([1], [[1.0, 2.0]])
/// ...     number = bank.checkpoint(b"step 1")
/// ...     assert embank.copy_checkpoint("first.bank", "second.bank") == number
/// >>> with embank.Bank("second.bank", memory_budget="16MiB") as bank:
/// ...     print(bank.open_table("user").peek([1]))
/// [[1. 2.]]
#[pyfunction]
#[pyo3(signature = (path, to, checkpoint = None))]
pub(crate) fn copy_checkpoint(
    py: Python<'_>,
    path: PathBuf,
    to: PathBuf,
    checkpoint: Option<&Bound<'_, PyAny>>,
) -> PyResult<u64> {
    let checkpoint = optional("checkpoint", checkpoint)?;
    let copied = py.detach(|| Bank::copy_checkpoint(path, checkpoint, to));
    Ok(copied.map_err(|e| errors::to_python(py, &e))?.checkpoint)
}

/// Writes what lies between two checkpoints to a file, for a copy of the bank.
///
/// Works beside whoever has the bank open. It takes what changed: the log's pages, parts of the
/// index, the blob.
///
/// Args:
///     path: The bank's directory.
///     file: The file to write; must not be there.
///     since: The checkpoint that the copy is at; kept by the bank still.
///     to: The checkpoint that the delta leads to; the newest by default.
///
/// Returns:
///     The number of the checkpoint that the delta leads to.
///
/// Raises:
///     ValueError: There is no bank or no such checkpoint, or the file is there.
///     Damaged, StoreIOError: Something can't be read or written; no file is left.
///
/// >>> import embank
/// >>> with embank.Bank("train.bank", memory_budget="16MiB") as bank:
/// ...     users = bank.table("user", dim=2)
/// ...     users.put([1], [[1.0, 2.0]])
/// ...     first = bank.checkpoint()
/// ...     at = embank.copy_checkpoint("train.bank", "replica.bank")
/// ...     users.put([1], [[3.0, 4.0]])
/// ...     second = bank.checkpoint()
/// ...     at = embank.export_delta("train.bank", "1-to-2.delta", since=at)
/// >>> embank.apply_delta("replica.bank", "1-to-2.delta")
/// 2
/// >>> with embank.Bank("replica.bank", memory_budget="16MiB", read_only=True) as bank:
/// ...     print(bank.open_table("user").peek([1]))
/// [[3. 4.]]
#[pyfunction]
#[pyo3(signature = (path, file, *, since, to = None))]
pub(crate) fn export_delta(
    py: Python<'_>,
    path: PathBuf,
    file: PathBuf,
    since: &Bound<'_, PyAny>,
    to: Option<&Bound<'_, PyAny>>,
) -> PyResult<u64> {
    let since = scalars::unsigned("since", since, u64::MAX)?;
    let to = optional("to", to)?;
    let made = py.detach(|| Bank::export_delta(path, since, to, file));
    Ok(made.map_err(|e| errors::to_python(py, &e))?.to)
}

/// Takes a copy of a bank to the checkpoint that a delta leads to.
///
/// Those who have the copy open with `read_only=True` stay where they are until they `refresh`.
/// After an error or a crash the copy is where it was, or at the new checkpoint if only the last
/// sync failed.
///
/// Args:
///     path: The copy's directory; nobody has it open for writing.
///     file: The delta. It must follow the copy's newest checkpoint.
///     checkpoints_kept: How many of the newest checkpoints stay; 2 by default.
///
/// Returns:
///     The number of the checkpoint that the copy is at then.
///
/// Raises:
///     DeltaMismatch: The delta follows another checkpoint, was applied before, or is of another
///         lineage: the copy, or the bank after a roll back, has gone on by itself.
///     ValueError: There is no bank.
///     Locked: The copy is open for writing.
///     Damaged, StoreIOError: The delta is damaged, or something can't be read or written.
///
/// See `export_delta` for an example.
#[pyfunction]
#[pyo3(signature = (path, file, *, checkpoints_kept = None))]
pub(crate) fn apply_delta(
    py: Python<'_>,
    path: PathBuf,
    file: PathBuf,
    checkpoints_kept: Option<&Bound<'_, PyAny>>,
) -> PyResult<u64> {
    let kept = checkpoints_kept.map(|kept| scalars::unsigned_32("checkpoints_kept", kept));
    let checkpoints_kept = kept.transpose()?.map_or(2, |kept| kept as usize);
    let made = py.detach(|| Bank::apply_delta(path, file, checkpoints_kept));
    Ok(made.map_err(|e| errors::to_python(py, &e))?.to)
}

fn optional(name: &str, number: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    number.map(|number| scalars::unsigned(name, number, u64::MAX)).transpose()
}
