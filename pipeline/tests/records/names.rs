//! When a record file gets its name.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::process::Command;

use embank_pipeline::{Error, RecordFile, RecordOptions, RecordWriter};

use super::{assert_rows, batches, outputs, write};

/// A test sets this environment variable in its child process.
const DIRECTORY: &str = "EMBANK_TEST_DIRECTORY";

#[test]
fn a_file_has_its_name_only_when_it_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.records");
    write(&path, 0, 10, RecordOptions::default());
    // A new file takes the place of an old one at `finish`.
    for is_finished in [false, true] {
        let options = RecordOptions { rows_per_group: 100, ..RecordOptions::default() };
        let mut writer = RecordWriter::create(&path, &outputs(), options).unwrap();
        assert_eq!(writer.path(), path);
        batches(500, 1000).iter().try_for_each(|batch| writer.write(batch)).unwrap();
        assert_rows(&path, 0, 10);
        if is_finished {
            writer.finish().unwrap();
            assert_rows(&path, 500, 1000);
        } else {
            drop(writer);
            assert_rows(&path, 0, 10);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
    // A reader that opened the old file keeps it.
    let old = RecordFile::open(&path).unwrap();
    write(&path, 7, 7, RecordOptions::default());
    assert_eq!(old.read(0).unwrap().rows(), 100);
    assert_rows(&path, 7, 7);
}

#[test]
fn a_dropped_writer_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.records");
    let mut writer = RecordWriter::create(&path, &outputs(), RecordOptions::default()).unwrap();
    writer.write(&batches(0, 10)[0]).unwrap();
    assert!(!path.exists());
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_is_no_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    symlink("/dev/full", at("device")).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    for name in ["pipe", "device", "folder"] {
        let created = RecordWriter::create(&at(name), &outputs(), RecordOptions::default());
        let error = created.unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        let error = RecordFile::open(&at(name)).unwrap_err();
        assert!(matches!(error, Error::Io { .. }) && error.to_string().contains(name), "{error}");
    }
    let error = RecordFile::open(&at("none")).unwrap_err();
    assert!(
        matches!(&error, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound),
        "{error}"
    );
}

/// Runs in a child process of the next test, in which files may have at most 64 KiB.
#[test]
#[ignore = "run by a_full_disk_leaves_no_file"]
fn writes_more_than_fits() {
    let Some(dir) = std::env::var_os(DIRECTORY) else { return };
    let path = std::path::Path::new(&dir).join("rows.records");
    let options = || RecordOptions { rows_per_group: 100, ..RecordOptions::default() };
    let batches = batches(0, 5000);
    let mut writer = RecordWriter::create(&path, &outputs(), options()).unwrap();
    let failed = batches.iter().position(|batch| writer.write(batch).is_err()).unwrap();
    assert!(failed > 0 && failed < batches.len() - 1, "batch {failed}");
    for _ in 0..2 {
        let error = writer.write(&batches[0]).unwrap_err().to_string();
        assert!(error.contains("rows.records") && error.contains("earlier write"), "{error}");
    }
    assert!(matches!(writer.finish(), Err(Error::Io { .. })));

    // The last group fails in `finish`.
    let options = RecordOptions { rows_per_group: 65_536, ..options() };
    let mut writer = RecordWriter::create(&path, &outputs(), options).unwrap();
    batches.iter().try_for_each(|batch| writer.write(batch)).unwrap();
    let error = writer.finish().unwrap_err();
    assert!(matches!(&error, Error::Io { doing: "write", .. }), "{error}");
}

/// Regression guard: a file whose disk is full must not get its name.
#[test]
fn a_full_disk_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    // 128 blocks of 512 bytes. With the signal ignored, a write beyond the limit returns an error.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "names::writes_more_than_fits", "--ignored", "--nocapture"])
        .env(DIRECTORY, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
