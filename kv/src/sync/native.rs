//! The atomics, locks and threads that the store runs with.

use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};
pub(crate) use std::{thread, thread_local};

pub(crate) use crate::process::locks::{Condvar, Mutex, MutexGuard, RwLock};

/// An atomic for statistics. It orders no other memory, and no decision of the store depends on its
/// value, so models need not switch threads at its operations.
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
/// A thread waits this way for a lock that is one bit of a word, such as a record's lock. The wait
/// ends, because a thread holds such a bit only for a bounded number of instructions. While it
/// holds the bit, it never waits for the disk or for another lock bit. It may only take a mutex
/// that every thread holds for an equally short time.
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

/// Waits a short time for a pinned thread. The caller counts its calls in `round`. Later calls wait
/// longer, because the pinned thread may have lost its processor.
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

/// How long a thread looks for work, or for the end of another thread's work, before it sleeps.
/// To wake a sleeping thread takes 5 to 40 microseconds, so a much shorter wait would not pay. A
/// longer one would take processor time from other threads of the program.
const SHORT_WAIT: Duration = Duration::from_micros(50);

/// A wait of about [`SHORT_WAIT`]. It yields the processor to other threads that can run, and is
/// longer if they use it.
pub(crate) struct ShortWait {
    since: Instant,
    rounds: u32,
}

impl ShortWait {
    pub(crate) fn new() -> Self {
        ShortWait { since: Instant::now(), rounds: 0 }
    }

    /// Waits for less than a microsecond if no other thread needs the processor. False once the
    /// time has passed.
    pub(crate) fn again(&mut self) -> bool {
        self.rounds += 1;
        if self.rounds.is_multiple_of(8) {
            thread::yield_now();
            return self.since.elapsed() < SHORT_WAIT;
        }
        for _ in 0..8 {
            std::hint::spin_loop();
        }
        true
    }
}
