//! The process that made a value.
//!
//! A child made by `fork` gets copies of its parent's values, but not of its threads. If the child
//! drops such a value, the drop must not join a thread, and must not take a lock that a thread of
//! the parent may have held at the fork. The drop therefore asks its [`Home`].
//!
//! A process id alone does not tell a child from its parent. A child in a new namespace of process
//! ids has the id 1, and so has its parent if it is the first process of its own namespace. So the
//! handlers that run at a fork also count the forks that led to this process.
//!
//! **Limit.** A direct call of `clone` runs no handlers. The process id alone tells such a child.

use std::mem;
use std::process;

use crate::process::fork;

/// The process that made a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    process: u32,
    generation: u64,
}

impl Home {
    /// Returns this process.
    #[must_use]
    pub fn here() -> Self {
        // An error is ignored: without the fork handlers, the process id alone tells a child.
        let _ = fork::register();
        Self::now()
    }

    fn now() -> Self {
        Home { process: process::id(), generation: fork::generation() }
    }

    /// True in the process that made the value, and false in its forked children.
    #[must_use]
    pub fn is_here(self) -> bool {
        self == Self::now()
    }

    /// Returns the id of the process that made the value.
    #[must_use]
    pub fn process_id(self) -> u32 {
        self.process
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

#[cfg(all(test, unix, not(any(miri, embank_shuttle))))]
mod tests {
    use super::*;

    /// Regression test: a child that had the process id of its parent, in another namespace of
    /// process ids, was taken for its parent.
    #[test]
    fn a_child_with_its_parents_process_id_is_not_its_parent() {
        let home = Home::here();
        assert!(home.is_here());
        // SAFETY: the child compares numbers and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let same_id = Home { process: process::id(), ..home };
            // SAFETY: `_exit` ends the child without running code that needs the parent's threads.
            unsafe { libc::_exit(i32::from(same_id.is_here() || home.is_here())) };
        }
        let mut status = -1;
        // SAFETY: the call waits for a child of this process, and `status` is a local variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(home.is_here());
    }
}
