//! The rows that wait to be read ahead, in their order, and the bursts in which they are read.
//!
//! **Problem.** The more rows are read together, the nearer to each other they lie on disk, and the
//! more of them come with one read (`kv/src/engine/batch/disk.rs`). But a Get that wants some of
//! the rows in hand waits for all of them, or, if it wants few of them, reads its own a second
//! time.
//!
//! **Approach.** What was announced together, which a Get mostly wants together, is a *group*, and
//! comes in one burst. Small groups of the same table are joined until the burst is long enough to
//! keep a drive busy; larger ones stay alone. What is too many for a burst is cut evenly
//! beforehand.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use embank_kv::TableId;

use crate::lookahead::pending::PendingSet;

/// A queue of this many keys is deep enough for any drive: a burst of this size takes no further
/// group.
pub(crate) const BURST_KEYS_MIN: usize = 512;
/// The longest group. A burst is shorter than the two together.
pub(crate) const BURST_KEYS_MAX: usize = 4096;

/// The number by which the pending set knows a table. A dropped table's rows leave the queue with
/// it, but those of a burst in hand are in the set until the burst is over. If another table has
/// the number by then, its rows of the same keys count as merged with those, and are not read
/// ahead: advice that is lost, as where the queue is full.
pub(crate) fn number(table: TableId) -> NonZeroU16 {
    NonZeroU16::new(table.number()).expect("the store numbers tables from 1")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    table: TableId,
    group: u16,
    key: u64,
}

const _: () = assert!(size_of::<Request>() == 16);

/// The queue. Each of its rows is in the pending set, too.
#[derive(Debug)]
pub(crate) struct Requests {
    queue: VecDeque<Request>,
    /// The newest group's number. They wrap: only neighbours are compared. If two neighbours have
    /// one number after 65,536 groups, they are one group.
    group: u16,
}

impl Requests {
    /// Memory per key of capacity, in bytes.
    pub(crate) const BYTES_PER_KEY: u64 = size_of::<Request>() as u64;

    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { queue: VecDeque::with_capacity(capacity), group: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The groups that keys which were announced together make: as few as possible, of equal
    /// length, and of no more than `fitting` keys, unless those are too few for a burst.
    pub(crate) fn groups(keys: &[u64], fitting: usize) -> impl Iterator<Item = &[u64]> {
        let groups = keys.len().div_ceil(fitting.clamp(BURST_KEYS_MIN, BURST_KEYS_MAX));
        keys.chunks(keys.len().div_ceil(groups.max(1)).max(1))
    }

    /// What is pushed from now on is a group of its own.
    pub(crate) fn begin_group(&mut self) {
        self.group = self.group.wrapping_add(1);
    }

    pub(crate) fn push(&mut self, table: TableId, key: u64) {
        self.queue.push_back(Request { table, group: self.group, key });
    }

    /// Keeps those of which `keep` says so.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(TableId, u64) -> bool) {
        self.queue.retain(|request| keep(request.table, request.key));
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Takes what Gets have overtaken off the front, and out of the pending set; returns how many
    /// that were.
    pub(crate) fn pass_over(&mut self, pending: &mut PendingSet) -> u64 {
        let mut passed = 0;
        while let Some(next) = self.queue.front() {
            if !pending.is_overtaken(number(next.table), next.key) {
                break;
            }
            pending.remove(number(next.table), next.key);
            self.queue.pop_front();
            passed += 1;
        }
        passed
    }

    /// Takes a burst off the front, beginning with the first key that was not overtaken. Returns
    /// its table, and how many keys were passed over; `None` if no key is left.
    pub(crate) fn take_burst(
        &mut self,
        pending: &mut PendingSet,
        burst: &mut Vec<u64>,
    ) -> Option<(TableId, u64)> {
        let Request { table, mut group, .. } = *self.queue.front()?;
        let mut passed = 0;
        while let Some(&next) = self.queue.front().filter(|next| next.table == table) {
            if next.group != group && burst.len() >= BURST_KEYS_MIN {
                break;
            }
            group = next.group;
            burst.push(next.key);
            self.queue.pop_front();
            passed += self.pass_over(pending);
        }
        Some((table, passed))
    }
}
