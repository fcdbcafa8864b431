//! Runs the corpus of the fuzz target `table_settings` of `kv/fuzz` without a fuzzer.

#![allow(unreachable_pub, dead_code, reason = "shared with the fuzz targets, which use all of it")]

#[path = "../../../kv/fuzz/src/seals.rs"]
mod seals;
#[path = "../../../kv/fuzz/src/settings.rs"]
mod settings;

use std::fs;
use std::path::Path;

/// Shows that the target runs over its whole corpus without a panic.
#[test]
fn settings_of_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kv/fuzz/corpus/table_settings");
    let mut files: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        println!("{}", file.display());
        settings::table_settings(&fs::read(&file).unwrap());
    }
}
