//! `Table`: rows by key.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use embank::UniqueKeys;
use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{self, Keys, Rows};
use crate::bank::PyBank;
use crate::cell::bank_cell::{BankCell, LeaseId, TableKey, lease_of_another_table};
use crate::lease::{Held, PyDistinctLease, PyLease};
use crate::table::files::{self, ExportArguments, ImportArguments};
use crate::table::life::{self, EvictArguments};
use crate::table::prefetch::{PyPrefetch, missing_choice};
use crate::table::scan::PyScan;
use crate::{scalars, settings, stats};

mod files;
pub(crate) mod life;
pub(crate) mod many;
pub(crate) mod prefetch;
pub(crate) mod scan;

/// An embedding table: float32 rows of one width by 64-bit key. Made by `Bank.table`.
///
/// Keys are a 1-D array of integers, or whatever `numpy.asarray` makes one of. C-contiguous int64 and
/// uint64 arrays are read where they lie; a negative int64 stands for the same 64 bits. A key may occur more
/// than once in a batch. Every method raises `ValueError` once the bank is closed.
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

    /// The names of leases of this bank within its cell.
    pub(crate) fn lease_ids(
        &self,
        leases: &[Bound<'_, PyDistinctLease>],
    ) -> PyResult<Vec<LeaseId>> {
        let ids = leases.iter().map(|lease| lease.get().held.id_in(&self.cell));
        ids.collect::<Option<Vec<_>>>().ok_or_else(lease_of_another_table)
    }

    /// Runs `call` on the store's table with the GIL released.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&embank::Table) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        self.cell.with_table(py, self.key.id, call)
    }
}

/// The handle whose gets wait that long.
pub(crate) fn within(table: &embank::Table, timeout: Option<Duration>) -> Cow<'_, embank::Table> {
    match timeout {
        Some(timeout) => Cow::Owned(table.with_wait_timeout(timeout)),
        None => Cow::Borrowed(table),
    }
}

#[pymethods]
impl PyTable {
    /// The bank that it is a table of.
    #[getter]
    fn bank(&self, py: Python<'_>) -> Py<PyBank> {
        self.bank.clone_ref(py)
    }

    /// The table's name.
    #[getter]
    fn name(&self) -> &str {
        &self.key.name
    }

    /// Columns of a row.
    #[getter]
    fn dim(&self) -> usize {
        self.key.dim
    }

    /// Whether every key gets a row at its first get: False with `admit_after_gets` or `admit_probability`.
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

    /// The optimizer's learning rate, or None for a table without an optimizer. Settable.
    #[getter]
    fn learning_rate(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        self.with(py, |table| Ok(table.config().optimizer.learning_rate()))
    }

    #[setter]
    fn set_learning_rate(&self, py: Python<'_>, value: f64) -> PyResult<()> {
        self.with(py, |table| table.set_learning_rate(value))
    }

    /// The table's optimizer as it is set now, or None. Settable: one of the same kind that keeps the same
    /// beside a row, with other numbers; batches see all of them or none.
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

    /// The longest gradient of a row, or None. Settable.
    #[getter]
    fn clip_row_norm(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let norm = self.with(py, |table| Ok(table.config().clip_row_norm))?;
        Ok(norm.map(scalars::shortest))
    }

    #[setter]
    fn set_clip_row_norm(&self, py: Python<'_>, value: Option<f64>) -> PyResult<()> {
        self.with(py, |table| table.set_clip_row_norm(value.map(|norm| norm as f32)))
    }

    /// A get waits while more than this many leases hold one of its rows; None never waits. Settable.
    #[getter]
    fn staleness_bound(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        self.with(py, |table| Ok(table.config().staleness_bound))
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

    /// Reads rows for training, and counts a lease on each.
    ///
    /// A key that has no row gets one with its initial value. Waits, up to the bank's `wait_timeout`,
    /// while a row is beyond the staleness bound.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     out: Where the rows go: C-contiguous float32 `(n, dim)`, which is `lease.rows` then. A new
    ///         array by default. After an error its content is unspecified.
    ///     timeout: Seconds to wait at most, in place of the bank's `wait_timeout`.
    ///
    /// Returns:
    ///     A `Lease` with `rows`, float32 `(n, dim)`. A row counts once, however often its key occurs.
    ///
    /// Raises:
    ///     StalenessTimeout: A row stayed beyond the bound; nothing is held.
    ///     SelfBlocked: Leases of this thread alone hold a row at its bound; nothing is held.
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it; nothing is held.
    ///     ValueError, TypeError: The keys are not 1-D, or no integers.
    #[pyo3(signature = (keys, *, out = None, timeout = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<PyLease> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let timeout = timeout.map(|timeout| scalars::seconds("timeout", timeout)).transpose()?;
        let mut rows = Rows::new(py, out, keys.len(), self.key.dim)?;
        let values = rows.as_slice_mut()?;
        let id = self.cell.take_lease(py, self.key.id, |table| {
            within(table, timeout).get(keys, values).map(Some)
        })?;
        let id = id.expect("a get that waits ends with a lease or an error");
        Ok(PyLease(Held::new(self.cell.clone(), id, rows.into_array(), self.key.name.clone())))
    }

    /// As `get`, if no row keeps it waiting. It reads rows that are on disk.
    ///
    /// Args:
    ///     keys, out: As of `get`.
    ///
    /// Returns:
    ///     A `Lease`, or None if a row is at the staleness bound, or is reserved for a get that has waited long; the
    ///     content of `out` is unspecified then.
    ///
    /// Raises: as `get`, but for `StalenessTimeout` and `SelfBlocked`.
    ///
    /// >>> import embank
    /// >>> with embank.Bank("try.bank", memory_budget="16MiB") as bank:
    /// ...     table = bank.table("user", dim=2, staleness_bound=0)
    /// ...     with table.get([1]):
    /// ...         print(table.try_get([1]))
    /// ...     with table.try_get([1]) as lease:
    /// ...         print(lease.rows.shape)
    /// None
    /// (1, 2)
    #[pyo3(signature = (keys, *, out = None))]
    fn try_get<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<PyLease>> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let mut rows = Rows::new(py, out, keys.len(), self.key.dim)?;
        let values = rows.as_slice_mut()?;
        let id = self.cell.take_lease(py, self.key.id, |table| table.try_get(keys, values))?;
        let held =
            id.map(|id| Held::new(self.cell.clone(), id, rows.into_array(), self.key.name.clone()));
        Ok(held.map(PyLease))
    }

    /// As `get`, with one row for each distinct key.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     out: Where the rows go: C-contiguous float32 with `u` rows or more of `dim`, of which the
    ///         first `u` are `lease.rows` then. A new array by default.
    ///     earlier: Keys, integers `(m,)`, whose rows the same step has got before, such as for another module: to the
    ///         table's admission the two gets of a key are one.
    ///     timeout: Seconds to wait at most, in place of the bank's `wait_timeout`.
    ///
    /// Returns:
    ///     A `DistinctLease` with `rows`, float32 `(u, dim)`, `keys` and `inverse`.
    ///
    /// Raises: as `get`.
    #[pyo3(signature = (keys, *, out = None, earlier = None, timeout = None))]
    fn get_distinct<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        earlier: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<PyDistinctLease> {
        let timeout = timeout.map(|timeout| scalars::seconds("timeout", timeout)).transpose()?;
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let earlier = earlier.map(Keys::new).transpose()?;
        let earlier = earlier.as_ref().map_or(Ok(&[][..]), Keys::as_slice)?;
        let unique = py.detach(|| UniqueKeys::new(keys));
        let (distinct, inverse) = arrays::unique(py, &unique);
        let mut rows = Rows::first_of(py, out, unique.len(), self.key.dim)?;
        let values = rows.as_slice_mut()?;
        let id = self.cell.take_lease(py, self.key.id, |table| {
            within(table, timeout).get_distinct_again(unique, values, earlier).map(Some)
        })?;
        let id = id.expect("a get that waits ends with a lease or an error");
        Ok(PyDistinctLease {
            held: Held::new(self.cell.clone(), id, rows.into_array(), self.key.name.clone()),
            keys: distinct.unbind(),
            inverse: inverse.unbind(),
        })
    }

    /// Writes rows, without a lease.
    ///
    /// The optimizer state of a row that is there stays; a new row's begins as the optimizer says.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     rows: float32 `(n, dim)`. Of a key that occurs more than once, the last row is kept.
    ///
    /// Raises:
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it; no row changes.
    fn put(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let rows = arrays::values("rows", rows, keys.len(), self.key.dim)?;
        let rows = rows.as_slice()?;
        self.with(py, |table| table.put(keys, rows))
    }

    /// Applies gradients with the table's optimizer, without a lease.
    ///
    /// A key that has no row gets one with its initial value first.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     grads: float32 `(n, dim)`. Those of a key that occurs more than once are summed first.
    ///
    /// Raises:
    ///     ValueError: A gradient is NaN or infinite, or the table has no optimizer; no row changes.
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it; no row changes.
    fn apply_gradients(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        grads: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let grads = arrays::values("grads", grads, keys.len(), self.key.dim)?;
        let grads = grads.as_slice()?;
        self.with(py, |table| table.apply_gradients(keys, grads))
    }

    /// Applies one gradient through several leases of this table and consumes them: each row takes one step.
    ///
    /// For gradients that were added up over several forward passes. All leases are answered or none. Rows deleted
    /// since they were got stay deleted, and so do those of keys that no lease holds.
    ///
    /// Args:
    ///     leases: `DistinctLease` objects of this table.
    ///     keys: Integers `(n,)`, those of the leases.
    ///     grads: float32 `(n, dim)`. Those of a key that occurs more than once are summed first.
    ///
    /// Raises:
    ///     ValueError: A lease was consumed before or is another table's, or wrong shapes (the leases stay as they
    ///         were); a gradient is NaN or infinite, or the table has no optimizer (they are given back).
    ///     LeaseExpired: One of them has expired; no row changes, and the others are given back.
    ///     EmbankError: The store failed; the leases are given back.
    ///
    /// >>> import embank
    /// >>> bank = embank.Bank("together.bank", memory_budget="16MiB")
    /// >>> table = bank.table(
    /// ...     "item", dim=1, optimizer=embank.Adagrad(lr=1.0), initializer=embank.Zeros()
    /// ... )
    /// >>> leases = [table.get_distinct([7, 8]), table.get_distinct([7])]
    /// >>> table.apply_leases(leases, [7, 8, 7], [[1.0], [1.0], [1.0]])
    /// >>> table.peek([7, 8]).tolist(), table.outstanding(7)
    /// ([[-1.0], [-1.0]], 0)
    /// >>> bank.close()
    fn apply_leases(
        &self,
        py: Python<'_>,
        leases: Vec<Bound<'_, PyDistinctLease>>,
        keys: &Bound<'_, PyAny>,
        grads: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let grads = arrays::values("grads", grads, keys.len(), self.key.dim)?;
        let grads = grads.as_slice()?;
        let ids = self.lease_ids(&leases)?;
        self.cell.with_leases(py, &[(self.key.id, ids)], |mut leases| {
            embank::Lease::apply_together(leases.swap_remove(0), keys, grads)
        })
    }

    /// Reads rows for evaluation: takes no lease, inserts nothing, never waits for a bound.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     missing: What a key without a row gives: "initial" (its initial value) or "error".
    ///     out: Where the rows go, C-contiguous float32 `(n, dim)`; it is returned. A new array by default.
    ///
    /// Returns:
    ///     float32 `(n, dim)`, one row for each key.
    ///
    /// Raises:
    ///     MissingRow: With `missing="error"`, when a key has no row.
    ///     UnknownValue: With `missing="initial"`, when a key without a row is no id of the table's vocabulary.
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

    /// Deletes rows and says how many there were. A later get begins at the initial value again.
    fn delete(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<u64> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        self.with(py, |table| table.delete(keys))
    }

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

    /// Forgets what looking ahead still has to do for these keys, whoever announced them.
    ///
    /// Returns:
    ///     How many waited for their turn.
    fn cancel_lookahead(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        self.with(py, |table| Ok(table.cancel_lookahead(keys)))
    }

    /// Reads rows into a buffer in the background, for evaluation and features that are only read.
    ///
    /// Never waits, touches no clock and writes nothing, as `peek`; for rows that are to be trained use
    /// `lookahead`. The buffer comes out of the bank's memory budget until the rows are fetched.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     missing: What a key without a row gives: "initial" (its initial value) or "error".
    ///
    /// Returns:
    ///     A `Prefetch`, whose `rows()` are float32 `(n, dim)`.
    ///
    /// Raises:
    ///     BudgetTooSmall: So much is prefetched already that the store could not do with the rest.
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
    /// Each row comes once, in no particular order, in constant memory and at the speed of sequential
    /// reads. Rows that came after the checkpoint are not in it. While a scan is open, space on disk is not
    /// given back and two pages of the memory budget are lent to it: use it in a `with` block, or to its end.
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

    /// Writes the table to a file, as the newest checkpoint holds it: safetensors, npy or Parquet.
    ///
    /// In constant memory, while training goes on. What came after the newest checkpoint is not in it: take one first
    /// to have it. The file gets its name when it is complete and on stable storage; after an error nothing of
    /// it is there. docs/export.md tells what lies where in it.
    ///
    /// Args:
    ///     path: `x.safetensors` (tensors `keys`, `rows`, `state`), `x.npy` (files `x.keys.npy`,
    ///         `x.rows.npy`, `x.state.npy`, `x.embank.json`) or `x.parquet` (columns `key`, `vector`, `state`).
    ///     format: "safetensors", "npy" or "parquet", whatever the suffix says.
    ///     state: Also the optimizer's state, so that an import restores training exactly, and of a table
    ///         with tracking each row's uses and last use.
    ///     dense: One matrix in order of the keys, 0 to n - 1, without them; not for Parquet.
    ///     rows: The n of a dense file; the largest key + 1, by default.
    ///     fill_missing: Keys of a dense file that have no row get their initial values; else they
    ///         are an error.
    ///     progress: Called with (rows done, rows in all) after each batch of rows. What it raises ends
    ///         the export.
    ///
    /// Returns:
    ///     A dictionary: `checkpoint`, `rows`, `filled_rows`, `bytes`, `files`.
    ///
    /// Raises:
    ///     ValueError: There is no checkpoint yet, the suffix says no format, or the keys make no
    ///         dense table.
    ///     StoreIOError: The file can't be written.
    ///
    /// >>> import embank
    /// >>> bank = embank.Bank("export.bank", memory_budget="16MiB")
    /// >>> table = bank.table("item", dim=2)
    /// >>> table.put([5, 6], [[1.0, 2.0], [3.0, 4.0]])
    /// >>> number = bank.checkpoint()
    /// >>> table.export("item.safetensors")["rows"]
    /// 2
    /// >>> copy = bank.table("copy", dim=2)
    /// >>> copy.import_from("item.safetensors")
    /// {'rows': 2, 'with_state': False}
    /// >>> copy.peek([6, 5]).tolist()
    /// [[3.0, 4.0], [1.0, 2.0]]
    /// >>> bank.close()
    #[pyo3(signature = (path, *, format = None, state = false, dense = false, rows = None,
                        fill_missing = false, progress = None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn export<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        format: Option<&str>,
        state: bool,
        dense: bool,
        rows: Option<&Bound<'py, PyAny>>,
        fill_missing: bool,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let arguments = ExportArguments { format, state, dense, rows, fill_missing, progress };
        files::export(py, (&self.cell, self.key.id), path, arguments)
    }

    /// Puts the rows of a file into the table: what `export` wrote, or a matrix that others made.
    ///
    /// In constant memory. A row that is there is replaced; of equal keys, the last one in the file stays.
    /// With the optimizer's state, rows train on as the exported ones would have; without, a row keeps
    /// the state that it has. Durable with the next checkpoint. After an error, the batches before it are in
    /// the table.
    ///
    /// Args:
    ///     path: As for `export`; also a directory, which means its files, sorted by name, and a list of
    ///         paths, one after another. Of a matrix of f16, bf16, f32 or f64 that is alone in its file,
    ///         row i is the row of key i.
    ///     format: "safetensors", "npy" or "parquet", whatever the suffix says.
    ///     keys: The tensor or column of the keys, for npy the file; `keys` or `key` by default. Must be
    ///         given, or `first_key`, where something else in the file may be the keys.
    ///     rows: The tensor or column of the vectors, for npy the file; `rows` or `vector` by default, or
    ///         the only matrix.
    ///     first_key: By position: row i is the row of key first_key + i, whatever else is in the file.
    ///         Rows of a further file go on from there.
    ///     state: Whether the optimizer's state is taken too, and in a table with tracking each row's uses
    ///         and last use, if the file has them.
    ///     non_finite: Whether NaN and infinite values are taken; else they are an error.
    ///     progress: Called with (rows done, rows in all) after each batch of rows. What it raises ends
    ///         the import.
    ///
    /// Returns:
    ///     A dictionary: `rows`, `with_state`.
    ///
    /// Raises:
    ///     UnreadableFile: The file is damaged, of another dim, has the state of another optimizer,
    ///         holds what is not finite (names row and column), or does not tell which of its parts are
    ///         keys and vectors.
    ///     ValueError: The suffix says no format, there is no file, or `keys` and `first_key` are given.
    ///     StoreIOError: The file is not there, or can't be read.
    #[pyo3(signature = (path, *, format = None, keys = None, rows = None, first_key = None,
                        state = true, non_finite = false, progress = None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn import_from<'py>(
        &self,
        py: Python<'py>,
        path: &Bound<'py, PyAny>,
        format: Option<&str>,
        keys: Option<String>,
        rows: Option<String>,
        first_key: Option<&Bound<'py, PyAny>>,
        state: bool,
        non_finite: bool,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let arguments =
            ImportArguments { format, keys, rows, first_key, state, non_finite, progress };
        files::import(py, (&self.cell, self.key.id), path, arguments)
    }

    /// Sets the time of a table with `tracking="set_time"`: steps, epochs, days, whatever you count.
    ///
    /// Rows that are used from now on tell it, and `evict(unused_for=...)` counts from it. The largest time is part of
    /// each checkpoint: an open goes on with it.
    ///
    /// Raises:
    ///     ValueError: The table tracks otherwise or not at all.
    fn set_time(&self, py: Python<'_>, time: &Bound<'_, PyAny>) -> PyResult<()> {
        let time = scalars::unsigned_32("time", time)?;
        self.with(py, |table| table.set_time(time))
    }

    /// Deletes the rows for which every condition that is given holds, in memory and on disk.
    ///
    /// Goes through the rows of the newest checkpoint, in constant memory, while training goes on, and judges each as
    /// it is now; rows that were made after the checkpoint stay, and so do rows that leases hold. Durable with
    /// the next checkpoint; compaction gives the space back.
    ///
    /// Args:
    ///     unused_for: Rows whose last use lies so far back or further: minutes, or in the unit of
    ///         `set_time`. A use is a gradient applied or a row put. Needs `tracking`.
    ///     used_fewer_than: Rows with fewer uses than this. Needs `tracking`.
    ///     norm_below: Rows with an L2 norm below this.
    ///     dry_run: Only count, and list with `keys`.
    ///     keys: Also return the keys that went (or would): 8 bytes of memory each.
    ///     progress: Called with (rows done, rows in all) after each batch of rows. What it raises ends
    ///         the eviction; what went is gone.
    ///
    /// Returns:
    ///     A dictionary: `checkpoint`, `examined`, `rows` that went (or would), `leased` rows that leases
    ///     kept, `keys` (uint64, or None).
    ///
    /// Raises:
    ///     ValueError: No condition, or one that the table can't tell; there is no checkpoint yet.
    ///
    /// >>> import embank
    /// >>> bank = embank.Bank("evict.bank", memory_budget="16MiB")
    /// >>> table = bank.table("item", dim=2, tracking="set_time")
    /// >>> table.set_time(3)
    /// >>> table.put([5, 6], [[1.0, 2.0], [3.0, 4.0]])
    /// >>> table.set_time(9)
    /// >>> table.put([6], [[3.0, 4.0]])
    /// >>> number = bank.checkpoint()
    /// >>> table.evict(unused_for=6, dry_run=True)["rows"]
    /// 1
    /// >>> table.evict(unused_for=6, keys=True)["keys"].tolist()
    /// [5]
    /// >>> bank.close()
    #[pyo3(signature = (*, unused_for = None, used_fewer_than = None, norm_below = None,
                        dry_run = false, keys = false, progress = None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn evict<'py>(
        &self,
        py: Python<'py>,
        unused_for: Option<Bound<'py, PyAny>>,
        used_fewer_than: Option<Bound<'py, PyAny>>,
        norm_below: Option<f64>,
        dry_run: bool,
        keys: bool,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let arguments =
            EvictArguments { unused_for, used_fewer_than, norm_below, dry_run, keys, progress };
        life::evict(py, (&self.cell, self.key.id), arguments)
    }

    /// How many leases hold the row of `key`, or None if there is no such row.
    fn outstanding(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let key = scalars::key(key)?;
        self.with(py, |table| table.outstanding(key))
    }

    /// Forgets counts of gets before admission (`admit_after_gets`) whose keys were not got for long.
    ///
    /// Goes through the counts of the newest checkpoint. `evict(unused_for=...)` does it too. Durable with the next
    /// checkpoint.
    ///
    /// Args:
    ///     unused_for: In the unit of the table's tracking; in minutes if it has none.
    ///     dry_run: Only counts them.
    ///
    /// Returns:
    ///     The number of counts that went, or that would go.
    ///
    /// Raises:
    ///     ValueError: There is no checkpoint yet.
    ///
    /// >>> import embank
    /// >>> bank = embank.Bank("counts.bank", memory_budget="16MiB")
    /// >>> table = bank.table("item", dim=1, admit_after_gets=2)
    /// >>> table.get([7, 8]).release()
    /// >>> number = bank.checkpoint()
    /// >>> table.forget_counts(unused_for=60), table.forget_counts(unused_for=0)
    /// (0, 2)
    /// >>> bank.close()
    #[pyo3(signature = (unused_for, *, dry_run = false))]
    fn forget_counts(
        &self,
        py: Python<'_>,
        unused_for: &Bound<'_, PyAny>,
        dry_run: bool,
    ) -> PyResult<u64> {
        let unused_for = scalars::unsigned_32("unused_for", unused_for)?;
        self.with(py, |table| Ok(table.forget_counts(unused_for, dry_run)?.counts))
    }

    /// The leases of this table that are out, the oldest first, as `Bank.outstanding_leases`.
    fn outstanding_leases<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let found = self.with(py, |table| Ok(table.outstanding_leases()))?;
        stats::leases(py, &found)
    }

    /// What this table has done since its bank was opened, as a dictionary of counters. `staleness` has, by how many
    /// other leases there were on a row when it was got, how many rows that were; above 16, such as up to that many.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.with(py, |table| Ok(table.stats()))?;
        stats::table(py, &found)
    }

    /// A table is where its rows are: copies of what refers to it, such as a model, share it.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// As `__copy__`.
    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }

    fn __repr__(&self) -> String {
        format!("<embank.Table {:?}, dim={}>", &*self.key.name, self.key.dim)
    }
}
