//! `fleet-kills`: the processes of a fleet, killed at any moment of the set protocol.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use embank_crash::fleet_kills::{Coordinator, Kill, Moment, work};
use indicatif::ProgressBar;

use super::report::{Row, publish, scratch, seed};

/// Options of `fleet-kills`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of kills
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// Number of shards, each with a process
    #[arg(long, default_value_t = 3)]
    shards: u32,
    /// Seed of the steps and the moments [default: a random one, which the run prints]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the fleet; the run removes the fleet at the end
    #[arg(long, value_name = "DIR", default_value = "target/fleet-kills")]
    directory: PathBuf,
    /// Write the counts to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A rough answer within seconds: 20 kills
    #[arg(long)]
    quick: bool,
}

/// Options of the hidden subcommand `fleet-worker`.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    dir: PathBuf,
    #[arg(long)]
    shard: u32,
    #[arg(long)]
    shards: u32,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    sets_kept: usize,
}

/// Runs a worker until the coordinator kills it.
///
/// # Errors
/// Returns any error of the fleet.
pub(crate) fn worker(args: &WorkerArgs) -> Result<()> {
    work(&args.dir, args.shard, args.shards, args.seed, args.sets_kept)
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the fleet did not open at its newest complete set. That fleet is kept.
pub(crate) fn run(args: &Args) -> Result<()> {
    let seed = seed(args.seed);
    let count = if args.quick { args.count.min(20) } else { args.count };
    let dir = scratch(Some(&args.directory))?;
    let program = std::env::current_exe().context("finding this program")?;
    let started = Instant::now();
    let bar = ProgressBar::new(count);
    let mut coordinator = Coordinator::new(&program, dir.path(), args.shards, seed);
    let mut kills = Vec::new();
    let mut all = || -> Result<u64> {
        for _ in 0..count {
            kills.push(coordinator.kill()?);
            bar.inc(1);
        }
        coordinator.check()
    };
    let steps = match all() {
        Ok(steps) => steps,
        Err(error) => {
            let kept = dir.keep();
            return Err(error.context(format!("the fleet is kept in {}", kept.display())));
        }
    };
    bar.finish_and_clear();
    let mut rows = rows(&kills);
    rows.push(Row::new("steps in the last set", steps as f64, ""));
    rows.push(Row::new("time", started.elapsed().as_secs_f64().round(), "s"));
    publish(&rows, args.json.as_deref())
}

fn rows(kills: &[Kill]) -> Vec<Row> {
    let mut moments: BTreeMap<Moment, u64> = BTreeMap::new();
    for kill in kills {
        *moments.entry(kill.moment).or_default() += 1;
    }
    let named = |(moment, count): (&Moment, &u64)| {
        Row::new(format!("kills in: {moment:?}"), *count as f64, "")
    };
    let mut rows: Vec<Row> = moments.iter().map(named).collect();
    let count = |what: fn(&&Kill) -> bool| kills.iter().filter(what).count() as f64;
    rows.push(Row::new("kills", kills.len() as f64, ""));
    let sets: u64 = kills.iter().map(|kill| kill.sets).sum();
    rows.push(Row::new("complete sets", sets as f64, ""));
    let lacking = count(|kill| kill.lacking > 0);
    rows.push(Row::new("openings with a record on some shards only", lacking, ""));
    let unanswered = count(|kill| kill.unanswered);
    rows.push(Row::new("openings at a set that no process had confirmed", unanswered, ""));
    let back = count(|kill| kill.back);
    rows.push(Row::new("openings that went back to an earlier set", back, ""));
    let killed_back = count(|kill| kill.back && kill.moment == Moment::Settle);
    rows.push(Row::new("kills while the fleet went back", killed_back, ""));
    rows.push(Row::new("kills after which something was wrong", 0.0, ""));
    rows
}
