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
