//! Zipf's law over a growing number of items. Draws follow the method of YCSB's own program (*the
//! reference*).
//!
//! Rank `i` (from 0) of `n` items has a probability near `1 / ((i + 1)^theta * zeta(n))`. The
//! method is from Gray et al., *Quickly generating billion-record synthetic databases* (SIGMOD
//! 1994). The probabilities of ranks 0 and 1 are exact. For the other ranks the method inverts an
//! integral in place of the sum, with one power a draw. So the probabilities of ranks 2 to 10 are
//! off by a few percent. Published YCSB numbers were drawn with this method.
//!
//! `zeta(n)` is the sum of `i^-theta` for `i` from 1 to `n`. The reference adds every term, which
//! takes minutes for 10^10 items. Here the formula of Euler and Maclaurin gives the sum of the
//! terms after the first 20,000. Its error is below the rounding of the sum. If the number of items
//! grows, only the new terms are added.

use fastrand::Rng;

/// [`zeta_between`] adds this number of terms one by one before it uses the formula. It also adds
/// the terms below this index one by one.
const TERMS_DIRECT: u64 = 10_000;

/// Returns the sum of `i^-theta` for `i` in `from + 1..=to`.
pub(crate) fn zeta_between(from: u64, to: u64, theta: f64) -> f64 {
    let direct_to = to.min(from.max(TERMS_DIRECT).saturating_add(TERMS_DIRECT));
    // The smallest terms are added first, which reduces rounding errors.
    let direct: f64 = (from + 1..=direct_to).rev().map(|i| (i as f64).powf(-theta)).sum();
    direct + if to > direct_to { zeta_tail(direct_to, to, theta) } else { 0.0 }
}

/// Returns the sum of [`zeta_between`] for a large `from`. Uses the formula of Euler and Maclaurin
/// up to the first derivative.
fn zeta_tail(from: u64, to: u64, theta: f64) -> f64 {
    let (a, b) = (from as f64, to as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (b.powf(-theta) - a.powf(-theta)) / 2.0;
    let slopes = theta / 12.0 * (a.powf(-theta - 1.0) - b.powf(-theta - 1.0));
    integral + ends + slopes
}

/// Draws ranks.
#[derive(Debug, Clone)]
pub(crate) struct Zipf {
    theta: f64,
    items: u64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Makes a distribution over `items` ranks. `theta` must be positive and not 1.
    pub(crate) fn new(items: u64, theta: f64) -> Self {
        let mut zipf = Zipf { theta, items: 0, zeta: 0.0, eta: 0.0 };
        zipf.resize(items);
        zipf
    }

    /// Returns the sum `zeta(n)`, which divides the probability of each rank.
    #[cfg(test)]
    pub(crate) fn zeta(&self) -> f64 {
        self.zeta
    }

    fn resize(&mut self, items: u64) {
        assert!(items > 0, "Zipf's law needs an item");
        if items < self.items {
            (self.items, self.zeta) = (0, 0.0);
        }
        self.zeta += zeta_between(self.items, items, self.theta);
        self.items = items;
        let zeta_2 = 1.0 + 0.5_f64.powf(self.theta);
        self.eta = (1.0 - (2.0 / items as f64).powf(1.0 - self.theta)) / (1.0 - zeta_2 / self.zeta);
    }

    /// Draws a rank below `items`, which may have grown since the last draw.
    #[inline]
    pub(crate) fn draw(&mut self, items: u64, random: &mut Rng) -> u64 {
        if items != self.items {
            self.resize(items);
        }
        let u = random.f64();
        let scaled = u * self.zeta;
        if scaled < 1.0 || items == 1 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(self.theta) || items == 2 {
            return 1;
        }
        let share = (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
        ((items as f64 * share) as u64).min(items - 1)
    }

    /// Returns the probability with which `draw` returns each rank below `ranks`. It differs from
    /// Zipf's law, because the method is an approximation.
    #[cfg(test)]
    pub(crate) fn probabilities(&self, ranks: u64) -> Vec<f64> {
        let n = self.items as f64;
        // `draw` returns a rank below `k` if its random number `u` is below this limit.
        let below = |k: u64| match k {
            0 => 0.0,
            1 => 1.0 / self.zeta,
            2 => (1.0 + 0.5_f64.powf(self.theta)) / self.zeta,
            _ => 1.0 - (1.0 - (k as f64 / n).powf(1.0 - self.theta)) / self.eta,
        };
        (0..ranks).map(|k| below(k + 1) - below(k)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    #[test]
    fn the_formula_agrees_with_the_sum() {
        for theta in [0.5, 0.8, 0.99, 1.2] {
            let sum: f64 = (1..=3_000_000_u64).rev().map(|i| (i as f64).powf(-theta)).sum();
            let formula = zeta_between(0, 3_000_000, theta);
            assert!((sum / formula - 1.0).abs() < 1e-12, "theta {theta}: {sum} and {formula}");
        }
    }

    #[test]
    fn ten_billion_items_have_the_sum_that_the_reference_has_written_down() {
        let zeta = zeta_between(0, 10_000_000_000, 0.99);
        assert!((zeta - 26.469_028_201_783_02).abs() < 1e-6, "{zeta}");
    }

    #[test]
    fn growing_and_shrinking_end_where_a_new_one_begins() {
        let mut random = stream(1, 0);
        let mut zipf = Zipf::new(1_000, 0.99);
        for items in [1_001, 1_002, 50_000, 90_000, 500] {
            zipf.draw(items, &mut random);
            let fresh = Zipf::new(items, 0.99);
            assert!((zipf.zeta() / fresh.zeta() - 1.0).abs() < 1e-12, "{items} items");
        }
    }

    #[test]
    fn the_method_is_near_zipfs_law() {
        for theta in [0.8, 0.99, 1.2] {
            let zipf = Zipf::new(10_000, theta);
            let method = zipf.probabilities(10_000);
            assert!((method.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let mut gap = 0.0;
            for (rank, probability) in method.iter().enumerate() {
                gap += (probability - (rank as f64 + 1.0).powf(-theta) / zipf.zeta()).abs() / 2.0;
            }
            assert!(gap < 0.03, "theta {theta}: {gap} of all draws are elsewhere");
        }
    }
}
