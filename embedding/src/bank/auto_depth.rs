//! Chooses the lookahead depth from a bank's counters.

use crate::bank::Bank;
use crate::lookahead::depth::{DepthRule, StepReport};
use crate::stats::LookaheadStats;

/// Chooses the number of batches to look ahead (the depth). The depth is 4. It is less if the rows
/// of 4 batches do not fit the queue, or do not fit a third of the row memory.
///
/// The depth is halved while more than 2% of the rows read were wasted: they left memory unused, or
/// the queue was full. Use one `AutoDepth` per training loop, and only with one bank.
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
/// assert_eq!(bank.stats().lookahead.depth, 4);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug)]
pub struct AutoDepth {
    rule: DepthRule,
    last: Option<Seen>,
    /// True between the beginning of a pass over the data and the first step of the pass.
    begins: bool,
}

/// The bank's counters at a step.
#[derive(Debug, Clone, Copy)]
struct Seen {
    lookahead: LookaheadStats,
    log_tail: u64,
    promoted: u64,
    cancelled_too_late: u64,
    /// Number of rows that were cancelled after the worker may have taken them, and that may still
    /// leave memory unused.
    unused: u64,
}

impl Seen {
    /// Returns the number of rows that left memory unused since `before`. Leaves out rows that were
    /// cancelled after the worker may have taken them. If a pass ends early, such rows leave memory
    /// unused although the depth was right.
    fn wasted_since(&mut self, before: &Self) -> u64 {
        let cancelled = self.cancelled_too_late.saturating_sub(before.cancelled_too_late);
        let wasted = self.lookahead.wasted.saturating_sub(before.lookahead.wasted);
        let unused = before.unused.saturating_add(cancelled);
        // `unused` is at most the number of rows that are in memory unused or may still arrive. All
        // other cancelled rows were used, or were never moved.
        let pending = self.lookahead.pending.max(before.lookahead.pending);
        self.unused = unused.saturating_sub(wasted).min(self.waiting() + pending);
        wasted.saturating_sub(unused)
    }

    /// Returns the changes of the counters since `before`.
    fn report_since(&mut self, before: &Self, memory_bytes: u64) -> StepReport {
        let wasted = self.wasted_since(before);
        let then = before.lookahead;
        let now = self.lookahead;
        StepReport {
            read: now.moved.saturating_sub(then.moved) + now.late.saturating_sub(then.late),
            wasted,
            dropped: now.dropped.saturating_sub(then.dropped),
            appended_bytes: self.log_tail.saturating_sub(before.log_tail),
            capacity: now.capacity,
            memory_bytes,
        }
    }

    /// Number of rows that were brought into memory or kept there, and that no operation has used
    /// since.
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
    /// Makes an `AutoDepth` for a loop that announces its batches one by one.
    #[must_use]
    pub fn new() -> Self {
        Self::announcing_together(1)
    }

    /// Makes an `AutoDepth` for a loop that announces `batches` batches with one call if the depth
    /// is 2 or more. 0 counts as 1. Up to `batches - 1` batches more than the depth are then ahead,
    /// and queue and memory must have room for them too.
    #[must_use]
    pub fn announcing_together(batches: usize) -> Self {
        Self { rule: DepthRule::new(batches.max(1)), last: None, begins: true }
    }

    /// Returns the last result of [`step`](Self::step); 4 before the first step.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.rule.depth()
    }

    /// Must be called when a pass over the data begins. The next [`step`](Self::step) then ignores
    /// the bank's work since the call of `step` before it.
    pub fn begin_pass(&mut self) {
        self.begins = true;
    }

    /// Returns the number of batches that should be announced in addition to the current one, at
    /// least 1. Must be called once per step.
    ///
    /// Reads the bank's counters and never waits. [`LookaheadStats::depth`] shows the last result.
    /// Use the same bank at each step. If a counter has fallen since the last step, it counts as
    /// unchanged.
    pub fn step(&mut self, bank: &Bank) -> usize {
        let bank = bank.context();
        let store = bank.store.stats();
        let stats = bank.lookahead.stats(&store);
        let mut now = Seen {
            lookahead: stats,
            log_tail: store.log_tail,
            promoted: store.promoted,
            cancelled_too_late: bank.lookahead.cancelled_too_late(),
            unused: 0,
        };
        let begins = std::mem::take(&mut self.begins);
        let depth = match self.last {
            Some(last) => {
                let report = now.report_since(&last, store.memory_frames_bytes);
                if begins { self.depth() } else { self.rule.step(&report) }
            }
            None => {
                // Rows that other loops cancelled before this loop's first step do not count as its
                // waste.
                now.unused = now.cancelled_too_late.min(now.waiting() + stats.pending);
                self.depth()
            }
        };
        self.last = Some(now);
        bank.lookahead.note_depth(depth);
        depth
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{BankOptions, TableConfig};

    #[test]
    fn what_was_cancelled_too_late_is_no_waste_of_the_depth() {
        let seen = |wasted, cancelled_too_late, promoted| Seen {
            lookahead: LookaheadStats { wasted, ..LookaheadStats::default() },
            log_tail: 0,
            promoted,
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
        // 1,000 rows are cancelled, but only 20 rows are in memory unused and 30 were pending. So
        // at most 50 of them can still leave memory unused.
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
    fn what_happens_before_a_pass_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let options = BankOptions { lookahead_queue_keys: Some(0), ..BankOptions::default() };
        let bank = Bank::open(dir.path().join("bank"), options).unwrap();
        let table = bank.table("user", TableConfig::new(4)).unwrap();
        table.put(&[1, 2, 3], &[1.0; 12]).unwrap();
        bank.checkpoint(b"").unwrap();
        let mut auto = AutoDepth::new();
        auto.step(&bank);
        for _ in 0..100 {
            // The queue drops all keys. Within a pass, dropped keys would count as waste.
            table.lookahead(&[1, 2, 3]).unwrap();
            auto.begin_pass();
            assert_eq!(auto.step(&bank), 4);
        }
        // A queue with capacity 0 has room for no batch.
        table.lookahead(&[1, 2, 3]).unwrap();
        assert_eq!(auto.step(&bank), 1);
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
        // After the checkpoint, the table's rows are the next to leave memory, so lookahead tries
        // to queue them. The queue has room for 0 keys and drops them.
        busy.checkpoint(b"").unwrap();
        table.lookahead(&[1, 2, 3]).unwrap();
        assert_eq!(busy.stats().lookahead.dropped, 3);
        let mut auto = AutoDepth::new();
        assert_eq!((auto.step(&busy), auto.depth()), (4, 4), "it has seen nothing yet");
        assert_eq!(busy.stats().lookahead.depth, 4);
        assert!(auto.step(&idle) >= 1);
        assert!(auto.step(&busy) >= 1);
    }
}
