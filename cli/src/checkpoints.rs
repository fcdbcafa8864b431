//! `embank checkpoints`: lists the kept checkpoints of a bank.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use embank_kv::inspect::{CheckpointSummary, summary};
use serde::Serialize;

use crate::Ending;
use crate::output::{self, DamageJson, bytes, count, damage_lines};
use crate::stat::{TableJson, plain_tables};

/// Options of `checkpoints`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bank's directory
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    checkpoints: Vec<Checkpoint>,
    damage: Vec<DamageJson>,
}

#[derive(Debug, Serialize)]
struct Checkpoint {
    number: u64,
    /// The checkpoint's random id in hexadecimal digits, because a JSON number cannot hold 64 bits.
    id: String,
    taken_unix_s: Option<u64>,
    log_begin: u64,
    log_end: u64,
    tables: Vec<TableJson>,
    rows: u64,
    row_bytes: u64,
    blob_bytes: u64,
    file_bytes: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the directory is no bank or cannot be read.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let summary = summary(&args.dir)?;
    if args.json {
        let checkpoint = |of: &CheckpointSummary| Checkpoint {
            number: of.number,
            id: format!("{:016x}", of.id),
            taken_unix_s: unix_seconds(of.taken),
            log_begin: of.log_begin,
            log_end: of.log_end,
            tables: plain_tables(of).map(TableJson::of).collect(),
            rows: of.rows(),
            row_bytes: of.record_bytes(),
            blob_bytes: of.blob_bytes,
            file_bytes: of.file_bytes,
        };
        output::json(&Report {
            checkpoints: summary.checkpoints.iter().map(checkpoint).collect(),
            damage: DamageJson::all(&summary.damage),
        });
    } else {
        let mut text = lines(&summary.checkpoints);
        if !summary.damage.is_empty() {
            text += "\ndamaged:\n";
            text += &damage_lines(&args.dir, &summary.damage);
        }
        output::print(&text);
    }
    Ok(if summary.damage.is_empty() { Ending::Good } else { Ending::Damage })
}

fn lines(checkpoints: &[CheckpointSummary]) -> String {
    if checkpoints.is_empty() {
        return "no checkpoint\n".to_owned();
    }
    let head = ["number", "age", "tables", "rows", "log", "blob", "index and all"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for of in checkpoints {
        rows.push(vec![
            of.number.to_string(),
            age(of.taken),
            plain_tables(of).count().to_string(),
            count(of.rows()),
            format!("{} to {}", of.log_begin, of.log_end),
            bytes(of.blob_bytes),
            bytes(of.file_bytes),
        ]);
    }
    output::table(&rows)
}

fn unix_seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Returns the time since `time` as text, in seconds, minutes, hours or days.
fn age(time: SystemTime) -> String {
    let Ok(ago) = SystemTime::now().duration_since(time) else { return "0 s".to_owned() };
    match ago.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
