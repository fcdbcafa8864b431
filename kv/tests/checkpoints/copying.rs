//! Tests copies of a checkpoint. A copy is an independent bank: later changes of the original do
//! not change it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::reading::{by_hand, keys, rows_of};
use crate::common::{peek, put};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{Error, Store, StoreOptions, TableId};

const ROWS: u64 = 4_000;
const BYTES: usize = 120;
const SEGMENT: u64 = 64 << 10;

fn options(checkpoints_kept: usize) -> StoreOptions {
    StoreOptions {
        page_size_bytes: Some(8 << 10),
        segment_size_bytes: Some(SEGMENT),
        ..by_hand(checkpoints_kept)
    }
}

fn write(store: &Store, table: TableId, version: u64) -> u64 {
    put(store, table, &keys(ROWS), version, BYTES);
    store.checkpoint(&version.to_le_bytes()).unwrap()
}

/// Makes a bank with a checkpoint of version 1, in a new folder. The version determines the values
/// of all rows.
fn bank() -> (tempfile::TempDir, PathBuf, Store, TableId) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bank");
    let store = Store::open(&path, &options(2)).unwrap();
    let table = store.create_table("rows", BYTES as u32, b"settings").unwrap();
    write(&store, table, 1);
    (dir, path, store, table)
}

/// Asserts that the bank's rows and blob have `version`, and that no file in the directory is
/// damaged.
fn holds(dir: &Path, version: u64) {
    let store = Store::open_read_only(dir, &options(2), None).unwrap();
    holds_open(&store, version);
    assert_eq!(store.reading().unwrap().blob, version.to_le_bytes());
    let report = verify(dir, &VerifyOptions::default(), &mut |_| ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

fn holds_open(store: &Store, version: u64) {
    let table = store.tables()[0].id;
    assert_eq!(peek(store, table, &keys(ROWS)).unwrap(), rows_of(&keys(ROWS), version, BYTES));
}

/// Returns the number of log files that share their content through hard links, and the number of
/// other log files.
fn segments(dir: &Path) -> (usize, usize) {
    let files = fs::read_dir(dir.join("log")).unwrap();
    let (shared, own): (Vec<u64>, Vec<u64>) =
        files.map(|file| file.unwrap().metadata().unwrap().nlink()).partition(|&names| names > 1);
    (shared.len(), own.len())
}

#[test]
fn a_copy_is_a_bank_of_its_own_and_shares_what_does_not_change() {
    let (dir, bank, store, table) = bank();
    let copy = dir.path().join("into/copy");
    // The bank changes after the checkpoint. The copy must not have these rows.
    put(&store, table, &keys(ROWS), 2, BYTES);
    let made = Store::copy_checkpoint(&bank, None, &copy).unwrap();
    assert_eq!(made.checkpoint, 1);
    assert!(made.linked_bytes > 4 * SEGMENT && made.copied_bytes <= SEGMENT, "{made:?}");
    let (shared, own) = segments(&copy);
    assert!(shared > 4 && own == 1, "{shared} shared, {own} own");
    holds(&copy, 1);
    // Both the bank and the copy must still accept writes.
    let copied = Store::open(&copy, &options(2)).unwrap();
    holds_open(&copied, 1);
    for version in 3..9 {
        assert_eq!(write(&store, table, version), version - 1);
        assert_eq!(write(&copied, table, version + 100), version - 1);
    }
    drop(copied);
    holds(&bank, 8);
    holds(&copy, 108);
    drop(store);
    holds_open(&Store::open(&bank, &options(2)).unwrap(), 8);
    holds_open(&Store::open(&copy, &options(2)).unwrap(), 108);
}

#[test]
fn what_a_bank_gives_back_stays_with_its_copy() {
    let (dir, bank, store, table) = bank();
    let copy = dir.path().join("copy");
    Store::copy_checkpoint(&bank, Some(1), &copy).unwrap();
    let before = segments(&copy).0;
    for version in 2..5 {
        store.compact().unwrap();
        write(&store, table, version);
    }
    assert!(store.stats().freed_bytes > SEGMENT, "{:?}", store.stats());
    assert!(segments(&copy).0 < before, "the bank has removed files");
    holds(&copy, 1);
    // The copy compacts and frees its log. The bank and its second copy must keep all their files.
    let copied = Store::open(&copy, &options(1)).unwrap();
    let again = dir.path().join("again");
    Store::copy_checkpoint(&bank, None, &again).unwrap();
    copied.compact().unwrap();
    for version in 101..104 {
        write(&copied, copied.tables()[0].id, version);
        copied.compact().unwrap();
    }
    drop((copied, store));
    holds(&bank, 4);
    holds(&again, 4);
    holds(&copy, 103);
}

/// A roll back ends the bank's log inside a file that a copy shares. The bank then writes new
/// records from that address on. The copy must not change.
#[test]
fn a_bank_that_goes_back_takes_nothing_from_its_copy() {
    let (dir, bank, store, table) = bank();
    write(&store, table, 2);
    drop(store);
    let copy = dir.path().join("copy");
    Store::copy_checkpoint(&bank, None, &copy).unwrap();
    assert_eq!(Store::roll_back(&bank, 1).unwrap(), [2]);
    let unfinished = bank.join("log/0000000000000000.new");
    fs::write(&unfinished, "left by a crash").unwrap();
    let store = Store::open(&bank, &options(2)).unwrap();
    assert!(!unfinished.exists());
    holds_open(&store, 1);
    holds(&copy, 2);
    write(&store, table, 12);
    write(&store, table, 13);
    drop(store);
    holds(&bank, 13);
    holds(&copy, 2);
    holds_open(&Store::open(&copy, &options(2)).unwrap(), 2);
}

/// A copy shares the bank's last log file. After a roll back a reader opens this file, and then the
/// bank makes a new file for its next records. The old file belongs to the copy, which has other
/// rows at the same offsets. The reader must read the new file.
#[test]
fn a_reader_sees_what_the_bank_wrote_after_it_went_back_and_not_the_copy_s() {
    let (dir, bank, store, table) = bank();
    write(&store, table, 2);
    drop(store);
    let copy = dir.path().join("copy");
    Store::copy_checkpoint(&bank, None, &copy).unwrap();
    Store::roll_back(&bank, 1).unwrap();
    let reader = Store::open_read_only(&bank, &options(2), None).unwrap();
    holds_open(&reader, 1);
    let store = Store::open(&bank, &options(2)).unwrap();
    assert_eq!(write(&store, table, 12), 2);
    assert_eq!(reader.refresh().unwrap(), 2);
    holds_open(&reader, 12);
    holds(&copy, 2);
}

#[test]
fn a_reader_does_not_move_on_to_another_copy_in_the_place_of_its_own() {
    let (dir, bank, store, table) = bank();
    let (copy, again) = (dir.path().join("copy"), dir.path().join("again"));
    Store::copy_checkpoint(&bank, None, &copy).unwrap();
    let reader = Store::open_read_only(&copy, &options(2), None).unwrap();
    for number in 2..=3 {
        write(&store, table, number);
        Store::copy_checkpoint(&bank, None, &again).unwrap();
        fs::remove_dir_all(&copy).unwrap();
        fs::rename(&again, &copy).unwrap();
        let error = reader.refresh().unwrap_err();
        assert!(matches!(error, Error::DirectoryMoved { replaced: true, .. }), "{error}");
    }
    drop(store);
    Store::roll_back(&bank, 2).unwrap();
    let reader = Store::open_read_only(&bank, &options(2), None).unwrap();
    holds_open(&reader, 2);
    assert_eq!(reader.refresh().unwrap(), 2);
}

#[test]
fn a_copy_is_made_beside_a_writer_that_keeps_one_checkpoint() {
    let (dir, bank, store, table) = bank();
    drop(store);
    let store = Store::open(&bank, &options(1)).unwrap();
    let copies: Vec<PathBuf> = std::thread::scope(|s| {
        let copier = s.spawn(|| {
            let copies = (0..12).map(|number| {
                let copy = dir.path().join(format!("copy {number}"));
                Store::copy_checkpoint(&bank, None, &copy).unwrap();
                copy
            });
            copies.collect()
        });
        let mut version = 2;
        while !copier.is_finished() {
            write(&store, table, version);
            store.compact().unwrap();
            version += 1;
        }
        copier.join().unwrap()
    });
    drop(store);
    for copy in copies {
        let reader = Store::open_read_only(&copy, &options(1), None).unwrap();
        let version = u64::from_le_bytes(reader.reading().unwrap().blob[..].try_into().unwrap());
        drop(reader);
        holds(&copy, version);
    }
}

#[test]
fn what_can_not_be_copied_is_refused_and_leaves_nothing() {
    let (dir, bank, _store, _) = bank();
    let to = dir.path().join("to");
    let refused = |from: &Path, number| Store::copy_checkpoint(from, number, &to).unwrap_err();
    assert!(refused(dir.path(), None).to_string().contains("is not a bank"));
    assert!(refused(&bank, Some(7)).to_string().contains("those that are kept are [1]"));
    assert!(!to.exists());
    fs::create_dir(&to).unwrap();
    fs::write(to.join("notes"), "mine").unwrap();
    assert!(refused(&bank, None).to_string().contains("holds \"notes\""));
    fs::remove_file(to.join("notes")).unwrap();
    fs::write(to.join("BANK.new"), "left by a crash").unwrap();
    // A missing log file makes the copying fail.
    let segment = bank.join(format!("log/{:016x}.seg", 2 * SEGMENT));
    fs::rename(&segment, dir.path().join("away")).unwrap();
    assert!(matches!(refused(&bank, None), Error::Io { .. }));
    let left: Vec<_> = fs::read_dir(&to).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, [""; 0]);
    // The last log file is copied, not linked. If it is cut short, the copying fails.
    fs::rename(dir.path().join("away"), &segment).unwrap();
    let mut files: Vec<_> =
        fs::read_dir(bank.join("log")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let path = files.last().unwrap();
    let good = fs::read(path).unwrap();
    fs::write(path, &good[..512]).unwrap();
    assert!(matches!(refused(&bank, None), Error::Truncated { .. }));
    // Damage of a copied file also makes the copying fail.
    let mut bytes = good.clone();
    bytes[700] ^= 1;
    fs::write(path, &bytes).unwrap();
    let error = refused(&bank, None);
    assert!(matches!(&error, Error::Damaged { path: of, .. } if of == path), "{error}");
    fs::write(path, good).unwrap();
    Store::copy_checkpoint(&bank, None, &to).unwrap();
    assert!(refused(&bank, None).to_string().contains("holds \""));
}

/// The copy is made in `/dev/shm`. This is usually another file system, to which the bank's files
/// can't be linked, so every file must be copied.
#[test]
fn where_there_are_no_links_all_is_copied() {
    let (_dir, bank, store, table) = bank();
    write(&store, table, 2);
    let there = tempfile::Builder::new().tempdir_in("/dev/shm");
    let Ok(there) = there else {
        println!("skipped: no /dev/shm");
        return;
    };
    if there.path().metadata().unwrap().dev() == bank.metadata().unwrap().dev() {
        println!("skipped: /dev/shm is on the same file system");
        return;
    }
    let copy = there.path().join("copy");
    let made = Store::copy_checkpoint(&bank, Some(1), &copy).unwrap();
    assert!(made.linked_bytes == 0 && made.copied_bytes > 4 * SEGMENT, "{made:?}");
    holds(&copy, 1);
    holds(&bank, 2);
}
