//! Resets shared state in a child made by `fork`, before `fork` returns in the child.
//!
//! **Problem.** A child has one thread and a copy of its parent's memory and descriptors. The copy
//! includes pins (marks that a thread uses the log's memory) and locks of threads that the child
//! does not have. It also includes descriptors of locked files, which keep the files locked while
//! the child lives.
//!
//! **Approach.** The system runs `in_child` in the child before `fork` returns. `in_child` calls
//! one function for each [`Owner`] of state that must be reset. These functions only store to
//! atomics, and call `dup2` to replace the descriptors of locked files.
//!
//! **Rule.** The handlers take no lock, allocate no memory and call only functions that are safe in
//! signal handlers. The reason: a thread of the parent may hold any lock at the fork, for example
//! the allocator's lock. The child's copy of this lock stays locked.
//!
//! **Limit.** The standard library of a Rust program has a lock that threads take when they begin
//! and end (for the message on a stack overflow). If a thread holds this lock during a fork, the
//! child can start no thread, and can therefore open no store. Programs of Python and C do not have
//! that lock.
//!
//! `vfork`, `posix_spawn` and a direct call of `clone` run no handlers. After `vfork` and
//! `posix_spawn`, the child calls `exec`, which closes the descriptors of locked files.

#[cfg(not(any(miri, embank_shuttle)))]
pub(crate) use handlers::{await_end, begun, generation, register, watch};
#[cfg(any(miri, embank_shuttle))]
pub(crate) use without::{await_end, begun, generation, register, watch};

/// The owners of state that a child resets. The child resets their state in this order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Owner {
    FileLocks,
    Pins,
    ReadPool,
}

#[cfg(not(any(miri, embank_shuttle)))]
mod handlers {
    use std::io;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::Owner;

    /// Time between two checks of `await_end` for the end of running forks.
    const ROUND: Duration = Duration::from_micros(100);
    /// Largest number of checks in one call of `await_end`: it waits for about one second at most.
    const ROUNDS_MAX: u32 = 10_000;

    /// Number of forks of this process that have begun. `ENDED` is the number of forks that have
    /// ended.
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    static ENDED: AtomicU64 = AtomicU64::new(0);

    /// Number of forks with handlers that led to this process. A child has a higher number than its
    /// parent.
    static GENERATION: AtomicU64 = AtomicU64::new(0);

    /// The function of each owner that resets its state in a child, in the order of `Owner`. The
    /// pointer is null if the owner has no state yet.
    static RENEW: [AtomicPtr<()>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

    extern "C" fn before() {
        BEGUN.fetch_add(1, Ordering::SeqCst);
    }

    extern "C" fn in_parent() {
        ENDED.fetch_add(1, Ordering::SeqCst);
    }

    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::SeqCst);
        // The child has only this thread, so no other thread is inside a fork. All forks that have
        // begun count as ended.
        ENDED.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
        for renew in &RENEW {
            let renew = renew.load(Ordering::Acquire);
            if !renew.is_null() {
                // SAFETY: `watch` stores only function pointers of this type.
                let renew = unsafe { std::mem::transmute::<*mut (), fn()>(renew) };
                renew();
            }
        }
    }

    /// Returns the number of forks that have begun.
    pub(crate) fn begun() -> u64 {
        BEGUN.load(Ordering::SeqCst)
    }

    /// Returns a number that differs between a process and its forked children, if the handlers
    /// were registered before the fork.
    pub(crate) fn generation() -> u64 {
        GENERATION.load(Ordering::SeqCst)
    }

    /// Waits until no fork is running, at most one second. A fork of a large process takes
    /// milliseconds. Returns the number of forks that have ended. If `begun` later returns the same
    /// number, no fork happened in between.
    pub(crate) fn await_end() -> u64 {
        for _ in 0..ROUNDS_MAX {
            let ended = ENDED.load(Ordering::SeqCst);
            if begun() == ended {
                return ended;
            }
            thread::park_timeout(ROUND);
        }
        ENDED.load(Ordering::SeqCst)
    }

    /// Makes the handlers run at every later fork. In every child, they run `renew`, which must
    /// follow the rule at the head of this module.
    pub(crate) fn watch(owner: Owner, renew: fn()) -> io::Result<()> {
        // Release: pairs with the Acquire in `in_child`.
        RENEW[owner as usize].store(renew as *mut (), Ordering::Release);
        register()
    }

    /// Makes the handlers run at every later fork.
    pub(crate) fn register() -> io::Result<()> {
        static WATCHED: AtomicBool = AtomicBool::new(false);
        // Acquire: pairs with the Release below. If two threads both register the handlers, the
        // handlers run twice, which does no harm.
        if WATCHED.load(Ordering::Acquire) {
            return Ok(());
        }
        // SAFETY: the handlers are functions, which live as long as the program. They follow the
        // rule at the head of this module.
        match unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) } {
            0 => {
                WATCHED.store(true, Ordering::Release);
                Ok(())
            }
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Replaces the handlers in concurrency models and under Miri, where no process forks.
#[cfg(any(miri, embank_shuttle))]
mod without {
    pub(crate) fn begun() -> u64 {
        0
    }

    pub(crate) fn await_end() -> u64 {
        0
    }

    pub(crate) fn generation() -> u64 {
        0
    }

    #[expect(clippy::unnecessary_wraps, reason = "the handlers' registration can fail")]
    pub(crate) fn register() -> std::io::Result<()> {
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "the handlers' registration can fail")]
    pub(crate) fn watch(_owner: super::Owner, _renew: fn()) -> std::io::Result<()> {
        Ok(())
    }
}
