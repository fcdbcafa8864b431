//! Random numbers for stochastic rounding.

/// The random draws for one update of a row. A draw depends on the place in the row. All arithmetic
/// is 32-bit, so a vector register holds eight draws. The hash has two rounds (Wellons'
/// `lowbias32`). Each round begins by mixing in one half of `stream`, the 64-bit number of the row
/// and its update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draws {
    before: u32,
    between: u32,
}

impl Draws {
    pub(crate) fn new(stream: u64) -> Self {
        Self { before: stream as u32, between: (stream >> 32) as u32 }
    }

    /// Returns the draws for the part of the row that begins at place `places`.
    pub(crate) fn after(self, places: usize) -> Self {
        Self { before: self.before.wrapping_add((places as u32).wrapping_mul(STEP)), ..self }
    }

    /// Returns 32 random bits.
    #[inline(always)]
    pub(crate) fn at(&self, place: u32) -> u32 {
        let mut x = place.wrapping_mul(STEP).wrapping_add(self.before);
        x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D) ^ self.between;
        x = (x ^ (x >> 15)).wrapping_mul(0x846C_A68B);
        x ^ (x >> 16)
    }
}

/// Multiplier of a place in the row. It is odd, so all places of a row have different draws.
const STEP: u32 = 0x9E37_79B9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_set_half_of_the_time_and_neighbours_differ() {
        let mut set = [0_u32; 32];
        let mut same = [0_u32; 32];
        let rounds = 20_000;
        for update in 0..rounds {
            let draws = Draws::new(u64::from(update).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let one = draws.at(update % 64);
            let next = draws.at(update % 64 + 1);
            for bit in 0..32 {
                set[bit] += one >> bit & 1;
                same[bit] += !(one ^ next) >> bit & 1;
            }
            assert_eq!(draws.after(7).at(3), draws.at(10));
        }
        for counts in [set, same] {
            for count in counts {
                let part = f64::from(count) / f64::from(rounds);
                assert!((part - 0.5).abs() < 0.02, "{part}");
            }
        }
    }
}
