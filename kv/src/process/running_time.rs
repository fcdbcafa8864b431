//! Running time: the time in which the process could work.
//!
//! **Problem.** A process may be suspended: by `SIGSTOP`, by Ctrl-Z in a shell, by a batch system
//! such as Slurm, or by a paused container. The system's clock goes on meanwhile. A wait that
//! compares the system's clock with a deadline then ends at once when the process continues, and a
//! lease looks old although its owner had no time to end it.
//!
//! **Approach.** The system does not report a suspension to the process. The running time is
//! therefore measured in steps: each reading of it adds the time since the reading before, but at
//! most [`STEP_MAX`]. A thread that waits for a deadline reads it every [`LOOK_INTERVAL`]. A
//! suspension therefore counts as one step.
//!
//! **Limit.** A time in which no thread of the process reads the running time counts as one step
//! too. A lease therefore gets older only while some thread calls Gets, or waits in one. A process
//! that gets too little processor time also counts less time than the system's clock.
//!
//! **State.** All threads share one word, so that a reading is consistent without a lock:
//!
//! ```text
//!  63 ............ 32   31 ............ 0
//!  last reading         time left out         (both in units of 16.8 ms)
//! ```
//!
//! The running time is the system's time since the first reading, less the time left out. The last
//! reading wraps around after two years. A suspension of more than one year counts in full. The
//! time left out stays at its largest number, two years; later suspensions then count in full.

use std::ops::Add;
use std::sync::OnceLock;
// Not modelled: a model has no time.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Largest time that one reading adds. Twice the interval between two looks of a waiting thread, so
/// that a thread that wakes up late counts its whole wait.
const STEP_MAX: Duration = Duration::from_millis(100);
/// Time between two looks of a waiting thread at the running time. A look takes some microseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

const UNIT_SHIFT: u32 = 24;
const LAST_SHIFT: u32 = 32;
const LEFT_OUT_MASK: u64 = (1 << LAST_SHIFT) - 1;

/// A point in the running time of this process: nanoseconds since the process first asked for it.
///
/// ```
/// use std::time::Duration;
/// use embank_kv::RunningTime;
///
/// let deadline = RunningTime::now() + Duration::from_secs(60);
/// assert!(RunningTime::now() < deadline);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningTime(u64);

impl RunningTime {
    /// Returns the running time now. A suspension of the process since the last call counts as 100
    /// ms at most.
    #[must_use]
    pub fn now() -> Self {
        static SHARED: RunningClock = RunningClock::new();
        RunningTime(SHARED.read(system_ns))
    }

    /// Returns the time from `earlier` to this point. Zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the point `time` before this one. `None` if the process has run for less than
    /// `time`.
    #[must_use]
    pub fn checked_sub(self, time: Duration) -> Option<Self> {
        self.0.checked_sub(ns(time)).map(RunningTime)
    }

    /// Returns the time of the system's clock at which a thread that waits for this point must look
    /// at the running time again: at the latest after 50 ms.
    #[must_use]
    pub fn look_by(self) -> Instant {
        Instant::now() + self.since(Self::now()).min(LOOK_INTERVAL)
    }
}

impl Add<Duration> for RunningTime {
    type Output = Self;

    /// Returns the point `time` after this one. A sum that is too large becomes a point that no
    /// process reaches.
    fn add(self, time: Duration) -> Self {
        RunningTime(self.0.saturating_add(ns(time)))
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the system's time since the first call.
fn system_ns() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let time = ns(FIRST.get_or_init(Instant::now).elapsed());
    #[cfg(any(test, feature = "testing"))]
    let time = time + suspended::ns();
    time
}

/// The state of the running time; see the essay of this module.
#[derive(Debug)]
struct RunningClock(AtomicU64);

impl RunningClock {
    const fn new() -> Self {
        RunningClock(AtomicU64::new(0))
    }

    /// Returns the running time. `system_ns` reads the system's clock.
    fn read(&self, system_ns: impl Fn() -> u64) -> u64 {
        // Relaxed, here and below: the word orders no other memory. The system's clock is read
        // after the word. If another thread notes a suspension in between, either the clock's time
        // is from before the suspension, or the exchange fails.
        let mut word = self.0.load(Ordering::Relaxed);
        // The loop ends: an exchange fails only if another thread has noted a later time.
        loop {
            let left_out = word & LEFT_OUT_MASK;
            let system = system_ns();
            let units = system >> UNIT_SHIFT & LEFT_OUT_MASK;
            let passed_units = units.wrapping_sub(word >> LAST_SHIFT) & LEFT_OUT_MASK;
            // More than half of the range: another thread has noted a time after this thread's.
            let is_later = passed_units <= LEFT_OUT_MASK / 2;
            if !is_later || passed_units == 0 {
                return system.saturating_sub(left_out << UNIT_SHIFT);
            }
            let passed_ns = (passed_units << UNIT_SHIFT) + (system & ((1 << UNIT_SHIFT) - 1));
            let over_units = passed_ns.saturating_sub(ns(STEP_MAX)) >> UNIT_SHIFT;
            let left_out = left_out.saturating_add(over_units).min(LEFT_OUT_MASK);
            let next = (units << LAST_SHIFT) | left_out;
            match self.0.compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return system.saturating_sub(left_out << UNIT_SHIFT),
                Err(changed) => word = changed,
            }
        }
    }
}

/// Lets a test suspend the process without stopping it.
#[cfg(any(test, feature = "testing"))]
pub mod suspended {
    use super::{AtomicU64, Duration, Ordering};

    static NS: AtomicU64 = AtomicU64::new(0);

    pub(super) fn ns() -> u64 {
        // Relaxed: no other data depends on it.
        NS.load(Ordering::Relaxed)
    }

    /// Moves the system's clock, as [`RunningTime`](super::RunningTime) sees it, forward by `time`
    /// at once. To the running time, this is a suspension of the process.
    pub fn suspend_for(time: Duration) {
        NS.fetch_add(super::ns(time), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const DAY: u64 = 86_400_000 * MS;
    const STEP: u64 = STEP_MAX.as_nanos() as u64;
    /// Both numbers of the word are rounded to this.
    const UNIT: u64 = 1 << UNIT_SHIFT;

    #[test]
    fn time_counts_in_full_while_it_is_read() {
        let clock = RunningClock::new();
        for system in (0..3 * DAY).step_by(83 * MS as usize).take(50_000) {
            assert_eq!(clock.read(|| system), system);
        }
    }

    #[test]
    fn a_suspension_counts_as_one_step_however_long_it_is() {
        for gap in [STEP + 2 * UNIT, 1_000 * MS, DAY, 300 * DAY] {
            let clock = RunningClock::new();
            let mut system = 7 * DAY;
            let mut before = clock.read(|| system);
            for _ in 0..2 {
                system += gap;
                let after = clock.read(|| system);
                let counted = after - before;
                assert!((STEP - UNIT..=STEP + UNIT).contains(&counted), "{gap}: {counted}");
                assert_eq!(clock.read(|| system + MS), after + MS);
                before = after;
            }
        }
    }

    /// A thread may read the system's clock, and note its time after other threads have noted later
    /// times.
    #[test]
    fn a_time_from_before_a_suspension_is_no_second_suspension() {
        let clock = RunningClock::new();
        let before = clock.read(|| DAY);
        let after = clock.read(|| 2 * DAY);
        assert!(after >= before);
        assert!(clock.read(|| DAY + MS) <= before + MS);
        assert_eq!(clock.read(|| 2 * DAY + MS), after + MS);
    }

    #[test]
    fn a_suspension_that_another_thread_notes_meanwhile_counts_once() {
        use std::cell::Cell;

        let clock = RunningClock::new();
        let start = clock.read(|| DAY);
        let first = Cell::new(true);
        // The other thread notes the suspension between this thread's load and its exchange.
        let read = clock.read(|| {
            if first.replace(false) {
                clock.read(|| 3 * DAY);
            }
            3 * DAY + MS
        });
        assert!(read - start <= STEP + UNIT + MS, "{}", read - start);
    }

    #[test]
    fn the_longest_wait_ends_never_and_the_shortest_at_once() {
        let now = RunningTime::now();
        assert!(now + Duration::MAX > now + Duration::from_secs(1 << 32));
        assert!((now + Duration::MAX).look_by() <= Instant::now() + LOOK_INTERVAL);
        assert!(now.look_by() <= Instant::now());
        assert_eq!(now.checked_sub(Duration::MAX), None);
        assert_eq!((now + Duration::from_nanos(5)).since(now), Duration::from_nanos(5));
        assert_eq!(now.since(now + Duration::from_nanos(5)), Duration::ZERO);
    }
}
