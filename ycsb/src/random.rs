//! Pseudo-random numbers from a seed. Each thread has its own stream.

use fastrand::Rng;

/// Returns the stream for a seed and a thread.
pub(crate) fn stream(seed: u64, thread: u64) -> Rng {
    Rng::with_seed(mix(seed ^ mix(thread.wrapping_add(1))))
}

/// Hashes a 64-bit number. Different numbers have different hashes, so no two rows get the same
/// key. This is the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
#[inline]
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
