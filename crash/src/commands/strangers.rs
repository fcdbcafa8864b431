//! `strangers`: files, directories and links of other programs in a bank's folders.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use embank_crash::recorder;
use embank_crash::strays::{Tally, round};

use super::report::{Row, publish, scratch, seed};

/// Options of `strangers`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Time of the run
    #[arg(long, default_value_t = 20.0)]
    minutes: f64,
    /// Seed of the first round; each later round adds 1 [default: a random one, which the run
    /// prints]
    #[arg(long)]
    seed: Option<u64>,
    /// Whether strays come into an open or a closed bank [default: both in turn]
    #[arg(long)]
    bank: Option<Bank>,
    /// Directory for the banks; with several file systems, run it on each [default: in memory,
    /// /dev/shm]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Write the counts to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A rough answer within seconds: 20 rounds
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Bank {
    /// Most strays come while the bank is open
    Live,
    /// The bank is opened with the strays in its folders
    Closed,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if a round was wrong. The directory of the round is kept.
pub(crate) fn run(args: &Args) -> Result<()> {
    let seed = seed(args.seed);
    let dir = scratch(args.directory.as_ref())?;
    recorder::skip_syncs();
    let started = Instant::now();
    let time = Duration::from_secs_f64(args.minutes * 60.0);
    let mut tally = Tally::default();
    let is_left = |rounds| if args.quick { rounds < 20 } else { started.elapsed() < time };
    // The loop ends: the rounds or the time run out.
    while is_left(tally.rounds) {
        let of_round = seed + tally.rounds;
        let live = args.bank.map_or(of_round.is_multiple_of(2), |bank| bank == Bank::Live);
        let home = tempfile::tempdir_in(dir.path())?;
        match round(home.path(), of_round, live) {
            Ok(counts) => tally += counts,
            Err(error) => {
                let (home, _) = (home.keep(), dir.keep());
                return Err(error.context(format!("the banks are kept in {}", home.display())));
            }
        }
    }
    let rows = [
        Row::new("rounds", tally.rounds as f64, ""),
        Row::new("names and modes dropped into a bank", tally.strays as f64, ""),
        Row::new("openings with strays", tally.opened as f64, ""),
        Row::new("openings refused because of strays", tally.refused as f64, ""),
        Row::new("checkpoints acknowledged", tally.checkpoints as f64, ""),
        Row::new("other operations failed because of strays", tally.failed as f64, ""),
        Row::new("time", started.elapsed().as_secs_f64().round(), "s"),
    ];
    publish(&rows, args.json.as_deref())
}
