//! Export and import: a table into a file and out of one.

use std::path::PathBuf;

use embank::{DenseRows, ExportOptions, Exported, FileFormat, ImportOptions, Imported};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::PyTable;
use super::progress::Progress;
use crate::scalars;

#[pymethods]
impl PyTable {
    /// Writes the table to a file, as the newest checkpoint holds it: safetensors, npy or Parquet.
    ///
    /// In constant memory, while training goes on. What came after the newest checkpoint is not in
    /// it: take one first to have it. The file gets its name when it is complete and on stable
    /// storage; after an error nothing of it is there. docs/export.md tells what lies where in it.
    ///
    /// Args:
    ///     path: `x.safetensors` (tensors `keys`, `rows`, `state`), `x.npy` (files `x.keys.npy`,
    ///         `x.rows.npy`, `x.state.npy`, `x.embank.json`) or `x.parquet` (columns `key`,
    ///         `vector`, `state`).
    ///     format: "safetensors", "npy" or "parquet", whatever the suffix says.
    ///     state: Also the optimizer's state, so that an import restores training exactly, and of a
    ///         table with tracking each row's uses and last use.
    ///     dense: One matrix in order of the keys, 0 to n - 1, without them; not for Parquet.
    ///     rows: The n of a dense file; the largest key + 1, by default.
    ///     fill_missing: Keys of a dense file that have no row get their initial values; else they
    ///         are an error.
    ///     progress: Called with (rows done, rows in all) after each batch of rows. What it raises
    ///         ends the export.
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
        let rows = rows.map(scalars::key).transpose()?;
        if !dense && (rows.is_some() || fill_missing) {
            return Err(PyValueError::new_err("rows and fill_missing are for dense=True"));
        }
        let dense = dense.then_some(DenseRows { rows, fill_missing });
        let options = ExportOptions { format: format_of(format)?, state, dense };
        let exported: Exported = Progress::new(progress)
            .through(py, self, |table, tell| table.export_with(path, &options, tell))?;
        let found = PyDict::new(py);
        found.set_item("checkpoint", exported.checkpoint)?;
        found.set_item("rows", exported.rows)?;
        found.set_item("filled_rows", exported.filled_rows)?;
        found.set_item("bytes", exported.bytes)?;
        found.set_item("files", exported.files)?;
        Ok(found)
    }

    /// Puts the rows of a file into the table: what `export` wrote, or a matrix that others made.
    ///
    /// In constant memory. A row that is there is replaced; of equal keys, the last one in the file
    /// stays. With the optimizer's state, rows train on as the exported ones would have; without, a
    /// row keeps the state that it has. Durable with the next checkpoint. After an error, the
    /// batches before it are in the table.
    ///
    /// Args:
    ///     path: As for `export`; also a directory, which means its files, sorted by name, and a
    ///         list of paths, one after another. Of a matrix of f16, bf16, f32 or f64 that is alone
    ///         in its file, row i is the row of key i.
    ///     format: "safetensors", "npy" or "parquet", whatever the suffix says.
    ///     keys: The tensor or column of the keys, for npy the file; `keys` or `key` by default.
    ///         Must be given, or `first_key`, where something else in the file may be the keys.
    ///     rows: The tensor or column of the vectors, for npy the file; `rows` or `vector` by
    ///         default, or the only matrix.
    ///     first_key: By position: row i is the row of key first_key + i, whatever else is in the
    ///         file. Rows of a further file go on from there.
    ///     state: Whether the optimizer's state is taken too, and in a table with tracking each
    ///         row's uses and last use, if the file has them.
    ///     non_finite: Whether NaN and infinite values are taken; else they are an error.
    ///     progress: Called with (rows done, rows in all) after each batch of rows. What it raises
    ///         ends the import.
    ///
    /// Returns:
    ///     A dictionary: `rows`, `with_state`.
    ///
    /// Raises:
    ///     UnreadableFile: The file is damaged, holds a value that is not finite (the text names
    ///         row and column), or does not tell which of its parts are keys and vectors.
    ///     FileMismatch: The file's vectors have another dim than the table, its state is another
    ///         optimizer's, or its keys belong to another vocabulary.
    ///     ValueError: The suffix says no format, there is no file, or `keys` and `first_key` are
    ///         given.
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
        let format = format_of(format)?;
        let first_key = first_key.map(scalars::key).transpose()?;
        let options = ImportOptions { format, keys, rows, first_key, state, non_finite };
        let paths = paths_of(path)?;
        let imported: Imported = Progress::new(progress)
            .through(py, self, |table, tell| table.import_files_with(&paths, &options, tell))?;
        let found = PyDict::new(py);
        found.set_item("rows", imported.rows)?;
        found.set_item("with_state", imported.with_state)?;
        Ok(found)
    }
}

/// The format with this name. `None` stands for the one that the file's suffix says.
pub(crate) fn format_of(name: Option<&str>) -> PyResult<Option<FileFormat>> {
    Ok(Some(match name {
        None => return Ok(None),
        Some("safetensors") => FileFormat::Safetensors,
        Some("npy") => FileFormat::Npy,
        Some("parquet") => FileFormat::Parquet,
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "format must be \"safetensors\", \"npy\" or \"parquet\", not {other:?}"
            )));
        }
    }))
}

/// A path, or several in a list or tuple.
fn paths_of(paths: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    match paths.is_instance_of::<PyList>() || paths.is_instance_of::<PyTuple>() {
        true => paths.extract(),
        false => Ok(vec![paths.extract()?]),
    }
}
