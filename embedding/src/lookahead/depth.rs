//! The rule for the number of batches that lookahead reads in advance (the depth).
//!
//! **Problem.** With too few batches ahead, rows arrive late. With too many batches ahead, their
//! rows do not fit the queue, or push each other out of memory before they are used.
//!
//! **Rule.** The depth is [`DEPTH`]. It is smaller if the queue has no room for the rows of that
//! number of batches. It is also smaller if the batches ahead would write more than 1 /
//! [`MEMORY_SHARE`] of the row memory. The depth is halved while more than one in [`WASTED_SHARE`]
//! of the rows read was wasted. A row is wasted if the queue dropped it, or if it left memory
//! unused.
//!
//! One thread reads in advance, so reading a batch should take at most one step. Of the four
//! batches ahead, one is being read, one waits for its step, and two compensate for steps that read
//! more than others. `embank-bench mechanisms` compares the rule with fixed depths.
//!
//! The rule is a pure function of the reports. It reads no clock and uses no randomness.

/// Number of batches to look ahead if queue and memory have room for them.
const DEPTH: usize = 4;
/// At each step, each sum of [`DepthRule`] loses 1 / `SUM_STEPS` of its value, so old steps fade.
const SUM_STEPS: f64 = 16.0;
/// The batches ahead may write 1 / `MEMORY_SHARE` of the row memory. A row that was brought in
/// leaves memory once the batches have written as many bytes as the row memory holds. The rest of
/// the memory is room for the writes of the present batches.
const MEMORY_SHARE: f64 = 3.0;
/// The depth is halved if more than one in `WASTED_SHARE` rows read was wasted.
const WASTED_SHARE: f64 = 50.0;

/// Counts since the last step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepReport {
    /// Rows that the lookahead thread read or reached too late.
    pub(crate) read: u64,
    /// Rows that left memory before they were used.
    pub(crate) wasted: u64,
    /// Rows that were refused because the queue was full.
    pub(crate) dropped: u64,
    /// Bytes of all rows written to mutable memory.
    pub(crate) appended_bytes: u64,
    /// Capacity of the queue in rows.
    pub(crate) capacity: u64,
    /// Capacity of the row memory in bytes.
    pub(crate) memory_bytes: u64,
}

/// The rule and its fading sums over the last steps. The module's essay describes it.
#[derive(Debug, Clone)]
pub(crate) struct DepthRule {
    depth: usize,
    /// Number of batches that one call announces.
    together: usize,
    steps: f64,
    read: f64,
    read_for_nothing: f64,
    appended_bytes: f64,
}

impl DepthRule {
    /// Makes the rule. One call announces `together` batches, at least one.
    pub(crate) fn new(together: usize) -> Self {
        Self {
            depth: DEPTH,
            together,
            steps: 0.0,
            read: 0.0,
            read_for_nothing: 0.0,
            appended_bytes: 0.0,
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Adds the report of a step to the sums. Returns the new depth, at least 1.
    pub(crate) fn step(&mut self, report: &StepReport) -> usize {
        let add = |sum: &mut f64, value: f64| *sum += value - *sum / SUM_STEPS;
        // A bulk load may append very many bytes in one step. A step's bytes count as at most one
        // part in `MEMORY_SHARE` of the memory, so the sum soon forgets a bulk load.
        let appended_bytes = (report.appended_bytes as f64).min(memory_share(report));
        add(&mut self.steps, 1.0);
        add(&mut self.read, report.read as f64);
        add(&mut self.read_for_nothing, (report.dropped + report.wasted) as f64);
        add(&mut self.appended_bytes, appended_bytes);

        let wastes = self.read_for_nothing > (self.read / WASTED_SHARE).max(1.0);
        let wanted = if wastes { DEPTH / 2 } else { DEPTH };
        self.depth = wanted.min(self.room(report)).max(1);
        self.depth
    }

    /// Returns the largest depth for which queue and memory have room. Allows for up to `together -
    /// 1` batches more than the depth, which one call may announce together.
    fn room(&self, report: &StepReport) -> usize {
        let rows_per_batch = (self.read / self.steps).max(1.0);
        let bytes_per_batch = (self.appended_bytes / self.steps).max(1.0);
        let in_queue = report.capacity as f64 / rows_per_batch;
        let in_memory = memory_share(report) / bytes_per_batch;
        let batches = in_queue.min(in_memory) as usize;
        batches.saturating_sub(self.together - 1)
    }
}

/// Returns the bytes that all batches ahead may write.
fn memory_share(report: &StepReport) -> f64 {
    report.memory_bytes as f64 / MEMORY_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> StepReport {
        StepReport {
            read: 1000,
            appended_bytes: 1000,
            capacity: 1 << 20,
            memory_bytes: 1 << 20,
            ..StepReport::default()
        }
    }

    fn after(rule: &mut DepthRule, steps: usize, report: StepReport) -> usize {
        (0..steps).map(|_| rule.step(&report)).last().unwrap()
    }

    #[test]
    fn it_is_the_same_whether_rows_are_read_or_not() {
        for read in [0, 1000] {
            let report = StepReport { read, ..report() };
            assert_eq!(after(&mut DepthRule::new(1), 200, report), DEPTH);
        }
    }

    #[test]
    fn queue_and_memory_bound_it() {
        for (capacity, memory_bytes) in [(3100, 1 << 20), (1 << 20, 9300)] {
            let bounded = StepReport { capacity, memory_bytes, ..report() };
            assert_eq!(DepthRule::new(1).step(&bounded), 3, "from the first step on");
            assert_eq!(after(&mut DepthRule::new(1), 300, bounded), 3);
            assert_eq!(after(&mut DepthRule::new(2), 300, bounded), 2);
            assert_eq!(after(&mut DepthRule::new(3), 300, bounded), 1);
        }
        let nothing = StepReport { capacity: 0, memory_bytes: 0, ..report() };
        assert_eq!(after(&mut DepthRule::new(3), 300, nothing), 1);
    }

    #[test]
    fn waste_halves_it_until_it_is_forgotten() {
        for wasteful in
            [StepReport { wasted: 500, ..report() }, StepReport { dropped: 500, ..report() }]
        {
            let mut rule = DepthRule::new(1);
            assert_eq!(after(&mut rule, 200, report()), DEPTH);
            assert_eq!(rule.step(&wasteful), DEPTH / 2);
            assert_eq!(after(&mut rule, 100, report()), DEPTH);
        }
    }

    #[test]
    fn a_bulk_load_is_forgotten_after_a_few_steps() {
        let mut rule = DepthRule::new(1);
        assert_eq!(after(&mut rule, 200, report()), DEPTH);
        let load = StepReport { appended_bytes: 10 << 20, ..report() };
        rule.step(&load);
        assert_eq!(after(&mut rule, 10, report()), DEPTH);
    }

    #[test]
    fn waste_is_forgotten_where_nothing_more_is_read() {
        let mut rule = DepthRule::new(1);
        after(&mut rule, 50, StepReport { wasted: 500, ..report() });
        assert_eq!(rule.depth(), DEPTH / 2);
        assert_eq!(after(&mut rule, 200, StepReport { read: 0, ..report() }), DEPTH);
    }

    #[test]
    fn one_row_in_a_hundred_is_no_waste() {
        let wasteful = StepReport { wasted: 10, ..report() };
        assert_eq!(after(&mut DepthRule::new(1), 200, wasteful), DEPTH);
    }

    #[test]
    fn rows_of_a_group_that_come_in_one_step_count_for_all_of_its_steps() {
        let mut rule = DepthRule::new(3);
        let mut depths = Vec::new();
        for step in 0..300 {
            let read = if step % 3 == 0 { 3000 } else { 0 };
            depths.push(rule.step(&StepReport { read, capacity: 8000, ..report() }));
        }
        assert!(depths[100..].iter().all(|&depth| depth == DEPTH), "{:?}", &depths[100..]);
    }
}
