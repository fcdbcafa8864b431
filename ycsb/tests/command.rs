//! Tests of the program as users and scripts start it.

mod support;

use support::{text, ycsb};

#[test]
fn a_comparison_takes_turns_and_writes_its_ratios() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let output = ycsb(
        directory.path(),
        &format!(
            "compare --engines embank,map --rows 5k --memory-budget 4MiB --workload a,e --batch 64 \
             --threads 2 --rounds 3 --operations 4k --warm-up-operations 1k --json {}",
            json.display()
        ),
    );
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("refused: Embank is a hash-indexed store"), "{}", text(&output));

    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let measurements = report["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 4, "two pieces of work on two stores");
    assert_eq!(measurements[0]["rounds"].as_array().unwrap().len(), 3);
    assert_eq!(measurements[0]["rounds"][0]["operations"], 4_000);
    assert!(measurements[2]["refused"].is_string() && measurements[3]["refused"].is_string());
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let work = "A (read 50%, update 50%), scrambled 0.99, batch 64, 2 threads";
    assert_eq!(
        names,
        [format!("{work}: embank"), format!("{work}: map"), format!("{work}: embank beside map")]
    );
    assert_eq!(rows[2]["against"], "map");
    assert_eq!(rows[2]["against_value"], rows[1]["value"]);
    let ratio = rows[0]["value"].as_f64().unwrap() / rows[1]["value"].as_f64().unwrap();
    assert!((rows[2]["ratio"].as_f64().unwrap() - ratio).abs() < 1e-9);
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "the stores are removed, the report stays: {left:?}");
}

#[test]
fn a_loaded_store_is_measured_by_a_later_process() {
    let directory = tempfile::tempdir().unwrap();
    let load = "load --engine embank --rows 3k --value-size 32 --memory-budget 4MiB";
    let output = ycsb(directory.path(), load);
    assert!(output.status.success(), "{}", text(&output));
    let again = ycsb(directory.path(), load);
    assert!(!again.status.success() && text(&again).contains("remove it"), "{}", text(&again));

    let run = "run --loaded --engine embank --memory-budget 4MiB --workload c --operations 5k \
               --warm-up-operations 10 --check-all";
    let output = ycsb(directory.path(), &format!("{run} --value-size 32"));
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("every byte of every row is right"), "{}", text(&output));
    let other = ycsb(directory.path(), &format!("{run} --value-size 64"));
    assert!(text(&other).contains("holds 3000 rows of 32 bytes"), "{}", text(&other));
}

#[test]
fn written_bytes_are_counted_in_windows_of_changes() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let output = ycsb(
        directory.path(),
        &format!(
            "written --engine embank --rows 60k --value-size 64 --memory-budget 4MiB --distribution zipfian --json {}",
            json.display()
        ),
    );
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("bytes a change"), "{}", text(&output));
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let windows = report["updates"].as_array().unwrap();
    // Two passes of 16 windows at least, five at most.
    assert!((32..=80).contains(&windows.len()), "{} windows", windows.len());
    assert!(report["settled"].as_bool().unwrap() || windows.len() == 80);
    let measured = report["read_modify_writes"].as_array().unwrap();
    assert_eq!(measured.len(), 8);
    for window in measured {
        assert_eq!(window["operations"], 3_750);
        assert_eq!(window["latencies"][0]["kind"], "rmw");
    }
    // The rows do not fit into memory, so the log has most of them.
    assert!(report["space_bytes"].as_u64().unwrap() > 60_000 * 64, "{}", report["space_bytes"]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "only the report stays");
}

#[test]
fn bounds_are_measured_beside_a_store_without_leases() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let output = ycsb(
        directory.path(),
        &format!(
            "compare --engines embank-lease,embank-get --rows 2k --memory-budget 4MiB --rmw 1 --batch 64 \
             --threads 2 --staleness-bound none,0,4 --rounds 1 --operations 4k --warm-up-operations 1k --json {}",
            json.display()
        ),
    );
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("gets waited for the bound"), "{}", text(&output));
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let measurements = report["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 6, "three bounds on two stores");
    let leases = &measurements[4]["spec"]["leases"];
    assert_eq!(
        (leases["staleness_bound"].as_u64(), leases["per_thread"].as_u64()),
        (Some(4), Some(3))
    );
}

#[test]
fn a_load_with_leases_is_measured_by_a_later_process() {
    let directory = tempfile::tempdir().unwrap();
    let load = "load --engine embank-lease --rows 3k --value-size 32 --memory-budget 4MiB";
    let output = ycsb(directory.path(), load);
    assert!(output.status.success(), "{}", text(&output));
    let run = "run --loaded --workload a,f --threads 2 --staleness-bound 2 --operations 5k \
               --warm-up-operations 10 --check-all";
    let output = ycsb(directory.path(), run);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("every byte of every row is right"), "{}", text(&output));
}

#[test]
fn work_that_a_store_cannot_do_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let output = ycsb(directory.path(), "run --engine embank --rows 1k --workload e");
    assert!(!output.status.success());
    assert!(text(&output).contains("hash-indexed store"), "{}", text(&output));
    let output = ycsb(directory.path(), "compare --engines map,embank,map");
    assert!(text(&output).contains("names a store twice"), "{}", text(&output));
    let output = ycsb(directory.path(), "compare --engines map,embank --memory-budget 90000GiB");
    assert!(text(&output).contains("lower --memory-budget"), "{}", text(&output));
}
