//! Starts child processes for tests that also open banks in their own process.
//!
//! Between its fork and its exec, a child holds every open file of the test program, including the
//! locks of banks. A bank that is dropped in that time stays locked until the exec. So a test that
//! drops a bank and lets a child open it must hold `no_forks` from open to drop. Every child must
//! be started by `spawn`.

use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

static FORKS: Mutex<()> = Mutex::new(());

/// Returns a guard; `spawn` blocks until it is dropped. A test that failed with the guard blocks no
/// other test.
pub(crate) fn no_forks() -> MutexGuard<'static, ()> {
    FORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a child and returns after its exec. The caller must not hold `no_forks`.
pub(crate) fn spawn(command: &mut Command) -> Child {
    let _forking = no_forks();
    command.spawn().unwrap()
}
