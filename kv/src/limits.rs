//! Limits that the opening of a store passes to its parts.

use crate::index::INITIAL_LEVEL;
use crate::memory::budget::{BUDGET_BYTES_MIN, PAGE_BYTES_MIN};

/// Limits that a concurrency model can lower to open a very small store (`testing::models`). Every
/// store that a program opens uses [`PRODUCT`](Self::PRODUCT).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Smallest page size in bytes.
    pub(crate) page_bytes_min: u64,
    /// Smallest memory budget in bytes.
    pub(crate) budget_bytes_min: u64,
    /// An empty index has `1 << initial_level` buckets.
    pub(crate) initial_level: u32,
    /// True if the store has a read cache, which keeps copies of rows that peeks read from disk.
    pub(crate) read_cache: bool,
}

impl Limits {
    pub(crate) const PRODUCT: Limits = Limits {
        page_bytes_min: PAGE_BYTES_MIN,
        budget_bytes_min: BUDGET_BYTES_MIN,
        initial_level: INITIAL_LEVEL,
        read_cache: true,
    };
}
