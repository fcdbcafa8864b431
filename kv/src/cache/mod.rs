//! Rows of the disk that are wanted again, in memory: the cache that peeks fill.
//!
//! **Problem.** Evaluation and serving only read. They must not write the log, so they can't bring
//! a row to its tail, and without a cache a hot row on disk would be read again and again.
//!
//! **Approach.** A record on disk at address A never changes: an update of its key makes a new
//! record and leads the index there. So the cache is keyed by *address*, and a verified copy stays
//! right for ever. There is no invalidation: after an update no search asks for the old address,
//! and the copy is evicted in time. A search asks the cache only for an address below the log's
//! head, before it reads the disk. Peeks fill the cache, and so do records of other keys that a
//! search passed on its way. A row that an operation brings to the tail leaves it.
//!
//! **Shards.** Memory comes in shards of a fixed size, each with an index, queues and lock of its
//! own (`shard`). A table of 4,096 slots leads from an address's hash to a shard, so a shard can be
//! added or taken away by giving its slots to the others or theirs to it; rows whose slot moved are
//! lost to the cache and read again. How many shards there are is a matter of the memory budget
//! (`sizing`).
//!
//! **Concurrency.** Lookups and insertions hold one shard's lock while they copy one record. Slots
//! change under the sizing's lock. A thread that read a slot just before it changed finds another
//! shard's rows, or a closed shard. It then misses, or keeps a row where no lookup finds it; both
//! are harmless.

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
/// Number of shards that the largest cache has, about. With 128, one shard more or less is a small
/// step, and threads seldom meet at a shard.
const SHARDS_WANTED: u64 = 128;

/// The cache of a store. See the module's essay.
#[derive(Debug)]
pub(crate) struct RowCache {
    budget: Arc<Budget>,
    shards: Box<[Mutex<Shard>]>,
    /// Hash to shard.
    slots: Box<[AtomicU32]>,
    shard_bytes: usize,
    /// Memory of the shards that are open; the budget may have been charged for more that are to
    /// be.
    open_bytes: AtomicU64,
    sizing: Mutex<Sizing>,
}

/// Mixes an address; the finaliser of MurmurHash3.
fn hash(address: Address) -> u64 {
    let mut x = address.raw() >> 3;
    x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    x ^ (x >> 33)
}

impl RowCache {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let page_bytes = budget.page_bytes();
        let most = budget.cache_bytes_max();
        let wanted = (most / SHARDS_WANTED / page_bytes).max(1) * page_bytes;
        let shard_bytes = wanted.min(SHARD_BYTES_MAX as u64);
        // A shard without a slot would be memory that no lookup reads: from 1 TiB on, the log gets
        // the rest.
        let most = if budget.limits().row_cache { most } else { 0 };
        let shards = ((most / shard_bytes) as usize).min(SLOTS);
        RowCache {
            budget,
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
            shard_bytes: shard_bytes as usize,
            open_bytes: AtomicU64::new(0),
            sizing: Mutex::default(),
        }
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        // Relaxed: a stale slot is harmless (see the essay).
        let slot = self.slots[(hash >> 52) as usize].load(Ordering::Relaxed);
        self.shards.get(slot as usize)
    }

    /// Fetches the index lines of rows that are about to be looked for.
    pub(crate) fn prefetch_index(&self, address: Address) {
        let hash = hash(address);
        if let Some(shard) = self.shard(hash) {
            shard.lock().prefetch_index(hash);
        }
    }

    /// Fetches the rows themselves, their index lines being here by now.
    pub(crate) fn prefetch_row(&self, address: Address) {
        let hash = hash(address);
        if let Some(shard) = self.shard(hash) {
            shard.lock().prefetch_row(hash);
        }
    }

    /// Copies the record at `address` into `into`, as it lies on disk. Its checksum, generation and
    /// clock flags may differ from those on disk. False if the record is not in the cache.
    pub(crate) fn get(&self, address: Address, into: &mut Vec<u64>) -> bool {
        let hash = hash(address);
        self.shard(hash).is_some_and(|shard| shard.lock().get(address, hash, into))
    }

    /// Keeps the record at `address`, whose checksum has been verified. Adds to `demand` what shows
    /// whether the cache is large enough.
    pub(crate) fn insert(&self, address: Address, image: &[u8], demand: &mut Demand) {
        let hash = hash(address);
        let Some(shard) = self.shard(hash) else { return };
        let mut shard = shard.lock();
        demand.record_bytes = image.len();
        if !shard.is_open() {
            // A record that no shard would take is no reason to open one.
            let wanted = shard::would_take(self.shard_bytes, image.len());
            demand.evicted += u64::from(wanted);
            return;
        }
        let done = shard.insert(address, hash, image);
        demand.evicted += u64::from(done.evicted);
    }

    /// Forgets the record at `address`: its row moved to the tail.
    pub(crate) fn remove(&self, address: Address) {
        let hash = hash(address);
        if let Some(shard) = self.shard(hash) {
            shard.lock().remove(address, hash);
        }
    }
}
