//! Lets the program end a call that waits for rows or for disk space.
//!
//! Python runs signal handlers between two instructions of the interpreter. While a call waits in
//! Rust, Python's handler of Ctrl-C can't run. The Python package therefore sets a check function
//! that runs the handlers ([`check_while_waiting`]). A waiting call runs the check function
//! regularly.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time between two checks of a waiting call. Ctrl-C ends a wait within this time. A check takes
/// only a few microseconds, so ten checks each second cost little.
const CHECKED_EVERY: Duration = Duration::from_millis(100);

static CHECK: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the function that a waiting call runs every 100 ms in its thread. Two kinds of calls wait:
/// a get that waits for its rows, and a call that waits for disk space.
///
/// If the function returns true, the call fails with
/// [`Error::Interrupted`](crate::Error::Interrupted). A get that fails this way leaves no lease on
/// its rows. A call that ends leases does not fail: it completes without further waits. The
/// function must not call a store, because the waiting call may hold the store's locks.
///
/// The function is used for all stores of the process. Only the first call of `check_while_waiting`
/// has an effect.
///
/// # Examples
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static STOPPED: AtomicBool = AtomicBool::new(false);
/// embank_kv::check_while_waiting(|| STOPPED.load(Ordering::SeqCst));
/// ```
pub fn check_while_waiting(check: fn() -> bool) {
    // The error of a second call is ignored, as documented.
    let _ = CHECK.set(check);
}

/// Tells a waiting call when to run the check function: every 100 ms, even if its thread wakes up
/// more often. Each wait has its own value.
#[doc(hidden)]
#[derive(Debug)]
pub struct Checks {
    check: Option<fn() -> bool>,
    next: Instant,
}

impl Checks {
    /// Begins a wait. The first check is due after 100 ms.
    #[must_use]
    pub fn new() -> Self {
        Self { check: CHECK.get().copied(), next: Instant::now() + CHECKED_EVERY }
    }

    /// Returns the time at which the waiting thread must wake up: `deadline`, or the time of the
    /// next check if that is earlier.
    #[must_use]
    pub fn until(&self, deadline: Instant) -> Instant {
        match self.check {
            Some(_) => deadline.min(self.next),
            None => deadline,
        }
    }

    /// Returns the check function if a check is due. The caller must run it without holding a lock,
    /// because it may take long.
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
