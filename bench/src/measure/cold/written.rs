//! RocksDB's part of `cold`: the bytes that a store writes to disk for each changed row.
//!
//! `embank-ycsb written` measures one store, row length and distribution at a time, each in a
//! process of its own, and prints the store's settings. RocksDB has leveled compaction. Embank has
//! one log, whose compaction keeps the default target of space. At large ratios the budget does not
//! hold Embank's index, chains of rows lie on disk, and a change reads many rows:
//! `--embank-ratio-max` leaves these cases out.
//!
//! Estimate, from the design, written before measuring: for rows of 64 bytes under uniform
//! read-modify-writes, RocksDB writes 1,080 bytes a changed row at 10 times the budget and 1,490 at
//! 100 times. For rows of 512 bytes it writes 5.8 to 10.6 kB.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::ground::options::Common;
use crate::ground::report::Row;
use crate::ground::rounds::Spread;
use crate::measure::drive::out_of_core;
use crate::measure::store::in_memory::scratch_in;

/// Largest relative difference between RocksDB's own count of written bytes and the kernel's.
const APART_MAX: f64 = 0.05;

/// Options of RocksDB's part.
#[derive(Debug, clap::Args)]
pub(crate) struct Stores {
    /// rocksdb: memory budget of each store, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 8)]
    budget: u64,
    /// rocksdb: bytes of all rows' values over the budget, each ratio measured by itself
    #[arg(long, value_delimiter = ',', default_value = "10,100")]
    ratios: Vec<u64>,
    /// rocksdb: bytes of a row, each length measured by itself
    #[arg(long, value_delimiter = ',', default_value = "64,512")]
    row_bytes: Vec<u64>,
    /// rocksdb: request distributions of embank-ycsb
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipfian")]
    distributions: Vec<String>,
    /// rocksdb: the largest ratio at which Embank is measured too; 0 for RocksDB alone
    #[arg(long, default_value_t = 10)]
    embank_ratio_max: u64,
    /// rocksdb: features to build embank-ycsb with
    #[arg(long, default_value = "peers")]
    features: String,
}

impl Stores {
    pub(crate) fn quicken(&mut self) {
        self.budget = self.budget.min(4);
        (self.ratios, self.row_bytes) = (vec![10], vec![64]);
    }
}

/// The fields of the output of `embank-ycsb written --json` that this program reads.
#[derive(Debug, Deserialize)]
struct Document {
    settled: bool,
    read_modify_writes: Vec<Measured>,
    space_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Measured {
    operations: f64,
    usage: Usage,
    counters: Vec<(String, Value)>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    storage_write_bytes: Option<f64>,
}

impl Measured {
    /// The growth of a counter of the store. `None` if the store does not count it.
    fn counter(&self, name: &str) -> Option<f64> {
        self.counters.iter().find(|(other, _)| other == name)?.1.as_f64()
    }
}

/// Measures all and adds the figures.
///
/// # Errors
/// Fails if the stores cannot be built, a measurement fails, or RocksDB and the kernel disagree.
pub(crate) fn measure(stores: &Stores, common: &Common, figures: &mut Vec<Row>) -> Result<()> {
    let positive = stores.ratios.iter().chain(&stores.row_bytes).all(|&number| number > 0);
    ensure!(positive && stores.budget > 0, "--budget, --ratios and --row-bytes must be positive");
    let program = out_of_core::build(&stores.features)?;
    let directory = scratch_in(&common.directory)?;
    for &row_bytes in &stores.row_bytes {
        for &ratio in &stores.ratios {
            for distribution in &stores.distributions {
                let case = Case { stores, row_bytes, ratio, distribution, seed: common.seed };
                let label = format!("{row_bytes} B, R = {ratio}, {distribution}");
                let rocksdb = case.run(&program, directory.path(), "rocksdb")?;
                let values = (case.rows() * row_bytes) as f64;
                let peer = written(&label, "rocksdb", &rocksdb)?;
                if ratio <= stores.embank_ratio_max {
                    let embank = case.run(&program, directory.path(), "embank")?;
                    figures.push(written(&label, "embank", &embank)?.beside(&peer));
                    figures.push(space(&label, "embank", &embank, values));
                }
                figures.push(peer);
                figures.push(counted(&label, &rocksdb)?);
                figures.push(space(&label, "rocksdb", &rocksdb, values));
            }
        }
    }
    Ok(())
}

/// One measurement.
struct Case<'a> {
    stores: &'a Stores,
    row_bytes: u64,
    ratio: u64,
    distribution: &'a str,
    seed: u64,
}

impl Case<'_> {
    fn rows(&self) -> u64 {
        ((self.stores.budget << 20) * self.ratio / self.row_bytes).max(1)
    }

    fn run(&self, program: &Path, directory: &Path, engine: &str) -> Result<Document> {
        let json = directory.join("written.json");
        let status = Command::new(program)
            .args(["written", "--engine", engine, "--distribution", self.distribution])
            .args(["--rows", &self.rows().to_string()])
            .args(["--value-size", &self.row_bytes.to_string()])
            .args(["--memory-budget", &format!("{}MiB", self.stores.budget)])
            .args(["--seed", &self.seed.to_string()])
            .arg("--directory")
            .arg(directory)
            .arg("--json")
            .arg(&json)
            .status()
            .with_context(|| format!("starting {}", program.display()))?;
        let Case { row_bytes, ratio, distribution, .. } = self;
        ensure!(
            status.success(),
            "embank-ycsb written failed: {engine}, {row_bytes} B, R = {ratio}, {distribution}"
        );
        let text = fs::read_to_string(&json).context("reading what embank-ycsb wrote")?;
        serde_json::from_str(&text).context("understanding what embank-ycsb wrote")
    }
}

/// The bytes for each changed row: the mean over all windows, and the extremes of single windows.
fn bytes_a_row(document: &Document, bytes: impl Fn(&Measured) -> Option<f64>) -> Option<Spread> {
    let windows = &document.read_modify_writes;
    let each: Option<Vec<f64>> = windows.iter().map(|w| Some(bytes(w)? / w.operations)).collect();
    let Spread { min, max, .. } = Spread::of(each?);
    let operations: f64 = windows.iter().map(|window| window.operations).sum();
    let mean = windows.iter().map(bytes).sum::<Option<f64>>()? / operations;
    Some(Spread { median: mean, min, max })
}

/// The bytes for each changed row by the kernel's count.
fn written(label: &str, engine: &str, document: &Document) -> Result<Row> {
    let spread = bytes_a_row(document, |window| window.usage.storage_write_bytes);
    let settled = if document.settled { "" } else { " (not settled)" };
    let name = format!("{label}: bytes written per changed row, {engine}{settled}");
    let spread = spread.context("the system counts no written bytes")?;
    Ok(Row::of(name, "bytes/row", spread, 1.0))
}

/// The bytes for each changed row by RocksDB's own count, which must be near the kernel's.
fn counted(label: &str, document: &Document) -> Result<Row> {
    let own = bytes_a_row(document, |window| {
        Some(window.counter("flush_write_bytes")? + window.counter("compaction_write_bytes")?)
    });
    let own = own.context("RocksDB counts no written bytes")?;
    let kernel = written(label, "rocksdb", document)?.value;
    ensure!(
        (own.median / kernel - 1.0).abs() <= APART_MAX,
        "{label}: RocksDB counts {} bytes a changed row, the kernel {kernel}",
        own.median
    );
    let name = format!("{label}: bytes written per changed row, rocksdb's flushes and compactions");
    Ok(Row::of(name, "bytes/row", own, 1.0))
}

/// The bytes of the store's files over those of the values.
fn space(label: &str, engine: &str, document: &Document, values: f64) -> Row {
    let name = format!("{label}: space, {engine}");
    Row::count(name, "x the values", document.space_bytes as f64 / values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(own: u64) -> Document {
        let window = |bytes: u64| {
            format!(
                r#"{{"operations": 100, "usage": {{"storage_write_bytes": {bytes}}},
                   "counters": [["flush_write_bytes", 9000], ["compaction_write_bytes", {own}]]}}"#
            )
        };
        let windows = [window(99_000), window(101_000)].join(",");
        let text = format!(
            r#"{{"settled": false, "read_modify_writes": [{windows}], "space_bytes": 6400}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn windows_become_bytes_a_changed_row() {
        let row = written("64 B", "rocksdb", &document(90_000)).unwrap();
        assert_eq!((row.value, row.min, row.max), (1000.0, 990.0, 1010.0));
        assert!(row.name.ends_with("rocksdb (not settled)"), "{}", row.name);
        assert_eq!(counted("64 B", &document(90_000)).unwrap().value, 990.0);
        assert_eq!(space("64 B", "rocksdb", &document(0), 3200.0).value, 2.0);
    }

    #[test]
    fn counts_that_differ_from_the_kernels_end_the_run() {
        let error = counted("64 B", &document(50_000)).unwrap_err().to_string();
        assert!(error.contains("RocksDB counts 590 bytes") && error.contains("the kernel 1000"));
    }
}
