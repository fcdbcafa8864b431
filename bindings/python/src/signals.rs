//! Ctrl-C while a call waits in Rust.

use std::cell::RefCell;
use std::time::Duration;

use pyo3::prelude::*;

/// Interval at which a call that waits for a pipeline checks for pending signals.
pub(crate) const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// The exception that a signal handler raised in this thread, until a call returns it to
    /// Python.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Makes waiting calls of the store run Python's signal handlers.
pub(crate) fn handle_while_waiting() {
    embank::check_while_waiting(handler_raised);
}

/// Runs the handlers of pending signals. True if one raised.
fn handler_raised() -> bool {
    // Python runs signal handlers only in its main thread. Another thread must not take the GIL
    // here, because the interpreter may be ending.
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

/// True if a handler has raised in this call. The call must then stop waiting.
pub(crate) fn has_raised() -> bool {
    RAISED.with_borrow(Option::is_some)
}

/// Takes the exception that a handler raised while a call waited, after the call has succeeded.
pub(crate) fn raised_in_passing() -> Option<PyErr> {
    RAISED.take()
}

/// Takes the exception that a handler raised in this thread; `KeyboardInterrupt` if there is none.
pub(crate) fn take_raised(text: String) -> PyErr {
    RAISED.take().unwrap_or_else(|| pyo3::exceptions::PyKeyboardInterrupt::new_err(text))
}
