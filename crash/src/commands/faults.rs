//! `faults`: every call of a bank's life goes wrong in every way that it can.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use embank_crash::faults::judge::Outcome;
use embank_crash::faults::sweep::{Tally, check, count, plans};
use embank_crash::faults::{Call, Fault, Mode, Site};
use embank_crash::recorder;
use fastrand::Rng;
use indicatif::ProgressBar;

use super::report::{Row, publish, scratch, seed};

/// At most this many failures are printed in full.
const TOLD_MAX: usize = 20;

/// Options of `faults`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of faults. The first and the last call of each site (a system call on a kind of file)
    /// always meet every fault that is possible there. Half of the faults strike banks in two
    /// tiers
    #[arg(long, default_value_t = 4000)]
    count: usize,
    /// Seed of the choice of faults [default: a random one, which the run prints]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the banks during their checks [default: in memory, /dev/shm]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Write the counts to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A rough answer within seconds: only the first and the last calls
    #[arg(long)]
    quick: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if something was wrong after a fault.
pub(crate) fn run(args: &Args) -> Result<()> {
    let seed = seed(args.seed);
    let dir = scratch(args.directory.as_ref())?;
    recorder::skip_syncs();
    let started = Instant::now();
    let mut random = Rng::with_seed(seed);
    let (mut calls, mut planned) = (BTreeMap::new(), Vec::new());
    for two_tiers in [false, true] {
        let mode = Mode { background: false, two_tiers };
        let of_script = count(dir.path(), mode)?;
        let count = if args.quick { 0 } else { args.count / 2 };
        planned.extend(plans(&of_script, count, &mut random).into_iter().map(|plan| (mode, plan)));
        for (site, count) in of_script {
            *calls.entry(site).or_default() += count;
        }
    }
    let bar = ProgressBar::new(planned.len() as u64);
    let (mut tally, mut failed) = (Tally::new(), Vec::new());
    for &(mode, plan) in &planned {
        // One run in four compacts in the background. In such a run the order of calls also depends
        // on the timing of the threads.
        let mode = Mode { background: random.u64(..4) == 0, ..mode };
        match check(dir.path(), plan, mode) {
            Ok(outcome) => {
                let outcomes = tally.entry((plan.site, plan.fault)).or_default();
                *outcomes.entry(outcome).or_default() += 1;
            }
            Err(error) => {
                let text = format!("{mode:?}: {error:#}");
                if failed.len() < TOLD_MAX {
                    bar.suspend(|| println!("{text}"));
                }
                failed.push(text);
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    print_sites(&calls, &tally);
    let mut rows = rows(&calls, &tally);
    rows.push(Row::new("faults after which something was wrong", failed.len() as f64, ""));
    rows.push(Row::new("time", started.elapsed().as_secs_f64().round(), "s"));
    publish(&rows, args.json.as_deref())?;
    ensure!(failed.is_empty(), "{} faults left something wrong: {}", failed.len(), failed[0]);
    Ok(())
}

/// Prints a line for each site: the number of its calls, and the outcome counts of each fault.
fn print_sites(calls: &BTreeMap<Site, u64>, tally: &Tally) {
    for (site, calls) in calls {
        let mut line = format!("{:34} {calls:5} calls;", site.to_string());
        for fault in Fault::ALL {
            let Some(outcomes) = tally.get(&(*site, fault)) else { continue };
            let counts: Vec<_> =
                outcomes.iter().map(|(outcome, n)| format!("{outcome:?} {n}")).collect();
            line += &format!(" {fault:?}: {};", counts.join(", "));
        }
        println!("{line}");
    }
}

fn rows(calls: &BTreeMap<Site, u64>, tally: &Tally) -> Vec<Row> {
    let mut by_fault: BTreeMap<(Fault, Outcome), u64> = BTreeMap::new();
    let mut by_call: BTreeMap<Call, u64> = BTreeMap::new();
    for ((site, fault), outcomes) in tally {
        for (&outcome, count) in outcomes {
            *by_fault.entry((*fault, outcome)).or_default() += count;
            let struck = u64::from(outcome != Outcome::NotReached) * count;
            *by_call.entry(site.call).or_default() += struck;
        }
    }
    let mut rows = vec![
        Row::new("calls of the script", calls.values().sum::<u64>() as f64, ""),
        Row::new("sites: a call and a kind of file", calls.len() as f64, ""),
        Row::new("sites and faults that can strike there", pairs(calls) as f64, ""),
        Row::new("of these, forced", forced(tally) as f64, ""),
    ];
    let named = |((fault, outcome), n): (&(Fault, Outcome), &u64)| {
        Row::new(format!("faults: {fault:?}, {outcome:?}"), *n as f64, "")
    };
    rows.extend(by_fault.iter().map(named));
    rows.extend(
        by_call.iter().map(|(call, n)| Row::new(format!("faults at {call:?}"), *n as f64, "")),
    );
    rows.push(Row::new("faults", by_fault.values().sum::<u64>() as f64, ""));
    rows
}

/// Counts the pairs of a site and a fault that can strike there.
fn pairs(calls: &BTreeMap<Site, u64>) -> usize {
    calls.keys().map(|site| Fault::ALL.iter().filter(|f| f.can_strike(site.call)).count()).sum()
}

/// Counts the pairs of a site and a fault that have struck.
fn forced(tally: &Tally) -> usize {
    tally.values().filter(|outcomes| outcomes.keys().any(|o| *o != Outcome::NotReached)).count()
}
