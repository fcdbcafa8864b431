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
    /// Deletes rows and says how many there were. A later get begins at the initial value again.
    fn delete(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<u64> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        self.with(py, |table| table.delete(keys))
    }

    /// Sets the time of a table with `tracking="set_time"`: steps, epochs, days, whatever you
    /// count.
    ///
    /// Rows that are used from now on tell it, and `evict(unused_for=...)` counts from it. The
    /// largest time is part of each checkpoint: an open goes on with it.
    ///
    /// Raises:
    ///     ValueError: The table tracks otherwise or not at all.
    fn set_time(&self, py: Python<'_>, time: &Bound<'_, PyAny>) -> PyResult<()> {
        let time = scalars::unsigned_32("time", time)?;
        self.with(py, |table| table.set_time(time))
    }

    /// Deletes the rows for which every condition that is given holds, in memory and on disk.
    ///
    /// Goes through the rows of the newest checkpoint, in constant memory, while training goes on,
    /// and judges each as it is now; rows that were made after the checkpoint stay, and so do rows
    /// that leases hold. Durable with the next checkpoint; compaction gives the space back.
    ///
    /// Args:
    ///     unused_for: Rows whose last use lies so far back or further: minutes, or in the unit of
    ///         `set_time`. A use is a gradient applied or a row put. Needs `tracking`.
    ///     used_fewer_than: Rows with fewer uses than this. Needs `tracking`.
    ///     norm_below: Rows with an L2 norm below this.
    ///     dry_run: Only count, and list with `keys`.
    ///     keys: Also return the keys that went (or would): 8 bytes of memory each.
    ///     progress: Called with (rows done, rows in all) after each batch of rows. What it raises
    ///         ends the eviction; what went is gone.
    ///
    /// Returns:
    ///     A dictionary: `checkpoint`, `examined`, `rows` that went (or would), `leased` rows that
    ///     leases kept, `keys` (uint64, or None).
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

    /// Forgets counts of gets before admission (`admit_after_gets`) whose keys were not got for
    /// long.
    ///
    /// Goes through the counts of the newest checkpoint. `evict(unused_for=...)` does it too.
    /// Durable with the next checkpoint.
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
}
