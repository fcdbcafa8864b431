//! Ctrl-C while a call waits in Rust.

use std::cell::RefCell;
use std::time::Duration;

use pyo3::prelude::*;

/// Time between two looks at pending signals while a call waits for a pipeline.
pub(crate) const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// What a signal handler has raised in this thread, on its way to the caller.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Has calls that wait run Python's signal handlers.
pub(crate) fn handle_while_waiting() {
    embank::check_while_waiting(handler_raised);
}

/// Runs the handlers of pending signals; true if one raised.
fn handler_raised() -> bool {
    // Python runs handlers in its main thread alone. Another thread must not ask for the
    // interpreter here, which may be at its end.
    if rustix::thread::gettid() != rustix::process::getpid() {
        return false;
    }
    if has_raised() {
        return true;
    }
    let raised = Python::attach(|py| py.check_signals()).err();
    let ends = raised.is_some();
    RAISED.set(raised);
    ends
}

/// Whether a handler has raised in this call: it waits no more.
pub(crate) fn has_raised() -> bool {
    RAISED.with_borrow(Option::is_some)
}

/// What a handler has raised in a wait of a call that went on to its end.
pub(crate) fn raised_in_passing() -> Option<PyErr> {
    RAISED.take()
}

/// What a handler has raised in this thread, `KeyboardInterrupt` if nothing is known of it.
pub(crate) fn take_raised(text: String) -> PyErr {
    RAISED.take().unwrap_or_else(|| pyo3::exceptions::PyKeyboardInterrupt::new_err(text))
}
