//! `bench report`: `docs/benchmarks.md` from the files in `bench/results`.
//!
//! Each file holds one area: the newest results, their targets, and the runs that they come from.
//! Whoever measures anew changes the file and runs `cargo xtask bench report`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// Where the page is, from the root of the repository.
const PAGE: &str = "docs/benchmarks.md";
/// Where the files are.
const RESULTS: &str = "bench/results";

/// One table of the page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Area {
    title: String,
    /// What is measured, in a sentence or two.
    about: String,
    runs: BTreeMap<String, Run>,
    rows: Vec<Row>,
    /// What a plot shows, and its file in `docs/images`.
    #[serde(default)]
    plots: Vec<(String, String)>,
}

/// A run of a measurement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    command: String,
    machine: String,
    commit: String,
    date: String,
    note: Option<String>,
}

/// One result.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    value: String,
    spread: Option<String>,
    target: Option<String>,
    met: Option<bool>,
    /// A key of the area's runs.
    run: String,
}

const HEAD: &str = "\
# Benchmarks

Every measurement has a subcommand, prints a table, and takes `--json FILE` for the figures and
`--quick` for a rough answer within about a minute. It prints machine, commit and command, checks its
answers while it measures, and alternates what it compares within one run. So ratios hold where
absolute numbers do not. `cargo xtask bench --help` lists the measurements, and each has a `--help`
that says what it measures. Each module of `bench/src/measure` begins with the estimate that was
written before measuring.

The tables hold the newest run of each measurement, good or bad. A spread is the least and the
largest round where nothing else stands. `cargo xtask bench report` makes this page from the files in
`bench/results`.
";

/// Writes the page.
///
/// # Errors
/// A file can't be read or written, or is not well-formed.
pub(crate) fn write(root: &Path) -> Result<()> {
    fs::write(root.join(PAGE), page(root)?).with_context(|| format!("writing {PAGE}"))
}

/// The page as the files have it.
fn page(root: &Path) -> Result<String> {
    let folder = root.join(RESULTS);
    let entries = fs::read_dir(&folder).with_context(|| format!("listing {RESULTS}"))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let mut page = HEAD.to_owned();
    for file in files {
        let text = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        let area: Area =
            serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))?;
        add(&mut page, &area).with_context(|| format!("in {}", file.display()))?;
    }
    Ok(page)
}

fn add(page: &mut String, area: &Area) -> Result<()> {
    write!(page, "\n## {}\n\n{}\n\n", area.title, wrapped(&area.about))?;
    page.push_str(
        "| measured | result | spread | target | met | run |\n|---|---|---|---|---|---|\n",
    );
    for Row { name, value, spread, target, met, run } in &area.rows {
        area.runs
            .get(run)
            .with_context(|| format!("{name:?} is of run {run:?}, which is not there"))?;
        let met = match met {
            None => "",
            Some(true) => "yes",
            Some(false) => "**no**",
        };
        let spread = spread.as_deref().unwrap_or("");
        let target = target.as_deref().unwrap_or("");
        writeln!(page, "| {name} | {value} | {spread} | {target} | {met} | {run} |")?;
    }
    page.push('\n');
    for (key, Run { command, machine, commit, date, note }) in &area.runs {
        let note = note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
        let text = format!("- {key}: `{command}`, {machine}, commit {commit}, {date}{note}.");
        writeln!(page, "{}", wrapped(&text).replace('\n', "\n  "))?;
    }
    if !area.plots.is_empty() {
        page.push('\n');
    }
    for (what, file) in &area.plots {
        writeln!(page, "![{what}](images/{file})")?;
    }
    Ok(())
}

/// The text in lines of at most 98 columns.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut columns = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if columns > 0 && columns + 1 + length > 98 {
            lines.push('\n');
            columns = 0;
        } else if columns > 0 {
            lines.push(' ');
            columns += 1;
        }
        lines.push_str(word);
        columns += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn the_page_is_what_the_results_say() {
        let root = workspace::root().unwrap();
        let found = fs::read_to_string(root.join(PAGE)).unwrap();
        assert!(found == page(&root).unwrap(), "`cargo xtask bench report` makes {PAGE} anew");
        assert!(found.lines().count() <= 250);
    }

    #[test]
    fn lines_break_at_spaces() {
        let text = "word ".repeat(40);
        let lines = wrapped(text.trim_end());
        assert!(lines.lines().all(|line| line.len() <= 98 && !line.ends_with(' ')));
        assert_eq!(lines.replace('\n', " "), text.trim_end());
    }

    #[test]
    fn a_row_of_an_unknown_run_is_refused() {
        let area = r#"{"title": "T", "about": "A.", "runs": {}, "rows":
            [{"name": "n", "value": "1", "run": "a"}]}"#;
        let area: Area = serde_json::from_str(area).unwrap();
        assert!(add(&mut String::new(), &area).is_err());
    }
}
