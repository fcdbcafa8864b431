//! Callbacks: functions of the caller that a call of the library calls.

use std::ffi::c_void;
use std::ops::ControlFlow;

use embank::TransferProgress;

use crate::status::Failure;

/// A callback for progress. The library calls it after each batch of rows, with the number of rows
/// done so far and the total number of rows. A result other than 0 ends the call of the library.
pub type embank_on_progress =
    Option<unsafe extern "C" fn(context: *mut c_void, rows_done: u64, rows_total: u64) -> i32>;

/// A callback for keys. The library calls it with the keys of a batch of rows. `keys` is valid
/// until the callback returns. A result other than 0 ends the call of the library.
pub type embank_on_keys =
    Option<unsafe extern "C" fn(context: *mut c_void, keys: *const u64, key_count: usize) -> i32>;

/// A callback that changes a row in place. `row` has `dim` values, and `state` has `state_len`
/// values of the optimizer's state: the state vectors and then the single values, without the count
/// of steps. Both are valid until the callback returns. A result other than 0 leaves the row
/// unchanged and ends the call of the library.
pub type embank_on_row = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: u64,
        row: *mut f32,
        dim: usize,
        state: *mut f32,
        state_len: usize,
    ) -> i32,
>;

/// An [`embank_on_row`] callback with its context.
pub(crate) struct OnRow {
    change: unsafe extern "C" fn(*mut c_void, u64, *mut f32, usize, *mut f32, usize) -> i32,
    context: *mut c_void,
}

// SAFETY: by `new`'s `# Safety`, several threads may call the callback with the context at the same
// time.
unsafe impl Sync for OnRow {}

impl OnRow {
    /// Fails if `change` is null.
    ///
    /// # Safety
    /// `change` must be null or a function of its type. It must accept `context`, and return.
    /// Several threads may call it at the same time while the returned value lives.
    pub(crate) unsafe fn new(change: embank_on_row, context: *mut c_void) -> Result<Self, Failure> {
        let change = change.ok_or_else(|| Failure::invalid("the callback `change` is NULL"))?;
        Ok(Self { change, context })
    }

    pub(crate) fn change(&self, key: u64, row: &mut [f32], state: &mut [f32]) -> ControlFlow<()> {
        let (row, dim) = (row.as_mut_ptr(), row.len());
        let (state, state_len) = (state.as_mut_ptr(), state.len());
        // SAFETY: by `new`'s `# Safety`, the callback accepts these arguments and returns. The
        // slices are valid until it returns.
        let answer = unsafe { (self.change)(self.context, key, row, dim, state, state_len) };
        go_on(Some(answer))
    }
}

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
