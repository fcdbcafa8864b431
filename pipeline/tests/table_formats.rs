//! Tests that a folder of a table format is an error: its log says which of its files count.
//!
//! Regression tests: a run read all files of a Delta Lake table, also those whose rows were removed
//! or rewritten.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use embank_pipeline::{Error, Input};

fn folder_of(files: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"1\n").unwrap();
    }
    folder
}

fn names(path: &Path) -> Result<usize, Error> {
    Input::expand(&[Input::file(path)]).map(|inputs| inputs.len())
}

#[test]
fn a_folder_of_a_table_format_is_refused() {
    for (log, within, format) in [
        ("_delta_log/00000000000000000000.json", "", "Delta Lake"),
        ("_delta_log/00000000000000000000.json", "day=2024-01-02/hour=3", "Delta Lake"),
        ("_symlink_format_manifest/manifest", "", "Delta Lake"),
        (".hoodie/hoodie.properties", "", "Hudi"),
        ("day=1/.hoodie_partition_metadata", "day=1", "Hudi"),
        ("metadata/v1.metadata.json", "data", "Iceberg"),
        ("metadata/00000-6c0e.metadata.json", "data/day=1", "Iceberg"),
        ("metadata/version-hint.text", "data", "Iceberg"),
        ("_spark_metadata/0", "", "structured streaming"),
    ] {
        let file = format!("{within}{}0.tsv", if within.is_empty() { "" } else { "/" });
        let folder = folder_of(&[log, &file]);
        let path = folder.path().join(within);
        let error = names(&path).unwrap_err().to_string();
        for part in [path.to_str().unwrap(), format, "which of the files count"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        // A reader of the format gives a list of files.
        assert_eq!(names(&folder.path().join(&file)).unwrap(), 1);
    }
}

#[test]
fn marks_of_plain_folders_are_passed_over() {
    let folder = folder_of(&["_SUCCESS", "_metadata", "_common_metadata", ".0.tsv.crc", "0.tsv"]);
    assert_eq!(names(folder.path()).unwrap(), 1);
    // A table beside or above a plain folder is another folder's.
    let folder = folder_of(&["_delta_log/0.json", "plain/0.tsv", "metadata/notes.txt"]);
    assert_eq!(names(&folder.path().join("plain")).unwrap(), 1);
}
