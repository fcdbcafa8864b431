//! The formulas of a bank in two tiers, in which rows at rest have no index entry.
//!
//! The log is as long as the memory for rows, and only its rows are in the index. All other rows
//! lie in sorted files, the cold tier, which has a *base* and newer *runs*. Rows go there from
//! memory, so only checkpoints write pages of the log. Memory has a fence for each block and, of
//! the runs, a filter for each row. The bytes that merges write follow from a simulation of the
//! merges' rule; the test `a_measured_bank_is_within_the_stated_error` has a measurement.
//! docs/cold-tier.md describes both.

use super::estimate::{INDEX_BYTES_PER_ROW, Load, RECORD_HEADER_BYTES};

/// A bank has two tiers if its index would take more than this part of the budget.
const INDEX_PART: f64 = 0.25;
/// A bank with a smaller budget in bytes stays in one tier.
const BUDGET_BYTES_MIN: f64 = 1_048_576.0;
/// The part of a budget that holds rows, the index of the log, fences and filters. The rest is that
/// of a bank in one tier, and the sort buffer (1/32).
const ROOM_PART: f64 = 0.82;
/// Fences and filters take at most this part of a budget.
const COLD_PART_MAX: f64 = 0.5;
/// The share of the base that runs may have at most, and at least if memory is short.
const RUN_SHARE: (f64, f64) = (0.05, 0.4);
/// Memory is planned for this multiple of the runs' largest size.
const RUN_EXCESS: f64 = 1.25;
/// Bytes of a row in a part beside its value.
const ROW_HEADER_BYTES: f64 = 16.0;
/// Bytes of memory for each block: a fence of 2 bytes, and a hash for each 64 fences.
const FENCE_BYTES: f64 = 2.125;
/// Bytes of memory for the filter of each row of a run.
const FILTER_BYTES: f64 = 1.3;
/// Length of the shortest blocks in bytes.
const BLOCK_BYTES: f64 = 4096.0;
/// Rows of a block of 8 KiB or more, which longer rows have.
const ROWS_PER_BLOCK_MIN: f64 = 7.0;
/// The bytes of parts over those of their rows: headers, checksums, and the ends of blocks.
const PART_BYTES: f64 = 1.09;
/// Bytes that spills and merges write, over those of the simulation. Measured: 1.13 to 1.19.
const MERGE_WRITES: f64 = 1.25;
/// Reads of the drive for a row of the cold tier, with those of filters that are wrong.
pub(super) const READS_PER_ROW: f64 = 1.03;

/// A bank in two tiers.
#[derive(Debug, Clone, Copy)]
pub(super) struct TwoTiers {
    pub(super) budget_bytes: f64,
    /// The part of the rows that is in memory, from 0 to 1.
    pub(super) part: f64,
    /// Bytes of fences and filters.
    pub(super) cold_memory_bytes: f64,
    /// Rows of the log, which have index entries.
    pub(super) log_rows: f64,
    /// The share of the base that runs have.
    run_share: f64,
    rows: f64,
    value_bytes: f64,
}

/// True if a bank with this budget has two tiers.
pub(super) fn has_two(load: &Load, budget_bytes: f64) -> bool {
    let index_bytes = load.rows as f64 * INDEX_BYTES_PER_ROW;
    budget_bytes >= BUDGET_BYTES_MIN && index_bytes > budget_bytes * INDEX_PART
}

impl TwoTiers {
    /// Returns the bank with this budget.
    pub(super) fn with_budget(load: &Load, budget_bytes: f64) -> Self {
        let rows = load.rows.max(1) as f64;
        let record_bytes = load.rows_bytes as f64 / rows;
        let value_bytes = (record_bytes - RECORD_HEADER_BYTES as f64).max(1.0);
        let row_bytes = value_bytes + ROW_HEADER_BYTES;
        let rows_per_block = (BLOCK_BYTES / row_bytes).max(ROWS_PER_BLOCK_MIN);
        let fences = FENCE_BYTES / rows_per_block;
        // Runs of a share `u` of the base take `fences * (1 + u) + FILTER_BYTES * u` bytes a row.
        let most = (budget_bytes * COLD_PART_MAX / rows - fences) / RUN_EXCESS;
        let run_share = (most / (fences + FILTER_BYTES)).clamp(RUN_SHARE.0, RUN_SHARE.1);
        let needed = rows * (fences * (1.0 + run_share) + FILTER_BYTES * run_share);
        let cold_memory_bytes = needed.min(budget_bytes * COLD_PART_MAX);
        let index = 1.0 + INDEX_BYTES_PER_ROW / record_bytes;
        let frames = ((budget_bytes * ROOM_PART - cold_memory_bytes) / index).max(0.0);
        let part = (frames / (rows * record_bytes)).min(1.0);
        let log_rows = part * rows;
        TwoTiers { budget_bytes, part, cold_memory_bytes, log_rows, run_share, rows, value_bytes }
    }

    /// Returns the bank with the smallest budget that holds this part of the rows in memory.
    pub(super) fn with_part(load: &Load, part: f64) -> Self {
        let (mut low, mut high) = (BUDGET_BYTES_MIN, BUDGET_BYTES_MIN);
        // The loop ends: a budget of twice the rows holds each part.
        while Self::with_budget(load, high).part < part {
            high *= 2.0;
        }
        for _ in 0..50 {
            let middle = (low + high) / 2.0;
            if Self::with_budget(load, middle).part < part { low = middle } else { high = middle }
        }
        Self::with_budget(load, high)
    }

    fn row_bytes(&self) -> f64 {
        self.value_bytes + ROW_HEADER_BYTES
    }

    /// Bytes of the log and of the parts on disk.
    pub(super) fn disk_bytes(&self) -> f64 {
        let parts = PART_BYTES * self.rows * self.row_bytes() * (1.0 + self.run_share);
        parts + self.log_rows * (self.value_bytes + RECORD_HEADER_BYTES as f64)
    }

    /// Bytes that spills and merges write for each update. The updates are spread evenly.
    pub(super) fn merged_bytes_per_update(&self) -> f64 {
        let not_in_log = (1.0 - self.log_rows / self.rows).max(0.0);
        let ratio = self.rows * self.row_bytes() / self.budget_bytes;
        let levels = (64.0 * self.run_share * ratio).max(1.0).log(16.0);
        let rewrites = 0.35 + levels + 0.47 / self.run_share;
        MERGE_WRITES * not_in_log * self.row_bytes() * rewrites
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rows: u64, value_bytes: u64) -> Load {
        let rows_bytes = rows * (RECORD_HEADER_BYTES + value_bytes);
        Load { rows, rows_bytes, ..Load::default() }
    }

    /// `embank-ycsb written --embank-cold-tier` measured 0.60 bytes of fences and filters for each
    /// row, 328 bytes written for each changed row, and parts of 1.46 times the rows: 2,621,440
    /// rows of 64 bytes, 16 MiB, uniform read-modify-writes.
    #[test]
    fn a_measured_bank_is_within_the_stated_error() {
        let load = load(2_621_440, 64);
        let budget_bytes = f64::from(16 << 20);
        assert!(has_two(&load, budget_bytes));
        let bank = TwoTiers::with_budget(&load, budget_bytes);
        let rows = load.rows as f64;
        let memory = bank.cold_memory_bytes / rows;
        assert!((memory / 0.60 - 1.0).abs() < 0.05, "{memory}");
        let written = bank.merged_bytes_per_update();
        assert!((1.0..1.1).contains(&(written / 328.0)), "{written}");
        let space = (bank.disk_bytes() - bank.log_rows * 96.0) / (rows * 80.0);
        assert!((1.0..1.05).contains(&(space / 1.46)), "{space}");
    }

    #[test]
    fn the_budget_of_a_part_holds_the_part() {
        for (rows, value_bytes, part) in [(100_000_000, 64, 0.01), (1_000_000, 512, 0.05)] {
            let load = load(rows, value_bytes);
            let bank = TwoTiers::with_part(&load, part);
            assert!((bank.part / part - 1.0).abs() < 1e-3, "{bank:?}");
        }
    }

    #[test]
    fn a_budget_below_a_thousandth_of_the_rows_still_gives_a_plan() {
        let load = load(100_000_000, 64);
        let bank = TwoTiers::with_budget(&load, f64::from(8 << 20));
        assert_eq!(bank.cold_memory_bytes, f64::from(4 << 20));
        assert_eq!(bank.run_share, RUN_SHARE.0);
        assert!(bank.part > 0.0 && bank.merged_bytes_per_update().is_finite());
    }

    #[test]
    fn a_bank_has_two_tiers_if_its_index_takes_a_quarter_of_the_budget() {
        let load = load(1_000_000, 64);
        assert!(!has_two(&load, 61e6) && has_two(&load, 60e6));
        let few = Load { rows: 50_000, rows_bytes: 4_800_000, ..Load::default() };
        assert!(!has_two(&few, 1e6), "the budget is below 1 MiB");
    }
}
