//! The hint that brings memory into the cache before a batch touches it.

/// Fetches the cache line of `place` into the second-level cache, whether the batch will read or write it.
///
/// The second level, because the first level has few miss buffers: a core that fetches the lines of 32 rows ahead fills
/// them, and every further fetch waits. A fetch for writing asks for the same buffers, so writers use this hint too.
#[inline]
pub(crate) fn line<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}
