//! The schedule of `--target`, which sets the start of each call.
//!
//! With `threads` threads and `batch` operations a call, a thread begins a call every `threads *
//! batch / target` seconds. The first calls of the threads are spread over the first interval. A
//! slow call does not shift the schedule. A thread that is late begins its calls at once until it
//! has caught up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::measure::Spec;

/// A waiting thread spins for this last part of its wait. It does not sleep, because the system
/// wakes a sleeper about 60 microseconds late. It does not yield, because on a busy machine it may
/// then lose its core for milliseconds.
const SPIN: Duration = Duration::from_micros(100);
/// The longest sleep. After a sleep the thread checks if another thread has failed.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// The schedule of one thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    first_s: f64,
    interval_s: f64,
}

impl Pace {
    /// Returns the schedule of thread number `thread`. `None` without a target.
    pub(crate) fn of(spec: &Spec, thread: usize) -> Option<Self> {
        let target = spec.target_operations_per_s? as f64;
        let between_s = spec.batch as f64 / target;
        let interval_s = between_s * spec.threads as f64;
        Some(Pace { first_s: between_s * thread as f64, interval_s })
    }

    /// Returns the scheduled start of a call, counted from the start of the phase.
    pub(crate) fn start_of(&self, call: u64) -> Duration {
        let seconds = self.first_s + self.interval_s * call as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Returns the number of calls that are scheduled before `end`.
    pub(crate) fn calls_due(&self, end: Duration) -> u64 {
        ((end.as_secs_f64() - self.first_s) / self.interval_s).ceil().max(0.0) as u64
    }

    /// Waits until `until` after `started`, or until `stop` is set. Returns the time since
    /// `started`. The loop ends at that time.
    pub(crate) fn wait(&self, started: Instant, until: Duration, stop: &AtomicBool) -> Duration {
        loop {
            let now = started.elapsed();
            // Relaxed: the flag only asks threads to end early. Joining the threads orders their
            // data.
            if now >= until || stop.load(Ordering::Relaxed) {
                return now;
            }
            match (until - now).checked_sub(SPIN) {
                Some(sleep) => std::thread::sleep(sleep.min(SLEEP_MAX)),
                None => std::hint::spin_loop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::any_spec;

    #[test]
    fn threads_share_the_target_evenly() {
        let spec =
            Spec { batch: 10, threads: 4, target_operations_per_s: Some(1_000), ..any_spec() };
        let mut starts = Vec::new();
        for thread in 0..4 {
            let pace = Pace::of(&spec, thread).unwrap();
            assert_eq!(pace.calls_due(Duration::from_secs(1)), 25, "thread {thread}");
            starts.extend((0..25).map(|call| pace.start_of(call).as_micros()));
        }
        starts.sort_unstable();
        let even: Vec<u128> = (0..100).map(|call| call * 10_000).collect();
        let off = starts.iter().zip(&even).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(off <= Some(1), "{starts:?}");
        assert!(Pace::of(&any_spec(), 0).is_none());
    }

    #[test]
    fn a_wait_ends_when_another_thread_failed() {
        let spec = Spec { target_operations_per_s: Some(1), ..any_spec() };
        let pace = Pace::of(&spec, 0).unwrap();
        let now = pace.wait(Instant::now(), Duration::MAX, &AtomicBool::new(true));
        assert!(now < Duration::from_secs(10));
    }
}
