//! Taking entries out of the index: rows that were deleted, and what leads below the log's
//! beginning.
//!
//! An entry whose head lies below `begin` leads nowhere: compaction has moved every row from there,
//! and lookups take it for the end of its chain (`engine::batch`). So it does no harm but take a
//! slot. Most such entries are removed by compaction as it meets their tombstones. What is left are
//! copies that a split made of an entry without tag bits; compaction sweeps the whole index for
//! them, some buckets for each page.

use super::Index;
use super::bucket::{Bucket, Meta};
use super::entry::Entry;
use crate::sync::Ordering;

impl Index {
    /// Empties the slot that holds `entry`. False if none does any more.
    pub(crate) fn remove(&self, hash: u64, entry: Entry) -> bool {
        let mut locked = self.lock(hash);
        let slot = locked
            .chain()
            .flat_map(Bucket::slots)
            .find(|slot| slot.load(Ordering::Relaxed) == entry.0);
        if let Some(slot) = slot {
            locked.will_change();
            self.set_slot(slot, entry, Entry::EMPTY);
        }
        slot.is_some()
    }

    /// Removes entries that lead below `begin` from `count` buckets, from bucket `from` on; returns
    /// the bucket to go on from, 0 after the last. The caller is pinned, so that no checkpoint
    /// writes the index meanwhile.
    pub(crate) fn purge(&self, begin: u64, from: u64, count: u64) -> u64 {
        let buckets = self.bucket_count();
        let end = buckets.min(from + count);
        for i in from..end {
            let bucket = self.bucket(i);
            let stale = |slot: &&crate::sync::AtomicU64| {
                let entry = Entry(slot.load(Ordering::Relaxed));
                !entry.is_empty() && entry.address().raw() < begin
            };
            // Acquire: sees the slots as of this version.
            let meta = Meta(bucket.meta().load(Ordering::Acquire));
            // A look without the lock; what it misses in a race, the next round finds.
            if !self
                .chain(bucket, meta)
                .take(super::MAX_CHAIN)
                .flat_map(Bucket::slots)
                .any(|slot| stale(&slot))
            {
                continue;
            }
            let mut locked = self.lock_number(i);
            locked.will_change();
            for slot in locked.chain().flat_map(Bucket::slots).filter(stale) {
                self.set_slot(slot, Entry(slot.load(Ordering::Relaxed)), Entry::EMPTY);
            }
        }
        if end >= buckets { 0 } else { end }
    }
}
