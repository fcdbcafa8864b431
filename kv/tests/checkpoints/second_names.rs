//! Tests that a bank changes no file that has a second name: a hard link or a symbolic link. The
//! file then also belongs to a copy of the bank, or to another program.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::reading::{by_hand, keys, rows_of};
use crate::common::{peek, put};
use embank_kv::inspect::verify;
use embank_kv::{Error, Store, StoreOptions};

const BYTES: usize = 120;

fn options() -> StoreOptions {
    let segment_size_bytes = Some(64 << 10);
    StoreOptions { page_size_bytes: Some(8 << 10), segment_size_bytes, ..by_hand(2) }
}

/// Puts all rows, moves the rows on disk to the log's tail, and takes a checkpoint.
fn train(store: &Store, version: u64) {
    let table = store.tables().first().map(|table| table.id);
    let table = table.unwrap_or_else(|| store.create_table("rows", BYTES as u32, b"").unwrap());
    put(store, table, &keys(800), version, BYTES);
    store.compact().unwrap();
    store.checkpoint(&version.to_le_bytes()).unwrap();
}

fn open(dir: &Path) -> Store {
    Store::open(dir, &options()).unwrap()
}

/// Asserts that the bank is sound and that its rows have `version`. Changes nothing.
fn holds(dir: &Path, version: u64) {
    let report = verify(dir, &Default::default(), &mut |_| ()).unwrap();
    assert!(report.is_clean(), "{:?}", report.damage);
    let store = Store::open_read_only(dir, &options(), None).unwrap();
    assert_eq!(store.reading().unwrap().blob, version.to_le_bytes());
    let table = store.tables()[0].id;
    assert_eq!(peek(&store, table, &keys(800)).unwrap(), rows_of(&keys(800), version, BYTES));
}

/// Returns every file below a directory with its content.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}

/// Copies a directory as `cp -al` does: the files of the copy are hard links.
fn link_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let into = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => link_all(&path, &into),
            false => fs::hard_link(&path, &into).unwrap(),
        }
    }
}

/// Regression test: a copy made of hard links was locked as long as the bank was open, because both
/// had one file `LOCK`.
#[test]
fn a_copy_of_hard_links_goes_on_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let store = open(&a);
    (1..=3).for_each(|version| train(&store, version));
    drop(store);
    link_all(&a, &b);
    let before = files(&b);
    let first = open(&a);
    (4..=8).for_each(|version| train(&first, version));
    assert_eq!(files(&b), before, "the bank has changed a file of the copy");
    let second = open(&b);
    let locked = |dir: &Path| {
        let error = Store::open(dir, &options()).unwrap_err();
        assert!(matches!(error, Error::Locked { .. }), "{error}");
    };
    locked(&a);
    locked(&b);
    let before = files(&a);
    (14..=18).for_each(|version| train(&second, version));
    assert_eq!(files(&a), before, "the copy has changed a file of the bank");
    train(&first, 9);
    drop((first, second));
    holds(&a, 9);
    holds(&b, 18);
}

/// A copy of hard links of a bank that is open: both continue without harm, in either order of
/// opening.
#[test]
fn a_copy_of_hard_links_of_an_open_bank_harms_neither() {
    for copy_goes_first in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let store = open(&a);
        (1..=3).for_each(|version| train(&store, version));
        link_all(&a, &b);
        if copy_goes_first {
            let copy = open(&b);
            (14..=16).for_each(|version| train(&copy, version));
            train(&store, 4);
            train(&copy, 17);
            drop(copy);
            holds(&b, 17);
        } else {
            (4..=6).for_each(|version| train(&store, version));
            holds(&b, 3);
        }
        train(&store, 7);
        drop(store);
        holds(&a, 7);
        train(&open(&b), 18);
        train(&open(&a), 8);
        holds(&a, 8);
        holds(&b, 18);
    }
}

/// Regression test: a `LOCK` that was a symbolic link to another bank's locked that bank.
#[test]
fn a_lock_file_that_is_a_link_locks_no_other_bank() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    [&a, &b].into_iter().for_each(|dir| train(&open(dir), 1));
    fs::remove_file(a.join("LOCK")).unwrap();
    symlink(b.join("LOCK"), a.join("LOCK")).unwrap();
    let first = open(&a);
    let second = open(&b);
    train(&first, 2);
    train(&second, 3);
    drop((first, second));
    holds(&a, 2);
    holds(&b, 3);
}

/// Regression test: a file that was put under the name of the log's next segment was written, even
/// if it was another bank's.
#[test]
fn a_file_under_the_name_of_a_later_segment_is_not_written() {
    let put_there: [fn(&Path, &Path); 3] = [
        |from, to| fs::hard_link(from, to).unwrap(),
        |from, to| symlink(from, to).unwrap(),
        |from, to| _ = fs::copy(from, to).unwrap(),
    ];
    for put_there in put_there {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        train(&open(&b), 5);
        let before = files(&b);
        let segment = b.join("log/0000000000000000.seg");
        let store = open(&a);
        train(&store, 1);
        for number in 1..64_u64 {
            let name = format!("log/{:016x}.seg", number << 16);
            if !a.join(&name).exists() {
                put_there(&segment, &a.join(name));
            }
        }
        (2..=6).for_each(|version| train(&store, version));
        drop(store);
        assert_eq!(files(&b), before, "the bank has written a file of another bank");
        train(&open(&a), 7);
        assert_eq!(files(&b), before);
        holds(&a, 7);
        holds(&b, 5);
    }
}

/// A segment behind a symbolic link is read, and neither written, cut nor freed in part.
#[test]
fn a_segment_behind_a_link_is_read_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (bank, aside) = (dir.path().join("bank"), dir.path().join("aside"));
    let store = open(&bank);
    (1..=4).for_each(|version| train(&store, version));
    drop(store);
    fs::rename(bank.join("log"), &aside).unwrap();
    fs::create_dir(bank.join("log")).unwrap();
    for entry in fs::read_dir(&aside).unwrap() {
        let path = entry.unwrap().path();
        symlink(&path, bank.join("log").join(path.file_name().unwrap())).unwrap();
    }
    let before = files(&aside);
    holds(&bank, 4);
    let store = open(&bank);
    (5..=9).for_each(|version| train(&store, version));
    drop(store);
    assert_eq!(files(&aside), before);
    holds(&bank, 9);
}
