//! The read cache: copies in memory of rows on disk. Peeks (reads that change nothing) fill it.
//!
//! **Problem.** Evaluation and serving only read. They must not write the log, so they can't copy a
//! row to the log's tail. Without a cache, each peek at a hot row on disk would read the disk
//! again.
//!
//! **Approach.** A record on disk at address A never changes: an update of its key writes a new
//! record and points the index to it. The cache is therefore keyed by *address*, and a verified
//! copy stays correct forever. Copies need no invalidation: after an update, no search asks for the
//! old address, and the copy is evicted later. A search asks the cache only for an address below
//! the log's head, before it reads the disk. Peeks add the records that they read, including
//! records of other keys on the same chain. When an operation brings a row to the tail, the row's
//! copy is removed.
//!
//! **Shards.** The cache's memory consists of shards of a fixed size. Each shard has its own index,
//! queues and lock (`shard`). A table of 4,096 slots maps an address's hash to a shard. To add or
//! remove a shard, the cache moves slots between shards. The cache loses the rows of a moved slot,
//! and peeks read them from disk again. The memory budget decides the number of shards (`sizing`).
//!
//! **Concurrency.** Lookups and insertions hold one shard's lock while they copy one record. Slots
//! change under the sizing lock. A thread that has read a slot before its change uses the wrong
//! shard or a closed one. It then finds no row, or adds a row that no lookup finds. Both are
//! harmless.

mod ring;
mod shard;
mod sizing;

use std::sync::Arc;

use crate::memory::budget::Budget;
use crate::record::address::Address;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

use shard::{SHARD_BYTES_MAX, Shard};
pub(crate) use sizing::Demand;
use sizing::Sizing;

const SLOTS: usize = 4096;
/// Approximate number of shards in the largest cache. With 128 shards, adding one is a small step,
/// and threads rarely wait for the same shard.
const SHARDS_WANTED: u64 = 128;

/// The read cache of a store.
#[derive(Debug)]
pub(crate) struct ReadCache {
    budget: Arc<Budget>,
    shards: Box<[Mutex<Shard>]>,
    /// Maps the upper bits of an address's hash to a shard's number.
    slots: Box<[AtomicU32]>,
    shard_bytes: usize,
    /// Memory of the open shards. The budget may also have been charged for shards that are still
    /// to be opened.
    open_bytes: AtomicU64,
    sizing: Mutex<Sizing>,
}

/// Hashes an address with the finaliser of MurmurHash3.
fn hash(address: Address) -> u64 {
    let mut x = address.raw() >> 3;
    x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    x ^ (x >> 33)
}

impl ReadCache {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let page_bytes = budget.page_bytes();
        let most = budget.cache_bytes_max();
        let wanted = (most / SHARDS_WANTED / page_bytes).max(1) * page_bytes;
        let shard_bytes = wanted.min(SHARD_BYTES_MAX as u64);
        // A shard without a slot would waste memory, because no lookup reaches it. There are
        // therefore at most `SLOTS` shards, which together have 1 TiB. The log gets the cache's
        // memory beyond that.
        let most = if budget.limits().read_cache { most } else { 0 };
        let shards = ((most / shard_bytes) as usize).min(SLOTS);
        ReadCache {
            budget,
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
            shard_bytes: shard_bytes as usize,
            open_bytes: AtomicU64::new(0),
            sizing: Mutex::default(),
        }
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        // Relaxed: a stale slot is harmless, as the module's essay explains.
        let slot = self.slots[(hash >> 52) as usize].load(Ordering::Relaxed);
        self.shards.get(slot as usize)
    }

    /// Prefetches the cache's index line for an address into the processor's cache.
    pub(crate) fn prefetch_index(&self, address: Address) {
        let hash = hash(address);
        if let Some(shard) = self.shard(hash) {
            shard.lock().prefetch_index(hash);
        }
    }

    /// Prefetches the row at an address into the processor's cache. The caller calls
    /// `prefetch_index` first, early enough that the index line has arrived.
    pub(crate) fn prefetch_row(&self, address: Address) {
        let hash = hash(address);
        if let Some(shard) = self.shard(hash) {
            shard.lock().prefetch_row(hash);
        }
    }

    /// Copies the record at `address` into `into`, in its form on disk. The checksum, the
    /// generation and the clock flags of the copy may differ from those on disk. Returns false if
    /// the record is not in the cache.
    pub(crate) fn get(&self, address: Address, into: &mut Vec<u64>) -> bool {
        let hash = hash(address);
        self.shard(hash).is_some_and(|shard| shard.lock().get(address, hash, into))
    }

    /// Adds the record at `address`, whose checksum the caller has verified. Counts an eviction in
    /// `demand` if the cache was too small.
    pub(crate) fn insert(&self, address: Address, image: &[u8], demand: &mut Demand) {
        let hash = hash(address);
        let Some(shard) = self.shard(hash) else { return };
        let mut shard = shard.lock();
        demand.record_bytes = image.len();
        if !shard.is_open() {
            // A record that no shard would accept is no reason to open a shard.
            let wanted = shard::would_take(self.shard_bytes, image.len());
            demand.evicted += u64::from(wanted);
            return;
        }
        let done = shard.insert(address, hash, image);
        demand.evicted += u64::from(done.evicted);
    }

    /// Removes the record at `address`, because its row moved to the tail.
    pub(crate) fn remove(&self, address: Address) {
        let hash = hash(address);
        if let Some(shard) = self.shard(hash) {
            shard.lock().remove(address, hash);
        }
    }
}
