//! Contents of rows and blobs.

use fastrand::Rng;

/// Returns `bytes` pseudo-random bytes. Only `key` and `version` decide their values.
#[must_use]
pub fn content(key: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    Rng::with_seed(key.wrapping_mul(0xD1B5_4A32_D192_ED03) ^ version).fill(&mut content);
    content
}
