//! Export and import: a table into a file and out of one.

use std::ops::ControlFlow;
use std::path::PathBuf;

use embank::{
    DenseRows, Error, ExportOptions, Exported, FileFormat, ImportOptions, Imported,
    TransferProgress,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::cell::bank_cell::{BankCell, CellTableId};
use crate::scalars;

/// Tells Python how far a transfer is, and looks for Ctrl-C. The first exception ends the transfer.
pub(crate) struct Progress {
    callback: Option<Py<PyAny>>,
    raised: Option<PyErr>,
}

impl Progress {
    pub(crate) fn new(callback: Option<Bound<'_, PyAny>>) -> Self {
        Self { callback: callback.map(Bound::unbind), raised: None }
    }

    fn tell(&mut self, progress: TransferProgress) -> ControlFlow<()> {
        let told = Python::attach(|py| {
            py.check_signals()?;
            if let Some(callback) = &self.callback {
                callback.call1(py, (progress.rows_done, progress.rows_total))?;
            }
            Ok(())
        });
        match told {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.raised = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Runs `call` on the table, and raises what ended it.
    pub(crate) fn through<R: Send>(
        mut self,
        py: Python<'_>,
        (cell, table): (&BankCell, CellTableId),
        call: impl FnOnce(
            &embank::Table,
            &mut dyn FnMut(TransferProgress) -> ControlFlow<()>,
        ) -> embank::Result<R>
        + Send,
    ) -> PyResult<R> {
        let done = cell.with_table(py, table, |table| {
            let done = call(table, &mut |progress| self.tell(progress));
            match (done, self.raised.take()) {
                (Err(Error::Cancelled), Some(raised)) => Ok(Err(raised)),
                (done, _) => done.map(Ok),
            }
        });
        done?
    }
}

fn format_of(name: Option<&str>) -> PyResult<Option<FileFormat>> {
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

/// What `Table.export` takes beside the path.
pub(crate) struct ExportArguments<'a, 'py> {
    pub(crate) format: Option<&'a str>,
    pub(crate) state: bool,
    pub(crate) dense: bool,
    pub(crate) rows: Option<&'a Bound<'py, PyAny>>,
    pub(crate) fill_missing: bool,
    pub(crate) progress: Option<Bound<'py, PyAny>>,
}

pub(crate) fn export<'py>(
    py: Python<'py>,
    table: (&BankCell, CellTableId),
    path: PathBuf,
    arguments: ExportArguments<'_, 'py>,
) -> PyResult<Bound<'py, PyDict>> {
    let ExportArguments { format, state, dense, rows, fill_missing, progress } = arguments;
    let rows = rows.map(scalars::key).transpose()?;
    if !dense && (rows.is_some() || fill_missing) {
        return Err(PyValueError::new_err("rows and fill_missing are for dense=True"));
    }
    let dense = dense.then_some(DenseRows { rows, fill_missing });
    let options = ExportOptions { format: format_of(format)?, state, dense };
    let exported: Exported = Progress::new(progress)
        .through(py, table, |table, tell| table.export_with(path, &options, tell))?;
    let found = PyDict::new(py);
    found.set_item("checkpoint", exported.checkpoint)?;
    found.set_item("rows", exported.rows)?;
    found.set_item("filled_rows", exported.filled_rows)?;
    found.set_item("bytes", exported.bytes)?;
    found.set_item("files", exported.files)?;
    Ok(found)
}

/// A path, or several in a list or tuple.
fn paths_of(paths: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    match paths.is_instance_of::<PyList>() || paths.is_instance_of::<PyTuple>() {
        true => paths.extract(),
        false => Ok(vec![paths.extract()?]),
    }
}

/// What `Table.import_from` takes beside the path.
pub(crate) struct ImportArguments<'a, 'py> {
    pub(crate) format: Option<&'a str>,
    pub(crate) keys: Option<String>,
    pub(crate) rows: Option<String>,
    pub(crate) first_key: Option<&'a Bound<'py, PyAny>>,
    pub(crate) state: bool,
    pub(crate) non_finite: bool,
    pub(crate) progress: Option<Bound<'py, PyAny>>,
}

pub(crate) fn import<'py>(
    py: Python<'py>,
    table: (&BankCell, CellTableId),
    paths: &Bound<'py, PyAny>,
    arguments: ImportArguments<'_, 'py>,
) -> PyResult<Bound<'py, PyDict>> {
    let ImportArguments { format, keys, rows, first_key, state, non_finite, progress } = arguments;
    let (format, first_key) = (format_of(format)?, first_key.map(scalars::key).transpose()?);
    let options = ImportOptions { format, keys, rows, first_key, state, non_finite };
    let paths = paths_of(paths)?;
    let imported: Imported = Progress::new(progress)
        .through(py, table, |table, tell| table.import_files_with(&paths, &options, tell))?;
    let found = PyDict::new(py);
    found.set_item("rows", imported.rows)?;
    found.set_item("with_state", imported.with_state)?;
    Ok(found)
}
