//! Tests that a Get fails at once if it would wait for its own thread, and that other Gets wait.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::thread;
use std::time::Duration;

use crate::common::{TestBank, new_bank_with, push_to_disk, small_options, table};
use embank::{BankOptions, Error, Initializer, Lease, Optimizer, Table, TableConfig};

/// Makes a bank with a short timeout. A Get that waits by mistake then fails with a timeout, and
/// not with `SelfBlocked`.
fn bank() -> TestBank {
    new_bank_with(BankOptions { wait_timeout: Duration::from_secs(2), ..small_options() })
}

fn config(bound: u32) -> TableConfig {
    TableConfig::new(1)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Zeros)
        .staleness_bound(Some(bound))
}

fn try_get(table: &Table, keys: &[u64]) -> embank::Result<Lease> {
    table.get(keys, &mut vec![0.0; keys.len()])
}

fn get(table: &Table, keys: &[u64]) -> Lease {
    try_get(table, keys).unwrap()
}

/// Lets another thread end the lease as soon as a Get waits.
fn end_when_a_get_waits(table: &Table, lease: Lease) -> thread::JoinHandle<()> {
    let (table, waits) = (table.clone(), table.stats().waits);
    thread::spawn(move || {
        while table.stats().waits == waits {
            thread::yield_now();
        }
        lease.apply(&[-1.0]).unwrap();
    })
}

#[test]
fn a_second_get_of_a_row_at_its_bound_fails_at_once() {
    let test = bank();
    for bound in [0, 1, 3] {
        let table = test.bank.table(&format!("bound {bound}"), config(bound)).unwrap();
        let leases: Vec<Lease> = (0..=bound).map(|_| get(&table, &[6, 7])).collect();
        match try_get(&table, &[1, 7]).unwrap_err() {
            Error::SelfBlocked { table: name, key, held, bound: named, oldest } => {
                assert_eq!((name.as_str(), key), (table.name(), 7));
                assert_eq!((held, named, oldest.keys), (bound + 1, bound, 2));
            }
            other => panic!("{other}"),
        }
        assert_eq!(table.outstanding(1).unwrap(), Some(0), "the others are given back");
        assert_eq!(table.stats().timeouts, 0);
        drop(leases);
        get(&table, &[1, 7]).release().unwrap();
    }
}

#[test]
fn rows_on_disk_are_no_exception() {
    let test = bank();
    let table = table(&test.bank, config(0));
    let lease = get(&table, &[7]);
    push_to_disk(&test.bank);
    assert!(matches!(try_get(&table, &[7]), Err(Error::SelfBlocked { held: 1, .. })));
    lease.release().unwrap();
}

#[test]
fn the_message_tells_what_to_do() {
    let test = bank();
    let table = table(&test.bank, config(0));
    let _lease = get(&table, &[7]);
    let text = try_get(&table, &[7]).unwrap_err().to_string();
    for part in ["\"t\"", "key 7", "1 lease on", "bound of 0", "release", "hand_over()"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

/// Shows that a Get waits for another thread's lease. The bound of 1 admits the thread's own lease.
#[test]
fn a_wait_for_another_thread_is_a_wait() {
    let test = bank();
    let table = table(&test.bank, config(1));
    let elsewhere = {
        let table = table.clone();
        thread::spawn(move || get(&table, &[7])).join().unwrap()
    };
    let own = get(&table, &[7]);
    let ends = end_when_a_get_waits(&table, elsewhere);
    get(&table, &[7]).release().unwrap();
    ends.join().unwrap();
    own.release().unwrap();
}

#[test]
fn a_lease_that_is_handed_over_is_waited_for() {
    let test = bank();
    let table = table(&test.bank, config(0));
    let lease = get(&table, &[7]);
    lease.hand_over();
    let ends = end_when_a_get_waits(&table, lease);
    get(&table, &[7]).release().unwrap();
    ends.join().unwrap();
}

/// Shows that Gets wait without a call of `hand_over` once a thread has ended another thread's
/// lease.
#[test]
fn gets_wait_once_another_thread_has_ended_a_lease() {
    let test = bank();
    let table = table(&test.bank, config(0));
    let first = get(&table, &[7]);
    thread::spawn(move || drop(first)).join().unwrap();
    let other_table = test.bank.table("other", config(0)).unwrap();
    for table in [&table, &other_table] {
        let lease = get(table, &[7]);
        let ends = end_when_a_get_waits(table, lease);
        get(table, &[7]).release().unwrap();
        ends.join().unwrap();
    }
}

/// Shows that a Get still fails at once after two other kinds of lease ends: a thread ended another
/// thread's lease in another bank, or a thread ended its own lease.
#[test]
fn ends_in_another_bank_or_by_the_taker_do_not_count() {
    let (test, other) = (bank(), bank());
    let moved = get(&table(&other.bank, config(0)), &[7]);
    thread::spawn(move || drop(moved)).join().unwrap();
    let table = table(&test.bank, config(0));
    let in_turn = table.clone();
    thread::spawn(move || get(&in_turn, &[7]).apply(&[1.0]).unwrap()).join().unwrap();
    let _lease = get(&table, &[7]);
    assert!(matches!(try_get(&table, &[7]), Err(Error::SelfBlocked { .. })));
}

#[test]
fn a_lease_that_expires_before_the_waits_end_is_waited_for() {
    let lease_timeout = Some(Duration::from_millis(10));
    let wait_timeout = Duration::from_secs(60);
    let test = new_bank_with(BankOptions { lease_timeout, wait_timeout, ..small_options() });
    let table = table(&test.bank, config(0));
    let old = get(&table, &[7]);
    get(&table, &[7]).release().unwrap();
    assert!(old.is_expired());
}

#[test]
fn a_lease_that_expires_after_the_waits_end_is_not() {
    let lease_timeout = Some(Duration::from_secs(3600));
    let test = new_bank_with(BankOptions {
        lease_timeout,
        wait_timeout: Duration::from_secs(2),
        ..small_options()
    });
    let table = table(&test.bank, config(0));
    let _lease = get(&table, &[7]);
    assert!(matches!(try_get(&table, &[7]), Err(Error::SelfBlocked { .. })));
}

/// Shows that a lease that lost a row to a deletion does not hold the row that is made again.
#[test]
fn deleted_rows_are_held_by_no_lease() {
    let test = bank();
    let table = table(&test.bank, config(1));
    let leases = [get(&table, &[6, 7]), get(&table, &[6, 7])];
    table.delete(&[7]).unwrap();
    let new = [get(&table, &[7]), get(&table, &[7])];
    assert!(matches!(try_get(&table, &[7]), Err(Error::SelfBlocked { held: 2, .. })));
    drop(new);
    get(&table, &[7]).release().unwrap();
    drop(leases);
}
