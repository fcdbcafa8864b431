//! `embank export`: writes a table to a file that other programs read.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use embank::{Bank, BankOptions, DenseRows, Error, ExportOptions, FileFormat, StoreError};
use serde::Serialize;

use crate::Ending;
use crate::output::{self, RowBar, bytes, count, parse_scaled};

/// Largest default of a command's memory budget. It is less than the library's default of 1 GiB,
/// because commands run beside the training program.
const MEMORY_BYTES: u64 = 256 << 20;

/// Options of `export`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bank's directory
    dir: PathBuf,
    /// The table's name
    table: String,
    /// The file: FILE.safetensors, FILE.npy or FILE.parquet; `-` with --format parquet is standard
    /// output
    out: PathBuf,
    /// The format, whatever the file's suffix says
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Export the optimizer's state and tracked uses too, so that an import restores training
    /// exactly
    #[arg(long)]
    state: bool,
    /// Export one matrix with a row for each key from 0 to the largest, without the keys; not for
    /// Parquet
    #[arg(long)]
    dense: bool,
    /// With --dense: the number of rows; a key that is not below it is an error
    #[arg(long, value_name = "N", requires = "dense")]
    rows: Option<u64>,
    /// With --dense: keys without a row get their initial values
    #[arg(long, requires = "dense")]
    fill_missing: bool,
    /// The checkpoint to export [default: the newest]
    #[arg(long, value_name = "N")]
    checkpoint: Option<u64>,
    /// Memory for index and pages; the command takes more if the bank needs it [default: 256MiB, or
    /// a quarter of the memory limit of the process's control group, if that is less]
    #[arg(long, value_name = "BYTES", value_parser = parse_scaled)]
    memory_budget: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A file format on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    Safetensors,
    Npy,
    Parquet,
}

impl From<Format> for FileFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Safetensors => Self::Safetensors,
            Format::Npy => Self::Npy,
            Format::Parquet => Self::Parquet,
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    checkpoint: u64,
    rows: u64,
    filled_rows: u64,
    bytes: u64,
    /// The paths as text, because a path need not be UTF-8 and JSON must be.
    files: Vec<String>,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the bank lacks the table or checkpoint, if it cannot be read, or if the file
/// cannot be written.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let bank = with_enough_memory(args.memory_budget, |options| {
        Bank::open_read_only(&args.dir, options, args.checkpoint)
    })?;
    let table = bank.open_table_unchecked(&args.table)?;
    let options = ExportOptions {
        format: args.format.map(Into::into),
        state: args.state,
        dense: args.dense.then_some(DenseRows { rows: args.rows, fill_missing: args.fill_missing }),
    };
    let bar = RowBar::new("exporting");
    let show = |progress| {
        bar.show(progress);
        ControlFlow::Continue(())
    };
    let is_streamed = output::is_stdout(&args.out);
    let exported = match is_streamed {
        true => table.export_to(std::io::stdout(), &options, show)?,
        false => table.export_with(&args.out, &options, show)?,
    };
    drop(bar);
    let report = Report {
        checkpoint: exported.checkpoint,
        rows: exported.rows,
        filled_rows: exported.filled_rows,
        bytes: exported.bytes,
        files: exported.files.iter().map(|file| file.display().to_string()).collect(),
    };
    let words = || {
        let files =
            if is_streamed { "standard output".to_owned() } else { report.files.join(", ") };
        format!(
            "{} rows of checkpoint {}, {} with initial values beside them, {}: {}\n",
            count(report.rows),
            report.checkpoint,
            count(report.filled_rows),
            bytes(report.bytes),
            output::shown(files)
        )
    };
    output::report(&report, args.json, is_streamed, words);
    Ok(Ending::Good)
}

/// Opens a bank with the budget `memory_budget` or its default. If the bank needs more memory,
/// opens it with a larger budget.
pub(crate) fn with_enough_memory(
    memory_budget: Option<u64>,
    open: impl Fn(BankOptions) -> embank::Result<Bank>,
) -> Result<Bank> {
    let options = BankOptions {
        memory_budget_bytes: memory_bytes(memory_budget),
        lookahead_queue_keys: Some(0),
        ..BankOptions::default()
    };
    let bank = match open(options.clone()) {
        Err(Error::Store(StoreError::BudgetTooSmall { needed_bytes, .. })) => {
            // Twice the smallest sufficient budget, so that pages have room beside the index.
            let memory_budget_bytes = needed_bytes.saturating_mul(2);
            open(BankOptions { memory_budget_bytes, ..options })?
        }
        opened => opened?,
    };
    warn_of_memory(bank.stats().memory_budget_bytes);
    Ok(bank)
}

/// Returns the memory budget that the option gives. Without the option, returns the library's
/// default, but at most [`MEMORY_BYTES`].
pub(crate) fn memory_bytes(given: Option<u64>) -> u64 {
    given.unwrap_or_else(|| embank::default_memory_budget_bytes().min(MEMORY_BYTES))
}

/// Warns on standard error if the memory budget exceeds the limit of the process's control group.
pub(crate) fn warn_of_memory(budget_bytes: u64) {
    if let Some(warning) = embank::memory_budget_warning(budget_bytes) {
        output::note(&format!("warning: {warning}\n"));
    }
}
