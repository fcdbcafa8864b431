//! Pins by `crossbeam-epoch`, where the kernel has no `membarrier`.
//!
//! `crossbeam-epoch` gives the guarantee in the form "a deferred function runs after every guard
//! that was live when it was deferred is gone". It moves its epoch when a thread collects and
//! offers nothing to wait on, so the barrier collects again and again, ever more slowly.
//!
//! **Fork.** In a child, the package's own collector would wait for pins of threads that only the
//! parent has. So a child gets a collector of its own: the handler at the fork forgets the parent's
//! (`renew_in_child`), and a thread registers again when it finds a collector that is not its own.
//! A pin that the forking thread holds then does not hold up the child's barriers. It pins a store
//! of the parent, which the child can't use.

use std::cell::RefCell;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use crossbeam_epoch::{Collector, LocalHandle};

use crate::sync::{AtomicBool, Ordering, rest};

pub(super) use crossbeam_epoch::Guard;

/// This process's collector, made at the first pin and never freed.
static COLLECTOR: AtomicPtr<Collector> = AtomicPtr::new(ptr::null_mut());

/// A thread's registration.
struct Participant {
    collector: &'static Collector,
    handle: LocalHandle,
}

std::thread_local! {
    static OWN: RefCell<Option<Participant>> = const { RefCell::new(None) };
}

fn collector() -> &'static Collector {
    // Acquire: pairs with the Release of `make`, which built it.
    let made = COLLECTOR.load(Ordering::Acquire);
    // SAFETY: null, or made by `make` and never freed.
    unsafe { made.as_ref() }.unwrap_or_else(|| make())
}

#[cold]
fn make() -> &'static Collector {
    let made = Box::into_raw(Box::new(Collector::new()));
    let null = ptr::null_mut();
    // Release: pairs with the Acquire in `collector`. Acquire on failure: as there.
    match COLLECTOR.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just made, and never freed from here on.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: made above; no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: not null, and never freed.
            unsafe { &*other }
        }
    }
}

/// Called in a forked child, which has no other thread.
pub(super) fn renew_in_child() {
    // Relaxed: the child has one thread.
    COLLECTOR.store(ptr::null_mut(), Ordering::Relaxed);
}

pub(super) fn pin() -> Guard {
    let collector = collector();
    let pin_own = |own: &RefCell<Option<Participant>>| {
        let mut own = own.borrow_mut();
        if !own.as_ref().is_some_and(|own| ptr::eq(own.collector, collector)) {
            // The parent's collector stays as it was at the fork: there may be pins of this thread
            // on it.
            mem::forget(own.replace(Participant { collector, handle: collector.register() }));
        }
        own.as_ref().expect("set above").handle.pin()
    };
    // A thread that is ending has no registration any more, and takes one for this pin.
    OWN.try_with(pin_own).unwrap_or_else(|_| collector.register().pin())
}

pub(super) fn is_pinned() -> bool {
    let pinned = |own: &RefCell<Option<Participant>>| {
        let own = own.borrow();
        let current = own.as_ref().filter(|own| ptr::eq(own.collector, collector()));
        current.is_some_and(|own| own.handle.is_pinned())
    };
    OWN.try_with(pinned).unwrap_or(false)
}

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
