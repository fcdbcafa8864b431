//! Where the time of a run goes.
//!
//! **Problem.** A pipeline that is too slow has one stage that it is slow for, and which one it is
//! can't be seen from outside: all threads are busy, or all wait.
//!
//! **Approach.** Plumber's (Kuchnik et al., MLSys 2022): count rows and processor time of each
//! stage, and the rest follows. A stage's rate per core is its rows over its processor time; the
//! best that any allocation of threads can reach is the solution of a linear program ([`explain`]).
//! Threads tell their own processor time at the end of each stage of each block, which takes a call
//! of the kernel: so a run is traced only where it is asked for, and takes some percent longer.

mod explain;
mod stopwatch;

use std::time::Duration;

pub use explain::{Bound, Explanation};
pub(crate) use stopwatch::{ReadBusy, Stopwatch};

/// A part of the work on each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Bytes come from the input.
    Read,
    /// Bytes become columns.
    Decode,
    /// Operators change columns.
    Transform,
    /// Values become ids where they have one.
    LookUp,
    /// Columns become matrices.
    Concatenate,
    /// New values get ids. One thread at a time.
    Number,
    /// The consumer has the batch. One thread at a time.
    Consume,
}

impl Stage {
    /// All, in the order in which a row passes them.
    pub const ALL: [Self; 7] = [
        Self::Read,
        Self::Decode,
        Self::Transform,
        Self::LookUp,
        Self::Concatenate,
        Self::Number,
        Self::Consume,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Decode => "decode",
            Self::Transform => "transform",
            Self::LookUp => "look up",
            Self::Concatenate => "concatenate",
            Self::Number => "number",
            Self::Consume => "consume",
        }
    }

    /// Whether one thread at a time works on it.
    #[must_use]
    pub fn is_serial(self) -> bool {
        matches!(self, Self::Number | Self::Consume)
    }
}

/// The time that threads spent on a stage, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StageTime {
    /// Processor time.
    pub cpu: Duration,
    /// Time by the clock: more than `cpu` where threads waited, for a disk, a consumer, or a core.
    pub wall: Duration,
}

/// Where the time of a run went.
///
/// # Examples
/// ```
/// use embank_pipeline::{Batch, Input, Pipeline, RunOptions, Spec, Stage};
///
/// let options = RunOptions { trace: true, ..RunOptions::default() };
/// let mut pipeline = Pipeline::new(&Spec::criteo(5000), &options)?;
/// let text = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26)).repeat(1000);
/// let report = pipeline.run(&[Input::memory("rows", text.as_bytes())], &mut |_: &mut Batch| Ok(()))?;
/// let trace = report.trace.expect("it was asked for");
/// assert!(trace.time(Stage::Decode).cpu.as_nanos() > 0);
/// println!("{}", trace.explain(2));
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// Rows that came out.
    pub rows: u64,
    /// Bytes of input; of pipes, what was read of them.
    pub bytes: u64,
    /// Threads of the run.
    pub threads: usize,
    /// How long the run took.
    pub elapsed: Duration,
    /// How long at least one thread was reading.
    pub reading: Duration,
    times: [StageTime; Stage::ALL.len()],
}

impl Trace {
    pub(crate) fn new(
        rows: u64,
        bytes: u64,
        threads: usize,
        elapsed: Duration,
        reading: Duration,
        stopwatch: &Stopwatch,
    ) -> Self {
        Self { rows, bytes, threads, elapsed, reading, times: stopwatch.times() }
    }

    /// What a stage took.
    #[must_use]
    pub fn time(&self, stage: Stage) -> StageTime {
        self.times[stage as usize]
    }

    /// The part that holds the run back, and the best that `cores` cores could do, with an input
    /// that comes as fast as it came while a thread was reading.
    #[must_use]
    pub fn explain(&self, cores: usize) -> Explanation {
        Explanation::new(self, cores, self.reading.as_secs_f64() / (self.rows as f64).max(1.0))
    }

    /// As [`explain`](Self::explain), with an input of this many bytes a second, as
    /// [`Pipeline::read_rate`](crate::Pipeline::read_rate) measures it. A drive that makes up for
    /// idle times reads faster in between than it would all the time.
    #[must_use]
    pub fn explain_with_input(&self, cores: usize, bytes_per_s: f64) -> Explanation {
        Explanation::new(self, cores, self.bytes as f64 / bytes_per_s / (self.rows as f64).max(1.0))
    }
}
