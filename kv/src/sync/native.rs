//! Atomics, locks and threads as the store runs with them.

use std::time::Duration;

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};
pub(crate) use std::{thread, thread_local};

pub(crate) use crate::process::locks::{Condvar, Mutex, MutexGuard, RwLock};

/// An atomic that orders nothing and that nobody's steps depend on: a counter of statistics.
pub(crate) type CountingU64 = AtomicU64;

/// Declares statics of the process.
macro_rules! global {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$attribute])* static $name: $type = $value;)*
    };
}
pub(crate) use global;

/// Bounded spinning for a peer's few instructions, then yielding the core to it.
///
/// It ends because every lock bit in this crate is held for a bounded number of instructions, never
/// across a wait for the disk or for another lock bit; at most across a mutex that is held as shortly.
pub(crate) struct Backoff(u32);

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff(0)
    }

    pub(crate) fn snooze(&mut self) {
        if self.0 < 7 {
            for _ in 0..1 << self.0 {
                std::hint::spin_loop();
            }
            self.0 += 1;
        } else {
            std::thread::yield_now();
        }
    }
}

/// Waits a little for a pinned thread, the longer the more rounds it has been: it may have lost its core.
pub(crate) fn rest(round: &mut u32) {
    *round += 1;
    if *round > 64 {
        std::thread::park_timeout(Duration::from_micros(20));
    } else if *round > 8 {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}
