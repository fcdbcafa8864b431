//! Access to internals of the store for the micro-benchmarks (`bench/benches/inside.rs`). This
//! module is not part of the API. It exists only with the feature `bench`, and changes with the
//! internals.

pub mod cold;

use std::sync::Arc;

use crate::device::{AlignedBuffer, Device};
use crate::epoch::Gate;
use crate::error::Result;
use crate::index::{Candidates, Entry, Index, Look};
use crate::limits::Limits;
use crate::log::page::{self, PAGE_HEADER_BYTES, PageIdentity};
use crate::log::{Extent, Log};
use crate::memory::budget::Budget;
use crate::record::address::{Address, TableNumber};
use crate::record::clock::{self, ClockWord};
use crate::record::hash::KeyHash;
use crate::record::layout::record_bytes;
use crate::stats::Counters;
use crate::sync::{AtomicU64, Ordering};

const TABLE: TableNumber = TableNumber(1);

/// An index with the keys 0 to `entries` - 1. The record of key `k` is at address `64 * (k + 1)`.
#[derive(Debug)]
pub struct Probing {
    index: Index,
    key_hash: KeyHash,
}

impl Probing {
    /// Makes an index and inserts the keys.
    ///
    /// # Errors
    /// An error if the memory can't be allocated.
    pub fn new(entries: u64) -> Result<Self> {
        let total_bytes = (64 << 20) + entries * 64;
        let budget =
            Budget::new(total_bytes, Budget::page_bytes_for(total_bytes), Limits::PRODUCT)?;
        let index = Index::new(&budget)?;
        let key_hash = KeyHash::new(7);
        let mut candidates = Candidates::default();
        for key in 0..entries {
            let hash = key_hash.of(TABLE, key);
            index.candidates(hash, &mut candidates);
            index.insert(&budget, hash, &candidates, Address::new(64 * (key + 1)), |_| {}, || true);
            index.grow(&budget, |_| Look::Unseen);
        }
        Ok(Probing { index, key_hash })
    }

    /// Looks up the first matching entry of each key, after prefetching all buckets. Uses the
    /// instructions that a batch uses. Returns the number of keys with a match.
    #[must_use]
    pub fn probe(&self, keys: &[u64]) -> usize {
        let outline = self.index.outline();
        let hashes: Vec<_> = keys.iter().map(|&key| self.key_hash.of(TABLE, key)).collect();
        hashes.iter().for_each(|&hash| outline.prefetch(hash));
        let mut found = vec![Entry::EMPTY; keys.len()];
        outline.first_matches(&hashes, &mut found);
        found.iter().filter(|entry| !entry.is_empty()).count()
    }
}

static EXTRA_CHECKSUMS: AtomicU64 = AtomicU64::new(0);

/// Makes this process compute the checksum of each record that it reads from disk `times` more
/// times. A benchmark derives the cost of one checksum from the difference.
pub fn set_extra_checksums(times: u64) {
    EXTRA_CHECKSUMS.store(times, Ordering::Relaxed);
}

pub(crate) fn extra_checksums() -> u64 {
    EXTRA_CHECKSUMS.load(Ordering::Relaxed)
}

/// The word of a record that contains its lock and its clock. The clock is the number of
/// outstanding gets.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Raises the clock by one under the record's lock, as a get does. Then lowers it by one, as a
    /// put does.
    pub fn up_and_down(&self) {
        for (bound, by) in [(8, 1), (u32::MAX, -1)] {
            let Ok(locked) = clock::lock(&self.0, |word| word.outstanding() <= bound) else {
                return;
            };
            let word = locked.word();
            let outstanding = word.outstanding().saturating_add_signed(by);
            locked.unlock_unchanged(word.with_outstanding(outstanding));
        }
    }

    /// Number of outstanding gets.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        ClockWord::from_bits(self.0.load(Ordering::Relaxed)).outstanding()
    }
}

/// The first page of a log that has no writer thread.
#[derive(Debug)]
pub struct FirstPage {
    log: Log,
    gate: Gate,
    value_bytes: usize,
    /// Number of complete records in the page.
    appended: u64,
}

impl FirstPage {
    /// Makes an empty log on a device, with pages of `1 << page_bits` bytes.
    ///
    /// # Errors
    /// An error if the memory can't be allocated.
    pub fn new(device: Arc<dyn Device>, page_bits: u32, value_bytes: usize) -> Result<Self> {
        let budget = Arc::new(Budget::new(256 << 20, 1 << page_bits, Limits::PRODUCT)?);
        let extent = Extent { page_bits, begin: 0, tail_page: 0 };
        let counters = Arc::new(Counters::default());
        let lineage = crate::checkpoint::lineage::Lineage::new(1, extent.page_bits, Vec::new());
        let log = Log::new(budget, device, counters, lineage, extent, Arc::default())?;
        Ok(FirstPage { log, gate: Gate::default(), value_bytes, appended: 0 })
    }

    /// Appends records until the page is full. Returns the number of appended records.
    #[must_use]
    pub fn fill(&mut self) -> u64 {
        let mut appended = 0;
        let guard = self.gate.enter();
        let view = self.log.view();
        while let Ok(address) = self.log.allocate(record_bytes(self.value_bytes)) {
            // SAFETY: this thread is pinned and has just allocated the space, so no other thread
            // uses it. The space is above the head, the oldest address in memory, which no thread
            // moves here.
            let record = unsafe { view.record(address) };
            record.begin(TABLE, appended, self.value_bytes);
            record.store_value(&[appended]);
            record.finish(ClockWord::at_rest(0), false);
            appended += 1;
        }
        drop(guard);
        self.appended += appended;
        appended
    }

    /// Writes the page with its checksums to `image`, and `image` to the device. `image` must have
    /// the length of a page.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn flush(&self, image: &mut AlignedBuffer) -> Result<()> {
        let used = PAGE_HEADER_BYTES + self.appended * record_bytes(self.value_bytes) as u64;
        // SAFETY: the page's frame lives as long as the log. `fill` completed `self.appended`
        // records, and no other thread uses this log.
        unsafe {
            let frame = self.log.frame_pointer(0);
            page::write_image(frame, 0, used, PageIdentity { page: 0, bank: 1, salt: 2 }, image);
        }
        self.log.device.write(0, image)
    }
}

/// The sizes of a store's cold tier.
#[derive(Debug, Clone, Copy)]
pub struct ColdTier {
    /// Row versions in all parts, with tombstones and superseded versions.
    pub versions: u64,
    /// Number of parts.
    pub parts: usize,
    /// Number of runs.
    pub runs: usize,
    /// Bytes of memory of fences and filters.
    pub memory_bytes: u64,
    /// Bytes of memory of the buffers of spills and merges.
    pub buffers_bytes: u64,
    /// Bytes of the files of all parts.
    pub disk_bytes: u64,
    /// Largest size of the runs, as a fraction of the size of the base.
    pub run_share: f64,
    /// Columns that new filters of runs keep in memory.
    pub columns: u32,
    /// Number of blocks that have one fence together.
    pub stride: u32,
}

/// Returns the sizes of a store's cold tier.
#[must_use]
pub fn cold_tier(store: &crate::Store) -> ColdTier {
    let core = store.core();
    let view = core.cold.view();
    let plan = core.cold.memory_plan();
    ColdTier {
        versions: view.rows(),
        parts: view.parts().count(),
        runs: view.runs().count(),
        memory_bytes: view.memory_bytes(),
        buffers_bytes: core.budget.tier_bytes(),
        disk_bytes: core.cold.disk_bytes(),
        run_share: plan.run_share,
        columns: plan.columns,
        stride: 1 << plan.stride_bits,
    }
}
