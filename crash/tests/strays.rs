//! Tests that a bank keeps every acknowledged checkpoint, and touches no other bank, whatever files
//! other programs put into its folders.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use embank_crash::recorder;
use embank_crash::strays::{Tally, round};

fn rounds(seeds: std::ops::Range<u64>, live: bool) -> Tally {
    recorder::skip_syncs();
    let mut tally = Tally::default();
    for seed in seeds {
        let dir = tempfile::tempdir().unwrap();
        match round(dir.path(), seed, live) {
            Ok(counts) => tally += counts,
            Err(error) => panic!("{error:#}"),
        }
    }
    println!("{tally:?}");
    tally
}

#[test]
fn strays_in_a_closed_bank_end_no_checkpoint() {
    let tally = rounds(0..6, false);
    assert!(tally.opened > 10 && tally.refused > 10, "{tally:?}");
}

#[test]
fn strays_in_an_open_bank_end_no_checkpoint() {
    let tally = rounds(100..106, true);
    assert!(tally.checkpoints > 50 && tally.strays > 100, "{tally:?}");
}
