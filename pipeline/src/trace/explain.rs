//! What holds a run back: a linear program with a closed solution.
//!
//! Let `x` be the rows a second of the whole pipeline and `c` the core-seconds a row of each stage.
//! A stage that has `t` cores does `t / c` rows a second, so the most is
//!
//! ```text
//! max x   subject to   x * c <= t  for each stage,   sum of t <= cores,
//!                      t <= 1 for what one thread does at a time,   x * bytes a row <= the disk's bandwidth
//! ```
//!
//! All bounds are linear in `x`, and giving each stage exactly `t = x * c` wastes nothing; so the
//! solution is the least of
//!
//! - `cores` over the sum of all `c`: the processor,
//! - 1 over what the serial stages take together (the same thread numbers and hands on): the
//!   consumer, by the clock, because a consumer that waits keeps others out as well as one that
//!   works,
//! - what the disk reads in a second, over the bytes of a row. That is measured apart, or taken
//!   from the time in which anybody read.
//!
//! A thread that waits for the disk or the consumer has no core meanwhile. So threads are as many
//! as it takes to have that speed with the waiting in it, which may be more than cores.

use std::fmt;
use std::time::Duration;

use super::{Stage, Trace};

/// Columns of a bar in the report.
const BAR_COLUMNS: usize = 30;

/// What a run is bound by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bound {
    /// All cores are busy: more of them, or less work in the heaviest stage.
    Cpu,
    /// The input comes no faster.
    Disk,
    /// What one thread does at a time: numbering new values, or the consumer of the batches.
    Serial,
}

/// What holds a run back, and the best that an allocation of threads could do.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// What the best allocation is bound by.
    pub bound: Bound,
    /// The stage to make faster.
    pub bottleneck: Stage,
    /// Rows a second of the best allocation.
    pub predicted_rows_per_s: f64,
    /// Rows a second of the run.
    pub measured_rows_per_s: f64,
    /// The cores that the allocation has.
    pub cores: usize,
    /// Threads that it takes: more than `cores` where some wait for the disk or the consumer.
    pub threads: usize,
    /// For each stage: rows a second that one core does, and the cores that it gets.
    pub stages: Vec<(Stage, f64, f64)>,
}

impl Explanation {
    /// `input` is the seconds in which a row comes.
    pub(super) fn new(trace: &Trace, cores: usize, input: f64) -> Self {
        let rows = (trace.rows as f64).max(1.0);
        let a_row = |time: Duration| time.as_secs_f64() / rows;
        let costs = Stage::ALL.map(|stage| a_row(trace.time(stage).cpu));
        let serial = a_row(trace.time(Stage::Number).cpu) + a_row(trace.time(Stage::Consume).wall);
        let limits = [
            (Bound::Cpu, cores as f64 / costs.iter().sum::<f64>()),
            (Bound::Serial, 1.0 / serial),
            (Bound::Disk, 1.0 / input),
        ];
        let (bound, predicted) =
            limits.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).expect("there are three");
        let heaviest = |stages: &[Stage]| {
            let cost = |stage: &Stage| costs[*stage as usize];
            let by_cost = |a: &&Stage, b: &&Stage| cost(a).total_cmp(&cost(b));
            *stages.iter().max_by(by_cost).expect("there is a stage")
        };
        let bottleneck = match bound {
            Bound::Cpu => heaviest(&Stage::ALL),
            Bound::Disk => Stage::Read,
            Bound::Serial if trace.time(Stage::Consume).wall > trace.time(Stage::Number).cpu => {
                Stage::Consume
            }
            Bound::Serial => Stage::Number,
        };
        // By the clock, a stage that waits for no one takes longer only where threads share cores.
        let waits = |stage| a_row(trace.time(stage).wall.saturating_sub(trace.time(stage).cpu));
        let held = costs.iter().sum::<f64>() + waits(Stage::Read) + waits(Stage::Consume);
        let stages = Stage::ALL.into_iter().zip(costs);
        Self {
            bound,
            bottleneck,
            predicted_rows_per_s: predicted,
            measured_rows_per_s: rows / trace.elapsed.as_secs_f64(),
            cores,
            // A tenth of a thread more is noise.
            threads: ((predicted * held - 0.1).ceil() as usize).max(1),
            stages: stages.map(|(stage, cost)| (stage, 1.0 / cost, predicted * cost)).collect(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<12} {:>22} {:>7}", "stage", "million rows/s a core", "cores")?;
        for &(stage, rate, cores) in &self.stages {
            let bar = "#".repeat((cores / self.cores as f64 * BAR_COLUMNS as f64).round() as usize);
            let mark = if stage == self.bottleneck { " <- slowest" } else { "" };
            let name = stage.name();
            writeln!(formatter, "{name:<12} {:>22.2} {cores:>7.2} {bar}{mark}", rate / 1e6)?;
        }
        let bound = match self.bound {
            Bound::Cpu => "the processor",
            Bound::Disk => "the input",
            Bound::Serial => "what one thread does at a time",
        };
        write!(
            formatter,
            "bound by {bound}; {:.2} million rows/s at best with {} cores and {} threads, {:.2} measured",
            self.predicted_rows_per_s / 1e6,
            self.cores,
            self.threads,
            self.measured_rows_per_s / 1e6
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::StageTime;
    use super::*;

    /// A run of a million rows in a second; for each stage, its microseconds by processor and
    /// clock.
    fn trace(times: [(u64, u64); 7], reading_us: u64) -> Trace {
        let time = |(cpu, wall)| StageTime {
            cpu: Duration::from_micros(cpu),
            wall: Duration::from_micros(wall),
        };
        Trace {
            rows: 1_000_000,
            bytes: 250_000_000,
            threads: 2,
            elapsed: Duration::from_secs(1),
            reading: Duration::from_micros(reading_us),
            times: times.map(time),
        }
    }

    fn near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 1e-9, "{value} for {expected}");
    }

    #[test]
    fn the_processor_when_all_stages_together_fill_the_cores() {
        let times = [(10, 10), (1000, 1000), (300, 300), (500, 500), (90, 90), (50, 50), (50, 50)];
        let explanation = trace(times, 10).explain(2);
        assert_eq!((explanation.bound, explanation.bottleneck), (Bound::Cpu, Stage::Decode));
        near(explanation.predicted_rows_per_s, 1e9);
        near(explanation.measured_rows_per_s, 1e6);
        near(explanation.stages.iter().map(|(.., cores)| cores).sum(), 2.0);
        near(explanation.stages[1].1, 1e9);
        assert_eq!(explanation.threads, 2);
    }

    #[test]
    fn the_consumer_when_it_waits_and_numbering_when_it_works() {
        let times = [(10, 10), (1000, 1000), (0, 0), (0, 0), (0, 0), (50, 50), (50, 4950)];
        let explanation = trace(times, 10).explain(8);
        assert_eq!((explanation.bound, explanation.bottleneck), (Bound::Serial, Stage::Consume));
        near(explanation.predicted_rows_per_s, 2e8);
        let times = [(10, 10), (1000, 1000), (0, 0), (0, 0), (0, 0), (5000, 5000), (50, 50)];
        let explanation = trace(times, 10).explain(8);
        assert_eq!((explanation.bound, explanation.bottleneck), (Bound::Serial, Stage::Number));
    }

    #[test]
    fn the_disk_when_somebody_always_reads() {
        let times = [(100, 9000), (1000, 1000), (0, 0), (0, 0), (0, 0), (50, 50), (50, 50)];
        let explanation = trace(times, 8000).explain(2);
        assert_eq!((explanation.bound, explanation.bottleneck), (Bound::Disk, Stage::Read));
        near(explanation.predicted_rows_per_s, 1.25e8);
        // 10.1 ms of a thread for what takes 8 ms.
        assert_eq!(explanation.threads, 2);
        assert!(explanation.to_string().contains("bound by the input; 125.00 million rows/s"));
    }
}
