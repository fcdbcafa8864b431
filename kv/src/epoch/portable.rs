//! Pins by `crossbeam-epoch`, where the kernel has no `membarrier`.
//!
//! `crossbeam-epoch` gives the guarantee in the form "a deferred function runs after every guard that
//! was live when it was deferred is gone". It moves its epoch when somebody collects and offers nothing
//! to wait on, so the barrier collects again and again, ever more slowly.

use std::sync::Arc;

use crate::sync::{AtomicBool, Ordering, rest};

pub(super) use crossbeam_epoch::{Guard, is_pinned, pin};

/// See [`super::barrier`].
pub(super) fn barrier() {
    let passed = Arc::new(AtomicBool::new(false));
    {
        let passed = Arc::clone(&passed);
        let guard = pin();
        // Release: pairs with the Acquire below; what the unpinned threads did comes before.
        guard.defer(move || passed.store(true, Ordering::Release));
        guard.flush();
    }
    let mut round = 0;
    while !passed.load(Ordering::Acquire) {
        pin().flush();
        rest(&mut round);
    }
}
