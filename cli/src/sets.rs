//! `embank sets`: lists the sets of a fleet.

use std::path::{Path, PathBuf};

use anyhow::Result;
use embank::fleet::{FleetPlan, ListedSet, ShardView, list_sets, read_views};
use embank::{Error, StoreError};
use serde::Serialize;

use crate::Ending;
use crate::output;

/// Options of `sets`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The fleet's directory
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The sets of a fleet.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The fleet's id in hexadecimal digits.
    fleet: Option<String>,
    shards: usize,
    sets: Vec<Set>,
    /// The newest complete set.
    newest: Option<u64>,
    /// What is wrong with the fleet.
    pub(crate) problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Set {
    number: u64,
    /// The set's id in hexadecimal digits, because a JSON number cannot hold 64 bits.
    id: String,
    /// The number of each shard's checkpoint, by shard.
    checkpoints: Vec<u64>,
    /// Why the set is not complete.
    incomplete: Option<String>,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the directory is no fleet or cannot be read.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let report = read(&args.dir)?;
    if args.json {
        output::json(&report);
    } else {
        output::print(&text(&report));
    }
    Ok(if report.problems.is_empty() { Ending::Good } else { Ending::Damage })
}

/// Reads the sets of a fleet.
///
/// # Errors
/// Returns an error if the directory is no fleet or cannot be read.
pub(crate) fn read(dir: &Path) -> Result<Report> {
    let found = read_views(dir)?;
    let shards = found.len();
    let mut views: Vec<ShardView> = Vec::new();
    let mut problems = Vec::new();
    for view in found {
        match view {
            Ok(view) => views.push(view),
            Err(error @ Error::Store(StoreError::NewerFormat { .. })) => return Err(error.into()),
            Err(error) => problems.push(error.to_string()),
        }
    }
    let listed = list_sets(&views).unwrap_or_else(|error| {
        problems.push(error.to_string());
        Vec::new()
    });
    let mut newest = None;
    // With a shard that could not be read, the plan would only repeat that.
    if problems.is_empty() {
        match FleetPlan::of(&views) {
            Ok(plan) => {
                newest = plan.newest.map(|set| set.number);
                problems.extend(plan.passed_over);
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
    let set = |of: ListedSet| Set {
        number: of.number,
        id: format!("{:016x}", of.id),
        checkpoints: of.checkpoints.iter().map(|held| held.number).collect(),
        incomplete: of.incomplete,
    };
    let fleet = views.first().and_then(ShardView::fleet).map(|fleet| fleet.to_string());
    Ok(Report { fleet, shards, sets: listed.into_iter().map(set).collect(), newest, problems })
}

/// Returns the report as text.
pub(crate) fn text(report: &Report) -> String {
    let fleet = report.fleet.as_deref().unwrap_or("unknown");
    let mut text = format!("fleet {fleet}, {} shards\n", report.shards);
    if report.sets.is_empty() {
        text += "no set\n";
    } else {
        let head = ["set", "checkpoint of each shard", "state"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for set in &report.sets {
            let numbers: Vec<String> = set.checkpoints.iter().map(u64::to_string).collect();
            let state = set.incomplete.as_deref().unwrap_or("complete");
            rows.push(vec![set.number.to_string(), numbers.join(" "), state.to_owned()]);
        }
        text += &output::table(&rows);
    }
    for problem in &report.problems {
        text += &format!("problem: {}\n", output::shown(problem));
    }
    text
}
