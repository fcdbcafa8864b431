//! `store-kills`: a writer that is killed thousands of times.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use embank_crash::kills::{Kill, Moment, Supervisor, device_named, write_until_killed};
use indicatif::ProgressBar;

use super::report::{Row, publish, scratch, seed};

/// Options of `store-kills`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of kills
    #[arg(long, default_value_t = 2000)]
    count: u64,
    /// Seed of the steps and the moments [default: a random one, which the run prints]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the bank; the run removes the bank at the end
    #[arg(long, value_name = "DIR", default_value = "target/store-kills")]
    directory: PathBuf,
    /// Write the counts to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A rough answer within seconds: 50 kills
    #[arg(long)]
    quick: bool,
}

/// Options of the hidden subcommand `writer`.
#[derive(Debug, clap::Args)]
pub(crate) struct WriterArgs {
    dir: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    from: u64,
    #[arg(long)]
    device: String,
}

/// Runs the writer until the supervisor kills it.
///
/// # Errors
/// Returns any error of the store.
pub(crate) fn write(args: &WriterArgs) -> Result<()> {
    write_until_killed(&args.dir, args.seed, args.from, device_named(&args.device)?)
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if a bank did not come back at the expected state. That bank is kept.
pub(crate) fn run(args: &Args) -> Result<()> {
    let seed = seed(args.seed);
    let count = if args.quick { args.count.min(50) } else { args.count };
    let dir = scratch(Some(&args.directory))?;
    let program = std::env::current_exe().context("finding this program")?;
    let started = Instant::now();
    let bar = ProgressBar::new(count);
    let (mut kills, mut steps) = (Vec::new(), 0);
    // One of two consecutive seeds has a bank in two tiers.
    for (part, count) in [(0, count / 2), (1, count - count / 2)] {
        let home = dir.path().join(part.to_string());
        std::fs::create_dir(&home)?;
        let mut supervisor = Supervisor::new(&program, &home, seed.wrapping_add(part))?;
        for _ in 0..count {
            match supervisor.kill() {
                Ok(kill) => kills.push(kill),
                Err(error) => {
                    let kept = dir.keep();
                    return Err(error.context(format!("the bank is kept in {}", kept.display())));
                }
            }
            bar.inc(1);
        }
        steps += supervisor.steps();
    }
    bar.finish_and_clear();
    let mut rows = rows(&kills);
    rows.push(Row::new("steps in the last checkpoints", steps as f64, ""));
    rows.push(Row::new("time", started.elapsed().as_secs_f64().round(), "s"));
    publish(&rows, args.json.as_deref())
}

fn rows(kills: &[Kill]) -> Vec<Row> {
    let mut moments: BTreeMap<Moment, u64> = BTreeMap::new();
    for kill in kills {
        *moments.entry(kill.moment).or_default() += 1;
    }
    let named = |(moment, count): (&Moment, &u64)| {
        Row::new(format!("kills meant for: {moment:?}"), *count as f64, "")
    };
    let mut rows: Vec<Row> = moments.iter().map(named).collect();
    let count = |what: fn(&&Kill) -> bool| kills.iter().filter(what).count() as f64;
    rows.push(Row::new("kills", kills.len() as f64, ""));
    rows.push(Row::new("kills inside a checkpoint", count(|kill| kill.in_checkpoint), ""));
    rows.push(Row::new("of these, it was complete already", count(|kill| kill.at_begun), ""));
    let lost: u64 = kills.iter().map(|kill| kill.steps_lost).sum();
    rows.push(Row::new("steps after a checkpoint, gone as they should", lost as f64, ""));
    let parts = |what: fn(&Kill) -> u64| kills.iter().map(what).sum::<u64>() as f64;
    rows.push(Row::new("runs found after kills", parts(|kill| kill.parts.runs), ""));
    rows.push(Row::new("joined runs' parts found after kills", parts(|k| k.parts.joined), ""));
    rows.push(Row::new("parts of the base found after kills", parts(|k| k.parts.base), ""));
    rows.push(Row::new("unfinished parts found after kills", parts(|k| k.parts.unfinished), ""));
    rows.push(Row::new("kills after which something was wrong", 0.0, ""));
    rows
}
