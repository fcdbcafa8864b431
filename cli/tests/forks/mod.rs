//! Child processes of tests that also open banks in their own process.
//!
//! A child between its fork and its exec holds every file that the test program has open, and with
//! them the locks of open banks. A bank that is dropped meanwhile stays locked until the exec. So a
//! test that opens a bank, drops it and has a child open it holds `no_forks` in between, and every
//! child is started by `spawn`.

use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

static FORKS: Mutex<()> = Mutex::new(());

/// Returns a guard; `spawn` blocks until it is dropped. A test that failed with the guard blocks no
/// other test.
pub(crate) fn no_forks() -> MutexGuard<'static, ()> {
    FORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a child. It has its exec behind it when this returns. The caller must not hold
/// `no_forks`.
pub(crate) fn spawn(command: &mut Command) -> Child {
    let _forking = no_forks();
    command.spawn().unwrap()
}
