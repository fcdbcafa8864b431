//! How far the log's length exceeds the size that its current rows need.
//!
//! That size is their *footprint* times the *packing*. The footprint is the size of the pages that
//! the rows of each table would fill by themselves. The packing is the size of the pages that the
//! rows really need, divided by the footprint. Compaction measures it in each turn through the log.
//! It exceeds 1 because long and short rows in one page may leave gaps. Without the packing, a log
//! without dead records could be longer than the target, and copying it would gain nothing.
//!
//! Compaction begins at 1.4 times that size (the target). If the log is longer than
//! `bytes_before_waiting`, which is a little above the target, a writer waits at its next page
//! turn. It waits until compaction has passed some pages: the longer the log, the more pages
//! ([`Pressure::pages_to_await`]). So the log stays near its target at any rate of writing. The
//! number of pages has a limit. So no writer waits until compaction has passed all pages that a
//! checkpoint has settled.
//!
//! Kept checkpoints also hold log below `begin`. That log takes disk space, but it does not count
//! in the log's length. Compaction cannot reduce it: until the next checkpoint, every copy makes
//! the log longer, and a checkpoint still holds the space of the old record.
//!
//! A bank in two tiers has no target for its whole space. Its log has a limit, and the bytes and
//! the number of its runs have one ([`Debt`]). Spills and merges keep the limits. Writers that are
//! too far ahead wait often, each time for a few units of 1 MiB of work, so each wait takes a few
//! hundredths of a second.

use std::time::Duration;

use crate::engine::tables::Live;

/// Number of pages by which the log may exceed its target. This allows for pages that are being
/// filled, written or compacted.
const SLACK_PAGES: u64 = 2;
/// Writers wait if the log exceeds this multiple of its target by more than `2 * SLACK_PAGES`
/// pages.
const BEHIND: f64 = 1.03;
/// Compaction can make the log shorter if the log exceeds this multiple of the size that its rows
/// need by more than `SLACK_PAGES` pages.
const DEAD: f64 = 1.05;
/// A writer waits for one more compacted page for each hundredth by which the log exceeds the
/// length up to which no writer waits (`bytes_before_waiting`).
const PAGES_PER_EXCESS: f64 = 100.0;
/// Smallest and largest number of compacted pages that a writer waits for. With two pages, a log
/// with evenly spread rewrites keeps its length.
const AWAITED_PAGES: (f64, f64) = (2.0, 16.0);

/// The length of a log, and the lengths that decide about compaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pressure {
    /// Bytes from the log's beginning to its tail.
    pub(super) log_bytes: u64,
    /// Bytes of the pages that the current rows need: the footprint times the packing.
    pub(super) needed_bytes: f64,
    /// Length in bytes above which compaction begins.
    pub(super) target_bytes: f64,
    pub(super) page_bytes: u64,
}

impl Pressure {
    /// True if background compaction should work, because the log exceeds its target.
    pub(super) fn exceeds_target(&self) -> bool {
        self.exceeds(self.target_bytes)
    }

    /// True if compaction can make the log shorter.
    pub(super) fn has_dead_space(&self) -> bool {
        self.exceeds(self.needed_bytes * DEAD)
    }

    /// True if the log is longer than any log for which no writer waits.
    pub(super) fn is_behind(&self) -> bool {
        self.log_bytes as f64 > self.bytes_before_waiting()
    }

    /// Returns how many pages compaction must pass before a waiting writer may take another page.
    pub(super) fn pages_to_await(&self) -> u64 {
        let length = self.log_bytes as f64 / self.bytes_before_waiting();
        let (least, most) = AWAITED_PAGES;
        (least + (length - 1.0) * PAGES_PER_EXCESS).clamp(least, most) as u64
    }

    fn exceeds(&self, bytes: f64) -> bool {
        self.log_bytes as f64 > bytes + (SLACK_PAGES * self.page_bytes) as f64
    }

    /// Returns the largest length in bytes of a log for which no writer waits.
    fn bytes_before_waiting(&self) -> f64 {
        self.target_bytes * BEHIND + (2 * SLACK_PAGES * self.page_bytes) as f64
    }
}

/// The log of a bank in two tiers may be at most this multiple of its frames and its read cache.
const LOG_SHARE: f64 = 1.25;
/// The base counts as at least this number of sort buffers. So a young bank does not merge after
/// each spill.
const BASE_BUFFERS_MIN: u64 = 16;
/// Share of its time in which the compactor works while the debt is small. Batches have the drive
/// to themselves for the rest.
const DRIVE_SHARE: f64 = 0.5;
/// The compactor does not rest at this debt and above.
const DEBT_WITHOUT_REST: f64 = 1.25;
/// A writer waits for units of work at this debt and above.
const DEBT_OF_WAITS: f64 = 1.5;
/// A writer waits for one more unit for each increase of the debt by one divided by this number.
const UNITS_PER_DEBT: f64 = 16.0;
/// Most units that a writer waits for. Merges write about five bytes for each byte of the log; with
/// four waits for each unit that the log grows, this number suffices for sixteen. A batch of rows
/// of a KiB or more waits less often (`Batch::run`), so its debt may grow further.
const AWAITED_UNITS_MAX: f64 = 4.0;

/// What a bank in two tiers has in its log and in its runs, and the limits of both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Debt {
    /// Bytes from the log's beginning to its tail.
    pub(crate) log_bytes: u64,
    pub(crate) log_limit_bytes: u64,
    /// Bytes of the runs that are not merged into the base.
    pub(crate) run_bytes: u64,
    pub(crate) run_limit_bytes: u64,
    /// The number of runs, and the number above which base merges are due. A search passes all
    /// runs.
    pub(crate) runs: usize,
    pub(crate) runs_max: usize,
}

impl Debt {
    /// True if a spill is due, because the log is longer than its limit.
    pub(super) fn exceeds_log(&self) -> bool {
        self.log_bytes > self.log_limit_bytes
    }

    /// True if merges into the base are due, because the runs exceed their limit.
    pub(super) fn exceeds_runs(&self) -> bool {
        self.run_bytes > self.run_limit_bytes
    }

    /// True if the runs are long enough to merge them into the base for the space of their
    /// superseded rows alone. Merging a shorter run would rewrite the base for little.
    pub(super) fn has_space_in_runs(&self) -> bool {
        const LEAST: u64 = 8;
        self.run_bytes > self.run_limit_bytes / LEAST
    }

    /// True if writers should wait for units of work.
    pub(super) fn makes_writers_wait(&self) -> bool {
        self.ratio() >= DEBT_OF_WAITS
    }

    /// Returns how many units of work a waiting writer waits for.
    pub(super) fn units_to_await(&self) -> u64 {
        let beyond = (self.ratio() - DEBT_OF_WAITS).max(0.0);
        (1.0 + beyond * UNITS_PER_DEBT).min(AWAITED_UNITS_MAX) as u64
    }

    /// Returns how long the compactor rests after it has worked for `worked`.
    pub(super) fn rest_after(&self, worked: Duration) -> Duration {
        if self.ratio() < DEBT_WITHOUT_REST {
            worked.mul_f64(1.0 / DRIVE_SHARE - 1.0)
        } else {
            Duration::ZERO
        }
    }

    /// Returns the largest of the three ratios of size and limit.
    fn ratio(&self) -> f64 {
        let of = |size: u64, limit: u64| size as f64 / limit.max(1) as f64;
        let runs = of(self.runs as u64, self.runs_max as u64);
        let log = of(self.log_bytes, self.log_limit_bytes);
        of(self.run_bytes, self.run_limit_bytes).max(runs).max(log)
    }
}

/// Returns the largest length in bytes of the log of a bank in two tiers: `spill_bytes` if it
/// spills from memory. Otherwise it follows from `memory_bytes`, the size of frames and read cache.
/// A longer log would save no reads: its older rows are not in memory either. A bank that gets its
/// second tier has a longer log, whose shortest length since then is `shortest_bytes`. Its limit
/// shrinks with the log, so its writers do not wait.
pub(super) fn log_limit_bytes(
    spill_bytes: Option<u64>,
    memory_bytes: u64,
    shortest_bytes: u64,
) -> u64 {
    let limit_bytes = spill_bytes.unwrap_or((memory_bytes as f64 * LOG_SHARE) as u64);
    limit_bytes.max(shortest_bytes)
}

/// A log may be this multiple of the bytes of its rows with outstanding Gets.
const LOG_OF_HELD: u64 = 2;
/// After a step that held many rows, the log's limit is this many eighths of its length. So spills
/// go on, and no writer waits for them.
const LIMIT_EIGHTHS: u64 = 7;

/// How long the log may be because its rows have outstanding Gets (are *held*).
///
/// A spill copies held rows to the tail. A training step may get more rows than the log should
/// have. Spills would then copy the same rows again and again, and the log would not become shorter
/// until the step ends. So the log may be twice as long as what spills have copied in one lap: one
/// passage through the log.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Held {
    /// The address at which the present lap ends.
    lap_end: u64,
    /// Bytes that spills have copied in the present lap, and in the lap before.
    copied: u64,
    copied_before: u64,
    /// The length in bytes that the log may have. It shrinks with the log.
    limit_bytes: u64,
}

impl Held {
    /// Notes a spill that began at the address `start` and copied `copied_bytes` bytes to the tail.
    /// The log then reaches from `begin` to `tail`.
    pub(super) fn note(&mut self, start: u64, copied_bytes: u64, begin: u64, tail: u64) {
        if start >= self.lap_end {
            self.copied_before = std::mem::take(&mut self.copied);
            self.lap_end = tail;
        }
        self.copied += copied_bytes;
        let shrunk = self.limit_bytes.min((tail - begin) / 8 * LIMIT_EIGHTHS);
        self.limit_bytes = shrunk.max(LOG_OF_HELD * self.copied.max(self.copied_before));
    }

    /// True if spills may shorten a log of `log_bytes` bytes. False if they have just copied nearly
    /// all of it to its tail.
    pub(super) fn lets_shrink(&self, log_bytes: u64) -> bool {
        self.copied.max(self.copied_before) < log_bytes / 8 * LIMIT_EIGHTHS
    }

    /// Begins a lap at `tail`. Until it has copied them, no rows count as held.
    pub(super) fn begin_lap(&mut self, tail: u64) {
        (self.copied, self.copied_before, self.lap_end) = (0, 0, tail);
    }

    /// Returns the largest length in bytes of a log that may otherwise have `limit_bytes`.
    pub(super) fn log_limit_bytes(&self, limit_bytes: u64) -> u64 {
        limit_bytes.max(self.limit_bytes)
    }
}

/// Returns the largest size in bytes of runs that are not merged into a base of `base_bytes` bytes.
/// `share` is their largest size as a fraction of the base's.
pub(super) fn run_limit_bytes(base_bytes: u64, sort_buffer_bytes: u64, share: f64) -> u64 {
    (base_bytes.max(BASE_BUFFERS_MIN * sort_buffer_bytes) as f64 * share) as u64
}

/// Bytes of records, and bytes of the pages that held them.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Fill {
    /// Bytes of all records, also of superseded ones.
    pub(super) records: u64,
    pub(super) pages: u64,
}

/// The packing, and the counts of the present turn. A turn is one passage of compaction through
/// the whole log.
#[derive(Debug, Default)]
pub(super) struct Packing {
    /// The number of pages that the rows need, divided by the number of pages that they would fill
    /// without gaps. 0 before compaction has measured it.
    ratio: f64,
    /// The address at which the present turn ends.
    turn_end: u64,
    /// The pages that compaction has read in the present turn.
    turn: Fill,
}

impl Packing {
    /// Returns the bytes of the pages that the current rows need.
    pub(super) fn needed_bytes(&self, live: &Live) -> f64 {
        live.footprint as f64 * self.ratio.max(1.0)
    }

    /// Adds a page that ends at `end` to the counts of the present turn. At the end of a turn,
    /// computes the packing from these counts. The next turn then ends at `log_end`.
    pub(super) fn note(&mut self, page: Fill, end: u64, log_end: u64, live: impl FnOnce() -> Live) {
        self.turn.records += page.records;
        self.turn.pages += page.pages;
        if end < self.turn_end {
            return;
        }
        let live = live();
        if self.turn_end > 0 && self.turn.records > 0 && live.bytes > 0 {
            let needed = live.bytes as f64 * self.turn.pages as f64 / self.turn.records as f64;
            self.ratio = needed / live.footprint as f64;
        }
        self.turn_end = log_end;
        self.turn = Fill::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_BYTES: u64 = 100;

    fn pressure(log_bytes: u64) -> Pressure {
        Pressure {
            log_bytes,
            needed_bytes: 10_000.0,
            target_bytes: 14_000.0,
            page_bytes: PAGE_BYTES,
        }
    }

    #[test]
    fn a_longer_log_first_has_dead_space_then_compaction_and_then_waiting_writers() {
        let of = |bytes| {
            let pressure = pressure(bytes);
            [pressure.has_dead_space(), pressure.exceeds_target(), pressure.is_behind()]
        };
        assert_eq!(of(10_700), [false, false, false]);
        assert_eq!(of(10_701), [true, false, false]);
        assert_eq!(of(14_200), [true, false, false]);
        assert_eq!(of(14_201), [true, true, false]);
        assert_eq!(of(14_820), [true, true, false]);
        assert_eq!(of(14_821), [true, true, true]);
    }

    #[test]
    fn writers_wait_the_longer_the_further_they_are_ahead() {
        let of = |length: f64| pressure((length * 14_820.0) as u64).pages_to_await();
        assert_eq!([1.0, 1.011, 1.0551, 1.1001, 2.0].map(of), [2, 3, 7, 12, 16]);
    }

    fn debt() -> Debt {
        Debt {
            log_bytes: 0,
            log_limit_bytes: 1000,
            run_bytes: 0,
            run_limit_bytes: 400,
            runs: 0,
            runs_max: 40,
        }
    }

    #[test]
    fn a_growing_debt_first_ends_the_rest_and_then_makes_writers_wait() {
        let with_runs = |log_bytes, run_bytes, runs| {
            let debt = Debt { log_bytes, run_bytes, runs, ..debt() };
            let rest = debt.rest_after(Duration::from_millis(10)).as_millis();
            [u128::from(debt.exceeds_log()), u128::from(debt.exceeds_runs()), rest]
                .map(|value| value as u64)
                .into_iter()
                .chain([u64::from(debt.makes_writers_wait())])
                .collect::<Vec<_>>()
        };
        let of = |log_bytes, run_bytes| with_runs(log_bytes, run_bytes, 0);
        assert_eq!(with_runs(0, 0, 49), [0, 0, 10, 0]);
        assert_eq!(with_runs(0, 0, 50), [0, 0, 0, 0]);
        assert_eq!(with_runs(0, 0, 60), [0, 0, 0, 1]);
        assert_eq!(of(1000, 400), [0, 0, 10, 0]);
        assert_eq!(of(1001, 0), [1, 0, 10, 0]);
        assert_eq!(of(0, 401), [0, 1, 10, 0]);
        assert_eq!(of(1249, 499), [1, 1, 10, 0]);
        assert_eq!(of(1250, 0), [1, 0, 0, 0]);
        assert_eq!(of(0, 599), [0, 1, 0, 0]);
        assert_eq!(of(0, 600), [0, 1, 0, 1]);
        assert_eq!(of(1500, 0), [1, 0, 0, 1]);
    }

    #[test]
    fn writers_wait_for_more_units_as_the_debt_grows() {
        let of = |log_bytes| Debt { log_bytes, ..debt() }.units_to_await();
        assert_eq!([1000, 1500, 1562, 1563, 1626, 1688, 3000].map(of), [1, 1, 1, 2, 3, 4, 4]);
    }

    #[test]
    fn limits_of_log_and_runs() {
        assert_eq!(log_limit_bytes(None, 800, 0), 1000);
        assert_eq!(log_limit_bytes(None, 800, 5000), 5000, "a log of before");
        assert_eq!(log_limit_bytes(Some(700), 800, 0), 700);
        assert_eq!(log_limit_bytes(Some(700), 800, 5000), 5000, "a log of before");
        assert_eq!(run_limit_bytes(0, 100, 0.4), 640);
        assert_eq!(run_limit_bytes(1600, 100, 0.4), 640);
        assert_eq!(run_limit_bytes(10_000, 100, 0.4), 4000);
        assert_eq!(run_limit_bytes(10_000, 100, 0.05), 500);
    }

    #[test]
    fn a_log_whose_rows_are_held_may_grow_and_shrinks_after_them() {
        let mut held = Held::default();
        let mut limit_after = |start, copied, begin, tail| {
            held.note(start, copied, begin, tail);
            held.log_limit_bytes(1000)
        };
        assert_eq!(limit_after(0, 100, 100, 1100), 1000, "the first lap");
        assert_eq!(limit_after(1100, 400, 1500, 3000), 1000);
        assert_eq!(limit_after(1500, 400, 1900, 3400), 1600);
        assert_eq!(limit_after(1900, 400, 2300, 3800), 2400);
        assert_eq!(limit_after(2300, 0, 3000, 5400), 2400, "the rows are held in this lap");
        assert_eq!(limit_after(3000, 0, 3400, 5400), 2400, "they were held in the lap before");
        assert_eq!(limit_after(3400, 0, 3800, 5400), 2400);
        assert_eq!(limit_after(5400, 0, 5800, 7400), 1400, "the limit shrinks with the log");
        assert_eq!(limit_after(5800, 0, 6200, 7400), 1050);
        assert_eq!(limit_after(6200, 0, 6600, 7400), 1000);
    }

    #[test]
    fn a_log_whose_rows_are_held_cannot_shrink() {
        let mut held = Held::default();
        assert!(held.lets_shrink(1000));
        held.note(0, 800, 800, 1800);
        assert!(held.lets_shrink(1000), "a fifth of the log may go");
        held.note(800, 100, 900, 1900);
        assert!(!held.lets_shrink(1000));
        held.note(1800, 0, 1900, 1900);
        assert!(!held.lets_shrink(1000), "the rows were held in the lap before");
        held.note(1900, 0, 1950, 1950);
        assert!(held.lets_shrink(1000));
        held.note(1950, 900, 2900, 3900);
        assert!(!held.lets_shrink(1000));
        held.begin_lap(3900);
        assert!(held.lets_shrink(1000));
    }

    /// Rows whose Gets never end lie together, and other rows are written beside them.
    #[test]
    fn few_held_rows_do_not_make_the_log_long() {
        let (unit, held_bytes, limit) = (100, 3000, 1000);
        let mut held = Held::default();
        // True for each unit of the log whose rows are held.
        let mut log: std::collections::VecDeque<bool> = vec![true; 30].into();
        let (mut begin, mut longest) = (0, 0);
        for _ in 0..5000 {
            log.push_back(false);
            let length = |log: &std::collections::VecDeque<bool>| log.len() as u64 * unit;
            while length(&log) > held.log_limit_bytes(limit) {
                let first = log.pop_front().unwrap();
                log.extend(first.then_some(true));
                let copied = if first { unit } else { 0 };
                let start = begin;
                begin += unit;
                held.note(start, copied, begin, begin + length(&log));
            }
            longest = longest.max(length(&log));
        }
        assert!((held_bytes..3 * held_bytes).contains(&longest), "{longest}");
    }

    #[test]
    fn a_turn_through_the_log_measures_the_packing() {
        let live = || Live { rows: 100, bytes: 8_000, footprint: 8_000 };
        let mut packing = Packing::default();
        let mut need_after = |records, end, log_end| {
            packing.note(Fill { records, pages: PAGE_BYTES }, end, log_end, live);
            packing.needed_bytes(&live()) as u64
        };
        assert_eq!(need_after(80, 100, 300), 8_000, "the first page begins a turn");
        assert_eq!(need_after(80, 200, 400), 8_000, "the turn has not ended");
        assert_eq!(need_after(80, 300, 500), 10_000);
        assert_eq!(need_after(50, 400, 600), 10_000, "the turn has not ended");
        assert_eq!(need_after(50, 500, 700), 16_000);
        assert_eq!(need_after(100, 700, 900), 8_000);
    }
}
