//! `embank compact`: frees disk space of a bank.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use embank::fleet::refuse_shard;
use embank_kv::inspect::summary;
use embank_kv::{CompactionOptions, Error, Store, StoreOptions};
use serde::Serialize;

use crate::Ending;
use crate::export::{memory_bytes, warn_of_memory};
use crate::output::{self, bytes, parse_scaled};

/// Options of `compact`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bank's directory
    dir: PathBuf,
    /// Number of checkpoints to keep, including the new one [default: as many as the bank has, at
    /// least 2]
    #[arg(long, value_name = "K")]
    keep: Option<usize>,
    /// Memory for index and pages; the command takes more if the bank needs it [default: 256MiB, or
    /// a quarter of the memory limit of the process's control group, if that is less]
    #[arg(long, value_name = "BYTES", value_parser = parse_scaled)]
    memory_budget: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    checkpoint: u64,
    checkpoints_kept: usize,
    scanned_bytes: u64,
    copied_bytes: u64,
    log_disk_bytes_before: u64,
    log_disk_bytes_after: u64,
    part_disk_bytes_before: u64,
    part_disk_bytes_after: u64,
    log_held_bytes: u64,
    out_of_room: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the bank cannot be opened, read or written, or if it is a shard of a fleet.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    refuse_shard(&args.dir)?;
    let before = summary(&args.dir)?;
    let Some(newest) = before.checkpoints.last() else {
        bail!("{} has no checkpoint: there is nothing to compact", args.dir.display());
    };
    let keep = args.keep.unwrap_or(before.checkpoints.len().max(2));
    let store = open(&args.dir, args.memory_budget, keep)?;
    let blob = match store.recovered() {
        Some(recovered) if recovered.checkpoint >= newest.number => recovered.blob.clone(),
        _ => bail!("{} does not open at its newest checkpoint", args.dir.display()),
    };
    let mut done = store.compact()?;
    let mut checkpoint = store.checkpoint(&blob)?;
    // With little free disk space, a compaction ends early. The checkpoint after it frees the space
    // that only the oldest kept checkpoint held, so another compaction can go on. The loop ends
    // when all log from before this command is compacted, or when a compaction and the checkpoint
    // after it gain nothing.
    let is_through = || store.stats().log_begin >= newest.log_end;
    let mut gains = done.scanned_bytes > 0 || store.stats().log_held_bytes > 0;
    while done.out_of_room && !is_through() && gains {
        let more = store.compact()?;
        let held = store.stats().log_held_bytes;
        checkpoint = store.checkpoint(&blob)?;
        gains = more.scanned_bytes > 0 || store.stats().log_held_bytes < held;
        done.scanned_bytes += more.scanned_bytes;
        done.copied_bytes += more.copied_bytes;
        done.out_of_room = more.out_of_room;
    }
    done.out_of_room &= !is_through();
    let held = store.stats().log_held_bytes;
    drop(store);
    let after = summary(&args.dir)?;
    let report = Report {
        checkpoint,
        checkpoints_kept: after.checkpoints.len(),
        scanned_bytes: done.scanned_bytes,
        copied_bytes: done.copied_bytes,
        log_disk_bytes_before: before.log_disk_bytes,
        log_disk_bytes_after: after.log_disk_bytes,
        part_disk_bytes_before: before.part_disk_bytes,
        part_disk_bytes_after: after.part_disk_bytes,
        log_held_bytes: held,
        out_of_room: done.out_of_room,
    };
    if args.json {
        output::json(&report);
    } else {
        output::print(&text(&report));
    }
    Ok(Ending::Good)
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "log           {} before, {} now\nwent through  {}, of it {} copied\ncheckpoint    {}\n",
        bytes(report.log_disk_bytes_before),
        bytes(report.log_disk_bytes_after),
        bytes(report.scanned_bytes),
        bytes(report.copied_bytes),
        report.checkpoint
    );
    if report.part_disk_bytes_before + report.part_disk_bytes_after > 0 {
        text += &format!(
            "cold tier     {} before, {} now\n",
            bytes(report.part_disk_bytes_before),
            bytes(report.part_disk_bytes_after)
        );
    }
    if report.log_held_bytes > 0 {
        text += &format!(
            "held          {} by older checkpoints; it comes back when they go (--keep 1)\n",
            bytes(report.log_held_bytes)
        );
    }
    if report.out_of_room {
        text += "ended early   the disk has no room for the rest: remove files from it, or keep fewer checkpoints (--keep)\n";
    }
    text
}

/// Opens a bank with the budget `memory_budget` or its default. If the bank needs more memory,
/// opens it with a larger budget.
fn open(dir: &Path, memory_budget: Option<u64>, keep: usize) -> Result<Store> {
    let options = StoreOptions {
        memory_budget_bytes: memory_bytes(memory_budget),
        checkpoints_kept: keep,
        create: false,
        compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
        ..StoreOptions::default()
    };
    let store = match Store::open(dir, &options) {
        Err(Error::BudgetTooSmall { needed_bytes, .. }) => {
            // Twice the smallest sufficient budget, so that pages have room beside the index.
            let memory_budget_bytes = needed_bytes.saturating_mul(2);
            Store::open(dir, &StoreOptions { memory_budget_bytes, ..options })?
        }
        opened => opened?,
    };
    warn_of_memory(store.stats().memory_budget_bytes);
    Ok(store)
}
