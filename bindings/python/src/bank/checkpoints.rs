//! Methods that take, pin and restore the checkpoints of an open bank.

use embank::StoreError;
use pyo3::prelude::*;

use super::recovered::PyRecovered;
use super::{Position, PyBank};
use crate::{errors, scalars};

impl PyBank {
    /// The number of rows made, changed and deleted, and of tables dropped, since the bank was
    /// opened.
    fn changed(&self, py: Python<'_>) -> PyResult<u64> {
        self.cell.with_bank(py, |bank| Ok(bank.state_id().changes()))
    }

    /// Notes a checkpoint that was taken of the bank. `changed` is the count of changes from before
    /// the checkpoint began.
    pub(crate) fn took(&self, checkpoint: u64, changed: u64) {
        *self.position.lock() = Position { checkpoint: Some(checkpoint), changed };
    }

    /// Takes the open bank back to a kept checkpoint for good: `Bank.roll_back`.
    pub(crate) fn roll_back_to(&self, py: Python<'_>, checkpoint: u64) -> PyResult<Vec<u64>> {
        let Some(options) = &self.options else {
            let path = self.cell.path().to_owned();
            return Err(errors::to_python(py, &StoreError::ReadOnly { path }.into()));
        };
        let gone = self.cell.roll_back(py, options, checkpoint);
        if self.cell.is_closed()? {
            return gone;
        }
        let found = self.cell.with_bank(py, |bank| Ok(bank.recovered().cloned()))?;
        *self.recovered.lock() = PyRecovered::of(py, found.as_ref())?;
        let checkpoint = found.map(|found| found.checkpoint);
        *self.position.lock() = Position { checkpoint, changed: 0 };
        gone
    }
}

#[pymethods]
impl PyBank {
    /// The checkpoint that the bank was opened at, or None if there was none. After `roll_back` or
    /// `refresh`, the checkpoint that this call moved the bank to.
    #[getter]
    fn recovered(&self, py: Python<'_>) -> Option<Py<PyRecovered>> {
        self.recovered.lock().as_ref().map(|recovered| recovered.clone_ref(py))
    }

    /// The number of the last checkpoint that this object has taken, opened, or moved to by
    /// `roll_back` or `refresh`. None before the first checkpoint.
    #[getter]
    fn last_checkpoint(&self) -> Option<u64> {
        self.position.lock().checkpoint
    }

    /// True if a row was made, changed or deleted, or a table dropped, since `last_checkpoint`, or
    /// since the bank was opened if there is no checkpoint. Closing the bank, or a crash, loses
    /// such changes.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("changed.bank", memory_budget="16MiB") as bank:
    /// ...     bank.table("user", dim=2).put([1], [[1.0, 2.0]])
    /// ...     print(bank.last_checkpoint, bank.changed_since_checkpoint)
    /// ...     number = bank.checkpoint()
    /// ...     print(bank.last_checkpoint, bank.changed_since_checkpoint)
    /// None True
    /// 1 False
    #[getter]
    fn changed_since_checkpoint(&self, py: Python<'_>) -> PyResult<bool> {
        let changed = self.changed(py)?;
        Ok(changed != self.position.lock().changed)
    }

    /// A text that identifies the rows of the open bank. It stays equal until a row is made,
    /// changed or deleted or a table is dropped. Two openings never have equal texts.
    /// `embank.checkpoint_id` finds the checkpoint that holds the identified rows.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("state.bank", memory_budget="16MiB") as bank:
    /// ...     before = bank.state_id
    /// ...     print(bank.state_id == before)
    /// ...     bank.table("user", dim=2).put([1], [[1.0, 2.0]])
    /// ...     print(bank.state_id == before)
    /// True
    /// False
    #[getter]
    fn state_id(&self, py: Python<'_>) -> PyResult<String> {
        self.cell.with_bank(py, |bank| Ok(bank.state_id().to_string()))
    }

    /// Keeps a checkpoint on disk until `unpin`, in addition to the `checkpoints_kept` newest, for
    /// example the checkpoint of the best epoch. The pin stays when the bank is reopened.
    ///
    /// While a checkpoint is pinned, the bank does not free the disk space of its rows.
    ///
    /// Args:
    ///     checkpoint: The number that `checkpoint()` returned.
    ///
    /// Raises:
    ///     ValueError: There is no such checkpoint.
    ///     ReadOnly: The bank was opened with `read_only`.
    ///     ShardMismatch: The bank is a shard of a fleet, whose sets are kept by pins.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("pin.bank", memory_budget="16MiB", checkpoints_kept=1) as bank:
    /// ...     bank.pin(bank.checkpoint(b"best"))
    /// ...     later = bank.checkpoint(), bank.checkpoint()
    /// >>> [found["number"] for found in embank.list_checkpoints("pin.bank")]
    /// [1, 3]
    fn pin(&self, py: Python<'_>, checkpoint: &Bound<'_, PyAny>) -> PyResult<()> {
        let checkpoint = scalars::unsigned("checkpoint", checkpoint, u64::MAX)?;
        self.cell.with_bank(py, |bank| bank.pin(checkpoint))
    }

    /// Ends the pin of a checkpoint. If that checkpoint is not among the `checkpoints_kept` newest,
    /// the next call of `checkpoint` removes it.
    ///
    /// Raises:
    ///     ValueError, ReadOnly, ShardMismatch: See `pin`.
    fn unpin(&self, py: Python<'_>, checkpoint: &Bound<'_, PyAny>) -> PyResult<()> {
        let checkpoint = scalars::unsigned("checkpoint", checkpoint, u64::MAX)?;
        self.cell.with_bank(py, |bank| bank.unpin(checkpoint))
    }

    /// Takes the open bank back to a kept checkpoint for good, for example to the checkpoint of the
    /// best epoch.
    ///
    /// Every row, its optimizer state and the vocabularies are then as the checkpoint holds them.
    /// The call removes newer checkpoints, and changes that no checkpoint holds. `recovered` is
    /// then this checkpoint with its blob.
    ///
    /// `Table` and `Vocabulary` objects, and models over them, stay usable. Objects of tables that
    /// the checkpoint does not have raise `NoSuchTable`. Leases, gets ahead, prefetches, scans,
    /// pipelines and their feeds end. `embank.torch.resume` then restores the rest of a training
    /// run from the blob. The call takes as long as opening the bank.
    ///
    /// Args:
    ///     checkpoint: The number of a kept checkpoint. No other process may read a newer one.
    ///
    /// Returns:
    ///     The numbers of the removed checkpoints, the newest first. Later checkpoints get these
    ///     numbers again.
    ///
    /// Raises:
    ///     ValueError: There is no such checkpoint; nothing has changed.
    ///     ReadOnly: The bank was opened with `read_only`; nothing has changed.
    ///     ShardMismatch: The bank is a shard of a fleet; nothing has changed.
    ///     EmbankError: Another process reads a newer checkpoint. After this error and other
    ///         failures of the store the bank is open at its newest checkpoint.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("early.bank", memory_budget="16MiB") as bank:
    /// ...     table = bank.table("user", dim=1)
    /// ...     table.put([1], [[1.0]])
    /// ...     best = bank.checkpoint(b"epoch 1")
    /// ...     table.put([1], [[9.0]])
    /// ...     worse = bank.checkpoint(b"epoch 2")
    /// ...     print(bank.roll_back(best), table.peek([1]), bank.recovered.blob)
    /// [2] [[1.]] b'epoch 1'
    fn roll_back(&self, py: Python<'_>, checkpoint: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
        let checkpoint = scalars::unsigned("checkpoint", checkpoint, u64::MAX)?;
        // The shards of the next set would be at different steps.
        self.cell.with_bank(py, embank::Bank::refuse_shard)?;
        self.roll_back_to(py, checkpoint)
    }

    /// Moves a bank that was opened with `read_only` to its newest checkpoint.
    ///
    /// `Table` objects then show the new checkpoint. Calls and scans of other threads that have
    /// begun show the old checkpoint until they end; until then the indexes of both checkpoints are
    /// in memory. After an error the bank stays at the old checkpoint.
    ///
    /// Returns:
    ///     The number of the checkpoint that the bank is at.
    ///
    /// Raises:
    ///     ValueError: The bank is open for writing.
    ///     Damaged, StoreIOError, BudgetTooSmall: The newer checkpoint can't be opened.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("serve.bank", memory_budget="16MiB") as training:
    /// ...     training.table("user", dim=2).put([1], [[1.0, 2.0]])
    /// ...     first = training.checkpoint(b"step 1")
    /// ...     with embank.Bank("serve.bank", memory_budget="16MiB", read_only=True) as serving:
    /// ...         training.open_table("user").put([1], [[3.0, 4.0]])
    /// ...         second = training.checkpoint(b"step 2")
    /// ...         old = serving.open_table("user").peek([1])
    /// ...         assert serving.refresh() == second
    /// ...         print(old, serving.open_table("user").peek([1]), serving.recovered.blob)
    /// [[1. 2.]] [[3. 4.]] b'step 2'
    fn refresh(&self, py: Python<'_>) -> PyResult<u64> {
        let (number, reading) =
            self.cell.with_bank(py, |bank| Ok((bank.refresh()?, bank.reading())))?;
        let recovered = PyRecovered::of(py, reading.as_deref())?;
        *self.recovered.lock() = recovered;
        self.position.lock().checkpoint = Some(number);
        Ok(number)
    }

    /// Makes every row, the optimizer state and `blob` durable.
    ///
    /// When the call returns, all of these are on stable storage. After a crash at any later
    /// moment, the bank opens at this checkpoint or a later one. Changes after that checkpoint are
    /// lost.
    ///
    /// Args:
    ///     blob: The caller's own state, such as the step, dense weights and the position in the
    ///         data. `recovered.blob` returns it after a reopen.
    ///
    /// Returns:
    ///     The checkpoint's number: one more than the number of the previous checkpoint.
    ///
    /// Raises:
    ///     StoreIOError: Writing failed, for example because the disk is full. The previous
    ///         checkpoint is good.
    ///     ShardMismatch: The bank is a shard of a fleet, which takes checkpoints of all shards
    ///         together (`embank.torch.distributed.ShardedBank.checkpoint`).
    ///     PoisonedError: An earlier write failed.
    #[pyo3(signature = (blob = None))]
    pub(crate) fn checkpoint(&self, py: Python<'_>, blob: Option<&[u8]>) -> PyResult<u64> {
        let blob = blob.unwrap_or_default();
        // The count of changes is read before the checkpoint begins, because a change that another
        // thread makes during the checkpoint may not be in it.
        let changed = self.changed(py)?;
        let number = self.cell.with_bank(py, |bank| bank.checkpoint(blob))?;
        self.took(number, changed);
        Ok(number)
    }
}
