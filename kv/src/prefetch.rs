//! Hints to the memory system.

/// Fetches the cache line of `place` for reading.
#[inline]
pub(crate) fn read<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// Fetches the cache line of `place` for writing.
#[inline]
pub(crate) fn write<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}
