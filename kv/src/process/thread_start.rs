//! Starts threads. All threads of the store start here, so that a test can make a start fail.

use std::io;

use crate::sync::thread::{Builder, JoinHandle};

/// Starts a thread with this name.
///
/// # Errors
/// The system's error, for example if the process, its user or its control group has reached a
/// limit of threads.
pub(crate) fn start(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    #[cfg(any(test, feature = "testing"))]
    refusal::take_one()?;
    Builder::new().name(name).spawn(work)
}

/// Starts a thread with this name that ends before `scope`.
///
/// # Errors
/// The errors of [`start`].
pub(crate) fn start_scoped<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    name: String,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<std::thread::ScopedJoinHandle<'scope, T>> {
    #[cfg(any(test, feature = "testing"))]
    refusal::take_one()?;
    std::thread::Builder::new().name(name).spawn_scoped(scope, work)
}

#[cfg(any(test, feature = "testing"))]
pub use refusal::with_threads_left;

#[cfg(any(test, feature = "testing"))]
mod refusal {
    use std::cell::Cell;
    use std::io;

    std::thread_local! {
        /// Number of threads that the current thread may still start. `None` if there is no limit.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Runs `work`. Meanwhile, only the first `left` attempts of the current thread to start a
    /// thread succeed.
    pub fn with_threads_left<T>(left: usize, work: impl FnOnce() -> T) -> T {
        struct Restore(Option<usize>);
        impl Drop for Restore {
            fn drop(&mut self) {
                LEFT.set(self.0);
            }
        }
        let _restore = Restore(LEFT.replace(Some(left)));
        work()
    }

    pub(crate) fn take_one() -> io::Result<()> {
        match LEFT.get() {
            Some(0) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            left => {
                LEFT.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}
