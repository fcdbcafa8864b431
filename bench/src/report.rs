//! What a measurement prints: machine, commit and command, a table, and rows for `--json`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::rounds::Spread;

/// One figure, beside what it is measured against.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// What was measured, unique in its file.
    pub(crate) name: String,
    /// The median.
    pub(crate) value: f64,
    /// The unit of `value`, `min`, `max` and `against_value`.
    pub(crate) unit: &'static str,
    /// The peer or limit measured in the same run.
    pub(crate) against: Option<String>,
    /// The peer's median.
    pub(crate) against_value: Option<f64>,
    /// `value / against_value`.
    pub(crate) ratio: Option<f64>,
    /// The slowest round.
    pub(crate) min: f64,
    /// The fastest round.
    pub(crate) max: f64,
}

impl Row {
    /// A rate in million rows a second.
    pub(crate) fn rate(name: impl Into<String>, spread: Spread) -> Self {
        let million = 1e-6;
        Self {
            name: name.into(),
            value: spread.median * million,
            unit: "million rows/s",
            against: None,
            against_value: None,
            ratio: None,
            min: spread.min * million,
            max: spread.max * million,
        }
    }

    /// The same, beside another row of this run.
    pub(crate) fn beside(mut self, peer: &Row) -> Self {
        self.against = Some(peer.name.clone());
        self.against_value = Some(peer.value);
        self.ratio = Some(self.value / peer.value);
        self
    }
}

/// Prints where, from which commit and how this run was made.
pub(crate) fn print_provenance() {
    println!("machine   {}", machine());
    println!("commit    {}", commit());
    println!("command   {}", std::env::args().collect::<Vec<_>>().join(" "));
}

/// Prints the rows as a table; names are padded, numbers stand under one another.
pub(crate) fn print_table(rows: &[Row]) {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max("measurement".len());
    println!(
        "{:width$}  {:>9}  {:>9}  {:>9}  {:<15} ratio",
        "measurement", "median", "min", "max", "unit"
    );
    for row in rows {
        let ratio = match (row.ratio, &row.against) {
            (Some(ratio), Some(against)) => format!("{ratio:.3} of {against}"),
            _ => "-".to_owned(),
        };
        println!(
            "{:width$}  {:>9.3}  {:>9.3}  {:>9.3}  {:<15} {ratio}",
            row.name, row.value, row.min, row.max, row.unit
        );
    }
}

/// Writes the rows to `path` as a JSON list.
///
/// # Errors
/// The file can't be written.
pub(crate) fn write_json(path: &Path, rows: &[Row]) -> Result<()> {
    let mut text = serde_json::to_string_pretty(rows).context("rows to JSON")?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Processor, cores, last-level cache, memory, huge pages, kernel. The cache matters: a machine whose
/// last level holds most of a table gathers from it far faster than from memory.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cache = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size")
        .map_or("unknown".to_owned(), |text| text.trim().to_owned());
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib: Option<u64> =
        field(&meminfo, "MemTotal").and_then(|text| text.split_whitespace().next()?.parse().ok());
    let memory = memory_kib
        .map_or("memory unknown".to_owned(), |kib| format!("{} GiB", kib.div_ceil(1 << 20)));
    let huge = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .map_or("unknown".to_owned(), |text| text.trim().to_owned());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim();
    format!("{model}, {cores} cores, L3 {cache}, {memory}, huge pages {huge}, kernel {kernel}")
}

/// The value of `name : value` in one of the kernel's listings.
fn field<'a>(listing: &'a str, name: &str) -> Option<&'a str> {
    listing.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// The commit that the source tree is at, marked if the tree has changes.
fn commit() -> String {
    let git = |args: &[&str]| -> Option<String> {
        let output = Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR")])
            .args(args)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown (no git repository)".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit} with uncommitted changes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64) -> Spread {
        Spread { median, min: median / 2.0, max: median * 2.0 }
    }

    #[test]
    fn a_row_beside_another_carries_its_name_value_and_ratio() {
        let limit = Row::rate("gather", spread(20e6));
        let row = Row::rate("get", spread(8e6)).beside(&limit);
        assert_eq!(row.against.as_deref(), Some("gather"));
        assert_eq!(row.against_value, Some(20.0));
        assert!((row.ratio.unwrap() - 0.4).abs() < 1e-12);
    }

    #[test]
    fn json_is_a_list_of_rows_with_the_six_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.json");
        write_json(&path, &[Row::rate("gather", spread(20e6))]).unwrap();
        let rows: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for name in ["name", "value", "unit", "against", "against_value", "ratio"] {
            assert!(rows[0].get(name).is_some(), "{name} is missing in {rows}");
        }
        assert_eq!(rows[0]["value"], 20.0);
    }

    #[test]
    fn a_listing_gives_its_field() {
        assert_eq!(field("a\t: 1\nmodel name\t: X 2\n", "model name"), Some("X 2"));
        assert_eq!(field("a: 1", "b"), None);
    }
}
