//! Looking ahead: keys are announced before their get.

use pyo3::prelude::*;

use super::PyTable;
use crate::arrays::Keys;

#[pymethods]
impl PyTable {
    /// Announces keys of later gets: in the background, the store brings their rows from disk or
    /// read-only memory into mutable memory, where updates change rows in place.
    ///
    /// Never waits. The call skips keys whose rows are in mutable memory or do not exist, keys that
    /// are announced already, and keys beyond the queue's capacity. `Bank.stats()["lookahead"]`
    /// counts them.
    ///
    /// Returns:
    ///     The number of distinct keys that are queued now or were pending before.
    fn lookahead(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        self.with(py, |table| Ok(table.lookahead(keys)?.accepted()))
    }

    /// Removes these keys from the queue of announced keys, also if another call announced them.
    ///
    /// Returns:
    ///     The number of keys that were in the queue.
    fn cancel_lookahead(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        self.with(py, |table| Ok(table.cancel_lookahead(keys)))
    }
}
