//! Compares the seven tags of a bucket at once. `matching` uses instructions that every x86-64
//! processor has, and `matching_wide` uses AVX2. A batch probes a group of keys with AVX2 if the
//! processor has it, because that takes half the instructions.
//!
//! The loads are assembly, because other threads store into the slots, and the compiler assumes
//! that ordinary loads do not race with stores. The processor does not tear the 8-byte parts of an
//! aligned load, so each part is equivalent to a relaxed load. Tags and probes have at most 18
//! bits, so they fit 32-bit signed lanes.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_add_epi32, _mm_and_si128, _mm_castps_si128, _mm_castsi128_ps,
    _mm_cmpgt_epi32, _mm_movemask_ps, _mm_set1_epi32, _mm_setzero_si128, _mm_shuffle_ps,
    _mm_srli_epi64, _mm_xor_si128, _mm256_add_epi32, _mm256_and_si256, _mm256_castps_si256,
    _mm256_castsi256_ps, _mm256_cmpgt_epi32, _mm256_movemask_ps, _mm256_permute4x64_epi64,
    _mm256_set1_epi32, _mm256_setzero_si256, _mm256_shuffle_ps, _mm256_srli_epi64,
    _mm256_xor_si256,
};

use super::bucket::{Bucket, SLOTS};
use super::entry::{Probe, TAG_SHIFT};

/// Implements [`Bucket::matching`].
#[inline]
pub(super) fn matching(bucket: &Bucket, probe: Probe) -> u32 {
    let (a, b, c, d) = load(bucket);
    let low = matching_four(tags(a, b), probe);
    let high = matching_four(tags(c, d), probe);
    // The eighth lane is the meta word, which the mask removes.
    (low | high << 4) & ((1 << SLOTS) - 1)
}

/// Loads the bucket's eight words, two in each register.
#[inline]
fn load(bucket: &Bucket) -> (__m128i, __m128i, __m128i, __m128i) {
    let (a, b, c, d);
    // SAFETY: reads the 64 bytes of a live bucket, which is aligned to 64 bytes. The assembly is
    // not `pure`, so the compiler neither repeats it nor moves it before the Acquire load of the
    // caller.
    unsafe {
        asm!(
            "movdqa {a}, [{bucket}]",
            "movdqa {b}, [{bucket} + 16]",
            "movdqa {c}, [{bucket} + 32]",
            "movdqa {d}, [{bucket} + 48]",
            bucket = in(reg) std::ptr::from_ref(bucket),
            a = out(xmm_reg) a,
            b = out(xmm_reg) b,
            c = out(xmm_reg) c,
            d = out(xmm_reg) d,
            options(nostack, readonly, preserves_flags),
        );
    }
    (a, b, c, d)
}

/// Returns the tags of four slots in 32-bit lanes.
#[inline]
fn tags(two: __m128i, two_more: __m128i) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        let two = _mm_castsi128_ps(_mm_srli_epi64::<{ TAG_SHIFT as i32 }>(two));
        let two_more = _mm_castsi128_ps(_mm_srli_epi64::<{ TAG_SHIFT as i32 }>(two_more));
        // Selects the lower half of each 64-bit lane.
        _mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(two, two_more))
    }
}

/// Does the comparison of `Entry::matches` for four tags.
#[inline]
fn matching_four(tags: __m128i, probe: Probe) -> u32 {
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        let minus_one = _mm_set1_epi32(-1);
        let differ = _mm_xor_si128(tags, _mm_set1_epi32(probe.bits()));
        let up_to_lowest = _mm_xor_si128(differ, _mm_add_epi32(differ, minus_one));
        let below = _mm_cmpgt_epi32(up_to_lowest, _mm_add_epi32(tags, minus_one));
        // A tag of 0 belongs to an empty slot and matches nothing.
        let full = _mm_cmpgt_epi32(tags, _mm_setzero_si128());
        _mm_movemask_ps(_mm_castsi128_ps(_mm_and_si128(below, full))) as u32
    }
}

/// True if the processor can run [`matching_wide`].
#[inline]
pub(super) fn is_wide() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
}

/// Implements [`Bucket::matching`] with registers of 32 bytes.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
pub(super) fn matching_wide(bucket: &Bucket, probe: Probe) -> u32 {
    let (low, high): (__m256i, __m256i);
    // SAFETY: reads the 64 bytes of a live bucket, which is aligned to 64 bytes. The assembly is
    // not `pure`, so the compiler neither repeats it nor moves it before the Acquire load of the
    // caller.
    unsafe {
        asm!(
            "vmovdqa {low}, [{bucket}]",
            "vmovdqa {high}, [{bucket} + 32]",
            bucket = in(reg) std::ptr::from_ref(bucket),
            low = out(ymm_reg) low,
            high = out(ymm_reg) high,
            options(nostack, readonly, preserves_flags),
        );
    }
    let low = _mm256_castsi256_ps(_mm256_srli_epi64::<{ TAG_SHIFT as i32 }>(low));
    let high = _mm256_castsi256_ps(_mm256_srli_epi64::<{ TAG_SHIFT as i32 }>(high));
    // Selects the lower half of each 64-bit lane. The pairs of slots then have the order 0, 2, 1,
    // 3, and the permutation sorts them.
    let tags = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
    let tags = _mm256_permute4x64_epi64::<0b11_01_10_00>(tags);
    // Does the same comparison as `matching_four`, in eight lanes.
    let minus_one = _mm256_set1_epi32(-1);
    let differ = _mm256_xor_si256(tags, _mm256_set1_epi32(probe.bits()));
    let up_to_lowest = _mm256_xor_si256(differ, _mm256_add_epi32(differ, minus_one));
    let below = _mm256_cmpgt_epi32(up_to_lowest, _mm256_add_epi32(tags, minus_one));
    let full = _mm256_cmpgt_epi32(tags, _mm256_setzero_si256());
    let matching = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_and_si256(below, full))) as u32;
    // The eighth lane is the meta word, which the mask removes.
    matching & ((1 << SLOTS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn agrees_with_the_plain_form() {
        let mut state = 11u64;
        let mut random = || {
            state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ 0x5851_F42D;
            state
        };
        for round in 0..20_000 {
            let bucket = Bucket::default();
            let probe = Probe::new(random(), 0);
            for i in 0..SLOTS {
                // The slot is empty, has an arbitrary tag, or has the probe's bits cut to some
                // length.
                let tag = match random() % 4 {
                    0 => 0,
                    1 => random() & 0x1_FFFF,
                    _ => {
                        let bits = random() % 17;
                        probe.bits() as u64 & ((1 << bits) - 1) | 1 << bits
                    }
                };
                let address = if tag == 0 { 0 } else { random() & ((1 << TAG_SHIFT) - 1) };
                bucket.slot(i).store(tag << TAG_SHIFT | address, Ordering::Relaxed);
            }
            bucket.meta().store(random(), Ordering::Relaxed);
            let plain = bucket.matching_by_slot(probe);
            assert_eq!(matching(&bucket, probe), plain, "round {round}");
            if is_wide() {
                // SAFETY: the duty is that the processor has the instructions, and `is_wide` says
                // so.
                assert_eq!(unsafe { matching_wide(&bucket, probe) }, plain, "round {round}");
            }
        }
    }
}
