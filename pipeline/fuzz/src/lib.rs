//! The code of the fuzz targets: docs/testing.md, "Fuzzing". The tests in
//! `pipeline/tests/fuzz_corpus.rs` run the same code over the corpus.

pub mod archives;
pub mod columns;
pub mod compressed;
pub mod edits;
pub mod packed;
pub mod pictures;
pub mod records;
pub mod reference;
pub mod seals;
pub mod spec;
pub mod text;

use std::panic;
use std::path::{Path, PathBuf};

/// The directory for temporary directories: in memory if the system has `/dev/shm`.
pub fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Ignores panics of the crates that read columns and pictures, which the pipeline catches and
/// reports. The fuzzer's own hook would end the process at any panic.
pub fn let_pass_what_is_caught() {
    let all = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let crates = ["/arrow-", "/parquet-", "/zune-jpeg-", "/zune-core-", "/png-"];
        let foreign = |file: &str| crates.iter().any(|name| file.contains(name));
        // A panic outside of the sources of these crates ends the process. If one of them passes a
        // bad index to a slice, the panic has its place in the standard library, so it ends the
        // process too.
        if !info.location().is_some_and(|place| foreign(place.file())) {
            all(info);
        }
    }));
}
