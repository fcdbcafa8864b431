//! Random numbers that a seed decides.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// Yes, once in `times` on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// `bytes` bytes that key and version decide.
#[must_use]
pub fn content(key: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(key.wrapping_mul(0xD1B5_4A32_D192_ED03) ^ version);
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        content.extend_from_slice(&random.number().to_le_bytes());
    }
    content.truncate(bytes);
    content
}
