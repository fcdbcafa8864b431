//! Functions on the kept checkpoints of a bank. The bank need not be open.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use embank::fleet::refuse_shard;
use embank::{Bank, StateId};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::{errors, scalars};

/// Lists the kept checkpoints of a bank, oldest first.
///
/// Another process may have the bank open. Changes nothing.
///
/// Args:
///     path: The bank's directory.
///
/// Returns:
///     A dictionary for each checkpoint: `number`; `id`, a random number that tells checkpoints
///     with equal numbers apart (a copy of a bank, or a bank after a roll back, may take another
///     checkpoint with this number); `time`, when it was taken, in seconds since 1970;
///     `blob_bytes`; `pinned`; `file_bytes`, the size of its files, with files that it shares with
///     other checkpoints; `tables`, the number of rows by table name.
///
/// Raises:
///     ValueError: There is no bank.
///     StoreIOError: The bank can't be read.
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

/// Returns the id that checkpoint `checkpoint` has if it holds the state `state_id` of its bank.
///
/// A program may write `Bank.state_id` into its own file, before or after it takes a checkpoint.
/// Later it looks for a kept checkpoint whose `id` in `list_checkpoints` equals the result of this
/// function for the checkpoint's number. That checkpoint holds the rows that belong to the file. If
/// no kept checkpoint has such an `id`, the program must take it that none holds this state.
///
/// Args:
///     state_id: An earlier value of `Bank.state_id`.
///     checkpoint: The number of a checkpoint.
///
/// Returns:
///     The `id` that `list_checkpoints` shows for the checkpoint if it holds this state.
///
/// Raises:
///     ValueError: `state_id` is not the text of a state.
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
/// All newer checkpoints are removed, and this can't be undone. Copy the bank first if in doubt.
///
/// Args:
///     path: The directory of a bank that is not open for writing.
///     checkpoint: The number of a kept checkpoint. No process may read a newer one.
///
/// Returns:
///     The numbers of the removed checkpoints, the newest first. Later checkpoints get these
///     numbers again.
///
/// Raises:
///     ValueError: There is no bank, or no such checkpoint.
///     Locked: The bank is open.
///     ShardMismatch: The bank is a shard of a fleet. `ShardedBank(set=...)` goes back.
///     EmbankError: A process reads a newer checkpoint.
///     Damaged, StoreIOError: The checkpoint does not verify. Nothing has changed.
///     NewerFormat: A newer version of Embank wrote the checkpoint or a newer one. Nothing has
///         changed.
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
    let back = || {
        refuse_shard(&path)?;
        Bank::roll_back(&path, checkpoint)
    };
    py.detach(back).map_err(|e| errors::to_python(py, &e))
}

/// Copies a checkpoint to another directory, which is then a bank of its own.
///
/// Another process may have the bank open. On one file system, the copy shares the files that never
/// change (hard links), so it takes seconds and little space. Such a copy does not protect against
/// a bad disk. On another file system, the copy shares no files with the bank.
///
/// Args:
///     path: The bank's directory.
///     to: The directory of the copy. It must be empty or not exist.
///     checkpoint: The checkpoint's number. Default: the newest.
///
/// Returns:
///     The number of the checkpoint that was copied.
///
/// Raises:
///     ValueError: There is no bank or no such checkpoint, or `to` is not empty.
///     Damaged, StoreIOError: A file can't be read or written. At most an empty `LOCK` stays in
///         `to`.
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

/// Writes the difference between two checkpoints to a file. `apply_delta` reads this file to bring
/// a copy of the bank forward.
///
/// Another process may have the bank open. The file holds what changed: pages of the log, parts of
/// the index, and the blob.
///
/// Args:
///     path: The bank's directory.
///     file: The file to write. It must not exist.
///     since: The checkpoint that the copy is at. The bank must still keep it.
///     to: The checkpoint that the delta leads to. Default: the newest.
///
/// Returns:
///     The number of the checkpoint that the delta leads to.
///
/// Raises:
///     ValueError: There is no bank or no such checkpoint, or the file exists.
///     Damaged, StoreIOError: A file can't be read or written. No file is left.
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

/// Brings a copy of a bank to the checkpoint that a delta leads to.
///
/// A `Bank` that has the copy open with `read_only=True` stays at its checkpoint until `refresh`.
/// After an error or a crash the copy is at its old checkpoint, or at the new one if only the last
/// sync failed.
///
/// Args:
///     path: The directory of the copy, which must not be open for writing.
///     file: The delta. It must follow the copy's newest checkpoint.
///     checkpoints_kept: The number of newest checkpoints that stay in the copy. Default: 2.
///
/// Returns:
///     The number of the checkpoint that the copy is at.
///
/// Raises:
///     DeltaMismatch: The delta follows another checkpoint, was applied before, or comes from
///         another history: the copy, or the bank after a roll back, has changed on its own.
///     ShardMismatch: The bank is a shard of a fleet, and so no copy.
///     ValueError: There is no bank.
///     Locked: The copy is open for writing.
///     Damaged, StoreIOError: The delta is damaged, or a file can't be read or written.
///     NewerFormat: A newer version of Embank wrote the delta.
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
