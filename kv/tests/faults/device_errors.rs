//! Tests disks that fail. The caller gets an error and no wrong row, and the last checkpoint stays
//! sound.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::ErrorKind;
use std::sync::Arc;

use super::faulty::{BUDGET_BYTES, Open, VALUE_BYTES, memory, open_on, try_put};
use crate::common::compacting::by_hand;
use crate::common::{GetAll, is_on_disk, peek, put, value};
use embank_kv::device::{Device, FaultyDevice};
use embank_kv::{Clock, Error, Store, TableId};

const ROWS: u64 = 5000;
/// The text in an `Error::Io` that a test injected.
const INJECTED: &str = "injected";

/// A bank on a disk in memory. The disk still exists when the store is closed.
struct Bank {
    dir: tempfile::TempDir,
    disk: Arc<dyn Device>,
}

impl Bank {
    /// Makes a bank with `ROWS` rows of version 0 in checkpoint 1, most of them on disk.
    fn new() -> Self {
        let bank = Bank { dir: tempfile::tempdir().unwrap(), disk: memory() };
        let open = bank.open();
        put(&open.store, open.table, &all(), 0, VALUE_BYTES);
        open.store.checkpoint(b"good").unwrap();
        bank
    }

    /// Opens the bank without background compaction. Compaction could receive a failure that a test
    /// wants in another call.
    fn open(&self) -> Open {
        open_on(self.dir.path(), &self.disk, &by_hand(BUDGET_BYTES))
    }

    /// Asserts that the bank opens at checkpoint 1 and can be used.
    fn check_good(&self) {
        let Open { store, table, .. } = self.open();
        assert_eq!(store.recovered().unwrap().blob, b"good");
        check_rows(&store, table, &all(), 0);
        put(&store, table, &all()[..10], 7, VALUE_BYTES);
        check_rows(&store, table, &all()[..10], 7);
    }
}

fn all() -> Vec<u64> {
    (0..ROWS).collect()
}

fn check_rows(store: &Store, table: TableId, keys: &[u64], version: u64) {
    for (&key, row) in keys.iter().zip(peek(store, table, keys).unwrap()) {
        assert_eq!(row.unwrap(), value(key, version, VALUE_BYTES), "key {key}");
    }
}

fn resident(open: &Open) -> Vec<u64> {
    all().into_iter().filter(|&key| !is_on_disk(&open.store, open.table, key)).collect()
}

fn assert_poisoned(result: Result<impl std::fmt::Debug, Error>, cause: &str) {
    let error = result.unwrap_err();
    let Error::Poisoned { reason } = &error else { panic!("{error}") };
    assert!(reason.contains(cause), "{reason:?} tells of {cause:?}");
}

/// Asserts the state after a failed write: the store refuses further writes, and rows in memory can
/// be peeked.
fn assert_refuses_writes(open: &Open, cause: &str) {
    let calls = open.device.calls();
    assert_poisoned(try_put(open, &[1], 9), cause);
    let mut values = [Vec::new()];
    let get = open.store.execute(open.table, &[1], Clock::Keep, &mut GetAll(&mut values));
    assert_poisoned(get, cause);
    assert_poisoned(open.store.delete(open.table, &[1]), cause);
    assert_poisoned(open.store.promote(open.table, &[1]), cause);
    assert_poisoned(open.store.checkpoint(b"bad"), cause);
    let after = open.device.calls();
    assert_eq!((after.writes, after.syncs), (calls.writes, calls.syncs));
    let resident = resident(open);
    assert!(!resident.is_empty());
    let rows = peek(&open.store, open.table, &resident).unwrap();
    for (key, row) in resident.into_iter().zip(rows) {
        let row = row.unwrap();
        assert!((0..=1).any(|version| row == value(key, version, VALUE_BYTES)), "key {key}");
    }
}

#[test]
fn a_failed_write_while_pages_turn_reaches_the_caller() {
    for n in [1, 2, 7] {
        let bank = Bank::new();
        let open = bank.open();
        open.device.fail_write(n, ErrorKind::Other);
        // Puts far more rows than memory holds, so that pages must be written.
        assert_poisoned(try_put(&open, &all(), 1), INJECTED);
        assert_refuses_writes(&open, INJECTED);
        // The bank recovers when it is opened again on the working disk.
        drop(open);
        bank.check_good();
    }
}

#[test]
fn a_torn_write_harms_no_checkpoint() {
    for kept_bytes in [512, 4096, 7680] {
        let bank = Bank::new();
        let open = bank.open();
        open.device.tear_write(3, kept_bytes, ErrorKind::Other);
        assert_poisoned(try_put(&open, &all(), 1), INJECTED);
        drop(open);
        bank.check_good();
    }
}

#[test]
fn a_full_disk_fails_the_checkpoint_and_not_the_one_before() {
    let bank = Bank::new();
    let open = bank.open();
    try_put(&open, &all()[..100], 1).unwrap();
    open.device.break_writes(ErrorKind::StorageFull);
    for _ in 0..2 {
        let error = open.store.checkpoint(b"bad").unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
        assert!(error.to_string().contains(INJECTED), "{error}");
    }
    // The store kept the page in memory. When the disk has room again, no row is lost.
    open.device.mend();
    open.store.checkpoint(b"room").unwrap();
    drop(open);
    let Open { store, table, .. } = bank.open();
    assert_eq!(store.recovered().unwrap().blob, b"room");
    check_rows(&store, table, &all()[..100], 1);
    check_rows(&store, table, &all()[100..], 0);
}

#[test]
fn a_failure_of_any_write_of_a_checkpoint_is_an_error_or_tried_again() {
    for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
        let bank = Bank::new();
        for n in 1.. {
            let open = bank.open();
            try_put(&open, &all()[..1000], 1).unwrap();
            open.device.fail_write(n, kind);
            let before = open.device.calls().writes;
            let result = open.store.checkpoint(b"bad");
            let writes = open.device.calls().writes - before;
            if writes < n {
                result.unwrap();
                assert!(n > 2, "a checkpoint of 1000 rows writes several pages, not {writes}");
                break;
            }
            if kind == ErrorKind::StorageFull {
                // Only one write fails, as on a disk that is full for a moment. The checkpoint
                // tries again and succeeds.
                result.unwrap();
                drop(open);
                let open = bank.open();
                check_rows(&open.store, open.table, &all()[..1000], 1);
                continue;
            }
            let error = result.unwrap_err();
            assert!(error.to_string().contains(INJECTED), "{error}");
            drop(open);
            bank.check_good();
        }
    }
}

#[test]
fn a_failed_sync_fails_the_checkpoint_and_stops_the_store() {
    let bank = Bank::new();
    let open = bank.open();
    try_put(&open, &all()[..100], 1).unwrap();
    open.device.fail_sync(1, ErrorKind::Other);
    let error = open.store.checkpoint(b"bad").unwrap_err();
    assert!(matches!(&error, Error::Io { operation: "sync", .. }), "{error}");
    // The kernel may have dropped data after the failed sync. A later sync that succeeds therefore
    // proves nothing.
    assert_refuses_writes(&open, INJECTED);
    assert_eq!(open.store.stats().checkpoints, 0);
    drop(open);
    bank.check_good();
}

#[test]
fn threads_that_wait_for_a_page_hear_of_the_failure() {
    let bank = Bank::new();
    let open = bank.open();
    open.device.break_writes(ErrorKind::Other);
    std::thread::scope(|s| {
        for thread in 0..4 {
            let open = &open;
            s.spawn(move || {
                let keys: Vec<u64> = (thread * ROWS..(thread + 1) * ROWS).collect();
                assert_poisoned(try_put(open, &keys, 1), INJECTED);
            });
        }
    });
    drop(open);
    bank.check_good();
}

#[test]
fn a_failed_read_fails_its_batch_and_no_later_one() {
    let bank = Bank::new();
    let open = bank.open();
    for key in all() {
        put(&open.store, open.table, &[key], 0, VALUE_BYTES);
    }
    open.store.checkpoint(b"good").unwrap();
    drop(open);
    // These rows are on different pages, in order, so each read covers one row. After a failed read
    // that covers several rows, the store would read each row alone and the failure would not show.
    let apart: Vec<u64> = all().into_iter().step_by(100).collect();
    // The read that fails is the first read, or a read after one buffer of 32 reads was used.
    for n in [1, 33, 48] {
        let open = bank.open();
        open.device.fail_read(n, ErrorKind::Other);
        let error = peek(&open.store, open.table, &apart).unwrap_err();
        let Error::Io { operation: "read", path, .. } = &error else { panic!("{error}") };
        assert!(path.to_string_lossy().ends_with(".seg"), "{path:?}");
        check_rows(&open.store, open.table, &all(), 0);
        drop(open);
        // A failed get changes no row. The next attempt finds all rows.
        let open = bank.open();
        open.device.fail_read(n, ErrorKind::Other);
        let mut values = vec![Vec::new(); apart.len()];
        open.store.execute(open.table, &apart, Clock::Keep, &mut GetAll(&mut values)).unwrap_err();
        open.store.execute(open.table, &apart, Clock::Keep, &mut GetAll(&mut values)).unwrap();
        for (&key, found) in apart.iter().zip(values) {
            assert_eq!(found, value(key, 0, VALUE_BYTES), "key {key}");
        }
    }
    let open = bank.open();
    open.device.fail_read(40, ErrorKind::Other);
    peek(&open.store, open.table, &apart).unwrap_err();
    // A failed read does not stop later writes.
    try_put(&open, &all(), 1).unwrap();
    check_rows(&open.store, open.table, &all(), 1);
    open.store.checkpoint(b"").unwrap();
}

#[test]
fn reads_may_complete_in_any_order() {
    let bank = Bank::new();
    let open = bank.open();
    for seed in 0..5 {
        open.device.shuffle_completions(seed);
        check_rows(&open.store, open.table, &all(), 0);
        let mut values = vec![Vec::new(); ROWS as usize];
        open.store.execute(open.table, &all(), Clock::Keep, &mut GetAll(&mut values)).unwrap();
        for (key, found) in all().into_iter().zip(values) {
            assert_eq!(found, value(key, 0, VALUE_BYTES), "key {key}, seed {seed}");
        }
    }
    assert!(open.store.stats().disk_queue_depth_max > 1);
}

#[test]
fn a_flipped_bit_is_damage_that_names_file_page_and_table() {
    let bank = Bank::new();
    let open = bank.open();
    let page_bytes = open.store.stats().page_size_bytes;
    // Rows have 96 bytes, and the first begins at offset 64. The flipped bit is in the value of the
    // fifth row of page 3.
    let offset = 3 * page_bytes + 64 + 4 * 96 + 40;
    open.device.flip_bit_on_read(offset, 5);
    let mut damaged = Vec::new();
    for key in all() {
        match peek(&open.store, open.table, &[key]) {
            Ok(rows) => assert_eq!(rows, [Some(value(key, 0, VALUE_BYTES))]),
            Err(error) => {
                let Error::Damaged { path, offset: at, what } = &error else { panic!("{error}") };
                assert!(path.to_string_lossy().ends_with(".seg"), "{path:?}");
                assert_eq!(*at, 3 * page_bytes + 64 + 4 * 96);
                assert!(what.contains("page 3") && what.contains("\"users\""), "{what}");
                damaged.push(key);
            }
        }
    }
    assert_eq!(damaged.len(), 1, "one row is damaged: {damaged:?}");
    // No operation may use the damaged record as a row or report the row as missing.
    let (keys, mut values) = (damaged, [Vec::new()]);
    let get = open.store.execute(open.table, &keys, Clock::Keep, &mut GetAll(&mut values));
    assert!(matches!(get, Err(Error::Damaged { .. })));
    assert!(matches!(open.store.delete(open.table, &keys), Err(Error::Damaged { .. })));
    assert!(matches!(open.store.promote(open.table, &keys), Err(Error::Damaged { .. })));
    assert!(matches!(open.store.clock_of(open.table, keys[0]), Err(Error::Damaged { .. })));
    open.device.mend();
    check_rows(&open.store, open.table, &all(), 0);
}

#[test]
fn every_flipped_bit_of_a_record_is_noticed() {
    let bank = Bank::new();
    let open = bank.open();
    for bit in 0..96 * 8 {
        // The log's first record has key 0.
        open.device.flip_bit_on_read(64 + bit / 8, (bit % 8) as u8);
        let error = peek(&open.store, open.table, &[0]).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "bit {bit}: {error}");
        open.device.mend();
    }
    check_rows(&open.store, open.table, &[0], 0);
}

#[test]
fn a_log_cut_short_is_an_error_on_opening_and_on_reading() {
    let bank = Bank::new();
    let open = bank.open();
    open.device.cut_reads_at(10_000);
    let error = peek(&open.store, open.table, &all()).unwrap_err();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
    let end = open.store.stats().log_tail / 8192 * 8192;
    drop(open);
    let device = Arc::new(FaultyDevice::new(Arc::clone(&bank.disk)));
    device.cut_reads_at(end - 1);
    let error =
        Store::open_on(bank.dir.path(), &by_hand(BUDGET_BYTES), |_| Ok(device)).unwrap_err();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
    bank.check_good();
}

#[test]
fn a_failed_truncate_fails_the_open() {
    let bank = Bank::new();
    let device = Arc::new(FaultyDevice::new(Arc::clone(&bank.disk)));
    device.fail_truncate(1, ErrorKind::PermissionDenied);
    let error =
        Store::open_on(bank.dir.path(), &by_hand(BUDGET_BYTES), |_| Ok(device)).unwrap_err();
    assert!(matches!(error, Error::Io { operation: "truncate", .. }), "{error}");
    bank.check_good();
}
