//! Who may still see the old state, and who must wait.
//!
//! Every batch pins the epoch once and works on memory only while pinned: it never waits, parks or
//! enters the kernel to sleep before it has unpinned. So a moved boundary (read-only, head) or a set
//! pause flag is known to everybody as soon as all who were pinned before it have unpinned: that is
//! what `barrier` waits for. `crossbeam-epoch` gives the guarantee in the form "a deferred function runs
//! after every guard that was live when it was deferred is gone".

use std::sync::Arc;
use std::time::Duration;

use crossbeam_epoch::Guard;
use parking_lot::{Condvar, Mutex};

use crate::sync::{AtomicBool, Ordering};

/// Waits until every thread that is pinned now has unpinned. The caller must not be pinned.
///
/// It ends because a pinned thread only computes. `crossbeam-epoch` moves its epoch when somebody
/// collects and offers nothing to wait on, so this collects again and again, ever more slowly.
pub(crate) fn barrier() {
    debug_assert!(!crossbeam_epoch::is_pinned());
    let passed = Arc::new(AtomicBool::new(false));
    {
        let passed = Arc::clone(&passed);
        let guard = crossbeam_epoch::pin();
        // Release: pairs with the Acquire below; what the unpinned threads did comes before.
        guard.defer(move || passed.store(true, Ordering::Release));
        guard.flush();
    }
    let mut round = 0;
    while !passed.load(Ordering::Acquire) {
        crossbeam_epoch::pin().flush();
        round += 1;
        if round > 64 {
            std::thread::park_timeout(Duration::from_micros(20));
        } else if round > 8 {
            std::thread::yield_now();
        }
    }
}

/// Lets batches in, or holds them while a checkpoint fixes the state.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    paused: AtomicBool,
    waiting: Mutex<()>,
    resumed: Condvar,
}

impl Gate {
    /// Pins the epoch for one stretch of work in memory, after any pause has ended.
    #[inline]
    pub(crate) fn enter(&self) -> Guard {
        loop {
            let guard = crossbeam_epoch::pin();
            // Acquire: pairs with the Release of `resume`. A pause set after this load waits for the
            // guard to go (`pause` ends with a barrier).
            if !self.paused.load(Ordering::Acquire) {
                return guard;
            }
            drop(guard);
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let mut waiting = self.waiting.lock();
        while self.paused.load(Ordering::Acquire) {
            self.resumed.wait(&mut waiting);
        }
    }

    /// Holds all batches; returns when none is in memory any more. Ends when the result is dropped.
    pub(crate) fn pause(&self) -> Pause<'_> {
        self.paused.store(true, Ordering::SeqCst);
        let pause = Pause(self);
        barrier();
        pause
    }
}

/// While this lives, no batch works in memory.
#[must_use]
pub(crate) struct Pause<'a>(&'a Gate);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let _waiting = self.0.waiting.lock();
        // Release: what was done during the pause comes before what the resumed batches do.
        self.0.paused.store(false, Ordering::Release);
        self.0.resumed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    #[test]
    fn nobody_is_inside_during_a_pause() {
        let gate = Gate::default();
        let inside = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = gate.enter();
                        inside.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(guard);
                    }
                });
            }
            for _ in 0..if cfg!(miri) { 3 } else { 200 } {
                let pause = gate.pause();
                for _ in 0..100 {
                    assert_eq!(inside.load(Ordering::Relaxed), 0);
                }
                drop(pause);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
