//! Tests `serving` from end to end, with the process that trains.
//!
//! The test has its own file, so Cargo runs it in its own process. From its fork until its exec, a
//! child process holds the locks of every bank that is open in its parent. Another test of the same
//! process could have a bank open at that moment, so the child must not be started beside other
//! tests.

use std::process::Command;

use serde_json::Value;

#[test]
fn a_small_run_holds_every_peek_against_its_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("rows.json");
    let options = "--rows 20000 --dim 32 --budgets 2,0.25 --keys 1,64 --batch 512 --checkpoint-every 0.02 \
                   --seconds 0.05 --count 2";
    let status = Command::new(env!("CARGO_BIN_EXE_embank-bench"))
        .arg("serving")
        .args(options.split_whitespace())
        .arg("--directory")
        .arg(directory.path())
        .arg("--json")
        .arg(&json)
        .status()
        .unwrap();
    // `serving` checks every row of a peek, and a wrong row ends the run. A successful run has
    // therefore found no wrong row.
    assert!(status.success());
    let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let find = |name: &str| {
        let found = rows.iter().find(|row| row["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not among the figures"))
    };
    for budget in ["2", "0.25"] {
        let label = format!("20000 rows of 128 B, budget {budget}");
        for kind in ["Zipf 0.99, 1 key", "Zipf 0.99, 64 keys", "uniform, 1 key", "uniform, 64 keys"]
        {
            let alone = format!("{label}: {kind}, alone");
            for what in ["p50", "p99", "p99.9", "max"] {
                assert!(find(&format!("{alone}: {what}"))["against"].is_string());
                let beside = find(&format!("{label}: {kind}, beside a writer: {what}"));
                assert_eq!(beside["against"], format!("{alone}: {what}"));
            }
            find(&format!("{alone}: from the drive"));
        }
        for what in ["opened in", "a refresh beside the writer", "trained meanwhile"] {
            assert!(find(&format!("{label}: {what}"))["value"].as_f64().unwrap() > 0.0);
        }
    }
    // A bank that fits is read from memory after all rows were peeked at. The exceptions are rows
    // whose shard of the cache had no room. Their part differs from run to run. If the cache kept
    // no row, their part would be near 100%.
    let name = "20000 rows of 128 B, budget 2: uniform, 64 keys, alone: from the drive";
    assert!(find(name)["value"].as_f64().unwrap() < 5.0, "{}", find(name));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "only the figures stay");
}
