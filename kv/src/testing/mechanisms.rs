//! Switches of the mechanisms that decide which rows are in memory and when rows are read.
//!
//! The measurement `mechanisms` of the crate `bench` runs the same training with all mechanisms on
//! and with one off. Builds without the feature `bench` have no switches: [`is_on`] is a constant
//! there. A switch is set before a bank is opened: the row cache lays its shards out by it.

#[cfg(feature = "bench")]
use crate::sync::{AtomicU32, Ordering};

/// A mechanism, and what its switch turns off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// Announced rows that are in mutable memory stay there until their batch comes. Off: nothing
    /// is remembered of them (`window` of the crate `embank`).
    Window,
    /// Rows that are used often are copied to the tail at the last call of their page. Off: no page
    /// has a last call (`retention`).
    Retention,
    /// Memory moves between log and row cache by the gain of each. Off: the row cache has a 32nd
    /// of its most (`cache::sizing`).
    CacheSizing,
    /// Rows enter the row cache by a small queue, and by their mark the main queue. Off: one queue
    /// (`cache::shard`).
    SmallQueue,
    /// Cached rows that were used go round again. Off: first in, first out (`cache::shard`).
    CacheRounds,
    /// Reads of lookahead, compaction and scans leave the drive's queue to the reads of batches.
    /// Off: all reads are alike (`device::priority`).
    Priorities,
}

/// True if the mechanism is at work: always, but for what [`turn_off`] was called with.
#[cfg(not(feature = "bench"))]
#[inline(always)]
#[must_use]
pub const fn is_on(_: Mechanism) -> bool {
    true
}

#[cfg(feature = "bench")]
static OFF: AtomicU32 = AtomicU32::new(0);

/// True if the mechanism is at work: always, but for what [`turn_off`] was called with.
#[cfg(feature = "bench")]
#[inline]
#[must_use]
pub fn is_on(mechanism: Mechanism) -> bool {
    // Relaxed: set before the threads of a bank start.
    OFF.load(Ordering::Relaxed) & 1 << mechanism as u32 == 0
}

/// Turns these mechanisms off and all others on, for the banks that this process opens from now on.
#[cfg(feature = "bench")]
pub fn turn_off(mechanisms: &[Mechanism]) {
    let bits = mechanisms.iter().fold(0, |bits, &mechanism| bits | 1 << mechanism as u32);
    OFF.store(bits, Ordering::Relaxed);
}
