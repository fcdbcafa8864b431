//! The memory of spills and merges, which the budget provides for as long as the store is open.
//!
//! A bank in two tiers spills and merges most of the time, so it keeps the buffers. They follow
//! from the budget and from the longest block of a part:
//! - The *sort buffer* holds the rows of a spill. A spill may come between two units of a merge.
//! - The spill and the merge have a *writer* each.
//! - The sources of a merge share the memory of *cursors*. Each source needs a block at least. With
//!   little memory a merge therefore joins fewer runs.
//! - The filter of a group of blocks is *built* in memory.

use super::tiers::longest_block_bytes;
use crate::checkpoint::manifest::Manifest;
use crate::device::placement::part_span_bytes;
use crate::engine::cold::dues::{LEVEL_RUNS, RunLimits};
use crate::engine::cold::sort_buffer::SortBuffer;
use crate::limits::Limits;
use crate::memory::budget::{BUDGET_BYTES_MIN, Budget};
use crate::record::layout::record_bytes;

/// The sort buffer has the memory budget divided by this number.
const SORT_BUFFER_PART: u64 = 32;
/// The sort buffer has room for 36 blocks of a part. A small budget provides for fewer:
/// [`SMALL_PART`].
const SORT_BUFFER_BYTES_MIN: u64 = 36 * (4 << 10);
/// What a small budget provides for a buffer that needs no more in a larger one.
const SMALL_PART: u64 = 16;
/// A writer has the budget divided by this number.
const WRITER_PART: u64 = 128;
const WRITER_BYTES: std::ops::RangeInclusive<u64> = 8 << 10..=1 << 20;
/// The cursors of a merge have the budget divided by this number.
const CURSORS_PART: u64 = 32;
const CURSORS_BYTES: std::ops::RangeInclusive<u64> = 16 << 10..=8 << 20;
/// Building a filter takes 17 bytes for each row of 64 blocks: this much for rows of 64 bytes.
const FILTER_BYTES: u64 = 64 << 10;
/// A scan has the budget divided by this number for the cursors of all parts (`store::scan`).
const SCAN_PART: u64 = 16;
/// Number of runs and bases that a scan can always merge.
const SCAN_SOURCES: std::ops::RangeInclusive<u64> = 4..=64;

/// Bytes of the buffers of spills and merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TierMemory {
    pub(crate) sort_buffer_bytes: u64,
    /// Bytes of each of the two writers.
    pub(crate) writer_bytes: u64,
    pub(crate) cursors_bytes: u64,
    filter_bytes: u64,
}

impl TierMemory {
    /// Returns the memory for a budget. The longest block of a part has `block_bytes` bytes.
    pub(crate) fn of(
        budget_bytes: u64,
        page_bytes: u64,
        segment_bytes: u64,
        block_bytes: u64,
    ) -> Self {
        // A run of one sort buffer is one part, which must fit its span with fences and filters.
        let span = part_span_bytes(segment_bytes);
        let sorted = (budget_bytes / SORT_BUFFER_PART).min(span / 2);
        let least = SORT_BUFFER_BYTES_MIN.min(budget_bytes / SMALL_PART);
        let of = |bytes: u64, limits: std::ops::RangeInclusive<u64>| {
            bytes.clamp(*limits.start(), *limits.end())
        };
        TierMemory {
            sort_buffer_bytes: sorted.max(least).max(SortBuffer::bytes_for_page(page_bytes)),
            writer_bytes: of(budget_bytes / WRITER_PART, WRITER_BYTES).max(block_bytes),
            cursors_bytes: of(budget_bytes / CURSORS_PART, CURSORS_BYTES).max(2 * block_bytes),
            filter_bytes: FILTER_BYTES.min(budget_bytes / SMALL_PART),
        }
    }

    /// Returns the bytes of all buffers.
    fn bytes(&self) -> u64 {
        let writers = 2 * self.writer_bytes;
        self.sort_buffer_bytes + writers + self.cursors_bytes + self.filter_bytes
    }

    /// Returns the bytes of the buffers that a budget with these limits provides for. The banks of
    /// concurrency models have less memory than a block for each buffer, so theirs provide for the
    /// rows alone.
    pub(crate) fn bytes_of(&self, limits: Limits) -> u64 {
        match limits.budget_bytes_min < BUDGET_BYTES_MIN {
            true => self.sort_buffer_bytes,
            false => self.bytes(),
        }
    }

    /// Returns the number of sources that a merge can join, if their longest block has
    /// `block_bytes` bytes.
    pub(crate) fn sources_max(&self, block_bytes: u64) -> usize {
        (self.cursors_bytes / block_bytes.max(1)).max(2) as usize
    }

    /// Returns how many runs there may be, if their longest block has `block_bytes` bytes.
    pub(crate) fn run_limits(&self, budget_bytes: u64, block_bytes: u64) -> RunLimits {
        let sources = budget_bytes / SCAN_PART / block_bytes.max(1);
        let sources = sources.clamp(*SCAN_SOURCES.start(), *SCAN_SOURCES.end()) as usize;
        // Consolidation leaves up to `level` - 1 runs of each of some four levels.
        let level = self.sources_max(block_bytes).min(sources / 4).clamp(2, LEVEL_RUNS);
        RunLimits { level, all: sources - 1 }
    }
}

/// Reserves the buffers of spills and merges before the parts of a checkpoint are loaded, so that
/// the parts leave room for them. If the budget has no room even without parts, the first spill
/// fails and says so.
pub(crate) fn reserve_before_loading(budget: &Budget, manifest: &Manifest) {
    let tables = manifest.tables.iter().filter(|table| !table.dropped);
    let longest = tables.map(|table| record_bytes(table.value_bytes as usize)).max().unwrap_or(0);
    let (budget_bytes, page_bytes) = (budget.total_bytes(), budget.page_bytes());
    let block_bytes = longest_block_bytes(longest, budget_bytes);
    let memory = TierMemory::of(budget_bytes, page_bytes, manifest.segment_bytes, block_bytes);
    // Ignored: see above.
    let _ = budget.reserve_for_tiers(memory.bytes_of(budget.limits()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sizes in KiB for a budget in KiB, with blocks of 4 KiB: sort buffer, writer,
    /// cursors, all; then the runs of a level, and all runs.
    fn sizes(budget_kib: u64) -> [u64; 6] {
        let budget_bytes = budget_kib << 10;
        let page_bytes = Budget::page_bytes_for(budget_bytes);
        let memory = TierMemory::of(budget_bytes, page_bytes, 256 << 20, 4 << 10);
        let runs = memory.run_limits(budget_bytes, 4 << 10);
        let bytes = [memory.sort_buffer_bytes, memory.writer_bytes, memory.cursors_bytes];
        let [sort, writer, cursors] = bytes.map(|bytes| bytes >> 10);
        [sort, writer, cursors, memory.bytes() >> 10, runs.level as u64, runs.all as u64]
    }

    #[test]
    fn buffers_grow_with_the_budget() {
        assert_eq!(sizes(256), [16, 8, 16, 64, 2, 3]);
        assert_eq!(sizes(512), [32, 8, 16, 96, 2, 7]);
        assert_eq!(sizes(1 << 10), [64, 8, 32, 176, 4, 15]);
        assert_eq!(sizes(8 << 10), [256, 64, 256, 704, 16, 63]);
        assert_eq!(sizes(64 << 10), [2048, 512, 2048, 5184, 16, 63]);
        assert_eq!(sizes(1 << 20), [32768, 1024, 8192, 43072, 16, 63]);
    }

    #[test]
    fn a_merge_has_room_for_two_of_the_longest_blocks() {
        let memory = TierMemory::of(1 << 20, 16 << 10, 256 << 20, 20 << 10);
        assert_eq!(memory.cursors_bytes, 40 << 10);
        assert_eq!((memory.sources_max(20 << 10), memory.sources_max(4 << 10)), (2, 10));
        assert_eq!(memory.writer_bytes, 20 << 10);
    }
}
