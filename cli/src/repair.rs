//! `embank repair`: saves the intact rows of a damaged bank in a new bank.

use std::path::PathBuf;

use anyhow::Result;
use embank_kv::inspect::{Blob, RowSource, SalvageOptions, SalvageReport, SalvagedTable, salvage};
use serde::Serialize;

use crate::Ending;
use crate::export::warn_of_memory;
use crate::output::{self, Bar, DamageJson, bytes, count, damage_lines, parse_scaled};

/// Options of `repair`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The damaged bank's directory, which stays as it is
    dir: PathBuf,
    /// The new bank's directory; must be empty or not exist
    new: PathBuf,
    /// Memory for the new bank while it is written [default: 128 MiB and 18 bytes a row]
    #[arg(long, value_name = "BYTES", value_parser = parse_scaled)]
    memory_budget: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    complete: bool,
    checkpoint: u64,
    newest: u64,
    rows_by: &'static str,
    tables: Vec<Table>,
    blob_bytes: Option<u64>,
    blob_lost: Option<String>,
    entries_lost: u64,
    notes: Vec<String>,
    damage: Vec<DamageJson>,
}

#[derive(Debug, Serialize)]
struct Table {
    name: String,
    expected: Option<u64>,
    rows: u64,
    uncertain: u64,
    lost: Option<u64>,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if there is nothing to salvage, or if the new directory is not empty or cannot
/// be written.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    if let Some(budget_bytes) = args.memory_budget {
        warn_of_memory(budget_bytes);
    }
    let options = SalvageOptions { memory_budget_bytes: args.memory_budget };
    let report = {
        let bar = Bar::new("salvaging");
        salvage(&args.dir, &args.new, &options, &mut |progress| bar.show(progress))?
    };
    if args.json {
        output::json(&json(&report));
    } else {
        output::print(&text(args, &report));
    }
    let whole = report.is_complete() && report.damage.is_empty();
    Ok(if whole { Ending::Good } else { Ending::Damage })
}

fn json(report: &SalvageReport) -> Report {
    let table = |table: &SalvagedTable| Table {
        name: table.name.clone(),
        expected: table.expected,
        rows: table.rows,
        uncertain: table.uncertain,
        lost: table.lost(),
    };
    let (blob_bytes, blob_lost) = match &report.blob {
        Blob::Kept(bytes) => (Some(*bytes), None),
        Blob::Lost(why) => (None, Some(why.clone())),
        _ => (None, None),
    };
    Report {
        complete: report.is_complete(),
        checkpoint: report.checkpoint,
        newest: report.newest,
        rows_by: match report.rows_by {
            RowSource::Index => "index",
            _ => "log",
        },
        tables: report.tables.iter().map(table).collect(),
        blob_bytes,
        blob_lost,
        entries_lost: report.entries_lost,
        notes: report.notes.clone(),
        damage: DamageJson::all(&report.damage),
    }
}

fn text(args: &Args, report: &SalvageReport) -> String {
    let by = match report.rows_by {
        RowSource::Index => "its index",
        _ => "the log",
    };
    let mut text = format!("checkpoint {}, rows by {by}\n", report.checkpoint);
    if report.checkpoint != report.newest {
        text += &format!(
            "the newest, {}, can't be brought back: what changed since is lost\n",
            report.newest
        );
    }
    text += &match &report.blob {
        Blob::Kept(count) => format!("blob       {} kept\n", bytes(*count)),
        Blob::Lost(why) => format!("blob       lost: {why}\n"),
        _ => String::new(),
    };
    let head = ["table", "rows", "of", "uncertain", "lost"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let unknown = || "unknown".to_owned();
    for table in &report.tables {
        rows.push(vec![
            table.name.clone(),
            count(table.rows),
            table.expected.map_or_else(unknown, count),
            count(table.uncertain),
            table.lost().map_or_else(unknown, count),
        ]);
    }
    text.push('\n');
    text += &output::table(&rows);
    for note in &report.notes {
        text += &format!("\nnote: {note}\n");
    }
    if report.tables.iter().any(|table| table.uncertain > 0) {
        text += "\nuncertain rows: newer records of them may have been on the damaged pages\n";
    }
    if report.damage.is_empty() {
        text += "\nnothing was damaged\n";
    } else {
        text += &format!("\ndamage in {} places:\n", count(report.damage.len() as u64));
        text += &damage_lines(&args.dir, &report.damage);
    }
    text
}
