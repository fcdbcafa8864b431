//! The cell itself: how calls get at the bank, which banks a thread is in a call of, and how the
//! bank closes.

use std::cell::RefCell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process;

use embank::locks::{Condvar, Mutex};
use embank::{Bank, Unsaved};
use pyo3::prelude::*;

use super::handles::OpenHandles;
use crate::{errors, signals};

/// An open bank, or what is left of it.
///
/// Its methods stand in this folder: those for handles of every kind in `handles`, those for
/// tables, leases and dependents in the files of these names, and `roll_back`.
#[derive(Debug)]
pub(crate) struct BankCell {
    path: PathBuf,
    process: u32,
    state: Mutex<CellState>,
    /// Told whenever `in_flight` reaches 1 or 0.
    idle: Condvar,
}

#[derive(Debug)]
struct CellState {
    open: Option<OpenHandles>,
    /// Calls that hold a clone of a handle.
    in_flight: usize,
    /// The bank was closed while a call had taken its handles, to open it again.
    closing: bool,
}

impl BankCell {
    pub(crate) fn new(bank: Bank) -> Self {
        let path = bank.path().to_owned();
        let open = Some(OpenHandles::new(bank, 0));
        Self {
            path,
            process: process::id(),
            state: Mutex::new(CellState { open, in_flight: 0, closing: false }),
            idle: Condvar::new(),
        }
    }

    /// The bank's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether calls would find it closed.
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

    /// Runs what looks for signals, whose handlers may call [`close`](Self::close): that would wait
    /// for this thread.
    pub(crate) fn as_call_of_this_thread<R>(&self, call: impl FnOnce() -> R) -> R {
        let _call = CallOfThisThread::on(self.address());
        call()
    }

    /// Fails inside a call of this thread on the bank, as a progress function is: `close` would
    /// wait for that call, and so for itself.
    pub(crate) fn check_closable(&self) -> PyResult<()> {
        if is_in_call(self.address()) {
            return Err(errors::closed_within_call());
        }
        Ok(())
    }

    /// Closes the bank, waits for calls of other threads to come back, and returns what was lost.
    /// Nothing is lost, as far as this call says, if another one has closed it.
    ///
    /// # Errors
    /// As [`check_closable`](Self::check_closable).
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
                // The last calls still change rows.
                unsaved = open.end(|| self.wait_until_in_flight(1));
                drop(closing);
            }
            self.wait_until_in_flight(0);
        });
        Ok(unsaved)
    }

    /// Takes all handles, as a call that is in flight from now on. Who closes the bank at the same
    /// time waits for it.
    pub(crate) fn take_open(&self) -> Option<OpenHandles> {
        let mut state = self.state.lock();
        state.in_flight += usize::from(state.open.is_some());
        state.open.take()
    }

    /// Opens the cell again, for the call that has taken its handles. Returns them if the bank was
    /// closed meanwhile.
    pub(crate) fn put_open(&self, open: OpenHandles) -> Option<OpenHandles> {
        let mut state = self.state.lock();
        if state.closing {
            return Some(open);
        }
        state.open = Some(open);
        None
    }

    /// Waits until no more calls than these are in flight.
    pub(crate) fn wait_until_in_flight(&self, calls: usize) {
        let mut state = self.state.lock();
        while state.in_flight > calls {
            self.idle.wait(&mut state);
        }
    }

    /// Tells it from other cells while it is borrowed.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Stores a handle that a call in flight came by, or drops it if the bank was closed meanwhile.
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

    /// Looks at the handles under the lock; at none if the bank is closed.
    pub(super) fn look<R>(&self, look: impl FnOnce(Option<&mut OpenHandles>) -> R) -> PyResult<R> {
        self.check_process()?;
        Ok(look(self.state.lock().open.as_mut()))
    }

    /// Takes a handle if it is there, and counts its use as in flight. The caller ends that with an
    /// [`InFlight`].
    pub(super) fn pick_if_there<H>(
        &self,
        take: impl FnOnce(&mut OpenHandles) -> Option<H>,
    ) -> Option<H> {
        if !self.is_own_process() {
            return None;
        }
        let mut state = self.state.lock();
        let handle = state.open.as_mut().and_then(take)?;
        state.in_flight += 1;
        Some(handle)
    }

    /// Clones or takes a handle, and counts its use as in flight until `run` is through with it.
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
        // The drop of a handle can't raise, and may have left an exception here.
        drop(signals::raised_in_passing());
        // The store keeps its own invariants through a panic; nothing of this crate is half done.
        let outcome = py.detach(|| {
            let of_this_thread = CallOfThisThread::on(self.address());
            let outcome = catch_unwind(AssertUnwindSafe(call));
            drop(of_this_thread);
            drop(in_flight);
            outcome.map(|done| {
                // A call that its wait ended takes what was raised along (`errors::to_python`).
                let value = done.map_err(CallFailure::Call)?;
                // The value ends here, without the interpreter's lock.
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
        process::id() == self.process
    }

    fn check_process(&self) -> PyResult<()> {
        if self.is_own_process() {
            return Ok(());
        }
        Err(errors::forked(self.process, process::id()))
    }
}

impl Drop for BankCell {
    fn drop(&mut self) {
        let open = self.state.get_mut().open.take();
        if !self.is_own_process() {
            mem::forget(open);
            return;
        }
        let mut unsaved = None;
        detached(|| unsaved = open.and_then(|open| open.end(|| ())));
        if let Some(unsaved) = unsaved {
            // Not where the interpreter has ended: then no one can be warned.
            let _ = Python::try_attach(|py| {
                // A garbage collector may come while an error is on its way.
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

/// Why a call has no value for its caller.
enum CallFailure {
    Call(embank::Error),
    /// It has done its work. A signal handler raised while it waited.
    Raised(PyErr),
}

/// One call in the store; ends when dropped.
#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a BankCell);

impl<'a> InFlight<'a> {
    /// For a call that is counted already.
    pub(crate) fn of(cell: &'a BankCell) -> Self {
        Self(cell)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.in_flight -= 1;
        // The last one, or the last one but the call that closes the bank.
        if state.in_flight <= 1 {
            self.0.idle.notify_all();
        }
    }
}

thread_local! {
    /// The addresses of the cells that this thread is in a call of, the innermost last: a call may
    /// tell a Python function of its progress, and that function makes calls of its own.
    static CALLS_OF_THIS_THREAD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// `None` in a thread that is ending, which keeps no list of its calls any more.
fn calls_of_this_thread<R>(work: impl FnOnce(&mut Vec<usize>) -> R) -> Option<R> {
    CALLS_OF_THIS_THREAD.try_with(|calls| work(&mut calls.borrow_mut())).ok()
}

/// A call of this thread on the cell at an address; ends when dropped.
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

/// Whether this thread is in a call on the cell at that address.
fn is_in_call(cell_address: usize) -> bool {
    calls_of_this_thread(|cells| cells.contains(&cell_address)) == Some(true)
}

/// Runs `work` with the GIL released where there is one to release: a drop can come at any time,
/// the interpreter's end included.
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
