//! Tests that a bank stays in the directory that it opened. If its path later leads to another
//! bank, that bank is not touched.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::reading::{by_hand, keys, rows_of};
use crate::common::{PutAll, peek, put, value};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{Clock, Error, Store, StoreOptions, TableId};

const ROWS: u64 = 2_000;
const BYTES: usize = 120;

fn options() -> StoreOptions {
    StoreOptions {
        page_size_bytes: Some(8 << 10),
        segment_size_bytes: Some(64 << 10),
        ..by_hand(2)
    }
}

/// Opens the bank, or makes it. Creates its table if it has none.
fn open(dir: &Path) -> (Store, TableId) {
    let store = Store::open(dir, &options()).unwrap();
    let table = store.tables().first().map(|table| table.id);
    let table = table.unwrap_or_else(|| store.create_table("rows", BYTES as u32, b"").unwrap());
    (store, table)
}

fn try_put(store: &Store, table: TableId, keys: &[u64], version: u64) -> Result<(), Error> {
    let values: Vec<_> = keys.iter().map(|&key| value(key, version, BYTES)).collect();
    store.execute(table, keys, Clock::Keep, &mut PutAll(&values)).map(|_| ())
}

/// Puts all rows, moves the rows on disk to the log's tail, and takes a checkpoint.
fn train(store: &Store, table: TableId, version: u64) -> Result<u64, Error> {
    put(store, table, &keys(ROWS), version, BYTES);
    store.compact()?;
    store.checkpoint(&version.to_le_bytes())
}

/// Makes a bank whose rows have `version`, and closes it.
fn bank(dir: &Path, version: u64) {
    let (store, table) = open(dir);
    (1..=version).for_each(|version| _ = train(&store, table, version).unwrap());
}

/// Asserts that the bank in the directory is sound and that its rows have `version`.
fn holds(dir: &Path, version: u64) {
    let report = verify(dir, &VerifyOptions::default(), &mut |_| ()).unwrap();
    assert!(report.is_clean(), "{:?}", report.damage);
    let store = Store::open_read_only(dir, &options(), None).unwrap();
    assert_eq!(store.reading().unwrap().blob, version.to_le_bytes());
    let table = store.tables()[0].id;
    assert_eq!(peek(&store, table, &keys(ROWS)).unwrap(), rows_of(&keys(ROWS), version, BYTES));
}

/// Returns the path and content of each file below a directory.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// Exchanges two directories.
fn exchange(a: &Path, b: &Path) {
    let aside = a.with_extension("aside");
    fs::rename(a, &aside).unwrap();
    fs::rename(b, a).unwrap();
    fs::rename(aside, b).unwrap();
}

fn is_moved(result: Result<u64, Error>, is_replaced: bool) {
    match result {
        Err(Error::DirectoryMoved { replaced, .. }) => assert_eq!(replaced, is_replaced),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bank_that_takes_the_place_of_an_open_one_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let (clicks, other) = (dir.path().join("clicks"), dir.path().join("other"));
    bank(&other, 5);
    let (store, table) = open(&clicks);
    train(&store, table, 1).unwrap();
    train(&store, table, 2).unwrap();
    let before = files(&other);
    exchange(&clicks, &other);
    // Now the path of the open bank leads to the bank `other`.
    put(&store, table, &keys(ROWS / 100), 3, BYTES);
    is_moved(store.checkpoint(b"lost"), true);
    is_moved(store.checkpoint(b"lost"), true);
    exchange(&clicks, &other);
    assert_eq!(files(&other), before, "no byte of the other bank has changed");
    train(&store, table, 4).unwrap();
    drop(store);
    holds(&clicks, 4);
    holds(&other, 5);
}

/// The log can't grow while the path leads to another bank: new segments and removals are refused,
/// as checkpoints are. This holds even if the other bank is also open.
#[test]
fn a_log_that_grows_after_an_exchange_stops() {
    let dir = tempfile::tempdir().unwrap();
    let (clicks, other) = (dir.path().join("clicks"), dir.path().join("other"));
    bank(&other, 5);
    let (store, table) = open(&clicks);
    train(&store, table, 2).unwrap();
    let (owner, owned) = open(&other);
    exchange(&clicks, &other);
    let before = files(&clicks);
    let mut refused = None;
    // Puts more rows than memory holds, so that the log needs a new segment.
    for first in (ROWS..100_000).step_by(1000) {
        if let Err(error) = try_put(&store, table, &(first..first + 1000).collect::<Vec<_>>(), 3) {
            refused = Some(error.to_string());
            break;
        }
    }
    let refused = refused.expect("the log has no room without a new segment");
    assert!(refused.contains("replaced by another directory"), "{refused}");
    store.compact().unwrap_err();
    store.checkpoint(b"").unwrap_err();
    assert_eq!(files(&clicks), before);
    // The other bank's store is refused too. It works again when its directory is back in place.
    is_moved(owner.checkpoint(b""), true);
    exchange(&clicks, &other);
    train(&owner, owned, 6).unwrap();
    drop((store, owner));
    holds(&other, 6);
    holds(&clicks, 2);
}

#[test]
fn a_bank_whose_directory_was_moved_says_so_and_goes_on_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let (clicks, elsewhere) = (dir.path().join("clicks"), dir.path().join("elsewhere"));
    let (store, table) = open(&clicks);
    train(&store, table, 1).unwrap();
    fs::rename(&clicks, &elsewhere).unwrap();
    is_moved(store.checkpoint(b""), false);
    assert!(!clicks.exists());
    fs::rename(&elsewhere, &clicks).unwrap();
    train(&store, table, 2).unwrap();
    drop(store);
    holds(&clicks, 2);
}

/// A bank resolves its path when it is opened. A symbolic link that changes later has no effect on
/// the open bank.
#[test]
fn a_link_that_is_switched_changes_nothing_for_an_open_bank() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("v1")).unwrap();
    bank(&path("v2"), 3);
    symlink("v1", path("current")).unwrap();
    let (store, table) = open(&path("current"));
    train(&store, table, 1).unwrap();
    let reader = Store::open_read_only(&path("current"), &options(), None).unwrap();
    fs::remove_file(path("current")).unwrap();
    symlink("v2", path("current")).unwrap();
    let before = files(&path("v2"));
    train(&store, table, 2).unwrap();
    assert_eq!(reader.refresh().unwrap(), 2);
    assert_eq!(files(&path("v2")), before);
    drop(store);
    holds(&path("v1"), 2);
    holds(&path("v2"), 3);
}

/// An open bank keeps using the folders `log` and `checkpoints` that it opened, even if other
/// folders take their names.
#[test]
fn a_log_or_checkpoints_that_are_exchanged_are_not_touched() {
    for folder in ["log", "checkpoints"] {
        let dir = tempfile::tempdir().unwrap();
        let (clicks, other) = (dir.path().join("clicks"), dir.path().join("other"));
        bank(&other, 5);
        let (store, table) = open(&clicks);
        train(&store, table, 1).unwrap();
        exchange(&clicks.join(folder), &other.join(folder));
        let before = files(&clicks.join(folder));
        for version in 2..4 {
            // The put fails only if it must write a page, so its result is ignored.
            let _ = try_put(&store, table, &keys(ROWS / 100), version);
            let refused = store.compact().and(store.checkpoint(b""));
            refused.unwrap_err();
        }
        assert_eq!(files(&clicks.join(folder)), before);
        drop(store);
        exchange(&clicks.join(folder), &other.join(folder));
        holds(&clicks, 1);
        holds(&other, 5);
    }
}

#[test]
fn a_reader_of_a_directory_that_was_replaced_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (clicks, other) = (dir.path().join("clicks"), dir.path().join("other"));
    bank(&clicks, 1);
    bank(&other, 5);
    let reader = Store::open_read_only(&clicks, &options(), None).unwrap();
    let table = reader.tables()[0].id;
    exchange(&clicks, &other);
    is_moved(reader.refresh(), true);
    let rows = peek(&reader, table, &keys(ROWS)).unwrap();
    assert_eq!(rows, rows_of(&keys(ROWS), 1, BYTES));
    exchange(&clicks, &other);
    assert_eq!(reader.refresh().unwrap(), 1);
}

/// A user may remove the file LOCK. The bank stays locked, because the directory itself is also
/// locked. The next checkpoint makes LOCK again.
#[test]
fn a_bank_whose_lock_file_was_removed_is_still_locked() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path());
    train(&store, table, 1).unwrap();
    let locked = || {
        let error = Store::open(dir.path(), &options()).unwrap_err();
        assert!(matches!(error, Error::Locked { .. }), "{error}");
        let error = Store::roll_back(dir.path(), 1).unwrap_err();
        assert!(matches!(error, Error::Locked { .. }), "{error}");
    };
    locked();
    fs::remove_file(dir.path().join("LOCK")).unwrap();
    locked();
    train(&store, table, 2).unwrap();
    assert!(dir.path().join("LOCK").exists());
    locked();
    // The new LOCK is locked, because older builds lock only this file.
    let file = fs::File::open(dir.path().join("LOCK")).unwrap();
    assert!(file.try_lock().is_err());
    drop(store);
    holds(dir.path(), 2);
    assert!(file.try_lock().is_ok());
}

/// A user moves a kept checkpoint away and back. Meanwhile the store must not free the log of that
/// checkpoint.
#[test]
fn a_checkpoint_that_someone_removed_by_hand_gives_back_no_space() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path());
    train(&store, table, 1).unwrap();
    let kept = dir.path().join("checkpoints/0000000001");
    let aside = dir.path().join("aside");
    fs::rename(&kept, &aside).unwrap();
    train(&store, table, 2).unwrap();
    fs::rename(&aside, &kept).unwrap();
    drop(store);
    let reader = Store::open_read_only(dir.path(), &options(), Some(1)).unwrap();
    let table = reader.tables()[0].id;
    assert_eq!(peek(&reader, table, &keys(ROWS)).unwrap(), rows_of(&keys(ROWS), 1, BYTES));
    holds(dir.path(), 2);
}

#[test]
fn a_path_that_is_a_file_is_told_from_a_bank() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "notes").unwrap();
    let opened = [
        Store::open(&path, &options()).map(|_| ()),
        Store::open_read_only(&path, &options(), None).map(|_| ()),
        Store::roll_back(&path, 1).map(|_| ()),
    ];
    let link = dir.path().join("link");
    symlink("nowhere", &link).unwrap();
    let error = Store::open(&link, &options()).unwrap_err().to_string();
    assert!(error.contains("link that leads nowhere"), "{error}");
    for error in opened.map(Result::unwrap_err) {
        let text = error.to_string();
        assert!(matches!(error, Error::NotABank { .. }), "{text}");
        assert!(text.contains("is a file; a bank is a directory"), "{text}");
    }
}
