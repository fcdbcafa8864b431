//! `embank reshard`: makes a fleet of another number of shards.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Result;
use embank::fleet::{Resharded, reshard};
use serde::Serialize;

use crate::Ending;
use crate::output::{self, RowBar, count, parse_scaled};

/// Options of `reshard`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The fleet's directory
    dir: PathBuf,
    /// The new fleet's directory; must be empty or not exist
    new: PathBuf,
    /// The number of shards of the new fleet
    #[arg(long, value_name = "N")]
    shards: u32,
    /// Memory for all new banks together [default: 64 MiB for each, and 18 bytes for each row that
    /// it may get]
    #[arg(long, value_name = "BYTES", value_parser = parse_scaled)]
    memory: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    fleet: String,
    set: u64,
    from_shards: u32,
    /// Why newer sets of the old fleet are not complete.
    passed_over: Vec<String>,
    /// The rows of each new shard.
    rows: Vec<u64>,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the directory is no whole fleet on this machine, if the new directory is not
/// empty, or if a file cannot be read or written.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let made = {
        let bar = RowBar::new("resharding");
        reshard(&args.dir, &args.new, args.shards, args.memory, &mut |progress| {
            bar.show(progress);
            ControlFlow::Continue(())
        })?
    };
    let Resharded { fleet, set, from_shards, passed_over, rows, .. } = made;
    for why in &passed_over {
        output::note(&format!("warning: passed over {}\n", output::shown(why)));
    }
    if args.json {
        output::json(&Report { fleet: fleet.to_string(), set, from_shards, passed_over, rows });
        return Ok(Ending::Good);
    }
    let all: u64 = rows.iter().sum();
    let most = rows.iter().max().copied().unwrap_or(0);
    output::print(&format!(
        "{}: set {set}, {} rows, {from_shards} shards before and {} now; at most {} rows on one\n",
        output::shown(args.new.display()),
        count(all),
        rows.len(),
        count(most)
    ));
    Ok(Ending::Good)
}
