//! `embank evict`: rows of a table go by age, frequency or norm.
//!
//! What goes is gone for good with the checkpoint at the end, so the list of the keys is on stable storage before that.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ArgGroup;
use embank::{Bank, BankOptions, Evicted, Eviction, Table, Tracking};
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
    /// The table's name
    table: String,
    /// Rows whose last use lies so far back or further: minutes, or in the unit of --set-time
    #[arg(long, value_name = "TIME")]
    unused_for: Option<u32>,
    /// Rows with fewer uses than this
    #[arg(long, value_name = "N")]
    used_fewer_than: Option<u32>,
    /// Rows whose vector has an L2 norm below this
    #[arg(long, value_name = "NORM")]
    norm_below: Option<f32>,
    /// The time that it is now, which --unused-for counts back from, of a table whose tracking is `set_time`
    #[arg(long, value_name = "TIME", requires = "unused_for")]
    set_time: Option<u32>,
    /// Change nothing: count, and list with --keys, what would go; works beside a process that writes the bank
    #[arg(long)]
    dry_run: bool,
    /// A file for the keys of the rows that went, one a line; must not be there
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Memory for index and pages; more is taken if the bank needs it
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = parse_scaled)]
    memory_budget: u64,
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
    /// The new one; none after a dry run, and where nothing went.
    checkpoint: Option<u64>,
    keys: Option<PathBuf>,
}

/// Runs the subcommand.
///
/// # Errors
/// The bank can't be read or written, there is no such table or checkpoint, the table can't tell what a condition asks
/// for, or the file of keys is there already or can't be written.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    // As many as there are: an eviction takes none away but for the oldest of two or more.
    let kept = summary(&args.dir)?.checkpoints.len().max(2);
    let bank = with_enough_memory(args.memory_budget, |options| {
        if args.dry_run {
            return Bank::open_read_only(&args.dir, options, None);
        }
        Bank::open(&args.dir, BankOptions { checkpoints_kept: kept, ..options })
    })?;
    let table = bank.open_table(&args.table)?;
    set_time(&table, args)?;
    let mut list = args.keys.as_deref().map(KeyList::create).transpose()?;
    let evicted = evict(&table, args, list.as_mut())?;
    list.map_or(Ok(()), KeyList::complete)?;
    let mut report = Report {
        dry_run: args.dry_run,
        examined_checkpoint: evicted.checkpoint,
        examined: evicted.examined,
        rows: evicted.rows,
        checkpoint: None,
        keys: args.keys.clone(),
    };
    // One for an eviction that took nothing would only push the oldest one out.
    if !args.dry_run && evicted.rows > 0 {
        let blob = bank.recovered().map(|recovered| recovered.blob.clone()).unwrap_or_default();
        report.checkpoint = Some(bank.checkpoint(&blob)?);
    }
    if args.json {
        output::json(&report)?;
    } else {
        output::print(&text(&report))?;
    }
    Ok(Ending::Good)
}

/// Sets the table's time, which is not durable, to what the caller says.
fn set_time(table: &Table, args: &Args) -> Result<()> {
    match (table.config().tracking, args.set_time) {
        (Tracking::SetTime, Some(time)) => Ok(table.set_time(time)?),
        (Tracking::SetTime, None) if args.unused_for.is_some() => bail!(
            "table {:?} goes by the time that training sets, which no bank keeps: here it is 0, and no \
             row would be old; say with --set-time what time it is, in what training counts (steps, \
             epochs, days), and try it with --dry-run first",
            table.name()
        ),
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

fn text(report: &Report) -> String {
    let went = if report.dry_run { "would go" } else { "evicted" };
    let mut text = format!(
        "examined      {} rows of checkpoint {}\n{went:<14}{}\n",
        count(report.examined),
        report.examined_checkpoint,
        count(report.rows)
    );
    if let Some(keys) = &report.keys {
        text += &format!("keys          {}\n", keys.display());
    }
    if let Some(checkpoint) = report.checkpoint {
        text += &format!("checkpoint    {checkpoint}; `embank compact` gives the space back\n");
    }
    text
}

/// A file of keys, one a line. It goes again unless it is completed.
#[derive(Debug)]
struct KeyList {
    path: PathBuf,
    out: BufWriter<File>,
    complete: bool,
}

impl KeyList {
    fn create(path: &Path) -> Result<Self> {
        match File::create_new(path) {
            Ok(file) => {
                let out = BufWriter::new(file);
                Ok(Self { path: path.to_owned(), out, complete: false })
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!("{} is there already; give another name", path.display())
            }
            Err(error) => Err(error).with_context(|| format!("making {}", path.display())),
        }
    }

    fn push(&mut self, keys: &[u64]) -> Result<()> {
        let mut write = || keys.iter().try_for_each(|key| writeln!(self.out, "{key}"));
        write().with_context(|| not_written(&self.path))
    }

    /// Makes the list, and its name, durable.
    fn complete(mut self) -> Result<()> {
        self.sync().with_context(|| not_written(&self.path))?;
        self.complete = true;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
        File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for KeyList {
    fn drop(&mut self) {
        if !self.complete {
            // What was to be said about it has been said.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn not_written(path: &Path) -> String {
    format!("writing the keys to {}, so no row went", path.display())
}
