//! `embank import`: reads files into a table.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use embank::fleet::refuse_shard;
use embank::{Bank, BankOptions, ImportOptions, Table, TableConfig, exported_config};
use embank_kv::inspect::summary;
use serde::Serialize;

use crate::Ending;
use crate::export::{Format, with_enough_memory};
use crate::output::{self, RowBar, count, parse_scaled};

/// Options of `import`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bank's directory
    dir: PathBuf,
    /// The table's name
    table: String,
    /// Files, one after another: FILE.safetensors, FILE.npy or FILE.parquet; a directory means its
    /// files, sorted by name
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The format, whatever the file's suffix says
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The tensor or column of the keys, for npy the file [default: `keys` or `key`]. Without
    /// either, row i is the row of key i, unless something else in the file may be its keys
    #[arg(long, value_name = "NAME")]
    keys: Option<String>,
    /// The tensor or column of the vectors, for npy the file [default: `rows` or `vector`, or the
    /// only matrix]
    #[arg(long, value_name = "NAME")]
    rows: Option<String>,
    /// Number the rows: row i is the row of key K + i, whatever else is in the file; the rows of a
    /// further file follow
    #[arg(long, value_name = "K", conflicts_with = "keys")]
    first_key: Option<u64>,
    /// Do not import the optimizer's state and tracked uses
    #[arg(long)]
    no_state: bool,
    /// Take NaN and infinite values too, and negative sums of squares in the optimizer's state
    #[arg(long)]
    non_finite: bool,
    /// Make the table, and the bank, if they do not exist; the table gets the settings that the
    /// export wrote to the file, or --dim
    #[arg(long)]
    create: bool,
    /// With --create: values per row; all other settings have their defaults
    #[arg(long, value_name = "N", requires = "create")]
    dim: Option<u32>,
    /// With --create: the keys are no ids of a vocabulary, whatever the export wrote to the file
    #[arg(long, requires = "create")]
    no_vocabulary: bool,
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
    rows: u64,
    with_state: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if a file or the bank cannot be read, if a file does not fit the table, or if
/// the table is missing. Also returns an error if the bank is a shard of a fleet.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    refuse_shard(&args.dir)?;
    // The bank keeps as many checkpoints as it has now, and at least 2. So the new checkpoint
    // removes at most the oldest one.
    let kept = match summary(&args.dir) {
        Ok(summary) => summary.checkpoints.len().max(2),
        Err(_) if args.create => 2,
        Err(error) => return Err(error.into()),
    };
    let bank = with_enough_memory(args.memory_budget, |options| {
        Bank::open(
            &args.dir,
            BankOptions { checkpoints_kept: kept, create: args.create, ..options },
        )
    })?;
    let table = open_table(&bank, args)?;
    let options = ImportOptions {
        format: args.format.map(Into::into),
        keys: args.keys.clone(),
        rows: args.rows.clone(),
        first_key: args.first_key,
        state: !args.no_state,
        non_finite: args.non_finite,
    };
    let bar = RowBar::new("importing");
    let imported = table.import_files_with(&args.files, &options, |progress| {
        bar.show(progress);
        ControlFlow::Continue(())
    })?;
    drop(bar);
    let blob = bank.recovered().map(|recovered| recovered.blob.clone()).unwrap_or_default();
    let checkpoint = bank.checkpoint(&blob)?;
    let report = Report { checkpoint, rows: imported.rows, with_state: imported.with_state };
    if args.json {
        output::json(&report);
    } else {
        let state = if report.with_state { "with" } else { "without" };
        output::print(&format!(
            "{} rows {state} optimizer state, in checkpoint {}\n",
            count(report.rows),
            report.checkpoint
        ));
    }
    Ok(Ending::Good)
}

fn open_table(bank: &Bank, args: &Args) -> Result<Table> {
    if bank.tables().iter().any(|table| table.name == args.table) {
        return Ok(bank.open_table(&args.table)?);
    }
    if !args.create {
        bail!(
            "{} has no table {:?}; name one that it has, or let --create make it",
            args.dir.display(),
            args.table
        );
    }
    let mut config = match args.dim {
        Some(dim) => TableConfig::new(dim),
        None => exported_config(&args.files[0], args.format.map(Into::into))?
            .context("the file doesn't tell the table's settings; give --dim")?,
    };
    if args.no_vocabulary {
        config.vocabulary = None;
    }
    Ok(bank.table(&args.table, config)?)
}
