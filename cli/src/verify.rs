//! `embank verify`: checks a bank, or all banks of a fleet, for damage.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use embank::fleet::{shard_numbers, shard_path};
use embank_kv::inspect::{CheckpointReport, VerifyOptions, VerifyReport, verify};
use serde::Serialize;

use crate::Ending;
use crate::export::memory_bytes;
use crate::output::{self, Bar, DamageJson, count, damage_lines, parse_scaled};
use crate::sets;

/// Options of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory of the bank or of the fleet
    dir: PathBuf,
    /// The checkpoint to check [default: all kept checkpoints]
    #[arg(long, value_name = "N")]
    checkpoint: Option<u64>,
    /// Memory for a part of the index; with less, the index is read more often [default: 256MiB,
    /// or a quarter of the memory limit of the process's control group, if that is less]
    #[arg(long, value_name = "BYTES", value_parser = parse_scaled)]
    memory: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    clean: bool,
    bank: Option<String>,
    pages: u64,
    records: u64,
    parts: u64,
    checkpoints: Vec<Checkpoint>,
    gone: Vec<u64>,
    unchecked: Vec<u64>,
    damage: Vec<DamageJson>,
    unlisted: u64,
}

#[derive(Debug, Serialize)]
struct Checkpoint {
    number: u64,
    index_readable: bool,
    entries_lost: u64,
    tables: Vec<Table>,
}

#[derive(Debug, Serialize)]
struct Table {
    name: String,
    rows: u64,
    sound: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the directory is no bank, lacks the checkpoint, or cannot be read.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    if !args.dir.join("BANK").exists() {
        let shards = shard_numbers(&args.dir)?;
        if !shards.is_empty() {
            return run_fleet(args, &shards);
        }
    }
    let report = checked(args, &args.dir)?;
    if args.json {
        output::json(&json(&report));
    } else {
        output::print(&text(&args.dir, &report));
    }
    Ok(if report.is_clean() { Ending::Good } else { Ending::Damage })
}

/// True if the bank is not damaged, but can't be checked by this version of Embank.
fn is_newer_format(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(embank_kv::Error::NewerFormat { .. }))
}

fn checked(args: &Args, dir: &Path) -> Result<VerifyReport> {
    let options =
        VerifyOptions { checkpoint: args.checkpoint, memory_bytes: memory_bytes(args.memory) };
    let bar = Bar::new("verifying");
    Ok(verify(dir, &options, &mut |progress| bar.show(progress))?)
}

#[derive(Debug, Serialize)]
struct FleetReport {
    clean: bool,
    shards: Vec<ShardReport>,
    sets: sets::Report,
}

#[derive(Debug, Serialize)]
struct ShardReport {
    shard: u32,
    /// `None` if the shard is no bank.
    bank: Option<Report>,
    problem: Option<String>,
}

/// Checks the bank of each shard that is on this machine, and then the sets.
fn run_fleet(args: &Args, shards: &[u32]) -> Result<Ending> {
    ensure!(
        args.checkpoint.is_none(),
        "{} is a fleet, whose shards number their checkpoints by themselves: leave out --checkpoint, or give the \
         directory of a shard",
        args.dir.display()
    );
    let mut words = String::new();
    let mut reports = Vec::new();
    let mut is_clean = true;
    for &shard in shards {
        let dir = shard_path(&args.dir, shard);
        words += &format!("shard {shard}\n");
        let (bank, problem) = match checked(args, &dir) {
            Ok(report) => {
                is_clean &= report.is_clean();
                text(&dir, &report).lines().for_each(|line| words += &format!("  {line}\n"));
                (Some(json(&report)), None)
            }
            Err(error) if is_newer_format(&error) => return Err(error),
            Err(error) => {
                is_clean = false;
                let problem = output::causes(&error);
                words += &format!("  problem: {}\n", output::shown(&problem));
                (None, Some(problem))
            }
        };
        reports.push(ShardReport { shard, bank, problem });
    }
    let sets = sets::read(&args.dir)?;
    is_clean &= sets.problems.is_empty();
    words += &sets::text(&sets);
    if args.json {
        output::json(&FleetReport { clean: is_clean, shards: reports, sets });
    } else {
        output::print(&words);
    }
    Ok(if is_clean { Ending::Good } else { Ending::Damage })
}

fn json(report: &VerifyReport) -> Report {
    let checkpoint = |of: &CheckpointReport| Checkpoint {
        number: of.number,
        index_readable: of.indexed,
        entries_lost: of.entries_lost,
        tables: of
            .tables
            .iter()
            .map(|table| Table { name: table.name.clone(), rows: table.rows, sound: table.sound })
            .collect(),
    };
    Report {
        clean: report.is_clean(),
        bank: report.bank.map(|bank| format!("{bank:016x}")),
        pages: report.pages,
        records: report.records,
        parts: report.parts,
        checkpoints: report.checkpoints.iter().map(checkpoint).collect(),
        gone: report.gone.clone(),
        unchecked: report.unchecked.clone(),
        damage: DamageJson::all(&report.damage),
        unlisted: report.unlisted,
    }
}

fn text(dir: &Path, report: &VerifyReport) -> String {
    let parts = match report.parts {
        0 => String::new(),
        parts => format!(", {} parts of the cold tier", count(parts)),
    };
    let mut text = format!(
        "{} pages of the log, {} sound records{parts}\n",
        count(report.pages),
        count(report.records)
    );
    for checkpoint in &report.checkpoints {
        let rows: u64 = checkpoint.tables.iter().map(|table| table.rows).sum();
        let sound: u64 = checkpoint.tables.iter().map(|table| table.sound).sum();
        text += &match (checkpoint.indexed, checkpoint.entries_lost) {
            (false, _) => format!(
                "checkpoint {}: {} rows; its index is damaged, so they were not counted\n",
                checkpoint.number,
                count(rows)
            ),
            (true, 0) => format!(
                "checkpoint {}: {} of {} rows found sound\n",
                checkpoint.number,
                count(sound),
                count(rows)
            ),
            (true, lost) => format!(
                "checkpoint {}: {} of {} rows found sound; {} entries of the index lead to none\n",
                checkpoint.number,
                count(sound),
                count(rows),
                count(lost)
            ),
        };
        for table in checkpoint.tables.iter().filter(|_| checkpoint.indexed) {
            if table.sound != table.rows {
                text += &format!(
                    "  table {}: {} of {}\n",
                    output::shown(&table.name),
                    count(table.sound),
                    count(table.rows)
                );
            }
        }
    }
    for number in &report.unchecked {
        text += &format!(
            "checkpoint {number}: its manifest can't be read, so its part of the log is not known\n"
        );
    }
    for number in &report.gone {
        text += &format!("checkpoint {number}: a writer let go of it meanwhile; not checked\n");
    }
    if report.is_clean() {
        text += "no damage\n";
        return text;
    }
    let places = report.damage.len() as u64 + report.unlisted;
    text += &format!("damage in {} places:\n", count(places));
    text += &damage_lines(dir, &report.damage);
    if report.unlisted > 0 {
        text += &format!("  and {} more entries of the index that lead astray\n", report.unlisted);
    }
    text
}
