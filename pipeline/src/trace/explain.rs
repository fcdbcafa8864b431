//! Finds the stage that limits a run, by a linear program with a closed-form solution.
//!
//! Let `x` be the rows per second of the whole pipeline, and `c` the seconds of a core that one row
//! takes in a stage. A stage with `t` cores does `t / c` rows per second. The best rate is the
//! solution of this linear program:
//!
//! ```text
//! max x   subject to   x * c <= t  for each stage,   sum of t <= cores,
//!                      t <= 1 for what one thread does at a time,   x * bytes a row <= the disk's bandwidth
//! ```
//!
//! All bounds are linear in `x`, and if each stage has exactly `t = x * c` cores, no core is
//! wasted. The solution is therefore the smallest of three limits:
//!
//! - The processor: `cores` over the sum of all `c`.
//! - The serial stages: 1 over their time per row. One thread at a time numbers new values and
//!   calls the consumer. The consumer's time is wall time, because a waiting consumer blocks the
//!   other threads too.
//! - The disk: its bytes per second over the bytes of a row. If the caller has measured the disk's
//!   rate separately, this rate counts. Otherwise it is computed from the time in which at least
//!   one thread read.
//!
//! A thread that waits for the disk or the consumer uses no core in that time. The best number of
//! threads therefore counts waiting time too, and may exceed the number of cores.

use std::fmt;
use std::time::Duration;

use super::{Stage, Trace};

/// Width in characters of a full bar in the report.
const BAR_COLUMNS: usize = 30;

/// The resource that limits a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bound {
    /// All cores are busy. The cure is more cores, or less work in the heaviest stage.
    Cpu,
    /// The disk. The run already reads the input as fast as the disk delivers it.
    Disk,
    /// The stages that one thread runs at a time: numbering new values, and the consumer of the
    /// batches.
    Serial,
}

/// The resource and the stage that limit a run, and the best speed that a run could reach with any
/// allocation of threads to stages.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The resource that limits the best allocation.
    pub bound: Bound,
    /// The stage that must get faster before the run can.
    pub bottleneck: Stage,
    /// Rows per second with the best allocation of threads.
    pub predicted_rows_per_s: f64,
    /// Rows per second of the run.
    pub measured_rows_per_s: f64,
    /// Number of cores that the allocation divides among the stages.
    pub cores: usize,
    /// Number of threads in the best allocation. Exceeds `cores` if threads wait for the disk or
    /// the consumer.
    pub threads: usize,
    /// For each stage: the rows per second that one core does, and the cores that the best
    /// allocation gives it.
    pub stages: Vec<(Stage, f64, f64)>,
}

impl Explanation {
    /// `input` is the seconds that the input needs for one row.
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
        // Only in reading and in the consumer does a thread wait for something else than a core. In
        // other stages, wall time exceeds processor time only because threads share cores.
        let waits = |stage| a_row(trace.time(stage).wall.saturating_sub(trace.time(stage).cpu));
        let held = costs.iter().sum::<f64>() + waits(Stage::Read) + waits(Stage::Consume);
        let stages = Stage::ALL.into_iter().zip(costs);
        Self {
            bound,
            bottleneck,
            predicted_rows_per_s: predicted,
            measured_rows_per_s: rows / trace.elapsed.as_secs_f64(),
            cores,
            // A tenth of a thread is subtracted before rounding up: it is within the noise of the
            // measurement.
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

    /// A trace of a million rows in one second. `times` has the microseconds of processor and wall
    /// time of each stage but `Array`, which takes none.
    fn trace(times: [(u64, u64); 7], reading_us: u64) -> Trace {
        let [read, decode, rest @ ..] = times;
        let [transform, look_up, concatenate, number, consume] = rest;
        let times = [read, decode, (0, 0), transform, look_up, concatenate, number, consume];
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
        // The stages take 10.1 ms of thread time, and the disk takes 8 ms. That needs two threads.
        assert_eq!(explanation.threads, 2);
        assert!(explanation.to_string().contains("bound by the input; 125.00 million rows/s"));
    }
}
