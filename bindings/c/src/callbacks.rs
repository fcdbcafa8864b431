//! Callbacks: functions of the caller that a call of the library calls.

use std::ffi::c_void;
use std::ops::ControlFlow;

use embank::TransferProgress;

/// Is called after each batch of rows with the number of rows done and the number of rows in all. A
/// result other than 0 ends the call.
pub type embank_on_progress =
    Option<unsafe extern "C" fn(context: *mut c_void, rows_done: u64, rows_total: u64) -> i32>;

/// Is called with the keys of a batch of rows, which are valid until it returns. A result other
/// than 0 ends the call.
pub type embank_on_keys =
    Option<unsafe extern "C" fn(context: *mut c_void, keys: *const u64, key_count: usize) -> i32>;

/// Calls the progress callback.
///
/// # Safety
/// The callback must be null or a function of its type that accepts `context` and returns.
pub(crate) unsafe fn tell(
    progress: embank_on_progress,
    context: *mut c_void,
    now: TransferProgress,
) -> ControlFlow<()> {
    // SAFETY: `# Safety` obliges the caller to pass a function that accepts these arguments.
    let answer = progress.map(|call| unsafe { call(context, now.rows_done, now.rows_total) });
    go_on(answer)
}

/// Calls the callback for keys.
///
/// # Safety
/// The callback must be null or a function of its type that accepts `context` and returns.
pub(crate) unsafe fn hand_out(
    to: embank_on_keys,
    context: *mut c_void,
    keys: &[u64],
) -> ControlFlow<()> {
    // SAFETY: `# Safety` obliges the caller to pass a function that accepts these arguments.
    let answer = to.map(|call| unsafe { call(context, keys.as_ptr(), keys.len()) });
    go_on(answer)
}

fn go_on(answer: Option<i32>) -> ControlFlow<()> {
    match answer {
        None | Some(0) => ControlFlow::Continue(()),
        Some(_) => ControlFlow::Break(()),
    }
}
