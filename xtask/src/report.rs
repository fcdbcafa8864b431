//! `bench report`: makes `docs/benchmarks.md` from the files in `bench/results`.
//!
//! Each file holds one area: its newest results, their targets, and the runs that gave the results.
//! `machines.json` describes the machines. After a new measurement, replace the old results and
//! their run in the file of the area, and run `cargo xtask bench report`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The page, from the root of the repository.
const PAGE: &str = "docs/benchmarks.md";
/// The folder of the areas, from the root of the repository.
const RESULTS: &str = "bench/results";
/// The file in [`RESULTS`] that describes the machines.
const MACHINES: &str = "machines.json";
/// Lines of prose on the page have at most this many columns.
const COLUMNS_MAX: usize = 98;

/// The machines that the runs name, by letter.
type Machines = BTreeMap<String, String>;

/// One table of the page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Area {
    title: String,
    /// Says what quantity is measured, and what the words of the table mean.
    about: String,
    runs: BTreeMap<String, Run>,
    rows: Vec<Row>,
    #[serde(default)]
    plots: Vec<Plot>,
}

/// A run of a measurement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    /// The command without `cargo xtask`.
    command: String,
    /// The machine that the run used, as a key of `machines.json`.
    machine: String,
    commit: String,
    /// The day of the commit.
    date: String,
    /// Conditions of the run that the command does not show.
    #[serde(default)]
    note: String,
    /// True if the measured code has changed since the run, so that its results may differ today.
    #[serde(default)]
    old: bool,
}

impl Run {
    fn conditions(&self) -> String {
        match (self.old, self.note.as_str()) {
            (false, note) => note.to_owned(),
            (true, "") => "**old**".to_owned(),
            (true, note) => format!("**old**; {note}"),
        }
    }
}

/// One result.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    value: f64,
    unit: String,
    spread: Option<Spread>,
    /// The target is a value of at least this.
    at_least: Option<f64>,
    /// The target is a value of at most this.
    at_most: Option<f64>,
    /// The run that gave the result, as a key of the area's runs.
    run: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Spread {
    LeastAndMost([f64; 2]),
    BetweenQuartiles(f64),
}

/// A picture below the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plot {
    shows: String,
    /// The picture's file name in `docs/images`.
    file: String,
}

impl Row {
    fn spread(&self) -> String {
        match self.spread {
            None => String::new(),
            Some(Spread::LeastAndMost([least, most])) => {
                format!("{} to {}", number(least), number(most))
            }
            Some(Spread::BetweenQuartiles(distance)) => number(distance),
        }
    }

    /// Returns the target in words, and whether the value meets it. Both are empty if there is no
    /// target.
    fn target_and_verdict(&self) -> (String, &'static str) {
        let verdict = |is_met: bool| if is_met { "yes" } else { "**no**" };
        match (self.at_least, self.at_most) {
            (Some(least), None) => {
                (format!("at least {}", number(least)), verdict(self.value >= least))
            }
            (None, Some(most)) => {
                (format!("at most {}", number(most)), verdict(self.value <= most))
            }
            (None, None) => (String::new(), ""),
            (Some(least), Some(most)) => (
                format!("{} to {}", number(least), number(most)),
                verdict((least..=most).contains(&self.value)),
            ),
        }
    }
}

const HEAD: &str = "\
# Benchmarks

`cargo xtask bench --help` lists the measurements; each has a `--help`, and takes `--json FILE` for
the figures and `--quick` for a rough answer within about a minute. Each prints machine, commit and
command, checks its answers, and runs the things that it compares by turns. So ratios hold where
absolute numbers do not. The modules of `bench/src/measure` begin with their estimates.

`cargo xtask bench report` makes this page from `bench/results`: the newest run of each measurement,
and its worst case. A spread of two numbers is the least and the largest round or case; of one
number, the distance between the quartiles. A date is that of the measured commit. A run that is
marked **old** measured code that has changed since: its results may differ today. `cargo xtask
bench all` repeats every measurement on one machine in a night.

";

/// Writes the page.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or is malformed.
pub(crate) fn write(root: &Path) -> Result<()> {
    fs::write(root.join(PAGE), page(root)?).with_context(|| format!("writing {PAGE}"))
}

/// Returns the page made from the files.
fn page(root: &Path) -> Result<String> {
    let folder = root.join(RESULTS);
    let machines: Machines = read(&folder.join(MACHINES))?;
    let entries = fs::read_dir(&folder).with_context(|| format!("listing {RESULTS}"))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.file_name().is_some_and(|name| name != MACHINES));
    files.sort();
    let mut page = HEAD.to_owned();
    page.push_str("| machine | |\n|---|---|\n");
    for (letter, machine) in &machines {
        writeln!(page, "| {letter} | {machine} |")?;
    }
    for file in files {
        let area: Area = read(&file)?;
        add(&mut page, &area, &machines).with_context(|| format!("in {}", file.display()))?;
    }
    Ok(page)
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))
}

fn add(page: &mut String, area: &Area, machines: &Machines) -> Result<()> {
    write!(page, "\n## {}\n\n{}\n\n", area.title, wrapped(&area.about))?;
    page.push_str(
        "| measured | value | spread | target | met | run |\n|---|---|---|---|---|---|\n",
    );
    for row in &area.rows {
        let Row { name, value, unit, run, .. } = row;
        area.runs
            .get(run)
            .with_context(|| format!("{name:?} is of run {run:?}, which is not there"))?;
        let space = if unit.starts_with('%') { "" } else { " " };
        let value = format!("{}{space}{unit}", number(*value));
        let spread = row.spread();
        let (target, verdict) = row.target_and_verdict();
        writeln!(page, "| {name} | {} | {spread} | {target} | {verdict} | {run} |", value.trim())?;
    }
    page.push_str("\n| run | command | machine | commit | conditions |\n|---|---|---|---|---|\n");
    for (key, run) in &area.runs {
        let Run { command, machine, commit, date, .. } = run;
        machines.get(machine).with_context(|| {
            format!("run {key:?} is of machine {machine:?}, which is not there")
        })?;
        let command = if command.contains('`') { command.clone() } else { format!("`{command}`") };
        let conditions = run.conditions();
        writeln!(page, "| {key} | {command} | {machine} | {commit}, {date} | {conditions} |")?;
    }
    let plots: Vec<String> = area
        .plots
        .iter()
        .map(|Plot { shows, file }| format!("![{shows}](images/{file})"))
        .collect();
    if !plots.is_empty() {
        writeln!(page, "\n{}", plots.join(" "))?;
    }
    Ok(())
}

/// Returns the number as the page shows it.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-4 { format!("{value:e}") } else { value.to_string() }
}

/// Returns the text in lines of at most [`COLUMNS_MAX`] columns.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut columns = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if columns > 0 && columns + 1 + length > COLUMNS_MAX {
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

    /// Returns an area with one row of run "a" on `machine`. `fields` adds fields to that row.
    fn area(machine: &str, fields: &str) -> Area {
        let text = format!(
            r#"{{"title": "T", "about": "A.", "runs": {{"a": {{"command": "bench x",
            "machine": "{machine}", "commit": "c", "date": "d"}}}},
            "rows": [{{"name": "n", "value": 1.5, "unit": "u", {fields}}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn added(area: &Area) -> Result<String> {
        let mut page = String::new();
        let machines = Machines::from([("A".to_owned(), "a machine".to_owned())]);
        add(&mut page, area, &machines).map(|()| page)
    }

    #[test]
    fn the_page_is_what_the_results_say() {
        let root = workspace::root().unwrap();
        let found = fs::read_to_string(root.join(PAGE)).unwrap();
        assert!(found == page(&root).unwrap(), "`cargo xtask bench report` makes {PAGE} again");
        assert!(found.lines().count() <= 250);
    }

    #[test]
    fn a_row_shows_its_spread_its_target_and_whether_it_is_met() {
        for (fields, shown) in [
            (r#""run": "a""#, "| n | 1.5 u |  |  |  | a |"),
            (r#""at_least": 1.5, "run": "a""#, "| n | 1.5 u |  | at least 1.5 | yes | a |"),
            (r#""at_least": 2, "run": "a""#, "| n | 1.5 u |  | at least 2 | **no** | a |"),
            (r#""at_most": 1, "run": "a""#, "| n | 1.5 u |  | at most 1 | **no** | a |"),
            (r#""at_least": 1, "at_most": 2, "run": "a""#, "| n | 1.5 u |  | 1 to 2 | yes | a |"),
            (r#""spread": [1, 2.5], "run": "a""#, "| n | 1.5 u | 1 to 2.5 |  |  | a |"),
            (r#""spread": 0.25, "run": "a""#, "| n | 1.5 u | 0.25 |  |  | a |"),
        ] {
            let page = added(&area("A", fields)).unwrap();
            assert!(page.lines().any(|line| line == shown), "{fields}: {page}");
        }
    }

    #[test]
    fn a_row_of_an_unknown_run_and_a_run_on_an_unknown_machine_are_refused() {
        assert!(added(&area("A", r#""run": "b""#)).is_err());
        assert!(added(&area("Z", r#""run": "a""#)).is_err());
    }

    #[test]
    fn an_old_run_is_marked() {
        let mut area = area("A", r#""run": "a""#);
        let run = area.runs.get_mut("a").unwrap();
        run.old = true;
        assert!(added(&area).unwrap().contains("| c, d | **old** |"));
        area.runs.get_mut("a").unwrap().note = "n".to_owned();
        assert!(added(&area).unwrap().contains("| c, d | **old**; n |"));
    }

    #[test]
    fn small_numbers_are_shown_with_an_exponent() {
        assert_eq!(number(6.5e-6), "6.5e-6");
        assert_eq!(number(-0.5), "-0.5");
        assert_eq!(number(0.0), "0");
    }

    #[test]
    fn lines_break_at_spaces() {
        let text = "word ".repeat(40);
        let lines = wrapped(text.trim_end());
        assert!(lines.lines().all(|line| line.len() <= COLUMNS_MAX && !line.ends_with(' ')));
        assert_eq!(lines.replace('\n', " "), text.trim_end());
    }
}
