//! Tests prefetches, which read rows into a buffer in advance.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::time::{Duration, Instant};

use crate::common::{initial_of, new_bank, push_to_disk, small_options, table};
use embank::{Bank, BankOptions, Error, Missing, StoreError, Table, TableConfig};

/// Makes a table whose rows' values are their keys. Rows of even keys are in memory, and rows of
/// odd keys on disk.
fn scattered(bank: &Bank, count: u64) -> (Table, Vec<u64>) {
    let table = table(bank, TableConfig::new(2));
    let keys: Vec<u64> = (0..count).collect();
    let put = |parity| {
        let keys: Vec<u64> = (parity..count).step_by(2).collect();
        let rows: Vec<f32> = keys.iter().flat_map(|&key| [key as f32; 2]).collect();
        table.put(&keys, &rows).unwrap();
    };
    put(1);
    push_to_disk(bank);
    put(0);
    (table, keys)
}

#[test]
fn rows_come_as_a_peek_reads_them_and_no_clock_or_log_moves() {
    let test = new_bank();
    let (table, keys) = scattered(&test.bank, 5000);
    let lease = table.get(&[7], &mut [0.0; 2]).unwrap();
    let tail = test.bank.stats().store.log_tail;
    let mut asked = keys.clone();
    asked.extend([3, 9_999, 4, 3, 9_999]);
    let prefetch = table.prefetch(&asked).unwrap();
    let mut rows = vec![f32::NAN; 2 * asked.len()];
    let outcome = prefetch.wait(&mut rows, Missing::Initial).unwrap();
    let mut peeked = vec![f32::NAN; 2 * asked.len()];
    table.peek(&asked, &mut peeked, Missing::Initial).unwrap();
    assert_eq!(rows, peeked);
    assert_eq!(outcome.missing, [5001, 5004]);
    assert_eq!(rows[2 * 5001..][..2], initial_of(&table, &[9_999]));
    assert_eq!(test.bank.stats().store.log_tail, tail, "nothing was written");
    assert_eq!(table.outstanding(7).unwrap(), Some(1));
    lease.release().unwrap();
}

#[test]
fn missing_rows_are_dealt_with_as_asked() {
    let test = new_bank();
    let (table, _) = scattered(&test.bank, 4);
    let mut rows = [7.0; 4];
    let asked = [100, 1];
    let error = table.prefetch(&asked).unwrap().wait(&mut rows, Missing::Error).unwrap_err();
    assert!(matches!(error, Error::MissingRow { key: 100, count: 1, .. }), "{error}");
    let mut rows = [7.0; 4];
    table.prefetch(&asked).unwrap().wait(&mut rows, Missing::Skip).unwrap();
    assert_eq!(rows, [7.0, 7.0, 1.0, 1.0]);
    let error = table.prefetch(&asked).unwrap().wait(&mut [0.0; 3], Missing::Skip).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    table.prefetch(&[]).unwrap().wait(&mut [], Missing::Error).unwrap();
}

#[test]
fn many_at_once_each_get_their_own() {
    let test = new_bank();
    let (table, keys) = scattered(&test.bank, 3000);
    let requests: Vec<_> =
        keys.chunks(170).map(|keys| (keys, table.prefetch(keys).unwrap())).collect();
    table.lookahead(&keys).unwrap();
    for (keys, prefetch) in requests.into_iter().rev() {
        let mut rows = vec![0.0; 2 * keys.len()];
        prefetch.wait(&mut rows, Missing::Error).unwrap();
        assert!(rows.chunks(2).zip(keys).all(|(row, &key)| row == [key as f32; 2]));
    }
}

#[test]
fn it_becomes_ready_by_itself() {
    let test = new_bank();
    let (table, keys) = scattered(&test.bank, 3000);
    let prefetch = table.prefetch(&keys).unwrap();
    assert_eq!(prefetch.batch_len(), 3000);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !prefetch.is_ready() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    // The prefetch returns the row as it was when it was read.
    table.put(&[1], &[9.0; 2]).unwrap();
    let mut rows = vec![0.0; 6000];
    prefetch.wait(&mut rows, Missing::Error).unwrap();
    assert_eq!(rows[2..4], [1.0; 2]);
}

#[test]
fn buffers_come_out_of_the_budget_and_go_back() {
    let test = new_bank();
    let table = test.bank.table("wide", TableConfig::new(256)).unwrap();
    let keys: Vec<u64> = (0..100).collect();
    table.put(&keys, &vec![1.0; 25_600]).unwrap();
    let mut held = Vec::new();
    let refused = loop {
        match table.prefetch(&keys) {
            Ok(prefetch) => held.push(prefetch),
            Err(error) => break error,
        }
        assert!(held.len() < 100, "more than the budget is lent");
    };
    match refused {
        Error::Store(StoreError::BudgetTooSmall { budget_bytes, .. }) => {
            assert_eq!(budget_bytes, small_options().memory_budget_bytes);
        }
        other => panic!("{other}"),
    }
    // After the handles are dropped, their memory returns to the budget once the lookahead thread
    // runs next.
    drop(held);
    let deadline = Instant::now() + Duration::from_secs(60);
    let again = loop {
        match table.prefetch(&keys) {
            Ok(prefetch) => break prefetch,
            Err(_) => assert!(Instant::now() < deadline),
        }
    };
    let mut rows = vec![0.0; 25_600];
    again.wait(&mut rows, Missing::Error).unwrap();
    assert!(rows.iter().all(|&value| value == 1.0));
}

#[test]
fn an_unreadable_row_is_the_waiters_error_and_nobody_elses() {
    let test = new_bank();
    let (table, keys) = scattered(&test.bank, 200);
    for file in std::fs::read_dir(test.bank.path().join("log")).unwrap() {
        let file = file.unwrap();
        let length = file.metadata().unwrap().len();
        std::fs::write(file.path(), vec![0xA5; length as usize]).unwrap();
    }
    let even: Vec<u64> = keys.iter().copied().filter(|key| key % 2 == 0).collect();
    let broken = table.prefetch(&keys).unwrap();
    let fine = table.prefetch(&even).unwrap();
    let error = broken.wait(&mut vec![0.0; 400], Missing::Error).unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::Damaged { .. })), "{error}");
    fine.wait(&mut vec![0.0; 200], Missing::Error).unwrap();
    table.lookahead(&even).unwrap();
}

#[test]
fn a_dropped_table_and_a_closing_bank_leave_nobody_waiting() {
    let test = new_bank();
    let (table, keys) = scattered(&test.bank, 3000);
    test.bank.drop_table("t").unwrap();
    match table.prefetch(&keys).unwrap().wait(&mut vec![0.0; 6000], Missing::Error) {
        Err(Error::TableDropped { .. }) => {}
        other => panic!("{other:?}"),
    }
    let (table, keys) = scattered(&test.bank, 3000);
    let abandoned: Vec<_> = (0..5).map(|_| table.prefetch(&keys).unwrap()).collect();
    drop((table, test));
    drop(abandoned);
}

#[test]
fn a_bank_without_a_lookahead_queue_can_prefetch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bank");
    {
        let bank = Bank::open(&path, small_options()).unwrap();
        scattered(&bank, 100);
        bank.checkpoint(b"").unwrap();
    }
    let bank = Bank::open_read_only(&path, BankOptions { ..small_options() }, None).unwrap();
    let mut rows = [0.0; 4];
    let table = bank.open_table("t").unwrap();
    table.prefetch(&[3, 4]).unwrap().wait(&mut rows, Missing::Error).unwrap();
    assert_eq!(rows, [3.0, 3.0, 4.0, 4.0]);
}
