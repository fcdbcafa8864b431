//! Tests that the program refuses work that it cannot do. It must do so before any load or
//! measurement.

mod support;

use std::fs;

use support::{text, ycsb};

/// These rows take minutes to load with this budget. So a test would take too long if a run loaded
/// them before its checks.
const MANY: &str = "--rows 20M --value-size 512 --memory-budget 64MiB";

#[test]
fn bad_runs_are_refused_before_the_load() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "kept").unwrap();
    let file = directory.path().join("file");
    let (file, here) = (file.display(), directory.path().display());
    for (arguments, told) in [
        ("run --workload e".to_owned(), "hash-indexed store"),
        ("run --workload c,e".to_owned(), "hash-indexed store"),
        ("run --scan 0.5 --read 0.5".to_owned(), "hash-indexed store"),
        ("run -p scanproportion=0.1".to_owned(), "hash-indexed store"),
        ("run --engine map --workload e".to_owned(), "a hash map keeps no order"),
        ("load -p scanproportion=0.1".to_owned(), "hash-indexed store"),
        ("load --engine map".to_owned(), "can't be kept for a later process"),
        ("compare --engines embank,map --workload e".to_owned(), "no store can do any of the work"),
        ("run --json /nonexistent/x/report.json".to_owned(), "--json /nonexistent/x/report.json"),
        (format!("run --json {here}"), "it is a directory"),
        (format!("run --json {file}/x"), "can't be written"),
        (format!("run --json {here}/new/"), "can't be written"),
        (format!("run -P {file} --json {file}"), "it is the input"),
        ("compare --engines embank,map --json /nonexistent/x".to_owned(), "can't be written"),
        ("run --batch 100000000 --threads 1000".to_owned(), "lower --batch"),
        ("run --threads 99999".to_owned(), "at most 1024"),
        ("run --load-threads 99999".to_owned(), "at most 1024"),
        ("run --staleness-bound 0".to_owned(), "embank has no leases"),
        ("run --engine embank-clock --leases 2".to_owned(), "embank-clock has no leases"),
        (
            "compare --engines embank-get,map --staleness-bound 4".to_owned(),
            "embank-get, map has no",
        ),
        (
            "run --engine embank-lease --staleness-bound 4,1 --threads 2 --leases 3".to_owned(),
            "lower --leases to 1, or raise the bound to 4",
        ),
        ("run --engine embank-lease --workload e".to_owned(), "hash-indexed store"),
        ("run --target 0".to_owned(), "--target must be positive"),
    ] {
        let output = ycsb(directory.path(), &format!("{arguments} {MANY}"));
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", text(&output));
        assert!(text(&output).contains(told), "{arguments}: {}", text(&output));
        assert!(output.stdout.is_empty(), "{arguments}: {}", text(&output));
    }
    assert_eq!(fs::read_to_string(directory.path().join("file")).unwrap(), "kept");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left");
}

/// Regression test: the program panicked at 10^15 rows, because a load sorts the keys of all rows
/// in memory. The program must refuse such a load.
#[test]
fn rows_that_memory_cannot_hold_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [
        "run --rows 1000000G",
        "run --rows 18446744073G",
        "load --rows 1000000G",
        "run --engine map --rows 1M --value-size 1000GiB",
        "compare --engines embank,map --memory-budget 1MiB --rows 1000000G",
        "run -p recordcount=1000000000000000",
    ] {
        let output = ycsb(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", text(&output));
        assert!(text(&output).contains("rows do not fit"), "{arguments}: {}", text(&output));
    }
}

#[test]
fn values_that_make_no_rows_of_f32_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in ["run", "load", "compare --engines map,embank-lease"] {
        let engine = if arguments.contains("engines") { "" } else { "--engine embank-lease" };
        let output = ycsb(directory.path(), &format!("{arguments} {engine} --value-size 30"));
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", text(&output));
        assert!(text(&output).contains("--value-size 30: a row of embank-lease"), "{arguments}");
    }
}

/// The program refuses a store that is not built in. It does so before it loads any store.
#[cfg(not(feature = "rocksdb"))]
#[test]
fn stores_that_are_not_built_in_are_refused_before_the_load() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in
        ["run --engine rocksdb", "load --engine rocksdb", "compare --engines map,rocksdb"]
    {
        let output = ycsb(directory.path(), &format!("{arguments} {MANY}"));
        assert!(text(&output).contains("--features rocksdb"), "{arguments}: {}", text(&output));
        assert!(output.stdout.is_empty(), "{arguments}: {}", text(&output));
    }
}
