//! The leases: batches that got rows for training and have not been answered yet.
//!
//! **Problem.** A get adds 1 to each row's count, and its answer subtracts it. If no answer comes,
//! because a thread hangs or a worker with a lease died, the counts stay up forever. No thread can
//! tell whose counts they are.
//!
//! **Approach.** A registry has one entry for each batch that holds counts, with the batch's keys.
//! A waiting thread may declare old entries expired and give their counts back. The entry's state
//! decides which thread does so:
//!
//! | state | meaning | what ends it |
//! |---|---|---|
//! | held | the counts are up | the owner goes to answering, an expirer to expired |
//! | answering | the owner brings the counts down, with or without an update | the entry is removed when that is done |
//! | expired | an expirer brings the counts down, or has done so | no thread changes it |
//!
//! Both ways out of *held* are one compare-and-swap of the same word. Among the owner and all
//! expirers, exactly one therefore succeeds, and only that one gives the counts back. An owner that
//! comes too late learns this before it has changed a row. An entry is removed once: from *held* by
//! its expirer, under the shard's lock, else by its owner.
//!
//! For a batch of any length, an entry costs one allocation and two short locks of a shard, which
//! threads rarely share.

use std::sync::Arc;
use std::time::Instant;

use crate::sync::{AtomicU32, Mutex, Ordering, Planted, planted};

const SHARDS: usize = 16;

const HELD: u32 = 0;
const ANSWERING: u32 = 1;
const EXPIRED: u32 = 2;

/// The batches of a table that hold counts. `T` describes a batch, for example its keys.
///
/// ```
/// use std::time::{Duration, Instant};
/// use embank_kv::Leases;
///
/// let leases = Leases::default();
/// let taken = Instant::now();
/// let batch = leases.register([1, 2, 3], taken, 0);
/// let expired = leases.expire(taken + Duration::from_secs(1));
/// assert_eq!(expired.leases[0].what(), &[1, 2, 3]); // the caller gives these counts back
/// assert!(!batch.begin_answer()); // the owner must leave the counts alone
/// ```
#[derive(Debug)]
pub struct Leases<T> {
    shards: Box<[Shard<T>]>,
}

/// A part of the registry. Aligned so that no two shards share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<T>(Mutex<Slots<T>>);

#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Option<Arc<Leased<T>>>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    fn take(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
        self.free.push(slot);
    }
}

/// A batch that holds counts.
#[derive(Debug)]
pub struct Leased<T> {
    state: AtomicU32,
    shard: u32,
    slot: u32,
    taken: Instant,
    what: T,
}

impl<T> Leased<T> {
    /// Returns the description that the batch was registered with.
    pub fn what(&self) -> &T {
        &self.what
    }

    /// Returns when the lease was taken.
    pub fn taken(&self) -> Instant {
        self.taken
    }

    /// Begins the owner's answer. The owner calls this once, before it gives the counts back. The
    /// lease can't expire afterwards. False if the lease has already expired: the owner must then
    /// leave the counts alone.
    #[must_use]
    pub fn begin_answer(&self) -> bool {
        self.leave_held(ANSWERING)
    }

    /// True if the owner can still begin an answer.
    #[must_use]
    pub fn is_held(&self) -> bool {
        // Acquire: pairs with the Release half of `leave_held`.
        self.state.load(Ordering::Acquire) == HELD
    }

    /// True if the lease has expired.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        // Acquire: pairs with the Release half of `leave_held`.
        self.state.load(Ordering::Acquire) == EXPIRED
    }

    fn leave_held(&self, to: u32) -> bool {
        if planted(Planted::ExpiryUncompared) {
            let held = self.is_held();
            self.state.store(to, Ordering::Release);
            return held;
        }
        // AcqRel: the loser's later actions come after the winner's earlier ones. Acquire on
        // failure: as in `is_held`.
        self.state.compare_exchange(HELD, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The result of [`Leases::expire`].
#[derive(Debug)]
pub struct Expired<T> {
    /// The leases that expired in this call. The caller must give their counts back.
    pub leases: Vec<Arc<Leased<T>>>,
    /// When the oldest lease that is still held was taken.
    pub oldest_left: Option<Instant>,
}

impl<T> Default for Leases<T> {
    fn default() -> Self {
        let shard = || Shard(Mutex::new(Slots { slots: Vec::new(), free: Vec::new() }));
        Leases { shards: (0..SHARDS).map(|_| shard()).collect() }
    }
}

impl<T> Leases<T> {
    /// Registers a batch whose counts are up. Threads with different `thread` numbers rarely wait
    /// for each other.
    pub fn register(&self, what: T, taken: Instant, thread: usize) -> Arc<Leased<T>> {
        let shard = thread % SHARDS;
        let mut slots = self.shards[shard].0.lock();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.slots.push(None);
            slots.slots.len() as u32 - 1
        });
        let state = AtomicU32::new(HELD);
        let lease = Arc::new(Leased { state, shard: shard as u32, slot, taken, what });
        slots.slots[slot as usize] = Some(Arc::clone(&lease));
        lease
    }

    /// Removes a lease after the owner has [begun](Leased::begin_answer) an answer and given the
    /// counts back. Does nothing if the lease has expired.
    pub fn end(&self, lease: &Leased<T>) {
        if !lease.is_expired() {
            self.shards[lease.shard as usize].0.lock().take(lease.slot);
        }
    }

    /// Declares all leases expired that were taken at `before` or earlier and are not being
    /// answered.
    #[must_use]
    pub fn expire(&self, before: Instant) -> Expired<T> {
        let mut expired = Expired { leases: Vec::new(), oldest_left: None };
        for shard in &self.shards {
            let mut slots = shard.0.lock();
            for slot in 0..slots.slots.len() {
                let Some(lease) = &slots.slots[slot] else { continue };
                if !lease.is_held() {
                    continue;
                }
                if lease.taken > before {
                    let oldest = expired.oldest_left.get_or_insert(lease.taken);
                    *oldest = lease.taken.min(*oldest);
                } else if lease.leave_held(EXPIRED) {
                    expired.leases.push(Arc::clone(lease));
                    slots.take(slot as u32);
                }
            }
        }
        expired
    }

    /// Returns the leases that hold counts now, the oldest first.
    #[must_use]
    pub fn held(&self) -> Vec<Arc<Leased<T>>> {
        let mut held = Vec::new();
        for shard in &self.shards {
            held.extend(shard.0.lock().slots.iter().flatten().cloned());
        }
        held.sort_by_key(|lease| lease.taken);
        held
    }
}

impl<T> Leases<T> {
    /// Returns the leases with this `thread` number that hold counts now. May also return leases of
    /// other threads.
    #[must_use]
    pub fn of_thread(&self, thread: usize) -> Vec<Arc<Leased<T>>> {
        self.shards[thread % SHARDS].0.lock().slots.iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_old_expire_and_only_once() {
        let leases = Leases::default();
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let batches: Vec<_> = (0..40).map(|i| leases.register(i, at(i), i as usize)).collect();
        assert!(batches[3].begin_answer());
        let expired = leases.expire(at(9));
        let mut which: Vec<_> = expired.leases.iter().map(|lease| *lease.what()).collect();
        which.sort_unstable();
        assert_eq!(which, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
        assert_eq!(expired.oldest_left, Some(at(10)));
        assert!(leases.expire(at(9)).leases.is_empty());
        assert!(!batches[4].begin_answer() && batches[4].is_expired());
        assert_eq!(leases.held().len(), 31, "one of them is being answered");
        leases.end(&batches[3]);
        leases.end(&batches[4]);
        assert_eq!(leases.held().len(), 30);
        assert_eq!(*leases.held()[0].what(), 10);
    }

    #[test]
    fn slots_are_used_again() {
        let leases = Leases::default();
        for _ in 0..100 {
            let lease = leases.register((), Instant::now(), 3);
            assert!(lease.begin_answer());
            leases.end(&lease);
        }
        assert_eq!(leases.shards[3].0.lock().slots.len(), 1);
    }
}
