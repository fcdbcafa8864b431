//! Tests that a bank is whole or reports its loss after one system call went wrong. Each fault
//! strikes at each site where it is possible.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use embank_crash::faults::judge::Outcome;
use embank_crash::faults::sweep::{check, count, plans};
use embank_crash::faults::{Fault, Site};
use embank_crash::recorder;
use fastrand::Rng;
use tempfile::TempDir;

/// For one planned fault the test runs the script at most this many times, until a run makes the
/// planned call.
const RUNS_MAX: usize = 4;
/// The test collects the sites of at most this many runs of the script. About one run in a hundred
/// never compacts a part of a segment, and lacks the sites of this compaction.
const LIVES_MAX: usize = 10;

/// Makes a temporary directory, in memory if the system has /dev/shm.
fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The file `fault_sites.txt` lists the site (a system call on a kind of file) of every call of the
/// store, so a call at a new site fails this test. At each listed site, calls go wrong in every
/// possible way.
#[test]
fn every_site_is_forced() {
    recorder::skip_syncs();
    let seed = std::env::var("EMBANK_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("replay with EMBANK_TEST_SEED={seed}");
    let dir = temporary();
    let listed: Vec<&str> = include_str!("fault_sites.txt").lines().collect();
    let mut calls = BTreeMap::new();
    for _ in 0..LIVES_MAX {
        for (site, calls_of_life) in count(dir.path(), false).unwrap() {
            let most = calls.entry(site).or_insert(calls_of_life);
            *most = calls_of_life.max(*most);
        }
        if calls.len() >= listed.len() {
            break;
        }
    }
    let sites: Vec<String> = calls.keys().map(Site::to_string).collect();
    assert_eq!(sites, listed, "the calls of the store, and those of crash/tests/fault_sites.txt");
    let (mut struck, mut failed) = (BTreeSet::new(), Vec::new());
    for plan in plans(&calls, 0, &mut Rng::with_seed(seed)) {
        // The timing of the log's writer thread differs from run to run. So a run may lack a call
        // that another run makes.
        let mut runs = (0..RUNS_MAX).map(|_| check(dir.path(), plan, false));
        let reached = runs.find(|run| !matches!(run, Ok(Outcome::NotReached)));
        match reached.unwrap_or(Ok(Outcome::NotReached)) {
            Ok(Outcome::NotReached) => {}
            Ok(_) => {
                struck.insert((plan.site, plan.fault));
            }
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    for &site in calls.keys() {
        for fault in Fault::ALL.into_iter().filter(|fault| fault.can_strike(site.call)) {
            assert!(struck.contains(&(site, fault)), "{fault:?} never struck at {site}");
        }
    }
}
