//! Tests that every event that ends a Get's wait wakes the Get, and that small Gets do not overtake
//! a large Get forever.
//!
//! If a Get is not woken, it fails after its `wait_timeout`, and so does the test.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{TestBank, new_bank_with, small_options, table};
use embank::{
    BankOptions, Error, Eviction, Initializer, Lease, Optimizer, Table, TableConfig, Tracking,
};

fn config() -> TableConfig {
    TableConfig::new(1)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Zeros)
        .tracking(Tracking::SetTime)
        .staleness_bound(Some(0))
}

fn get(table: &Table, keys: &[u64]) -> embank::Result<Lease> {
    table.get(keys, &mut vec![0.0; keys.len()])
}

/// Returns once the table's second Get waits for `held`, or has returned because `held` expired.
fn until_waiting(table: &Table, held: &Lease) {
    while table.stats().waits < 1 && table.stats().gets < 2 {
        std::thread::yield_now();
    }
    assert!(table.stats().waits == 1 || held.is_expired(), "that Get did not wait");
}

/// Lets one Get wait for the row of another Get's lease, runs `end`, and returns the waiting Get's
/// result.
fn ended_by(
    options: BankOptions,
    end: impl FnOnce(&TestBank, &Table, Lease),
) -> embank::Result<()> {
    let test = new_bank_with(options);
    let table = table(&test.bank, config());
    table.set_time(1).unwrap();
    let held = get(&table, &[7]).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| get(&table, &[6, 7, 8]).map(drop));
        until_waiting(&table, &held);
        end(&test, &table, held);
        waiter.join().unwrap()
    })
}

#[test]
fn every_way_to_end_a_lease_wakes() {
    let ways: [fn(Lease); 6] = [
        |lease| lease.apply(&[1.0]).unwrap(),
        |lease| lease.apply(&[f32::NAN]).unwrap_err().to_string().clear(),
        |lease| lease.put(&[1.0]).unwrap(),
        |lease| lease.release().unwrap(),
        drop,
        |lease| Lease::apply_together(vec![lease], &[7], &[1.0]).unwrap(),
    ];
    for way in ways {
        ended_by(small_options(), |_, _, lease| way(lease)).unwrap();
    }
}

#[test]
fn a_deletion_and_an_eviction_wake() {
    ended_by(small_options(), |_, table, _lease| assert_eq!(table.delete(&[7]).unwrap(), 1))
        .unwrap();
    ended_by(small_options(), |test, table, lease| {
        lease.release().unwrap();
        test.bank.checkpoint(b"").unwrap();
        table.evict(&Eviction::new().unused_for(0)).unwrap();
    })
    .unwrap();
}

#[test]
fn a_drop_of_the_table_wakes() {
    let ended = ended_by(small_options(), |test, _, _lease| test.bank.drop_table("t").unwrap());
    assert!(matches!(ended, Err(Error::TableDropped { .. })), "{ended:?}");
}

#[test]
fn a_higher_bound_wakes_whoever_sets_it() {
    ended_by(small_options(), |_, table, lease| {
        table.set_staleness_bound(Some(1));
        // The waiting Get returns although the lease is still outstanding.
        until_released(table, &lease);
    })
    .unwrap();
    ended_by(small_options(), |test, table, lease| {
        test.bank.table("t", config().staleness_bound(Some(4))).unwrap();
        until_released(table, &lease);
    })
    .unwrap();
    ended_by(small_options(), |test, table, lease| {
        test.bank.table("t", config().staleness_bound(None)).unwrap();
        until_released(table, &lease);
    })
    .unwrap();
}

/// Returns once the waiting Get of `ended_by` has returned. The lease `held` must then still be
/// valid.
fn until_released(table: &Table, held: &Lease) {
    while table.stats().gets < 2 {
        std::thread::yield_now();
    }
    assert!(!held.is_expired());
}

#[test]
fn a_lease_that_expires_wakes() {
    // Long enough for the other Get to begin its wait even on a busy machine.
    let options = BankOptions { lease_timeout: Some(Duration::from_secs(2)), ..small_options() };
    ended_by(options, |_, table, lease| {
        while table.stats().gets < 2 {
            std::thread::yield_now();
        }
        assert!(lease.is_expired());
    })
    .unwrap();
}

/// Shows that a large Get succeeds among small ones. Sixteen threads take 8 of 1,000 rows in a
/// loop. In an earlier version a Get of 256 rows at bound 0 never found all of them free.
#[test]
fn a_large_get_has_its_turn_among_small_ones() {
    let options = BankOptions { wait_timeout: Duration::from_secs(20), ..small_options() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config());
    let all: Vec<u64> = (0..1_000).collect();
    table.put(&all, &vec![0.0; all.len()]).unwrap();
    let (stop, small) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..16_u64 {
            let (table, stop, small) = (&table, &stop, &small);
            scope.spawn(move || {
                let mut at = thread * 61;
                while !stop.load(Ordering::Relaxed) {
                    let keys: Vec<u64> = (0..8).map(|i| (at + i * 131) % 1_000).collect();
                    let lease = get(table, &keys).unwrap();
                    // Stands for a training step.
                    std::thread::sleep(Duration::from_millis(5));
                    lease.apply(&[1.0; 8]).unwrap();
                    at += 17;
                    small.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Two large Gets of overlapping rows queue one behind the other.
        let large = |first: u64| -> embank::Result<()> {
            let keys: Vec<u64> = (first..first + 256).collect();
            for _ in 0..10 {
                get(&table, &keys)?.apply(&vec![1.0; keys.len()])?;
            }
            Ok(())
        };
        let other = scope.spawn(move || large(128));
        let (first, second) = (large(0), other.join().unwrap());
        // Sets `stop` before checking the results. If a check panicked first, the small Gets would
        // run on and the scope would never end.
        stop.store(true, Ordering::Relaxed);
        first.and(second).unwrap();
    });
    assert!(small.into_inner() > 0);
    assert!((0..1_000).all(|key| table.outstanding(key).unwrap() == Some(0)));
}

/// Shows that a Get passes a reservation if the reservation waits for a lease of the Get's thread.
/// Otherwise the two would wait for each other.
#[test]
fn a_thread_that_a_reservation_waits_for_passes_it() {
    let test = new_bank_with(small_options());
    let table = table(&test.bank, config());
    let held = get(&table, &[1]).unwrap();
    std::thread::scope(|scope| {
        let large = scope.spawn(|| get(&table, &[1, 2]).unwrap().release().unwrap());
        until_waiting(&table, &held);
        // Long enough for the other Get to reserve its rows, which it does after waiting for
        // `PATIENCE`.
        std::thread::sleep(Duration::from_millis(200));
        get(&table, &[2]).unwrap().release().unwrap();
        assert_eq!(table.stats().waits, 1, "that Get did not wait");
        held.release().unwrap();
        large.join().unwrap();
    });
}

/// Shows that a cycle of waits ends. A large Get waits for a lease that ends only after a second
/// Get, and the second Get queues behind the large Get's reservation. After a quarter of
/// `wait_timeout`, the second Get passes the reservation.
#[test]
fn a_cycle_over_two_tables_ends() {
    let options = BankOptions { wait_timeout: Duration::from_secs(8), ..small_options() };
    let test = new_bank_with(options);
    let users = test.bank.table("users", config()).unwrap();
    let items = test.bank.table("items", config()).unwrap();
    let held = get(&users, &[1]).unwrap();
    let stale = get(&items, &[1]).unwrap();
    std::thread::scope(|scope| {
        // This Get reserves items 1 and 2, and waits for the lease on item 1. That lease ends after
        // the Get of item 2.
        let large = scope.spawn(|| get(&items, &[1, 2]).unwrap().release().unwrap());
        until_waiting(&items, &stale);
        std::thread::sleep(Duration::from_millis(200));
        let second = scope.spawn(|| {
            get(&items, &[2]).unwrap().release().unwrap();
        });
        second.join().unwrap();
        stale.release().unwrap();
        large.join().unwrap();
    });
    held.release().unwrap();
}

/// Shows that the error of a Get that timed out counts the outstanding Gets and describes the
/// oldest lease.
#[test]
fn the_error_says_whether_a_lease_is_not_ended() {
    let options = BankOptions { wait_timeout: Duration::from_millis(300), ..small_options() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config());
    let held = get(&table, &[1]).unwrap();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| get(&table, &[1]).map(drop).unwrap_err().to_string()).join().unwrap()
    });
    assert!(error.contains("1 Gets were outstanding") && error.contains("the oldest"), "{error}");
    drop(held);
}
