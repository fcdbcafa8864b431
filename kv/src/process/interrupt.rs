//! A check that the program makes while a call waits, for its rows or for disk space, and that can end the wait.
//!
//! Python runs signal handlers between two instructions of the interpreter. A call that waits in Rust would keep Ctrl-C
//! from its handler until the wait is over. So the Python package sets a check that runs the handlers.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time between two checks of a call that waits: Ctrl-C ends a wait within it, and a check costs a few microseconds.
const CHECKED_EVERY: Duration = Duration::from_millis(100);

static CHECK: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the function that a call runs every 100 ms while it waits, in the waiting thread: a Get that waits for its rows,
/// and a call that waits for disk space. If the function returns true, the call fails with
/// [`Error::Interrupted`](crate::Error::Interrupted); a Get then holds no row. A call that ends leases goes on to its end
/// instead, without further waits. The function must not call a store: the call that waits may hold locks of it. It holds for all stores of the process. The first call of
/// `check_while_waiting` counts; later calls change nothing.
///
/// # Examples
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static STOPPED: AtomicBool = AtomicBool::new(false);
/// embank_kv::check_while_waiting(|| STOPPED.load(Ordering::SeqCst));
/// ```
pub fn check_while_waiting(check: fn() -> bool) {
    // A second one changes nothing, as its docs say.
    let _ = CHECK.set(check);
}

/// The checks of one wait. A wait that is woken often is checked as often as one that sleeps.
#[doc(hidden)]
#[derive(Debug)]
pub struct Checks {
    check: Option<fn() -> bool>,
    next: Instant,
}

impl Checks {
    /// Begins with a wait.
    #[must_use]
    pub fn new() -> Self {
        Self { check: CHECK.get().copied(), next: Instant::now() + CHECKED_EVERY }
    }

    /// When the wait must look again: at `deadline`, or for the next check.
    #[must_use]
    pub fn until(&self, deadline: Instant) -> Instant {
        match self.check {
            Some(_) => deadline.min(self.next),
            None => deadline,
        }
    }

    /// The check, if it is due. The caller runs it without a lock, because it may run for long.
    pub fn due(&mut self) -> Option<fn() -> bool> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        self.next = now + CHECKED_EVERY;
        self.check
    }
}

impl Default for Checks {
    fn default() -> Self {
        Self::new()
    }
}
