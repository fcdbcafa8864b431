//! Measures contenders by turns: one pass each, round after round, on the same keys.
//!
//! The speed of a machine changes with its other guests, its frequency and the placement of pages.
//! The contenders take turns within one run, so a change slows all of them alike. Absolute numbers
//! vary from run to run, but the ratios between contenders hold. A figure is the median over the
//! rounds. Its spread is the slowest and the fastest round. A contender reports the time of its
//! measured part. Drawing keys and checking answers are not part of it.

use std::borrow::Cow;
use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;

use crate::ground::content::{self, KeyStream, Popularity};

/// One way of serving a batch of keys.
pub(crate) trait Contender: Sync {
    /// The name in the report.
    fn name(&self) -> &str;

    /// Number of rows that the contender has; their keys begin at 0. `None` if it has all rows of
    /// the plan.
    fn rows(&self) -> Option<u64> {
        None
    }

    /// Serves one batch and returns the time of the measured part. The call leaves the keys' rows
    /// (`keys.len() * dim`) in `rows` for the check.
    ///
    /// # Errors
    /// Returns the store's error.
    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration>;

    /// Checks that `row` is the right answer for `key`.
    ///
    /// # Errors
    /// Fails if the row is wrong, with a message that begins with "wrong answer".
    fn check(&self, key: u64, row: &[f32]) -> Result<()> {
        content::sign(key, row).map(|_| ())
    }

    /// Called after each pass. `keys` are the keys of the pass: one list for each thread, served in
    /// batches of `batch` keys.
    fn after_pass(&self, keys: &[Vec<u64>], batch: usize) {
        let _ = (keys, batch);
    }
}

/// The extent of a measurement.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Keys to draw from.
    pub(crate) rows: u64,
    /// Columns of a row.
    pub(crate) dim: usize,
    /// Keys of a batch.
    pub(crate) batch: usize,
    /// Numbers of threads. Each round measures with all of them, one after another.
    pub(crate) threads: Vec<usize>,
    /// Which keys the threads ask for.
    pub(crate) draw: Draw,
    /// Measured rounds.
    pub(crate) rounds: usize,
    /// Batches that are served in a round, by all threads together.
    pub(crate) batches: usize,
    /// Batches that are served in the warm-up, every row of which is checked.
    pub(crate) warm_up_batches: usize,
    /// Seed of the keys.
    pub(crate) seed: u64,
}

/// Which keys threads ask for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Draw {
    /// Each thread draws uniform keys from its own share of the keys. No other thread puts into
    /// these rows, so the thread knows their content.
    Apart,
    /// Every thread draws from all keys.
    Together(Popularity),
}

/// A figure over the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// The median of the rounds.
    pub(crate) median: f64,
    /// The slowest round.
    pub(crate) min: f64,
    /// The fastest round.
    pub(crate) max: f64,
}

impl Spread {
    /// # Panics
    /// No samples.
    pub(crate) fn of(mut samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a spread needs a round");
        samples.sort_by(f64::total_cmp);
        let (n, half) = (samples.len(), samples.len() / 2);
        let median =
            if n % 2 == 1 { samples[half] } else { (samples[half - 1] + samples[half]) / 2.0 };
        Self { median, min: samples[0], max: samples[n - 1] }
    }
}

/// Which answers of a pass are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Every,
    /// One row in [`SAMPLE_STRIDE`], beginning one row later in each batch.
    Sampled,
}

/// Distance between the checked rows of a batch. It is a prime, so it has no factor in common with
/// the usual batch lengths, which are powers of two.
const SAMPLE_STRIDE: usize = 61;

/// Warms up every contender and checks every row of the warm-up. Then measures the contenders by
/// turns, `plan.rounds` times. Returns a list for each number of threads, with a [`Spread`] of rows
/// a second for each contender. Both are in the order of the arguments.
///
/// # Errors
/// Fails if an answer is wrong or a contender fails.
pub(crate) fn alternate(
    plan: &Plan,
    contenders: &[&dyn Contender],
    progress: &ProgressBar,
) -> Result<Vec<Vec<Spread>>> {
    let of_threads = |samples: Vec<Vec<f64>>| samples.into_iter().map(Spread::of).collect();
    Ok(alternate_samples(plan, contenders, progress)?.into_iter().map(of_threads).collect())
}

/// Measures as [`alternate`] does, but returns the rate of each round, to compare contenders round
/// by round.
///
/// # Errors
/// Fails as [`alternate`] does.
pub(crate) fn alternate_samples(
    plan: &Plan,
    contenders: &[&dyn Contender],
    progress: &ProgressBar,
) -> Result<Vec<Vec<Vec<f64>>>> {
    ensure!(plan.rounds > 0 && plan.batches > 0, "nothing to measure");
    ensure!(plan.threads.iter().all(|&threads| threads > 0), "threads must be at least 1");
    progress.set_length((contenders.len() * plan.threads.len() * (plan.rounds + 1)) as u64);
    let mut streams: Vec<Vec<KeyStream>> =
        plan.threads.iter().map(|&threads| streams(plan, threads)).collect();
    let mut samples = vec![vec![Vec::new(); contenders.len()]; plan.threads.len()];
    for round in 0..=plan.rounds {
        let (batches, check) = match round {
            0 => (plan.warm_up_batches, Check::Every),
            _ => (plan.batches, Check::Sampled),
        };
        for (streams, samples) in streams.iter_mut().zip(&mut samples) {
            let share = batches.div_ceil(streams.len()).max(1) * plan.batch;
            let keys: Vec<Vec<u64>> = streams.iter_mut().map(|stream| stream.draw(share)).collect();
            for (contender, samples) in contenders.iter().zip(samples) {
                progress.set_message(contender.name().to_owned());
                let keys = keys_for(*contender, plan, &keys);
                let rate = pass(plan, *contender, &keys, check)
                    .with_context(|| format!("measuring {}, round {round}", contender.name()))?;
                contender.after_pass(&keys, plan.batch);
                if round > 0 {
                    samples.push(rate);
                }
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    Ok(samples)
}

/// A stream of keys for each thread.
fn streams(plan: &Plan, threads: usize) -> Vec<KeyStream> {
    let seed = |thread: u64| plan.seed.wrapping_add(thread);
    let threads = threads as u64;
    match plan.draw {
        Draw::Apart => (0..threads)
            .map(|thread| {
                let share = (plan.rows - thread).div_ceil(threads);
                KeyStream::new(seed(thread), thread, threads, share)
            })
            .collect(),
        Draw::Together(popularity) => {
            let first = KeyStream::of(popularity, plan.seed, plan.rows);
            (0..threads).map(|thread| first.reseeded(seed(thread))).collect()
        }
    }
}

/// Returns the keys modulo the contender's number of rows. If the threads draw from separate shares
/// ([`Draw::Apart`]) and that number is a multiple of the number of threads, the shares stay
/// separate.
fn keys_for<'k>(
    contender: &dyn Contender,
    plan: &Plan,
    keys: &'k [Vec<u64>],
) -> Cow<'k, [Vec<u64>]> {
    match contender.rows() {
        Some(rows) if rows < plan.rows => {
            Cow::Owned(keys.iter().map(|k| k.iter().map(|key| key % rows).collect()).collect())
        }
        _ => Cow::Borrowed(keys),
    }
}

/// Runs one pass of a contender over its keys. All threads start together. Returns rows a second,
/// summed over the threads.
fn pass(plan: &Plan, contender: &dyn Contender, keys: &[Vec<u64>], check: Check) -> Result<f64> {
    let barrier = Barrier::new(keys.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = keys
            .iter()
            .map(|keys| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut rows = vec![0.0; plan.batch * plan.dim];
                    barrier.wait();
                    serve(contender, keys, plan.batch, check, &mut rows)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a measuring thread does not panic"))
            .sum()
    })
}

/// Serves `keys` batch by batch on this thread. Returns rows a second of the measured parts.
fn serve(
    contender: &dyn Contender,
    keys: &[u64],
    batch: usize,
    check: Check,
    rows: &mut [f32],
) -> Result<f64> {
    let dim = rows.len() / batch;
    let mut spent = Duration::ZERO;
    for (number, keys) in keys.chunks_exact(batch).enumerate() {
        spent += contender.batch(keys, rows)?;
        let (first, stride) = match check {
            Check::Every => (0, 1),
            Check::Sampled => (number % SAMPLE_STRIDE, SAMPLE_STRIDE),
        };
        for place in (first..batch).step_by(stride) {
            contender.check(keys[place], &rows[place * dim..][..dim])?;
        }
    }
    Ok(keys.len() as f64 / spent.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed {
        wrong: bool,
    }

    impl Contender for Fixed {
        fn name(&self) -> &str {
            "fixed"
        }

        fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
            content::fill(keys, rows.len() / keys.len(), rows);
            if self.wrong {
                rows[5] += 0.5;
            }
            Ok(Duration::from_millis(1))
        }
    }

    fn plan(threads: &[usize]) -> Plan {
        Plan {
            rows: 1_000,
            dim: 4,
            batch: 64,
            threads: threads.to_vec(),
            draw: Draw::Apart,
            rounds: 3,
            batches: 10,
            warm_up_batches: 2,
            seed: 1,
        }
    }

    #[test]
    fn the_rate_is_that_of_the_measured_part_and_adds_up_over_threads() {
        let right = Fixed { wrong: false };
        let spreads = alternate(&plan(&[1, 2]), &[&right], &ProgressBar::hidden()).unwrap();
        for (threads, spreads) in [1.0, 2.0].into_iter().zip(spreads) {
            let expected = 64_000.0 * threads;
            assert!((spreads[0].median - expected).abs() < 1e-6 * expected, "{spreads:?}");
        }
    }

    #[test]
    fn a_wrong_answer_ends_the_run() {
        let wrong = Fixed { wrong: true };
        let error = alternate(&plan(&[1]), &[&wrong], &ProgressBar::hidden()).unwrap_err();
        assert!(format!("{error:#}").contains("wrong answer"), "{error:#}");
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
    }
}
