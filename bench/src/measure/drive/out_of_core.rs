//! `out-of-core`: tables several times larger than memory, compared with other stores and with the
//! drive's limit.
//!
//! `embank-ycsb compare` measures the stores: each has a process of its own, and they take turns.
//! This program runs it for every row length and every budget. Before these runs, it measures the
//! random reads a second of the drive at full queue depth. The result is one table. It compares
//! Embank's rows/s with those of each peer, and Embank's reads from the drive with the drive's own
//! rate.
//!
//! Estimate, written before measuring. At a budget of a quarter of the data, three of four uniform
//! reads miss, and each miss is one read of the drive. The drive's 100,000 to 140,000 reads a
//! second allow 130,000 to 190,000 rows/s, both at 64 and at 512 bytes. At a tenth they allow
//! 110,000 to 160,000. Under Zipf 0.99 a quarter of the rows gets about 90% of the requests. That
//! gives 5 to 8 times the rows/s of uniform requests, and the processor begins to matter. RocksDB
//! with one MultiGet of many blocks does a quarter of Embank's uniform rate. Updates add the writes
//! of the log, a tenth of the bytes read. With 64-byte rows, a budget of a tenth is less memory
//! than an index of 15 bytes for each row takes. Rows then share entries of the index, and a miss
//! costs several reads.

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
    /// Bytes of all rows' values; divided by --row-bytes, it is the number of rows
    #[arg(long, value_name = "BYTES", default_value_t = 2_000_000_000)]
    data: u64,
    /// Bytes of a row, each length measured by itself
    #[arg(long, value_delimiter = ',', default_value = "64,512")]
    row_bytes: Vec<u64>,
    /// Budgets: the data divided by each of these numbers
    #[arg(long, value_delimiter = ',', default_value = "4,10")]
    parts: Vec<u64>,
    /// Stores; the first is the one that the others are compared with
    #[arg(long, default_value = "embank,rocksdb,lmdb,redb,fjall")]
    engines: String,
    /// YCSB's workloads: c reads, a half updates, f half read-modify-writes
    #[arg(long, default_value = "c,a,f")]
    workload: String,
    /// Request distributions
    #[arg(long, default_value = "uniform,scrambled")]
    distribution: String,
    /// Operations in a call
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
    /// Features to build embank-ycsb with; each peer has a feature
    #[arg(long, default_value = "peers")]
    features: String,
    /// Folder of the stores and files of this run; they are removed at the end
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    #[command(flatten)]
    output: Output,
    /// A rough answer: 64 MB of data, one thread, one round of a second, Embank and RocksDB
    #[arg(long)]
    quick: bool,
}

/// The fields of the output of `embank-ycsb compare --json` that this program reads.
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
/// Fails if the peers can't be built, a measurement fails, or a file can't be written.
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
    let program = build(&args.features)?;
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

/// Builds `embank-ycsb` with the peers. The peers take long to build. The build has its own target
/// folder, so that it and a build without the peers do not replace each other's packages.
///
/// # Errors
/// Fails if the build fails.
pub(crate) fn build(features: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers");
    let status = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", &target)
        .args(["build", "--release", "--package", "embank-ycsb", "--features", features])
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "embank-ycsb with --features {features} can't be built");
    Ok(target.join("release/embank-ycsb"))
}

/// Measures the drive's random reads of 4 KiB a second at full queue depth.
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

/// Returns a row of the comparison for this table: its name begins with `label`, and its unit is
/// rows a second.
fn compared(label: &str, row: &ComparedRow) -> Row {
    let spread = Spread { median: row.value, min: row.min, max: row.max };
    let mut figure = Row::of(format!("{label}: {}", row.name), "rows/s", spread, 1.0);
    figure.against.clone_from(&row.against);
    (figure.against_value, figure.ratio) = (row.against_value, row.ratio);
    figure
}

/// Returns a store's reads from the drive, compared with the drive's limit. `None` if the store
/// does not count its reads.
fn disk_reads(label: &str, measurement: &Measurement, drive: &Row) -> Option<Row> {
    let rates: Option<Vec<f64>> = measurement.rounds.iter().map(reads_per_second).collect();
    let spread = Spread::of(rates.filter(|rates| !rates.is_empty())?);
    let name = format!("{label}: {}: {} disk reads", measurement.name, measurement.engine);
    Some(Row::of(name, "thousand/s", spread, 1e-3).beside(drive))
}

/// Returns the store's own count of disk reads, divided by the time of the round.
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
