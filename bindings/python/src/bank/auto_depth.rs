//! `AutoDepth`: how many batches to look ahead.

use std::sync::Arc;

use embank::AutoDepth;
use embank::locks::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyBank;
use crate::cell::BankCell;

/// Finds out how many batches to look ahead, from what reading and computing take.
///
/// `embank.torch.LookaheadLoader` has its own; this is for loops that call `Table.lookahead` themselves.
///
/// Args:
///     bank: The bank whose tables are looked ahead in.
///     together: From a depth of 2 on, so many batches are announced with one call, and so up to so many less one
///         more than the depth are ahead. Default 1.
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

    /// To be called once a step: how many batches beside the one in hand to have announced, at least 1.
    fn step(&self, py: Python<'_>) -> PyResult<usize> {
        self.cell.with_bank(py, |bank| Ok(self.auto.lock().step(bank)))
    }

    /// To be called where a pass over the data begins: what happened since the last step counts as nothing, and rows
    /// that are late at first neither.
    fn begin_pass(&self) {
        self.auto.lock().begin_pass();
    }

    /// What `step` returned last; where it begins before the first.
    #[getter]
    fn depth(&self) -> usize {
        self.auto.lock().depth()
    }
}
