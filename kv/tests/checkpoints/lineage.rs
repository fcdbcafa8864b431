//! Tests files from another line of history. Such a file comes from a copy that was opened for
//! writing and has changed, or from before a crash or a roll back. The bank treats it as damage and
//! returns no row of it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::reading::{by_hand, keys, rows_of};
use crate::common::{peek, put};
use embank_kv::inspect::{Blob, SalvageOptions, VerifyOptions, salvage, verify};
use embank_kv::{Error, Store, StoreOptions, TableId};

const ROWS: u64 = 4_000;
const BYTES: usize = 120;

fn options() -> StoreOptions {
    StoreOptions {
        page_size_bytes: Some(8 << 10),
        segment_size_bytes: Some(64 << 10),
        ..by_hand(8)
    }
}

fn open(dir: &Path) -> (Store, TableId) {
    let store = Store::open(dir, &options()).unwrap();
    let table = store.tables()[0].id;
    (store, table)
}

/// Puts all rows and takes a checkpoint.
fn write(store: &Store, table: TableId, version: u64) {
    put(store, table, &keys(ROWS), version, BYTES);
    store.checkpoint(&version.to_le_bytes()).unwrap();
}

/// Makes a closed bank with a checkpoint of version 1, in a new folder.
fn bank() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bank");
    let store = Store::open(&path, &options()).unwrap();
    let table = store.create_table("rows", BYTES as u32, b"settings").unwrap();
    write(&store, table, 1);
    (dir, path)
}

/// Returns the files of a folder of the bank, sorted by name.
fn files(dir: &Path, folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join(folder)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn damage(dir: &Path) -> Vec<String> {
    let report = verify(dir, &VerifyOptions::default(), &mut |_| ()).unwrap();
    report.damage.iter().map(ToString::to_string).collect()
}

/// Peeks each row alone, and asserts that the result is an error or the row's value of `version`.
/// Returns the number of errors.
fn errors_or_rows_of(store: &Store, table: TableId, version: u64) -> usize {
    let expected = rows_of(&keys(ROWS), version, BYTES);
    let right = |(key, expected): (u64, Option<Vec<u8>>)| match peek(store, table, &[key]) {
        Ok(rows) => {
            assert_eq!(rows[0], expected, "row {key} is of another line of history");
            true
        }
        Err(Error::Damaged { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    keys(ROWS).into_iter().zip(expected).filter(|pair| !right(pair.clone())).count()
}

/// Asserts that `verify` finds damage and names a diverged copy as its source. If the bank opens,
/// each row is an error or has `version`, and at least one row is an error.
fn is_noticed(dir: &Path, version: u64) {
    let found = damage(dir);
    assert!(!found.is_empty(), "verify finds nothing");
    assert!(found.iter().any(|what| what.contains("copy that has gone on")), "{found:?}");
    match Store::open(dir, &options()) {
        Ok(store) => {
            let table = store.tables()[0].id;
            assert!(errors_or_rows_of(&store, table, version) > 0);
        }
        Err(Error::Damaged { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_segment_of_a_copy_that_has_gone_on_is_damage() {
    let (dir, bank) = bank();
    let copy = dir.path().join("copy");
    Store::copy_checkpoint(&bank, None, &copy).unwrap();
    for (path, version) in [(&bank, 2), (&copy, 3)] {
        let (store, table) = open(path);
        write(&store, table, version);
    }
    assert!(damage(&bank).is_empty() && damage(&copy).is_empty());
    let common = fs::metadata(files(&bank, "log").last().unwrap()).unwrap().len();
    assert!(common > 0);
    let mut restored = 0;
    for from in files(&copy, "log").into_iter().skip(10) {
        let to = bank.join("log").join(from.file_name().unwrap());
        if fs::read(&from).unwrap() != fs::read(&to).unwrap() {
            fs::remove_file(&to).unwrap();
            fs::copy(&from, &to).unwrap();
            restored += 1;
        }
    }
    assert!(restored > 3, "{restored}");
    is_noticed(&bank, 2);
}

/// A log file that bank and copy share can be restored from the copy. The bank is sound afterwards.
#[test]
fn a_segment_that_bank_and_copy_share_can_be_restored() {
    let (dir, bank) = bank();
    let copy = dir.path().join("copy");
    Store::copy_checkpoint(&bank, None, &copy).unwrap();
    for (path, version) in [(&bank, 2), (&copy, 3)] {
        let (store, table) = open(path);
        write(&store, table, version);
    }
    let first = files(&bank, "log")[0].clone();
    fs::remove_file(&first).unwrap();
    fs::copy(copy.join("log").join(first.file_name().unwrap()), &first).unwrap();
    assert!(damage(&bank).is_empty());
    let (store, table) = open(&bank);
    assert_eq!(errors_or_rows_of(&store, table, 2), 0);
}

/// A drive may acknowledge writes and then lose them. After a crash it returns the older blocks,
/// which must count as damage.
#[test]
fn pages_of_before_a_crash_are_damage() {
    let (_dir, bank) = bank();
    let (store, table) = open(&bank);
    let at = store.stats().disk_write_bytes;
    put(&store, table, &keys(ROWS), 2, BYTES);
    let before = store.checkpoint(b"").unwrap();
    assert!(store.stats().disk_write_bytes > at);
    drop(store);
    let lost: Vec<_> =
        files(&bank, "log").into_iter().map(|file| (fs::read(&file).unwrap(), file)).collect();
    // Simulates a crash before the checkpoint's directory was durable: its pages are on disk, and
    // its directory is not.
    fs::remove_dir_all(bank.join(format!("checkpoints/{before:010}"))).unwrap();
    let (store, table) = open(&bank);
    write(&store, table, 3);
    drop(store);
    for (bytes, file) in lost {
        fs::write(file, bytes).unwrap();
    }
    is_noticed(&bank, 3);
}

#[test]
fn an_image_and_a_blob_of_a_checkpoint_that_was_rolled_back_are_damage() {
    for name in ["index.0000000002", "blob"] {
        let (_dir, bank) = bank();
        let (store, table) = open(&bank);
        write(&store, table, 2);
        drop(store);
        let file = bank.join("checkpoints/0000000002").join(name);
        let kept = fs::read(&file).unwrap();
        assert_eq!(Store::roll_back(&bank, 1).unwrap(), [2]);
        let (store, table) = open(&bank);
        // The new files get the lengths of the old files. They differ from the old files only in
        // their content and in the checkpoint id in their headers.
        put(&store, table, &keys(ROWS), 3, BYTES);
        assert_eq!(store.checkpoint(&2_u64.to_le_bytes()).unwrap(), 2);
        drop(store);
        assert!(damage(&bank).is_empty());
        let now = fs::read(&file).unwrap();
        assert_eq!(now.len(), kept.len(), "{name}");
        fs::write(&file, kept).unwrap();
        let found = damage(&bank);
        assert!(found.iter().any(|what| what.contains("copy that has gone on")), "{found:?}");
        let error = Store::open(&bank, &options()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }
}

/// The bank gets the newest checkpoint directory of a copy that took its own checkpoints. The log
/// of that checkpoint is not in the bank, so the bank must report damage.
#[test]
fn a_checkpoint_of_a_copy_that_has_gone_on_is_damage() {
    let (dir, bank) = bank();
    let copy = dir.path().join("copy");
    Store::copy_checkpoint(&bank, None, &copy).unwrap();
    for (path, versions) in [(&bank, 2..3), (&copy, 3..5)] {
        let (store, table) = open(path);
        versions.for_each(|version| write(&store, table, version));
    }
    let (from, to) = (copy.join("checkpoints/0000000003"), bank.join("checkpoints/0000000003"));
    fs::create_dir(&to).unwrap();
    for file in files(&from, "") {
        fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
    let found = damage(&bank);
    assert!(found.iter().any(|what| what.contains("openings")), "{found:?}");
    Store::open(&bank, &options()).unwrap_err();
    assert_eq!(Store::roll_back(&bank, 2).unwrap(), [3]);
    let (store, table) = open(&bank);
    assert_eq!(errors_or_rows_of(&store, table, 2), 0);
}

/// Opens the bank many times, and asserts that no row is lost. Some openings write nothing, some
/// rows get into no checkpoint, and compaction frees the pages of the first openings.
#[test]
fn a_bank_that_is_opened_often_keeps_every_row() {
    let (_dir, bank) = bank();
    for version in 2..30 {
        let (store, table) = open(&bank);
        assert_eq!(errors_or_rows_of(&store, table, version - 1), 0);
        if version % 3 == 0 {
            put(&store, table, &keys(ROWS / 2), 1000 + version, BYTES);
            drop(store);
            drop(open(&bank));
            let (store, table) = open(&bank);
            write(&store, table, version);
            continue;
        }
        write(&store, table, version);
        if version % 7 == 0 {
            store.compact().unwrap();
            store.checkpoint(&version.to_le_bytes()).unwrap();
        }
    }
    assert_eq!(damage(&bank), [""; 0]);
    let reader = Store::open_read_only(&bank, &options(), None).unwrap();
    assert_eq!(errors_or_rows_of(&reader, reader.tables()[0].id, 29), 0);
}

/// The test removes the only manifest that lists the opening that wrote the last pages. Salvage
/// then reads that opening's salt (the random number in each of its pages) from the pages' headers.
#[test]
fn what_a_lost_manifest_named_is_salvaged() {
    let (dir, bank) = bank();
    let (store, table) = open(&bank);
    write(&store, table, 2);
    drop(store);
    fs::remove_file(bank.join("checkpoints/0000000002/manifest")).unwrap();
    let new = dir.path().join("new");
    let report = salvage(&bank, &new, &SalvageOptions::default(), &mut |_| {}).unwrap();
    assert_eq!(report.checkpoint, 2);
    assert_eq!(report.blob, Blob::Kept(8));
    let (store, table) = open(&new);
    assert_eq!(errors_or_rows_of(&store, table, 2), 0);
}
