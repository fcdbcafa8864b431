//! The progress of a long call, for the caller, which may end the call.

use std::ops::ControlFlow;

use crate::error::{Error, Result};

/// How far an export or import is, in rows.
///
/// # Examples
/// See [`Table::export_with`](crate::Table::export_with).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferProgress {
    /// Rows that are done.
    pub rows_done: u64,
    /// Rows in all.
    pub rows_total: u64,
}

/// Receives the progress of a transfer, and may end it.
pub(crate) type OnProgress<'a> = dyn FnMut(TransferProgress) -> ControlFlow<()> + 'a;

/// Reports the progress of a transfer. Returns an error if the caller ends it.
pub(crate) fn report(progress: &mut OnProgress<'_>, rows_done: u64, rows_total: u64) -> Result<()> {
    match progress(TransferProgress { rows_done, rows_total }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Cancelled),
    }
}
