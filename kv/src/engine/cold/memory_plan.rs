//! The order of memory: how much of the filters and fences of the parts stays in memory.
//!
//! **Problem.** With all fences and all columns of the filters, a row takes about half a byte of
//! memory. A bank with a thousand times as many bytes of rows as memory has less than a tenth of a
//! byte for each row of 64 bytes.
//!
//! **Approach.** Memory serves in this order:
//! 1. The fences of the base. If they exceed an eighth of the budget, every 2^k-th fence stays. A
//!    read then brings 2^k blocks, in which the search looks for the row's block.
//! 2. The filters of the runs, with all [`RUN_COLUMNS`]. The more runs there may be, the less
//!    merges write. So the runs are as large as the memory allows, up to [`RUN_SHARE_MAX`] of the
//!    base. Fewer runs cost no reads, but merges write more.
//! 3. If not even runs of [`RUN_SHARE_MIN`] fit, their filters lose columns. Each column less
//!    doubles the blocks that searches read for nothing.
//!
//! The files of parts always have all fences and columns. What stays in memory is decided as a part
//! is made or loaded, and does not change while the part lives. Merges rewrite all parts in time.

use crate::cold::head::Kind;
use crate::cold::keep::{Keep, PartNeeds};
use crate::error::Result;
use crate::memory::budget::Budget;
use crate::memory::read_buffers::Buffers;

/// Columns of the filters of runs: of 2^9 keys that a run's part lacks, one is read for nothing.
pub(crate) const RUN_COLUMNS: u32 = 9;
/// Largest size of the runs, as a fraction of the size of the base. A larger fraction makes merges
/// write less and the bank's files longer. `docs/cold-tier.md` has the measurements.
const RUN_SHARE_MAX: f64 = 0.4;
/// Memory is planned for this multiple of the runs' largest size. Merges rest until the runs exceed
/// it by a quarter (`engine::space::pressure`). Without this memory, new runs would lose columns.
const RUN_EXCESS: f64 = 1.25;
/// The runs may have this fraction of the size of the base whatever the memory is. With a smaller
/// fraction, merges would write more than 20 bytes for each byte that leaves the log.
const RUN_SHARE_MIN: f64 = 0.05;
/// The fences of the base take at most the budget divided by this number, if a read can bring that
/// many blocks.
const FENCE_PART: u64 = 8;
/// Parts of runs leave this fraction of the parts' memory to base merges, which free the memory of
/// runs.
const MERGE_PART: u64 = 16;
/// Most bytes of blocks that a lookup reads together. More would take the drive longer than several
/// reads of a block.
const RANGE_BYTES_MAX: usize = 64 << 10;
/// The shortest blocks have `1 << BLOCK_BITS_MIN` bytes.
const BLOCK_BITS_MIN: u8 = 12;
/// Bytes of a column of a filter for each row: 1.12 bits.
const COLUMN_BYTES: f64 = 0.14;

/// The base, or the parts that will become the base.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BaseSize {
    pub(crate) rows: u64,
    /// Bytes of all fences.
    pub(crate) fence_bytes: u64,
    /// Blocks have at most `1 << block_bits` bytes.
    pub(crate) block_bits: u8,
}

impl BaseSize {
    /// Returns the size of the base parts among parts with these numbers of rows. Without base
    /// parts, the runs will become the base.
    pub(crate) fn of(parts: impl Iterator<Item = (PartNeeds, u64)> + Clone) -> Self {
        let has_base = parts.clone().any(|(part, _)| part.kind == Kind::Base);
        let whole = Keep { columns: 0, stride_bits: 0 };
        let counts = parts.filter(|(part, _)| part.kind == Kind::Base || !has_base);
        counts.fold(BaseSize::default(), |sum, (part, rows)| BaseSize {
            rows: sum.rows + rows,
            fence_bytes: sum.fence_bytes + part.memory_bytes(whole),
            block_bits: sum.block_bits.max(part.block_bits),
        })
    }
}

/// What stays in memory of the parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MemoryPlan {
    /// Largest size of the runs, as a fraction of the size of the base.
    pub(crate) run_share: f64,
    /// Columns of the filters of runs.
    pub(crate) columns: u32,
    /// The fence of each block whose number is a multiple of `1 << stride_bits` stays.
    pub(crate) stride_bits: u32,
}

impl MemoryPlan {
    /// Returns the plan for the base.
    pub(crate) fn of(budget: &Budget, base: BaseSize) -> Self {
        let limit_bytes = budget.cold_bytes_max();
        let stride_bits_max = stride_bits_max(budget, base.block_bits);
        Self::within(budget.total_bytes(), limit_bytes, base, stride_bits_max)
    }

    /// Returns the plan for a budget of `budget_bytes`, of which parts may take `limit_bytes`. A
    /// read brings at most `1 << stride_bits_max` blocks.
    fn within(budget_bytes: u64, limit_bytes: u64, base: BaseSize, stride_bits_max: u32) -> Self {
        let fits = |bits: &u32| base.fence_bytes >> bits <= budget_bytes / FENCE_PART;
        let stride_bits = (0..stride_bits_max).find(fits).unwrap_or(stride_bits_max);
        let fence_bytes = base.fence_bytes >> stride_bits;
        let left = for_runs(limit_bytes).saturating_sub(fence_bytes) as f64 / RUN_EXCESS;
        let column_bytes = (base.rows as f64 * COLUMN_BYTES).max(1.0);
        // Runs with filters keep all fences.
        let whole_bytes = f64::from(RUN_COLUMNS) * column_bytes + base.fence_bytes as f64;
        let run_share = (left / whole_bytes).clamp(RUN_SHARE_MIN, RUN_SHARE_MAX);
        let columns = (left / run_share - base.fence_bytes as f64) / column_bytes;
        // A quotient that falls short by a rounding error counts as whole.
        let columns = (columns + 1e-9).clamp(0.0, f64::from(RUN_COLUMNS)) as u32;
        MemoryPlan { run_share, columns, stride_bits }
    }

    /// Returns this plan, or one with less columns or fences, by which all of these parts fit the
    /// budget.
    ///
    /// # Errors
    /// `BudgetTooSmall` if the parts do not fit.
    pub(crate) fn lowered(self, budget: &Budget, parts: &[PartNeeds]) -> Result<Self> {
        let stride_bits = |part: &PartNeeds| stride_bits_max(budget, part.block_bits);
        let most = parts.iter().map(stride_bits).max().unwrap_or(0);
        let columns = (0..=self.columns).rev().map(|columns| MemoryPlan { columns, ..self });
        let strides = self.stride_bits + 1..=most;
        let strides = strides.map(|stride_bits| MemoryPlan { columns: 0, stride_bits, ..self });
        let bytes_of = |plan: &MemoryPlan| -> u64 {
            let keep = |part| plan.keep_within(u64::MAX, stride_bits(part), part);
            parts.iter().map(|part| part.memory_bytes(keep(part))).sum()
        };
        let limit_bytes = budget.cold_bytes_left();
        let mut bytes = 0;
        // The parts of the base may take what those of runs leave them.
        let fits = columns.chain(strides).find(|plan| {
            bytes = bytes_of(plan);
            let least = plan.columns == 0 && plan.stride_bits >= most;
            bytes <= if least { limit_bytes } else { for_runs(limit_bytes) }
        });
        fits.ok_or_else(|| budget.too_small_for_parts(bytes))
    }

    /// Returns what stays in memory of a new part: what the plan says, or less if the budget has
    /// not that much left. Parts of runs leave some memory to those of the base. Not even the
    /// result may fit.
    pub(crate) fn keep(&self, budget: &Budget, part: &PartNeeds) -> Keep {
        let left_bytes = bytes_left(budget, part.kind);
        self.keep_within(left_bytes, stride_bits_max(budget, part.block_bits), part)
    }

    /// True if a run with `data_bytes` bytes of rows may have the fewest fences.
    pub(crate) fn fits_run(&self, budget: &Budget, data_bytes: u64) -> bool {
        let block_bits = BLOCK_BITS_MIN;
        let units = data_bytes.div_ceil(1 << block_bits);
        let run = PartNeeds {
            kind: Kind::Run,
            block_bits,
            columns: 0,
            filter_words: 0,
            blocks: units,
            long_blocks: 0,
            units,
        };
        run.memory_bytes(self.keep(budget, &run)) <= bytes_left(budget, Kind::Run)
    }

    /// Returns what stays of a part that may take `left_bytes` of memory.
    fn keep_within(&self, left_bytes: u64, stride_bits_max: u32, part: &PartNeeds) -> Keep {
        let with_filters = (1..=part.columns.min(self.columns)).rev();
        let with_filters = with_filters.map(|columns| Keep { columns, stride_bits: 0 });
        let stride_bits = self.stride_bits.min(stride_bits_max)..=stride_bits_max;
        let without = stride_bits.map(|stride_bits| Keep { columns: 0, stride_bits });
        let mut all = with_filters.chain(without);
        let fits = all.find(|&keep| part.memory_bytes(keep) <= left_bytes);
        fits.unwrap_or(Keep { columns: 0, stride_bits: stride_bits_max })
    }
}

/// Returns the largest block bits of a new part: 12 to 14. A block has at most a 64th of the
/// budget, because each source of a merge and of a scan needs memory for one. It then fits a read
/// buffer, too.
pub(crate) fn block_bits_max(budget_bytes: u64) -> u8 {
    (budget_bytes / 64).max(1).ilog2().clamp(u32::from(BLOCK_BITS_MIN), 14) as u8
}

/// Returns the binary logarithm of the number of blocks that a lookup reads together at most. They
/// fit a read buffer.
fn stride_bits_max(budget: &Budget, block_bits: u8) -> u32 {
    let read_bytes = Budget::read_buffer_bytes_for(budget.total_bytes()) as usize;
    let buffer_bytes = Buffers::bytes_each_of(read_bytes, budget.page_bytes() as usize);
    let range_bytes = buffer_bytes.min(RANGE_BYTES_MAX);
    range_bytes.ilog2().saturating_sub(u32::from(block_bits))
}

/// Returns the bytes that new parts of a kind may take. Those of runs leave some to base merges.
pub(crate) fn bytes_left(budget: &Budget, kind: Kind) -> u64 {
    match kind {
        Kind::Base => budget.cold_bytes_left(),
        Kind::Run => for_runs(budget.cold_bytes_max()).saturating_sub(budget.cold_bytes()),
    }
}

/// Returns the bytes that base and runs may take, of `limit_bytes` that parts may take.
fn for_runs(limit_bytes: u64) -> u64 {
    limit_bytes - limit_bytes / MERGE_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(rows: u64) -> BaseSize {
        BaseSize { rows, fence_bytes: rows / 3200 * 144, block_bits: 12 }
    }

    /// Returns u in thousandths, columns and stride of a bank of `rows` rows of 64 bytes in blocks
    /// of 4 KiB, for a budget of 1 MiB, half of which parts may take.
    fn plan(rows: u64) -> (u32, u32, u32) {
        let plan = MemoryPlan::within(1 << 20, 1 << 19, base(rows), 4);
        ((plan.run_share * 1000.0).round() as u32, plan.columns, plan.stride_bits)
    }

    #[test]
    fn less_memory_for_a_row_first_makes_the_runs_shorter_then_the_filters_then_the_fences() {
        // The number of rows, and the plan.
        let expected = [
            (0, (400, 9, 0)),
            // 1.5 bytes of memory for each row, of which parts may take half.
            (690_000, (400, 9, 0)),
            (1_000_000, (274, 9, 0)),
            (1_600_000, (161, 9, 0)),
            (2_900_000, (76, 9, 0)),
            // From here on the fences take at most an eighth of the budget.
            (3_000_000, (87, 9, 1)),
            (5_000_000, (50, 8, 1)),
            (5_800_000, (50, 6, 1)),
            (7_000_000, (50, 6, 2)),
            (16_000_000, (50, 2, 3)),
            (30_000_000, (50, 1, 4)),
            (300_000_000, (50, 0, 4)),
        ];
        for (rows, expected) in expected {
            assert_eq!(plan(rows), expected, "{rows} rows");
        }
    }

    #[test]
    fn a_plan_fits_the_memory_unless_not_even_the_fewest_fences_do() {
        for rows in (0..3000).map(|i| i * 10_000) {
            for bits in 0..5 {
                let base = base(rows);
                let fence_bytes = base.fence_bytes;
                let plan = MemoryPlan::within(1 << 20, 400 << 10, base, bits);
                let filters = rows as f64 * plan.run_share * f64::from(plan.columns) * COLUMN_BYTES;
                let of_runs =
                    if plan.columns > 0 { fence_bytes as f64 * plan.run_share } else { 0.0 };
                let bytes = (fence_bytes >> plan.stride_bits) as f64 + filters + of_runs;
                let fits = bytes <= f64::from(400 << 10);
                let least = plan.stride_bits == bits && plan.columns == 0;
                assert!(fits || least, "{rows} rows, reads of 2^{bits} blocks: {plan:?}");
            }
        }
    }
}
