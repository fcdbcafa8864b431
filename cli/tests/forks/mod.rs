//! Starts child processes for tests that also open banks in their own process.
//!
//! Between its fork and its exec, a child holds every open file of the test program, including the
//! locks of banks. If the program drops a bank in that time, the bank stays locked until the exec.
//! So a test that drops a bank and then lets a child open it must hold `no_forks` from its own open
//! to the drop. Tests must start every child by `spawn`.

use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

static FORKS: Mutex<()> = Mutex::new(());

/// Returns a guard. `spawn` blocks until the guard is dropped. A test that panics with the guard
/// blocks no other test.
pub(crate) fn no_forks() -> MutexGuard<'static, ()> {
    FORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a child and returns after its exec. The caller must not hold `no_forks`.
pub(crate) fn spawn(command: &mut Command) -> Child {
    let _forking = no_forks();
    command.spawn().unwrap()
}
