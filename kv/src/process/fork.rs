//! What a child made by `fork` changes before `fork` returns in it.
//!
//! **Problem.** A child has one thread and a copy of its parent's memory and descriptors. Among them are pins and
//! locks of threads that the child does not have, and descriptors of locked files, which keep a file locked for as
//! long as the child lives.
//!
//! **Approach.** The system runs `in_child` in the child before `fork` returns. It calls one function
//! of each owner of shared state, which makes that state new: by stores to atomics, and by `dup2` over the descriptors
//! of locked files.
//!
//! **Rule.** The handlers take no lock, allocate nothing and call only functions that are safe in signal handlers. A
//! thread of the parent may hold any lock at the fork, also one inside a lock's own implementation.
//!
//! **Limit.** The standard library of a Rust program has a lock that its threads take as they begin and end (for the
//! message on a stack overflow). A child that is forked in such a moment can start no thread, and so open no store.
//! Programs of Python and C do not have that lock.
//!
//! `vfork`, `posix_spawn` and plain `clone` run no handlers. The first two end in `exec`, which closes the descriptors.

#[cfg(not(any(miri, embank_shuttle)))]
pub(crate) use handlers::{await_end, begun, watch};
#[cfg(any(miri, embank_shuttle))]
pub(crate) use without::{await_end, begun, watch};

/// Whose state of other threads is renewed in a child, in this order.
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

    /// Between two looks at whether forks have ended.
    const ROUND: Duration = Duration::from_micros(100);
    /// Looks within a second.
    const ROUNDS_MAX: u32 = 10_000;

    /// Forks of this process that have begun, and those that have also ended.
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    static ENDED: AtomicU64 = AtomicU64::new(0);

    /// What each owner renews in a child, in the order of `Owner`; null if the owner has no state yet.
    static RENEW: [AtomicPtr<()>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

    extern "C" fn before() {
        BEGUN.fetch_add(1, Ordering::SeqCst);
    }

    extern "C" fn in_parent() {
        ENDED.fetch_add(1, Ordering::SeqCst);
    }

    extern "C" fn in_child() {
        // The child has none of the threads whose forks have not ended.
        ENDED.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
        for renew in &RENEW {
            let renew = renew.load(Ordering::Acquire);
            if !renew.is_null() {
                // SAFETY: `watch` stores function pointers of this type alone.
                let renew = unsafe { std::mem::transmute::<*mut (), fn()>(renew) };
                renew();
            }
        }
    }

    /// How many forks have begun.
    pub(crate) fn begun() -> u64 {
        BEGUN.load(Ordering::SeqCst)
    }

    /// Waits for forks that are going on, a second at most: a fork of a large process takes milliseconds. Returns how
    /// many have ended. If `begun` later returns the same number, no fork happened in between.
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

    /// Has the handlers run at every fork from now on, and `renew` in every child. `renew` keeps the rule above.
    pub(crate) fn watch(owner: Owner, renew: fn()) -> io::Result<()> {
        static WATCHED: AtomicBool = AtomicBool::new(false);
        // Release: pairs with the Acquire in `in_child`.
        RENEW[owner as usize].store(renew as *mut (), Ordering::Release);
        // Acquire: pairs with the Release below. Two threads may both register: running the handlers twice is harmless.
        if WATCHED.load(Ordering::Acquire) {
            return Ok(());
        }
        // SAFETY: the handlers live as long as this program, and follow the rule above.
        match unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) } {
            0 => {
                WATCHED.store(true, Ordering::Release);
                Ok(())
            }
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Models and Miri do not fork.
#[cfg(any(miri, embank_shuttle))]
mod without {
    pub(crate) fn begun() -> u64 {
        0
    }

    pub(crate) fn await_end() -> u64 {
        0
    }

    #[expect(clippy::unnecessary_wraps, reason = "the handlers' registration can fail")]
    pub(crate) fn watch(_owner: super::Owner, _renew: fn()) -> std::io::Result<()> {
        Ok(())
    }
}
