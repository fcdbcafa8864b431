//! What reads rows and changes none.

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;

use super::PyTable;
use super::prefetch::{PyPrefetch, missing_choice};
use super::scan::PyScan;
use crate::arrays::{Keys, Rows};

#[pymethods]
impl PyTable {
    /// Reads rows for evaluation: takes no lease, inserts nothing, never waits for a bound.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     missing: What a key without a row gives: "initial" (its initial value) or "error".
    ///     out: Where the rows go, C-contiguous float32 `(n, dim)`; it is returned. A new array by
    ///         default.
    ///
    /// Returns:
    ///     float32 `(n, dim)`, one row for each key.
    ///
    /// Raises:
    ///     MissingRow: With `missing="error"`, when a key has no row.
    ///     UnknownValue: With `missing="initial"`, when a key without a row is no id of the table's
    ///         vocabulary.
    #[pyo3(signature = (keys, *, missing = "initial", out = None))]
    fn peek<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        missing: &str,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let missing = missing_choice(missing)?;
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let mut rows = Rows::new(py, out, keys.len(), self.key.dim)?;
        let values = rows.as_slice_mut()?;
        self.with(py, |table| table.peek(keys, values, missing).map(drop))?;
        Ok(rows.into_array())
    }

    /// The initial values of rows, whether they are there or not: float32 `(n, dim)`.
    ///
    /// Raises:
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it.
    fn initial<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let mut rows = Rows::new(py, None, keys.len(), self.key.dim)?;
        let values = rows.as_slice_mut()?;
        self.with(py, |table| table.initial(keys, values))?;
        Ok(rows.into_array())
    }

    /// Whether each key has a row: bool `(n,)`.
    fn contains<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let found = self.with(py, |table| table.contains(keys))?;
        Ok(PyArray1::from_vec(py, found))
    }

    /// Reads rows into a buffer in the background, for evaluation and features that are only read.
    ///
    /// Never waits, touches no clock and writes nothing, as `peek`; for rows that are to be trained
    /// use `lookahead`. The buffer comes out of the bank's memory budget until the rows are
    /// fetched.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     missing: What a key without a row gives: "initial" (its initial value) or "error".
    ///
    /// Returns:
    ///     A `Prefetch`, whose `rows()` are float32 `(n, dim)`.
    ///
    /// Raises:
    ///     BudgetTooSmall: The store could not work with the memory that earlier prefetches leave.
    #[pyo3(signature = (keys, *, missing = "initial"))]
    fn prefetch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        missing: &str,
    ) -> PyResult<PyPrefetch> {
        let missing = missing_choice(missing)?;
        let keys = Keys::new(keys)?;
        PyPrefetch::begin(py, &self.cell, &self.key, keys.as_slice()?, missing)
    }

    /// Goes through the table as the newest checkpoint holds it, while training goes on.
    ///
    /// Each row comes once, in no particular order, in constant memory and at the speed of
    /// sequential reads. Rows that came after the checkpoint are not in it. While a scan is open,
    /// space on disk is not given back and two pages of the memory budget are lent to it: use it in
    /// a `with` block, or to its end.
    ///
    /// Args:
    ///     batch_size: Rows at a time; the last batch may be shorter.
    ///
    /// Returns:
    ///     A `Scan`: an iterator of `(keys, rows)`, uint64 `(n,)` and float32 `(n, dim)`.
    ///
    /// Raises:
    ///     ValueError: There is no checkpoint yet, or `batch_size` is 0.
    ///     NoSuchTable: The table was made after the newest checkpoint, or was dropped.
    ///     BudgetTooSmall: The memory budget has no room for a scan.
    #[pyo3(signature = (batch_size = None))]
    fn scan(&self, py: Python<'_>, batch_size: Option<&Bound<'_, PyAny>>) -> PyResult<PyScan> {
        PyScan::begin(py, &self.cell, &self.key, batch_size)
    }
}
