//! What stays in memory of a part's fences and filters.
//!
//! The file of a part has all fences and all columns of the filters. Memory may have fewer
//! columns: of r columns, the first r' let one of 2^r' other keys pass. A part without filters in
//! memory may have fewer fences, too: one for each *range* of up to 2^k blocks. A lookup then reads
//! a range and looks for the row's block in it (`range`).

use crate::cold::fence::{FENCE_GROUP_BYTES, GROUP_BLOCKS, LONG_BLOCK_BYTES};
use crate::cold::filter::PADDING;
use crate::cold::head::Kind;
use crate::error::Result;
use crate::memory::budget::ColdCharge;

/// How much of a part stays in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// Columns of the filters.
    pub(crate) columns: u32,
    /// Ranges of blocks have at most `1 << stride_bits` times the bytes of a block, or one block.
    /// Above 0 only if `columns` is 0.
    pub(crate) stride_bits: u32,
}

/// The sizes of a part's fences and filters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartNeeds {
    pub(crate) kind: Kind,
    pub(crate) block_bits: u8,
    /// Columns of the filters of the file.
    pub(crate) columns: u32,
    pub(crate) filter_words: u64,
    pub(crate) blocks: u64,
    pub(crate) long_blocks: u64,
    /// The bytes of all blocks, over those of a block that is not long.
    pub(crate) units: u64,
}

impl PartNeeds {
    /// Returns the bytes of memory that the part takes at most.
    pub(crate) fn memory_bytes(&self, keep: Keep) -> u64 {
        let groups = |fences: u64| fences.div_ceil(GROUP_BLOCKS as u64) * FENCE_GROUP_BYTES;
        let Keep { columns, stride_bits } = keep;
        if stride_bits > 0 {
            // Two neighbouring ranges have more bytes together than a range may have.
            let ranges = match self.long_blocks {
                0 => self.units.div_ceil(1 << stride_bits),
                _ => self.blocks.min(((2 * self.units) >> stride_bits) + 1),
            };
            let starts = if self.long_blocks > 0 { ranges * size_of::<u32>() as u64 } else { 0 };
            return groups(ranges) + starts;
        }
        let filters = match columns {
            0 => 0,
            _ => {
                self.filter_words / u64::from(self.columns.max(1)) * u64::from(columns)
                    + PADDING as u64
            }
        };
        groups(self.blocks) + self.long_blocks * LONG_BLOCK_BYTES + filters * 8
    }
}

/// Decides how much of a part stays in memory, and takes the memory from the budget.
pub(crate) trait PartMemory: Sync {
    /// Called once for each part, when its fences and filters are complete.
    ///
    /// # Errors
    /// `BudgetTooSmall` if the budget has no memory for the part.
    fn keep(&self, needs: &PartNeeds) -> Result<Kept>;
}

/// What was decided for a part. The budget has the memory back once this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) keep: Keep,
    pub(crate) charge: Option<ColdCharge>,
}

/// Keeps all fences and filters, and takes no memory from a budget: for parts that serve no store.
#[derive(Debug)]
pub(crate) struct KeepAll;

impl PartMemory for KeepAll {
    fn keep(&self, needs: &PartNeeds) -> Result<Kept> {
        Ok(Kept { keep: Keep { columns: needs.columns, stride_bits: 0 }, charge: None })
    }
}

/// Keeps few fences of parts of the base and of every second run, and a part of the filters of the
/// other runs.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct KeepSome;

#[cfg(test)]
impl PartMemory for KeepSome {
    fn keep(&self, needs: &PartNeeds) -> Result<Kept> {
        let has_filters = needs.columns > 1 && needs.filter_words.is_multiple_of(2);
        let columns = if has_filters { needs.columns / 2 } else { 0 };
        let stride_bits = if has_filters { 0 } else { 1 + (needs.blocks % 3) as u32 };
        Ok(Kept { keep: Keep { columns, stride_bits }, charge: None })
    }
}
