//! The methods of a table that read rows and change nothing.

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;

use super::PyTable;
use super::prefetch::{PyPrefetch, missing_choice};
use super::request::GivenBags;
use super::scan::PyScan;
use crate::arrays::{Keys, Rows};

#[pymethods]
impl PyTable {
    /// Reads rows for evaluation. It takes no lease, inserts nothing and never waits for a bound.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     missing: The result for a key without a row: "initial" (its initial value) or "error".
    ///     out: The array that gets the rows and is returned, C-contiguous float32 `(n, dim)`.
    ///         Default: None, a new array.
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

    /// Reads rows for evaluation and pools the rows of each bag to one. It takes no lease, inserts
    /// nothing and never waits for a bound. A key without a row counts with its initial value.
    ///
    /// Args:
    ///     keys, offsets, pooling, weights, out: See `get_bags`.
    ///
    /// Returns:
    ///     float32 `(bags, dim)`.
    ///
    /// Raises:
    ///     UnknownValue: A key without a row is no id of the table's vocabulary.
    ///     ValueError: Offsets or weights do not fit the keys.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("peek_bags.bank", memory_budget="16MiB") as bank:
    /// ...     table = bank.table("item", dim=1)
    /// ...     table.put([1, 2], [[3.0], [5.0]])
    /// ...     table.peek_bags([1, 2], [0, 2, 2], pooling="mean").tolist()
    /// [[4.0], [0.0]]
    #[pyo3(signature = (keys, offsets, *, pooling = "sum", weights = None, out = None))]
    fn peek_bags<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        pooling: &str,
        weights: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let bags = GivenBags::new(keys.len(), offsets, pooling, weights)?;
        let bags = bags.as_bags();
        let mut rows = Rows::new(py, out, bags.len(), self.key.dim)?;
        let values = rows.as_slice_mut()?;
        self.with(py, |table| table.peek_bags(keys, bags, values))?;
        Ok(rows.into_array())
    }

    /// The initial values of the keys, also of keys that have a row: float32 `(n, dim)`.
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

    /// Reads rows into a buffer in the background, for evaluation and for features that are not
    /// trained.
    ///
    /// Like `peek`, the call never waits for a bound, changes no staleness clock and writes
    /// nothing. If a later get trains the rows, use `lookahead` instead. The buffer counts in the
    /// bank's memory budget until `rows()` has returned the rows.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     missing: The result for a key without a row: "initial" (its initial value) or "error".
    ///
    /// Returns:
    ///     A `Prefetch`, whose `rows()` are float32 `(n, dim)`.
    ///
    /// Raises:
    ///     BudgetTooSmall: Earlier prefetches leave too little memory for the store to work.
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

    /// Iterates over the rows of the table as the newest checkpoint holds them, while training can
    /// go on.
    ///
    /// Each row comes once, in no particular order, in constant memory and at the speed of
    /// sequential reads. Rows that are newer than the checkpoint are left out. An open scan keeps
    /// two pages of the memory budget and stops the store from freeing space on disk. So read it to
    /// its end, or use it in a `with` block.
    ///
    /// Args:
    ///     batch_size: The number of rows of a batch. The last batch may be shorter.
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
