//! A check that the program makes while a Get waits for its rows, and that can end the wait.
//!
//! Python runs signal handlers between two instructions of the interpreter. A Get that waits in Rust would keep Ctrl-C
//! from its handler for the whole `wait_timeout`. So the Python package sets a check that runs the handlers.

use std::sync::OnceLock;
use std::time::Duration;

/// Time between two checks of a Get that waits: Ctrl-C ends a wait within it, and a check costs a few microseconds.
pub(crate) const CHECKED_EVERY: Duration = Duration::from_millis(100);

static CHECK: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the function that a Get calls every 100 ms while it waits for its rows, in the waiting thread. If the function
/// returns true, the Get fails with [`Error::Interrupted`](crate::Error::Interrupted) and holds no row. The function holds
/// for all banks of the process. The first call of `check_while_waiting` counts; later calls change nothing.
///
/// # Examples
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static STOPPED: AtomicBool = AtomicBool::new(false);
/// embank::check_while_waiting(|| STOPPED.load(Ordering::SeqCst));
/// ```
pub fn check_while_waiting(check: fn() -> bool) {
    // A second one changes nothing, as its docs say.
    let _ = CHECK.set(check);
}

pub(crate) fn check() -> Option<fn() -> bool> {
    CHECK.get().copied()
}
