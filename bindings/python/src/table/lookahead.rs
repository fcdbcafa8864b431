//! Looking ahead: keys are announced before their get.

use pyo3::prelude::*;

use super::PyTable;
use crate::arrays::Keys;

#[pymethods]
impl PyTable {
    /// Announces keys that will be got soon: their rows come from disk to memory in the background.
    ///
    /// Never waits. Keys in memory, keys announced already and keys beyond the queue's capacity are
    /// counted in `Bank.stats()["lookahead"]` and let be.
    ///
    /// Returns:
    ///     How many distinct keys are on their way into memory: queued now, or pending already.
    fn lookahead(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        self.with(py, |table| Ok(table.lookahead(keys)?.accepted()))
    }

    /// Forgets what looking ahead still has to do for these keys, also if another call announced
    /// them.
    ///
    /// Returns:
    ///     How many waited for their turn.
    fn cancel_lookahead(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        self.with(py, |table| Ok(table.cancel_lookahead(keys)))
    }
}
