//! Ending a wait from outside: what a program asks while a Get waits for its rows.
//!
//! A Python program handles signals between two instructions of the interpreter, so a Get that waits for a lease in Rust
//! would be deaf to Ctrl-C for the whole `wait_timeout`. The binding gives a check, which waiting Gets make now and then.

use std::sync::OnceLock;
use std::time::Duration;

/// Time between two checks of a Get that waits: Ctrl-C ends a wait within it, and a check costs a few microseconds.
pub(crate) const CHECKED_EVERY: Duration = Duration::from_millis(100);

static CHECK: OnceLock<fn() -> bool> = OnceLock::new();

/// Gives what Gets that wait for their rows call every 100 ms, in the waiting thread and holding no row. Once it
/// returns true, the Get fails with [`Error::Interrupted`](crate::Error::Interrupted). Holds for all banks of the process;
/// the first call counts.
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
