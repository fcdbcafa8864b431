//! Tests a process that is suspended, for example by `SIGSTOP` or by a batch system. The tests move
//! the clock and do not stop the process. They run in a program of their own, because the clock
//! belongs to the process.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::{new_bank_with, rows_of, small_options, table};
use embank::suspended::suspend_for;
use embank::{BankOptions, Error, Initializer, Optimizer, Table, TableConfig};

/// Longer than any wait of these tests on a busy machine.
const MINUTES: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);

/// With this config, a row's value counts the gradients of -1 that were applied to it.
fn config() -> TableConfig {
    TableConfig::new(1).optimizer(Optimizer::sgd(1.0)).initializer(Initializer::Zeros)
}

/// Calls `call` in another thread. In its own thread, a Get would wait for itself.
fn elsewhere<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(call).join().unwrap())
}

/// A suspension made leases older than `lease_timeout`. The next Get ended them, and their updates
/// were lost.
#[test]
fn a_suspension_makes_no_lease_expire() {
    let options = BankOptions { lease_timeout: Some(MINUTES), ..small_options() };
    let test = new_bank_with(options);
    for (name, bound) in [("bounded", Some(0)), ("unbounded", None)] {
        let table = test.bank.table(name, config().staleness_bound(bound)).unwrap();
        let lease = table.get(&[1, 2], &mut [0.0; 2]).unwrap();
        suspend_for(HOUR);
        let impatient = || table.request(&[1]).unwrap().within(Duration::ZERO);
        let got = elsewhere(|| table.get_rows(impatient(), &mut [0.0]).map(drop));
        match bound {
            Some(_) => assert!(matches!(got, Err(Error::StalenessTimeout { .. })), "{got:?}"),
            None => got.unwrap(),
        }
        lease.apply(&[-1.0, -1.0]).unwrap();
        assert_eq!(rows_of(&table, &[1, 2]), [1.0, 1.0]);
        assert_eq!(table.stats().leases_expired, 0);
    }
}

/// A lease still grows older while its bank works: a lease that no thread ends expires after a
/// suspension too.
#[test]
fn time_between_suspensions_makes_leases_old() {
    let options =
        BankOptions { lease_timeout: Some(Duration::from_millis(300)), ..small_options() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    std::mem::forget(table.get(&[1], &mut [0.0]).unwrap());
    suspend_for(HOUR);
    // This Get waits until the lease expires.
    elsewhere(|| table.get(&[1], &mut [0.0]).unwrap().apply(&[-1.0]).unwrap());
    assert_eq!((rows_of(&table, &[1]), table.stats().leases_expired), (vec![1.0], 1));
}

/// A suspension was longer than `wait_timeout`, and the waiting Gets failed when it ended, although
/// the lease's owner was about to end the lease.
#[test]
fn a_suspension_ends_no_wait() {
    /// Number of checks of waiting Gets for an interrupt. Each follows a look at the clock.
    static CHECKS: AtomicU32 = AtomicU32::new(0);
    const GETS: u32 = 3;

    embank::check_while_waiting(|| {
        if CHECKS.fetch_add(1, Ordering::SeqCst).is_multiple_of(GETS) {
            suspend_for(HOUR);
        }
        false
    });
    let options = BankOptions { wait_timeout: MINUTES, ..small_options() };
    let test = new_bank_with(options);
    let table = table(&test.bank, config().staleness_bound(Some(0)));
    let lease = table.get(&[1, 2], &mut [0.0; 2]).unwrap();
    let train = |table: &Table| table.get(&[1, 2], &mut [0.0; 2])?.apply(&[-1.0, -1.0]);
    thread::scope(|scope| {
        // After 50 ms the first Gets reserve their rows, and others wait in line behind them.
        let gets: Vec<_> = (0..GETS).map(|_| scope.spawn(|| train(&table))).collect();
        // The loop ends: every waiting Get checks regularly, whether it waits for a row or in line.
        while CHECKS.load(Ordering::SeqCst) < 8 * GETS
            && !gets.iter().any(thread::ScopedJoinHandle::is_finished)
        {
            thread::sleep(Duration::from_millis(1));
        }
        lease.apply(&[-1.0, -1.0]).unwrap();
        for get in gets {
            get.join().unwrap().unwrap();
        }
    });
    assert_eq!(rows_of(&table, &[1, 2]), [4.0, 4.0]);
    assert_eq!(table.stats().timeouts, 0);
}
