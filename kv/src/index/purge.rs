//! Removes entries from the index: entries of deleted rows, and entries that lead below the log's
//! beginning.
//!
//! An entry whose head lies below `begin` leads to no row, because compaction has moved every row
//! from there. Lookups treat such an entry as the end of its chain (`engine::batch`). The entry
//! only wastes a slot. Compaction removes most of these entries when it meets the tombstones (the
//! records of deletions) of their rows. The remaining entries are copies that splits made of
//! entries without tag bits. To remove the copies, compaction sweeps the whole index, a few buckets
//! for each page.

use super::Index;
use super::bucket::{Bucket, Meta};
use super::entry::Entry;
use crate::sync::Ordering;

impl Index {
    /// Empties the slot that holds `entry`. Returns false if no slot holds it.
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

    /// Removes entries that lead below `begin` from `count` buckets, starting at bucket `from`.
    /// Returns the bucket to continue at, or 0 after the last one. The caller must be pinned, so
    /// that no cut happens during the call.
    pub(crate) fn purge(&self, begin: u64, from: u64, count: u64) -> u64 {
        let buckets = self.bucket_count();
        let end = buckets.min(from + count);
        for i in from..end {
            let bucket = self.bucket(i);
            let stale = |slot: &&crate::sync::AtomicU64| {
                let entry = Entry(slot.load(Ordering::Relaxed));
                !entry.is_empty() && entry.address().raw() < begin
            };
            // Acquire: pairs with the Release store in `unlock`, and so sees the slots of this
            // version.
            let meta = Meta(bucket.meta().load(Ordering::Acquire));
            // Reads without the lock. If a race hides an entry, the next sweep finds it.
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
