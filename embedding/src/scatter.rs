//! A hash of keys for tables in memory, with a secret of the process.
//!
//! Keys often come from outside: user ids, or hashes of typed text. With a known hash, a caller
//! could send thousands of keys that share a slot, and each look-up would pass all of them. The
//! hash is therefore multiplied by an odd number that each process draws at random. The difference
//! of two keys times a random odd number has random upper bits (Dietzfelbinger et al. 1997, "A
//! Reliable Randomized Algorithm for the Closest-Pair Problem"). The hash is not cryptographic.
//!
//! No result may depend on the hash: not the order of keys, and nothing that is stored.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// A hash of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scatter {
    multiplier: u64,
}

impl Scatter {
    /// Returns the hash of this process.
    pub(crate) fn of_process() -> Self {
        static OF_PROCESS: OnceLock<Scatter> = OnceLock::new();
        *OF_PROCESS.get_or_init(|| Self::with(RandomState::new().hash_one(std::process::id())))
    }

    /// Returns the hash whose multiplier belongs to `seed`.
    pub(crate) fn with(seed: u64) -> Self {
        // SplitMix64's finaliser.
        let mut mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self { multiplier: mixed ^ mixed >> 31 | 1 }
    }

    /// Hashes a key by folding both halves of a 128-bit product, and the halves of the result.
    /// Regular keys (runs, strides, powers of two) then spread about as evenly as random keys over
    /// the lower bits of the hash.
    #[inline(always)]
    pub(crate) fn hash(self, key: u64) -> u64 {
        let product = u128::from(key) * u128::from(self.multiplier);
        let folded = product as u64 ^ (product >> 64) as u64;
        folded ^ (folded >> 32)
    }

    /// Returns the slot of a key in a table whose number of slots need not be a power of two.
    pub(crate) fn slot(self, key: u64, slots: usize) -> usize {
        // The multiplication brings the lower bits, which spread evenly, to the top.
        let hash = self.hash(key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(hash) * slots as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Shows that few of many regular keys share a slot of a table with eight slots per key. Of
    /// random keys, one in sixteen does.
    #[test]
    fn regular_keys_do_not_cluster() {
        let count: u64 = 1 << 12;
        for seed in 0..20 {
            let scatter = Scatter::with(seed);
            for (shift, step) in (0..48).flat_map(|shift| [1, 3, 1000].map(|step| (shift, step))) {
                let keys = || (0..count).map(|i| (i * step) << shift);
                let distinct = keys().collect::<HashSet<_>>().len();
                let of_power: HashSet<u64> =
                    keys().map(|key| scatter.hash(key) & (8 * count - 1)).collect();
                let slots = 8 * count as usize + 77;
                let of_any: HashSet<usize> = keys().map(|key| scatter.slot(key, slots)).collect();
                for slots in [of_power.len(), of_any.len()] {
                    let missed = distinct - slots;
                    let of = format!("{missed} of {distinct} keys at {step} << {shift}");
                    assert!(missed < distinct / 4, "seed {seed}: {of}");
                }
            }
        }
    }

    #[test]
    fn a_process_has_one_hash() {
        let hash = |scatter: Scatter| (0..9).map(|key| scatter.hash(key)).collect::<Vec<_>>();
        assert_eq!(hash(Scatter::of_process()), hash(Scatter::of_process()));
        assert_ne!(hash(Scatter::with(1)), hash(Scatter::with(2)));
    }
}
