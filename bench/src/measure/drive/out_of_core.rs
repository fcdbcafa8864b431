//! `out-of-core`: tables several times larger than memory, beside other stores and the drive's own
//! limit.
//!
//! The stores are measured by `embank-ycsb compare`, which gives each a process of its own and
//! takes turns; this runs it for every length of rows and every budget, measures what the drive
//! does at full depth before and after, and gathers everything in one table: rows/s beside each
//! peer, and for Embank the reads that reach the drive beside the drive's own rate.
//!
//! Estimate, written before measuring: uniform reads at a quarter miss three times in four, a read
//! each, so the drive's 100,000 to 140,000 reads a second carry 130,000 to 190,000 rows/s at 64 and
//! 512 bytes alike, and 110,000 to 160,000 at a tenth. Under Zipf 0.99 a quarter of the rows gets
//! some 90% of the requests: 5 to 8 times as much, where the processor begins to count. RocksDB,
//! one MultiGet of many blocks, a quarter of that uniform. Updates add the log's writing, a tenth
//! of the reads' bytes. 64-byte rows at a tenth leave less memory than an index of 15 bytes a row
//! takes, so rows share entries there, and a miss costs several reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::ground::device_limit::{DriveFile, Load};
use crate::ground::report::{Output, Row, print_provenance};
use crate::ground::rounds::Spread;
use crate::measure::store::in_memory::scratch_in;

/// Options of `out-of-core`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes of all rows' values; the number of rows follows
    #[arg(long, value_name = "BYTES", default_value_t = 2_000_000_000)]
    data: u64,
    /// Bytes of a row, each length measured by itself
    #[arg(long, value_delimiter = ',', default_value = "64,512")]
    row_bytes: Vec<u64>,
    /// Budgets: one part in so many of the data
    #[arg(long, value_delimiter = ',', default_value = "4,10")]
    parts: Vec<u64>,
    /// Stores; the first is the one that the others stand beside
    #[arg(long, default_value = "embank,rocksdb,lmdb,redb,fjall")]
    engines: String,
    /// YCSB's workloads: c reads, a half updates, f half read-modify-writes
    #[arg(long, default_value = "c,a,f")]
    workload: String,
    /// Request distributions
    #[arg(long, default_value = "uniform,scrambled")]
    distribution: String,
    /// Operations of a call
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    /// Numbers of threads
    #[arg(long, default_value = "1,2")]
    threads: String,
    /// Seconds that each measurement takes in each round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Features that embank-ycsb is built with; the peers stand behind theirs
    #[arg(long, default_value = "peers")]
    features: String,
    /// Where stores and files lie while this runs; they are removed at the end
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    #[command(flatten)]
    output: Output,
    /// A rough answer: 64 MB of data, one thread, one round of a second, Embank and RocksDB
    #[arg(long)]
    quick: bool,
}

/// What `embank-ycsb compare --json` writes, as far as it is wanted here.
#[derive(Debug, Deserialize)]
struct Document {
    rows: Vec<ComparedRow>,
    measurements: Vec<Measurement>,
}

#[derive(Debug, Deserialize)]
struct ComparedRow {
    name: String,
    value: f64,
    against: Option<String>,
    against_value: Option<f64>,
    ratio: Option<f64>,
    min: f64,
    max: f64,
}

#[derive(Debug, Deserialize)]
struct Measurement {
    name: String,
    engine: String,
    rounds: Vec<Value>,
}

/// Runs the subcommand.
///
/// # Errors
/// The peers can't be built, a measurement fails, a file can't be written.
pub(crate) fn run(mut args: Args) -> Result<()> {
    ensure!(
        args.parts.iter().chain(&args.row_bytes).all(|&n| n > 0) && args.rounds > 0,
        "--parts, --row-bytes and --rounds must be positive"
    );
    if args.quick {
        (args.data, args.rounds) = (args.data.min(64_000_000), 1);
        args.seconds = args.seconds.min(1.0);
        (args.threads, args.engines) = ("1".to_owned(), "embank,rocksdb".to_owned());
    }
    print_provenance();
    let program = build(&args)?;
    let directory = scratch_in(&args.directory)?;
    let mut figures = Vec::new();
    let drive = drive_limit(&args, directory.path())?;
    for &row_bytes in &args.row_bytes {
        for &part in &args.parts {
            let document = compare(&args, &program, directory.path(), row_bytes, part)?;
            let label = format!("{row_bytes} B, budget 1/{part}");
            figures.extend(document.rows.iter().map(|row| compared(&label, row)));
            figures
                .extend(document.measurements.iter().filter_map(|m| disk_reads(&label, m, &drive)));
        }
    }
    figures.push(drive);
    args.output.publish("Larger than memory", &figures)
}

/// Builds `embank-ycsb` with the peers, in a folder of its own: they are heavy, and a plain build
/// must not lose or gain their features.
fn build(args: &Args) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers");
    let status = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", &target)
        .args(["build", "--release", "--package", "embank-ycsb", "--features", &args.features])
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "embank-ycsb with --features {} can't be built", args.features);
    Ok(target.join("release/embank-ycsb"))
}

/// Random reads of 4 KiB a second at full depth.
fn drive_limit(args: &Args, directory: &Path) -> Result<Row> {
    let file = DriveFile::filled(&directory.join("drive"), args.data.min(2 << 30))?;
    let load = Load { random: true, write: false, request_bytes: 4096, depth: 256, threads: 1 };
    let samples = (0..args.rounds as u64)
        .map(|seed| file.measure(load, Duration::from_secs_f64(args.seconds / 2.0), seed))
        .collect::<Result<Vec<f64>>>()?;
    drop(file);
    fs::remove_file(directory.join("drive")).context("removing the drive's file")?;
    Ok(Row::of(format!("the drive: {}", load.name()), "thousand/s", Spread::of(samples), 1e-3))
}

fn compare(
    args: &Args,
    program: &Path,
    directory: &Path,
    row_bytes: u64,
    part: u64,
) -> Result<Document> {
    let json = directory.join("compare.json");
    let number = |n: u64| n.to_string();
    let status = Command::new(program)
        .args(["compare", "--engines", &args.engines, "--workload", &args.workload])
        .args(["--distribution", &args.distribution, "--threads", &args.threads])
        .args(["--rows", &number((args.data / row_bytes).max(1))])
        .args(["--value-size", &number(row_bytes)])
        .args(["--memory-budget", &number(args.data / part)])
        .args(["--batch", &args.batch.to_string(), "--rounds", &args.rounds.to_string()])
        .args(["--seconds", &args.seconds.to_string()])
        .arg("--directory")
        .arg(directory)
        .arg("--json")
        .arg(&json)
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(status.success(), "embank-ycsb compare failed at {row_bytes} B, budget 1/{part}");
    let text = fs::read_to_string(&json).context("reading what compare wrote")?;
    serde_json::from_str(&text).context("understanding what compare wrote")
}

/// A row of the comparison under this table's names. Its rates are in rows a second.
fn compared(label: &str, row: &ComparedRow) -> Row {
    let spread = Spread { median: row.value, min: row.min, max: row.max };
    let mut figure = Row::of(format!("{label}: {}", row.name), "rows/s", spread, 1.0);
    figure.against.clone_from(&row.against);
    (figure.against_value, figure.ratio) = (row.against_value, row.ratio);
    figure
}

/// Reads that reached the drive, beside what the drive does; none for stores that do not count
/// them.
fn disk_reads(label: &str, measurement: &Measurement, drive: &Row) -> Option<Row> {
    let rates: Option<Vec<f64>> = measurement.rounds.iter().map(reads_per_second).collect();
    let spread = Spread::of(rates.filter(|rates| !rates.is_empty())?);
    let name = format!("{label}: {}: {} disk reads", measurement.name, measurement.engine);
    Some(Row::of(name, "thousand/s", spread, 1e-3).beside(drive))
}

/// The store's own counter of disk reads over the time of a round.
fn reads_per_second(round: &Value) -> Option<f64> {
    let counters = round.get("counters")?.as_array()?;
    let reads = counters.iter().find(|pair| pair[0] == "disk_reads")?[1].as_f64()?;
    Some(reads / round.get("wall_s")?.as_f64()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_becomes_rows_beside_peers_and_drive() {
        let text = r#"{"machine": "m", "rows": [
            {"name": "c uniform: embank beside rocksdb", "value": 8000.0, "unit": "rows/s",
             "against": "rocksdb", "against_value": 2000.0, "ratio": 4.0, "min": 7.0, "max": 9.0}],
            "measurements": [
            {"name": "c uniform", "engine": "embank", "rounds": [
                {"wall_s": 2.0, "counters": [["disk_reads", 180000]]}]},
            {"name": "c uniform", "engine": "map", "rounds": [{"wall_s": 2.0, "counters": []}]}]}"#;
        let document: Document = serde_json::from_str(text).unwrap();
        let row = compared("64 B, budget 1/4", &document.rows[0]);
        assert_eq!((row.value, row.ratio), (8000.0, Some(4.0)));
        let spread = Spread { median: 100_000.0, min: 1.0, max: 2.0 };
        let drive = Row::of("the drive", "thousand/s", spread, 1e-3);
        let reads = disk_reads("64 B", &document.measurements[0], &drive).unwrap();
        assert!((reads.ratio.unwrap() - 0.9).abs() < 1e-9, "{reads:?}");
        assert!(disk_reads("64 B", &document.measurements[1], &drive).is_none());
    }
}
