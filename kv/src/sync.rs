//! The one place that names atomics, so that a model checker can take their place.

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};

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
