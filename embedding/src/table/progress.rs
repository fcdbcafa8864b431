//! How far a long call is: what it tells its caller, who may end it.

use std::ops::ControlFlow;

use crate::error::{Error, Result};

/// How far an export or import is, in rows.
///
/// # Examples
/// See [`Table::export_with`](crate::Table::export_with).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferProgress {
    /// Rows that have been gone through.
    pub rows_done: u64,
    /// Rows to go through in all.
    pub rows_total: u64,
}

/// Gets told how far a transfer is, and may end it.
pub(crate) type OnProgress<'a> = dyn FnMut(TransferProgress) -> ControlFlow<()> + 'a;

/// Tells how far a transfer is; an error if that ends it.
pub(crate) fn report(progress: &mut OnProgress<'_>, rows_done: u64, rows_total: u64) -> Result<()> {
    match progress(TransferProgress { rows_done, rows_total }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Cancelled),
    }
}
