//! Tests Gets that fail in the middle of a batch. No count stays without a lease, no other lease
//! loses a count, and the log stays within its quota.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{TestBank, new_bank_with, small_options};
use embank::{BankOptions, Error, StoreError, Table, TableConfig};

const KEYS: u64 = 4000;
const DIM: usize = 64;
const QUOTA_BYTES: u64 = 6 << 20;

/// Makes a table several times as large as memory, whose log is at its quota. Operations that bring
/// rows into memory fail, unless the rows fit the last page.
fn full_table(bound: Option<u32>) -> (TestBank, Table) {
    let test = new_bank_with(BankOptions {
        disk_quota_bytes: Some(QUOTA_BYTES),
        wait_timeout: Duration::from_millis(200),
        ..small_options()
    });
    let table = test.bank.table("t", TableConfig::new(DIM as u32).staleness_bound(bound)).unwrap();
    let rows = vec![1.0; 100 * DIM];
    // The loop ends: each round uses up a part of the quota.
    for round in 0.. {
        let keys: Vec<u64> = (0..100).map(|i| (100 * round + i) % KEYS).collect();
        match table.put(&keys, &rows) {
            Ok(()) => {}
            Err(Error::Store(StoreError::QuotaExceeded { .. })) => break,
            Err(other) => panic!("{other}"),
        }
    }
    (test, table)
}

/// Shows that a failed Get gives back only its own counts. In an earlier version a Get counted a
/// row although another Get had moved the row to the tail. When the first Get failed, it gave back
/// the other Get's count.
#[test]
fn a_failed_get_gives_back_its_own_counts_alone() {
    let (test, table) = full_table(Some(0));
    let holders: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let (got, refused, step) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut rows = vec![0.0; 16 * DIM];
                for _ in 0..10_000 {
                    // Four steps use each batch of keys, so several threads get the same keys from
                    // disk together.
                    let first = step.fetch_add(1, Ordering::Relaxed) / 4 * 16;
                    let keys: Vec<u64> = (0..16).map(|i| (first + i) % KEYS).collect();
                    match table.get(&keys, &mut rows) {
                        Ok(lease) => {
                            for &key in &keys {
                                let others = holders[key as usize].fetch_add(1, Ordering::SeqCst);
                                assert_eq!(others, 0, "key {key}");
                            }
                            for _ in 0..50 {
                                std::thread::yield_now();
                            }
                            for &key in &keys {
                                holders[key as usize].fetch_sub(1, Ordering::SeqCst);
                            }
                            drop(lease);
                            got.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::Store(StoreError::QuotaExceeded { .. })) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::StalenessTimeout { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert!(got.into_inner() > 0 && refused.into_inner() > 0, "both have to happen");
    for key in 0..KEYS {
        assert_eq!(table.outstanding(key).unwrap().unwrap_or(0), 0, "key {key}");
    }
    assert_eq!(test.bank.stats().release_failures, 0);
}

/// Shows that refused Gets do not make the log longer. In an earlier version a Get took pages
/// before it checked the quota.
#[test]
fn refused_gets_do_not_grow_the_log() {
    let (test, table) = full_table(None);
    let mut rows = vec![0.0; 64 * DIM];
    let mut refused = 0;
    for round in 0..3000 {
        let keys: Vec<u64> = (0..64).map(|i| (round * 64 + i) % KEYS).collect();
        refused += u64::from(table.get(&keys, &mut rows).is_err());
        let log_bytes = test.bank.stats().store.log_disk_bytes;
        assert!(log_bytes <= QUOTA_BYTES, "{log_bytes} bytes after round {round}");
    }
    assert!(refused > 0);
}
