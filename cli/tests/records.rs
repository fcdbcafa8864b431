//! Tests of `embank records` as users and scripts start it.
#![expect(clippy::unwrap_used, reason = "a test")]

mod forks;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use embank_pipeline::{
    FeedInput, FeedOptions, Pipeline, RecordFile, RecordOptions, RecordWriter, RunOptions, Spec,
};
use serde_json::Value;

use crate::forks::{no_forks, spawn};

/// Runs `embank records` in a directory.
fn records(dir: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
    command.current_dir(dir).arg("records").args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(&mut command).wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(output)))
}

/// Makes a directory with a file of 1,000 rows in groups of 300, plain and compressed.
fn files() -> tempfile::TempDir {
    let _no_forks = no_forks();
    let dir = tempfile::tempdir().unwrap();
    for (name, zstd_level) in [("plain.records", None), ("zstd.records", Some(3))] {
        let options = RunOptions { threads: 1, ..RunOptions::default() };
        let pipeline = Pipeline::new(&Spec::criteo(100), &options).unwrap();
        let metadata = [("key".to_owned(), "odd\u{1b}[2J".to_owned())].into();
        let options = RecordOptions { rows_per_group: 300, zstd_level, metadata };
        let path = dir.path().join(name);
        let mut writer = RecordWriter::create(&path, pipeline.outputs(), options).unwrap();
        let row = |n: u32| format!("1{}{}\n", "\t7".repeat(13), format!("\t{n:x}").repeat(26));
        let text: String = (0..1000).map(row).collect();
        let inputs = vec![FeedInput::memory("rows", text.into_bytes())];
        for batch in pipeline.feed(inputs, &FeedOptions::default()).unwrap() {
            writer.write(&batch.unwrap()).unwrap();
        }
        writer.finish().unwrap();
    }
    dir
}

fn flip(path: &Path, at: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at as usize] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn stat_tells_what_files_hold() {
    let dir = files();
    let output = records(dir.path(), "stat plain.records zstd.records");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for told in [
        "file          plain.records, ",
        "rows          1,000 in 4 groups, 156.25 KiB",
        "compressed    0 groups",
        "compressed    4 groups",
        "fidelity      full, 160.0 B a row",
        "metadata      key: odd\\u{1b}[2J",
        "output   dtype  columns\nrow     bits32       40",
    ] {
        assert!(text(&output).contains(told), "{told}: {}", text(&output));
    }
    let report = json(&records(dir.path(), "stat zstd.records --json"));
    let file = &report["files"][0];
    assert_eq!((&file["rows"], &file["groups"]), (&1000.into(), &4.into()));
    assert_eq!((&file["compressed_groups"], &file["bytes"]), (&4.into(), &160_000.into()));
    assert_eq!(file["outputs"][0]["dtype"], "bits32");
    assert_eq!(file["outputs"][0]["columns"].as_array().unwrap().len(), 40);
    assert_eq!(file["fidelities"][0]["name"], "full");
    assert!(file["fidelities"][0]["mean_row_bytes"].as_f64().unwrap() < 100.0);
    assert_eq!(report["damage"], Value::Array(Vec::new()));
}

#[test]
fn verify_goes_on_and_names_file_and_group() {
    let dir = files();
    let sound = records(dir.path(), "verify plain.records zstd.records");
    assert_eq!(sound.status.code(), Some(0), "{}", text(&sound));
    let told = "zstd.records: 4 of 4 groups and 1,000 of 1,000 rows found sound\nno damage\n";
    assert!(text(&sound).contains(told), "{}", text(&sound));
    assert!(text(&sound).contains("0 of 2 files are damaged"), "{}", text(&sound));

    let path = dir.path().join("plain.records");
    let groups = RecordFile::open(&path).unwrap().groups().to_vec();
    for group in [1, 3] {
        flip(&path, groups[group].offset + 8);
    }
    fs::write(dir.path().join("cut.records"), &fs::read(&path).unwrap()[..9000]).unwrap();
    let all = "verify cut.records plain.records zstd.records";
    let output = records(dir.path(), all);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    for told in [
        "plain.records: 2 of 4 groups and 600 of 1,000 rows found sound\ndamage in 2 places:",
        &format!("  plain.records: group 1 at {}: its checksum is 0x", groups[1].offset),
        &format!("  plain.records: group 3 at {}: its checksum is 0x", groups[3].offset),
        "damage in 1 places:\n  cut.records at 8936: it does not end as a record file",
        "zstd.records: 4 of 4 groups",
        "2 of 3 files are damaged",
    ] {
        assert!(text(&output).contains(told), "{told}: {}", text(&output));
    }
    let report = json(&records(dir.path(), &format!("{all} --json")));
    assert_eq!((&report["clean"], &report["damaged_files"]), (&false.into(), &2.into()));
    let damage = &report["files"][1]["damage"];
    assert_eq!((&damage[0]["group"], &damage[1]["group"]), (&1.into(), &3.into()));
    assert_eq!(damage[0]["offset"], groups[1].offset);
    assert_eq!(report["files"][0]["damage"][0]["group"], Value::Null);

    // The index of a file with damaged groups is intact.
    assert_eq!(records(dir.path(), "stat plain.records").status.code(), Some(0));
    let output = records(dir.path(), "stat cut.records zstd.records");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("damage in 1 places:\n  cut.records at 8936"));
    assert!(text(&output).contains("rows          1,000"), "{}", text(&output));
}

#[test]
fn newer_and_missing_files_are_no_damage() {
    let dir = files();
    let path = dir.path().join("plain.records");
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..64]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    for command in ["stat", "verify"] {
        let output = records(dir.path(), &format!("{command} plain.records"));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        for told in ["plain.records: it has version 9", "use a newer Embank"] {
            assert!(text(&output).contains(told), "{}", text(&output));
        }
        let output = records(dir.path(), &format!("{command} none.records"));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains("none.records"), "{}", text(&output));
        let output = records(dir.path(), command);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    }
}
