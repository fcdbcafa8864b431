//! Tests that a bank is whole or reports its loss after any one system call went wrong in any way.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use embank_crash::faults::judge::Outcome;
use embank_crash::faults::sweep::{check, count, plans};
use embank_crash::faults::{Fault, Site};
use embank_crash::recorder;
use fastrand::Rng;
use tempfile::TempDir;

/// The most runs of the script for one planned fault, until the planned call comes.
const RUNS_MAX: usize = 4;
/// The calls of this number of lives are listed. One life in a hundred compacts no segment in part
/// and lacks those calls.
const LIVES_MAX: usize = 10;

/// Makes a temporary directory, in memory if the system has /dev/shm.
fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Every call of the store is on a list, so a new call fails this test. Each listed call goes wrong
/// in every possible way.
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
        // The log's writer thread has its own timing, so a call of one run may be missing in
        // another.
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
