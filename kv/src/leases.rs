//! The leases: one for each batch that got rows for training, until the batch's owner puts, updates
//! or releases the rows (the answer).
//!
//! **Problem.** A get adds 1 to the count (staleness clock) of each row. The answer subtracts 1. If
//! no answer comes, because a thread hangs or a process with a lease has died, the counts never go
//! down. A row's count does not tell which batches it counts.
//!
//! **Approach.** A registry has one entry for each batch whose counts are up, which means that they
//! were added to the rows and not yet subtracted. The entry has the batch's keys. A thread that
//! waits for a row (the expirer) may declare old entries expired. It then subtracts their counts
//! from the rows. The entry's state decides whether the owner or an expirer subtracts the counts:
//!
//! | state | meaning | what ends the state |
//! |---|---|---|
//! | held | the counts are up | the owner changes it to answering, or an expirer to expired |
//! | answering | the owner subtracts the counts, with or without an update | the owner removes the entry |
//! | expired | the expirer subtracts the counts, or has done so | no thread: it is final |
//!
//! A thread leaves the state *held* by a compare-and-swap of the state. Of the owner and all
//! expirers, exactly one therefore succeeds, and only that thread subtracts the counts. An owner
//! that is too late learns this from the failed compare-and-swap, before it has changed a row. An
//! entry is removed once. If it expires, the expirer removes it, under the lock of the entry's
//! shard (a part of the registry). Otherwise the owner removes it.
//!
//! For a batch of any length, an entry costs one allocation, and two short locks of a shard.
//! Threads rarely use the same shard at the same time.

use std::sync::Arc;

use crate::process::running_time::RunningTime;
use crate::sync::{AtomicU32, Mutex, Ordering, Planted, planted};

const SHARDS: usize = 16;

const HELD: u32 = 0;
const ANSWERING: u32 = 1;
const EXPIRED: u32 = 2;

/// The registry of a table's leases. `T` describes a batch, for example by its keys.
///
/// ```
/// use std::time::Duration;
/// use embank_kv::{Leases, RunningTime};
///
/// let leases = Leases::default();
/// let taken = RunningTime::now();
/// let batch = leases.register([1, 2, 3], taken, 0);
/// let expired = leases.expire(taken + Duration::from_secs(1));
/// assert_eq!(expired.leases[0].what(), &[1, 2, 3]); // subtract these counts
/// assert!(!batch.begin_answer()); // the owner is too late
/// ```
#[derive(Debug)]
pub struct Leases<T> {
    shards: Box<[Shard<T>]>,
}

/// A part of the registry. The alignment keeps two shards from sharing a cache line.
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

/// The registry's entry for one batch.
#[derive(Debug)]
pub struct Leased<T> {
    state: AtomicU32,
    shard: u32,
    slot: u32,
    taken: RunningTime,
    what: T,
}

impl<T> Leased<T> {
    /// Returns the description that the batch was registered with.
    pub fn what(&self) -> &T {
        &self.what
    }

    /// Returns when the lease was taken.
    pub fn taken(&self) -> RunningTime {
        self.taken
    }

    /// Begins the owner's answer. The owner calls this once, before it subtracts the counts. If the
    /// result is true, the lease can't expire afterwards. If it is false, the lease has already
    /// expired, and the owner must not change the counts.
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
        // AcqRel: pairs with the Acquire loads of `is_held` and `is_expired`, and with the Acquire
        // of another thread's failed exchange. So that other thread sees everything that this
        // thread did before its exchange.
        self.state.compare_exchange(HELD, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The result of [`Leases::expire`].
#[derive(Debug)]
pub struct Expired<T> {
    /// The leases that expired in this call. The caller must subtract their counts from the rows.
    pub leases: Vec<Arc<Leased<T>>>,
    /// When the oldest lease that can still expire was taken. `None` if there is no such lease.
    pub oldest_left: Option<RunningTime>,
}

impl<T> Default for Leases<T> {
    fn default() -> Self {
        let shard = || Shard(Mutex::new(Slots { slots: Vec::new(), free: Vec::new() }));
        Leases { shards: (0..SHARDS).map(|_| shard()).collect() }
    }
}

impl<T> Leases<T> {
    /// Registers a batch that has added 1 to the count of each of its rows. `thread` is a number of
    /// the calling thread. Threads with different numbers rarely wait for each other.
    pub fn register(&self, what: T, taken: RunningTime, thread: usize) -> Arc<Leased<T>> {
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

    /// Removes a lease after the owner has [begun](Leased::begin_answer) an answer and subtracted
    /// the counts. Does nothing if the lease has expired.
    pub fn end(&self, lease: &Leased<T>) {
        if !lease.is_expired() {
            self.shards[lease.shard as usize].0.lock().take(lease.slot);
        }
    }

    /// Expires all leases that were taken at `before` or earlier and whose owner has not begun an
    /// answer.
    #[must_use]
    pub fn expire(&self, before: RunningTime) -> Expired<T> {
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

    /// Returns the leases that have neither expired nor ended, the oldest first. Leases whose owner
    /// has begun an answer are included.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_old_expire_and_only_once() {
        let leases = Leases::default();
        let start = RunningTime::now();
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
            let lease = leases.register((), RunningTime::now(), 3);
            assert!(lease.begin_answer());
            leases.end(&lease);
        }
        assert_eq!(leases.shards[3].0.lock().slots.len(), 1);
    }
}
