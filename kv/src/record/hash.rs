//! The hash of a table and a key, which selects the key's bucket and tag in the index.
//!
//! **The hash is part of the format.** A checkpoint's image of the index holds bucket numbers and
//! tags, which are bits of the hash. With another hash function or seed, a lookup would find the
//! entries of other keys. The manifest therefore stores the seed, and a bank never changes its
//! seed.
//!
//! **Why a seed.** Keys often come from outside: user ids, or hashes of typed text. Without a
//! secret, an attacker could compute many keys with equal hash bits. Their records would form one
//! long chain, and each access would walk the whole chain. The seed is therefore drawn at random
//! for each bank. It changes the first multiplier and the value that is mixed with the key. If the
//! difference of two keys is multiplied by a random odd number, the upper bits of the product are
//! random (Dietzfelbinger et al. 1997, "A Reliable Randomized Algorithm for the Closest-Pair
//! Problem"). The later steps of the hash spread these bits. The hash is not cryptographic. An
//! attacker can still find colliding keys by reading the bank's files or by timing very many
//! accesses. Banks of format 5 have seed 0, which gives the hash of that format.

use crate::record::address::TableNumber;

const FIRST_MULTIPLIER: u64 = 0x3C79_AC49_2BA7_B653;

/// The hash function of one bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyHash {
    seed: u64,
    multiplier: u64,
}

impl KeyHash {
    /// Returns the hash function of a bank with this seed in its manifest.
    pub(crate) fn new(seed: u64) -> Self {
        // `change` is even, so the multiplier stays odd. Seed 0 gives a `change` of 0.
        let change = finish(seed.wrapping_mul(FIRST_MULTIPLIER)) << 1;
        KeyHash { seed, multiplier: FIRST_MULTIPLIER ^ change }
    }

    /// Mixes the table's number and the key into 64 bits, which select the bucket and the tag.
    ///
    /// Every step is invertible, so two keys of one table never share all 64 bits. With seed 0, the
    /// last steps are "moremur", Pelle Evensen's stronger variant of the Murmur3 finaliser.
    #[inline]
    pub(crate) fn of(self, table: TableNumber, key: u64) -> u64 {
        let x = key ^ (u64::from(table.0).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.seed);
        finish((x ^ (x >> 27)).wrapping_mul(self.multiplier))
    }
}

#[inline]
fn finish(x: u64) -> u64 {
    let x = (x ^ (x >> 33)).wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    x ^ (x >> 27)
}

/// Returns the key whose hash under seed 0 is `hash`.
#[cfg(any(test, feature = "bench"))]
pub(crate) fn unhash(table: TableNumber, hash: u64) -> u64 {
    fn inverse(odd: u64) -> u64 {
        // `odd` is its own inverse in the lowest 3 bits. Each step of Newton's iteration doubles
        // the number of correct low bits.
        (0..5).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))))
    }
    fn unshift(x: u64, by: u32) -> u64 {
        (0..64 / by).fold(x, |y, _| x ^ (y >> by))
    }
    let x = unshift(hash, 27).wrapping_mul(inverse(0x1C69_B3F7_4AC4_AE35));
    let x = unshift(x, 33).wrapping_mul(inverse(FIRST_MULTIPLIER));
    let key = unshift(x, 27) ^ u64::from(table.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    assert_eq!(KeyHash::new(0).of(table, key), hash);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "statistics of safe code, which take Miri too long")]
    fn sequential_keys_spread_over_buckets_and_tags() {
        let n = 1u64 << 14;
        for seed in [0, 1, 1 << 63, u64::MAX, 0x9E37_79B9_7F4A_7C15] {
            let hash = KeyHash::new(seed);
            let mut buckets = vec![0u32; 1 << 10];
            let mut tags = std::collections::HashSet::new();
            for key in 0..n {
                let h = hash.of(TableNumber(3), key);
                buckets[(h & 1023) as usize] += 1;
                tags.insert((h >> 10) & 0xFFFF);
            }
            // A bucket gets 16 keys on average. A Poisson tail beyond 48 has a probability below
            // 1e-9.
            assert!(buckets.iter().all(|&c| c < 48), "seed {seed:#x}");
            // 16,384 draws from 65,536 tags give about 14,500 distinct tags.
            assert!(tags.len() > 14_000, "seed {seed:#x}: {}", tags.len());
        }
    }

    /// Shows that seed 0 gives the hash of format 5, so that banks of format 5 stay readable. The
    /// loop computes that hash step by step.
    #[test]
    fn seed_0_is_the_hash_of_format_5() {
        let hash = KeyHash::new(0);
        for (table, key) in [(1, 0), (1, 1), (7, 0xDEAD_BEEF), (u16::MAX, u64::MAX)] {
            let mut x = key ^ u64::from(table).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            x = (x ^ (x >> 27)).wrapping_mul(0x3C79_AC49_2BA7_B653);
            x = (x ^ (x >> 33)).wrapping_mul(0x1C69_B3F7_4AC4_AE35);
            assert_eq!(hash.of(TableNumber(table), key), x ^ (x >> 27));
        }
    }

    /// Shows that keys whose hashes have equal low 30 bits under one seed collide under another
    /// seed only as often as random keys.
    #[test]
    #[cfg_attr(miri, ignore = "statistics of safe code, which take Miri too long")]
    fn keys_that_collide_under_one_seed_do_not_under_others() {
        let keys: Vec<u64> = (0..1 << 14).map(|i| unhash(TABLE, i << 30 | 5)).collect();
        let groups = |seed| {
            let hash = KeyHash::new(seed);
            let low = keys.iter().map(|&key| hash.of(TABLE, key) & 0x3FFF_FFFF);
            low.collect::<std::collections::HashSet<_>>().len()
        };
        assert_eq!(groups(0), 1);
        // 2^14 random draws from 2^30 values collide in 1/8 of a pair on average.
        for seed in [1, 2, 3, 1 << 40, 1 << 63, u64::MAX] {
            assert!(groups(seed) > (1 << 14) - 8, "seed {seed:#x}: {} groups", groups(seed));
        }
    }

    const TABLE: TableNumber = TableNumber(1);
}
