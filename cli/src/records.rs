//! `embank records`: looks at record files and checks them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Subcommand;
use embank_kv::inspect::Progress;
use embank_pipeline::{
    Dtype, Error, MatrixInfo, RecordDamage, RecordFile, RecordReport, verify_records,
};
use serde::Serialize;

use crate::Ending;
use crate::output::{self, Bar, bytes, count, shown};

/// Options of `records`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints what record files hold: rows, groups, bytes, outputs, metadata
    ///
    /// Reads only the head and the index of each file. Exit status 1 if one of them is damaged.
    Stat(FilesArgs),
    /// Checks every byte of record files, and lists all damage
    ///
    /// Checks head, index and zeros, and reads every group. Goes on after a damaged group and after
    /// a damaged file, and lists all of them. Exit status 1 if a file is damaged.
    Verify(FilesArgs),
}

#[derive(Debug, clap::Args)]
struct FilesArgs {
    /// The record files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if a file can't be read, or if a newer version of Embank wrote it.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    match &args.command {
        Command::Stat(args) => stat(args),
        Command::Verify(args) => verify(args),
    }
}

/// The content of a file.
#[derive(Debug, Serialize)]
struct Stat {
    file: String,
    rows: u64,
    groups: u64,
    /// Bytes of the values.
    bytes: u64,
    file_bytes: u64,
    /// Number of groups that are compressed by zstd.
    compressed_groups: u64,
    fidelities: Vec<Fidelity>,
    outputs: Vec<Output>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct Fidelity {
    name: String,
    mean_row_bytes: f64,
}

#[derive(Debug, Serialize)]
struct Output {
    name: String,
    dtype: Dtype,
    columns: Vec<String>,
}

#[derive(Debug, Serialize)]
struct StatReport {
    files: Vec<Stat>,
    /// Damage of files that can't be opened.
    damage: Vec<Damage>,
}

#[derive(Debug, Serialize)]
struct VerifyJson {
    clean: bool,
    files: Vec<Verified>,
    damaged_files: u64,
}

#[derive(Debug, Serialize)]
struct Verified {
    file: String,
    clean: bool,
    groups: u64,
    rows: u64,
    sound_groups: u64,
    sound_rows: u64,
    damage: Vec<Damage>,
}

#[derive(Debug, Serialize)]
struct Damage {
    file: String,
    group: Option<u64>,
    offset: u64,
    what: String,
}

impl Damage {
    fn of(damage: &RecordDamage) -> Self {
        Self {
            file: damage.path.display().to_string(),
            group: damage.group,
            offset: damage.offset,
            what: damage.what.clone(),
        }
    }
}

fn stat(args: &FilesArgs) -> Result<Ending> {
    let mut report = StatReport { files: Vec::new(), damage: Vec::new() };
    for path in &args.files {
        match RecordFile::open(path) {
            Ok(file) => report.files.push(stat_of(&file)),
            Err(Error::Records(damage)) => report.damage.push(Damage::of(&damage)),
            Err(error) => return Err(error.into()),
        }
    }
    if args.json {
        output::json(&report);
    } else {
        let mut parts: Vec<String> = report.files.iter().map(stat_text).collect();
        if !report.damage.is_empty() {
            parts.push(damage_text(&report.damage));
        }
        output::print(&parts.join("\n"));
    }
    Ok(if report.damage.is_empty() { Ending::Good } else { Ending::Damage })
}

fn stat_of(file: &RecordFile) -> Stat {
    let groups = file.groups();
    let output = |info: &MatrixInfo| Output {
        name: info.name.clone(),
        dtype: info.dtype,
        columns: info.columns.clone(),
    };
    let fidelities = file.fidelities().into_iter();
    Stat {
        file: file.path().display().to_string(),
        rows: file.rows(),
        groups: groups.len() as u64,
        bytes: groups.iter().map(|group| group.bytes).sum(),
        file_bytes: file.file_bytes(),
        compressed_groups: groups.iter().filter(|group| group.is_compressed).count() as u64,
        fidelities: fidelities
            .map(|of| Fidelity { name: of.name, mean_row_bytes: of.mean_row_bytes })
            .collect(),
        outputs: file.outputs().iter().map(output).collect(),
        metadata: file.metadata().clone(),
    }
}

fn stat_text(stat: &Stat) -> String {
    let mut text = format!(
        "file          {}, {}\nrows          {} in {} groups, {}\ncompressed    {} groups, by zstd\n",
        shown(&stat.file),
        bytes(stat.file_bytes),
        count(stat.rows),
        count(stat.groups),
        bytes(stat.bytes),
        count(stat.compressed_groups),
    );
    for fidelity in &stat.fidelities {
        let Fidelity { name, mean_row_bytes } = fidelity;
        text += &format!("fidelity      {}, {mean_row_bytes:.1} B a row\n", shown(name));
    }
    for (name, value) in &stat.metadata {
        text += &format!("metadata      {}: {}\n", shown(name), shown(value));
    }
    let mut rows = vec![["output", "dtype", "columns"].map(str::to_owned).to_vec()];
    for output in &stat.outputs {
        let dtype = serde_json::to_value(output.dtype).ok();
        let dtype = dtype.as_ref().and_then(|dtype| dtype.as_str()).unwrap_or_default();
        rows.push(vec![output.name.clone(), dtype.to_owned(), count(output.columns.len() as u64)]);
    }
    text + "\n" + &output::table(&rows)
}

fn verify(args: &FilesArgs) -> Result<Ending> {
    let mut lengths = Vec::new();
    for path in &args.files {
        // A file that is missing fails below, with its name.
        lengths.push(std::fs::metadata(path).map_or(0, |found| found.len()));
    }
    let total_bytes = lengths.iter().sum();
    let mut report = VerifyJson { clean: true, files: Vec::new(), damaged_files: 0 };
    let mut before = 0;
    for (path, length) in args.files.iter().zip(lengths) {
        let verified = {
            let bar = Bar::new("verifying");
            let mut show = |done| bar.show(Progress { done_bytes: before + done, total_bytes });
            verified(path, &verify_records(path, &mut show)?)
        };
        before += length;
        report.damaged_files += u64::from(!verified.clean);
        if !args.json {
            output::print(&verified_text(&verified));
        }
        report.files.push(verified);
    }
    report.clean = report.damaged_files == 0;
    if args.json {
        output::json(&report);
    } else if report.files.len() > 1 {
        output::print(&format!(
            "{} of {} files are damaged\n",
            count(report.damaged_files),
            count(report.files.len() as u64)
        ));
    }
    Ok(if report.clean { Ending::Good } else { Ending::Damage })
}

fn verified(path: &Path, report: &RecordReport) -> Verified {
    Verified {
        file: path.display().to_string(),
        clean: report.is_clean(),
        groups: report.groups,
        rows: report.rows,
        sound_groups: report.sound_groups,
        sound_rows: report.sound_rows,
        damage: report.damage.iter().map(Damage::of).collect(),
    }
}

fn verified_text(report: &Verified) -> String {
    let told = format!(
        "{}: {} of {} groups and {} of {} rows found sound\n",
        shown(&report.file),
        count(report.sound_groups),
        count(report.groups),
        count(report.sound_rows),
        count(report.rows),
    );
    match (report.clean, report.groups) {
        (true, _) => told + "no damage\n",
        // The damage says that the head or the index can't be read.
        (false, 0) => damage_text(&report.damage),
        (false, _) => told + &damage_text(&report.damage),
    }
}

fn damage_text(damage: &[Damage]) -> String {
    let mut text = format!("damage in {} places:\n", count(damage.len() as u64));
    for found in damage {
        let group = found.group.map_or(String::new(), |group| format!(": group {group}"));
        let (file, what) = (shown(&found.file), shown(&found.what));
        text += &format!("  {file}{group} at {}: {what}\n", found.offset);
    }
    text
}
