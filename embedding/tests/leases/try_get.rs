//! Tests Gets that wait briefly or not at all: which rows they hold afterwards, and how they work
//! in an async runtime.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{new_bank, table};
use embank::{Error, Initializer, Optimizer, Table, TableConfig};

fn config() -> TableConfig {
    TableConfig::new(1)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Zeros)
        .staleness_bound(Some(0))
}

fn try_get(table: &Table, keys: &[u64]) -> Option<embank::Lease> {
    table.try_get(keys, &mut vec![0.0; keys.len()]).unwrap()
}

#[test]
fn a_get_that_would_wait_holds_nothing() {
    let test = new_bank();
    let table = table(&test.bank, config());
    let lease = table.get(&[2], &mut [0.0]).unwrap();
    // Calls `try_get` in this thread, where a Get would fail at once, and in another thread, where
    // a Get would wait.
    assert!(try_get(&table, &[1, 2, 3, 2]).is_none());
    thread::scope(|scope| {
        scope.spawn(|| assert!(try_get(&table, &[1, 2, 3, 2]).is_none()));
    });
    let distinct = table.request(&[1, 2, 3, 2]).unwrap().distinct();
    assert!(table.try_get_rows(distinct, &mut [0.0; 3]).unwrap().is_none());
    for key in [1, 3] {
        assert_eq!(table.outstanding(key).unwrap().unwrap_or(0), 0, "key {key}");
    }
    assert_eq!((test.bank.outstanding_leases().len(), test.bank.stats().waits), (1, 0));
    lease.apply(&[-1.0]).unwrap();
    let mut rows = [0.0; 4];
    let lease = table.try_get(&[1, 2, 3, 2], &mut rows).unwrap().unwrap();
    assert_eq!(rows, [0.0, 1.0, 0.0, 1.0]);
    lease.apply(&[-1.0; 4]).unwrap();
    assert!(matches!(table.try_get(&[1], &mut []), Err(Error::ShapeMismatch { .. })));
}

/// Shows that a request's own timeout applies. The bank's `wait_timeout` is two minutes.
#[test]
fn a_request_waits_as_long_as_it_is_told() {
    let test = new_bank();
    let table = table(&test.bank, config());
    let lease = table.get(&[2], &mut [0.0]).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for timeout in [Duration::ZERO, Duration::from_millis(30)] {
                let brief = table.request(&[1, 2]).unwrap().within(timeout);
                let began = Instant::now();
                let failed = table.get_rows(brief, &mut [0.0; 2]);
                assert!(
                    matches!(failed, Err(Error::StalenessTimeout { key: 2, .. })),
                    "{failed:?}"
                );
                assert!(began.elapsed() >= timeout);
            }
        });
    });
    assert_eq!((table.outstanding(1).unwrap().unwrap_or(0), test.bank.stats().timeouts), (0, 2));
    lease.release().unwrap();
    let at_once = table.request(&[1, 2]).unwrap().within(Duration::ZERO);
    table.get_rows(at_once, &mut [0.0; 2]).unwrap().release().unwrap();
}

/// Shows that `try_get` does not take a reserved row. Otherwise polling tasks would overtake a
/// waiting Get forever.
#[test]
fn a_row_that_is_reserved_is_not_taken() {
    let test = new_bank();
    let table = table(&test.bank, config());
    thread::scope(|scope| {
        // Another thread takes the lease. If this thread had taken it, its Gets could overtake the
        // reservation that waits for the lease.
        let held = scope.spawn(|| table.get(&[1], &mut [0.0]).unwrap()).join().unwrap();
        let waiting = scope.spawn(|| table.get(&[1, 2], &mut [0.0; 2]).unwrap().release());
        // The loop ends: the Get reserves its rows after it has waited for 50 ms.
        while let Some(lease) = try_get(&table, &[2]) {
            lease.release().unwrap();
            thread::yield_now();
        }
        assert!(try_get(&table, &[3]).is_some(), "other rows are free");
        held.release().unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert!(try_get(&table, &[1, 2]).is_some());
}

/// Shows that tasks of one thread can take turns with `try_get`. Each task holds a lease across an
/// await. With `get`, the second task would block the thread, and the first task could never end
/// its lease.
#[test]
fn tasks_of_one_thread_take_turns() {
    let test = new_bank();
    let table = table(&test.bank, config());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let step = |table: Table| async move {
        let mut row = [0.0];
        // The loop ends: each task ends its lease without waiting for another task.
        let lease = loop {
            match table.try_get(&[9], &mut row).unwrap() {
                Some(lease) => break lease,
                None => tokio::task::yield_now().await,
            }
        };
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        lease.apply(&[-1.0]).unwrap();
    };
    runtime.block_on(async {
        let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(step(table.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    let mut row = [0.0];
    table.peek(&[9], &mut row, embank::Missing::Error).unwrap();
    assert_eq!((row, test.bank.stats().waits), ([8.0], 0));
}
