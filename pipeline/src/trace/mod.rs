//! Measures where the time of a run goes.
//!
//! **Problem.** One stage limits the speed of a pipeline. From outside it is not visible which one:
//! all threads are busy, or all wait.
//!
//! **Approach.** As in Plumber (Kuchnik et al., MLSys 2022): count the rows and the processor time
//! of each stage. A stage's rate per core is its rows divided by its processor time. A linear
//! program gives the best rate that any allocation of threads can reach ([`explain`]). At the end
//! of each stage of each block, a thread reads its own processor time by a system call. A traced
//! run therefore takes a few percent longer, and only runs that ask for a trace have one.

mod explain;
mod stopwatch;

use std::time::Duration;

pub use explain::{Bound, Explanation};
pub(crate) use stopwatch::{ReadBusy, Stopwatch};

/// A stage of the work on each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Reads bytes of the input.
    Read,
    /// Decodes bytes into columns.
    Decode,
    /// Makes the arrays of costly columns. Reads files, if a field names them: an explanation does
    /// not count the time in which a thread waits for these.
    Array,
    /// Runs the operators on columns.
    Transform,
    /// Replaces values by their ids, if they have ids.
    LookUp,
    /// Copies columns into the matrices of the batch.
    Concatenate,
    /// Gives ids to new values, in one thread at a time.
    Number,
    /// Calls the consumer with the batch, in one thread at a time.
    Consume,
}

impl Stage {
    /// All stages, in the order in which a row passes them.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Decode,
        Self::Array,
        Self::Transform,
        Self::LookUp,
        Self::Concatenate,
        Self::Number,
        Self::Consume,
    ];

    /// The stage's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Decode => "decode",
            Self::Array => "make arrays",
            Self::Transform => "transform",
            Self::LookUp => "look up",
            Self::Concatenate => "concatenate",
            Self::Number => "number",
            Self::Consume => "consume",
        }
    }

    /// True if one thread at a time runs the stage.
    #[must_use]
    pub fn is_serial(self) -> bool {
        matches!(self, Self::Number | Self::Consume)
    }
}

/// The time that all threads together spent on a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StageTime {
    /// Processor time.
    pub cpu: Duration,
    /// Wall time. Exceeds `cpu` if threads waited for a disk, a consumer or a core.
    pub wall: Duration,
}

/// The times of a run, by stage.
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
    /// Rows that the consumer got.
    pub rows: u64,
    /// Bytes of input. For a pipe, the bytes that were read from it.
    pub bytes: u64,
    /// Number of threads of the run.
    pub threads: usize,
    /// Wall time of the run.
    pub elapsed: Duration,
    /// Wall time during which at least one thread was reading.
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

    /// The time that threads spent on `stage`.
    #[must_use]
    pub fn time(&self, stage: Stage) -> StageTime {
        self.times[stage as usize]
    }

    /// Finds the stage that limits the run, and the best speed on `cores` cores. Takes the speed of
    /// the input from this run: its bytes divided by the time in which at least one thread read.
    #[must_use]
    pub fn explain(&self, cores: usize) -> Explanation {
        Explanation::new(self, cores, self.reading.as_secs_f64() / (self.rows as f64).max(1.0))
    }

    /// Explains the run as [`explain`](Self::explain) does, but with an input of `bytes_per_s`
    /// bytes per second, as [`Pipeline::read_rate`](crate::Pipeline::read_rate) measures it. The
    /// measured rate is more exact if the run paused its reads: after a pause, a drive reads faster
    /// than it can for long.
    #[must_use]
    pub fn explain_with_input(&self, cores: usize, bytes_per_s: f64) -> Explanation {
        Explanation::new(self, cores, self.bytes as f64 / bytes_per_s / (self.rows as f64).max(1.0))
    }
}
