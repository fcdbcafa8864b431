//! Tests of commands whose output is a closed pipe, a full disk, a device, a link or one of their
//! inputs.

#![expect(clippy::unwrap_used, reason = "a test")]

mod forks;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use embank::{Bank, BankOptions, TableConfig};
use tempfile::TempDir;

use crate::forks::{no_forks, spawn};

/// A name with control characters that clear a terminal's screen.
const ODD: &str = "odd\u{1b}[2J\nname";

fn embank(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}

fn output_of(command: &mut Command) -> Output {
    spawn(command).wait_with_output().unwrap()
}

fn status(command: &mut Command) -> i32 {
    let output = output_of(command);
    output.status.code().unwrap_or_else(|| panic!("{}: {}", output.status, text(&output)))
}

/// Returns a pipe without a reader.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

struct Test {
    dir: TempDir,
    bank: String,
}

impl Test {
    fn new() -> Self {
        let _no_forks = no_forks();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bank");
        let options = BankOptions { memory_budget_bytes: 2 << 20, ..BankOptions::default() };
        let bank = Bank::open(&path, options).unwrap();
        let user = bank.table("user", TableConfig::new(2)).unwrap();
        let keys: Vec<u64> = (0..2000).chain([u64::MAX]).collect();
        user.put(&keys, &vec![0.5; keys.len() * 2]).unwrap();
        bank.table(ODD, TableConfig::new(2)).unwrap().put(&[1], &[1.0, 2.0]).unwrap();
        bank.checkpoint(b"").unwrap();
        Self { dir, bank: path.display().to_string() }
    }

    fn damaged() -> Self {
        let test = Self::new();
        for log in fs::read_dir(Path::new(&test.bank).join("log")).unwrap() {
            let path = log.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            bytes[100] ^= 4;
            fs::write(&path, &bytes).unwrap();
        }
        test
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn path(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    fn export(&self, out: &str, more: &[&str]) -> Output {
        output_of(embank(&["export", &self.bank, "user", out]).args(more))
    }
}

/// A closed or full output does not change the exit status of a command that finds damage. In an
/// earlier version, `embank verify DAMAGED | head -1` returned 0.
#[test]
fn a_verdict_stands_whatever_becomes_of_the_output() {
    let (good, damaged) = (Test::new(), Test::damaged());
    let copy = damaged.path("repaired");
    let words: [(&str, Vec<&str>); 4] = [
        ("verify", vec!["verify", &damaged.bank]),
        ("verify as JSON", vec!["verify", &damaged.bank, "--json"]),
        ("dump", vec!["dump", &damaged.bank, "user"]),
        ("repair", vec!["repair", &damaged.bank, &copy]),
    ];
    for (what, words) in &words {
        for (stream, to) in [("closed", closed as fn() -> Stdio), ("full", full)] {
            let _ = fs::remove_dir_all(&copy);
            assert_eq!(status(embank(words).stdout(to())), 1, "{what}, {stream} output");
            let _ = fs::remove_dir_all(&copy);
            assert_eq!(status(embank(words).stderr(to())), 1, "{what}, {stream} errors");
        }
    }
    for words in
        [vec!["verify", &good.bank], vec!["stat", &good.bank], vec!["dump", &good.bank, "user"]]
    {
        assert_eq!(status(embank(&words).stdout(closed())), 0, "{words:?}");
        // Lost output makes a successful command fail.
        let output = output_of(embank(&words).stdout(full()));
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output).contains("writing to standard output"), "{}", text(&output));
    }
}

/// An error text that cannot be written does not change the exit status. An earlier version
/// panicked.
#[test]
fn errors_that_can_not_be_written_change_no_status() {
    let test = Test::new();
    let nowhere = test.path("nowhere");
    for words in [
        vec!["stat", &nowhere],
        vec!["verify", &nowhere],
        vec!["export", &test.bank, "none", "x.npy"],
        vec!["no-such-command"],
    ] {
        for to in [closed, full] {
            assert_eq!(status(embank(&words).stderr(to())), 2, "{words:?}");
            assert_eq!(status(embank(&words).stdout(to()).stderr(to())), 2, "{words:?}");
        }
    }
}

#[test]
fn causes_are_told_once() {
    let test = Test::new();
    let missing = test.path("missing.npy");
    for words in [
        vec!["import", &test.bank, "user", &missing, "--rows", &missing],
        vec!["export-delta", &test.bank, "/nowhere/delta", "--from", "1"],
        vec!["pipeline", "run", &missing, &missing, "--out", "x"],
    ] {
        let output = output_of(&mut embank(&words));
        let told = text(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.matches("No such file").count() <= 1, "{told}");
    }
}

#[test]
fn control_characters_in_names_are_escaped() {
    let test = Test::new();
    let missing = format!("{}/{ODD}", test.dir.path().display());
    let copy = test.path("copy\u{1b}[31m");
    for words in [
        vec!["stat", &test.bank],
        vec!["stat", &missing],
        vec!["export", &test.bank, ODD, &missing, "--format", "parquet"],
        vec!["export", &test.bank, "none\u{1b}[2J", "x.npy"],
        vec!["copy", &test.bank, &copy],
    ] {
        let told = text(&output_of(&mut embank(&words)));
        assert!(told.contains("\\u{1b}["), "{words:?}: {told}");
        assert!(!told.contains('\u{1b}') && !told.contains("2J\nname"), "{words:?}: {told}");
    }
}

#[test]
fn a_negative_key_is_taken() {
    let test = Test::new();
    for words in [
        vec!["--key=-1"],
        vec!["--key", "-1"],
        vec!["--key", "18446744073709551615"],
        vec!["--range=-1.."],
    ] {
        let output = output_of(embank(&["dump", &test.bank, "user"]).args(&words));
        assert_eq!(text(&output), "18446744073709551615 0.5 0.5\n", "{words:?}");
    }
    assert_eq!(status(embank(&["dump", &test.bank, "user", "--key=x"]).stderr(Stdio::null())), 2);
}

fn mkfifo(path: &Path) {
    assert!(spawn(Command::new("mkfifo").arg(path)).wait().unwrap().success());
}

/// An export to a device leaves the device in place. An earlier version, run by root, replaced
/// /dev/null by a file.
#[test]
fn an_export_replaces_no_device_pipe_or_link() {
    let test = Test::new();
    mkfifo(&test.at("pipe"));
    symlink("/dev/full", test.at("device")).unwrap();
    fs::create_dir(test.at("folder")).unwrap();
    let inside = format!("{}/BANK", test.bank);
    let log = format!("{}/log/x.npy", test.bank);
    for (out, expected) in [
        (&test.path("pipe"), "is a pipe"),
        (&test.path("device"), "is a device"),
        (&test.path("folder"), "is a directory"),
        (&inside, "files of the bank"),
        (&log, "files of the bank"),
    ] {
        for format in ["npy", "safetensors", "parquet"] {
            if format == "npy" && !out.contains("/bank/") {
                // For a table with keys, npy writes several files beside the path, so it cannot
                // write to a device.
                continue;
            }
            let output = test.export(out, &["--format", format]);
            assert_eq!(output.status.code(), Some(2), "{}", text(&output));
            assert!(text(&output).contains(expected), "{}", text(&output));
        }
    }
    assert!(fs::metadata(test.at("pipe")).unwrap().file_type().is_fifo());
    symlink("pipe", test.at("x.rows.npy")).unwrap();
    let output = test.export(&test.path("x.npy"), &[]);
    assert!(text(&output).contains("x.rows.npy is a pipe"), "{}", text(&output));
    assert!(!test.at("x.keys.npy").exists());

    fs::create_dir(test.at("real")).unwrap();
    for format in ["safetensors", "parquet"] {
        let (link, target) = (format!("latest.{format}"), format!("real/v1.{format}"));
        fs::write(test.at(&target), "old").unwrap();
        fs::set_permissions(test.at(&target), PermissionsExt::from_mode(0o600)).unwrap();
        symlink(&target, test.at(&link)).unwrap();
        let output = test.export(&test.path(&link), &[]);
        assert!(output.status.success(), "{}", text(&output));
        assert!(test.at(&link).is_symlink());
        let found = fs::metadata(test.at(&target)).unwrap();
        assert!(found.len() > 2000 && found.permissions().mode() & 0o777 == 0o600);
    }
}

#[test]
fn parquet_is_streamed_and_other_formats_say_why_not() {
    let test = Test::new();
    let streamed = test.export("-", &["--format", "parquet", "--json"]);
    assert!(streamed.status.success(), "{}", text(&streamed));
    assert!(streamed.stdout.starts_with(b"PAR1") && streamed.stdout.ends_with(b"PAR1"));
    let report: serde_json::Value = serde_json::from_slice(&streamed.stderr).unwrap();
    assert_eq!((&report["rows"], &report["bytes"]), (&2001.into(), &streamed.stdout.len().into()));
    fs::write(test.at("s.parquet"), &streamed.stdout).unwrap();
    let words = ["import", &test.bank, "user", &test.path("s.parquet")];
    assert_eq!(status(&mut embank(&words)), 0);
    for format in ["npy", "safetensors"] {
        let refused = test.export("-", &["--format", format]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused).contains("only Parquet"), "{}", text(&refused));
    }
    assert!(!text(&test.export("-", &[])).is_empty());
    let mut command = embank(&["export", &test.bank, "user", "-", "--format", "parquet"]);
    assert_eq!(status(command.stdout(closed())), 0);
    let mut command = embank(&["export", &test.bank, "user", "-", "--format", "parquet"]);
    assert_eq!(status(command.stdout(full())), 2);
}

/// Writes a pipeline with one output, `row`, and one input row. Returns the pipeline's path.
fn pipeline(test: &Test) -> String {
    let spec = output_of(&mut embank(&["pipeline", "criteo"]));
    fs::write(test.at("spec.json"), &spec.stdout).unwrap();
    let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
    fs::write(test.at("rows.tsv"), row).unwrap();
    test.path("spec.json")
}

/// The command refuses an output that is also an input. An earlier version replaced the input.
#[test]
fn a_pipeline_that_would_replace_its_input_is_refused() {
    let test = Test::new();
    let (spec, own) = (pipeline(&test), test.path("own"));
    let run = |input: &str, out: &str| {
        let words = ["pipeline", "run", &spec, input, "--out", out, "--format", "packed"];
        output_of(&mut embank(&words))
    };
    let made = run(&test.path("rows.tsv"), &own);
    assert!(made.status.success(), "{}", text(&made));
    let before = fs::read(test.at("own/row.bin")).unwrap();
    fs::create_dir(test.at("links")).unwrap();
    symlink("../own/row.bin", test.at("links/row.bin")).unwrap();
    fs::hard_link(test.at("own/row.bin"), test.at("second.bin")).unwrap();
    for (input, out) in [
        (test.path("own/row.bin"), own.clone()),
        (test.path("own/../own/row.bin"), own.clone()),
        (test.path("links/row.bin"), own.clone()),
        (test.path("own/row.bin"), test.path("links")),
        (test.path("second.bin"), own.clone()),
    ] {
        let refused = run(&input, &out);
        assert_eq!(refused.status.code(), Some(2), "{input} {out}: {}", text(&refused));
        assert!(text(&refused).contains("take the place of the input"), "{}", text(&refused));
        assert!(fs::read(test.at("own/row.bin")).unwrap() == before);
    }
    let streamed = run(&test.path("rows.tsv"), "-");
    assert!(streamed.status.success() && streamed.stdout == before, "{}", text(&streamed));
}

/// A run that a signal ends leaves no hidden files. In an earlier version they stayed.
#[test]
fn a_run_that_a_signal_ends_leaves_nothing() {
    for (name, signal) in [("INT", 2), ("TERM", 15), ("KILL", 9)] {
        let test = Test::new();
        let spec = pipeline(&test);
        mkfifo(&test.at("pipe"));
        let words = ["pipeline", "run", &spec, &test.path("pipe"), "--out", &test.path("out")];
        let mut run = spawn(&mut embank(&words));
        // This open returns when the run begins to read. The run has made its outputs by then.
        let mut rows = File::options().write(true).open(test.at("pipe")).unwrap();
        rows.write_all(&fs::read(test.at("rows.tsv")).unwrap()).unwrap();
        // A shell may have started this test with SIGINT ignored. The run then continues, and ends
        // when its input ends.
        let script = format!("kill -{name} {}", run.id());
        assert!(spawn(Command::new("sh").args(["-c", &script])).wait().unwrap().success());
        drop(rows);
        let ended = run.wait().unwrap();
        let left: Vec<_> =
            fs::read_dir(test.at("out")).unwrap().map(|of| of.unwrap().file_name()).collect();
        match ended.signal() {
            Some(found) => assert!(found == signal && left.is_empty(), "{name}: {left:?}"),
            None => assert_eq!(left, ["row.npy"], "{name}"),
        }
    }
}
