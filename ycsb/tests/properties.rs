//! Tests of YCSB's own property files and of `-p`.

mod support;

use std::fs;
use std::path::Path;

use support::{text, ycsb};

fn workload(letter: char) -> String {
    format!("{}/tests/workloads/workload{letter}", env!("CARGO_MANIFEST_DIR"))
}

fn report(directory: &Path, arguments: &str) -> (serde_json::Value, String) {
    let json = directory.join("report.json");
    let output = ycsb(directory, &format!("{arguments} --json {}", json.display()));
    assert!(output.status.success(), "{arguments}: {}", text(&output));
    let report = serde_json::from_str(&fs::read_to_string(json).expect("a report")).expect("JSON");
    (report, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// YCSB's file of a core workload makes the same operations as `--workload` with the letter of the
/// workload. The number of rows and the value size are YCSB's.
#[test]
fn core_workload_files_are_run_as_they_say() {
    let directory = tempfile::tempdir().unwrap();
    for letter in ['a', 'b', 'c', 'd', 'f'] {
        let budget = "run --memory-budget 8MiB";
        let (file, warnings) =
            report(directory.path(), &format!("{budget} -P {}", workload(letter)));
        assert_eq!(warnings, "", "{letter}");
        assert_eq!(file["settings"]["rows"], 1_000);
        assert_eq!(file["settings"]["value_bytes"], 1_000);
        assert_eq!(file["settings"]["key_order"], "hashed");
        let measurement = &file["measurements"][0];
        assert_eq!(measurement["measured"]["operations"], 1_000);
        let letters = "--rows 10 --value-size 8 --operations 10 --warm-up-operations 1 --workload";
        let (option, _) = report(directory.path(), &format!("{budget} {letters} {letter}"));
        let spec = &option["measurements"][0]["spec"];
        for name in ["mix", "distribution", "skew", "batch", "threads"] {
            assert_eq!(measurement["spec"][name], spec[name], "{letter}: {name}");
        }
    }
    let output = ycsb(directory.path(), &format!("run --engine embank -P {}", workload('e')));
    assert!(text(&output).contains("insert 5%, scan 95%, scrambled"), "{}", text(&output));
    assert!(text(&output).contains("hash-indexed store"), "{}", text(&output));
}

#[test]
fn later_files_pairs_and_options_win_in_this_order() {
    let directory = tempfile::tempdir().unwrap();
    let later = directory.path().join("later");
    fs::write(&later, "recordcount = 20\nfieldcount: 2\nfieldlength 8\nthreadcount=3\n").unwrap();
    let files = format!("run --memory-budget 4MiB -P {} -P {}", workload('c'), later.display());
    let (both, _) = report(directory.path(), &files);
    assert_eq!(both["settings"]["rows"], 20);
    assert_eq!(both["settings"]["value_bytes"], 16);
    assert_eq!(both["measurements"][0]["spec"]["threads"], 3);
    let (pairs, _) = report(
        directory.path(),
        &format!("{files} -p recordcount=30 -p threadcount=2 -p updateproportion=1 --rows 40"),
    );
    assert_eq!(pairs["settings"]["rows"], 40, "the option wins");
    assert_eq!(pairs["measurements"][0]["spec"]["threads"], 2, "-p wins over files");
    assert_eq!(pairs["measurements"][0]["spec"]["mix"]["update"], 0.5);
}

#[test]
fn a_load_and_its_run_share_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = workload('f');
    let load =
        ycsb(directory.path(), &format!("load -P {file} -p threadcount=2 --memory-budget 8MiB"));
    assert!(load.status.success(), "{}", text(&load));
    let (run, _) = report(directory.path(), &format!("run --loaded -P {file} --check-all"));
    assert_eq!(run["settings"]["rows"], 1_000);
    assert_eq!(run["settings"]["load_threads"], 2);
    let other = ycsb(directory.path(), &format!("run --loaded -P {file} -p recordcount=2000"));
    assert!(text(&other).contains("expected 2000, found 1000"), "{}", text(&other));
}

#[test]
fn compare_takes_properties() {
    let directory = tempfile::tempdir().unwrap();
    let compare = "compare --engines embank,map --memory-budget 8MiB --rounds 1";
    let (compared, _) = report(directory.path(), &format!("{compare} -P {}", workload('a')));
    assert_eq!(compared["settings"]["rows"], 1_000);
    assert_eq!(compared["measurements"][1]["rounds"][0]["operations"], 1_000);
}

#[test]
fn bad_properties_are_refused_with_their_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("w");
    fs::write(&file, "# a\nrecordcount=10\nrequestdistribution=exponential\n").unwrap();
    for (arguments, told) in [
        (format!("run -P {}", file.display()), "w:3: requestdistribution=exponential: "),
        ("run -p recordcount=many".to_owned(), "-p: recordcount=many: "),
        ("run -p workload=site.ycsb.workloads.TimeSeriesWorkload".to_owned(), "CoreWorkload"),
        ("load -p readallfields=false".to_owned(), "-p: readallfields=false: "),
        ("compare --engines map -p threadcount=0".to_owned(), "-p: threadcount=0: "),
        ("run -P /nonexistent".to_owned(), "reading /nonexistent"),
        (format!("run -P {}", directory.path().display()), "reading "),
    ] {
        let output = ycsb(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", text(&output));
        assert!(text(&output).contains(told), "{arguments}: {}", text(&output));
    }
    let output = ycsb(directory.path(), "run -p recordcount");
    assert!(text(&output).contains("expected NAME=VALUE"), "{}", text(&output));
}

#[test]
fn unknown_names_are_warned_of_and_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let run = "run --engine map --rows 10 --value-size 8 --operations 10";
    let (_, warnings) =
        report(directory.path(), &format!("{run} -p rocksdb.dir=/x -p recordCount=5 -p table=t"));
    for told in [
        "warning: -p: unknown property \"rocksdb.dir\" is ignored",
        "unknown property \"recordCount\" is ignored; did you mean recordcount?",
        "table has no effect",
    ] {
        assert!(warnings.contains(told), "{warnings}");
    }
}

/// With a target, the report has service and intended latencies, as YCSB's report with `-target`
/// and `measurement.interval=both`.
#[test]
fn a_target_reports_both_latencies() {
    let directory = tempfile::tempdir().unwrap();
    let run = "run --engine map --rows 100 --value-size 8 --operations 300 --threads 2 --batch 1,4";
    let (paced, _) = report(directory.path(), &format!("{run} -p target=3000"));
    for measurement in paced["measurements"].as_array().unwrap() {
        assert_eq!(measurement["spec"]["target_operations_per_s"], 3_000);
        let measured = &measurement["measured"];
        assert_eq!(measured["operations"], 300);
        let rate = measured["operations_per_s"].as_f64().unwrap();
        assert!(rate <= 3_000.1, "{rate} operations/s");
        for latency in measured["latencies"].as_array().unwrap() {
            let intended = latency["intended"]["p99_us"].as_f64().unwrap();
            assert!(intended >= latency["p50_us"].as_f64().unwrap(), "{latency}");
        }
    }
    let names: Vec<_> = paced["rows"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    let told = names.iter().any(|name| name.as_str().unwrap().ends_with("from the intended start"));
    assert!(told, "{names:?}");
    let (free, _) = report(directory.path(), &format!("{run} --warm-up-operations 1"));
    assert!(free["measurements"][0]["measured"]["latencies"][0]["intended"].is_null());
}
