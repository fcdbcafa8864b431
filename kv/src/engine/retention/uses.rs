//! The uses of rows at their last call: how a count ages, and which counts are high enough that a
//! row is retained.

use crate::record::address::Address;

/// Largest use count that the histogram tells apart; larger counts are recorded as this one.
const USES_MAX: usize = 255;
/// A row with fewer uses than this is never retained.
pub(super) const USES_MIN: usize = 3;
/// At most one in `RETAINED_SHARE` of the rows that are about to be evicted is retained. This
/// bounds the extra bytes written.
const RETAINED_SHARE: u64 = 4;
/// Retention sets the limit of uses again each time it has recorded the use counts of this number
/// of rows that are about to be evicted.
pub(super) const JUDGED_ROWS: u64 = 1024;
/// Each time the limit is set, the histogram loses one part in `FORGOTTEN_SHARE` of its weight. So
/// it shows the last few thousand rows.
const FORGOTTEN_SHARE: u64 = 8;
/// Weight of one row in the histogram. It is large enough that rounding does not remove rare counts
/// first.
const ROW: u64 = 64;
/// Retention copies rows only if the variance of the use counts is at least this multiple of their
/// mean. The two numbers are numerator and denominator. The ratio is 1 if the uses fall on rows by
/// chance.
const DISPERSION_MIN: (u64, u64) = (5, 4);

/// The weight that a use has after some growth of the log. It is 1 at first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Age(f64);

impl Age {
    pub(super) fn new(bytes: u64, half_life_bytes: u64) -> Self {
        Age((-(bytes as f64) / half_life_bytes as f64).exp2())
    }

    /// Returns the weight of `uses` uses, as a whole number. `dice` decides if the fraction is
    /// rounded up. The probability of rounding up equals the fraction. Always rounding down would
    /// lose the counts of rows that are copied often. Always rounding up would keep counts from
    /// aging.
    pub(super) fn of(self, uses: u32, dice: u16) -> u32 {
        let exact = f64::from(uses.min(USES_MAX as u32)) * self.0;
        (exact + f64::from(dice) / 65536.0) as u32
    }
}

/// Returns pseudo-random bits that are derived from an address.
pub(super) fn dice(address: Address) -> u16 {
    (address.raw().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as u16
}

/// A histogram of the use counts of rows that are about to be evicted, and the limit from which
/// such rows are retained.
#[derive(Debug)]
pub(super) struct Uses {
    /// The weight of the rows with each use count, in units of `ROW`.
    rows: [u64; USES_MAX + 1],
    /// Number of rows recorded since the limit was last set.
    noted: u64,
    /// The limit: a row with at least this number of uses is retained. `None` if no row is
    /// retained.
    pub(super) at_least: Option<u32>,
    /// Mean use count when the limit was last set.
    pub(super) mean: u64,
    /// Allowance for retained rows. Each inspected row adds 1, and each retained row takes
    /// `RETAINED_SHARE`. So the share holds even for pages whose rows are all used often.
    pub(super) credit: u64,
}

impl Default for Uses {
    fn default() -> Self {
        Uses { rows: [0; USES_MAX + 1], noted: 0, at_least: None, mean: 0, credit: 0 }
    }
}

impl Uses {
    /// Records the use count of a row whose page is evicted next. Returns true if the row is to be
    /// retained: copied to the log's tail.
    pub(super) fn note(&mut self, uses: u32) -> bool {
        self.rows[(uses as usize).min(USES_MAX)] += ROW;
        self.noted += 1;
        if self.noted == JUDGED_ROWS {
            self.at_least = self.judge();
            self.rows.iter_mut().for_each(|rows| *rows -= *rows / FORGOTTEN_SHARE);
            self.noted = 0;
        }
        self.credit = (self.credit + 1).min(JUDGED_ROWS);
        let stays =
            self.at_least.is_some_and(|least| uses >= least) && self.credit >= RETAINED_SHARE;
        self.credit -= if stays { RETAINED_SHARE } else { 0 };
        stays
    }

    fn judge(&mut self) -> Option<u32> {
        let mut rows = 0;
        let mut uses = 0;
        let mut squares = 0;
        for (n, &count) in (0u64..).zip(&self.rows) {
            rows += count;
            uses += n * count;
            squares += n * n * count;
        }
        self.mean = (uses + rows / 2) / rows.max(1);
        // The variance and the mean, both multiplied by the square of `rows`.
        let variance = squares * rows - uses * uses;
        let mean = uses * rows;
        if variance * DISPERSION_MIN.1 < mean * DISPERSION_MIN.0 {
            return None;
        }
        let mut stay = 0;
        let mut least = USES_MAX + 1;
        while least > USES_MIN && (stay + self.rows[least - 1]) * RETAINED_SHARE <= rows {
            least -= 1;
            stay += self.rows[least];
        }
        Some(least as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mean weight of `uses` uses after `halvings` half-lives, over many values of the
    /// dice.
    fn mean(uses: u32, halvings: f64) -> f64 {
        let age = Age::new((halvings * 4096.0) as u64, 4096);
        let of = |n: u64| f64::from(age.of(uses, dice(Address::new(n * 8))));
        (1..20_001).map(of).sum::<f64>() / 20_000.0
    }

    #[test]
    fn uses_are_halved_with_each_half_life_on_average() {
        for (uses, halvings) in [(8, 0.0), (8, 1.0), (1, 1.0), (100, 3.0), (3, 0.04), (200, 9.0)] {
            let exact = f64::from(uses) * 0.5f64.powf(halvings);
            let seen = mean(uses, halvings);
            assert!((seen - exact).abs() < 0.01 * exact + 0.01, "{uses}, {halvings}: {seen}");
        }
    }

    #[test]
    fn any_age_and_any_count_are_taken() {
        assert_eq!(Age::new(u64::MAX, 1).of(u32::MAX, u16::MAX), 0);
        assert_eq!(Age::new(0, 1).of(u32::MAX, u16::MAX), USES_MAX as u32);
    }

    /// Shows that sixteen small steps age a count as much as one large step.
    #[test]
    fn steps_of_any_size_come_to_the_same() {
        let age = Age::new(1 << 8, 1 << 12);
        let after = |n: u64| {
            let step = |uses, step| age.of(uses, dice(Address::new((n * 64 + step) * 8)));
            f64::from((0..32).fold(100, step))
        };
        let seen = (1..2001).map(after).sum::<f64>() / 2000.0;
        assert!((seen - 25.0).abs() < 2.0, "{seen}");
    }

    /// Returns the number of rows with these use counts that are retained after the limit has been
    /// set, and the number of all rows.
    fn staying(uses: impl Iterator<Item = u32> + Clone) -> (u64, u64) {
        let mut judged = Uses::default();
        let mut uses = uses.cycle();
        for _ in 0..JUDGED_ROWS - 1 {
            let stays = uses.next().is_some_and(|uses| judged.note(uses));
            assert!(!stays, "nothing is known yet");
        }
        let seen = 10 * JUDGED_ROWS;
        let stay = uses.take(seen as usize).filter(|&uses| judged.note(uses)).count();
        (stay as u64, seen)
    }

    #[test]
    fn those_stay_that_are_used_most_and_not_too_many() {
        // One row in ten is used often.
        let (stay, seen) = staying((0..10).map(|n| if n == 3 { 40 } else { n % 3 }));
        assert!(stay.abs_diff(seen / 10) < 10, "{stay} of {seen}");
        // One row in two is used often. The share allows fewer rows, so only the most used of them
        // are retained.
        let (stay, seen) = staying((0..100).map(|n| if n < 50 { 20 + n } else { 1 }));
        assert!(stay.abs_diff(seen / RETAINED_SHARE) < seen / 50, "{stay} of {seen}");
    }

    /// Shows that the share holds for pages whose rows are all used often, and for rows whose
    /// counts all differ.
    #[test]
    fn never_more_than_a_share_stays() {
        let mut judged = Uses::default();
        let mut stayed = |uses: &mut dyn Iterator<Item = u32>| {
            uses.filter(|&uses| judged.note(uses)).count() as u64
        };
        stayed(&mut (0..20 * JUDGED_ROWS as u32).map(|n| if n % 20 == 0 { 9 } else { 1 }));
        let all_hot = stayed(&mut std::iter::repeat_n(9, 3 * JUDGED_ROWS as usize));
        assert!(all_hot <= (3 + 1) * JUDGED_ROWS / RETAINED_SHARE, "{all_hot}");
        let spread = (0..100 * JUDGED_ROWS as u32).map(|n| match n % 20 {
            0..5 => 3 + n.wrapping_mul(0x9E37_79B9) % 253,
            5..8 => 10,
            _ => n % 3,
        });
        let stay = stayed(&mut spread.into_iter());
        assert!(stay * RETAINED_SHARE <= 101 * JUDGED_ROWS, "{stay}");
        assert!(stay * 2 * RETAINED_SHARE > 100 * JUDGED_ROWS, "{stay}");
    }

    #[test]
    fn none_stay_where_all_are_alike() {
        // Use counts as they occur by chance: the counts 0 to 4 occur 1, 4, 6, 4 and 1 times in 16.
        let chance = [0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4];
        assert_eq!(staying(chance.into_iter()).0, 0);
        assert_eq!(staying([0].into_iter()).0, 0);
        assert_eq!(staying([USES_MAX as u32 + 9].into_iter()).0, 0);
        // Some rows are used more often than others, but the difference could be chance.
        assert_eq!(staying([0, 0, 0, 0, 2].into_iter()).0, 0);
    }
}
