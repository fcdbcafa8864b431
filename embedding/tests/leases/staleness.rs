//! Tests leases, staleness clocks, and waits for the staleness bound.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::time::Duration;

use crate::common::{new_bank, new_bank_with, push_to_disk, rows_of, small_options, table};
use embank::{Bank, BankOptions, Error, Initializer, Lease, Optimizer, Table, TableConfig};

fn impatient() -> BankOptions {
    BankOptions { wait_timeout: Duration::from_millis(20), ..small_options() }
}

fn config() -> TableConfig {
    TableConfig::new(1).optimizer(Optimizer::sgd(1.0)).initializer(Initializer::Zeros)
}

fn get_distinct(table: &Table, keys: &[u64]) -> Lease {
    let request = table.request(keys).unwrap().distinct();
    let mut rows = vec![0.0; request.row_count()];
    table.get_rows(request, &mut rows).unwrap()
}

fn get(table: &Table, keys: &[u64]) -> Lease {
    table.get(keys, &mut vec![0.0; keys.len()]).unwrap()
}

/// Returns the error of a Get that times out. The Get runs in another thread, because it fails at
/// once if its own thread's leases block it.
fn times_out(table: &Table, keys: &[u64]) -> Error {
    let get = || table.get(keys, &mut vec![0.0; keys.len()]).unwrap_err();
    std::thread::scope(|scope| scope.spawn(get).join().unwrap())
}

/// Returns once this number of Gets of the table have begun to wait.
fn until_waiting(table: &Table, waits: u64) {
    while table.stats().waits < waits {
        std::thread::yield_now();
    }
}

#[test]
fn without_a_bound_clocks_tick_and_nobody_waits() {
    let test = new_bank_with(impatient());
    let table = table(&test.bank, config());
    let leases: Vec<Lease> = (0..5).map(|_| get(&table, &[3, 3])).collect();
    assert_eq!(table.outstanding(3).unwrap(), Some(5));
    drop(leases);
    assert_eq!(table.outstanding(3).unwrap(), Some(0));
    assert_eq!(table.stats().waits, 0);
}

#[test]
fn a_get_waits_while_more_than_bound_are_outstanding_and_names_what_it_waited_for() {
    let test = new_bank_with(impatient());
    for bound in [0, 1, 4] {
        let config = config().staleness_bound(Some(bound));
        let table = test.bank.table(&format!("bound {bound}"), config).unwrap();
        let leases: Vec<Lease> = (0..=bound).map(|_| get(&table, &[7])).collect();
        match times_out(&table, &[1, 7, 9]) {
            Error::StalenessTimeout {
                table: name,
                key,
                outstanding,
                bound: named,
                waited,
                oldest,
            } => {
                assert_eq!((name.as_str(), key), (table.name(), 7));
                assert_eq!((outstanding, named), (bound + 1, bound));
                assert!(waited >= Duration::from_millis(20));
                assert_eq!(oldest.map(|lease| lease.keys), Some(1));
            }
            other => panic!("{other}"),
        }
        assert_eq!(table.outstanding(1).unwrap(), Some(0), "a blocked batch holds nothing");
        drop(leases);
        drop(get(&table, &[1, 7, 9]));
        assert_eq!((table.stats().waits, table.stats().timeouts), (1, 1));
    }
    assert_eq!((test.bank.stats().waits, test.bank.stats().timeouts), (3, 3));
}

#[test]
fn every_way_of_ending_a_lease_gives_its_counts_back() {
    let test = new_bank_with(impatient());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let keys = [1, 2, 1];
    get(&table, &keys).apply(&[1.0; 3]).unwrap();
    get_distinct(&table, &keys).apply(&[1.0; 2]).unwrap();
    get(&table, &keys).put(&[1.0; 3]).unwrap();
    get_distinct(&table, &keys).put(&[1.0; 2]).unwrap();
    get(&table, &keys).release().unwrap();
    drop(get(&table, &keys));
    get(&table, &keys).apply(&[f32::NAN; 3]).unwrap_err();
    get(&table, &keys).apply(&[1.0; 2]).unwrap_err();
    get(&table, &keys).put(&[1.0; 2]).unwrap_err();
    assert_eq!(table.outstanding(1).unwrap(), Some(0));
    assert_eq!(table.stats().waits, 0);
}

#[test]
fn a_batch_does_not_wait_on_itself() {
    let test = new_bank_with(impatient());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    drop(get(&table, &[5; 100]));
    let keys: Vec<u64> = (0..4096).map(|place| place % 50).collect();
    drop(get(&table, &keys));
    assert_eq!(table.stats().waits, 0);
}

#[test]
fn peeks_puts_and_gradients_without_a_lease_do_not_wait() {
    let test = new_bank_with(impatient());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let lease = get(&table, &[5]);
    table.put(&[5], &[4.0]).unwrap();
    table.apply_gradients(&[5], &[1.0]).unwrap();
    assert_eq!(rows_of(&table, &[5]), [3.0]);
    assert_eq!(table.outstanding(5).unwrap(), Some(1));
    lease.apply(&[1.0]).unwrap();
    assert_eq!(rows_of(&table, &[5]), [2.0]);
    assert_eq!(table.outstanding(5).unwrap(), Some(0));
}

#[test]
fn a_waiting_get_goes_on_when_the_update_comes_and_sees_it() {
    let test = new_bank();
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let lease = get(&table, &[1, 2]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut rows = [0.0; 3];
            drop(table.get(&[3, 2, 1], &mut rows).unwrap());
            rows
        });
        until_waiting(&table, 1);
        lease.apply(&[-10.0, -20.0]).unwrap();
        assert_eq!(waiter.join().unwrap(), [0.0, 20.0, 10.0]);
    });
    assert_eq!(table.stats().timeouts, 0);
}

#[test]
fn a_waiting_batch_holds_none_of_its_other_rows() {
    let test = new_bank();
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let lease = get(&table, &[1]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(get(&table, &[1, 2, 3])));
        until_waiting(&table, 1);
        for _ in 0..20 {
            get(&table, &[2, 3]).apply(&[1.0, 1.0]).unwrap();
        }
        drop(lease);
        waiter.join().unwrap();
    });
}

#[test]
fn batches_that_cross_each_other_all_come_through() {
    let test = new_bank();
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let rounds = 60;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..rounds {
                    let mut keys: Vec<u64> = (0..40).map(|key| (key * 7 + round) % 40).collect();
                    keys.rotate_left(10 * thread as usize);
                    get(table, &keys).apply(&[-1.0; 40]).unwrap();
                }
            });
        }
    });
    let keys: Vec<u64> = (0..40).collect();
    assert_eq!(rows_of(&table, &keys), [4.0 * rounds as f32; 40]);
    assert_eq!(table.stats().timeouts, 0);
}

/// Shows that with bound 0, reading, changing and putting rows under a lease is exclusive.
#[test]
fn bound_zero_makes_get_and_put_exclusive() {
    let test = new_bank();
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..100 {
                    let keys = [(thread + round) % 5, (thread * 3 + round) % 5 + 5];
                    let mut rows = [0.0; 2];
                    let lease = table.get(&keys, &mut rows).unwrap();
                    lease.put(&rows.map(|value| value + 1.0)).unwrap();
                }
            });
        }
    });
    let keys: Vec<u64> = (0..10).collect();
    assert_eq!(rows_of(&table, &keys).iter().sum::<f32>(), 800.0);
}

#[test]
fn a_bound_can_be_switched_on_later() {
    let test = new_bank_with(impatient());
    let table = table(&test.bank, config());
    let lease = get(&table, &[1]);
    table.set_staleness_bound(Some(0));
    times_out(&table, &[1]);
    table.set_staleness_bound(Some(1));
    drop(get(&table, &[1]));
    table.set_staleness_bound(None);
    drop((lease, get(&table, &[1])));
    assert_eq!(table.outstanding(1).unwrap(), Some(0));
}

#[test]
fn the_bound_holds_for_rows_on_disk() {
    let test = new_bank_with(impatient());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let keys: Vec<u64> = (0..50).collect();
    let lease = get(&table, &keys);
    push_to_disk(&test.bank);
    assert_eq!(table.outstanding(31).unwrap(), Some(1));
    assert!(matches!(times_out(&table, &[31]), Error::StalenessTimeout { outstanding: 1, .. }));
    push_to_disk(&test.bank);
    lease.apply(&[-1.0; 50]).unwrap();
    push_to_disk(&test.bank);
    drop(get(&table, &keys));
    assert_eq!(rows_of(&table, &keys), [1.0; 50]);
}

#[test]
fn counts_do_not_survive_a_restart() {
    let test = new_bank_with(impatient());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let lease = get(&table, &[1]);
    test.bank.checkpoint(b"").unwrap();
    drop(lease);
    drop(table);
    let path = test.bank.path().to_owned();
    drop(test.bank);
    let bank = Bank::open(path, impatient()).unwrap();
    let table = bank.open_table("t").unwrap();
    assert_eq!(table.outstanding(1).unwrap(), Some(0));
    assert_eq!(table.staleness_bound(), Some(0));
    drop(get(&table, &[1]));
}

#[test]
fn a_raised_bound_wakes_those_who_wait() {
    // The bank's `wait_timeout` is two minutes. Only the wake-up lets the second Get through
    // earlier.
    let test = new_bank_with(small_options());
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let held = get(&table, &[5]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| get(&table, &[5]));
        until_waiting(&table, 1);
        table.set_staleness_bound(Some(1));
        drop(waiting.join().unwrap());
    });
    assert_eq!(table.outstanding(5).unwrap(), Some(1));
    drop(held);
    assert_eq!(table.stats().timeouts, 0);
}
