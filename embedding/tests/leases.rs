//! Leases that nobody ends: they expire, and who holds them can be found out.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{new_bank, new_bank_with, push_to_disk, rows_of, small_options, table};
use embank::{Bank, BankOptions, Error, Initializer, Lease, Optimizer, Table, TableConfig};

const LONG: Duration = Duration::from_secs(60);

/// Leases expire after a hundredth of a second, Gets wait as long as it takes.
fn forgetful() -> BankOptions {
    let lease_timeout = Some(Duration::from_millis(10));
    BankOptions { wait_timeout: LONG, lease_timeout, ..small_options() }
}

/// A row counts the gradients of -1 that were applied to it.
fn config() -> TableConfig {
    TableConfig::new(1).optimizer(Optimizer::sgd(1.0)).initializer(Initializer::Zeros)
}

fn get(table: &Table, keys: &[u64]) -> Lease {
    table.get(keys, &mut vec![0.0; keys.len()]).unwrap()
}

#[test]
fn a_forgotten_lease_blocks_its_rows_until_it_expires() {
    let test = new_bank_with(forgetful());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    mem::forget(get(&table, &[1, 2]));
    get(&table, &[2, 3]).apply(&[-1.0, -1.0]).unwrap();
    assert_eq!(rows_of(&table, &[1, 2, 3]), [0.0, 1.0, 1.0]);
    for key in [1, 2, 3] {
        assert_eq!(table.outstanding(key).unwrap(), Some(0));
    }
    let stats = table.stats();
    assert_eq!((stats.leases_expired, stats.waits, stats.timeouts), (1, 1, 0));
    assert_eq!(test.bank.stats().leases_expired, 1);
    assert!(table.outstanding_leases().is_empty());
}

#[test]
fn without_a_bound_the_next_get_of_the_table_finds_it() {
    let test = new_bank_with(forgetful());
    let table = table(&test.bank, config());
    mem::forget(get(&table, &[1]));
    let deadline = Instant::now() + LONG;
    while table.stats().leases_expired == 0 {
        assert!(Instant::now() < deadline);
        get(&table, &[5]).release().unwrap();
    }
    assert_eq!(table.outstanding(1).unwrap(), Some(0));
    assert_eq!(table.stats().waits, 0);
}

#[test]
fn an_update_that_comes_too_late_is_refused_and_changes_nothing() {
    type Update = fn(Lease) -> embank::Result<()>;
    let updates: [Update; 4] = [
        |lease| lease.apply(&[-1.0; 3]),
        |lease| lease.apply_distinct(&[-1.0; 2]),
        |lease| lease.put(&[1.0; 3]),
        |lease| lease.put_distinct(&[1.0; 2]),
    ];
    let release = None;
    for update in updates.into_iter().map(Some).chain([release]) {
        let test = new_bank_with(forgetful());
        let table = table(&test.bank, config().staleness_bound(Some(0)));
        let late = get(&table, &[1, 2, 1]);
        let next = get(&table, &[2]);
        assert!(late.is_expired());
        // Nobody misses counts that were given back already: to release them is no error.
        let Some(update) = update else {
            late.release().unwrap();
            continue;
        };
        match update(late).unwrap_err() {
            Error::LeaseExpired { table: name, keys, age, timeout } => {
                assert_eq!((name.as_str(), keys), (table.name(), 2));
                assert!(age >= timeout && timeout == Duration::from_millis(10));
            }
            other => panic!("{other}"),
        }
        assert_eq!(table.outstanding(2).unwrap(), Some(1), "that of the next");
        assert_eq!(rows_of(&table, &[1, 2]), [0.0, 0.0]);
        next.release().unwrap();
        assert_eq!(table.outstanding(2).unwrap(), Some(0));
        assert_eq!(table.stats().release_failures, 0);
    }
}

#[test]
fn an_old_lease_that_nobody_missed_can_be_applied() {
    let options = BankOptions { lease_timeout: Some(Duration::from_nanos(1)), ..small_options() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    for _ in 0..20 {
        let lease = get(&table, &[1]);
        lease.apply(&[-1.0]).unwrap();
    }
    assert_eq!(rows_of(&table, &[1]), [20.0]);
}

#[test]
fn a_lease_expires_that_is_stuck_in_another_thread_with_rows_on_disk() {
    let test = new_bank_with(forgetful());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let (stuck, release) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let lease = get(&table, &[1, 2, 3]);
        let worker = scope.spawn(move || {
            // Until the others are through.
            assert!(release.recv().is_err());
            lease.apply(&[-1.0; 3])
        });
        push_to_disk(&test.bank);
        assert_eq!(table.outstanding(1).unwrap(), Some(1), "counts go to disk and back");
        get(&table, &[3, 1]).apply(&[-1.0, -1.0]).unwrap();
        drop(stuck);
        assert!(matches!(worker.join().unwrap(), Err(Error::LeaseExpired { .. })));
    });
    assert_eq!(rows_of(&table, &[1, 2, 3]), [1.0, 0.0, 1.0]);
    for key in [1, 2, 3] {
        assert_eq!(table.outstanding(key).unwrap(), Some(0));
    }
}

/// Threads whose leases expire while they are applied: each count comes down once, each gradient is applied once or
/// refused.
#[test]
fn an_expiring_lease_and_its_owner_give_the_counts_back_once() {
    let options = BankOptions { lease_timeout: Some(Duration::from_micros(30)), ..forgetful() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let applied = [AtomicU64::new(0), AtomicU64::new(0)];
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (table, applied, refused) = (&table, &applied, &refused);
            scope.spawn(move || {
                for round in 0..400_u64 {
                    let keys = if thread % 2 == 0 { [0, 1] } else { [1, 0] };
                    let lease = get(table, &keys);
                    match (thread + round) % 7 {
                        0 => mem::forget(lease),
                        1 => drop(lease),
                        _ => match lease.apply(&[-1.0, -1.0]) {
                            Ok(()) => applied.iter().for_each(|count| {
                                count.fetch_add(1, Ordering::Relaxed);
                            }),
                            Err(Error::LeaseExpired { .. }) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(other) => panic!("{other}"),
                        },
                    }
                }
            });
        }
    });
    // What was forgotten last.
    get(&table, &[0, 1]).release().unwrap();
    let rows = rows_of(&table, &[0, 1]);
    let applied = applied.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(rows, applied.map(|count| count as f32));
    for key in [0, 1] {
        assert_eq!(table.outstanding(key).unwrap(), Some(0));
    }
    let stats = table.stats();
    assert!(stats.leases_expired >= 4 * 400 / 7 && stats.release_failures == 0, "{stats:?}");
    assert!(table.outstanding_leases().is_empty());
}

#[test]
fn a_timeout_names_the_oldest_lease_that_holds_the_row() {
    let options = BankOptions { wait_timeout: Duration::from_millis(20), ..small_options() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config().staleness_bound(Some(1)));
    let elsewhere = get(&table, &[9]);
    let worker = std::thread::Builder::new().name("worker 3".to_owned());
    let taking = table.clone();
    let first = worker.spawn(move || get(&taking, &[7, 8])).unwrap().join().unwrap();
    let second = get(&table, &[7]);
    let error = table.get(&[7], &mut [0.0]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("worker 3") && text.contains("2 keys"), "{text}");
    let Error::StalenessTimeout { oldest: Some(oldest), .. } = error else { panic!("{error}") };
    assert!(oldest.keys == 2 && oldest.age >= Duration::from_millis(20), "{oldest}");
    drop((elsewhere, first, second));
}

#[test]
fn the_leases_that_are_out_are_listed_by_age() {
    let test = new_bank();
    let first = table(&test.bank, config());
    let second = test.bank.table("second", config()).unwrap();
    let leases = (get(&first, &[1]), get(&second, &[1, 2]), get(&first, &[1, 2, 3, 1]));
    let listed = |bank: &Bank| {
        let list = bank.outstanding_leases();
        assert!(list.is_sorted_by(|a, b| a.age >= b.age));
        list.into_iter().map(|lease| (lease.table, lease.keys)).collect::<Vec<_>>()
    };
    let entry = |table: &str, keys| (table.to_owned(), keys);
    assert_eq!(listed(&test.bank), [entry("t", 1), entry("second", 2), entry("t", 3)]);
    assert_eq!(first.outstanding_leases().len(), 2);
    leases.1.apply(&[0.0, 0.0]).unwrap();
    drop(leases.0);
    assert_eq!(listed(&test.bank), [entry("t", 3)]);
    drop(leases.2);
    assert_eq!(listed(&test.bank), []);
}

#[test]
fn a_timeout_of_zero_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = BankOptions { lease_timeout: Some(Duration::ZERO), ..small_options() };
    let error = Bank::open(dir.path().join("bank"), options).unwrap_err();
    assert!(error.to_string().contains("lease_timeout"), "{error}");
}

#[test]
fn the_histogram_has_the_clock_that_each_get_saw() {
    let test = new_bank();
    let table = table(&test.bank, config());
    let mut leases: Vec<Lease> = (0..20).map(|_| get(&table, &[1, 1, 2])).collect();
    push_to_disk(&test.bank);
    leases.push(get(&table, &[2, 3]));
    let staleness = table.stats().staleness;
    let mut expected: Vec<_> = (0..=16).map(|clock| (clock, 2)).collect();
    expected[0].1 += 1;
    expected.push((32, 3 * 2 + 1)); // 17 to 19 of both rows, and 20 from disk
    assert_eq!(staleness.buckets().collect::<Vec<_>>(), expected);
    assert_eq!(staleness.rows(), table.stats().get_rows);
    assert_eq!((staleness.quantile(0.5), staleness.max()), (Some(9), Some(32)));
    let name = table.name().to_owned();
    drop(leases);
    let before = test.bank.stats().staleness;
    test.bank.drop_table(&name).unwrap();
    assert_eq!(test.bank.stats().staleness, before);
}

#[test]
fn a_get_that_had_to_wait_is_counted_once_as_it_came_through() {
    let test = new_bank_with(forgetful());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    mem::forget(get(&table, &[1]));
    get(&table, &[1, 2, 3]).release().unwrap();
    assert_eq!(table.stats().waits, 1);
    assert_eq!(table.stats().staleness.buckets().collect::<Vec<_>>(), [(0, 4)]);
}
