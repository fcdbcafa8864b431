//! `Scan`: the rows of a table as a checkpoint holds them, in batches.

use std::sync::Arc;

use embank::locks::Mutex;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::cell::{BankCell, ScanId, TableKey};
use crate::scalars;

const BATCH_SIZE_DEFAULT: usize = 4096;

/// The rows of a table as a checkpoint holds them, in batches. Made by `Table.scan`.
///
/// An iterator of `(keys, rows)`: fresh arrays, uint64 `(n,)` and float32 `(n, dim)`. `len` is the
/// number of all rows; after blind puts it is an upper bound. The scan closes itself after its last
/// batch, at the end of a `with` block, and with its bank. Threads may share a scan: each batch
/// goes to one thread.
///
/// >>> import embank
/// >>> bank = embank.Bank("scan.bank", memory_budget="16MiB")
/// >>> table = bank.table("item", dim=2)
/// >>> table.put([5, 6, 7], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
/// >>> number = bank.checkpoint()
/// >>> with table.scan(batch_size=2) as scan:
/// ...     found = {int(key): row.tolist() for keys, rows in scan for key, row in zip(keys, rows)}
/// >>> len(scan), sorted(found.items())
/// (3, [(5, [1.0, 2.0]), (6, [3.0, 4.0]), (7, [5.0, 6.0])])
/// >>> bank.close()
#[pyclass(name = "Scan", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyScan {
    cell: Arc<BankCell>,
    id: ScanId,
    table: Arc<str>,
    dim: usize,
    batch_size: usize,
    checkpoint: u64,
    rows: usize,
}

type Batch<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray2<f32>>);

impl PyScan {
    pub(crate) fn begin(
        py: Python<'_>,
        cell: &Arc<BankCell>,
        table: &TableKey,
        batch_size: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let batch_size = match batch_size {
            Some(size) => scalars::unsigned_32("batch_size", size)? as usize,
            None => BATCH_SIZE_DEFAULT,
        };
        if batch_size == 0 {
            return Err(PyValueError::new_err("batch_size must be 1 or more, not 0"));
        }
        let mut checkpoint = 0;
        let mut rows = 0;
        let id = cell.keep_of_table(py, table.handle, |table| {
            let scan = table.scan()?;
            checkpoint = scan.checkpoint();
            rows = scan.rows();
            Ok(Arc::new(Mutex::new(scan)))
        })?;
        Ok(Self {
            cell: cell.clone(),
            id,
            table: table.name.clone(),
            dim: table.dim,
            batch_size,
            checkpoint,
            rows: rows as usize,
        })
    }
}

#[pymethods]
impl PyScan {
    /// The number of the checkpoint that the scan reads.
    #[getter]
    fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// Ends the scan and gives its memory back. It yields no batch any more. A second call does
    /// nothing.
    fn close(&self) {
        self.cell.forget(self.id);
    }

    fn __len__(&self) -> usize {
        self.rows
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Batch<'py>>> {
        let dim = self.dim;
        let batch = self.cell.with_shared(py, self.id, |scan| {
            let mut scan = scan.lock();
            // The size is at most the number of rows that are left, because `batch_size` rows might
            // not fit in memory.
            let size = usize::try_from(scan.remaining())
                .map_or(self.batch_size, |left| self.batch_size.min(left));
            let mut keys = vec![0; size];
            let mut rows = vec![0.0; size * dim];
            let count = scan.next_batch(&mut keys, &mut rows)?;
            keys.truncate(count);
            rows.truncate(count * dim);
            Ok((keys, rows))
        });
        // The rows that the failed batch has read are lost, so the scan can't go on.
        let batch = batch.inspect_err(|_| self.close())?;
        let Some((keys, rows)) = batch.filter(|(keys, _)| !keys.is_empty()) else {
            self.close();
            return Ok(None);
        };
        let count = keys.len();
        let rows = PyArray1::from_vec(py, rows).reshape([count, dim])?;
        Ok(Some((PyArray1::from_vec(py, keys), rows)))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        format!(
            "<embank.Scan of table {:?} at checkpoint {}, {} rows>",
            &*self.table, self.checkpoint, self.rows
        )
    }
}

impl Drop for PyScan {
    fn drop(&mut self) {
        self.close();
    }
}
