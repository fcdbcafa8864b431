//! Export of a table to a file, and import of a file into a table.

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
    /// The export takes constant memory, and training can go on. Changes after the newest
    /// checkpoint are not in the file, so take a checkpoint first. The file gets its name when it
    /// is complete and on stable storage. After an error no part of the file is left.
    /// docs/export.md describes the layout.
    ///
    /// Args:
    ///     path: `x.safetensors` (tensors `keys`, `rows`, `state`), `x.npy` (files `x.keys.npy`,
    ///         `x.rows.npy`, `x.state.npy`, `x.embank.json`) or `x.parquet` (columns `key`,
    ///         `vector`, `state`).
    ///     format: "safetensors", "npy" or "parquet". Default: the one of the suffix.
    ///     state: Whether the file gets the optimizer's state, so that an import restores training
    ///         exactly. For a table with tracking it also gets each row's last use and number of
    ///         uses.
    ///     dense: Whether the file is one matrix of the rows of keys 0 to n - 1, without the keys.
    ///         Not for Parquet.
    ///     rows: The n of a dense file. Default: the largest key + 1.
    ///     fill_missing: Whether keys of a dense file that have no row get their initial values.
    ///         Otherwise a missing row is an error.
    ///     progress: A function that is called with (rows done, rows in all) after each batch of
    ///         rows. An exception that it raises ends the export.
    ///
    /// Returns:
    ///     A dictionary: `checkpoint`, `rows`, `filled_rows`, `bytes`, `files`.
    ///
    /// Raises:
    ///     ValueError: There is no checkpoint yet, the suffix stands for no format, or the keys do
    ///         not fit a dense file.
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
        let rows = rows.map(|rows| scalars::unsigned("rows", rows, u64::MAX)).transpose()?;
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

    /// Puts the rows of a file into the table: a file that `export` wrote, or a matrix of another
    /// program.
    ///
    /// It takes constant memory. It replaces existing rows; of equal keys in the file, the last one
    /// stays. With the optimizer's state, the rows train on exactly as the exported rows would.
    /// Without the optimizer's state, an existing row keeps its own. The rows are durable with the
    /// next checkpoint. After an error, the batches before it are in the table.
    ///
    /// Args:
    ///     path: See `export`; also a directory, which means its files sorted by name, or a list
    ///         of paths. If a file holds only a matrix of f16, bf16, f32 or f64, row i is the row
    ///         of key i.
    ///     format: "safetensors", "npy" or "parquet". Default: the one of the suffix.
    ///     keys: The tensor or column of the keys; for npy the file of the keys. Default: `keys` or
    ///         `key`. Pass `keys` or `first_key` if another part of the file could be taken for the
    ///         keys.
    ///     rows: The tensor or column of the vectors; for npy the file of the vectors. Default:
    ///         `rows` or `vector`, or the only matrix.
    ///     first_key: The key of the file's first row: row i is the row of key first_key + i, and
    ///         keys in the file are ignored. The next file continues the count.
    ///     state: Whether the import takes the optimizer's state if the file has it. A table with
    ///         tracking also takes each row's last use and number of uses.
    ///     non_finite: Whether NaN and infinite values are taken, and negative sums of squares in
    ///         the optimizer's state. Otherwise they are an error.
    ///     progress: A function that is called with (rows done, rows in all) after each batch of
    ///         rows. An exception that it raises ends the import.
    ///
    /// Returns:
    ///     A dictionary: `rows`, `with_state`.
    ///
    /// Raises:
    ///     UnreadableFile: The file is damaged, holds a value that is not finite (the text names
    ///         row and column), or does not tell which of its parts are keys and vectors.
    ///     FileMismatch: The vectors have another dim than the table, the state belongs to another
    ///         optimizer, or the keys belong to another vocabulary.
    ///     ValueError: The suffix stands for no format, there is no file, or both `keys` and
    ///         `first_key` were passed.
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

/// Returns the format with this name. `None` stands for the format of the file's suffix.
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

/// Reads one path, or several paths in a list or tuple.
fn paths_of(paths: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    match paths.is_instance_of::<PyList>() || paths.is_instance_of::<PyTuple>() {
        true => paths.extract(),
        false => Ok(vec![paths.extract()?]),
    }
}
