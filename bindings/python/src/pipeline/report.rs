//! The result of a run.

use std::ffi::CString;

use embank_pipeline::RunReport;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;

/// The result of a run.
#[pyclass(name = "RunReport", module = "embank.pipeline", frozen, get_all)]
#[derive(Debug)]
pub(crate) struct PyRunReport {
    /// Rows that the run made. A feed's rows that were skipped count.
    rows: u64,
    /// Those of the rows that the run did not read, because a feed that resumed could begin after
    /// them.
    passed_rows: u64,
    /// Bad rows, which were left out.
    bad_rows: u64,
    /// Lines of input that the bad rows span. A bad row spans several lines if a quote is open at
    /// the end of a line.
    bad_lines: u64,
    /// The first ten bad rows: file, line, column and the problem.
    first_bad_rows: Vec<String>,
    /// Columns that files of Parquet or Arrow do not have, counted for each file. Their values are
    /// missing.
    missing_columns: u64,
    /// The first ten missing columns: file and column.
    first_missing_columns: Vec<String>,
    /// Arrays that `image` and `decode` have made.
    made_arrays: u64,
    /// Arrays from the pipeline's `cache`.
    cached_arrays: u64,
    /// Arrays from the `spool`.
    spooled_arrays: u64,
    /// Groups of the spool's files that were damaged. Their arrays were made again.
    damaged_groups: u64,
    /// Bytes of input.
    bytes: u64,
    /// Duration of the run.
    seconds: f64,
}

/// Warns if the spool takes no more arrays, with the reason.
pub(super) fn warn(py: Python<'_>, spool_failure: Option<&str>) -> PyResult<()> {
    let Some(why) = spool_failure else { return Ok(()) };
    let text = CString::new(why.replace('\0', " ")).unwrap_or_default();
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)
}

impl PyRunReport {
    pub(crate) fn new(report: &RunReport) -> Self {
        Self {
            rows: report.rows,
            passed_rows: report.passed_rows,
            bad_rows: report.bad_rows,
            bad_lines: report.bad_lines,
            first_bad_rows: report.first_bad_rows.iter().map(|bad| format!("{bad:#}")).collect(),
            missing_columns: report.missing_columns,
            first_missing_columns: report.first_missing_columns.clone(),
            made_arrays: report.arrays.made,
            cached_arrays: report.arrays.cached,
            spooled_arrays: report.arrays.spooled,
            damaged_groups: report.arrays.damaged_groups,
            bytes: report.bytes,
            seconds: report.elapsed.as_secs_f64(),
        }
    }
}

#[pymethods]
impl PyRunReport {
    fn __repr__(&self) -> String {
        format!("<embank.pipeline.RunReport, {} rows, {} bad ones>", self.rows, self.bad_rows)
    }
}
