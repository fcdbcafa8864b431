//! The depth controller, fed with a bank's counters.

use std::time::{Duration, Instant};

use crate::bank::Bank;
use crate::lookahead::depth::{DepthController, StepReport};
use crate::stats::LookaheadStats;

/// Finds out how many batches to look ahead, from what reading and computing take. One for each loop that trains, on
/// one bank.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{AutoDepth, Bank, BankOptions, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("user", TableConfig::new(4))?;
/// let batches: Vec<Vec<u64>> = (0..100).map(|step| (step..step + 100).collect()).collect();
/// let mut auto = AutoDepth::new();
/// let mut announced = 1;
/// for step in 0..batches.len() {
///     let ahead = auto.step(&bank);
///     while announced <= (step + ahead).min(batches.len() - 1) {
///         table.lookahead(&batches[announced])?;
///         announced += 1;
///     }
///     let lease = table.get(&batches[step], &mut [0.0; 400])?;
///     lease.put(&[1.0; 400])?;
/// }
/// assert_eq!(bank.stats().lookahead.depth, 1); // all rows are in memory
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug)]
pub struct AutoDepth {
    controller: DepthController,
    last: Option<Seen>,
    /// No step of this pass has been seen.
    begins: bool,
}

/// What a step has seen.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Instant,
    lookahead: LookaheadStats,
    hits_disk: u64,
    log_tail: u64,
    promoted: u64,
    /// Rows that were read from disk when they were wanted, and may be counted as late yet: no more than are pending, and
    /// ever fewer of those of earlier intervals.
    unmatched: u64,
    cancelled_too_late: u64,
    /// Of those, the ones that may leave memory unused yet.
    unused: u64,
}

impl Seen {
    /// How many rows were late since `before`, of those that were read from disk when they were wanted. Not late in this
    /// sense is a row that an earlier batch has used in memory before the worker came to it. The worker comes to a late
    /// row after whoever read it, perhaps after a burst of some intervals.
    fn late_since(&mut self, before: &Self) -> u64 {
        let read = self.hits_disk.saturating_sub(before.hits_disk);
        let may_be = before.unmatched + read;
        let late = self.lookahead.late.saturating_sub(before.lookahead.late).min(may_be);
        let left = (may_be - late).min(read + before.unmatched / 2);
        self.unmatched = left.min(self.lookahead.pending);
        late
    }

    /// How many rows left memory unused since `before`, but for as many as were cancelled when they may have been moved:
    /// a pass that ends early is no fault of the depth.
    fn wasted_since(&mut self, before: &Self) -> u64 {
        let cancelled = self.cancelled_too_late.saturating_sub(before.cancelled_too_late);
        let wasted = self.lookahead.wasted.saturating_sub(before.lookahead.wasted);
        let unused = before.unused.saturating_add(cancelled);
        // No more than there are or may come; the others were used, or never moved.
        let pending = self.lookahead.pending.max(before.lookahead.pending);
        self.unused = unused.saturating_sub(wasted).min(self.waiting() + pending);
        wasted.saturating_sub(unused)
    }

    /// Rows in memory that have been moved or kept there, and not been used since.
    fn waiting(&self) -> u64 {
        self.promoted.saturating_sub(self.lookahead.on_time + self.lookahead.wasted)
    }
}

impl Default for AutoDepth {
    fn default() -> Self {
        Self::new()
    }
}

impl AutoDepth {
    /// One that knows nothing yet, for a loop that announces batches one by one.
    #[must_use]
    pub fn new() -> Self {
        Self::announcing_together(1)
    }

    /// For a loop that from a depth of 2 on announces so many batches with one call (0 counts as 1): so many less one
    /// more than the depth are ahead at most, and what is looked at is the mean over twice as many steps.
    #[must_use]
    pub fn announcing_together(batches: usize) -> Self {
        Self { controller: DepthController::new(batches.max(1)), last: None, begins: true }
    }

    /// What [`step`](Self::step) returned last; where it begins before the first.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.controller.depth()
    }

    /// To be called where a pass over the data begins: what happened since the last step counts as nothing, and rows that
    /// are late at first neither.
    pub fn begin_pass(&mut self) {
        self.begins = true;
        self.controller.begin_pass();
    }

    /// To be called once a step: how many batches beside the one in hand to have announced, at least 1. Looks at the
    /// counters of the bank; never waits. [`LookaheadStats::depth`] shows the last answer. Meant for the same bank at
    /// each step: with another one, what it has done less than the last one counts as nothing done.
    pub fn step(&mut self, bank: &Bank) -> usize {
        let bank = bank.context();
        let store = bank.store.stats();
        let stats = bank.lookahead.stats(&store);
        let mut now = Seen {
            at: Instant::now(),
            lookahead: stats,
            hits_disk: store.hits_disk,
            log_tail: store.log_tail,
            promoted: store.promoted,
            unmatched: 0,
            cancelled_too_late: bank.lookahead.cancelled_too_late(),
            unused: 0,
        };
        let Some(last) = self.last else {
            // The first has nothing to be held against. What others cancelled is no waste either.
            now.unused = now.cancelled_too_late.min(now.waiting() + stats.pending);
            self.last = Some(now);
            self.begins = false;
            bank.lookahead.note_depth(self.depth());
            return self.depth();
        };
        let before = last.lookahead;
        let report = StepReport {
            interval: now.at - last.at,
            reading: Duration::from_micros(stats.reading_us.saturating_sub(before.reading_us)),
            read: stats.moved.saturating_sub(before.moved),
            late: now.late_since(&last),
            wasted: now.wasted_since(&last),
            appended_bytes: store.log_tail.saturating_sub(last.log_tail),
            dropped: stats.dropped.saturating_sub(before.dropped),
            pending: stats.pending,
            capacity: stats.capacity,
            memory_bytes: store.memory_frames_bytes,
        };
        self.last = Some(now);
        let begins = std::mem::take(&mut self.begins);
        let depth = if begins { self.depth() } else { self.controller.step(&report) };
        bank.lookahead.note_depth(depth);
        depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BankOptions, TableConfig};

    #[test]
    fn late_are_rows_that_were_read_from_disk_when_they_were_wanted() {
        let seen = |late, hits_disk| Seen {
            at: Instant::now(),
            lookahead: LookaheadStats { late, pending: 100, ..LookaheadStats::default() },
            hits_disk,
            log_tail: 0,
            promoted: 0,
            unmatched: 0,
            cancelled_too_late: 0,
            unused: 0,
        };
        let mut last = seen(0, 0);
        let mut late = |late, hits_disk| {
            let mut now = seen(late, hits_disk);
            let count = now.late_since(&last);
            last = now;
            count
        };
        assert_eq!(late(10, 0), 0, "all of them used in memory");
        assert_eq!(late(10, 4), 0, "the worker has not come to them");
        assert_eq!(late(13, 4), 3, "now it has");
        assert_eq!(late(20, 9), 6, "and one in memory");
        assert_eq!(late(30, 9), 0);
        assert_eq!((late(30, 999), late(30, 999), late(30, 999)), (0, 0, 0));
        assert_eq!(
            late(90, 999),
            25,
            "what was read long ago is forgotten, and what was not pending"
        );
        assert_eq!(late(0, 0), 0, "of another bank");
    }

    #[test]
    fn what_was_cancelled_too_late_is_no_waste_of_the_depth() {
        let seen = |wasted, cancelled_too_late, promoted| Seen {
            at: Instant::now(),
            lookahead: LookaheadStats { wasted, ..LookaheadStats::default() },
            hits_disk: 0,
            log_tail: 0,
            promoted,
            unmatched: 0,
            cancelled_too_late,
            unused: 0,
        };
        let mut last = seen(0, 0, 0);
        let mut wasted = |wasted, cancelled_too_late, promoted| {
            let mut now = seen(wasted, cancelled_too_late, promoted);
            let count = now.wasted_since(&last);
            last = now;
            count
        };
        assert_eq!((wasted(5, 0, 30), wasted(5, 10, 30), wasted(9, 10, 30)), (5, 0, 0));
        assert_eq!((wasted(20, 11, 30), wasted(21, 11, 30)), (4, 1), "seven of them were left");
        assert_eq!((wasted(21, 5000, 30), wasted(40, 5000, 100)), (0, 10), "nine were there");
        assert_eq!(wasted(0, 0, 0), 0, "of another bank");
        // Fewer were moved than kept; what is in hand is counted as neither yet.
        let pending = |mut seen: Seen, pending| {
            seen.lookahead.pending = pending;
            seen.lookahead.on_time = 50;
            seen
        };
        let before = pending(seen(50, 0, 120), 30);
        let mut now = pending(seen(50, 1000, 120), 0);
        assert_eq!((now.wasted_since(&before), now.unused), (0, 50));
        let mut later = pending(seen(110, 1000, 160), 0);
        assert_eq!(later.wasted_since(&now), 10);
    }

    #[test]
    fn what_others_cancelled_before_is_no_waste() {
        let dir = tempfile::tempdir().unwrap();
        let bank = Bank::open(dir.path().join("bank"), BankOptions::default()).unwrap();
        let table = bank.table("user", TableConfig::new(4)).unwrap();
        table.put(&[1, 2, 3], &[1.0; 12]).unwrap();
        bank.checkpoint(b"").unwrap();
        table.lookahead(&[1, 2, 3]).unwrap();
        assert!(bank.wait_lookahead(Duration::from_secs(60)));
        bank.cancel_lookahead();
        let mut auto = AutoDepth::new();
        auto.step(&bank);
        assert_eq!(auto.last.unwrap().unused, 3);
    }

    #[test]
    fn nothing_is_learnt_from_the_time_before_a_pass() {
        let dir = tempfile::tempdir().unwrap();
        let bank = Bank::open(dir.path().join("bank"), BankOptions::default()).unwrap();
        let mut auto = AutoDepth::new();
        for _ in 0..1000 {
            assert_eq!(auto.step(&bank), 2);
            auto.begin_pass();
        }
        assert!((0..100_000).any(|_| auto.step(&bank) == 1), "it learns again");
    }

    #[test]
    fn a_bank_that_has_done_less_is_no_panic() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let options = BankOptions { lookahead_queue_keys: Some(0), ..BankOptions::default() };
            Bank::open(dir.path().join(name), options).unwrap()
        };
        let busy = open("busy");
        let idle = open("idle");
        let table = busy.table("user", TableConfig::new(4)).unwrap();
        table.put(&[1, 2, 3], &[1.0; 12]).unwrap();
        // Its rows are next in line for the disk from here, and the queue takes none.
        busy.checkpoint(b"").unwrap();
        table.lookahead(&[1, 2, 3]).unwrap();
        assert_eq!(busy.stats().lookahead.dropped, 3);
        let mut auto = AutoDepth::new();
        assert_eq!((auto.step(&busy), auto.depth()), (2, 2), "it has seen nothing yet");
        assert_eq!(busy.stats().lookahead.depth, 2);
        assert!(auto.step(&idle) >= 1);
        assert!(auto.step(&busy) >= 1);
    }
}
