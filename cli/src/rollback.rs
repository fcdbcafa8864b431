//! `embank rollback`: returns to an older checkpoint and removes the newer ones.

use std::path::PathBuf;

use anyhow::{Result, bail};
use embank::fleet::refuse_shard;
use embank_kv::Store;
use embank_kv::inspect::summary;
use serde::Serialize;

use crate::Ending;
use crate::output;

/// Options of `rollback`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bank's directory
    dir: PathBuf,
    /// The checkpoint's number
    checkpoint: u64,
    /// Remove the newer checkpoints; without this option the command only lists them
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    checkpoint: u64,
    removed: Vec<u64>,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the bank is in use or a shard of a fleet, if the checkpoint is missing or
/// damaged, or if `--yes` is missing.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    refuse_shard(&args.dir)?;
    if !args.yes {
        let numbers = summary(&args.dir)?.checkpoints.into_iter().map(|of| of.number);
        let newer: Vec<u64> = numbers.filter(|&number| number > args.checkpoint).collect();
        bail!("this removes checkpoints {newer:?} for good; say --yes to do it");
    }
    let checkpoint = args.checkpoint;
    let removed = Store::roll_back(&args.dir, checkpoint)?;
    if args.json {
        output::json(&Report { checkpoint, removed });
    } else {
        output::print(&format!("at checkpoint {checkpoint}; removed {removed:?}\n"));
    }
    Ok(Ending::Good)
}
