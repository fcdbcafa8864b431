//! Starting threads, so that a test can have the system refuse them.

use std::io;

use crate::sync::thread::{Builder, JoinHandle};

/// Starts a thread of this name.
///
/// # Errors
/// The system's: the process, its user or its control group is at a limit of threads.
pub(crate) fn start(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    #[cfg(test)]
    refusal::take_one()?;
    Builder::new().name(name).spawn(work)
}

#[cfg(test)]
pub(crate) use refusal::with_threads_left;

#[cfg(test)]
mod refusal {
    use std::cell::Cell;
    use std::io;

    std::thread_local! {
        /// Threads that this thread may still start; `None` for any number.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Runs `work`. The system refuses its thread all threads but the first `left`.
    pub(crate) fn with_threads_left<T>(left: usize, work: impl FnOnce() -> T) -> T {
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
