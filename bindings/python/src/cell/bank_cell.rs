//! The cell itself: how calls get the bank, how a thread records the banks that it is calling, and
//! how the bank closes.

use std::cell::{Cell, RefCell};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process;

use embank::locks::{Condvar, Mutex};
use embank::{Bank, Home, Unsaved};
use pyo3::prelude::*;

use super::handles::{HandleId, OpenHandles, Registered};
use crate::{errors, signals};

/// The handles of an open bank. Empty after the bank is closed.
///
/// The methods stand in the files of this folder: `handles` has those for handles of every kind,
/// `tables`, `leases` and `dependents` have those for these objects, and `roll_back` takes the bank
/// back to a checkpoint.
#[derive(Debug)]
pub(crate) struct BankCell {
    path: PathBuf,
    home: Home,
    state: Mutex<CellState>,
    /// Notified when `in_flight` becomes 1 or 0.
    idle: Condvar,
}

#[derive(Debug)]
struct CellState {
    open: Option<OpenHandles>,
    /// The number of calls that hold a clone of a handle.
    in_flight: usize,
    /// True after `close`. If `close` comes while `roll_back` opens the bank again, the flag tells
    /// `roll_back` to drop the new handles.
    closing: bool,
    /// Numbers of handles whose Python objects were dropped while `roll_back` opens the bank again.
    forgotten: Vec<u64>,
}

impl BankCell {
    pub(crate) fn new(bank: Bank) -> Self {
        let path = bank.path().to_owned();
        let open = Some(OpenHandles::new(bank, 0));
        Self {
            path,
            home: Home::here(),
            state: Mutex::new(CellState {
                open,
                in_flight: 0,
                closing: false,
                forgotten: Vec::new(),
            }),
            idle: Condvar::new(),
        }
    }

    /// The bank's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// True if the bank is closed.
    pub(crate) fn is_closed(&self) -> PyResult<bool> {
        self.look(|open| open.is_none())
    }

    /// Runs `call` on the bank with the GIL released.
    pub(crate) fn with_bank<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bank) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let bank = self.pick(|open| Ok(open.bank.clone()))?;
        self.run(py, move || call(&bank))
    }

    /// Calls `call`, which checks for signals. A signal handler that calls [`close`](Self::close)
    /// gets an error, because `close` would wait for this thread's call.
    pub(crate) fn as_call_of_this_thread<R>(&self, call: impl FnOnce() -> R) -> R {
        let _call = CallOfThisThread::on(self.address());
        call()
    }

    /// Fails if this thread is inside a call on the bank, for example in a progress function. Then
    /// `close` would wait for the end of the call, and the call for the end of `close`.
    pub(crate) fn check_closable(&self) -> PyResult<()> {
        if is_in_call(self.address()) {
            return Err(errors::closed_within_call());
        }
        Ok(())
    }

    /// Closes the bank, waits until the calls of other threads have ended, and returns the changes
    /// that were lost. `None` if no change was lost, or if another call has closed the bank.
    ///
    /// # Errors
    /// The errors of [`check_closable`](Self::check_closable).
    pub(crate) fn close(&self) -> PyResult<Option<Unsaved>> {
        if !self.is_own_process() {
            return Ok(None);
        }
        self.check_closable()?;
        let mut unsaved = None;
        detached(|| {
            let taken = self.take_open();
            self.state.lock().closing = true;
            if let Some(open) = taken {
                let closing = InFlight(self);
                open.close_dependents();
                // Calls that have begun may still change rows, so the lost changes are counted
                // after they have ended.
                unsaved = open.end(|| self.wait_until_in_flight(1));
                drop(closing);
            }
            self.wait_until_in_flight(0);
        });
        Ok(unsaved)
    }

    /// Takes all handles out of the cell. Counts the caller as a call in flight, so that a thread
    /// that closes the bank waits for it.
    pub(crate) fn take_open(&self) -> Option<OpenHandles> {
        let mut state = self.state.lock();
        state.in_flight += usize::from(state.open.is_some());
        state.open.take()
    }

    /// Puts back the handles that `take_open` took. If the bank was closed in between, returns the
    /// handles.
    pub(crate) fn put_open(&self, mut open: OpenHandles) -> Option<OpenHandles> {
        let mut state = self.state.lock();
        if state.closing {
            return Some(open);
        }
        let forgotten = open.take_numbers(&mem::take(&mut state.forgotten));
        state.open = Some(open);
        drop(state);
        // Dropped here, because no handle may be dropped while `state` is locked.
        drop(forgotten);
        None
    }

    /// Waits until at most `calls` calls are in flight.
    pub(crate) fn wait_until_in_flight(&self, calls: usize) {
        let mut state = self.state.lock();
        while state.in_flight > calls {
            self.idle.wait(&mut state);
        }
    }

    /// The cell's address. It identifies the cell while the cell is borrowed.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Stores a handle that a call in flight has made. Drops the handle and returns `None` if the
    /// bank was closed in between.
    pub(super) fn store<H, R>(
        &self,
        handle: H,
        store: impl FnOnce(&mut OpenHandles, H) -> R,
    ) -> Option<R> {
        let mut state = self.state.lock();
        match &mut state.open {
            Some(open) => Some(store(open, handle)),
            None => {
                drop(state);
                drop(handle);
                None
            }
        }
    }

    /// Calls `look` on the handles under the lock; with `None` if the bank is closed.
    pub(super) fn look<R>(&self, look: impl FnOnce(Option<&mut OpenHandles>) -> R) -> PyResult<R> {
        self.check_process()?;
        Ok(look(self.state.lock().open.as_mut()))
    }

    /// Takes the handle of a Python object that is dropped, if its registry has it, and counts a
    /// call in flight. The caller ends the call by dropping an [`InFlight`].
    pub(super) fn pick_forgotten<H: Registered>(&self, id: HandleId<H>) -> Option<H> {
        if !self.is_own_process() {
            return None;
        }
        let mut state = self.state.lock();
        let CellState { open, closing, forgotten, .. } = &mut *state;
        let Some(open) = open else {
            // `roll_back` has the handles, and may put this one back.
            if !*closing {
                forgotten.push(id.number());
            }
            return None;
        };
        let handle = H::registry(open).take(&id)?;
        state.in_flight += 1;
        Some(handle)
    }

    /// Clones or takes a handle, and counts a call in flight. `run` ends the call.
    pub(super) fn pick<H>(
        &self,
        handle: impl FnOnce(&mut OpenHandles) -> PyResult<H>,
    ) -> PyResult<H> {
        self.check_process()?;
        let mut state = self.state.lock();
        let handle = handle(state.open.as_mut().ok_or_else(errors::bank_closed)?)?;
        state.in_flight += 1;
        Ok(handle)
    }

    /// Runs `call`, which owns a handle from `pick` and drops it.
    pub(super) fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce() -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let in_flight = InFlight(self);
        // Clears the exception of a signal handler that ran while this thread dropped a handle. A
        // drop can't raise the exception, so `signals` still stores it.
        drop(signals::raised_in_passing());
        // Catching the panic is sound: the store keeps its invariants through a panic, and this
        // crate changes nothing before a call has returned.
        let outcome = py.detach(|| {
            let of_this_thread = CallOfThisThread::on(self.address());
            let outcome = catch_unwind(AssertUnwindSafe(call));
            drop(of_this_thread);
            drop(in_flight);
            outcome.map(|done| {
                // If a signal handler ended the call's wait, `errors::to_python` takes the
                // handler's exception.
                let value = done.map_err(CallFailure::Call)?;
                // If a signal handler raised and the call succeeded, its value is dropped here,
                // without the GIL.
                signals::raised_in_passing()
                    .map_or(Ok(value), |raised| Err(CallFailure::Raised(raised)))
            })
        });
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(CallFailure::Raised(raised))) => Err(raised),
            Ok(Err(CallFailure::Call(error))) => Err(errors::to_python(py, &error)),
            Err(panic) => Err(errors::from_panic(panic.as_ref())),
        }
    }

    fn is_own_process(&self) -> bool {
        self.home.is_here()
    }

    fn check_process(&self) -> PyResult<()> {
        if self.is_own_process() {
            return Ok(());
        }
        Err(errors::forked(self.home.process_id(), process::id()))
    }
}

impl Drop for BankCell {
    fn drop(&mut self) {
        let open = self.state.get_mut().open.take();
        if !self.is_own_process() {
            mem::forget(open);
            return;
        }
        if IS_DECODING.get() {
            return ended(move || {
                // Another thread can't warn of unsaved steps.
                let _ = open.and_then(|open| open.end(|| ()));
            });
        }
        let mut unsaved = None;
        detached(|| unsaved = open.and_then(|open| open.end(|| ())));
        if let Some(unsaved) = unsaved {
            // If the interpreter has ended, no warning is possible.
            let _ = Python::try_attach(|py| {
                // The garbage collector may run while an exception is on its way. The warning must
                // not replace that exception.
                let pending = PyErr::take(py);
                if let Err(error) = errors::warn_unsaved(py, &self.path, unsaved) {
                    error.write_unraisable(py, None);
                }
                if let Some(pending) = pending {
                    pending.restore(py);
                }
            });
        }
    }
}

/// Why a call returns no value to its caller.
enum CallFailure {
    Call(embank::Error),
    /// The call succeeded, but a signal handler raised while it waited.
    Raised(PyErr),
}

/// One call in flight. Its drop ends the call.
#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a BankCell);

impl<'a> InFlight<'a> {
    /// Makes the guard of a call that `pick` or `take_open` has already counted.
    pub(crate) fn of(cell: &'a BankCell) -> Self {
        Self(cell)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.in_flight -= 1;
        // Either no call is left, or only the call that closes the bank.
        if state.in_flight <= 1 {
            self.0.idle.notify_all();
        }
    }
}

thread_local! {
    /// The addresses of the cells that this thread is calling, the innermost call last. There can
    /// be several addresses: a call may call a progress function in Python, and that function may
    /// call another cell.
    static CALLS_OF_THIS_THREAD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` on this thread's list. `None` in a thread that is ending, whose thread-local list
/// is gone.
fn calls_of_this_thread<R>(work: impl FnOnce(&mut Vec<usize>) -> R) -> Option<R> {
    CALLS_OF_THIS_THREAD.try_with(|calls| work(&mut calls.borrow_mut())).ok()
}

/// A call of this thread on the cell at an address. Its drop ends the call.
struct CallOfThisThread(());

impl CallOfThisThread {
    fn on(cell_address: usize) -> Self {
        calls_of_this_thread(|cells| cells.push(cell_address));
        Self(())
    }
}

impl Drop for CallOfThisThread {
    fn drop(&mut self) {
        calls_of_this_thread(Vec::pop);
    }
}

/// True if this thread is in a call on the cell at `cell_address`.
fn is_in_call(cell_address: usize) -> bool {
    calls_of_this_thread(|cells| cells.contains(&cell_address)) == Some(true)
}

thread_local! {
    /// True while a thread of a run calls a decoder in Python.
    static IS_DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Calls `decode`, which calls Python, in a thread of a run.
pub(crate) fn decoding<R>(decode: impl FnOnce() -> R) -> R {
    IS_DECODING.set(true);
    let decoded = decode();
    IS_DECODING.set(false);
    decoded
}

/// Ends a run, or a bank with its runs, with the GIL released.
///
/// Python's garbage collector may drop objects in any thread that calls Python, so also in a thread
/// of a run that calls a decoder. The end of that run would wait for its own thread. Another thread
/// then does the work.
pub(crate) fn ended(work: impl FnOnce() + Send + 'static) {
    if IS_DECODING.get() {
        // If the system refuses the thread, the run ends with the process.
        drop(std::thread::Builder::new().name("embank-end".to_owned()).spawn(work));
    } else {
        detached(work);
    }
}

/// Runs `work`, with the GIL released if this thread holds it. Drops call this function, also when
/// the interpreter has ended.
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
