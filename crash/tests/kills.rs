//! Tests that a bank whose writer was killed opens at its newest checkpoint with every row.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use embank_crash::kills::{Supervisor, open, tier_of};
use embank_crash::program::KEYS_END;
use embank_crash::rows;
use embank_kv::DeviceChoice;

/// The seed of a bank in one tier.
fn seed() -> u64 {
    let seed = std::env::var("EMBANK_TEST_SEED").map_or(2, |seed| seed.parse().unwrap());
    println!("replay with EMBANK_TEST_SEED={seed}");
    seed
}

fn supervisor(dir: &Path, seed: u64) -> Supervisor {
    Supervisor::new(Path::new(env!("CARGO_BIN_EXE_embank-crash")), dir, seed).unwrap()
}

#[test]
fn every_row_comes_back_after_twenty_kills() {
    let dir = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(dir.path(), seed());
    let mut kills: Vec<_> = (0..20).map(|_| supervisor.kill().unwrap()).collect();
    // On a busy machine, a kill that is planned for a checkpoint may come after the checkpoint.
    while kills.len() < 100 && !kills.iter().any(|kill| kill.in_checkpoint) {
        kills.push(supervisor.kill().unwrap());
    }
    println!("{} steps: {kills:?}", supervisor.steps());
    assert!(kills.iter().any(|kill| kill.in_checkpoint));
    assert!(supervisor.steps() > 0);
}

#[test]
fn every_row_comes_back_after_kills_in_two_tiers() {
    let dir = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(dir.path(), seed() | 1);
    let kills: Vec<_> = (0..8).map(|_| supervisor.kill().unwrap()).collect();
    println!("{} steps: {kills:?}", supervisor.steps());
}

/// The supervisor reports a row that the steps do not make.
#[test]
fn a_wrong_row_shows() {
    let dir = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(dir.path(), seed());
    let bank = dir.path().join("bank");
    while supervisor.steps() < 50 {
        supervisor.kill().unwrap();
    }
    let store = open(&bank, DeviceChoice::Threads, tier_of(seed())).unwrap();
    let wide = rows::table(&store, "wide").unwrap();
    // The writer never puts or deletes this key.
    rows::put(&store, &wide, &[KEYS_END - 1], &[vec![7; 400]]).unwrap();
    store.checkpoint(&supervisor.steps().to_le_bytes()).unwrap();
    drop(store);
    let error = format!("{:#}", supervisor.kill().unwrap_err());
    assert!(error.contains(&format!("table wide, key {}", KEYS_END - 1)), "{error}");
}

/// The supervisor reports that the newest checkpoint is gone.
#[test]
fn a_lost_checkpoint_shows() {
    let dir = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(dir.path(), seed());
    let checkpoints = dir.path().join("bank/checkpoints");
    let mut names: Vec<_> = Vec::new();
    // The loop ends when the bank has an older checkpoint to fall back to.
    while names.len() < 2 {
        supervisor.kill().unwrap();
        let entries = std::fs::read_dir(&checkpoints).unwrap();
        names = entries.map(|entry| entry.unwrap().path()).collect();
        names.retain(|name| name.extension().is_none());
    }
    std::fs::remove_dir_all(names.iter().max().unwrap()).unwrap();
    // A writer that is killed early may not show the error, so the test tries several kills.
    let shown = (0..20).find_map(|_| supervisor.kill().err());
    let error = format!("{:#}", shown.unwrap());
    assert!(error.contains("the bank holds") || error.contains("by itself"), "{error}");
}
