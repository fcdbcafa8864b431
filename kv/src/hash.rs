//! Where a key's entry lies.

use crate::address::TableId;

/// Mixes table and key into the 64 bits that choose bucket and tag.
///
/// For one table this is a bijection (every step is invertible), so two keys of a table never share
/// all 64 bits. The finaliser is Pelle Evensen's "moremur", a stronger Murmur3 finaliser.
#[inline]
pub(crate) fn hash(table: TableId, key: u64) -> u64 {
    let mut x = key ^ u64::from(table.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 27)).wrapping_mul(0x3C79_AC49_2BA7_B653);
    x = (x ^ (x >> 33)).wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    x ^ (x >> 27)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_keys_spread_over_buckets_and_tags() {
        let n = 1u64 << 14;
        let mut buckets = vec![0u32; 1 << 10];
        let mut tags = std::collections::HashSet::new();
        for key in 0..n {
            let h = hash(TableId(3), key);
            buckets[(h & 1023) as usize] += 1;
            tags.insert((h >> 10) & 0xFFFF);
        }
        // 16 keys a bucket on average; a Poisson tail beyond 48 has probability below 1e-9.
        assert!(buckets.iter().all(|&c| c < 48));
        // 16,384 draws from 65,536 tags give about 14,500 distinct ones.
        assert!(tags.len() > 14_000, "{}", tags.len());
    }
}
