//! Tests the roll back to an older checkpoint. After a crash during the roll back, the bank is at
//! that checkpoint or at a later one.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

use crate::common::{options, peek, put, value};
use embank_kv::{Error, Store, StoreOptions};

const BUDGET: u64 = 1 << 20;

fn opened(dir: &Path) -> Store {
    Store::open(dir, &StoreOptions { checkpoints_kept: 8, ..options(BUDGET) }).unwrap()
}

/// Makes a bank with one checkpoint for each of `versions` versions, and with newer rows that are
/// in no checkpoint.
fn bank_of(versions: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = opened(dir.path());
    let table = store.create_table("rows", 120, b"").unwrap();
    for version in 1..=versions {
        put(&store, table, &keys(), version, 120);
        assert_eq!(store.checkpoint(&version.to_le_bytes()).unwrap(), version);
    }
    put(&store, table, &keys(), 99, 120);
    dir
}

fn keys() -> Vec<u64> {
    (0..3_000).collect()
}

/// Opens the bank, and asserts that it is at checkpoint `version` with that version's rows and
/// blob.
fn is_at(dir: &Path, version: u64) {
    let store = opened(dir);
    assert_eq!(store.recovered().unwrap().checkpoint, version);
    assert_eq!(store.recovered().unwrap().blob, version.to_le_bytes());
    let table = store.tables()[0].id;
    let rows: Vec<_> = keys().iter().map(|&key| Some(value(key, version, 120))).collect();
    assert_eq!(peek(&store, table, &keys()).unwrap(), rows);
}

fn checkpoint_dir(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("checkpoints/{number:010}"))
}

#[test]
fn the_bank_is_at_the_checkpoint_and_goes_on_from_there() {
    let dir = bank_of(5);
    assert_eq!(Store::roll_back(dir.path(), 3).unwrap(), [5, 4]);
    is_at(dir.path(), 3);
    let store = opened(dir.path());
    let table = store.tables()[0].id;
    put(&store, table, &keys(), 4, 120);
    assert_eq!(store.checkpoint(&4_u64.to_le_bytes()).unwrap(), 4);
    drop(store);
    is_at(dir.path(), 4);
    assert_eq!(Store::roll_back(dir.path(), 4).unwrap(), [0; 0]);
    assert_eq!(Store::roll_back(dir.path(), 1).unwrap(), [4, 3, 2]);
    is_at(dir.path(), 1);
}

#[test]
fn a_crash_at_any_step_leaves_a_checkpoint_and_the_call_can_be_made_again() {
    // A roll back first renames each newer checkpoint and then empties it, beginning with the
    // newest. Each pair gives the number of renamed and of emptied checkpoints at the crash.
    for (renamed, emptied) in [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)] {
        let dir = bank_of(5);
        for step in 0..renamed {
            let from = checkpoint_dir(dir.path(), 5 - step);
            let to = from.with_extension("partial");
            std::fs::rename(&from, &to).unwrap();
            if step < emptied {
                std::fs::remove_dir_all(&to).unwrap();
            } else {
                std::fs::remove_file(to.join("blob")).unwrap();
            }
        }
        // In half of the cases the bank is opened after the crash, before the roll back is
        // repeated.
        if emptied < renamed {
            is_at(dir.path(), 5 - renamed);
        }
        let left: Vec<u64> = (3..=5 - renamed).rev().collect();
        assert_eq!(Store::roll_back(dir.path(), 2).unwrap(), left);
        is_at(dir.path(), 2);
    }
}

#[test]
fn what_can_not_be_rolled_back_stays_as_it_is() {
    let dir = bank_of(3);
    let checked = |number| Store::check_roll_back(dir.path(), number).unwrap_err();
    let refused = |number| {
        let error = Store::roll_back(dir.path(), number).unwrap_err();
        if !matches!(error, Error::Locked { .. }) {
            assert_eq!(checked(number).to_string(), error.to_string());
        }
        error
    };
    assert!(refused(7).to_string().contains("those that are kept are [1, 2, 3]"));
    let writer = opened(dir.path());
    assert!(matches!(refused(1), Error::Locked { .. }));
    Store::check_roll_back(dir.path(), 1).unwrap();
    drop(writer);
    let reader = Store::open_read_only(dir.path(), &options(BUDGET), Some(2)).unwrap();
    assert!(matches!(refused(1), Error::BeingRead { checkpoint: 2, .. }));
    is_at(dir.path(), 3);
    for (file, at) in [("index.0000000001", 40), ("blob", 36), ("manifest", 20)] {
        let path = checkpoint_dir(dir.path(), 1).join(file);
        let whole = std::fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(refused(1), Error::Damaged { .. }), "{file}");
        std::fs::write(&path, &whole).unwrap();
    }
    is_at(dir.path(), 3);
    // A roll back may go to a checkpoint that a reader holds.
    assert_eq!(Store::roll_back(dir.path(), 2).unwrap(), [3]);
    drop(reader);
    assert_eq!(Store::roll_back(dir.path(), 1).unwrap(), [2]);
    is_at(dir.path(), 1);
    let empty = tempfile::tempdir().unwrap();
    let error = Store::roll_back(empty.path(), 1).unwrap_err();
    assert!(error.to_string().contains("is not a bank"), "{error}");
}
