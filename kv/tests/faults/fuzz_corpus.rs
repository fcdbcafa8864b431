//! Runs the fuzz targets of `kv/fuzz` on their stored inputs, without a fuzzer (see
//! docs/testing.md, "Fuzzing").
//!
//! The targets whose decoders are private to the crate run in `kv/src/testing/fuzzing.rs`.

#![expect(clippy::unwrap_used, reason = "a test")]
#![allow(unreachable_pub, dead_code, reason = "shared with the fuzz targets, which use all of it")]

#[path = "../../fuzz/src/damaged_bank.rs"]
mod damaged_bank;
#[path = "../../fuzz/src/damaged_delta.rs"]
mod damaged_delta;
#[path = "../../fuzz/src/operations.rs"]
mod operations;
#[path = "../../fuzz/src/rows.rs"]
mod rows;

use crate::seals;
use std::fs;
use std::path::Path;

use arbitrary::{Arbitrary, Unstructured};

/// Runs a target on each file of its corpus.
fn replay<T: for<'a> Arbitrary<'a>>(target: &str, run: impl Fn(&T)) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        println!("{}", file.display());
        let bytes = fs::read(&file).unwrap();
        // An input that is too short is skipped, as libfuzzer-sys skips it.
        if let Ok(input) = T::arbitrary_take_rest(Unstructured::new(&bytes)) {
            run(&input);
        }
    }
}

#[test]
fn operations_of_the_corpus() {
    replay("operations", |life| operations::run(life, &std::env::temp_dir()));
}

#[test]
fn damaged_banks_of_the_corpus() {
    let folder = std::env::temp_dir();
    let bank = damaged_bank::Bank::new(&folder);
    replay("damaged_bank", |damage| bank.run(damage, &folder));
}

#[test]
fn damaged_deltas_of_the_corpus() {
    let folder = std::env::temp_dir();
    let bank = damaged_bank::Bank::new(&folder);
    replay("damaged_delta", |damage| bank.apply(damage, &folder));
}
