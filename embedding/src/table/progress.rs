//! Reports the progress of a long call to the caller, which may end the call.

use std::ops::ControlFlow;

use crate::error::{Error, Result};

/// The progress of an export, import or eviction, in rows.
///
/// # Examples
/// See [`Table::export_with`](crate::Table::export_with).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferProgress {
    /// Number of rows that are done.
    pub rows_done: u64,
    /// Total number of rows.
    pub rows_total: u64,
}

/// Receives the progress of a long call. `Break` ends the call.
pub(crate) type OnProgress<'a> = dyn FnMut(TransferProgress) -> ControlFlow<()> + 'a;

/// Reports progress. Fails if the caller ends the call.
pub(crate) fn report(progress: &mut OnProgress<'_>, rows_done: u64, rows_total: u64) -> Result<()> {
    match progress(TransferProgress { rows_done, rows_total }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Cancelled),
    }
}
