//! Tests that a bank is whole or reports its loss after one system call went wrong. Each fault
//! strikes at each site where it is possible.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use embank_crash::faults::judge::Outcome;
use embank_crash::faults::sweep::{check, count, plans};
use embank_crash::faults::{Fault, Mode, Site};
use embank_crash::recorder;
use fastrand::Rng;
use tempfile::TempDir;

/// For one planned fault the test runs the script at most this many times, until a run makes the
/// planned call.
const RUNS_MAX: usize = 4;
/// The test collects the sites of at most this many runs of the script. About one run in a hundred
/// never compacts a part of a segment, and lacks the sites of this compaction.
const LIVES_MAX: usize = 10;

/// The kinds of files that only a bank in two tiers has.
const PART_FILES: [&str; 2] = ["part", "list of parts"];

/// Makes a temporary directory, in memory if the system has /dev/shm.
fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Returns the number of calls at each site of the script on this kind of bank, over some runs.
fn calls_of(dir: &TempDir, mode: Mode, is_enough: impl Fn(usize) -> bool) -> BTreeMap<Site, u64> {
    let mut calls = BTreeMap::new();
    for _ in 0..LIVES_MAX {
        for (site, calls_of_life) in count(dir.path(), mode).unwrap() {
            let most = calls.entry(site).or_insert(calls_of_life);
            *most = calls_of_life.max(*most);
        }
        if is_enough(calls.len()) {
            break;
        }
    }
    calls
}

/// The file `fault_sites.txt` lists the site (a system call on a kind of file) of every call of the
/// store, so a call at a new site fails this test. At each listed site, calls go wrong in every
/// possible way. The calls on parts of a cold tier go wrong in a bank in two tiers, and all others
/// in a bank in one tier.
#[test]
fn every_site_is_forced() {
    recorder::skip_syncs();
    let seed = std::env::var("EMBANK_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("replay with EMBANK_TEST_SEED={seed}");
    let dir = temporary();
    let is_of_parts = |site: &Site| PART_FILES.contains(&site.file);
    let mut listed: BTreeSet<&str> = include_str!("fault_sites.txt").lines().collect();
    let of_parts = |line: &str| PART_FILES.iter().any(|file| line.ends_with(&format!(" {file}")));
    let parts_listed = listed.iter().filter(|line| of_parts(line)).count();
    let others_listed = listed.len() - parts_listed;
    let one_tier = Mode::default();
    let two_tiers = Mode { two_tiers: true, ..one_tier };
    let others = calls_of(&dir, one_tier, |sites| sites >= others_listed);
    assert!(!others.keys().any(is_of_parts), "a bank in one tier has parts");
    let mut parts = calls_of(&dir, two_tiers, |_| true);
    let unknown = parts.keys().filter(|site| !is_of_parts(site) && !others.contains_key(site));
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&Site>::new(), "sites of two tiers alone");
    parts.retain(|site, _| is_of_parts(site));
    let sites: Vec<String> = others.keys().chain(parts.keys()).map(Site::to_string).collect();
    let unlisted: Vec<_> = sites.iter().filter(|site| !listed.remove(&***site)).collect();
    assert!(unlisted.is_empty(), "sites that crash/tests/fault_sites.txt lacks: {unlisted:#?}");
    assert!(listed.is_empty(), "no call is at the sites {listed:?}");
    let (mut struck, mut failed) = (BTreeSet::new(), Vec::new());
    let mut random = Rng::with_seed(seed);
    let of_one = plans(&others, 0, &mut random).into_iter().map(|plan| (one_tier, plan));
    let of_two = plans(&parts, 0, &mut random).into_iter().map(|plan| (two_tiers, plan));
    for (mode, plan) in of_one.chain(of_two) {
        // The timing of the log's writer thread differs from run to run. So a run may lack a call
        // that another run makes.
        let mut runs = (0..RUNS_MAX).map(|_| check(dir.path(), plan, mode));
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
    for &site in others.keys().chain(parts.keys()) {
        for fault in Fault::ALL.into_iter().filter(|fault| fault.can_strike(site.call)) {
            assert!(struck.contains(&(site, fault)), "{fault:?} never struck at {site}");
        }
    }
}
