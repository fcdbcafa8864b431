//! Tests of the commands on fleets.

#![expect(clippy::unwrap_used, reason = "a test")]

mod forks;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use embank::fleet::{FleetPlan, Routing, Shard, ShardView, Taken, shard_path};
use embank::{Bank, BankOptions, TableConfig};
use serde_json::Value;

use crate::forks::{no_forks, spawn};

const SHARDS: u32 = 2;
const ROWS: u64 = 100;

fn embank(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(&mut command).wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}

fn json(arguments: &[&str]) -> (Value, i32) {
    let output = embank(&[arguments, &["--json"]].concat());
    let found = serde_json::from_slice(&output.stdout);
    (found.unwrap_or_else(|_| panic!("{}", text(&output))), output.status.code().unwrap())
}

/// Makes a fleet of two shards, with two sets after set 0.
fn fleet(dir: &Path) {
    let _no_forks = no_forks();
    let options =
        BankOptions { memory_budget_bytes: 2 << 20, checkpoints_kept: 1, ..BankOptions::default() };
    let open = |number| {
        let bank = Bank::open(shard_path(dir, number), options.clone()).unwrap();
        let shard = Shard::open(&bank, number, SHARDS, 2).unwrap();
        (bank, shard)
    };
    let mut shards: Vec<(Bank, Shard)> = (0..SHARDS).map(open).collect();
    let views: Vec<ShardView> = shards.iter().map(|(_, shard)| shard.view().unwrap()).collect();
    let plan = FleetPlan::of(&views).unwrap();
    for (bank, shard) in &mut shards {
        assert_eq!(shard.settle(bank, &plan, None).unwrap(), None);
    }
    for step in 0..3 {
        let routing = Routing::new("user", SHARDS).unwrap();
        for (number, (bank, _)) in (0..).zip(&shards).filter(|_| step > 0) {
            let table = bank.table("user", TableConfig::new(1)).unwrap();
            let own: Vec<u64> = (0..ROWS).filter(|&key| routing.shard_of(key) == number).collect();
            table.put(&own, &vec![step as f32; own.len()]).unwrap();
        }
        let taken: Vec<Taken> =
            shards.iter_mut().map(|(bank, shard)| shard.take(bank).unwrap()).collect();
        for (bank, shard) in &mut shards {
            shard.commit(bank, &taken, b"blob").unwrap();
        }
    }
}

#[test]
fn sets_tells_which_sets_are_complete() {
    let dir = tempfile::tempdir().unwrap();
    fleet(dir.path());
    let path = dir.path().to_str().unwrap();
    let output = embank(&["sets", path]);
    assert!(output.status.success(), "{}", text(&output));
    let lines: Vec<String> = text(&output).lines().map(str::to_owned).collect();
    assert!(lines[0].ends_with(", 2 shards"), "{lines:?}");
    assert_eq!(
        lines[1..],
        [
            "set  checkpoint of each shard     state",
            "1                         2 2  complete",
            "2                         3 3  complete",
        ]
    );
    let (report, status) = json(&["sets", path]);
    assert_eq!((status, &report["newest"]), (0, &Value::from(2)));
    assert_eq!(report["sets"][1]["checkpoints"], serde_json::json!([3, 3]));
    assert_eq!(report["problems"], serde_json::json!([]));
    Bank::roll_back(shard_path(dir.path(), 1), 2).unwrap();
    let output = embank(&["sets", path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("problem: set 2: shard 1 lacks checkpoint 3"), "{output:?}");
    fs::rename(shard_path(dir.path(), 1), dir.path().join("away")).unwrap();
    let (report, status) = json(&["sets", path]);
    assert_eq!((status, &report["newest"]), (1, &Value::Null));
    assert!(report["problems"][0].as_str().unwrap().contains("shard-00001"), "{report}");
    let output = embank(&["sets", dir.path().join("away").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("expected a fleet"), "{}", text(&output));
}

#[test]
fn a_damaged_shard_file_is_a_problem_of_the_fleet() {
    let dir = tempfile::tempdir().unwrap();
    fleet(dir.path());
    let path = dir.path().to_str().unwrap();
    for shard in 0..SHARDS {
        // At the end no file SHARD can be read.
        fs::write(shard_path(dir.path(), shard).join("SHARD"), "damage").unwrap();
        for command in ["sets", "verify"] {
            let output = embank(&[command, path]);
            assert_eq!(output.status.code(), Some(1), "{command}: {}", text(&output));
            for damaged in 0..=shard {
                let line = format!("problem: {path}/shard-{damaged:05}/SHARD is damaged");
                assert!(text(&output).contains(&line), "{command}: {}", text(&output));
            }
        }
    }
}

#[test]
fn a_shard_of_a_newer_format_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    fleet(dir.path());
    let path = shard_path(dir.path(), 1).join("SHARD");
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] += 1;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    for command in ["verify", "sets"] {
        let output = embank(&[command, dir.path().to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{command}: {}", text(&output));
        for part in [path.to_str().unwrap(), "version 2", "not damaged", "use a newer Embank"] {
            assert!(text(&output).contains(part), "{command}: {}", text(&output));
        }
    }
}

#[test]
fn verify_checks_all_shards_and_the_sets() {
    let dir = tempfile::tempdir().unwrap();
    fleet(dir.path());
    let path = dir.path().to_str().unwrap();
    let output = embank(&["verify", path]);
    assert!(output.status.success(), "{}", text(&output));
    for expected in
        ["shard 0\n", "shard 1\n", "  no damage\n", "2                         3 3  complete"]
    {
        assert!(text(&output).contains(expected), "{expected}: {}", text(&output));
    }
    let (report, status) = json(&["verify", path]);
    assert_eq!((status, &report["clean"]), (0, &Value::Bool(true)));
    assert_eq!(report["shards"].as_array().unwrap().len(), 2);
    let output = embank(&["verify", path, "--checkpoint", "3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("leave out --checkpoint"), "{}", text(&output));
    let record = shard_path(dir.path(), 0).join("sets/0000000002");
    let mut bytes = fs::read(&record).unwrap();
    bytes[20] ^= 1;
    fs::write(&record, bytes).unwrap();
    let output = embank(&["verify", path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("shard-00000/sets/0000000002"), "{}", text(&output));
    fs::remove_file(&record).unwrap();
    let manifest = shard_path(dir.path(), 1).join("checkpoints/0000000003/manifest");
    fs::write(manifest, "damage").unwrap();
    let (report, status) = json(&["verify", path]);
    assert_eq!((status, &report["shards"][0]["bank"]["clean"]), (1, &Value::Bool(true)));
    assert_eq!(report["shards"][1]["bank"]["clean"], Value::Bool(false));
}

/// The fleet's next opening would lose what such a command has done.
#[test]
fn a_command_that_would_change_one_shard_refuses() {
    let dir = tempfile::tempdir().unwrap();
    fleet(dir.path());
    let shard = shard_path(dir.path(), 1);
    let path = shard.to_str().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (spec, rows, out) = (file("spec.json"), file("rows.tsv"), file("out"));
    fs::write(&spec, embank(&["pipeline", "criteo"]).stdout).unwrap();
    fs::write(&rows, format!("1{}{}\n", "\t1".repeat(13), "\ta".repeat(26))).unwrap();
    let checkpoints = || json(&["checkpoints", path]).0;
    let before = checkpoints();
    for arguments in [
        &["evict", path, "user", "--norm-below", "9"][..],
        &["import", path, "user", &rows],
        &["compact", path],
        &["rollback", path, "2", "--yes"],
        &["rollback", path, "2"],
        &["apply-delta", path, &file("delta")],
        &["pipeline", "run", &spec, &rows, "--out", &out, "--bank", path],
    ] {
        let output = embank(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output));
        for expected in ["found shard 1 of 2 of fleet", "open the whole fleet (ShardedBank"] {
            assert!(text(&output).contains(expected), "{arguments:?}: {}", text(&output));
        }
    }
    assert_eq!(checkpoints(), before);
    assert!(!Path::new(&out).exists());
    // These commands change nothing, or make a bank of its own.
    for arguments in [
        &["evict", path, "user", "--norm-below", "9", "--dry-run"][..],
        &["dump", path, "user"],
        &["stat", path],
        &["verify", path],
        &["export", path, "user", &file("user.npy")],
        &["export-delta", path, &file("delta"), "--from", "2"],
        &["copy", path, &file("copy")],
        &["compact", &file("copy")],
        &["repair", path, &file("repaired")],
    ] {
        let output = embank(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    }
}

#[test]
fn reshard_makes_a_fleet_of_another_size() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    fleet(&old);
    let (old, new) = (old.to_str().unwrap(), dir.path().join("new"));
    let new = new.to_str().unwrap();
    let output = embank(&["reshard", old, new, "--shards", "3", "--memory", "12MiB"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(
        text(&output).contains("new: set 2, 100 rows, 2 shards before and 3 now"),
        "{output:?}"
    );
    assert!(embank(&["verify", new]).status.success());
    let (before, _) = json(&["sets", old]);
    let (after, _) = json(&["sets", new]);
    assert_eq!(after["shards"], 3);
    assert_eq!(after["sets"][0]["id"], before["sets"][1]["id"]);
    assert_ne!(after["fleet"], before["fleet"]);
    let output = embank(&["reshard", old, new, "--shards", "3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("give a directory that is empty"), "{}", text(&output));
    let output = embank(&["reshard", old, new, "--shards", "0"]);
    assert!(text(&output).contains("from 1 to 4096"), "{}", text(&output));
    Bank::roll_back(shard_path(Path::new(old), 1), 2).unwrap();
    let older = dir.path().join("older");
    let older = older.to_str().unwrap();
    let output = embank(&["reshard", old, older, "--shards", "1", "--memory", "4MiB"]);
    assert!(output.status.success(), "{}", text(&output));
    let warning = "warning: passed over set 2: shard 1 lacks checkpoint 3";
    assert!(String::from_utf8_lossy(&output.stderr).contains(warning), "{output:?}");
    assert!(text(&output).contains("older: set 1, 100 rows"), "{output:?}");
}
