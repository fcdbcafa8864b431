//! The retry turn: a lock that a blocked batch takes before it tries again (see `lease::waiting`).
//! Waiting for the lock has a deadline.

use std::time::Instant;

use embank_kv::locks::{Condvar, Mutex};

/// The permission to try again. Only one blocked batch has it at a time.
#[derive(Debug, Default)]
pub(crate) struct RetryTurn {
    taken: Mutex<bool>,
    freed: Condvar,
}

/// The guard of the turn. Dropping it passes the turn on.
#[must_use]
pub(crate) struct Taken<'a>(&'a RetryTurn);

impl RetryTurn {
    /// Waits for the turn. `None` if the deadline passes first.
    pub(crate) fn take_until(&self, deadline: Instant) -> Option<Taken<'_>> {
        let mut taken = self.taken.lock();
        while *taken {
            if self.freed.wait_until(&mut taken, deadline).timed_out() && *taken {
                return None;
            }
        }
        *taken = true;
        Some(Taken(self))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.freed.notify_one();
    }
}
