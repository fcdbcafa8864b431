//! Numbers of dropped tables are given again once nothing in the bank has them, and not before.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::path::Path;

use common::reading::{by_hand, keys, rows_of};
use common::{peek, put};
use embank_kv::inspect::{VerifyOptions, summary, verify};
use embank_kv::{Error, Store, TableId};

fn drop_and_release(store: &Store, table: TableId) {
    store.drop_table(table).unwrap();
    store.release_table(table);
}

fn is_clean(dir: &Path) {
    let found = verify(dir, &VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(found.is_clean(), "{found:?}");
}

/// At 65,534 the bank took no table any more, for ever.
#[test]
fn tables_can_be_made_and_dropped_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &by_hand(2)).unwrap();
    let other = store.create_table("other", 16, b"").unwrap();
    for i in 0..70_000_u64 {
        let table = store.create_table("temporary", 8, b"").unwrap();
        if i % 7_000 == 0 {
            // Its records stay until a compaction.
            put(&store, table, &keys(10), i, 8);
            put(&store, other, &keys(10), i, 16);
        }
        drop_and_release(&store, table);
    }
    assert!(store.create_table("last", 8, b"").unwrap().number() < 20);
    store.checkpoint(b"").unwrap();
    drop(store);
    is_clean(dir.path());
    assert!(summary(dir.path()).unwrap().table_numbers_left > 65_500);
}

/// As above, with rows, compaction and checkpoints, and a table of another width each time.
#[test]
fn a_table_shows_no_row_of_one_that_had_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), &by_hand(2)).unwrap();
    let mut numbers = Vec::new();
    for i in 0..40 {
        let width = 8 + 8 * (i as usize % 5);
        let table = store.create_table(&format!("t{i}"), width as u32, b"").unwrap();
        numbers.push(table.number());
        assert_eq!(peek(&store, table, &keys(300)).unwrap(), vec![None; 300], "{i}");
        assert_eq!(store.rows(table).unwrap(), 0);
        put(&store, table, &keys(200), i, width);
        store.checkpoint(b"").unwrap();
        if i % 10 == 7 {
            drop(store);
            store = Store::open(dir.path(), &by_hand(2)).unwrap();
        }
        assert_eq!(peek(&store, table, &keys(200)).unwrap(), rows_of(&keys(200), i, width));
        drop_and_release(&store, table);
        store.compact().unwrap();
        store.checkpoint(b"").unwrap();
    }
    assert!(numbers.iter().all(|&number| number < 8), "{numbers:?}");
    drop(store);
    is_clean(dir.path());
}

/// What keeps a number: a call that may come, a record, a kept checkpoint, a pinned one.
#[test]
fn a_number_that_something_has_is_not_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &by_hand(1)).unwrap();
    let next = |name: &str| store.create_table(name, 8, b"").unwrap().number();
    let table = store.create_table("rows", 24, b"").unwrap();
    put(&store, table, &keys(100), 1, 24);
    store.checkpoint(b"").unwrap();
    store.pin(1).unwrap();
    store.drop_table(table).unwrap();
    assert_eq!(next("a"), 2, "it may be called");
    assert!(matches!(store.rows(table), Err(Error::NoSuchTable(_))));
    store.release_table(table);
    assert_eq!(next("b"), 3, "the log has its records");
    store.checkpoint(b"").unwrap();
    store.compact().unwrap();
    assert_eq!(next("c"), 4, "checkpoints have it");
    store.checkpoint(b"").unwrap();
    store.checkpoint(b"").unwrap();
    assert_eq!(next("d"), 5, "the pinned checkpoint has it");
    store.unpin(1).unwrap();
    store.checkpoint(b"").unwrap();
    assert_eq!(next("e"), 1);
    assert_eq!(next("f"), 6);
    // A table that is there is not released by mistake.
    store.release_table(table);
    assert_eq!(next("g"), 7);
}

/// The same across opens: a checkpoint that has the table keeps its number, also after a crash and a roll back.
#[test]
fn a_number_that_a_kept_checkpoint_has_is_not_given_after_an_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &by_hand(3)).unwrap();
    // Values without a byte: their length does not tell whether records are left.
    let empty = store.create_table("set", 0, b"").unwrap();
    put(&store, empty, &keys(100), 1, 0);
    store.checkpoint(b"1").unwrap();
    store.drop_table(empty).unwrap();
    store.checkpoint(b"2").unwrap();
    drop(store);
    let store = Store::open(dir.path(), &by_hand(3)).unwrap();
    assert_eq!(store.create_table("a", 8, b"").unwrap().number(), 2);
    store.compact().unwrap();
    store.checkpoint(b"3").unwrap();
    assert_eq!(store.create_table("b", 8, b"").unwrap().number(), 3);
    drop(store);
    let store = Store::open(dir.path(), &by_hand(1)).unwrap();
    assert_eq!(store.create_table("b", 8, b"").unwrap().number(), 3, "checkpoints 1 and 2 have it");
    store.checkpoint(b"4").unwrap();
    assert_eq!(store.create_table("c", 16, b"").unwrap(), empty);
    drop(store);
    // The table of the number comes back by a roll back.
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &by_hand(8)).unwrap();
    let table = store.create_table("rows", 8, b"").unwrap();
    put(&store, table, &keys(50), 4, 8);
    store.checkpoint(b"1").unwrap();
    drop_and_release(&store, table);
    store.compact().unwrap();
    store.checkpoint(b"2").unwrap();
    assert_eq!(store.create_table("other", 16, b"").unwrap().number(), 2);
    store.checkpoint(b"3").unwrap();
    drop(store);
    Store::roll_back(dir.path(), 1).unwrap();
    let store = Store::open(dir.path(), &by_hand(8)).unwrap();
    assert_eq!(peek(&store, table, &keys(50)).unwrap(), rows_of(&keys(50), 4, 8));
    assert_eq!(store.create_table("other", 16, b"").unwrap().number(), 2);
}
