//! The atomics, locks and threads that the store runs with.

use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};
pub(crate) use std::{thread, thread_local};

pub(crate) use crate::process::locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockWriteGuard};

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

/// What a thread does that waits for a few instructions of another thread.
#[derive(Debug, PartialEq, Eq)]
enum Pause {
    /// Spins this number of times.
    Spin(u32),
    /// Yields the processor to another thread that can run.
    Yield,
    /// Sleeps for [`SLEEP`]. To yield is not enough: a thread with a real-time priority yields only
    /// to threads of its own priority. If it waits for a thread of a lower priority on the same
    /// processor, that thread runs only while it sleeps.
    Sleep,
}

/// How long a waiting thread sleeps after it has yielded [`YIELDS_MAX`] times. The system adds 50
/// microseconds for a thread of normal priority.
const SLEEP: Duration = Duration::from_micros(20);
/// Largest number of times that a waiting thread yields before it sleeps. A thread that holds a
/// lock bit usually continues after a few yields.
const YIELDS_MAX: u32 = 56;

impl Pause {
    /// Returns what the thread does in `round`, which counts from 0. It spins in the first `spins`
    /// rounds.
    fn of(round: u32, spins: u32, spin: impl Fn(u32) -> u32) -> Self {
        if round < spins {
            Pause::Spin(spin(round))
        } else if round < spins + YIELDS_MAX {
            Pause::Yield
        } else {
            Pause::Sleep
        }
    }

    fn take(self) {
        match self {
            Pause::Spin(times) => (0..times).for_each(|_| std::hint::spin_loop()),
            Pause::Yield => thread::yield_now(),
            Pause::Sleep => thread::sleep(SLEEP),
        }
    }
}

/// Waits for a few instructions of another thread: spins first, then yields the processor, then
/// sleeps.
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
        Pause::of(self.0, 7, |round| 1 << round).take();
        self.0 = self.0.saturating_add(1);
    }
}

/// Waits a short time for a pinned thread. The caller counts its calls in `round`. Later calls wait
/// longer, because the pinned thread may have lost its processor.
pub(crate) fn rest(round: &mut u32) {
    Pause::of(*round, 8, |_| 1).take();
    *round = round.saturating_add(1);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a wait sleeps after a bounded number of yields. A thread with a real-time
    /// priority that only yields keeps the thread that it waits for from its processor.
    #[test]
    fn every_wait_sleeps_after_a_bounded_number_of_yields() {
        for (spins, spin) in [(7, (|round| 1 << round) as fn(u32) -> u32), (8, |_| 1)] {
            let all: Vec<_> = (0..1_000).map(|round| Pause::of(round, spins, spin)).collect();
            let spun = all.iter().take_while(|pause| matches!(pause, Pause::Spin(1..=64)));
            assert_eq!(spun.count(), spins as usize);
            let (yields, sleeps) = all[spins as usize..].split_at(YIELDS_MAX as usize);
            assert!(yields.iter().all(|pause| *pause == Pause::Yield));
            assert!(sleeps.iter().all(|pause| *pause == Pause::Sleep));
            assert_eq!(Pause::of(u32::MAX, spins, spin), Pause::Sleep);
        }
    }
}
