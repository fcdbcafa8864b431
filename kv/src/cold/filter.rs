//! Filters: whether a group of blocks may have a hash.
//!
//! A homogeneous ribbon filter (Dillinger, Hübschle-Schneider, Sanders and Walzer, *Fast Succinct
//! Retrieval and Approximate Membership Using Ribbon*, SEA 2022) has `m` slots of one bit in each
//! *column*. A key names a window of 64 slots and 64 coefficients. Building chooses the bits so
//! that, in each column, the coefficients of every key select an even number of ones. Another key
//! passes a column by chance, with probability one half. The equations have no right side, so a
//! solution always exists and building never fails. Columns are independent: `r` columns let about
//! one of 2^r other keys pass.
//!
//! The number of keys is known only when the group is complete, so the writer keeps the hashes of
//! one group until then.
//!
//! **Layout.** A word holds 64 slots of a column. Columns come in stripes of four; the last stripe
//! has what is left. A stripe holds its words by slot, then by column: the two words that a window
//! covers in four columns are 64 neighbouring bytes. They answer 15 of 16 lookups of absent keys.

/// Slots and coefficients of a key.
const WINDOW: usize = 64;
/// Slots for 100 keys.
const SLOTS_PERCENT: usize = 112;
/// Columns of a stripe.
const STRIPE: usize = 4;
/// Largest number of columns.
pub(crate) const COLUMNS_MAX: u32 = 16;

/// Words that must follow the last filter in memory. A lookup reads two words a column. If its
/// window ends with the last word of a column, it reads the words that follow, and ignores them.
pub(crate) const PADDING: usize = 2 * STRIPE;

/// The part of a hash that filters use. A batch computes it once for each key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MixedHash {
    /// The window's place among the possible ones, as a fraction of 2^32.
    place: u32,
    coefficients: u64,
}

impl MixedHash {
    /// Mixes a hash. The keys of one filter have hashes with equal upper bits.
    #[inline]
    pub(crate) fn of(hash: u64) -> Self {
        let folded = u128::from(hash ^ (hash >> 31)) * 0x9e37_79b9_7f4a_7c15;
        let mixed = (folded >> 64) as u64 ^ folded as u64;
        MixedHash {
            place: (mixed >> 32) as u32,
            // An odd number: elimination relies on a first coefficient of 1.
            coefficients: mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) | 1,
        }
    }

    /// Returns the first slot of the window in a filter of `words` words a column.
    #[inline]
    fn start(self, words: u32) -> u32 {
        let starts = u64::from(words) * WINDOW as u64 - (WINDOW as u64 - 1);
        ((u64::from(self.place) * starts) >> 32) as u32
    }
}

/// Returns the words of a column in a filter of `keys` keys.
pub(super) fn words_a_column(keys: usize) -> u32 {
    (keys * SLOTS_PERCENT).div_ceil(100 * WINDOW).max(1) as u32
}

/// Builds filters. Keeps its memory for the next one.
#[derive(Debug, Default)]
pub(crate) struct FilterBuilder {
    /// For each slot the equation that begins there, 0 if none does.
    equations: Vec<u64>,
}

impl FilterBuilder {
    /// Appends the filter of some hashes to `words`. Returns the words of a column.
    pub(crate) fn build(&mut self, hashes: &[u64], columns: u32, words: &mut Vec<u64>) -> u32 {
        let count = words_a_column(hashes.len());
        let first = words.len();
        words.resize(first + count as usize * columns as usize, 0);
        if columns > 0 {
            self.eliminate(hashes, count);
            self.substitute(count, columns as usize, &mut words[first..]);
        }
        count
    }

    /// Brings the equations of the hashes into echelon form.
    fn eliminate(&mut self, hashes: &[u64], words: u32) {
        self.equations.clear();
        self.equations.resize(words as usize * WINDOW, 0);
        for &hash in hashes {
            let mixed = MixedHash::of(hash);
            let (mut slot, mut coefficients) = (mixed.start(words) as usize, mixed.coefficients);
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
    fn substitute(&self, words: u32, columns: usize, filter: &mut [u64]) {
        // For each column the 64 bits from the present slot on.
        let mut all = [0_u64; COLUMNS_MAX as usize];
        let bits = &mut all[..columns];
        for word in (0..words as usize).rev() {
            for slot in (word * WINDOW..(word + 1) * WINDOW).rev() {
                let equation = self.equations[slot];
                let free = if equation == 0 { random_bits(slot) } else { 0 };
                for (column, bits) in bits.iter_mut().enumerate() {
                    let above = *bits << 1;
                    *bits = above | (parity(above & equation) ^ ((free >> column) & 1));
                }
            }
            for (column, &bits) in bits.iter().enumerate() {
                filter[place_of(word, column, words as usize, columns)] = bits;
            }
        }
    }
}

/// Returns the bits of a slot without an equation. The steps are those of SplitMix64.
fn random_bits(slot: usize) -> u64 {
    let x = (slot as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the place of a column's word in its filter.
#[inline]
fn place_of(word: usize, column: usize, words: usize, columns: usize) -> usize {
    let stripe = column / STRIPE * STRIPE;
    let width = STRIPE.min(columns - stripe);
    stripe * words + word * width + column - stripe
}

/// Keeps the first `kept` of the `columns` columns of a filter. The filter has `words` words a
/// column and begins at word `from` of `filters`. Writes the columns from word `to` on, which is
/// not above `from`.
pub(super) fn keep_columns(
    filters: &mut [u64],
    (from, to): (usize, usize),
    words: usize,
    (columns, kept): (usize, usize),
) {
    // No word is overwritten before it is read: with fewer columns, each word's place in its filter
    // is at most as high.
    for stripe in (0..kept).step_by(STRIPE) {
        for word in 0..words {
            for column in stripe..kept.min(stripe + STRIPE) {
                filters[to + place_of(word, column, words, kept)] =
                    filters[from + place_of(word, column, words, columns)];
            }
        }
    }
}

/// The memory of a lookup in a filter.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FilterWindow {
    /// The first word of the filter.
    filter: u32,
    words: u32,
    start: u32,
}

impl FilterWindow {
    /// Returns the window of a hash before the first group. No filter has it.
    pub(super) fn none() -> Self {
        FilterWindow::default()
    }

    /// Finds the memory of a lookup in the filter of `words` words a column that begins at
    /// `filter`.
    #[inline]
    pub(crate) fn of(mixed: MixedHash, filter: u32, words: u32) -> Self {
        FilterWindow { filter, words, start: mixed.start(words) }
    }

    /// Returns the first of the words that a lookup reads first. For most absent keys it reads no
    /// others than `2 * STRIPE` from there on.
    #[inline]
    pub(super) fn first_word(self, columns: usize) -> usize {
        self.filter as usize + self.start as usize / WINDOW * STRIPE.min(columns)
    }

    /// True if the filter may have the key. Always true for a key of the filter.
    #[inline]
    pub(crate) fn may_have(self, mixed: MixedHash, columns: usize, filters: &[u64]) -> bool {
        if self.words == 0 || columns == 0 {
            return self.words > 0;
        }
        let (word, shift) = (self.start as usize / WINDOW, self.start % WINDOW as u32);
        let mut stripe = 0;
        while stripe + STRIPE <= columns {
            let at = self.filter as usize + stripe * self.words as usize + word * STRIPE;
            if !passes::<STRIPE>(&filters[at..at + 2 * STRIPE], shift, mixed) {
                return false;
            }
            stripe += STRIPE;
        }
        let width = columns - stripe;
        let at = self.filter as usize + stripe * self.words as usize + word * width;
        let pair = &filters[at..at + 2 * width];
        match width {
            0 => true,
            1 => passes::<1>(pair, shift, mixed),
            2 => passes::<2>(pair, shift, mixed),
            _ => passes::<3>(pair, shift, mixed),
        }
    }
}

/// True if a key passes the columns of a stripe. `pair` has the two words of each column.
#[inline]
fn passes<const WIDTH: usize>(pair: &[u64], shift: u32, mixed: MixedHash) -> bool {
    // The lookup joins the columns of a stripe: one branch that is seldom taken costs less than up
    // to four that the processor cannot predict.
    let odd = (0..WIDTH).fold(0, |odd, column| {
        let window = pair[column] >> shift | (pair[WIDTH + column] << 1) << (63 - shift);
        odd | parity(window & mixed.coefficients)
    });
    odd == 0
}

/// Returns 1 if the number of ones is odd, else 0.
#[inline]
fn parity(bits: u64) -> u64 {
    u64::from(bits.count_ones() & 1)
}
