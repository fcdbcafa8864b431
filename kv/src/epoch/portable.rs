//! Pins by `crossbeam-epoch`, for kernels without `membarrier`.
//!
//! `crossbeam-epoch` runs a deferred function after every guard that was live at the deferral is
//! gone. It advances its epoch only when a thread collects garbage, and has no function that waits
//! for an advance. The barrier therefore collects repeatedly, with growing pauses.
//!
//! **Fork.** In a child, the parent's collector would wait for pins of threads that only the parent
//! has. A child therefore gets its own collector. The fork handler (`renew_in_child`) forgets the
//! parent's collector, and a thread registers again when its collector is not the current one. A
//! pin that the forking thread holds does not delay the child's barriers. It protects a store of
//! the parent, which the child can't use.

use std::cell::RefCell;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use crossbeam_epoch::{Collector, LocalHandle};

use crate::sync::{AtomicBool, Ordering, rest};

pub(super) use crossbeam_epoch::Guard;

/// This process's collector, created at the first pin and never freed.
static COLLECTOR: AtomicPtr<Collector> = AtomicPtr::new(ptr::null_mut());

/// A thread's registration with a collector.
struct Participant {
    collector: &'static Collector,
    handle: LocalHandle,
}

std::thread_local! {
    static OWN: RefCell<Option<Participant>> = const { RefCell::new(None) };
}

fn collector() -> &'static Collector {
    // Acquire: pairs with the Release in `make`, which built the collector.
    let made = COLLECTOR.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or was made by `make` and is never freed.
    unsafe { made.as_ref() }.unwrap_or_else(|| make())
}

#[cold]
fn make() -> &'static Collector {
    let made = Box::into_raw(Box::new(Collector::new()));
    let null = ptr::null_mut();
    // Release: pairs with the Acquire in `collector`. Acquire on failure: pairs with the Release of
    // the thread whose exchange succeeded.
    match COLLECTOR.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: the pointer was made above and is never freed.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: the pointer was made above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: the pointer is not null, was made by another call of `make`, and is never
            // freed.
            unsafe { &*other }
        }
    }
}

/// Forgets the parent's collector. Runs in a forked child, which has only the calling thread.
pub(super) fn renew_in_child() {
    // Relaxed: the child has one thread.
    COLLECTOR.store(ptr::null_mut(), Ordering::Relaxed);
}

pub(super) fn pin() -> Guard {
    let collector = collector();
    let pin_own = |own: &RefCell<Option<Participant>>| {
        let mut own = own.borrow_mut();
        if !own.as_ref().is_some_and(|own| ptr::eq(own.collector, collector)) {
            // The registration with the parent's collector is not dropped, because this thread may
            // have pins of that collector.
            mem::forget(own.replace(Participant { collector, handle: collector.register() }));
        }
        own.as_ref().expect("set above").handle.pin()
    };
    // A thread that is ending has no registration. It registers for this one pin.
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

/// Implements [`super::barrier`].
pub(super) fn barrier() {
    let passed = Arc::new(AtomicBool::new(false));
    {
        let passed = Arc::clone(&passed);
        let guard = pin();
        // Release: pairs with the Acquire below, and publishes the actions of the threads that have
        // unpinned.
        guard.defer(move || passed.store(true, Ordering::Release));
        guard.flush();
    }
    let mut round = 0;
    while !passed.load(Ordering::Acquire) {
        pin().flush();
        rest(&mut round);
    }
}
