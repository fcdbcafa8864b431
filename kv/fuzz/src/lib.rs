//! The code that the fuzz targets run: see docs/testing.md, "Fuzzing". The tests in
//! `kv/tests/faults/fuzz_corpus.rs` and `kv/src/testing/fuzzing.rs` run the same code on the stored
//! inputs (the corpus).
//!
//! # Where to look
//!
//! - `operations`: runs sequences of calls on a store.
//! - `damaged_bank` and `damaged_delta`: use files after edits.
//! - `settings`: decodes descriptors of embedding tables.
//! - `seals`: corrects checksums after an edit; `rows`: operations on rows.

pub mod damaged_bank;
pub mod damaged_delta;
pub mod operations;
pub mod rows;
pub mod seals;
pub mod settings;

use std::path::{Path, PathBuf};

/// Returns the folder for temporary directories: `/dev/shm`, which is in memory, if it exists.
pub fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
