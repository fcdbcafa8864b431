//! Assigns the keys of a table to shards.
//!
//! A key belongs to one of [`BUCKETS`] buckets, by a hash of the table's name and the key. A shard
//! owns a contiguous range of buckets. The hash is part of the format: a change would leave every
//! stored row on a shard that no reader asks. The golden values in the tests never change.

use crate::error::{Error, Result};

/// Number of buckets, the largest number of shards of a fleet.
pub const BUCKETS: u32 = crate::row::config::BUCKETS;

const BUCKET_BITS: u32 = BUCKETS.trailing_zeros();
const _: () = assert!(BUCKETS == 4096, "part of the format");

/// Number of the hash in the file `SHARD`: FNV-1a of the table's name, and the finaliser of
/// SplitMix64.
pub(crate) const HASH: u32 = 1;

/// The routing of one table over the shards of a fleet.
///
/// # Examples
/// ```
/// use embank::fleet::Routing;
///
/// let routing = Routing::new("user", 4)?;
/// let routed = routing.route(&[7, 8, 9]);
/// assert_eq!(routed.counts.iter().sum::<usize>(), 3);
/// let first = routed.counts.iter().position(|&count| count > 0).unwrap();
/// assert_eq!(routing.shard_of([7, 8, 9][routed.order[0]]) as usize, first);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    name_hash: u64,
    shards: u32,
}

/// The result of [`Routing::route`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Routed {
    /// The places of the keys in the batch, sorted by shard. Places of one shard ascend.
    pub order: Vec<usize>,
    /// The number of keys of each shard.
    pub counts: Vec<usize>,
}

impl Routing {
    /// Routes the keys of the table `table` over `shards` shards.
    ///
    /// # Errors
    /// [`InvalidOption`](crate::StoreError::InvalidOption) if `shards` is not 1 to [`BUCKETS`].
    pub fn new(table: &str, shards: u32) -> Result<Self> {
        check_shards(shards)?;
        Ok(Routing { name_hash: fnv1a64(table.as_bytes()), shards })
    }

    /// Returns the bucket of a key, below [`BUCKETS`].
    #[must_use]
    #[inline]
    pub fn bucket_of(&self, key: u64) -> u32 {
        (mix(key.wrapping_add(self.name_hash)) >> (u64::BITS - BUCKET_BITS)) as u32
    }

    /// Returns the number of the shard that holds the key's row.
    #[must_use]
    #[inline]
    pub fn shard_of(&self, key: u64) -> u32 {
        // Both factors are at most 2^12, so the product fits.
        (self.bucket_of(key) * self.shards) >> BUCKET_BITS
    }

    /// Sorts a batch of keys by shard.
    #[must_use]
    pub fn route(&self, keys: &[u64]) -> Routed {
        let shards: Vec<u32> = keys.iter().map(|&key| self.shard_of(key)).collect();
        let mut counts = vec![0; self.shards as usize];
        for &shard in &shards {
            counts[shard as usize] += 1;
        }
        let mut next: Vec<usize> = counts
            .iter()
            .scan(0, |begin, &count| Some(std::mem::replace(begin, *begin + count)))
            .collect();
        let mut order = vec![0; keys.len()];
        for (place, &shard) in shards.iter().enumerate() {
            let slot = &mut next[shard as usize];
            order[*slot] = place;
            *slot += 1;
        }
        Routed { order, counts }
    }
}

/// Checks the number of shards of a fleet.
pub(crate) fn check_shards(shards: u32) -> Result<()> {
    if (1..=BUCKETS).contains(&shards) {
        return Ok(());
    }
    Err(Error::option("shards", format!("must be from 1 to {BUCKETS}, not {shards}")))
}

/// The 64-bit FNV-1a hash (Fowler, Noll and Vo).
fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The finaliser of `SplitMix64`, "mix 13" of Stafford's "Better Bit Mixing" (2011).
#[inline]
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These values are part of the format, and never change.
    #[test]
    fn the_buckets_are_those_of_the_format() {
        assert_eq!(fnv1a64(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_F739_67E8);
        // The first two outputs of SplitMix64 from seed 0: `mix` of one and of two increments.
        assert_eq!(mix(0x9E37_79B9_7F4A_7C15), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(2)), 0x6E78_9E6A_A1B9_65F4);
        let buckets = |table: &str| {
            let routing = Routing::new(table, 1).unwrap();
            [0, 1, 7, 1 << 40, u64::MAX].map(|key| routing.bucket_of(key))
        };
        assert_eq!(buckets("user"), [4089, 3033, 507, 295, 579]);
        assert_eq!(buckets("item"), [2258, 3606, 1932, 2691, 3947]);
        assert_eq!(buckets(""), [3922, 3801, 235, 3949, 2037]);
    }

    #[test]
    fn a_shard_owns_a_contiguous_range_of_buckets() {
        for shards in [1, 2, 3, 7, 64, BUCKETS] {
            let routing = Routing::new("user", shards).unwrap();
            let mut owner = vec![None; BUCKETS as usize];
            for key in 0..200_000 {
                let bucket = routing.bucket_of(key) as usize;
                let shard = routing.shard_of(key);
                assert!(owner[bucket].is_none_or(|owner| owner == shard));
                owner[bucket] = Some(shard);
            }
            let owner: Vec<u32> = owner.into_iter().map(Option::unwrap).collect();
            assert!(owner.is_sorted());
            assert_eq!((owner[0], owner[BUCKETS as usize - 1]), (0, shards - 1));
            let mut lengths = vec![0_u32; shards as usize];
            owner.iter().for_each(|&shard| lengths[shard as usize] += 1);
            let least = lengths.iter().min().unwrap();
            assert!(lengths.iter().max().unwrap() - least <= 1, "{shards} shards");
        }
    }

    #[test]
    fn a_batch_is_sorted_by_shard_and_keeps_its_order_within_one() {
        let routing = Routing::new("user", 3).unwrap();
        let keys: Vec<u64> = (0..1000).map(|i| i * i % 512).collect();
        let Routed { order, counts } = routing.route(&keys);
        let mut places = order.clone();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..keys.len()));
        let mut begin = 0;
        for (shard, count) in counts.into_iter().enumerate() {
            let places = &order[begin..begin + count];
            assert!(places.is_sorted());
            assert!(places.iter().all(|&place| routing.shard_of(keys[place]) as usize == shard));
            begin += count;
        }
        assert_eq!(begin, keys.len());
        let none = routing.route(&[]);
        assert_eq!((none.order, none.counts), (vec![], vec![0; 3]));
    }

    #[test]
    fn a_fleet_has_between_one_shard_and_one_for_each_bucket() {
        for shards in [0, BUCKETS + 1] {
            let error = Routing::new("user", shards).unwrap_err().to_string();
            assert!(error.contains("from 1 to 4096"), "{error}");
        }
    }
}
