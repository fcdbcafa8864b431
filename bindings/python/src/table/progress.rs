//! Reports the progress of a long call to a Python function.

use std::ops::ControlFlow;

use embank::{Error, TransferProgress};
use pyo3::prelude::*;

use super::PyTable;

/// Passes the progress of a transfer to Python and checks for Ctrl-C. The first exception ends the
/// transfer.
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

    /// Runs `call` on the table. If an exception of Python ended the call, raises that exception.
    pub(crate) fn through<R: Send>(
        mut self,
        py: Python<'_>,
        table: &PyTable,
        call: impl FnOnce(
            &embank::Table,
            &mut dyn FnMut(TransferProgress) -> ControlFlow<()>,
        ) -> embank::Result<R>
        + Send,
    ) -> PyResult<R> {
        let done = table.with(py, |table| {
            let done = call(table, &mut |progress| self.tell(progress));
            match (done, self.raised.take()) {
                (Err(Error::Cancelled), Some(raised)) => Ok(Err(raised)),
                (done, _) => done.map(Ok),
            }
        });
        done?
    }
}
