//! A homogeneous ribbon filter (Dillinger, Hübschle-Schneider, Sanders and Walzer, *Fast Succinct
//! Retrieval and Approximate Membership Using Ribbon*, SEA 2022).
//!
//! A filter has `m` slots of one bit in each *column*. A key names a window of 64 slots and 64
//! coefficients. Building chooses the bits so that, in each column, the coefficients of every key
//! select an even number of ones. Another key passes a column by chance, with probability one half.
//! The equations have no right side, so a solution always exists and building never fails.
//!
//! Columns are independent: the first `r` columns of a filter are a filter of `r` columns.
//!
//! **Layout.** A word holds 64 slots of a column. Columns come in stripes of four. A stripe holds
//! its words by slot, then by column: the two words that a window covers in four columns are 64
//! neighbouring bytes. They answer 15 of 16 lookups of absent keys.

use std::ops::Range;

use crate::ground::content;

/// Slots and coefficients of a key.
const WINDOW: usize = 64;
/// Slots for 100 keys.
const SLOTS_PERCENT: usize = 112;
/// Columns of a stripe.
const STRIPE: usize = 4;

/// The part of a key's hash that filters use. It is computed once for all filters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mixed {
    /// The window's place among the possible ones, as a fraction of 2^32.
    place: u32,
    coefficients: u64,
}

impl Mixed {
    /// Mixes a hash. Keys of one filter have hashes with equal upper bits.
    #[inline]
    pub(crate) fn of(hash: u64) -> Self {
        let folded = u128::from(hash ^ (hash >> 31)) * 0x9e37_79b9_7f4a_7c15;
        let mixed = (folded >> 64) as u64 ^ folded as u64;
        Mixed {
            place: (mixed >> 32) as u32,
            // An odd number: elimination relies on a first coefficient of 1.
            coefficients: mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) | 1,
        }
    }

    /// Returns the first slot of the window in a filter of `words` words a column.
    #[inline]
    fn start(self, words: u32) -> usize {
        let starts = u64::from(words) * WINDOW as u64 - (WINDOW as u64 - 1);
        ((u64::from(self.place) * starts) >> 32) as usize
    }
}

/// Returns the number of words of a column in a filter of `keys` keys.
pub(crate) fn words_a_column(keys: usize) -> u32 {
    (keys * SLOTS_PERCENT).div_ceil(100 * WINDOW).max(1) as u32
}

/// Words that must follow the last filter. A lookup reads two words a column. If its window ends
/// with the last word of a column, it reads the words that follow, and ignores them.
pub(crate) const PADDING: usize = STRIPE;

/// Builds filters. Keeps its memory for the next one.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    /// For each slot the equation that begins there, 0 if none does.
    equations: Vec<u64>,
}

impl Builder {
    /// Appends the filter of some keys to `words`.
    pub(crate) fn build<const COLUMNS: usize>(&mut self, hashes: &[u64], words: &mut Vec<u64>) {
        let count = words_a_column(hashes.len());
        self.eliminate(hashes, count);
        let first = words.len();
        words.resize(first + count as usize * COLUMNS, 0);
        self.substitute::<COLUMNS>(count, &mut words[first..]);
    }

    /// Brings the keys' equations into echelon form.
    fn eliminate(&mut self, hashes: &[u64], words: u32) {
        self.equations.clear();
        self.equations.resize(words as usize * WINDOW, 0);
        for &hash in hashes {
            let mixed = Mixed::of(hash);
            let (mut slot, mut coefficients) = (mixed.start(words), mixed.coefficients);
            // Each step moves the equation to a later slot. Its last coefficient stays in place, so
            // the loop ends before the last slot does.
            loop {
                let other = self.equations[slot];
                if other == 0 {
                    self.equations[slot] = coefficients;
                    break;
                }
                coefficients ^= other;
                if coefficients == 0 {
                    // The equation follows from earlier ones.
                    break;
                }
                let zeros = coefficients.trailing_zeros();
                slot += zeros as usize;
                coefficients >>= zeros;
            }
        }
    }

    /// Solves the equations from the last slot on. A slot without an equation gets random bits:
    /// zeros would let other keys pass more often.
    fn substitute<const COLUMNS: usize>(&self, words: u32, filter: &mut [u64]) {
        // For each column the 64 bits from the present slot on.
        let mut bits = [0u64; COLUMNS];
        for word in (0..words as usize).rev() {
            for slot in (word * WINDOW..(word + 1) * WINDOW).rev() {
                let equation = self.equations[slot];
                let free = if equation == 0 { content::word(slot) } else { 0 };
                for (column, bits) in bits.iter_mut().enumerate() {
                    let above = *bits << 1;
                    *bits = above | (parity(above & equation) ^ ((free >> column) & 1));
                }
            }
            for (column, &bits) in bits.iter().enumerate() {
                filter[place_of(word, column, words, COLUMNS)] = bits;
            }
        }
    }
}

/// Returns the place of a column's word in its filter.
#[inline]
fn place_of(word: usize, column: usize, words: u32, columns: usize) -> usize {
    let stripe = column / STRIPE * STRIPE;
    let width = STRIPE.min(columns - stripe);
    stripe * words as usize + word * width + column - stripe
}

/// A lookup whose memory has been found, and can be prefetched.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Window {
    /// The first word of the filter.
    filter: u32,
    words: u32,
    start: u32,
}

impl Window {
    /// Finds the memory of a lookup in the filter of `words` words a column that begins at
    /// `filter`.
    #[inline]
    pub(crate) fn of(mixed: Mixed, filter: u32, words: u32) -> Self {
        Window { filter, words, start: mixed.start(words) as u32 }
    }

    /// Returns the words that a lookup reads first. For most absent keys it reads no others.
    #[inline]
    pub(crate) fn first_stripe(self) -> Range<usize> {
        let first = self.filter as usize + self.start as usize / WINDOW * STRIPE;
        first..first + 2 * STRIPE
    }

    /// True if the filter may hold the key. Always true for a key of the filter.
    #[inline]
    pub(crate) fn may_hold<const COLUMNS: usize>(self, mixed: Mixed, filters: &[u64]) -> bool {
        let (word, shift) = (self.start as usize / WINDOW, self.start % WINDOW as u32);
        let passes = |stripe: usize, width: usize| {
            let at = self.filter as usize + stripe * self.words as usize + word * width;
            let pair = &filters[at..at + 2 * width];
            // The lookup joins the columns of a stripe: one branch that is seldom taken costs less
            // than up to four that the processor cannot predict.
            let odd = (0..width).fold(0, |odd, column| {
                let window = pair[column] >> shift | (pair[width + column] << 1) << (63 - shift);
                odd | parity(window & mixed.coefficients)
            });
            odd == 0
        };
        let mut stripe = 0;
        while stripe + STRIPE <= COLUMNS {
            if !passes(stripe, STRIPE) {
                return false;
            }
            stripe += STRIPE;
        }
        stripe == COLUMNS || passes(stripe, COLUMNS - stripe)
    }
}

/// Returns 1 if the number of ones is odd, else 0.
#[inline]
fn parity(bits: u64) -> u64 {
    u64::from(bits.count_ones() & 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes with equal upper bits, as those of one group are.
    fn hashes(from: usize, count: usize) -> Vec<u64> {
        (from..from + count).map(|place| (0xabcd << 48) | (content::word(place) >> 16)).collect()
    }

    fn holds<const COLUMNS: usize>(words: &[u64], keys: usize, hash: u64) -> bool {
        let mixed = Mixed::of(hash);
        Window::of(mixed, 0, words_a_column(keys)).may_hold::<COLUMNS>(mixed, words)
    }

    #[test]
    fn every_key_passes_whatever_the_number_of_keys() {
        let mut builder = Builder::default();
        for count in [0, 1, 2, 56, 57, 58, 63, 64, 65, 500, 3_199, 3_200] {
            let keys = hashes(count << 20, count);
            let (mut nine, mut four) = (Vec::new(), Vec::new());
            builder.build::<9>(&keys, &mut nine);
            builder.build::<4>(&keys, &mut four);
            nine.resize(nine.len() + PADDING, u64::MAX);
            four.resize(four.len() + PADDING, u64::MAX);
            for &hash in &keys {
                assert!(holds::<9>(&nine, count, hash), "{count} keys, 9 columns");
                assert!(holds::<4>(&four, count, hash), "{count} keys, 4 columns");
            }
        }
    }

    /// The rate of false positives of `COLUMNS` columns over many filters.
    fn rate<const COLUMNS: usize>(filters: usize, probes: usize) -> f64 {
        let mut builder = Builder::default();
        let mut passed = 0;
        for number in 0..filters {
            let mut words = Vec::new();
            builder.build::<COLUMNS>(&hashes(number << 32, 3_200), &mut words);
            words.resize(words.len() + PADDING, 0);
            let others = hashes((number << 32) + (1 << 20), probes);
            passed += others.iter().filter(|&&hash| holds::<COLUMNS>(&words, 3_200, hash)).count();
        }
        passed as f64 / (filters * probes) as f64
    }

    /// The bounds leave five standard deviations of the counts, and the excess of a homogeneous
    /// filter over 2^-r at this slack.
    #[test]
    fn other_keys_pass_as_rarely_as_the_columns_promise() {
        let nine = rate::<9>(20, 20_000) * 512.0;
        assert!((0.82..1.25).contains(&nine), "9 columns: {nine} of 2^-9");
        let four = rate::<4>(10, 20_000) * 16.0;
        assert!((0.95..1.08).contains(&four), "4 columns: {four} of 2^-4");
    }

    #[test]
    fn a_filter_takes_the_bits_of_the_design() {
        let mut words = Vec::new();
        Builder::default().build::<9>(&hashes(0, 3_200), &mut words);
        assert_eq!(words.len() * 64 * 100, 1_008 * 3_200, "10.08 bits a key");
    }

    #[test]
    fn a_changed_word_denies_some_key() {
        let keys = hashes(7, 3_200);
        let mut words = Vec::new();
        Builder::default().build::<9>(&keys, &mut words);
        words.resize(words.len() + PADDING, 0);
        words[0] ^= u64::MAX;
        assert!(keys.iter().any(|&hash| !holds::<9>(&words, 3_200, hash)));
    }
}
