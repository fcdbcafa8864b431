//! The two hashes of raw values. Both hashes are part of the format (docs/format.md).

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The fingerprint of a vocabulary without values.
pub(crate) const EMPTY_FINGERPRINT: u64 = 0;

/// Returns the key of the record that holds a byte string. Each vocabulary has its own random seed,
/// so a caller that does not know the seed can't choose strings that share a record. The hash is
/// not cryptographic.
#[inline]
pub(crate) fn key_of(seed: u64, value: &[u8]) -> u64 {
    #[cfg(test)]
    if seed == CLASHING_SEED {
        return xxh3_64(value) & 63;
    }
    xxh3_64_with_seed(value, seed)
}

/// A seed for tests: with it, all strings share 64 hashes.
#[cfg(test)]
pub(crate) const CLASHING_SEED: u64 = 0xC1A5;

/// The fingerprint of a vocabulary to which a value is appended. It depends only on the values and
/// their order. Two vocabularies with equal values in equal order therefore have equal
/// fingerprints.
#[inline]
pub(crate) fn fingerprint_with(fingerprint: u64, value: &[u8]) -> u64 {
    // SplitMix64's finaliser.
    let mut mixed =
        (fingerprint.rotate_left(23) ^ xxh3_64(value)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Returns a random number, for an identity or a seed.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashes_are_those_of_the_format() {
        assert_eq!(key_of(0, b""), 0x2D06_8005_38D3_94C2);
        assert_eq!(xxh3_64(b"a"), 0xE6C6_32B6_1E96_4E1F);
    }

    #[test]
    fn a_fingerprint_depends_on_the_order() {
        let of = |values: &[&[u8]]| {
            values.iter().fold(EMPTY_FINGERPRINT, |print, value| fingerprint_with(print, value))
        };
        assert_ne!(of(&[b"a", b"b"]), of(&[b"b", b"a"]));
        assert_ne!(of(&[b"ab"]), of(&[b"a", b"b"]));
        assert_ne!(of(&[b""]), EMPTY_FINGERPRINT);
    }
}
