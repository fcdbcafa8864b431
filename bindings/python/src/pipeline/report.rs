//! The result of a run.

use embank_pipeline::RunReport;
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
    /// Bytes of input.
    bytes: u64,
    /// Duration of the run.
    seconds: f64,
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
