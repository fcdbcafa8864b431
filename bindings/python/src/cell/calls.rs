//! Which banks this thread is in a call of, and work without the interpreter's lock.

use std::cell::RefCell;

use pyo3::prelude::*;

thread_local! {
    /// The addresses of the cells that this thread is in a call of, the innermost last: a call may tell a Python
    /// function of its progress, and that function makes calls of its own.
    static CALLS_OF_THIS_THREAD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// `None` in a thread that is ending, which keeps no list of its calls any more.
fn calls_of_this_thread<R>(work: impl FnOnce(&mut Vec<usize>) -> R) -> Option<R> {
    CALLS_OF_THIS_THREAD.try_with(|calls| work(&mut calls.borrow_mut())).ok()
}

/// A call of this thread on the cell at an address; ends when dropped.
pub(super) struct CallOfThisThread(());

impl CallOfThisThread {
    pub(super) fn on(cell_address: usize) -> Self {
        calls_of_this_thread(|cells| cells.push(cell_address));
        Self(())
    }
}

impl Drop for CallOfThisThread {
    fn drop(&mut self) {
        calls_of_this_thread(Vec::pop);
    }
}

/// Whether this thread is in a call on the cell at that address.
pub(super) fn is_in_call(cell_address: usize) -> bool {
    calls_of_this_thread(|cells| cells.contains(&cell_address)) == Some(true)
}

/// Runs `work` with the GIL released where there is one to release: a drop can come at any time, the
/// interpreter's end included.
pub(crate) fn detached(work: impl FnOnce() + Send) {
    let mut work = Some(work);
    let ran = Python::try_attach(|py| {
        let work = work.take();
        py.detach(|| work.map(|work| work()));
    });
    if ran.is_none()
        && let Some(work) = work
    {
        work();
    }
}
