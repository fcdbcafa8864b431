//! Tests that a fleet whose processes were killed opens at its newest complete set, with all shards
//! at one step and every row.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use embank::Bank;
use embank::fleet::shard_path;
use embank_crash::fleet_kills::{Coordinator, Kill, Moment};

const PROGRAM: &str = env!("CARGO_BIN_EXE_embank-crash");

fn coordinator(dir: &Path, shards: u32) -> Coordinator {
    let seed = std::env::var("EMBANK_TEST_SEED").map_or(5, |seed| seed.parse().unwrap());
    println!("replay with EMBANK_TEST_SEED={seed}");
    Coordinator::new(Path::new(PROGRAM), dir, shards, seed)
}

#[test]
fn a_fleet_comes_back_at_its_newest_complete_set() {
    for shards in [2, 3] {
        let dir = tempfile::tempdir().unwrap();
        let mut coordinator = coordinator(dir.path(), shards);
        let mut kills: Vec<Kill> = (0..12).map(|_| coordinator.kill().unwrap()).collect();
        // These two kills do not depend on time.
        kills.push(coordinator.kill_after_first_commit().unwrap());
        let back = coordinator.kill_after_first_back().unwrap();
        kills.push(back);
        println!("{kills:?}");
        assert_eq!(back.lacking, shards as usize - 1);
        assert!(back.back && back.moment == Moment::Settle);
        assert!(coordinator.check().unwrap() > 0);
    }
}

/// The coordinator reports a fleet that lost its newest set.
#[test]
fn a_lost_set_shows() {
    let dir = tempfile::tempdir().unwrap();
    let mut coordinator = coordinator(dir.path(), 2);
    let path = shard_path(dir.path(), 1);
    let there = || Bank::checkpoints(&path).unwrap_or_default();
    // The loop ends when the shard has a checkpoint from before the newest set.
    while coordinator.check().unwrap() == 0 || there().len() < 2 {
        coordinator.kill().unwrap();
    }
    let there = there();
    Bank::roll_back(&path, there[there.len() - 2].number).unwrap();
    let error = format!("{:#}", coordinator.check().unwrap_err());
    assert!(error.contains("passed over") || error.contains("no complete set"), "{error}");
}

/// A worker reports rows that its steps do not make: here those of another seed.
#[test]
fn a_wrong_row_shows() {
    let dir = tempfile::tempdir().unwrap();
    let mut coordinator = coordinator(dir.path(), 1);
    // The loop ends when a set has rows.
    while coordinator.check().unwrap() == 0 {
        coordinator.kill().unwrap();
    }
    coordinator.expect_steps_of(6);
    let error = format!("{:#}", coordinator.check().unwrap_err());
    assert!(error.contains("a worker failed by itself"), "{error}");
}
