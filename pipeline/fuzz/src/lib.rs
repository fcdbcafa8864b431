//! What the fuzz targets run: docs/testing.md, "Fuzzing". The tests in
//! `pipeline/tests/fuzz_corpus.rs` run the same over the corpus.

pub mod columns;
pub mod compressed;
pub mod edits;
pub mod packed;
pub mod reference;
pub mod spec;
pub mod text;

use std::panic;
use std::path::{Path, PathBuf};

/// Where directories are made: in memory, if there is such a place.
pub fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Lets panics of the arrow and parquet crates pass, which the pipeline catches and reports; the
/// fuzzer's own hook ends the process at any panic.
pub fn let_pass_what_is_caught() {
    let all = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let foreign = |file: &str| file.contains("/arrow-") || file.contains("/parquet-");
        // A slice out of bounds in the standard library, called by one of them, has no place of its
        // own to tell by.
        if !info.location().is_some_and(|place| foreign(place.file())) {
            all(info);
        }
    }));
}
