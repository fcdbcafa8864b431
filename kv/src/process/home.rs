//! The process that made a value.
//!
//! A child made by `fork` gets copies of its parent's values, but not of its threads. If the child
//! drops such a value, the drop must not join a thread, and must not take a lock that a thread of
//! the parent may have held at the fork. The drop therefore asks its [`Home`].

use std::mem;
use std::process;

/// The process that made a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// Returns this process.
    #[must_use]
    pub fn here() -> Self {
        Home(process::id())
    }

    /// True in the process that made the value, and false in its forked children.
    #[must_use]
    pub fn is_here(self) -> bool {
        self == Self::here()
    }

    /// Calls `join` to wait for a thread of the process that made the value. In a forked child,
    /// which does not have the thread, forgets the handle and returns `None`.
    pub fn join<H, R>(self, thread: H, join: impl FnOnce(H) -> R) -> Option<R> {
        if self.is_here() {
            Some(join(thread))
        } else {
            mem::forget(thread);
            None
        }
    }
}
