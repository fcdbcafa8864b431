//! Callbacks: functions of the caller that a call of the library calls.

use std::ffi::c_void;
use std::ops::ControlFlow;

use embank::TransferProgress;

/// A callback for progress. The library calls it after each batch of rows, with the number of rows
/// done so far and the total number of rows. A result other than 0 ends the call of the library.
pub type embank_on_progress =
    Option<unsafe extern "C" fn(context: *mut c_void, rows_done: u64, rows_total: u64) -> i32>;

/// A callback for keys. The library calls it with the keys of a batch of rows. `keys` is valid
/// until the callback returns. A result other than 0 ends the call of the library.
pub type embank_on_keys =
    Option<unsafe extern "C" fn(context: *mut c_void, keys: *const u64, key_count: usize) -> i32>;

/// Calls the progress callback.
///
/// # Safety
/// `progress` must be null or a function of its type. It must accept `context`, and return.
pub(crate) unsafe fn tell(
    progress: embank_on_progress,
    context: *mut c_void,
    now: TransferProgress,
) -> ControlFlow<()> {
    // SAFETY: by this function's `# Safety`, the callback accepts these arguments and returns.
    let answer = progress.map(|call| unsafe { call(context, now.rows_done, now.rows_total) });
    go_on(answer)
}

/// Calls an [`embank_on_keys`] callback with `keys`.
///
/// # Safety
/// `to` must be null or a function of its type. It must accept `context`, and return.
pub(crate) unsafe fn hand_out(
    to: embank_on_keys,
    context: *mut c_void,
    keys: &[u64],
) -> ControlFlow<()> {
    // SAFETY: by this function's `# Safety`, the callback accepts these arguments and returns.
    let answer = to.map(|call| unsafe { call(context, keys.as_ptr(), keys.len()) });
    go_on(answer)
}

fn go_on(answer: Option<i32>) -> ControlFlow<()> {
    match answer {
        None | Some(0) => ControlFlow::Continue(()),
        Some(_) => ControlFlow::Break(()),
    }
}
