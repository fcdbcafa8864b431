//! How many batches to look ahead, from what reading and computing take.
//!
//! **Problem.** Too few batches ahead and rows come late; too many and they fill the queue, or push each other out of
//! memory before their use. What is right follows from the disk, the model and the data, and changes with them.
//!
//! **Approach.** A step gives the interval since the step before, and what the thread that reads ahead did meanwhile. A
//! batch that is announced has to wait for what is queued before it and then takes its own reading time; that, in
//! intervals, and one batch to spare, is the depth needed. Means and mean deviations are smoothed as round-trip times
//! are in TCP (Jacobson, SIGCOMM 1988): what is expected is the mean and twice the deviation.
//!
//! - Batches may be announced together, a group with one call, where the depth is 2 or more. They are read together, so
//!   the first of a group waits for the reading of all; the others have an interval or more to spare, so there is none
//!   beside. Up to a group less one more batches are ahead than the depth says. The reading of a group comes at once
//!   and in some of its steps alone: so what is looked at is the mean over as many steps as two groups have batches.
//! - Where reading takes longer than computing, no depth makes up for it, and rows are late at any: the need is cut off
//!   at what evens out fluctuations (`DISK_BOUND_DEPTH`), margin and all. The intervals have the waits in them, so reading
//!   then takes nearly all of each; and what is queued follows the depth, so it must not be what the depth follows.
//! - Rows come, and leave memory, in lumps: what went wrong is held against what was read in some `FAILURE_STEPS` steps.
//! - Late rows tell that the estimate was too low: where more than one in `LATE_SHARE` was late, that adds to a margin,
//!   which shrinks again slowly. What has been announced comes no earlier by that, nor what a pass begins with: so until
//!   it has been used no more is learnt from late rows, and neither after a pause or where a pass begins.
//! - Rows that were dropped by the queue, or left memory unused, take from the margin at once, and cap the depth for a
//!   while below what it was. Pages leave memory over several steps, so here too no more is learnt until what was
//!   announced by then has been used.
//! - It goes up no further than the queue's capacity allows, and than the batches ahead write a third of memory: a row
//!   that was brought in leaves memory when so much has been written behind it, and what counts is all that a batch has
//!   written, in bytes, with the copies of rows that it uses in the read-only region. The deeper it is, the more those are. In DLRM
//!   with a budget of a quarter of the tables a batch writes 5,800 rows at a depth of 1, 7,200 at 2, 11,900 at 3 and
//!   13,700 at 4, where memory has room for 91,000, and is fastest at 2. So a depth can turn out to be too deep by its
//!   own doing: what is beyond the bound by `SLACK` is lowered, and capped for a while as above.
//! - A step that takes many times as long as others is no pace, unless such steps come often. If reading took little of
//!   it, it is a pause, in which the queue runs dry and somebody else may use memory: neither late nor wasted rows count
//!   against the depth then, however often.
//! - Hysteresis: up after `RAISE_AFTER` steps that ask for it, one batch a step; down by one after `LOWER_AFTER`, by when
//!   the means have forgotten the depth before, and mostly a single large write of somebody else. After a cap has run
//!   out one batch more is tried, and so on.
//!
//! The controller is a pure function of the reports: no clock, no randomness.

use std::collections::VecDeque;
use std::iter::Sum;
use std::time::Duration;

use embank_kv::mechanisms::{Mechanism, is_on};

use super::short_depth::ShortRule;

/// Where a controller begins.
const DEPTH_FIRST: usize = 2;
/// More batches are of no use to anybody.
const DEPTH_MAX: usize = 64;
/// The most where reading takes longer than computing.
const DISK_BOUND_DEPTH: usize = 8;
const RAISE_AFTER: u32 = 2;
const LOWER_AFTER: u32 = 16;
/// One late, dropped or wasted row in so many that were read is nobody's worry.
const LATE_SHARE: f64 = 50.0;
const MARGIN_MAX: usize = 8;
/// After so many steps without a late row the margin shrinks by one.
const MARGIN_STEPS: u32 = 64;
/// Failures are added up over about so many steps, and nothing is learnt from them before.
const FAILURE_STEPS: u64 = 16;
/// Where reading takes so much of the intervals the disk is the limit.
const DISK_BOUND_SHARE: f64 = 0.9;
/// For so many steps a depth that was too large is not tried again.
const CAPPED_STEPS: u32 = 128;
/// For so many more each that is one larger.
const CAPPED_STEPS_MORE: u32 = 32;

/// An interval that is so many times the mean is no pace, and if reading took little of it a pause: an evaluation, a
/// checkpoint, the time between two passes.
const LONG: f64 = 8.0;
/// So many, with fewer than `LONG_APART` steps from one to the next, and more of them are how the loop goes.
const LONG_MAX: u32 = 2;
const LONG_APART: u32 = 64;

/// So much of memory may be written by the batches ahead: one part in so many.
const MEMORY_SHARE: f64 = 3.0;
/// A depth is kept that queue or memory are too small for, but not by more than this factor.
const SLACK: f64 = 1.25;

/// What happened since the last step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepReport {
    /// Since the last step: what the caller computed and waited for.
    pub(crate) interval: Duration,
    /// Of that, how long the thread that reads ahead was reading.
    pub(crate) reading: Duration,
    /// Rows that it read.
    pub(crate) read: u64,
    /// Rows that were read from disk when they were wanted, before it came to them.
    pub(crate) late: u64,
    /// Rows that left memory unused.
    pub(crate) wasted: u64,
    /// Bytes of rows that were written to mutable memory, for whatever reason.
    pub(crate) appended_bytes: u64,
    /// Rows that the queue turned away.
    pub(crate) dropped: u64,
    /// Rows that the queue holds now.
    pub(crate) pending: u64,
    /// Rows that the queue can hold.
    pub(crate) capacity: u64,
    /// Bytes of rows that memory can hold.
    pub(crate) memory_bytes: u64,
}

/// A value that fluctuates.
#[derive(Debug, Clone, Copy, Default)]
struct Smoothed {
    mean: f64,
    deviation: f64,
    samples: u64,
}

impl Smoothed {
    fn add(&mut self, sample: f64) {
        if self.samples == 0 {
            (self.mean, self.deviation) = (sample, sample / 2.0);
        } else {
            let error = sample - self.mean;
            self.mean += error / 8.0;
            self.deviation += (error.abs() - self.deviation) / 4.0;
        }
        self.samples += 1;
    }

    fn expected_at_most(&self) -> f64 {
        self.mean + 2.0 * self.deviation
    }
}

/// The controller. See the module's essay.
#[derive(Debug, Clone)]
pub(crate) struct DepthController {
    depth: usize,
    /// Batches that are announced with one call.
    together: usize,
    /// The reports of the last steps.
    last: VecDeque<StepReport>,
    interval_s: Smoothed,
    /// The last long steps, and the steps since then.
    long_steps: u32,
    steps_since_long: u32,
    /// Reading time of a batch.
    reading_s: Smoothed,
    /// Rows of a batch that have to be read, and bytes that are written for it.
    rows: Smoothed,
    appended_bytes: Smoothed,
    /// Over the last steps: rows that were read, and of those that were late; and rows dropped or wasted.
    read: f64,
    late: f64,
    in_vain: f64,
    margin: usize,
    steps_in_time: u32,
    /// A depth that was too large, and for how many steps it counts.
    too_deep: usize,
    capped_for: u32,
    /// So many steps until what was announced at that depth has been used, and at the one before the margin grew.
    draining_for: usize,
    catching_up_for: usize,
    asked_up: u32,
    asked_down: u32,
    /// What decides in the controller's place while that is turned off.
    short: ShortRule,
}

impl DepthController {
    /// For batches of which `together`, at least one, are announced with one call.
    pub(crate) fn new(together: usize) -> Self {
        Self {
            depth: DEPTH_FIRST,
            together: together.min(DEPTH_MAX),
            last: VecDeque::new(),
            interval_s: Smoothed::default(),
            long_steps: 0,
            steps_since_long: 0,
            reading_s: Smoothed::default(),
            rows: Smoothed::default(),
            appended_bytes: Smoothed::default(),
            read: 0.0,
            late: 0.0,
            in_vain: 0.0,
            margin: 0,
            steps_in_time: 0,
            too_deep: usize::MAX,
            capped_for: 0,
            draining_for: 0,
            catching_up_for: 0,
            asked_up: 0,
            asked_down: 0,
            short: ShortRule::default(),
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// What the next batches ask for was not announced as early as the depth says.
    pub(crate) fn begin_pass(&mut self) {
        // It may begin with a long step, however short passes are.
        self.long_steps = 0;
        self.catching_up_for = self.steps_ahead();
    }

    /// Takes in a step and says how many batches to look ahead from now on, at least 1.
    pub(crate) fn step(&mut self, report: &StepReport) -> usize {
        if !is_on(Mechanism::DepthController) {
            self.depth = self.short.step(report);
            return self.depth;
        }
        self.steps_since_long = self.steps_since_long.saturating_add(1);
        if self.steps_since_long >= LONG_APART {
            self.long_steps = 0;
        }
        let is_long = self.interval_s.samples > 0
            && report.interval.as_secs_f64() > LONG * self.interval_s.mean;
        let is_pause = is_long && report.reading < report.interval / 2;
        if is_pause {
            self.catching_up_for = self.steps_ahead();
        }
        if is_long {
            self.steps_since_long = 0;
            if self.long_steps < LONG_MAX {
                self.long_steps += 1;
                // What it waited for was late, if it did not pause.
                self.learn_from_failures(&StepReport { dropped: 0, wasted: 0, ..*report });
                return self.depth;
            }
        }
        // A group's end may slip from one step to the next, so two groups at least.
        let window = if self.together == 1 { 1 } else { self.together * 2 };
        if self.last.len() == window {
            self.last.pop_front();
        }
        self.last.push_back(*report);
        if self.last.len() < window {
            return self.depth;
        }
        let steps = window as f64;
        self.interval_s.add(self.sum(|step| step.interval).as_secs_f64() / steps);
        self.reading_s.add(self.sum(|step| step.reading).as_secs_f64() / steps);
        self.rows.add(self.sum(|step| step.read + step.late) as f64 / steps);
        // At most what the bound is: somebody else may write any number.
        let memory_share = |step: &StepReport| step.memory_bytes as f64 / MEMORY_SHARE;
        let appended = self.sum(|step| (step.appended_bytes as f64).min(memory_share(step)));
        self.appended_bytes.add(appended / steps);
        // Of a pause the pace alone: what left memory meanwhile is not the depth's doing, however often.
        let (dropped, wasted) = if is_pause { (0, 0) } else { (report.dropped, report.wasted) };
        self.learn_from_failures(&StepReport { dropped, wasted, ..*report });
        let capped = self.too_deep.saturating_sub(1).max(1);
        let crowded = self.depth > self.room(report, SLACK);
        let room = self.room(report, 1.0);
        let most = if crowded { room } else { room.max(self.depth) };
        let needed = self.needed(report);
        let wanted = needed.min(most).min(capped);
        if wanted > self.depth {
            (self.asked_up, self.asked_down) = (self.asked_up + 1, 0);
            if self.asked_up >= RAISE_AFTER {
                self.depth += 1;
            }
        } else if wanted < self.depth {
            (self.asked_up, self.asked_down) = (0, self.asked_down + 1);
            if self.depth > capped || self.asked_down >= LOWER_AFTER {
                if crowded && needed >= self.depth {
                    (self.too_deep, self.capped_for) = (self.depth, CAPPED_STEPS);
                }
                (self.depth, self.asked_down) = (self.depth - 1, 0);
            }
        } else {
            (self.asked_up, self.asked_down) = (0, 0);
        }
        self.depth
    }

    /// Over the last steps.
    fn sum<T: Sum>(&self, of: impl Fn(&StepReport) -> T) -> T {
        self.last.iter().map(of).sum()
    }

    /// So many steps until all that was announced has been used.
    fn steps_ahead(&self) -> usize {
        self.depth + 2 * self.together
    }

    fn learn_from_failures(&mut self, report: &StepReport) {
        for sum in [&mut self.read, &mut self.late, &mut self.in_vain] {
            *sum *= 1.0 - 1.0 / FAILURE_STEPS as f64;
        }
        self.read += (report.read + report.late) as f64;
        if self.catching_up_for == 0 {
            self.late += report.late as f64;
        }
        if self.draining_for == 0 {
            self.in_vain += (report.dropped + report.wasted) as f64;
        }
        let is_catching_up = self.catching_up_for > 0;
        self.catching_up_for = self.catching_up_for.saturating_sub(1);
        self.draining_for = self.draining_for.saturating_sub(1);
        let few =
            if self.rows.samples < FAILURE_STEPS { f64::INFINITY } else { self.read / LATE_SHARE };
        if self.in_vain > few {
            // Learnt once.
            self.in_vain = 0.0;
            self.draining_for = self.steps_ahead();
            self.margin = 0;
            (self.too_deep, self.capped_for) = (self.depth, CAPPED_STEPS);
        } else {
            self.capped_for = self.capped_for.saturating_sub(1);
            if self.capped_for == 0 && self.too_deep <= DEPTH_MAX {
                (self.too_deep, self.capped_for) = (self.too_deep + 1, CAPPED_STEPS_MORE);
            }
        }
        if self.late > few {
            self.late = 0.0;
            self.catching_up_for = self.steps_ahead();
            self.margin = (self.margin + 1).min(MARGIN_MAX);
            self.steps_in_time = 0;
        } else if !is_catching_up {
            self.steps_in_time += 1;
            if self.steps_in_time == MARGIN_STEPS {
                (self.margin, self.steps_in_time) = (self.margin.saturating_sub(1), 0);
            }
        }
    }

    /// Batches after which a batch that is announced now has been read.
    fn needed(&self, report: &StepReport) -> usize {
        let interval_s = self.interval_s.mean.max(1e-9);
        if self.rows.mean < 1.0 {
            return 1 + self.margin;
        }
        if self.reading_s.mean >= interval_s {
            return DISK_BOUND_DEPTH;
        }
        let rows_per_s = self.rows.mean / self.reading_s.mean;
        // Of what is queued, the last group is the one that the question is about.
        let together = self.together as f64;
        let before = (report.pending as f64 - together * self.rows.mean).max(0.0);
        let queued_s = if rows_per_s > 0.0 { before / rows_per_s } else { 0.0 };
        let batches = (queued_s + together * self.reading_s.expected_at_most()) / interval_s;
        let to_spare = usize::from(self.together == 1);
        let needed = (to_spare + batches.ceil().min(DEPTH_MAX as f64) as usize).max(2);
        let is_disk_bound = self.reading_s.mean >= DISK_BOUND_SHARE * interval_s;
        let needed = self.margin + needed;
        if is_disk_bound { needed.min(DISK_BOUND_DEPTH) } else { needed }
    }

    /// The depth that queue and memory have room for, at least 1.
    fn room(&self, report: &StepReport, slack: f64) -> usize {
        // From a depth of 2 on, the queue has to take a group at once; how much waits there beside, late and dropped rows
        // tell. Memory has to hold what is beyond the depth, too.
        let room = |rows_max: f64, of: Smoothed, beyond: usize| {
            // The mean: it is about several batches.
            match (slack * rows_max / of.mean.max(1.0)) as usize {
                batches if batches >= (2 + beyond).max(self.together) => batches - beyond,
                _ => 1,
            }
        };
        let queue = room(report.capacity as f64, self.rows, 0);
        let memory = report.memory_bytes as f64 / MEMORY_SHARE;
        let memory = room(memory, self.appended_bytes, self.together - 1);
        queue.min(memory).min(DEPTH_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn report(interval_ms: u32, reading_ms: u32) -> StepReport {
        StepReport {
            interval: interval_ms * MS,
            reading: reading_ms * MS,
            read: 1000,
            appended_bytes: 1000,
            capacity: 1 << 20,
            memory_bytes: 1 << 20,
            ..StepReport::default()
        }
    }

    /// The depths of so many steps that all report the same.
    fn after(controller: &mut DepthController, steps: usize, report: StepReport) -> Vec<usize> {
        (0..steps).map(|_| controller.step(&report)).collect()
    }

    #[test]
    fn where_nothing_is_read_one_batch_will_do() {
        let mut controller = DepthController::new(1);
        let depths = after(&mut controller, 100, StepReport { read: 0, ..report(10, 0) });
        assert_eq!((depths[0], depths[99]), (2, 1));
        // The same after much was read.
        after(&mut controller, 200, report(10, 15));
        assert_eq!(after(&mut controller, 200, StepReport { read: 0, ..report(10, 0) })[199], 1);
    }

    #[test]
    fn of_batches_that_come_together_the_means_are_over_two_groups() {
        let until_one = |together| {
            let depths = after(&mut DepthController::new(together), 100, StepReport::default());
            depths.into_iter().position(|depth| depth == 1).unwrap()
        };
        assert_eq!(until_one(3), until_one(1) + 2 * 3 - 1);
    }

    #[test]
    fn quick_reading_takes_two_and_slow_reading_more_but_not_without_end() {
        let settled = |reading_ms| {
            *after(&mut DepthController::new(1), 200, report(10, reading_ms)).last().unwrap()
        };
        assert_eq!(settled(1), 2);
        assert_eq!(settled(9), 2);
        assert_eq!(settled(10), DISK_BOUND_DEPTH);
        assert_eq!(settled(50), DISK_BOUND_DEPTH);
    }

    #[test]
    fn what_waits_in_the_queue_is_counted() {
        let queued = StepReport { pending: 5000, ..report(10, 5) };
        // Four batches before it at 5 ms each, its own, and one to spare.
        assert_eq!(*after(&mut DepthController::new(1), 200, queued).last().unwrap(), 4);
    }

    #[test]
    fn where_the_disk_is_the_limit_it_does_not_follow_its_own_queue() {
        let mut controller = DepthController::new(1);
        for i in 0..2000 {
            // As much as the disk can do, and sometimes a little less; what is ahead waits in the queue, and rows are late.
            let pending = 1000 * controller.depth() as u64;
            let step =
                StepReport { pending, late: 100, ..report(100, if i % 7 == 0 { 95 } else { 99 }) };
            assert!(controller.step(&step) <= DISK_BOUND_DEPTH);
        }
        assert_eq!(controller.depth(), DISK_BOUND_DEPTH);
    }

    #[test]
    fn late_rows_raise_it_step_by_step_and_time_lowers_it_again() {
        let mut controller = DepthController::new(1);
        let late = StepReport { late: 100, ..report(10, 2) };
        let depths = after(&mut controller, 300, late);
        assert!(depths.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == pair[0] + 1));
        assert_eq!(*depths.last().unwrap(), 2 + MARGIN_MAX);
        let depths = after(&mut controller, 2000, report(10, 2));
        assert!(depths.windows(2).all(|pair| pair[1] == pair[0] || pair[1] + 1 == pair[0]));
        assert_eq!(*depths.last().unwrap(), 2);
    }

    #[test]
    fn wasted_and_dropped_rows_lower_it_and_it_stays_lower_for_a_while() {
        for failing in [
            StepReport { wasted: 500, ..report(10, 50) },
            StepReport { dropped: 500, ..report(10, 50) },
        ] {
            let mut controller = DepthController::new(1);
            let before = *after(&mut controller, 50, report(10, 50)).last().unwrap();
            assert_eq!(before, DISK_BOUND_DEPTH);
            let below = controller.step(&failing);
            assert_eq!(below, before - 1);
            let depths = after(&mut controller, CAPPED_STEPS as usize - 1, report(10, 50));
            assert!(depths.iter().all(|&depth| depth == below), "{depths:?}");
            assert_eq!(*after(&mut controller, 50, report(10, 50)).last().unwrap(), before);
        }
    }

    #[test]
    fn queue_and_memory_bound_it() {
        for (capacity, memory_bytes) in [(3000, 1 << 20), (1 << 20, 9000)] {
            let bounded = StepReport { capacity, memory_bytes, ..report(10, 50) };
            assert_eq!(after(&mut DepthController::new(1), 300, bounded)[299], 3);
        }
        let none = StepReport { capacity: 0, ..report(10, 50) };
        assert_eq!(*after(&mut DepthController::new(1), 300, none).last().unwrap(), 1);
    }

    /// The reading of three batches comes at once, in every third step.
    fn by_threes(interval_ms: u32, reading_ms: u32, i: usize) -> StepReport {
        let none = StepReport {
            reading: Duration::ZERO,
            read: 0,
            appended_bytes: 100,
            ..report(interval_ms, 0)
        };
        let group =
            StepReport { read: 3000, appended_bytes: 2800, ..report(interval_ms, 3 * reading_ms) };
        if i.is_multiple_of(3) { group } else { none }
    }

    #[test]
    fn what_is_announced_together_and_read_at_once_is_no_fluctuation() {
        // The first of a group waits for its reading as a whole.
        for (reading_ms, expected) in [(1, 2), (5, 2), (7, 3), (9, 3), (10, DISK_BOUND_DEPTH)] {
            let mut controller = DepthController::new(3);
            let depths: Vec<_> =
                (0..400).map(|i| controller.step(&by_threes(10, reading_ms, i))).collect();
            let shown = format!("{reading_ms}: {depths:?}");
            assert!(depths.iter().all(|&depth| depth <= expected + 1), "{shown}");
            assert!(depths[200..].iter().all(|&depth| depth == expected), "{shown}");
        }
    }

    #[test]
    fn memory_has_room_for_what_is_beyond_the_depth_and_the_queue_for_a_group() {
        let settled = |bounds: StepReport| {
            let mut controller = DepthController::new(3);
            let StepReport { capacity, memory_bytes, .. } = bounds;
            let step = |i| StepReport { capacity, memory_bytes, ..by_threes(10, 50, i) };
            (0..400).map(|i| controller.step(&step(i))).last()
        };
        let bounds = report(10, 50);
        for (memory, depth) in [(2900, 1), (4500, 2), (7500, 5)] {
            assert_eq!(settled(StepReport { memory_bytes: 3 * memory, ..bounds }), Some(depth));
        }
        for (capacity, depth) in [(2300, 1), (3500, 3), (5500, 5)] {
            assert_eq!(settled(StepReport { capacity, ..bounds }), Some(depth));
        }
    }

    #[test]
    fn a_group_that_slips_to_the_next_step_is_hardly_a_fluctuation() {
        for (reading_ms, most) in [(4, 2), (6, 3)] {
            let mut controller = DepthController::new(3);
            let mut slipped = None;
            let mut depths = Vec::new();
            for i in 0..3000 {
                let mut step = slipped.take().unwrap_or_else(|| by_threes(10, reading_ms, i));
                // Every second group, in no pattern that fits the window.
                if i % 3 == 0 && (i / 3) * (i / 3 + 1) / 2 % 2 == 0 {
                    slipped = Some(step);
                    step = by_threes(10, reading_ms, 1);
                }
                depths.push(controller.step(&step));
            }
            assert!(depths[40..].iter().all(|&depth| (2..=most).contains(&depth)), "{depths:?}");
        }
    }

    #[test]
    fn what_is_too_deep_by_its_own_doing_is_seldom_tried_again() {
        // As in DLRM: rows written at a depth of 1, 2, and so on, five steps after it was chosen.
        let written = [5_800, 7_200, 11_900, 13_700, 14_000, 14_500, 15_000, 15_000];
        for (together, memory_bytes, best) in
            [(3, 91_000, 2), (3, 110_000, 2), (3, 130_000, 2), (1, 91_000, 3), (1, 60_000, 2)]
        {
            let mut controller = DepthController::new(together);
            let mut depths = vec![controller.depth(); 5];
            for _ in 0..4000 {
                let appended_bytes = written[depths[depths.len() - 5] - 1];
                let step = StepReport { appended_bytes, memory_bytes, ..report(10, 12) };
                depths.push(controller.step(&step));
            }
            let at_best = depths.iter().filter(|&&depth| depth == best).count();
            assert!(at_best > 2800, "{together}, {memory_bytes}: {at_best}, {:?}", &depths[..400]);
            assert!(depths[40..].iter().all(|&depth| depth + 1 >= best && depth <= best + 2));
        }
    }

    #[test]
    fn one_large_write_of_somebody_else_does_not_move_it() {
        let mut controller = DepthController::new(3);
        let bounds = StepReport { memory_bytes: 60_000, ..report(10, 50) };
        after(&mut controller, 100, bounds);
        let put = StepReport { appended_bytes: 1_000_000, ..bounds };
        let mut depths = after(&mut controller, 1, put);
        depths.extend(after(&mut controller, 100, bounds));
        assert!(depths.iter().all(|&depth| depth == DISK_BOUND_DEPTH), "{depths:?}");
    }

    #[test]
    fn an_incident_is_learnt_from_once() {
        let mut controller = DepthController::new(3);
        after(&mut controller, 50, report(10, 50));
        let wasted = [400, 1, 1, 300, 200, 0, 0, 100, 0].into_iter().chain([0; 80]);
        let wasted: Vec<usize> = wasted
            .map(|wasted| controller.step(&StepReport { wasted, ..report(10, 50) }))
            .collect();
        // One below where it was at the time.
        assert!(wasted.iter().all(|&depth| depth == DISK_BOUND_DEPTH - 1), "{wasted:?}");
    }

    #[test]
    fn until_what_was_announced_has_been_used_late_rows_tell_nothing_more() {
        let mut controller = DepthController::new(1);
        after(&mut controller, 100, report(10, 2));
        for _ in 0..20 {
            let late = StepReport { late: 500, ..report(10, 2) };
            let mut depths = after(&mut controller, 8, late);
            depths.extend(after(&mut controller, 492, report(10, 2)));
            assert!(depths.iter().all(|&depth| (2..=4).contains(&depth)), "{depths:?}");
            assert_eq!(depths.last(), Some(&2));
        }
    }

    #[test]
    fn long_steps_that_come_often_or_are_for_reading_are_no_pauses() {
        // Sixteen batches are drawn, and then trained on.
        let mut controller = DepthController::new(3);
        for i in 0..2000 {
            controller.step(&if i % 16 == 15 { report(160, 60) } else { report(1, 0) });
        }
        let per_step = 175.0 / 16.0 / 1e3;
        let interval = controller.interval_s.mean;
        assert!((0.2 * per_step..3.0 * per_step).contains(&interval), "{interval}");
        // Every hundredth batch has to be read, and is waited for.
        let mut controller = DepthController::new(1);
        let mut waited = 0;
        for i in 0..1000 {
            let late = StepReport { late: 500, ..report(28, 27) };
            let resident = StepReport { read: 0, ..report(1, 0) };
            controller.step(&if i % 100 == 99 { late } else { resident });
            waited = waited.max(controller.margin);
        }
        assert!(waited > 0, "late rows were seen");
    }

    #[test]
    fn what_leaves_memory_in_pauses_that_come_often_does_not_lower_it() {
        for together in [1, 3] {
            let mut controller = DepthController::new(together);
            let before = *after(&mut controller, 100, report(10, 8)).last().unwrap();
            for _ in 0..40 {
                controller.step(&StepReport { wasted: 4000, dropped: 4000, ..report(5000, 60) });
                let depths = after(&mut controller, 50, report(10, 8));
                assert!(depths.iter().all(|&depth| depth >= 2), "{depths:?}");
                assert_eq!(depths.last(), Some(&before));
            }
        }
    }

    #[test]
    fn one_long_reading_does_not_move_it() {
        let mut controller = DepthController::new(1);
        let bounds = StepReport { capacity: 200_000, ..report(10, 8) };
        let before = *after(&mut controller, 100, bounds).last().unwrap();
        let evaluation = StepReport {
            read: 1_000_000,
            wasted: 1000,
            capacity: 200_000,
            ..report(60_000, 40_000)
        };
        controller.step(&evaluation);
        let depths = after(&mut controller, 200, bounds);
        assert!(depths.iter().all(|&depth| depth == before), "{depths:?}");
    }

    #[test]
    fn what_a_pass_begins_with_is_late_at_any_depth() {
        let mut controller = DepthController::new(3);
        let before = *after(&mut controller, 100, report(10, 6)).last().unwrap();
        for pass in 0..50 {
            // With nothing between them, too.
            controller.begin_pass();
            let mut depths = after(&mut controller, pass % 3, report(5000, 60));
            depths.extend(after(&mut controller, 3, StepReport { late: 500, ..report(10, 6) }));
            depths.extend(after(&mut controller, 36, report(10, 6)));
            assert!(depths.iter().all(|&depth| depth == before), "{before}: {depths:?}");
            assert!(controller.interval_s.mean < 0.011, "how long it takes to begin is no pace");
        }
    }

    #[test]
    fn lumps_are_held_against_what_is_read_in_many_steps() {
        let settled = |together, step: &dyn Fn(usize) -> StepReport| {
            let mut controller = DepthController::new(together);
            let depths: Vec<_> = (0..3000).map(|i| controller.step(&step(i))).collect();
            assert!(depths[100..].iter().all(|depth| *depth == depths[2999]), "{depths:?}");
            depths[2999]
        };
        let every_second = |i: usize, wasted, late| match i % 2 {
            0 => StepReport { read: 2000, ..report(10, 12) },
            _ => StepReport { read: 0, wasted, late, ..report(10, 0) },
        };
        let expected = settled(1, &|i| every_second(i, 0, 0));
        assert!(expected > 1);
        assert_eq!(settled(1, &|i| every_second(i, 1, 0)), expected);
        assert_eq!(settled(1, &|i| every_second(i, 0, u64::from(i % 4 == 1))), expected);
        let expected = settled(3, &|_| report(10, 6));
        assert!(expected > 1);
        // One in a hundred.
        let lump = |i: usize| if i.is_multiple_of(15) { 150 } else { 0 };
        assert_eq!(settled(3, &|i| StepReport { wasted: lump(i), ..report(10, 6) }), expected);
        assert_eq!(settled(3, &|i| StepReport { late: lump(i), ..report(10, 6) }), expected);
    }

    #[test]
    fn a_late_or_wasted_row_is_held_against_what_is_read_in_the_steps_around_it() {
        let depths = |of: fn(&mut StepReport)| {
            let mut controller = DepthController::new(3);
            let step = |i| {
                let mut step = by_threes(10, 5, i);
                if i % 3 == 2 {
                    of(&mut step);
                }
                controller.step(&step)
            };
            (0..400).map(step).skip(200).collect::<Vec<_>>()
        };
        // Of 3,000.
        assert!(depths(|step| step.late = 50).iter().all(|&depth| depth == 2));
        assert!(depths(|step| step.wasted = 50).iter().all(|&depth| depth == 2));
        assert!(depths(|step| step.late = 70).iter().all(|&depth| depth > 2));
        assert!(depths(|step| step.wasted = 70).iter().all(|&depth| depth == 1));
    }

    #[test]
    fn one_slow_step_in_many_does_not_move_it() {
        let mut controller = DepthController::new(1);
        after(&mut controller, 100, report(10, 2));
        for _ in 0..20 {
            let depth = controller.step(&report(10, 9));
            assert!(depth <= 3, "{depth}");
            assert!(after(&mut controller, 30, report(10, 2)).iter().all(|&depth| depth <= 3));
        }
    }

    #[test]
    fn pauses_do_not_move_it_and_a_new_pace_does() {
        for together in [1, 3] {
            let mut controller = DepthController::new(together);
            let computing = report(10, 6);
            let before = *after(&mut controller, 100, computing).last().unwrap();
            for apart in [20, LONG_APART as usize].repeat(10) {
                let pause = StepReport { wasted: 500, appended_bytes: 1 << 20, ..report(5000, 60) };
                let mut depths = after(&mut controller, 1 + apart / 64, pause);
                depths.extend(after(&mut controller, apart, computing));
                assert!(depths.iter().all(|&depth| depth == before), "{before}: {depths:?}");
            }
            assert_eq!(
                *after(&mut controller, 50, report(10, 50)).last().unwrap(),
                DISK_BOUND_DEPTH
            );
            assert_eq!(*after(&mut controller, 300, report(1000, 50)).last().unwrap(), 2);
        }
    }

    #[test]
    fn the_same_reports_give_the_same_depths() {
        let reports: Vec<_> = (0..500_u32).map(|i| report(10 + i % 7, i * i % 23)).collect();
        let run = || {
            let mut controller = DepthController::new(1);
            reports.iter().map(|report| controller.step(report)).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
    }
}
