//! Where a key's entry lies.
//!
//! **The hash is part of the format.** Images of the index hold hash bits, as bucket numbers and
//! tags: with another hash or another seed their entries lead to other keys. So the seed stands in
//! the manifest, and a bank keeps it.
//!
//! **Why a seed.** Keys often come from outside: ids of users, or hashes of what they type. If the
//! hash had no secret, anyone could compute keys that meet in one chain, and each access would walk
//! all of them. The seed is drawn at random for each bank. It changes the first multiplier and the
//! value that is mixed with the key. The product of a difference of two keys and a random odd
//! multiplier is random in its upper bits (Dietzfelbinger et al. 1997, "A Reliable Randomized
//! Algorithm for the Closest-Pair Problem"). The later steps spread these bits. This is no
//! cryptographic hash: an attacker that can read the bank's files, or time very many accesses, can
//! still find such keys. Banks of format 5 have seed 0, and with it the hash of that format.

use crate::record::address::TableNumber;

const FIRST_MULTIPLIER: u64 = 0x3C79_AC49_2BA7_B653;

/// The hash of a bank's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyHash {
    seed: u64,
    multiplier: u64,
}

impl KeyHash {
    /// The hash of a bank whose manifest has this seed.
    pub(crate) fn new(seed: u64) -> Self {
        // Even, so that the multiplier stays odd, and 0 for seed 0.
        let change = finish(seed.wrapping_mul(FIRST_MULTIPLIER)) << 1;
        KeyHash { seed, multiplier: FIRST_MULTIPLIER ^ change }
    }

    /// Mixes table and key into the 64 bits that choose bucket and tag.
    ///
    /// For one table this is a bijection (every step is invertible), so two keys of a table never
    /// share all 64 bits. With seed 0 the finaliser is Pelle Evensen's "moremur", a stronger
    /// Murmur3 finaliser.
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

/// The key that has this hash under seed 0.
#[cfg(test)]
pub(crate) fn unhash(table: TableNumber, hash: u64) -> u64 {
    fn inverse(odd: u64) -> u64 {
        // Newton's iteration doubles the bits that are right, 3 at first.
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
            // 16 keys a bucket on average; a Poisson tail beyond 48 has probability below 1e-9.
            assert!(buckets.iter().all(|&c| c < 48), "seed {seed:#x}");
            // 16,384 draws from 65,536 tags give about 14,500 distinct ones.
            assert!(tags.len() > 14_000, "seed {seed:#x}: {}", tags.len());
        }
    }

    /// Banks of format 5 were written with this hash.
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

    /// Keys that differ in a few bits of one seed's hash meet no more often than others under
    /// another seed.
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
        // Of 2^14 draws from 2^30 values, an eighth of one pair meets on average.
        for seed in [1, 2, 3, 1 << 40, 1 << 63, u64::MAX] {
            assert!(groups(seed) > (1 << 14) - 8, "seed {seed:#x}: {} groups", groups(seed));
        }
    }

    const TABLE: TableNumber = TableNumber(1);
}
