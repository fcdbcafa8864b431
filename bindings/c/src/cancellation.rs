//! Keeps the cancellation of threads (`pthread_cancel`) away from calls.
//!
//! A cancelled thread unwinds at its next system call that is a cancellation point, such as `read`.
//! In a call of this library, such an unwinding would pass Rust code and abort the process. Each
//! call therefore disables cancellation for its thread. A request that arrives meanwhile stays
//! pending, and takes effect at the first cancellation point after the call.
//!
//! Disabling costs some nanoseconds: it changes a word of the thread, without a system call.

use std::ffi::c_int;

/// While this guard exists, its thread can't be cancelled. Dropping it restores the state before.
#[derive(Debug)]
pub(crate) struct Uncancelled {
    before: c_int,
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::c_int;

    /// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
    pub(super) const DISABLE: c_int = 1;

    // The crate `libc` does not declare it for Linux.
    unsafe extern "C" {
        pub(super) fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
}

impl Uncancelled {
    pub(crate) fn new() -> Self {
        Self { before: set(None) }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        set(Some(self.before));
    }
}

/// Sets the thread's state of cancellation, and returns the state before. `None` disables.
#[cfg(target_os = "linux")]
fn set(state: Option<c_int>) -> c_int {
    let state = state.unwrap_or(system::DISABLE);
    let mut before = state;
    // SAFETY: `before` is valid for a write. `state` is a constant of the C library, or was
    // returned by it. The call fails only for another number.
    unsafe { system::pthread_setcancelstate(state, &raw mut before) };
    before
}

#[cfg(not(target_os = "linux"))]
fn set(_: Option<c_int>) -> c_int {
    0
}
