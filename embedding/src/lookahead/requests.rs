//! The rows that wait to be read, in their order, and how they are cut into bursts.
//!
//! **Problem.** Among more rows, neighbours lie nearer to each other on disk, so one read brings
//! several of them (`kv/src/engine/batch/reads.rs`). But a Get that needs rows of the
//! current burst waits for the whole burst, or, if it needs few of them, reads its rows a second
//! time.
//!
//! **Approach.** Keys that were announced together are usually got together. They are a *group*,
//! and come in one burst. Small groups of one table are joined until the burst is long enough to
//! keep a drive busy. Larger groups stay alone. A group that is too large for a burst is first cut
//! into equal parts.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use embank_kv::TableId;

use crate::lookahead::pending::PendingSet;

/// A burst of this many keys is deep enough for any drive, so it takes no further group.
pub(crate) const BURST_KEYS_MIN: usize = 512;
/// The longest group. A burst is shorter than the sum of both limits.
pub(crate) const BURST_KEYS_MAX: usize = 4096;

/// The number of a table in the pending set. A dropped table's rows leave the queue with it, but
/// those of the current burst stay in the set until the burst has ended. If another table has the
/// number by then, its rows with these keys count as merged and are not read ahead. Such an
/// announcement is lost, as with a full queue.
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

/// The queue. Each of its rows is in the pending set too.
#[derive(Debug)]
pub(crate) struct Requests {
    queue: VecDeque<Request>,
    /// The newest group's number, which wraps. Only neighbours are compared. If two neighbours have
    /// one number after 65,536 groups, they count as one group.
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

    /// The groups of keys that were announced together: as few as possible, of equal length, and of
    /// at most `fitting` keys, unless that is too few for a burst.
    pub(crate) fn groups(keys: &[u64], fitting: usize) -> impl Iterator<Item = &[u64]> {
        let groups = keys.len().div_ceil(fitting.clamp(BURST_KEYS_MIN, BURST_KEYS_MAX));
        keys.chunks(keys.len().div_ceil(groups.max(1)).max(1))
    }

    /// Begins a new group with the next key that is pushed.
    pub(crate) fn begin_group(&mut self) {
        self.group = self.group.wrapping_add(1);
    }

    pub(crate) fn push(&mut self, table: TableId, key: u64) {
        self.queue.push_back(Request { table, group: self.group, key });
    }

    /// Keeps the requests for which `keep` is true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(TableId, u64) -> bool) {
        self.queue.retain(|request| keep(request.table, request.key));
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Removes overtaken rows from the front of the queue and from the pending set. Returns their
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

    /// Takes a burst from the front, beginning with the first key that was not overtaken. Returns
    /// its table, and the number of keys that were skipped; `None` if no key is left.
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
