//! Switches for the mechanisms that decide which rows stay in memory and when rows are read.
//!
//! The measurement `mechanisms` of the crate `bench` trains once with all mechanisms on, and once
//! more for each mechanism, with that mechanism off. Without the feature `bench` there are no
//! switches, and [`is_on`] is a constant. A switch must be set before a bank is opened, because the
//! read cache chooses its layout at the opening.

#[cfg(feature = "bench")]
use crate::sync::{AtomicU32, Ordering};

/// A mechanism that can be turned off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// On: rows that lookahead announced stay in mutable memory until their batch uses them. Off:
    /// announced rows get no protection (`lookahead::window` of the crate `embank`).
    Window,
    /// On: often used rows are copied to the tail before their page leaves memory. Off: no row is
    /// copied (`retention`).
    Retention,
    /// On: memory moves between log and read cache, to the one that gains more from it. Off: the
    /// read cache gets a 32nd of its maximum (`cache::sizing`).
    CacheSizing,
    /// On: the read cache has a small queue for new rows, and a main queue for rows that were used
    /// again. Off: the cache has one queue (`cache::shard`).
    SmallQueue,
    /// On: a cached row that was used goes through its queue once more. Off: the oldest row leaves
    /// the queue first, used or not (`cache::shard`).
    CacheRounds,
    /// On: reads of lookahead, compaction and scans wait while the drive serves reads of batches.
    /// Off: all reads have the same priority (`device::priority`).
    Priorities,
}

/// Always true: without the feature `bench` no mechanism can be turned off.
#[cfg(not(feature = "bench"))]
#[inline(always)]
#[must_use]
pub const fn is_on(_: Mechanism) -> bool {
    true
}

#[cfg(feature = "bench")]
static OFF: AtomicU32 = AtomicU32::new(0);

/// True if the mechanism is on. A mechanism is on until [`turn_off`] turns it off.
#[cfg(feature = "bench")]
#[inline]
#[must_use]
pub fn is_on(mechanism: Mechanism) -> bool {
    // Relaxed: the switches are set before the threads of a bank start.
    OFF.load(Ordering::Relaxed) & 1 << mechanism as u32 == 0
}

/// Turns the listed mechanisms off and all others on. Applies to banks that this process opens
/// afterwards.
#[cfg(feature = "bench")]
pub fn turn_off(mechanisms: &[Mechanism]) {
    let bits = mechanisms.iter().fold(0, |bits, &mechanism| bits | 1 << mechanism as u32);
    OFF.store(bits, Ordering::Relaxed);
}
