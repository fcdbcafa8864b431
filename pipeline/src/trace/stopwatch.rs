//! Measures the times of successive stages in one thread.

use std::time::{Duration, Instant};

use embank::locks::Mutex;

use super::{Stage, StageTime};

/// The times of the stages. A stopwatch that is off costs one branch and measures nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stopwatch {
    on: bool,
    /// When the present stage began: wall clock, and this thread's processor time.
    began: Option<(Instant, Duration)>,
    times: [StageTime; Stage::ALL.len()],
}

impl Stopwatch {
    pub(crate) fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Starts a stage in this thread.
    #[inline]
    pub(crate) fn start(&mut self) {
        if self.on {
            self.began = Some((Instant::now(), cpu_time()));
        }
    }

    /// Ends a stage and starts the next. The time since this stopwatch's last `start` or `lap`
    /// counts for `stage`.
    #[inline]
    pub(crate) fn lap(&mut self, stage: Stage) {
        if self.on {
            self.lap_on(stage);
        }
    }

    #[cold]
    fn lap_on(&mut self, stage: Stage) {
        let now = (Instant::now(), cpu_time());
        let began = self.began.replace(now).unwrap_or(now);
        let time = &mut self.times[stage as usize];
        time.wall += now.0 - began.0;
        time.cpu += now.1.saturating_sub(began.1);
    }

    /// Adds another thread's times.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, time) in self.times.iter_mut().zip(&other.times) {
            sum.cpu += time.cpu;
            sum.wall += time.wall;
        }
    }

    pub(crate) fn times(&self) -> [StageTime; Stage::ALL.len()] {
        self.times
    }
}

/// Processor time that this thread has used so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Measures how long at least one of several threads has been reading.
#[derive(Debug, Default)]
pub(crate) struct ReadBusy(Mutex<Busy>);

#[derive(Debug, Default)]
struct Busy {
    readers: usize,
    since: Option<Instant>,
    total: Duration,
}

impl ReadBusy {
    /// Marks this thread as reading until it drops the returned guard.
    pub(crate) fn begin(&self) -> Reading<'_> {
        let mut busy = self.0.lock();
        busy.readers += 1;
        busy.since.get_or_insert_with(Instant::now);
        Reading(self)
    }

    pub(crate) fn total(&self) -> Duration {
        self.0.lock().total
    }
}

/// Guard of a thread that reads.
#[derive(Debug)]
pub(crate) struct Reading<'a>(&'a ReadBusy);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut busy = self.0.0.lock();
        busy.readers -= 1;
        if busy.readers == 0 {
            let since = busy.since.take().expect("the first reader has set it");
            busy.total += since.elapsed();
        }
    }
}
