//! Tests the warning about changes that are lost when a bank closes.

mod common;
#[path = "common/told.rs"]
mod kept;

use std::path::Path;

use common::{new_bank, small_options};
use embank::{Bank, BankOptions, TableConfig, VocabularyConfig};
use kept::listen;

/// Returns the warnings about the bank in this directory.
fn told(path: &Path) -> Vec<String> {
    let kept = kept::told();
    let of = format!("{path:?}");
    kept.iter().filter(|text| text.contains(&of)).cloned().collect()
}

#[test]
fn closing_tells_how_many_changes_are_lost_since_which_checkpoint() {
    listen();
    let test = new_bank();
    let path = test.bank.path().to_owned();
    let table = test.bank.table("t", TableConfig::new(1)).unwrap();
    table.put(&[1, 2, 3], &[0.0; 3]).unwrap();
    assert_eq!(test.bank.checkpoint(b"").unwrap(), 1);
    table.put(&[2, 3], &[1.0; 2]).unwrap();
    table.put(&[3], &[2.0]).unwrap();
    table.delete(&[1]).unwrap();
    // The Get makes row 9, which was missing.
    let lease = table.get(&[9, 3], &mut [0.0; 2]).unwrap();
    let unsaved = test.bank.unsaved().unwrap();
    assert_eq!((unsaved.changes, unsaved.checkpoint), (5, Some(1)));
    drop((test.bank, table));
    assert_eq!(told(&path), [""; 0], "a lease keeps it open");
    drop(lease);
    let told = told(&path);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("WARN"), "{told:?}");
    assert!(told[0].contains("5 changes of rows since checkpoint 1"), "{told:?}");
}

#[test]
fn a_bank_without_any_checkpoint_says_so() {
    listen();
    let test = new_bank();
    let path = test.bank.path().to_owned();
    test.bank.table("t", TableConfig::new(1)).unwrap().put(&[1], &[0.0]).unwrap();
    drop(test.bank);
    let told = told(&path);
    assert!(told.len() == 1 && told[0].contains("1 change of a row"), "{told:?}");
    assert!(told[0].contains("no checkpoint"), "{told:?}");
}

#[test]
fn nothing_is_told_where_nothing_is_lost() {
    listen();
    let test = new_bank();
    let path = test.bank.path().to_owned();
    let table = test.bank.table("t", TableConfig::new(1)).unwrap();
    assert_eq!(test.bank.unsaved(), None, "a table without a row");
    table.put(&[1], &[0.0]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    table.get(&[1], &mut [0.0]).unwrap().release().unwrap();
    table.lookahead(&[1]).unwrap();
    assert_eq!(table.delete(&[7]).unwrap(), 0);
    assert_eq!(test.bank.unsaved(), None, "reading changes nothing");
    drop((table, test.bank));
    assert_eq!(told(&path), [""; 0]);

    let reopened = Bank::open(&path, small_options()).unwrap();
    assert_eq!(reopened.unsaved(), None);
    let store = reopened.stats().store;
    assert_eq!((store.newest_checkpoint, store.changed_since_checkpoint), (1, 0));
    reopened.open_table("t").unwrap().put(&[1], &[1.0]).unwrap();
    assert_eq!(reopened.unsaved().unwrap().checkpoint, Some(1), "the one that it was opened at");
    reopened.checkpoint(b"").unwrap();
    drop(reopened);

    let reading = Bank::open_read_only(&path, BankOptions::default(), None).unwrap();
    assert_eq!(reading.unsaved(), None);
    drop(reading);
    assert_eq!(told(&path), [""; 0]);
}

#[test]
fn values_of_a_vocabulary_count() {
    let test = new_bank();
    let words = test.bank.vocabulary("word", VocabularyConfig::u64()).unwrap();
    test.bank.checkpoint(b"").unwrap();
    words.ids_or_insert(&[900, 800], &mut [0; 2]).unwrap();
    assert!(test.bank.unsaved().is_some());
    test.bank.checkpoint(b"").unwrap();
    assert_eq!(test.bank.unsaved(), None);
}
