//! `embank evict`: deletes rows of a table by age, frequency or norm.
//!
//! The checkpoint at the end makes the deletion final. The command makes the list of deleted keys
//! durable before it takes this checkpoint.

use std::cell::OnceCell;
use std::fs;
use std::io::{BufWriter, IntoInnerError, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ArgGroup;
use embank::fleet::refuse_shard;
use embank::{Bank, BankOptions, Evicted, Eviction, Table, Tracking};
use embank_kv::OutputFile;
use embank_kv::inspect::summary;
use serde::Serialize;

use crate::Ending;
use crate::export::with_enough_memory;
use crate::output::{self, RowBar, count, parse_scaled};

/// Options of `evict`.
#[derive(Debug, clap::Args)]
#[command(group(
    ArgGroup::new("condition")
        .args(["unused_for", "used_fewer_than", "norm_below"])
        .required(true)
        .multiple(true)
))]
pub(crate) struct Args {
    /// The bank's directory
    dir: PathBuf,
    /// The table's name. With the name of its counts before admission, as `stat` shows it, the
    /// command deletes only counts
    table: String,
    /// Delete rows whose last use is this long ago or longer: in minutes, or in the unit of
    /// --set-time
    #[arg(long, value_name = "TIME")]
    unused_for: Option<u32>,
    /// Delete rows with fewer uses than this
    #[arg(long, value_name = "N")]
    used_fewer_than: Option<u32>,
    /// Delete rows whose vector has an L2 norm below this
    #[arg(long, value_name = "NORM")]
    norm_below: Option<f32>,
    /// The time now, from which --unused-for counts back, in training's unit (steps, epochs,
    /// days); only for a table whose tracking is `set_time`. Default: the largest time that
    /// training has set
    #[arg(long, value_name = "TIME", requires = "unused_for")]
    set_time: Option<u32>,
    /// Change nothing: count the rows that would go, and with --keys list them; works while another
    /// process writes the bank
    #[arg(long)]
    dry_run: bool,
    /// Write the keys of the deleted rows to FILE, one in each line; FILE must not exist yet
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
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
    dry_run: bool,
    examined_checkpoint: u64,
    examined: u64,
    rows: u64,
    counts: u64,
    /// The number of the new checkpoint. `None` after a dry run, and if the command deleted
    /// nothing.
    checkpoint: Option<u64>,
    /// The path as text, because a path need not be UTF-8 and JSON must be.
    keys: Option<String>,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the bank cannot be read or written, if the table is missing, or if the table
/// lacks the data for a condition. Also returns an error if the file of keys exists or cannot be
/// written, or if the bank is a shard of a fleet.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    if !args.dry_run {
        refuse_shard(&args.dir)?;
    }
    // The bank keeps as many checkpoints as it has now, and at least 2. So the new checkpoint
    // removes at most the oldest one.
    let kept = summary(&args.dir)?.checkpoints.len().max(2);
    let bank = with_enough_memory(args.memory_budget, |options| {
        if args.dry_run {
            return Bank::open_read_only(&args.dir, options, None);
        }
        Bank::open(&args.dir, BankOptions { checkpoints_kept: kept, create: false, ..options })
    })?;
    // The user may have a table whose name looks like that of a table of counts. Then `args.table`
    // means the user's table.
    let counts_of = embank::table_of_counts(&args.table)
        .filter(|_| bank.tables().iter().all(|table| table.name != args.table));
    let table = bank.open_table(counts_of.unwrap_or(&args.table))?;
    set_time(&table, args)?;
    let evicted = if counts_of.is_some() {
        forget_counts(&table, args)?
    } else {
        let mut list = args.keys.as_deref().map(KeyList::create).transpose()?;
        let evicted = evict(&table, args, list.as_mut())?;
        list.map_or(Ok(()), KeyList::complete)?;
        evicted
    };
    let mut report = Report {
        dry_run: args.dry_run,
        examined_checkpoint: evicted.checkpoint,
        examined: evicted.examined,
        rows: evicted.rows,
        counts: evicted.counts,
        checkpoint: None,
        keys: args.keys.as_ref().map(|path| path.display().to_string()),
    };
    // If nothing changed, a checkpoint would only remove the oldest checkpoint.
    if !args.dry_run && evicted.rows + evicted.counts > 0 {
        let blob = bank.recovered().map(|recovered| recovered.blob.clone()).unwrap_or_default();
        let taken = bank.checkpoint(&blob);
        let taken =
            taken.with_context(|| not_taken(&args.dir, args.keys.as_deref(), evicted.checkpoint));
        report.checkpoint = Some(taken?);
    }
    if args.json {
        output::json(&report);
    } else {
        output::print(&text(&report));
    }
    Ok(Ending::Good)
}

/// Sets the table's time to the value of `--set-time`. Without this option, the table keeps the
/// largest time that training has set.
fn set_time(table: &Table, args: &Args) -> Result<()> {
    match (table.config().tracking, args.set_time) {
        (Tracking::SetTime, Some(time)) => Ok(table.set_time(time)?),
        (Tracking::Minutes, Some(_)) => bail!(
            "table {:?} goes by the system's clock, in minutes; leave --set-time out",
            table.name()
        ),
        _ => Ok(()),
    }
}

fn evict(table: &Table, args: &Args, mut list: Option<&mut KeyList>) -> Result<Evicted> {
    let mut eviction = Eviction::new().dry_run(args.dry_run);
    eviction.unused_for = args.unused_for;
    eviction.used_fewer_than = args.used_fewer_than;
    eviction.norm_below = args.norm_below;
    let bar = RowBar::new("evicting");
    let unlisted = OnceCell::new();
    let gone = |keys: &[u64]| {
        if let Some(Err(error)) = list.as_mut().map(|list| list.push(keys)) {
            let _ = unlisted.set(error);
        }
    };
    let evicted = table.evict_with(&eviction, gone, |progress| {
        bar.show(progress);
        if unlisted.get().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match unlisted.into_inner() {
        Some(error) => Err(error),
        None => Ok(evicted?),
    }
}

fn forget_counts(table: &Table, args: &Args) -> Result<Evicted> {
    let (Some(unused_for), None, None, None) =
        (args.unused_for, args.used_fewer_than, args.norm_below, &args.keys)
    else {
        bail!(
            "counts before admission go by the time of the last Get alone: give --unused-for, \
             and none of --used-fewer-than, --norm-below and --keys"
        );
    };
    Ok(table.forget_counts(unused_for, args.dry_run)?)
}

fn text(report: &Report) -> String {
    let went = if report.dry_run { "would go" } else { "evicted" };
    let mut text = format!(
        "examined      {} rows of checkpoint {}\n{went:<14}{}\n",
        count(report.examined),
        report.examined_checkpoint,
        count(report.rows)
    );
    if report.counts > 0 {
        text += &format!("counts        {} before admission {went}\n", count(report.counts));
    }
    if let Some(keys) = &report.keys {
        text += &format!("keys          {}\n", output::shown(keys));
    }
    if let Some(checkpoint) = report.checkpoint {
        text += &format!("checkpoint    {checkpoint}; `embank compact` gives the space back\n");
    }
    text
}

/// Called after a failed checkpoint. Removes the list of keys if no row was deleted. Returns a text
/// that says what happened to the rows.
fn not_taken(dir: &Path, list: Option<&Path>, examined: u64) -> String {
    // If only the checkpoint's last step failed, the new checkpoint may exist. The list then names
    // deleted rows and must stay.
    let found = summary(dir).ok().filter(|found| found.damage.is_empty());
    let newest = found.and_then(|found| found.checkpoints.iter().map(|one| one.number).max());
    if newest != Some(examined) {
        let dir = dir.display();
        return format!(
            "taking a checkpoint; the rows have gone if `embank checkpoints {dir}` lists one after \
             {examined}, else none has"
        );
    }
    match list {
        Some(list) if fs::remove_file(list).is_err() => {
            format!("taking a checkpoint; the keys in {} have not gone", list.display())
        }
        _ => "taking a checkpoint, so no row went".to_owned(),
    }
}

/// A file of keys, one in each line. `complete` gives the file its name. If the list is dropped
/// before `complete`, the file is removed.
#[derive(Debug)]
struct KeyList {
    path: PathBuf,
    out: BufWriter<OutputFile>,
}

impl KeyList {
    fn create(path: &Path) -> Result<Self> {
        if fs::symlink_metadata(path).is_ok() {
            bail!("{} is there already; give another name", path.display());
        }
        Ok(Self { path: path.to_owned(), out: BufWriter::new(OutputFile::create(path)?) })
    }

    fn push(&mut self, keys: &[u64]) -> Result<()> {
        let mut write = || keys.iter().try_for_each(|key| writeln!(self.out, "{key}"));
        write().with_context(|| not_written(&self.path))
    }

    /// Makes the list durable, renames it to its final name, and makes the name durable.
    fn complete(self) -> Result<()> {
        let Self { path, out } = self;
        publish(out).with_context(|| not_written(&path))
    }
}

fn publish(out: BufWriter<OutputFile>) -> Result<()> {
    let file = out.into_inner().map_err(IntoInnerError::into_error)?;
    file.sync()?;
    Ok(file.publish_new()?)
}

fn not_written(path: &Path) -> String {
    format!("writing the keys to {}, so no row went", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkpoint that fails in its last step may exist. `not_taken` then keeps the list, because
    /// nothing else records the deleted rows.
    #[test]
    fn a_list_stays_where_its_rows_may_have_gone() {
        let files = tempfile::tempdir().unwrap();
        let (dir, list) = (files.path().join("bank"), files.path().join("keys"));
        let bank = Bank::open(&dir, BankOptions::default()).unwrap();
        let (before, after) = (bank.checkpoint(b"").unwrap(), bank.checkpoint(b"").unwrap());
        fs::write(&list, "7\n").unwrap();
        let told = not_taken(&dir, Some(&list), before);
        assert!(told.contains("lists one after 1") && list.exists(), "{told}");
        let told = not_taken(&files.path().join("none"), Some(&list), after);
        assert!(told.contains("lists one after 2") && list.exists(), "{told}");

        let told = not_taken(&dir, Some(&list), after);
        assert!(told.contains("no row went") && !list.exists(), "{told}");
        let told = not_taken(&dir, Some(&list), after);
        assert!(told.contains("have not gone"), "{told}");
    }
}
