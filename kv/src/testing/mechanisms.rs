//! Switches of the mechanisms that decide which rows are in memory and when rows are read.
//!
//! The measurement `mechanisms` of the crate `bench` runs one training with all mechanisms on, and
//! once more for each mechanism with that one off. Builds without the feature `bench` have no
//! switches: [`is_on`] is a constant there. A switch must be set before a bank is opened, because
//! the row cache chooses its layout then.

#[cfg(feature = "bench")]
use crate::sync::{AtomicU32, Ordering};

/// A mechanism, and what its switch turns off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// Announced rows that are in mutable memory stay there until their batch comes. Off: announced
    /// rows are not remembered (`window` of the crate `embank`).
    Window,
    /// Rows that are used often are copied to the tail before their page leaves memory. Off: no row
    /// is copied (`retention`).
    Retention,
    /// Memory moves between log and row cache to the one that gains more from it. Off: the row
    /// cache has a 32nd of its maximum (`cache::sizing`).
    CacheSizing,
    /// Rows enter the row cache through a small queue, and the main queue if they are marked. Off:
    /// the cache has one queue (`cache::shard`).
    SmallQueue,
    /// A cached row that was used since it entered stays for another round of its queue. Off: the
    /// first row in is the first row out (`cache::shard`).
    CacheRounds,
    /// Reads of lookahead, compaction and scans wait while the drive has reads of batches. Off: all
    /// reads have one priority (`device::priority`).
    Priorities,
}

/// True if the mechanism is on. Without the feature `bench` every mechanism is on.
#[cfg(not(feature = "bench"))]
#[inline(always)]
#[must_use]
pub const fn is_on(_: Mechanism) -> bool {
    true
}

#[cfg(feature = "bench")]
static OFF: AtomicU32 = AtomicU32::new(0);

/// True if the mechanism is on. Every mechanism is on until [`turn_off`] turns it off.
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
