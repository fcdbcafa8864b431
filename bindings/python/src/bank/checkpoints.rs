//! Checkpoints of an open bank: taken, kept, and gone back to.

use pyo3::prelude::*;

use super::recovered::PyRecovered;
use super::{Position, PyBank};
use crate::{errors, scalars};

impl PyBank {
    /// Rows made, changed and deleted since the bank was opened, and tables dropped.
    fn changed(&self, py: Python<'_>) -> PyResult<u64> {
        self.cell.with_bank(py, |bank| Ok(bank.state_id().changes()))
    }
}

#[pymethods]
impl PyBank {
    /// What opening it found, or None if there was no checkpoint. With `read_only`: the checkpoint that it is at.
    #[getter]
    fn recovered(&self, py: Python<'_>) -> Option<Py<PyRecovered>> {
        self.recovered.lock().as_ref().map(|recovered| recovered.clone_ref(py))
    }

    /// The number of the newest checkpoint: taken by this object, or found when it was opened; None before the first.
    /// With `read_only`: the one that it is at.
    #[getter]
    fn last_checkpoint(&self) -> Option<u64> {
        self.position.lock().checkpoint
    }

    /// Whether a row was made, changed or deleted, or a table dropped, since that checkpoint, or, where there is
    /// none, since the bank was opened. Closing the bank, or a crash, would lose it.
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

    /// A text that stays the same as long as the bank is open and no row is made, changed or deleted and no table
    /// dropped. Never the same for two openings. `embank.checkpoint_id` tells by it which checkpoint holds that state.
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

    /// Keeps a checkpoint beyond `checkpoints_kept`, also after a reopen, until `unpin`: that of the best epoch.
    ///
    /// It holds the space of its rows on disk.
    ///
    /// Args:
    ///     checkpoint: Its number, as `checkpoint()` returned it.
    ///
    /// Raises:
    ///     ValueError: There is no such checkpoint.
    ///     ReadOnly: The bank was opened with `read_only`.
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

    /// Lets go of a checkpoint that was pinned: it goes with the next checkpoint if it is an old one.
    ///
    /// Raises: as `pin`.
    fn unpin(&self, py: Python<'_>, checkpoint: &Bound<'_, PyAny>) -> PyResult<()> {
        let checkpoint = scalars::unsigned("checkpoint", checkpoint, u64::MAX)?;
        self.cell.with_bank(py, |bank| bank.unpin(checkpoint))
    }

    /// Takes the open bank back to a kept checkpoint for good, such as that of the best epoch.
    ///
    /// Every row, its optimizer state and the vocabularies are as that checkpoint has them; newer checkpoints and changes
    /// that no checkpoint has are gone. `recovered` is that checkpoint with its blob. `Table` and `Vocabulary` objects, and
    /// models over them, go on; those of tables that the checkpoint lacks raise `NoSuchTable`. Leases, prefetches, scans,
    /// pipelines and their feeds end. `embank.torch.resume` then restores the rest of a training run from the blob. It
    /// takes as long as opening the bank.
    ///
    /// Args:
    ///     checkpoint: The number of a kept checkpoint; no other process may read a newer one.
    ///
    /// Returns:
    ///     The numbers of the checkpoints that are gone, the newest first; they are given anew.
    ///
    /// Raises:
    ///     ValueError: There is no such checkpoint; nothing has changed.
    ///     ReadOnly: The bank was opened with `read_only`; nothing has changed.
    ///     EmbankError: A newer checkpoint is being read. After this and other failures of the store the bank is open at
    ///         its newest checkpoint.
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
        let Some(options) = &self.options else {
            let path = self.cell.path().to_owned();
            let error = embank::Error::ReadOnly { path };
            return Err(errors::to_python(py, &error));
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

    /// Moves a bank that was opened with `read_only` on to its newest checkpoint, if that is newer.
    ///
    /// `Table` objects show the new one from then on; calls and scans that other threads have begun show the old
    /// one to their end, and until then both indexes are in memory. After an error the bank is where it was.
    ///
    /// Returns:
    ///     The number of the checkpoint that the bank is at then.
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

    /// Makes everything durable: every row, optimizer state, and `blob`.
    ///
    /// When it returns, all of it is on stable storage, and a crash at any later moment recovers
    /// exactly this checkpoint or a later one. Nothing between two checkpoints is promised.
    ///
    /// Args:
    ///     blob: The caller's own state (step, dense weights, position in the data), handed back as
    ///         `recovered.blob`.
    ///
    /// Returns:
    ///     The checkpoint's number, one more than the last one's.
    ///
    /// Raises:
    ///     StoreIOError: Writing failed, the disk being full for one; the last checkpoint is good.
    ///     PoisonedError: An earlier write failed.
    #[pyo3(signature = (blob = None))]
    pub(crate) fn checkpoint(&self, py: Python<'_>, blob: Option<&[u8]>) -> PyResult<u64> {
        let blob = blob.unwrap_or_default();
        // Counted before: a change that another thread makes meanwhile may not be in the checkpoint.
        let changed = self.changed(py)?;
        let number = self.cell.with_bank(py, |bank| bank.checkpoint(blob))?;
        *self.position.lock() = Position { checkpoint: Some(number), changed };
        Ok(number)
    }
}
