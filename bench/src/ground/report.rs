//! The output of a measurement: machine, commit, command and a table, and its figures for `--json`,
//! `--markdown` and `--plot`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::ground::plot;
use crate::ground::rounds::Spread;

/// One figure, with the peer or limit that it is compared with.
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
    /// The median of `against`.
    pub(crate) against_value: Option<f64>,
    /// `value / against_value`.
    pub(crate) ratio: Option<f64>,
    /// A second figure of this run to compare with: the limit of any store with an index.
    pub(crate) floor: Option<String>,
    /// The median of `floor`.
    pub(crate) floor_value: Option<f64>,
    /// `value / floor_value`.
    pub(crate) floor_ratio: Option<f64>,
    /// The slowest round.
    pub(crate) min: f64,
    /// The fastest round.
    pub(crate) max: f64,
}

impl Row {
    /// Makes a figure of `spread` times `scale`, in `unit`.
    pub(crate) fn of(
        name: impl Into<String>,
        unit: &'static str,
        spread: Spread,
        scale: f64,
    ) -> Self {
        Self {
            name: name.into(),
            value: spread.median * scale,
            unit,
            against: None,
            against_value: None,
            ratio: None,
            floor: None,
            floor_value: None,
            floor_ratio: None,
            min: spread.min * scale,
            max: spread.max * scale,
        }
    }

    /// A rate in million rows a second.
    pub(crate) fn rate(name: impl Into<String>, spread: Spread) -> Self {
        Self::of(name, "million rows/s", spread, 1e-6)
    }

    /// The time for one row, from a spread of rows a second.
    pub(crate) fn nanoseconds(name: impl Into<String>, spread: Spread) -> Self {
        let Spread { median, min, max } = spread;
        let spread = Spread { median: 1.0 / median, min: 1.0 / max, max: 1.0 / min };
        Self::of(name, "ns/row", spread, 1e9)
    }

    /// A number that is counted, not timed, and so has no spread.
    pub(crate) fn count(name: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self::of(name, unit, Spread { median: value, min: value, max: value }, 1.0)
    }

    /// Returns the ratio of `many` to `one`, their scaling.
    pub(crate) fn scaling(many: &Row, one: &Row) -> Self {
        let times = many.value / one.value;
        let range = (many.min / one.max, many.max / one.min);
        let spread = Spread { median: times, min: range.0, max: range.1 };
        Self::of(format!("{}, scaling", many.name), "x one thread", spread, 1.0)
    }

    /// This figure, compared with another figure of this run.
    pub(crate) fn beside(mut self, peer: &Row) -> Self {
        self.against = Some(peer.name.clone());
        self.against_value = Some(peer.value);
        self.ratio = Some(self.value / peer.value);
        self
    }

    /// This figure, also compared with a second figure of this run.
    pub(crate) fn over_floor(mut self, floor: &Row) -> Self {
        self.floor = Some(floor.name.clone());
        self.floor_value = Some(floor.value);
        self.floor_ratio = Some(self.value / floor.value);
        self
    }
}

/// The files that get the figures.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Output {
    /// Write the figures to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the table to this file as Markdown, with machine, commit and command
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Draw the medians and their spread to this file, an SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

impl Output {
    /// Prints the table and writes the files that are asked for.
    ///
    /// # Errors
    /// A file can't be written.
    pub(crate) fn publish(&self, title: &str, rows: &[Row]) -> Result<()> {
        print_table(rows);
        if let Some(path) = &self.json {
            write_json(path, rows)?;
        }
        if let Some(path) = &self.markdown {
            fs::write(path, markdown(title, rows))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        if let Some(path) = &self.plot {
            plot::bars(path, title, rows)?;
        }
        Ok(())
    }
}

/// Prints the machine, the commit and the command of this run.
pub(crate) fn print_provenance() {
    println!("machine   {}", machine());
    println!("commit    {}", commit());
    println!("command   {}", command());
}

/// This process's command line.
fn command() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// Prints the rows as a table with aligned columns.
fn print_table(rows: &[Row]) {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max("measurement".len());
    println!(
        "{:width$}  {:>10}  {:>10}  {:>10}  {:<15} ratio",
        "measurement", "median", "min", "max", "unit"
    );
    for row in rows {
        println!(
            "{:width$}  {:>10.3}  {:>10.3}  {:>10.3}  {:<15} {}",
            row.name,
            row.value,
            row.min,
            row.max,
            row.unit,
            ratios(row)
        );
    }
}

/// A row's ratios, in words.
fn ratios(row: &Row) -> String {
    // The row's name up to `: ` is not repeated before the name of the figure that it is compared
    // with.
    let shared = row.name.find(": ").map_or("", |end| &row.name[..end + 2]);
    let ratio = |ratio: Option<f64>, of: &Option<String>| {
        let (ratio, of) = ratio.zip(of.as_deref())?;
        Some(format!("{ratio:.3} of {}", of.strip_prefix(shared).unwrap_or(of)))
    };
    let all = [ratio(row.ratio, &row.against), ratio(row.floor_ratio, &row.floor)];
    let all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() { "-".to_owned() } else { all.join("; ") }
}

/// The table as Markdown.
fn markdown(title: &str, rows: &[Row]) -> String {
    let mut text = format!(
        "### {title}\n\n`{}`\n\n{}, commit {}.\n\n| | median | spread | unit | ratio |\n\
         |---|---|---|---|---|\n",
        command(),
        machine(),
        commit()
    );
    for row in rows {
        let Row { name, value, min, max, unit, .. } = row;
        text +=
            &format!("| {name} | {value:.3} | {min:.3} to {max:.3} | {unit} | {} |\n", ratios(row));
    }
    text
}

/// Writes the rows to `path` as a JSON list.
///
/// # Errors
/// The file can't be written.
fn write_json(path: &Path, rows: &[Row]) -> Result<()> {
    let mut text = serde_json::to_string_pretty(rows).context("rows to JSON")?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Returns the processor, its cores, the last-level cache, memory, huge pages and kernel. The text
/// includes the cache, because gathers are much faster if the last-level cache holds most of a
/// table.
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
    fn a_time_is_the_inverse_of_a_rate_with_its_ends_swapped() {
        let row = Row::nanoseconds("row", spread(50e6));
        assert!((row.value - 20.0).abs() < 1e-9, "{row:?}");
        assert!(row.min < row.value && row.value < row.max, "{row:?}");
    }

    #[test]
    fn markdown_has_a_line_a_row_and_both_ratios() {
        let limit = Row::rate("gather", spread(20e6));
        let row = Row::rate("get", spread(8e6)).beside(&limit).over_floor(&limit);
        let text = markdown("Title", &[limit, row]);
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("| get | 8.000 | 4.000 to 16.000 | million rows/s |"), "{text}");
        assert!(last.contains("0.400 of gather; 0.400 of gather"), "{text}");
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
