//! Tests that `run --loaded` takes its settings from the load. It refuses settings that differ from
//! the load's, except the memory budget.

mod support;

use std::fs;
use std::path::Path;

use support::{text, ycsb};

const WORK: &str = "--workload c --operations 500 --warm-up-operations 10";

fn loaded() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let load = "load --rows 3k --value-size 32 --key-order ordered --memory-budget 4MiB";
    let output = ycsb(directory.path(), load);
    assert!(output.status.success(), "{}", text(&output));
    directory
}

fn report(directory: &Path, arguments: &str) -> serde_json::Value {
    let json = directory.join("report.json");
    let output =
        ycsb(directory, &format!("run --loaded {WORK} {arguments} --json {}", json.display()));
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_str(&fs::read_to_string(json).expect("a report")).expect("JSON")
}

/// Regression test: the report of a run over a load had another number of rows than the load.
#[test]
fn the_report_has_the_settings_of_the_load() {
    let directory = loaded();
    let plain = report(directory.path(), "--check-all");
    assert_eq!(plain["engine"], "embank");
    let settings = &plain["settings"];
    assert_eq!(settings["rows"], 3_000);
    assert_eq!(settings["value_bytes"], 32);
    assert_eq!(settings["key_order"], "ordered");
    assert_eq!(settings["memory_budget_bytes"], 4 << 20);
    assert_eq!(settings["reopen"], true);
    let same = "--engine embank --rows 3000 --value-size 32 --key-order ordered --load-threads 1";
    let other_budget = report(directory.path(), &format!("{same} --memory-budget 8MiB"));
    assert_eq!(other_budget["settings"]["memory_budget_bytes"], 8 << 20);
}

#[test]
fn settings_that_do_not_fit_the_load_are_refused_by_name() {
    let directory = loaded();
    for (arguments, told) in [
        ("--rows 200k", "--rows: expected 200000, found 3000"),
        ("--rows 2k", "--rows: expected 2000, found 3000"),
        ("--value-size 64", "--value-size: expected 64, found 32"),
        ("--key-order hashed", "--key-order: expected hashed, found ordered"),
        ("--load-threads 2", "--load-threads: expected 2, found 1"),
        ("-p recordcount=7", "recordcount of -p: expected 7, found 3000"),
        ("-p fieldlength=8", "fieldlength of -p: expected 80, found 32"),
        ("-p insertorder=hashed", "insertorder of -p: expected hashed, found ordered"),
        ("--engine embank-get", "holds loads of embank"),
        ("--embank-clock", "holds loads of embank"),
        ("--engine map", "holds loads of embank"),
    ] {
        let output = ycsb(directory.path(), &format!("run --loaded {WORK} {arguments}"));
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", text(&output));
        assert!(text(&output).contains(told), "{arguments}: {}", text(&output));
        assert!(output.stdout.is_empty(), "{arguments}: refused before anything is measured");
    }
    let both = ycsb(directory.path(), "run --loaded --rows 5 --value-size 64");
    assert!(
        text(&both).contains("--rows: expected 5, found 3000; --value-size"),
        "{}",
        text(&both)
    );
}

#[test]
fn properties_that_name_no_rows_take_those_of_the_load() {
    let directory = loaded();
    let with = report(directory.path(), "-p threadcount=2 -p readproportion=1");
    assert_eq!(with["settings"]["value_bytes"], 32);
    assert_eq!(with["measurements"][0]["spec"]["threads"], 2);
}

#[test]
fn an_interrupted_load_is_no_load() {
    let directory = loaded();
    fs::remove_file(directory.path().join("embank/ycsb.json")).unwrap();
    let output = ycsb(directory.path(), "run --loaded --engine embank");
    assert!(text(&output).contains("interrupted"), "{}", text(&output));
    let output = ycsb(&directory.path().join("elsewhere"), "run --loaded");
    assert!(text(&output).contains("holds no load"), "{}", text(&output));
}
