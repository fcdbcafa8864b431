//! The queued rows in order, and the rule that divides them into bursts.
//!
//! **Problem.** A larger burst has rows that lie closer together on disk, so one read brings
//! several of them (`kv/src/engine/batch/reads.rs`). But a Get that needs many rows of the current
//! burst waits for the whole burst. A Get that needs only a few of them reads these rows itself,
//! although the burst reads them too.
//!
//! **Approach.** Keys that one call announces are usually read by one Get. They form a *group* and
//! come in one burst. Small groups of one table are joined until the burst is long enough to keep a
//! drive busy. A group that is long enough forms a burst alone. A group that is too large for one
//! burst is first divided into equal groups.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use embank_kv::TableId;

use crate::lookahead::pending::PendingSet;

/// A burst takes no further group once it has this many keys, which keeps any drive busy.
pub(crate) const BURST_KEYS_MIN: usize = 512;
/// Largest number of keys in a group. A burst has fewer than `BURST_KEYS_MIN + BURST_KEYS_MAX`
/// keys.
pub(crate) const BURST_KEYS_MAX: usize = 4096;

/// Returns the number that stands for a table in the pending set. If a table is dropped, its rows
/// leave the queue, but rows of the current burst stay in the set until the burst ends. Until then,
/// a new table may get the number of the dropped table. The new table's announcements of keys that
/// are still in the set then count as merged, and the worker does not read these rows in advance.
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

/// The queue. Each of its rows is also in the pending set.
#[derive(Debug)]
pub(crate) struct Requests {
    queue: VecDeque<Request>,
    /// Number of the newest group. It wraps after 65,536 groups. Only the numbers of neighbouring
    /// requests are compared. Neighbours with equal numbers count as one group.
    group: u16,
}

impl Requests {
    /// Memory per key of the queue's capacity, in bytes.
    pub(crate) const BYTES_PER_KEY: u64 = size_of::<Request>() as u64;

    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { queue: VecDeque::with_capacity(capacity), group: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Divides keys that were announced together into groups: as few as possible, of equal length,
    /// with at most `fitting` keys. If `fitting` is less than [`BURST_KEYS_MIN`], a group may have
    /// `BURST_KEYS_MIN` keys.
    pub(crate) fn groups(keys: &[u64], fitting: usize) -> impl Iterator<Item = &[u64]> {
        let groups = keys.len().div_ceil(fitting.clamp(BURST_KEYS_MIN, BURST_KEYS_MAX));
        keys.chunks(keys.len().div_ceil(groups.max(1)).max(1))
    }

    /// Begins a new group. The next pushed key is its first.
    pub(crate) fn begin_group(&mut self) {
        self.group = self.group.wrapping_add(1);
    }

    pub(crate) fn push(&mut self, table: TableId, key: u64) {
        self.queue.push_back(Request { table, group: self.group, key });
    }

    /// Keeps the requests for which `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(TableId, u64) -> bool) {
        self.queue.retain(|request| keep(request.table, request.key));
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Removes overtaken rows from the front of the queue, and from the pending set. Returns their
    /// number.
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

    /// Takes a burst from the front of the queue, whose first key must not be overtaken. Returns
    /// the burst's table, and the number of overtaken keys that were skipped. `None` if the queue
    /// is empty.
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
