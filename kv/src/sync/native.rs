//! The atomics, locks and threads that the store runs with.

use std::time::Duration;

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};
pub(crate) use std::{thread, thread_local};

pub(crate) use crate::process::locks::{Condvar, Mutex, MutexGuard, RwLock};

/// An atomic for statistics. It orders no other memory, and no thread's next step depends on it.
pub(crate) type CountingU64 = AtomicU64;

/// Declares statics of the process.
macro_rules! global {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$attribute])* static $name: $type = $value;)*
    };
}
pub(crate) use global;

/// Waits for a few instructions of another thread: spins first, then yields the processor.
///
/// Every such wait ends. A thread holds a lock bit of this crate for a bounded number of
/// instructions. While it holds one, it never waits for the disk or for another lock bit. It may
/// only take a mutex that is held for an equally short time.
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

/// Waits for a pinned thread. Later rounds wait longer, because that thread may have lost its
/// processor.
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
