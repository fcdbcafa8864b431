//! `embank copy`: copies a checkpoint to a new bank.

use std::path::PathBuf;

use anyhow::Result;
use embank_kv::{Copied, Store};
use serde::Serialize;

use crate::Ending;
use crate::output::{self, bytes};

/// Options of `copy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bank's directory
    dir: PathBuf,
    /// The copy's directory; must be empty or not exist
    to: PathBuf,
    /// The checkpoint to copy [default: the newest]
    #[arg(long, value_name = "N")]
    checkpoint: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    checkpoint: u64,
    linked_bytes: u64,
    copied_bytes: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the bank or the checkpoint is missing, if the target directory is not empty,
/// or if a file cannot be read or written.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let made = Store::copy_checkpoint(&args.dir, args.checkpoint, &args.to)?;
    let Copied { checkpoint, linked_bytes, copied_bytes, .. } = made;
    if args.json {
        output::json(&Report { checkpoint, linked_bytes, copied_bytes });
    } else {
        let (dir, linked, copied) =
            (output::shown(args.to.display()), bytes(linked_bytes), bytes(copied_bytes));
        output::print(&format!(
            "{dir}: checkpoint {checkpoint}; {linked} shared, {copied} copied\n"
        ));
    }
    Ok(Ending::Good)
}
