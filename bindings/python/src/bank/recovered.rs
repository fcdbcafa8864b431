//! `Recovered`: what a bank found when it was opened.

use embank::Recovered;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The checkpoint that a bank was opened at, and its blob.
#[pyclass(name = "Recovered", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyRecovered {
    /// The checkpoint's number.
    #[pyo3(get)]
    checkpoint: u64,
    blob: Py<PyBytes>,
}

#[pymethods]
impl PyRecovered {
    /// The bytes that were passed to `Bank.checkpoint`.
    #[getter]
    fn blob(&self, py: Python<'_>) -> Py<PyBytes> {
        self.blob.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let length = self.blob.bind(py).len()?;
        Ok(format!("<embank.Recovered checkpoint={}, blob of {length} bytes>", self.checkpoint))
    }
}

impl PyRecovered {
    pub(super) fn of(py: Python<'_>, found: Option<&Recovered>) -> PyResult<Option<Py<Self>>> {
        let Some(found) = found else { return Ok(None) };
        let blob = PyBytes::new(py, &found.blob).unbind();
        Py::new(py, Self { checkpoint: found.checkpoint, blob }).map(Some)
    }
}
