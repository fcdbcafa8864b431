//! Latencies by percentile, over the rounds.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::ground::report::Row;
use crate::ground::rounds::Spread;

/// The published percentiles of a round's latencies.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// An empty histogram of nanoseconds, with three digits.
///
/// # Errors
/// Never fails, because the histogram accepts three digits.
pub(super) fn histogram() -> Result<Histogram<u64>> {
    Histogram::new(3).context("a histogram of three digits")
}

/// The percentiles of each round, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Percentiles([Vec<f64>; QUANTILES.len()]);

impl Percentiles {
    /// Adds a round.
    pub(super) fn note(&mut self, round: &Histogram<u64>) {
        for ((_, quantile), samples) in QUANTILES.iter().zip(&mut self.0) {
            samples.push(round.value_at_quantile(*quantile) as f64);
        }
    }

    /// A figure for each percentile, in microseconds: the median over the rounds and its spread.
    ///
    /// # Panics
    /// Fails if no round was noted.
    pub(super) fn figures(&self, name: &str) -> Vec<Row> {
        let figure = |((what, _), samples): (&(&str, f64), &Vec<f64>)| {
            Row::of(format!("{name}: {what}"), "us", Spread::of(samples.clone()), 1e-3)
        };
        QUANTILES.iter().zip(&self.0).map(figure).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_over_the_rounds_in_microseconds() {
        let mut percentiles = Percentiles::default();
        for longest in [900_000, 500_000, 700_000] {
            let mut round = histogram().unwrap();
            round.record_n(2_000, 998).unwrap();
            round.record_n(longest, 2).unwrap();
            percentiles.note(&round);
        }
        let figures = percentiles.figures("peeks");
        let near = |place: usize, value: f64| {
            let Row { name, value: found, .. } = &figures[place];
            assert!((found / value - 1.0).abs() < 1e-3, "{name}: {found}");
        };
        assert_eq!(figures[0].name, "peeks: p50");
        [2.0, 2.0, 700.0, 700.0].into_iter().enumerate().for_each(|(place, us)| near(place, us));
        assert!(figures[3].min < 501.0 && figures[3].max > 899.0, "{:?}", figures[3]);
    }
}
