//! Prefetch hints, which bring memory into the processor's cache before a batch uses it.
//!
//! A prefetch brings a cache line into the first-level or the second-level cache. Which level makes
//! a batch faster depends on the processor, and the difference is up to a third
//! (docs/benchmarks.md). On AMD's processors, prefetches into the first level fill its few miss
//! buffers, and each further prefetch waits. Intel's processors have more of these buffers. There
//! the first level is faster, because each line of a row that must come from the second level costs
//! a wait. Neither kind is faster with prefetches for writing, so batches that write use the same
//! prefetches as batches that read.

use std::sync::atomic::{AtomicU8, Ordering};

/// The result of [`is_near_faster`]: `NEAR` or `FAR`. The value is 0 before the first call.
static FOUND: AtomicU8 = AtomicU8::new(0);
const NEAR: u8 = 1;
const FAR: u8 = 2;

/// True if this processor should prefetch rows into the first-level cache. False for the
/// second-level cache.
#[inline]
pub(crate) fn is_near_faster() -> bool {
    // Relaxed: every thread computes the same value.
    match FOUND.load(Ordering::Relaxed) {
        0 => look(),
        found => found == NEAR,
    }
}

#[cold]
fn look() -> bool {
    let near = !is_amd();
    FOUND.store(if near { NEAR } else { FAR }, Ordering::Relaxed);
    near
}

fn is_amd() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // The vendor's name, "AuthenticAMD", is in three registers in this order.
        let vendor = std::arch::x86_64::__cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes) == [*b"Auth", *b"enti", *b"cAMD"]
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Prefetches the cache line of `place` for reads and writes: into the first-level cache if `NEAR`,
/// else into the second-level cache.
#[inline]
pub(crate) fn line_into<const NEAR: bool, T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch accesses no memory and accepts every address. It only changes the cache.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        if NEAR {
            _mm_prefetch::<_MM_HINT_T0>(place.cast());
        } else {
            _mm_prefetch::<_MM_HINT_T1>(place.cast());
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// Prefetches the cache line of `place` into the first-level cache. For callers outside this crate
/// that touch no unsafe code.
#[inline]
pub fn prefetch<T>(place: &T) {
    line_into::<true, T>(place);
}

/// Prefetches the cache line of `place` into the second-level cache. Used for memory that the batch
/// does not need at once.
#[inline]
pub(crate) fn line<T>(place: *const T) {
    line_into::<false, T>(place);
}

/// Size in bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// Largest number of lines of one record that a batch prefetches, besides the record's last line.
/// The processor's own prefetcher loads the remaining lines of a longer record.
const LINES_AHEAD_MAX: usize = 8;

/// Offsets in a record whose lines a batch prefetches. A record begins at any multiple of 8 bytes,
/// so two records of one length may touch different numbers of lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordLines {
    /// The offsets are the multiples of [`LINE_BYTES`] below `end`, and `last_byte`.
    end: usize,
    last_byte: usize,
}

impl RecordLines {
    pub(crate) fn of(record_bytes: usize) -> Self {
        let lines = record_bytes.div_ceil(LINE_BYTES).min(LINES_AHEAD_MAX);
        Self { end: lines * LINE_BYTES, last_byte: record_bytes - 1 }
    }

    /// Calls `prefetch` with each offset except 0. Together with offset 0, the offsets touch every
    /// line of a record of at most 512 bytes. Two offsets may touch one line. The second prefetch
    /// of a line costs less than a branch that avoids it.
    #[inline(always)]
    pub(crate) fn each_after_first(self, mut prefetch: impl FnMut(usize)) {
        let mut offset = LINE_BYTES;
        while offset < self.end {
            prefetch(offset);
            offset += LINE_BYTES;
        }
        prefetch(self.last_byte);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Regression test: the batch did not prefetch one middle line of some records (a quarter of
    /// those of 88 bytes, half of those of 104 bytes). Each operation on such a record waited for
    /// memory.
    #[test]
    fn every_line_of_a_record_is_prefetched_wherever_the_record_begins() {
        for record_bytes in (24..=LINES_AHEAD_MAX * LINE_BYTES).step_by(8) {
            for start in (0..LINE_BYTES).step_by(8) {
                let mut lines = BTreeSet::from([start / LINE_BYTES]);
                RecordLines::of(record_bytes).each_after_first(|offset| {
                    assert!(offset < record_bytes);
                    lines.insert((start + offset) / LINE_BYTES);
                });
                let touched = (start + record_bytes - 1) / LINE_BYTES + 1;
                assert_eq!(lines, (0..touched).collect(), "{record_bytes} bytes at {start}");
            }
        }
    }

    #[test]
    fn a_long_record_has_a_limited_number_of_lines_prefetched() {
        let mut offsets = Vec::new();
        RecordLines::of(4096).each_after_first(|offset| offsets.push(offset));
        assert_eq!(offsets, [64, 128, 192, 256, 320, 384, 448, 4095]);
    }
}
