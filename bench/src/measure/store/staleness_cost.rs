//! `staleness-cost`: the cost of the staleness clock. Gets and puts that move the clock are
//! compared with gets and puts that do not.
//!
//! With the clock, a get checks the bound and moves the clock up, and a put moves the clock down,
//! as in a training step. Without the clock, the gets and puts of the same keys leave it unchanged.
//! There are two workloads, each uniform and Zipf. The first has batches of gets, each followed by
//! a put of the same rows. In the second, half of each batch is read and half is updated, as in
//! YCSB A.
//!
//! Estimate, written before measuring. A get and a put lock the record's word and write it back
//! even without the clock, and the clock is in that word. So the clock adds only a comparison and
//! an addition for each row, less than 1 ns of 50 to 100: within 2% uniform. Under Zipf most rows
//! are in the core's own cache, and a row costs 15 to 30 ns: 5%. A release also looks for waiting
//! gets, once for each batch.
//!
//! A figure is the median of the rounds' costs. In a round, the run with the clock and the run
//! without it follow each other directly on the same keys, so a slow moment of the machine slows
//! both.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embank_kv::Clock;

use crate::ground::content::Popularity;
use crate::ground::kv_contenders::{BOUND, KvGetPut, KvRows};
use crate::ground::loading::bar;
use crate::ground::options::{Common, Skew, Threads};
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::{Contender, Draw, Plan, Spread, alternate_samples};
use crate::measure::store::in_memory::{check_in_memory, scratch_in, whole_budget_bytes};

/// Options of `staleness-cost`.
#[derive(Debug, clap::Args)]
#[command(after_help = "With --quick, within a minute: 1 million rows, 5 rounds")]
pub(crate) struct Args {
    /// Rows of the table
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Columns (f32) of a row
    #[arg(long, default_value_t = 16)]
    dim: usize,
    /// Keys of a batch
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    #[command(flatten)]
    threads: Threads,
    /// Measured rounds; the median counts
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    #[command(flatten)]
    skew: Skew,
    #[command(flatten)]
    common: Common,
}

/// Reads half of a batch and updates the other half.
#[derive(Debug)]
struct HalfAndHalf<'a> {
    name: &'static str,
    rows: &'a KvRows,
    clock: bool,
}

impl Contender for HalfAndHalf<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let (up, down) =
            if self.clock { (BOUND, Clock::Release) } else { (Clock::Keep, Clock::Keep) };
        let (read, updated) = keys.split_at(keys.len() / 2);
        let (read_rows, updated_rows) = rows.split_at_mut(read.len() * self.rows.dim);
        crate::ground::content::fill(updated, self.rows.dim, updated_rows);
        let started = Instant::now();
        self.rows.read(read, up, read_rows)?;
        self.rows.write(updated, down, updated_rows)?;
        Ok(started.elapsed())
    }
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, the store fails, an answer is wrong, or the store reads from disk.
pub(crate) fn run(mut args: Args) -> Result<()> {
    ensure!(args.rows > 0 && args.dim > 0 && args.batch > 0, "sizes must be positive");
    ensure!((0.0..1.0).contains(&args.skew.zipf), "--zipf must be at least 0 and below 1");
    if args.common.quick {
        args.rows = args.rows.min(1_000_000);
        args.rounds = args.rounds.min(5);
    }
    print_provenance();
    let directory = scratch_in(&args.common.directory)?;
    let budget_bytes = whole_budget_bytes(args.rows, args.dim);
    let rows = KvRows::load(&directory.path().join("kv"), args.rows, args.dim, budget_bytes)?;
    let get_put = |clock| KvGetPut {
        name: format!("get + put, clock {}", on_off(clock)),
        rows: &rows,
        clock,
        flips: None,
    };
    let (with, without) = (get_put(true), get_put(false));
    let half = |clock, name| HalfAndHalf { name, rows: &rows, clock };
    let half_with = half(true, "50/50 read and update, clock on");
    let half_without = half(false, "50/50 read and update, clock off");
    // Runs both workloads without the clock a second time. The difference between the two runs
    // without the clock shows how much equal runs differ.
    let (without_again, half_again) = (
        KvGetPut { name: format!("{}, again", without.name), ..get_put(false) },
        half(false, "50/50 read and update, clock off, again"),
    );
    let contenders: [&dyn Contender; 6] =
        [&without, &with, &without_again, &half_without, &half_with, &half_again];
    let batches = (args.rows as usize / args.batch).max(1);
    let mut figures = Vec::new();
    for popularity in [Popularity::Uniform, Popularity::Zipf(args.skew.zipf)] {
        let plan = Plan {
            rows: args.rows,
            dim: args.dim,
            batch: args.batch,
            threads: args.threads.threads.clone(),
            draw: Draw::Together(popularity),
            rounds: args.rounds,
            batches,
            warm_up_batches: batches.min(64),
            seed: args.common.seed,
        };
        let samples = alternate_samples(&plan, &contenders, &bar("measuring", 0))?;
        for (threads, samples) in args.threads.threads.iter().zip(samples) {
            let label = format!("{popularity} x {threads}");
            let name = |place: usize| format!("{label}: {}", contenders[place].name());
            for (first, three) in (0..).step_by(3).zip(samples.chunks_exact(3)) {
                let off = Row::rate(name(first), Spread::of(three[0].clone()));
                for (place, samples) in (first + 1..).zip(&three[1..]) {
                    let row = Row::rate(name(place), Spread::of(samples.clone())).beside(&off);
                    let slower = Spread::of(slower(samples, &three[0]));
                    let percent =
                        Row::of(format!("{}, cost", name(place)), "% slower", slower, 100.0);
                    figures.extend([row, percent]);
                }
                figures.push(off);
            }
        }
    }
    check_in_memory("store", &rows.store.stats())?;
    rows.check_every_row(None)?;
    args.common.output.publish("The staleness clock on against off", &figures)
}

/// Returns how much slower each round was than the round with the same index in `than`, as a
/// fraction.
fn slower(samples: &[f64], than: &[f64]) -> Vec<f64> {
    samples.iter().zip(than).map(|(rate, than)| than / rate - 1.0).collect()
}

fn on_off(clock: bool) -> &'static str {
    if clock { "on" } else { "off" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_holds_on_against_off() {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("rows.json");
        let args = Args {
            rows: 10_000,
            dim: 16,
            batch: 256,
            threads: Threads { threads: vec![1, 2] },
            rounds: 2,
            skew: Skew { zipf: 0.99 },
            common: Common::of_test(4, directory.path()),
        };
        run(args).unwrap();
        let text = std::fs::read_to_string(json).unwrap();
        let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(rows.len(), 2 * 2 * 2 * 5);
        assert_eq!(rows[0]["against"], "uniform x 1: get + put, clock off");
        assert_eq!(rows[1]["name"], "uniform x 1: get + put, clock on, cost");
    }
}
