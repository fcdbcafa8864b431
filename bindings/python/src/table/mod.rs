//! `Table`: rows by key.
//!
//! This file has the class and its properties. The other files of this folder have its other
//! methods: `gets` for rows under a lease, `ahead` for the rows of later batches, `writing` for
//! puts and gradients, `reading` for methods that change nothing, `files` for export and import,
//! `life` for deletion and eviction.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::bank::PyBank;
use crate::cell::{BankCell, TableKey};
use crate::{scalars, settings, stats};

pub(crate) mod ahead;
pub(crate) mod files;
pub(crate) mod gets;
mod life;
mod lookahead;
pub(crate) mod prefetch;
mod progress;
mod reading;
mod request;
mod row_count;
pub(crate) mod scan;
pub(crate) mod writing;

/// An embedding table: float32 rows of one width by 64-bit key. Made by `Bank.table`.
///
/// Keys are a 1-D array of integers, or an object that `numpy.asarray` converts to such an array.
/// The store reads C-contiguous int64 and uint64 arrays without a copy. A negative int64 stands for
/// the uint64 with the same 64 bits. A key may occur more than once in a batch. Every method raises
/// `ValueError` after the bank is closed.
///
/// >>> import embank
/// >>> bank = embank.Bank("table.bank", memory_budget="16MiB")
/// >>> table = bank.table("item", dim=2, initializer=embank.Constant(0.5))
/// >>> table.put([1, 2], [[1.0, 2.0], [3.0, 4.0]])
/// >>> table.peek([2, 1, 9]).tolist()
/// [[3.0, 4.0], [1.0, 2.0], [0.5, 0.5]]
/// >>> table.contains([2, 9]).tolist(), table.delete([2, 9])
/// ([True, False], 1)
/// >>> bank.close()
#[pyclass(name = "Table", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyTable {
    pub(crate) cell: Arc<BankCell>,
    pub(crate) key: TableKey,
    bank: Py<PyBank>,
}

impl PyTable {
    pub(crate) fn open(
        bank: &Bound<'_, PyBank>,
        call: impl FnOnce(&embank::Bank) -> embank::Result<embank::Table> + Send,
    ) -> PyResult<Self> {
        let cell = bank.get().cell.clone();
        let key = cell.open_table(bank.py(), call)?;
        Ok(Self { cell, key, bank: bank.clone().unbind() })
    }

    /// Runs `call` on the store's table with the GIL released.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&embank::Table) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        self.cell.with_table(py, self.key.handle, call)
    }
}

impl Drop for PyTable {
    fn drop(&mut self) {
        self.cell.forget(self.key.handle);
    }
}

#[pymethods]
impl PyTable {
    /// The table's bank.
    #[getter]
    fn bank(&self, py: Python<'_>) -> Py<PyBank> {
        self.bank.clone_ref(py)
    }

    /// The table's name.
    #[getter]
    fn name(&self) -> &str {
        &self.key.name
    }

    /// The number of columns of a row.
    #[getter]
    fn dim(&self) -> usize {
        self.key.dim
    }

    /// True if every key gets a row at its first get. False with `admit_after_gets` or
    /// `admit_probability`.
    #[getter]
    fn admits_all(&self) -> bool {
        !self.key.is_gated
    }

    /// How values are stored: "float32", "float16", "bfloat16" or "int8".
    ///
    /// >>> import embank
    /// >>> with embank.Bank("dtype.bank", memory_budget="16MiB") as bank:
    /// ...     table = bank.table("item", dim=3, dtype="int8", optimizer=embank.SGD(lr=0.1))
    /// ...     table.put([1], [[1.0, -127.0, 63.4]])
    /// ...     table.dtype, table.peek([1]).tolist()
    /// ('int8', [[1.0, -127.0, 63.0]])
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.with(py, |table| Ok(table.config().dtype.name()))
    }

    /// The optimizer's learning rate, or None for a table without an optimizer. Can be set.
    #[getter]
    fn learning_rate(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        self.with(py, |table| Ok(table.config().optimizer.learning_rate()))
    }

    #[setter]
    fn set_learning_rate(&self, py: Python<'_>, value: f64) -> PyResult<()> {
        self.with(py, |table| table.set_learning_rate(value))
    }

    /// The table's optimizer with its present settings, or None. You can set it to an optimizer of
    /// the same kind that stores the same state beside a row. A batch sees either all old or all
    /// new settings.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("optimizer.bank", memory_budget="16MiB") as bank:
    /// ...     table = bank.table("item", dim=2, optimizer=embank.SGD(lr=0.1))
    /// ...     table.optimizer = embank.SGD(lr=0.05, weight_decay=0.01)
    /// ...     table.optimizer.lr, table.learning_rate
    /// (0.05, 0.05)
    #[getter]
    fn optimizer(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let optimizer = self.with(py, |table| Ok(table.config().optimizer))?;
        settings::optimizer_object(py, optimizer)
    }

    #[setter]
    fn set_optimizer(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let optimizer = settings::optimizer(Some(value))?;
        self.with(py, |table| table.set_optimizer(optimizer))
    }

    /// The largest L2 norm of a row's gradient, or None for no limit. Can be set.
    #[getter]
    fn clip_row_norm(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let norm = self.with(py, |table| Ok(table.config().clip_row_norm))?;
        Ok(norm.map(scalars::shortest))
    }

    #[setter]
    fn set_clip_row_norm(&self, py: Python<'_>, value: Option<f64>) -> PyResult<()> {
        self.with(py, |table| table.set_clip_row_norm(value.map(|norm| norm as f32)))
    }

    /// A get waits while more than this many leases hold one of its rows. With None a get never
    /// waits. Can be set.
    #[getter]
    fn staleness_bound(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        self.with(py, |table| Ok(table.config().staleness_bound))
    }

    /// The number of the shard that holds all rows of the table in a fleet. None: each row is on
    /// the shard of its key.
    #[getter]
    fn shard(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        self.with(py, |table| Ok(table.config().shard))
    }

    #[setter]
    fn set_staleness_bound(
        &self,
        py: Python<'_>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let bound =
            value.map(|bound| scalars::unsigned_32("staleness_bound", bound)).transpose()?;
        self.with(py, |table| {
            table.set_staleness_bound(bound);
            Ok(())
        })
    }

    /// The number of leases that hold the row of `key`, or None if there is no such row.
    fn outstanding(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let key = scalars::key(key)?;
        self.with(py, |table| table.outstanding(key))
    }

    /// The outstanding leases of this table, the oldest first. Each is a dictionary as in
    /// `Bank.outstanding_leases`.
    fn outstanding_leases<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let found = self.with(py, |table| Ok(table.outstanding_leases()))?;
        stats::leases(py, &found)
    }

    /// Counters of this table since its bank was opened, as a dictionary. `staleness` is a
    /// histogram of the rows of gets by the number of other leases on the row. Above 16, an entry
    /// stands for a range of numbers, and its key is the largest of them.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.with(py, |table| Ok(table.stats()))?;
        stats::table(py, &found)
    }

    fn __repr__(&self) -> String {
        format!("<embank.Table {:?}, dim={}>", &*self.key.name, self.key.dim)
    }
}

crate::copies::shared_by_copies!(
    PyTable,
    |table| format!("table {:?}", &*table.key.name),
    "its rows are in the bank. Another process opens the bank with read_only=True; save a model with \
     embank.torch.save, or its state_dict()"
);
