//! A short rule for how many batches to look ahead, which the measurement `mechanisms` puts beside
//! the controller.
//!
//! The depth is the batches whose reading takes as long as a step, and one to spare. The queue and
//! a third of the row memory bound it. It halves while rows leave memory unused or the queue turns
//! them away.

use super::depth::StepReport;

/// The least and the most that the rule asks for; queue and memory may allow less.
const DEPTHS: (usize, usize) = (2, 8);
/// A mean forgets one part in `MEAN_STEPS` with each step.
const MEAN_STEPS: f64 = 8.0;
/// Failures are added up over about this number of steps.
const FAILURE_STEPS: f64 = 16.0;
/// The depth halves if more than one row in `FAILED_SHARE` was read in vain.
const FAILED_SHARE: f64 = 50.0;
/// The batches ahead may write one part in `MEMORY_SHARE` of the row memory.
const MEMORY_SHARE: f64 = 3.0;

/// The rule's means and sums. All are of the last steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShortRule {
    interval_s: f64,
    reading_s: f64,
    /// Rows that a batch reads, and bytes that it writes.
    rows: f64,
    appended_bytes: f64,
    /// Rows that were read, and rows that were dropped or left memory unused.
    read: f64,
    in_vain: f64,
}

impl ShortRule {
    /// Takes in a step and returns how many batches to look ahead, at least 1.
    pub(crate) fn step(&mut self, report: &StepReport) -> usize {
        let mean = |mean: &mut f64, sample: f64| *mean += (sample - *mean) / MEAN_STEPS;
        let read = (report.read + report.late) as f64;
        mean(&mut self.interval_s, report.interval.as_secs_f64());
        mean(&mut self.reading_s, report.reading.as_secs_f64());
        mean(&mut self.rows, read);
        mean(&mut self.appended_bytes, report.appended_bytes as f64);
        let in_vain = (report.dropped + report.wasted) as f64;
        self.read += read - self.read / FAILURE_STEPS;
        self.in_vain += in_vain - self.in_vain / FAILURE_STEPS;

        let needed = (self.reading_s / self.interval_s.max(1e-9)).ceil() as usize + 1;
        let in_queue = report.capacity as f64 / self.rows.max(1.0);
        let in_memory = report.memory_bytes as f64 / MEMORY_SHARE / self.appended_bytes.max(1.0);
        let room = in_queue.min(in_memory) as usize;
        let depth = needed.clamp(DEPTHS.0, DEPTHS.1).min(room);
        let failed = self.in_vain > self.read / FAILED_SHARE;
        if failed { depth / 2 } else { depth }.max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(reading_ms: u64) -> StepReport {
        StepReport {
            interval: Duration::from_millis(10),
            reading: Duration::from_millis(reading_ms),
            read: 1000,
            appended_bytes: 1000,
            capacity: 1 << 20,
            memory_bytes: 1 << 20,
            ..StepReport::default()
        }
    }

    fn after(rule: &mut ShortRule, steps: usize, report: StepReport) -> usize {
        (0..steps).map(|_| rule.step(&report)).last().unwrap()
    }

    #[test]
    fn the_depth_follows_reading_over_interval_within_its_ends() {
        for (reading_ms, depth) in [(0, 2), (9, 2), (35, 5), (1000, 8)] {
            let mut rule = ShortRule::default();
            assert_eq!(after(&mut rule, 200, report(reading_ms)), depth, "{reading_ms} ms");
        }
    }

    #[test]
    fn queue_and_memory_bound_it() {
        for (capacity, memory_bytes) in [(3000, 1 << 20), (1 << 20, 9000)] {
            let bounded = StepReport { capacity, memory_bytes, ..report(1000) };
            assert_eq!(after(&mut ShortRule::default(), 300, bounded), 3);
        }
    }

    #[test]
    fn waste_halves_it_until_it_is_forgotten() {
        let mut rule = ShortRule::default();
        assert_eq!(after(&mut rule, 200, report(1000)), 8);
        assert_eq!(rule.step(&StepReport { wasted: 500, ..report(1000) }), 4);
        assert_eq!(after(&mut rule, 100, report(1000)), 8);
    }
}
