//! `embank export-delta` writes the changes between two checkpoints to a file. `embank apply-delta`
//! applies that file to a copy of the bank.

use std::path::PathBuf;

use anyhow::Result;
use embank::fleet::refuse_shard;
use embank_kv::{Delta, Store};
use serde::Serialize;

use crate::Ending;
use crate::output::{self, Bar, bytes};

/// Options of `export-delta`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// The bank's directory
    dir: PathBuf,
    /// The file to write; must not exist
    file: PathBuf,
    /// The checkpoint that the delta follows
    #[arg(long, value_name = "N")]
    from: u64,
    /// The checkpoint to which the delta leads [default: the newest]
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `apply-delta`.
#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    /// The directory of a copy of the bank from which the delta was exported
    dir: PathBuf,
    /// The delta
    file: PathBuf,
    /// Number of the newest checkpoints to keep
    #[arg(long, value_name = "N", default_value_t = 2)]
    keep: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    from: u64,
    to: u64,
    log_bytes: u64,
    file_bytes: u64,
}

/// Runs `export-delta`.
///
/// # Errors
/// Returns an error if a checkpoint is missing or damaged, if the file exists, or if a file cannot
/// be read or written.
pub(crate) fn export(args: &ExportArgs) -> Result<Ending> {
    let bar = Bar::new("exporting");
    let mut show = |progress| bar.show(progress);
    let made = Store::export_delta(&args.dir, args.from, args.to, &args.file, &mut show)?;
    drop(bar);
    report(made, args.json, &format!("{}:", output::shown(args.file.display())))
}

/// Runs `apply-delta`.
///
/// # Errors
/// Returns an error if the delta is damaged or does not follow the bank's checkpoint, if a file
/// cannot be read or written, or if the bank is a shard of a fleet.
pub(crate) fn apply(args: &ApplyArgs) -> Result<Ending> {
    refuse_shard(&args.dir)?;
    let bar = Bar::new("applying");
    let mut show = |progress| bar.show(progress);
    let made = Store::apply_delta(&args.dir, &args.file, args.keep, &mut show)?;
    drop(bar);
    report(
        made,
        args.json,
        &format!("{} is at checkpoint {}:", output::shown(args.dir.display()), made.to),
    )
}

fn report(made: Delta, json: bool, what: &str) -> Result<Ending> {
    let Delta { from, to, log_bytes, file_bytes, .. } = made;
    if json {
        output::json(&Report { from, to, log_bytes, file_bytes });
    } else {
        let (log, file) = (bytes(log_bytes), bytes(file_bytes));
        output::print(&format!("{what} from {from} to {to}, {log} of log, {file} in all\n"));
    }
    Ok(Ending::Good)
}
