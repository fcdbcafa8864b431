//! Functions of the caller that a call calls.

use std::ffi::c_void;
use std::ops::ControlFlow;

use embank::TransferProgress;

/// Gets told how far a call is, in rows, after each batch of them. Anything but 0 ends the call.
pub type embank_on_progress =
    Option<unsafe extern "C" fn(context: *mut c_void, rows_done: u64, rows_total: u64) -> i32>;

/// Gets the keys of a batch of rows, lent until it returns. Anything but 0 ends the call.
pub type embank_on_keys =
    Option<unsafe extern "C" fn(context: *mut c_void, keys: *const u64, key_count: usize) -> i32>;

/// Tells how far a call is.
///
/// # Safety
/// By the header's rules for callbacks.
pub(crate) unsafe fn tell(
    progress: embank_on_progress,
    context: *mut c_void,
    now: TransferProgress,
) -> ControlFlow<()> {
    // SAFETY: the caller's duty is the same.
    let answer = progress.map(|call| unsafe { call(context, now.rows_done, now.rows_total) });
    go_on(answer)
}

/// Hands out keys.
///
/// # Safety
/// By the header's rules for callbacks.
pub(crate) unsafe fn hand_out(
    to: embank_on_keys,
    context: *mut c_void,
    keys: &[u64],
) -> ControlFlow<()> {
    // SAFETY: the caller's duty is the same.
    let answer = to.map(|call| unsafe { call(context, keys.as_ptr(), keys.len()) });
    go_on(answer)
}

fn go_on(answer: Option<i32>) -> ControlFlow<()> {
    match answer {
        None | Some(0) => ControlFlow::Continue(()),
        Some(_) => ControlFlow::Break(()),
    }
}
