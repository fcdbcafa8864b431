//! What the fuzz targets run: docs/testing.md, "Fuzzing". The tests in `kv/tests/faults/fuzz_corpus.rs` and
//! `kv/src/fuzzing.rs` run the same over the corpus.

pub mod damaged_bank;
pub mod damaged_delta;
pub mod operations;
pub mod rows;
pub mod seals;
pub mod settings;

use std::path::{Path, PathBuf};

/// Where directories are made: in memory, if there is such a place.
pub fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
