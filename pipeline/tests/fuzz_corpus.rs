//! Runs the corpus of the fuzz targets in `pipeline/fuzz` without a fuzzer: docs/testing.md,
//! "Fuzzing".

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unreachable_pub, dead_code, reason = "shared with the fuzz targets, which use all of it")]

#[cfg(feature = "parquet")]
#[path = "../fuzz/src/archives.rs"]
mod archives;
#[cfg(feature = "parquet")]
#[path = "../fuzz/src/columns.rs"]
mod columns;
#[path = "../fuzz/src/compressed.rs"]
mod compressed;
#[path = "../fuzz/src/edits.rs"]
mod edits;
#[path = "../fuzz/src/packed.rs"]
mod packed;
#[cfg(all(feature = "images", feature = "parquet"))]
#[path = "../fuzz/src/pictures.rs"]
mod pictures;
#[path = "../fuzz/src/records.rs"]
mod records;
#[path = "../fuzz/src/reference.rs"]
mod reference;
#[path = "../fuzz/src/seals.rs"]
mod seals;
#[path = "../fuzz/src/spec.rs"]
mod spec;
#[path = "../fuzz/src/text.rs"]
mod text;

use std::fs;
use std::path::{Path, PathBuf};

use arbitrary::{Arbitrary, Unstructured};

fn folder() -> PathBuf {
    std::env::temp_dir()
}

/// Runs a target over its corpus.
fn replay<T: for<'a> Arbitrary<'a>>(target: &str, run: impl Fn(&T)) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        println!("{}", file.display());
        let bytes = fs::read(&file).unwrap();
        // Skips bytes that are too short for an input, as libfuzzer-sys does.
        if let Ok(input) = T::arbitrary_take_rest(Unstructured::new(&bytes)) {
            run(&input);
        }
    }
}

#[test]
fn texts_of_the_corpus() {
    replay("text", |text: &text::Text| text.run(false));
}

#[test]
fn quoted_texts_of_the_corpus() {
    replay("quoted", |text: &text::Text| text.run(true));
}

#[test]
fn packed_rows_of_the_corpus() {
    replay("packed", packed::Packed::run);
}

#[test]
fn compressed_texts_of_the_corpus() {
    replay("compressed", compressed::Compressed::run);
}

#[test]
fn pipelines_of_the_corpus() {
    replay("spec", spec::Pipelines::run);
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_files_of_the_corpus() {
    let files = columns::parquet_files();
    replay("parquet", |file: &columns::Damaged| file.run(files, b"PAR1"));
}

#[cfg(feature = "parquet")]
#[test]
fn arrow_files_of_the_corpus() {
    let files = columns::arrow_files();
    replay("arrow", |file: &columns::Damaged| file.run(files, b""));
}

#[cfg(feature = "parquet")]
#[test]
fn archives_of_the_corpus() {
    replay("tar", archives::Damaged::run);
}

#[cfg(all(feature = "images", feature = "parquet"))]
#[test]
fn pictures_of_the_corpus() {
    replay("pictures", pictures::Damaged::run);
}

#[test]
fn record_files_of_the_corpus() {
    replay("records", records::Damaged::run);
}
