//! `AutoDepth`: how many batches to look ahead.

use std::sync::Arc;

use embank::AutoDepth;
use embank::locks::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyBank;
use crate::cell::BankCell;

/// Chooses the depth: how many batches to announce ahead with `Table.lookahead`. The depth is 4, or
/// less if the queue of announced keys, or a third of the memory for rows, has no room for the rows
/// of 4 batches.
///
/// The depth is 2 while more than 2% of the rows find the queue full or leave memory before their
/// use. `embank.torch.LookaheadLoader` has its own `AutoDepth`; this class is for loops that call
/// `Table.lookahead` themselves.
///
/// Args:
///     bank: The bank of the tables.
///     together: The number of batches that the loop announces with one call when the depth is 2 or
///         more. Up to `together - 1` batches more than the depth are then announced. Default: 1.
///
/// Raises:
///     ValueError: `together` is below 1.
///
/// >>> import embank
/// >>> bank = embank.Bank("depth.bank", memory_budget="16MiB")
/// >>> items = bank.table("item", dim=2)
/// >>> auto, announced = embank.AutoDepth(bank), 1
/// >>> batches = [range(step, step + 10) for step in range(20)]
/// >>> for step, batch in enumerate(batches):
/// ...     last = min(step + auto.step(), len(batches) - 1)
/// ...     while announced <= last:
/// ...         _ = items.lookahead(batches[announced])
/// ...         announced += 1
/// ...     items.get(batch).release()
/// >>> bank.stats()["lookahead"]["depth"] == auto.depth
/// True
/// >>> bank.close()
#[pyclass(name = "AutoDepth", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyAutoDepth {
    cell: Arc<BankCell>,
    auto: Mutex<AutoDepth>,
}

#[pymethods]
impl PyAutoDepth {
    #[new]
    #[pyo3(signature = (bank, together=1))]
    fn new(bank: &PyBank, together: usize) -> PyResult<Self> {
        if together == 0 {
            return Err(PyValueError::new_err("together must be at least 1 batch, not 0"));
        }
        let auto = Mutex::new(AutoDepth::announcing_together(together));
        Ok(Self { cell: Arc::clone(&bank.cell), auto })
    }

    /// Must be called once a step. Returns the depth: the number of batches after the current one
    /// that must be announced, at least 1.
    fn step(&self, py: Python<'_>) -> PyResult<usize> {
        self.cell.with_bank(py, |bank| Ok(self.auto.lock().step(bank)))
    }

    /// Must be called when a pass over the data begins. The depth does not learn from what the bank
    /// did between the last step and this call.
    fn begin_pass(&self) {
        self.auto.lock().begin_pass();
    }

    /// The last result of `step`; 4 before the first step.
    #[getter]
    fn depth(&self) -> usize {
        self.auto.lock().depth()
    }
}
