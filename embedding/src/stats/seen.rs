//! The staleness of the rows that Gets return: a histogram of the clocks that they saw.
//!
//! Each batch has counts of its own, and counts only the rows whose clock was not 0. The number of
//! rows with clock 0 follows from the number of rows of the batch. If no row is stale, the
//! histogram therefore costs one comparison for each row. At its end, a batch adds its counts to
//! the table's counters, once. These counters count every class, also the class of clock 0. If a
//! reader computed the number of rows with clock 0 from the other classes, this number could fall
//! between two reads, while batches add to the others.

use crate::stats::counter::Counter;

/// Each clock value up to this one has its own class in the histogram. Larger values share classes.
const EXACT_MAX: u32 = 16;
const BUCKETS: usize = 30;

fn bucket_of(outstanding: u32) -> usize {
    if outstanding <= EXACT_MAX {
        return outstanding as usize;
    }
    // The values 17 to 32 share a class, and so do 33 to 64, 65 to 128, and so on.
    ((outstanding - 1).ilog2() as usize + 13).min(BUCKETS - 1)
}

fn largest_of(bucket: usize) -> u32 {
    match bucket {
        0..=16 => bucket as u32,
        _ if bucket == BUCKETS - 1 => u32::MAX,
        _ => 1 << (bucket - 12),
    }
}

/// The number of rows that Gets returned, by their staleness at the Get. The staleness is the
/// number of earlier Gets of the row whose update had not yet come.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
/// let table = bank.table("user", embank::TableConfig::new(1))?;
/// let first = table.get(&[1, 2, 3], &mut [0.0; 3])?;
/// let second = table.get(&[3], &mut [0.0])?;
/// let staleness = table.stats().staleness;
/// assert_eq!(staleness.buckets().collect::<Vec<_>>(), [(0, 3), (1, 1)]);
/// assert_eq!((staleness.quantile(0.5), staleness.max()), (Some(0), Some(1)));
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StalenessHistogram {
    counts: [u64; BUCKETS],
}

impl StalenessHistogram {
    /// The classes that are not empty, in ascending order: the largest staleness of the class, and
    /// its number of rows. Each staleness up to 16 has a class. Then come 17 to 32, 33 to 64, and
    /// so on. The last class, above 65,536, is returned as `u32::MAX`.
    pub fn buckets(&self) -> impl Iterator<Item = (u32, u64)> {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count != 0);
        counts.map(|(bucket, &count)| (largest_of(bucket), count))
    }

    /// Number of rows that were counted.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The staleness that a share `q` (0 to 1) of the rows did not exceed, rounded up to the
    /// largest staleness of its class. `None` if no rows were counted.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u32> {
        let rank = ((self.rows() as f64 * q.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut rows = 0;
        let found = self.buckets().find(|(_, count)| {
            rows += count;
            rows >= rank
        });
        found.map(|(largest, _)| largest)
    }

    /// The largest staleness of a row, rounded up to the largest staleness of its class. `None` if
    /// no rows were counted.
    #[must_use]
    pub fn max(&self) -> Option<u32> {
        self.buckets().last().map(|(largest, _)| largest)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }
}

/// The clocks above 0 that one batch saw.
#[derive(Debug, Default)]
pub(crate) struct SeenClocks {
    counts: [u32; BUCKETS],
    any: bool,
}

impl SeenClocks {
    #[inline]
    pub(crate) fn note(&mut self, outstanding: u32) {
        if outstanding != 0 {
            self.counts[bucket_of(outstanding)] += 1;
            self.any = true;
        }
    }

    /// Adds the clocks that another batch of the same Get saw.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.any |= other.any;
    }
}

/// The live counters behind a table's [`StalenessHistogram`].
#[derive(Debug, Default)]
pub(crate) struct SeenCounters([Counter; BUCKETS]);

impl SeenCounters {
    /// Adds the clocks that a batch of `rows` rows saw.
    pub(crate) fn add(&self, seen: &SeenClocks, rows: usize) {
        let mut at_zero = rows as u64;
        if seen.any {
            for (counter, &count) in self.0.iter().zip(&seen.counts) {
                if count != 0 {
                    counter.add(count.into());
                    at_zero -= u64::from(count);
                }
            }
        }
        if at_zero != 0 {
            self.0[0].add(at_zero);
        }
    }

    pub(crate) fn snapshot(&self) -> StalenessHistogram {
        StalenessHistogram { counts: std::array::from_fn(|bucket| self.0[bucket].get()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clock_falls_into_the_bucket_that_names_it() {
        let mut last = 0;
        for outstanding in (0..70_000).chain([1 << 20, u32::MAX - 1, u32::MAX]) {
            let bucket = bucket_of(outstanding);
            assert!(bucket == last || bucket == last + 1, "{outstanding}");
            assert!(outstanding <= largest_of(bucket));
            assert!(bucket == 0 || outstanding > largest_of(bucket - 1), "{outstanding}");
            last = bucket;
        }
        assert_eq!(last, BUCKETS - 1);
    }

    #[test]
    fn quantiles_count_rows() {
        let mut histogram = StalenessHistogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.max()), (None, None));
        histogram.counts[0] = 90;
        histogram.counts[bucket_of(3)] = 9;
        histogram.counts[bucket_of(20)] = 1;
        for (q, expected) in [(0.0, 0), (0.9, 0), (0.901, 3), (0.99, 3), (0.991, 32), (1.0, 32)] {
            assert_eq!(histogram.quantile(q), Some(expected), "{q}");
        }
    }
}
