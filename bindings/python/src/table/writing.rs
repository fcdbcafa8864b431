//! The calls that write rows: puts, and the gradients of one table or of several.

use embank::TableGradients;
use numpy::PyReadonlyArray2;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyTable;
use super::request::check_bank;
use crate::arrays::{self, Keys};
use crate::cell::{BankCell, LeaseId, lease_of_another_table};
use crate::lease::PyLease;

impl PyTable {
    /// The ids of leases of this bank within its cell.
    pub(crate) fn lease_ids(&self, leases: &[Bound<'_, PyLease>]) -> PyResult<Vec<LeaseId>> {
        let ids = leases.iter().map(|lease| lease.get().id_in(&self.cell));
        ids.collect::<Option<Vec<_>>>().ok_or_else(lease_of_another_table)
    }

    /// Calls the table with keys and one row of values for each key. Errors call the values `name`.
    fn with_batch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        (name, values): (&'static str, &Bound<'_, PyAny>),
        call: fn(&embank::Table, &[u64], &[f32]) -> embank::Result<()>,
    ) -> PyResult<()> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let values = arrays::values(name, values, keys.len(), self.key.dim)?;
        let values = values.as_slice()?;
        self.with(py, |table| call(table, keys, values))
    }
}

#[pymethods]
impl PyTable {
    /// Writes rows, without a lease.
    ///
    /// An existing row keeps its optimizer state. A new row gets the optimizer's initial state.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     rows: float32 `(n, dim)`. If a key occurs more than once, its last row is kept.
    ///     blind: Read fewer old rows. In a bank with two tiers, the call does not read old rows of
    ///         the cold tier. It still reads a row that the log has only on disk. In a bank with
    ///         one tier, it does what `put` does. After blind puts in a bank with two tiers,
    ///         `len(table)` may be wrong until `Bank.compact` has counted the rows, and the length
    ///         of a scan is an upper bound. Values, scans and exports are exact.
    ///
    /// Raises:
    ///     ValueError: `blind` is True, and the table has optimizer state, admission or tracking;
    ///         no row changes.
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it; no row changes.
    #[pyo3(signature = (keys, rows, *, blind = false))]
    fn put(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        blind: bool,
    ) -> PyResult<()> {
        let put = if blind { embank::Table::put_blind } else { embank::Table::put };
        self.with_batch(py, keys, ("rows", rows), put)
    }

    /// Applies gradients with the table's optimizer, without a lease.
    ///
    /// A key without a row first gets one with its initial value.
    ///
    /// Args:
    ///     keys: Integers `(n,)`.
    ///     grads: float32 `(n, dim)`. The gradients of equal keys are summed first.
    ///
    /// Raises:
    ///     ValueError: A gradient is NaN or infinite, or the table has no optimizer; no row
    ///         changes.
    ///     UnknownValue: The table has a vocabulary, and a key is no id of it; no row changes.
    fn apply_gradients(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        grads: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.with_batch(py, keys, ("grads", grads), embank::Table::apply_gradients)
    }

    /// Takes one step for each row of several leases of this table, and consumes the leases.
    ///
    /// Use it for gradients that were summed over several forward passes. The call consumes all
    /// leases or no lease. Rows that were deleted after their get stay deleted. Keys that no lease
    /// holds get no row.
    ///
    /// Args:
    ///     leases: `Lease` objects of this table.
    ///     keys: Integers `(n,)`: the keys of the leases.
    ///     grads: float32 `(n, dim)`. The gradients of equal keys are summed first.
    ///
    /// Raises:
    ///     ValueError: A lease was consumed before or belongs to another table, or a shape is wrong
    ///         (the leases stay as they were). A gradient is NaN or infinite, or the table has no
    ///         optimizer (the call releases the leases).
    ///     LeaseExpired: A lease has expired; no row changes, and the call releases the other
    ///         leases.
    ///     EmbankError: The store failed; the call releases the leases.
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
        leases: Vec<Bound<'_, PyLease>>,
        keys: &Bound<'_, PyAny>,
        grads: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = Keys::new(keys)?;
        let keys = keys.as_slice()?;
        let grads = arrays::values("grads", grads, keys.len(), self.key.dim)?;
        let grads = grads.as_slice()?;
        let ids = self.lease_ids(&leases)?;
        self.cell.with_leases(py, &[(self.key.handle, ids)], |mut leases| {
            embank::Lease::apply_together(leases.swap_remove(0), keys, grads)
        })
    }
}

/// A table, leases of it, their keys and gradients.
type GivenPart<'py> =
    (Bound<'py, PyTable>, Vec<Bound<'py, PyLease>>, Option<Bound<'py, PyAny>>, Bound<'py, PyAny>);

/// A part of `apply_many`: the step of one table.
struct Part<'py> {
    table: Bound<'py, PyTable>,
    leases: Vec<Bound<'py, PyLease>>,
    /// `None` if the part has one lease and the gradients have the shape of its rows.
    keys: Option<Bound<'py, PyAny>>,
    grads: Bound<'py, PyAny>,
}

/// The arrays of a part, borrowed.
struct PartArrays<'py> {
    keys: Option<Keys<'py>>,
    grads: PyReadonlyArray2<'py, f32>,
}

impl<'py> Part<'py> {
    fn arrays(&self) -> PyResult<PartArrays<'py>> {
        let key = &self.table.get().key;
        let [lease, others @ ..] = &self.leases[..] else {
            let name = &*key.name;
            return Err(PyValueError::new_err(format!("table {name:?} comes without a lease")));
        };
        if let Some(keys) = &self.keys {
            let keys = Keys::new(keys)?;
            let grads = arrays::values("grads", &self.grads, keys.as_slice()?.len(), key.dim)?;
            return Ok(PartArrays { keys: Some(keys), grads });
        }
        if !others.is_empty() {
            return Err(PyValueError::new_err(format!(
                "table {:?} comes with several leases, so its part needs the keys of the gradients",
                &*key.name
            )));
        }
        let [rows, dim] = lease.get().shape();
        Ok(PartArrays { keys: None, grads: arrays::values("grads", &self.grads, rows, dim)? })
    }
}

/// Applies the gradients of several tables of one bank as one step, and consumes the leases.
///
/// The store checks all parts first. If it refuses one part, no row of any table changes.
///
/// Args:
///     parts: Tuples of a table, leases of it, keys (integers `(n,)`, the keys of the leases), and
///         gradients (float32 `(n, dim)`). The gradients of equal keys are summed first. With one
///         lease, keys may be None; the gradients then have the shape of `lease.rows`. No table may
///         occur twice.
///
/// Raises:
///     ValueError: A lease was consumed before or belongs to another table, the tables belong to
///         two banks, or a shape is wrong (the leases stay as they were). A gradient is NaN or
///         infinite, or a table has no optimizer (the call releases the leases). A row would become
///         infinite (it stays as it was, and all other rows took their step).
///     LeaseExpired: A lease has expired; no row changes, and the call releases the other leases.
///     EmbankError: The store failed. The message names the tables that have changed already. The
///         call releases the leases.
///
/// >>> import embank
/// >>> bank = embank.Bank("step.bank", memory_budget="16MiB")
/// >>> a, b = (bank.table(name, dim=1, optimizer=embank.SGD(lr=1.0)) for name in "ab")
/// >>> of_a, of_b = embank.get_many([(a, [7]), (b, [8])])
/// >>> embank.apply_many([(a, [of_a], [7], [[1.0]]), (b, [of_b], [8], [[1.0]])])
/// >>> a.outstanding(7), b.stats()["apply_rows"]
/// (0, 1)
/// >>> bank.close()
#[pyfunction]
pub(crate) fn apply_many(py: Python<'_>, parts: Vec<GivenPart<'_>>) -> PyResult<()> {
    let parts: Vec<Part<'_>> = parts
        .into_iter()
        .map(|(table, leases, keys, grads)| Part { table, leases, keys, grads })
        .collect();
    let Some(first) = parts.first() else { return Ok(()) };
    let cell = first.table.get().cell.clone();
    check_bank(&cell, parts.iter().map(|part| part.table.get()))?;
    check_once(&cell, &parts)?;
    let arrays = parts.iter().map(Part::arrays).collect::<PyResult<Vec<_>>>()?;
    let slices = arrays.iter().map(|PartArrays { keys, grads }| {
        let keys = keys.as_ref().map(Keys::as_slice).transpose()?;
        Ok((keys, grads.as_slice()?))
    });
    let slices = slices.collect::<PyResult<Vec<_>>>()?;
    let ids = parts
        .iter()
        .map(|part| {
            let table = part.table.get();
            Ok((table.key.handle, table.lease_ids(&part.leases)?))
        })
        .collect::<PyResult<Vec<_>>>()?;
    cell.with_leases(py, &ids, |leases| {
        let parts = leases.into_iter().zip(slices);
        let parts = parts
            .map(|(leases, (keys, gradients))| TableGradients { leases, keys, gradients })
            .collect();
        embank::Lease::apply_many(parts)
    })
}

/// Fails if two parts have the same table.
fn check_once(cell: &BankCell, parts: &[Part<'_>]) -> PyResult<()> {
    for (place, part) in parts.iter().enumerate() {
        let key = &part.table.get().key;
        let mut comes_twice = false;
        for earlier in &parts[..place] {
            comes_twice |= cell.is_one_table(&earlier.table.get().key, key)?;
        }
        if comes_twice {
            return Err(PyValueError::new_err(format!(
                "table {:?} comes twice: join its leases, keys and gradients into one part",
                &*key.name
            )));
        }
    }
    Ok(())
}
