//! Tests that a closed or full output does not end a run. Only a full standard output changes the
//! exit status.

mod support;

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Command, Stdio};

use support::{command, text, ycsb};

const RUN: &str =
    "run --engine map --rows 100 --value-size 8 --operations 100 --warm-up-operations 1";
const COMPARE: &str = "compare --engines map,embank --rows 100 --value-size 8 --operations 100 --rounds 1 \
                       --warm-up-operations 1 --memory-budget 4MiB";
const LOAD: &str = "load --rows 100 --value-size 8 --memory-budget 4MiB";

/// Returns the writing end of a pipe without a reader.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").expect("the device")
}

/// Regression test: `embank-ycsb run | head` panicked, with exit status 101, when `head` closed the
/// pipe.
#[test]
fn a_closed_pipe_does_not_end_a_run() {
    for arguments in [RUN, COMPARE, LOAD] {
        let directory = tempfile::tempdir().unwrap();
        let output = command(directory.path(), arguments).stdout(closed_pipe()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", text(&output));
        assert_eq!(text(&output), "", "{arguments}");
    }
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let mut run = command(directory.path(), RUN);
    let mut child = run.arg("--json").arg(&json).stdout(Stdio::piped()).spawn().unwrap();
    let mut byte = [0];
    child.stdout.take().unwrap().read_exact(&mut byte).unwrap();
    assert!(child.wait().unwrap().success(), "the reader took one byte and left");
    assert!(json.exists(), "the run went on to its report");
}

#[test]
fn a_failed_run_fails_through_a_closed_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let run = format!("{RUN} --workload e");
    let output = command(directory.path(), &run).stdout(closed_pipe()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let output = command(directory.path(), &run).stderr(closed_pipe()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

/// If text cannot be written, the program first writes the JSON report and then fails.
#[test]
fn a_full_standard_output_is_an_error_after_the_run() {
    for arguments in [RUN, COMPARE, LOAD] {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("report.json");
        let mut run = command(directory.path(), arguments);
        if arguments != LOAD {
            run.arg("--json").arg(&json);
        }
        let output = run.stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", text(&output));
        assert!(text(&output).contains("writing to standard output"), "{}", text(&output));
        assert_eq!(json.exists(), arguments != LOAD);
    }
}

#[test]
fn a_full_or_closed_standard_error_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    // The unknown property causes a warning on standard error.
    let run = format!("{RUN} -p nonsense=1");
    for errors in [Stdio::from(full()), closed_pipe()] {
        let output = command(directory.path(), &run).stderr(errors).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    }
    for errors in [Stdio::from(full()), closed_pipe()] {
        let bad = command(directory.path(), "run --nonsense").stderr(errors).output().unwrap();
        assert_eq!(bad.status.code(), Some(2));
    }
}

#[test]
fn help_goes_through_a_closed_pipe() {
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let mut help = Command::new(env!("CARGO_BIN_EXE_embank-ycsb"));
        let output = help.args(arguments).stdout(closed_pipe()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output));
        let output = help.stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output));
    }
}

/// Regression test: the program failed when it printed a command line with an argument that is not
/// UTF-8.
#[test]
fn a_directory_that_is_no_utf_8_is_taken() {
    use std::os::unix::ffi::OsStrExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join(std::ffi::OsStr::from_bytes(b"store \xff"));
    let output = ycsb(&directory, RUN);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}
