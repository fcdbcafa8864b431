//! Tests that the time of `set_time` survives a reopen. Rows used before the next `set_time` must
//! not look old.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{new_bank, small_options};
use embank::{Bank, Eviction, Optimizer, Table, TableConfig, Tracking};

fn config() -> TableConfig {
    TableConfig::new(1).optimizer(Optimizer::sgd(0.1)).tracking(Tracking::SetTime)
}

/// Returns the number of rows that were unused for `time`.
fn old(table: &Table, time: u32) -> u64 {
    table.evict(&Eviction::new().unused_for(time).dry_run(true)).unwrap().rows
}

#[test]
fn an_open_goes_on_with_the_largest_time_that_was_set() {
    let test = new_bank();
    let path = test.bank.path().to_owned();
    let table = test.bank.table("t", config()).unwrap();
    table.set_time(400).unwrap();
    table.set_time(390).unwrap();
    table.put(&[1], &[0.0]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    drop((table, test.bank));

    let bank = Bank::open(&path, small_options()).unwrap();
    let table = bank.table("t", config()).unwrap();
    table.apply_gradients(&[2], &[1.0]).unwrap();
    bank.checkpoint(b"").unwrap();
    // Row 1 was used at 390, and row 2 at 400, which is the present time.
    assert_eq!((old(&table, 1), old(&table, 10), old(&table, 11)), (1, 1, 0));
    table.set_time(430).unwrap();
    assert_eq!((old(&table, 30), old(&table, 31), old(&table, 40), old(&table, 41)), (2, 1, 1, 0));
}

#[test]
fn a_time_after_the_checkpoint_goes_back_with_the_rows() {
    let test = new_bank();
    let path = test.bank.path().to_owned();
    let table = test.bank.table("t", config()).unwrap();
    table.set_time(5).unwrap();
    table.put(&[1], &[0.0]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    table.set_time(9).unwrap();
    drop((table, test.bank));
    let bank = Bank::open(&path, small_options()).unwrap();
    let table = bank.open_table("t").unwrap();
    assert_eq!(old(&table, 1), 0, "the time is 5 again");
}

#[test]
fn each_table_has_its_own_time_and_a_dropped_one_leaves_none() {
    let test = new_bank();
    let path = test.bank.path().to_owned();
    for (name, time) in [("a", 10), ("b", 20)] {
        let table = test.bank.table(name, config()).unwrap();
        table.set_time(time).unwrap();
        table.put(&[1], &[0.0]).unwrap();
    }
    test.bank.drop_table("a").unwrap();
    let again = test.bank.table("a", config()).unwrap();
    again.put(&[1], &[0.0]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    assert_eq!(test.bank.tables().len(), 2, "the table of times is in no list");
    drop((again, test.bank));
    let bank = Bank::open(&path, small_options()).unwrap();
    assert_eq!(old(&bank.open_table("b").unwrap(), 1), 0);
    let error = bank.open_table("a").unwrap().evict(&Eviction::new().unused_for(1)).unwrap_err();
    assert!(error.to_string().contains("set_time"), "{error}");
}

#[test]
fn a_copy_and_a_roll_back_have_the_time_of_their_checkpoint() {
    let test = new_bank();
    let path = test.bank.path().to_owned();
    let table = test.bank.table("t", config()).unwrap();
    let mut checkpoints = Vec::new();
    for time in [7, 8] {
        table.set_time(time).unwrap();
        table.put(&[u64::from(time)], &[0.0]).unwrap();
        checkpoints.push(test.bank.checkpoint(b"").unwrap());
    }
    drop((table, test.bank));
    let copy = test.dir.path().join("copy");
    Bank::copy_checkpoint(&path, Some(checkpoints[0]), &copy).unwrap();
    Bank::roll_back(&path, checkpoints[0]).unwrap();
    for path in [path, copy] {
        let bank = Bank::open(&path, small_options()).unwrap();
        let table = bank.open_table("t").unwrap();
        assert_eq!((old(&table, 1), old(&table, 0)), (0, 1));
    }
}

#[test]
fn a_bank_that_is_open_to_read_only_has_the_time() {
    let test = new_bank();
    let table = test.bank.table("t", config()).unwrap();
    table.set_time(7).unwrap();
    table.put(&[1], &[0.0]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let reader = Bank::open_read_only(test.bank.path(), small_options(), None).unwrap();
    let table = reader.open_table("t").unwrap();
    assert_eq!(old(&table, 1), 0);
    table.set_time(9).unwrap();
    assert_eq!((old(&table, 2), old(&table, 3)), (1, 0));
}
