//! Limits that the opening of a store passes to its parts.

use crate::index::INITIAL_LEVEL;
use crate::memory::budget::{BUDGET_BYTES_MIN, PAGE_BYTES_MIN};

/// Limits that a model can lower to open a small store (`testing::models`). Every bank of a program
/// uses [`PRODUCT`](Self::PRODUCT).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Smallest page size in bytes.
    pub(crate) page_bytes_min: u64,
    /// Smallest memory budget in bytes.
    pub(crate) budget_bytes_min: u64,
    /// Level of an empty index, which has `1 << initial_level` buckets.
    pub(crate) initial_level: u32,
    /// True if rows that peeks read from disk are cached.
    pub(crate) row_cache: bool,
}

impl Limits {
    pub(crate) const PRODUCT: Limits = Limits {
        page_bytes_min: PAGE_BYTES_MIN,
        budget_bytes_min: BUDGET_BYTES_MIN,
        initial_level: INITIAL_LEVEL,
        row_cache: true,
    };
}
