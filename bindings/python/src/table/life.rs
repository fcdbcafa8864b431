//! The end of rows: deletion and eviction.

use embank::{Evicted, Eviction};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::PyTable;
use super::progress::Progress;
use crate::arrays::Keys;
use crate::scalars;

#[pymethods]
impl PyTable {
    /// Deletes rows and returns the number of rows that it deleted. A later get of the key begins
    /// with the initial value.
    fn delete(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<u64> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        self.with(py, |table| table.delete(keys))
    }

    /// Sets the time of a table with `tracking="set_time"`, in a unit of the caller's choice:
    /// steps, epochs or days.
    ///
    /// Later uses of rows record this time, and `evict(unused_for=...)` counts back from it. A
    /// checkpoint stores the largest time, and an opened table continues with it.
    ///
    /// Raises:
    ///     ValueError: The table has no `tracking`, or tracks minutes.
    fn set_time(&self, py: Python<'_>, time: &Bound<'_, PyAny>) -> PyResult<()> {
        let time = scalars::unsigned_32("time", time)?;
        self.with(py, |table| table.set_time(time))
    }

    /// Deletes the rows that meet every condition that was passed, in memory and on disk.
    ///
    /// The call goes through the rows of the newest checkpoint, in constant memory, while training
    /// can go on. It judges each row by its present state. Rows that are newer than the checkpoint
    /// stay, and so do rows that leases hold. The eviction is durable with the next checkpoint.
    /// Compaction frees the space later.
    ///
    /// Args:
    ///     unused_for: Rows whose last use is at least this long ago, in minutes or in the unit of
    ///         `set_time`. A gradient or a put is a use. Needs `tracking`.
    ///     used_fewer_than: Rows with fewer uses than this. Needs `tracking`.
    ///     norm_below: Rows with an L2 norm below this.
    ///     dry_run: Whether to delete nothing and only count the rows, and list them if `keys` is
    ///         True.
    ///     keys: Whether to return the deleted keys, in 8 bytes of memory each. With `dry_run`, the
    ///         keys that would be deleted.
    ///     progress: A function that is called with (rows done, rows in all) after each batch of
    ///         rows. An exception that it raises ends the eviction; rows that were deleted before
    ///         stay deleted.
    ///
    /// Returns:
    ///     A dictionary: `checkpoint`; `examined`; `rows`, the number of deleted rows; `leased`,
    ///         the number of rows that stayed because leases hold them; `counts`, the number of
    ///         deleted counts of gets (see `forget_counts`); `keys` (uint64, or None). With
    ///         `dry_run`, `rows`, `counts` and `keys` say what would be deleted.
    ///
    /// Raises:
    ///     ValueError: No condition was passed, the table does not record what a condition needs,
    ///         or there is no checkpoint yet.
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
        let number = |name, value: Option<Bound<'py, PyAny>>| {
            value.map(|value| scalars::unsigned_32(name, &value)).transpose()
        };
        let mut eviction = Eviction::new().dry_run(dry_run);
        eviction.unused_for = number("unused_for", unused_for)?;
        eviction.used_fewer_than = number("used_fewer_than", used_fewer_than)?;
        eviction.norm_below = norm_below.map(|norm| norm as f32);
        let mut gone = Vec::new();
        let list = |batch: &[u64]| {
            if keys {
                gone.extend_from_slice(batch);
            }
        };
        let evicted: Evicted = Progress::new(progress)
            .through(py, self, |table, tell| table.evict_with(&eviction, list, tell))?;
        let found = PyDict::new(py);
        found.set_item("checkpoint", evicted.checkpoint)?;
        found.set_item("examined", evicted.examined)?;
        found.set_item("rows", evicted.rows)?;
        found.set_item("leased", evicted.leased)?;
        found.set_item("counts", evicted.counts)?;
        found.set_item("keys", keys.then(|| PyArray1::from_vec(py, gone)))?;
        Ok(found)
    }

    /// Deletes the counts of gets that the table keeps for keys without a row (`admit_after_gets`),
    /// if the last get of the key is at least `unused_for` ago.
    ///
    /// The call goes through the counts of the newest checkpoint. `evict(unused_for=...)` deletes
    /// these counts too. The deletion is durable with the next checkpoint.
    ///
    /// Args:
    ///     unused_for: A time in the unit of the table's tracking, or in minutes if the table has
    ///         no tracking.
    ///     dry_run: Whether to delete nothing and only count.
    ///
    /// Returns:
    ///     The number of deleted counts. With `dry_run`, the number that would be deleted.
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
}
