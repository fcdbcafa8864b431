//! Pseudo-random numbers: one stream a thread, from a seed.

use fastrand::Rng;

/// The stream of a seed and a thread.
pub(crate) fn stream(seed: u64, thread: u64) -> Rng {
    Rng::with_seed(mix(seed ^ mix(thread.wrapping_add(1))))
}

/// A bijection of the 64-bit numbers that leaves no visible order: no two rows get the same key. It
/// is the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
#[inline]
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
