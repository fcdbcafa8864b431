//! Tests lookahead, which reads rows into memory in advance.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::time::Duration;

use crate::common::{new_bank, new_bank_with, push_to_disk, rows_of, small_options, table};
use embank::{Bank, BankOptions, LookaheadStats, Optimizer, Table, TableConfig};

const PATIENCE: Duration = Duration::from_secs(120);

/// Makes a table with `count` rows on disk. Each row's values are its key.
fn rows_on_disk(bank: &Bank, count: u64) -> (Table, Vec<u64>) {
    let table = table(bank, TableConfig::new(2).optimizer(Optimizer::sgd(1.0)));
    let keys: Vec<u64> = (0..count).collect();
    let rows: Vec<f32> = keys.iter().flat_map(|&key| [key as f32; 2]).collect();
    table.put(&keys, &rows).unwrap();
    push_to_disk(bank);
    (table, keys)
}

/// Waits until the lookahead queue is empty. Checks that the statistics account for every announced
/// key.
fn settled(bank: &Bank) -> LookaheadStats {
    assert!(bank.wait_lookahead(PATIENCE));
    let stats = bank.stats().lookahead;
    assert_eq!(stats.pending, 0);
    assert_eq!(stats.requested, stats.resident + stats.queued + stats.merged + stats.dropped);
    assert_eq!(
        stats.queued,
        stats.moved + stats.late + stats.missing + stats.cancelled + stats.failed
    );
    stats
}

#[test]
fn rows_on_disk_come_into_memory_before_they_are_got() {
    let test = new_bank();
    let (table, keys) = rows_on_disk(&test.bank, 300);
    let receipt = table.lookahead(&keys).unwrap();
    assert_eq!((receipt.queued, receipt.resident, receipt.dropped), (300, 0, 0));
    let stats = settled(&test.bank);
    assert_eq!((stats.moved, stats.late, stats.failed), (300, 0, 0));

    let before = table.stats().disk_reads;
    let mut rows = vec![0.0; 600];
    drop(table.get(&keys, &mut rows).unwrap());
    assert_eq!(table.stats().disk_reads, before, "the rows were in memory");
    assert!(rows.chunks(2).zip(&keys).all(|(row, &key)| row == [key as f32; 2]));
    assert_eq!(test.bank.stats().lookahead.on_time, 300);
    assert_eq!(test.bank.stats().lookahead.wasted, 0);
}

#[test]
fn rows_in_memory_are_not_queued() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(2));
    table.put(&[1, 2, 3], &[0.0; 6]).unwrap();
    let receipt = table.lookahead(&[1, 2, 3, 2]).unwrap();
    assert_eq!((receipt.resident, receipt.accepted()), (3, 0));
    assert_eq!(settled(&test.bank).resident, 3);
}

#[test]
fn missing_rows_stay_missing() {
    let test = new_bank();
    let (table, _) = rows_on_disk(&test.bank, 10);
    let keys: Vec<u64> = (1_000_000..1_000_500).collect();
    table.lookahead(&keys).unwrap();
    assert_eq!(settled(&test.bank).moved, 0);
    assert_eq!(table.contains(&keys).unwrap(), [false; 500]);
}

/// Shows that a second request for a row is merged. The lookahead thread (the worker) may read both
/// rows before the second call, so the test tries several times.
#[test]
fn requests_for_the_same_row_are_merged() {
    assert!((0..50).any(|_| a_second_request_is_merged()), "no second request was merged");
}

/// Requests two rows twice. Returns true if the second call merged a request with a pending one.
fn a_second_request_is_merged() -> bool {
    let test = new_bank();
    let (table, _) = rows_on_disk(&test.bank, 10);
    // Duplicates within one call count once.
    let first = table.lookahead(&[4, 4, 4, 5]).unwrap();
    assert_eq!((first.queued, first.merged), (2, 0));
    // If the worker reads a row during this call, the row is queued again, but is not moved twice.
    let again = table.lookahead(&[4, 5]).unwrap();
    assert_eq!(again.queued + again.merged + again.resident, 2);
    assert_eq!(settled(&test.bank).moved, 2);
    again.merged > 0
}

#[test]
fn what_does_not_fit_the_queue_is_dropped() {
    let options = BankOptions { lookahead_queue_keys: Some(8), ..small_options() };
    let test = new_bank_with(options);
    let (table, keys) = rows_on_disk(&test.bank, 100);
    let receipt = table.lookahead(&keys).unwrap();
    assert_eq!((receipt.queued, receipt.dropped), (8, 92));
    let stats = settled(&test.bank);
    assert_eq!((stats.moved, stats.capacity), (8, 8));
    drop(table.get(&keys, &mut [0.0; 200]).unwrap());
    assert_eq!(rows_of(&table, &[99]), [99.0; 2]);
}

#[test]
fn a_queue_of_no_keys_turns_lookahead_off() {
    let options = BankOptions { lookahead_queue_keys: Some(0), ..small_options() };
    let test = new_bank_with(options);
    let (table, keys) = rows_on_disk(&test.bank, 20);
    assert_eq!(table.lookahead(&keys).unwrap().dropped, 20);
    assert_eq!(settled(&test.bank).moved, 0);
}

#[test]
fn cancelled_rows_stay_on_disk_and_are_counted() {
    let test = new_bank();
    let (table, keys) = rows_on_disk(&test.bank, 500);
    table.lookahead(&keys).unwrap();
    let cancelled = test.bank.cancel_lookahead() as u64;
    let stats = settled(&test.bank);
    assert_eq!(stats.cancelled, cancelled);
    assert_eq!(stats.moved, 500 - cancelled);
    assert_eq!(rows_of(&table, &[123]), [123.0; 2]);
}

#[test]
fn counts_and_values_are_kept_while_rows_move() {
    let test = new_bank();
    let (table, keys) = rows_on_disk(&test.bank, 100);
    let lease = table.get(&keys, &mut [0.0; 200]).unwrap();
    push_to_disk(&test.bank);
    assert_eq!(table.lookahead(&keys).unwrap().queued, 100);
    settled(&test.bank);
    assert_eq!(table.outstanding(60).unwrap(), Some(1));
    lease.apply(&[-1.0; 200]).unwrap();
    assert_eq!(table.outstanding(60).unwrap(), Some(0));
    assert_eq!(rows_of(&table, &[60]), [61.0; 2]);
}

/// Shows that no update is lost if Gets, updates and lookahead use the same rows at once.
#[test]
fn training_while_looking_ahead_loses_nothing() {
    let test = new_bank();
    let (table, keys) = rows_on_disk(&test.bank, 20_000);
    let steps = 4;
    for _ in 0..steps {
        let batches: Vec<&[u64]> = keys.chunks(500).collect();
        for (place, batch) in batches.iter().enumerate() {
            if let Some(next) = batches.get(place + 1) {
                table.lookahead(next).unwrap();
            }
            let lease = table.get(batch, &mut vec![0.0; batch.len() * 2]).unwrap();
            lease.apply(&vec![-1.0; batch.len() * 2]).unwrap();
        }
    }
    settled(&test.bank);
    for batch in keys.chunks(1000) {
        let expected: Vec<f32> =
            batch.iter().flat_map(|&key| [key as f32 + steps as f32; 2]).collect();
        assert_eq!(rows_of(&table, batch), expected);
    }
}

#[test]
fn a_bank_closes_with_requests_pending_and_opens_again() {
    let test = new_bank();
    let (table, keys) = rows_on_disk(&test.bank, 500);
    test.bank.checkpoint(b"").unwrap();
    table.lookahead(&keys).unwrap();
    let path = test.bank.path().to_owned();
    drop((table, test.bank));
    let bank = Bank::open(path, small_options()).unwrap();
    assert_eq!(rows_of(&bank.open_table("t").unwrap(), &[499]), [499.0; 2]);
}

/// Returns `count` keys below `rows` that depend only on `step`.
fn batch_of(step: u64, count: u64, rows: u64) -> Vec<u64> {
    let mix = |x: u64| (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9).rotate_left(31);
    (0..count).map(|i| mix(mix(step * count + i + 1)) % rows).collect()
}

#[test]
fn a_row_in_memory_when_it_is_announced_is_still_there_when_it_is_got() {
    const ROWS: u64 = 60_000;
    const DIM: u32 = 16;
    const BATCH: u64 = 400;
    // Number of batches between an announcement and its Get. The bank remembers half as many
    // announced rows as its queue has places: here 1,236, enough for 3 batches of 400 rows.
    const AHEAD: u64 = 3;
    // Number of other rows that each step puts. Between an announcement and its Get, they exceed
    // the read-only region. A row that the bank does not remember is therefore on disk when its Get
    // comes.
    const OTHERS: u64 = 2000;
    const WARM_UP: u64 = 60;
    const STEPS: u64 = 200;
    let options = BankOptions { memory_budget_bytes: 4 << 20, ..small_options() };
    let test = new_bank_with(options);
    let table = table(&test.bank, TableConfig::new(DIM).optimizer(Optimizer::sgd(1.0)));
    let keys: Vec<u64> = (0..ROWS).collect();
    for keys in keys.chunks(1000) {
        table.put(keys, &vec![0.5; keys.len() * DIM as usize]).unwrap();
    }
    let mut rows = vec![0.0; BATCH as usize * DIM as usize];
    let mut from_disk = 0;
    for step in 0..STEPS {
        table.lookahead(&batch_of(step + AHEAD, BATCH, ROWS)).unwrap();
        assert!(test.bank.wait_lookahead(PATIENCE));
        let keys = batch_of(step, BATCH, ROWS);
        let before = test.bank.stats().store;
        drop(table.get(&keys, &mut rows).unwrap());
        table.put(&keys, &rows).unwrap();
        let after = test.bank.stats().store;
        let others: Vec<u64> = (0..OTHERS).map(|i| ROWS + (step * OTHERS + i) % ROWS).collect();
        for others in others.chunks(200) {
            table.put(others, &vec![0.5; others.len() * DIM as usize]).unwrap();
            assert!(test.bank.wait_lookahead(PATIENCE));
        }
        if step >= WARM_UP {
            from_disk += after.hits_disk - before.hits_disk + after.hits_cache - before.hits_cache;
        }
    }
    assert_eq!(test.bank.stats().lookahead.wasted, 0);
    let got = (STEPS - WARM_UP) * BATCH;
    assert!(from_disk * 1000 < got, "{from_disk} of {got} rows had to be read from disk again");
}

/// Writes new rows of `bytes` bytes in total. No call has announced these rows.
fn flood(bank: &Bank, bytes: u64) {
    const DIM: u32 = 64;
    let filler = bank.table("flood", TableConfig::new(DIM)).unwrap();
    let first = filler.stats().put_rows;
    let rows = vec![0.5; 100 * DIM as usize];
    for first in (first..first + bytes / (4 * u64::from(DIM))).step_by(100) {
        let keys: Vec<u64> = (first..first + 100).collect();
        filler.put(&keys, &rows).unwrap();
        // Waits for the lookahead thread, which could not keep up with a thread that only writes.
        assert!(bank.wait_lookahead(PATIENCE));
    }
}

/// Makes a table with rows in mutable memory. Also returns the size of the bank's row memory in
/// bytes.
fn rows_in_memory(count: u64) -> (crate::common::TestBank, Table, Vec<u64>, u64) {
    let options = BankOptions { memory_budget_bytes: 4 << 20, ..small_options() };
    let test = new_bank_with(options);
    // Fills the whole row memory once.
    flood(&test.bank, 6 << 20);
    let table = table(&test.bank, TableConfig::new(2).optimizer(Optimizer::sgd(1.0)));
    let keys: Vec<u64> = (0..count).collect();
    table.put(&keys, &vec![1.0; 2 * count as usize]).unwrap();
    let frames_bytes = test.bank.stats().store.memory_frames_bytes;
    (test, table, keys, frames_bytes)
}

/// Gets rows and applies gradients to them. Returns the number of rows whose newest record was on
/// disk. Rows that the read cache answers count too: if two keys share an index entry, a search for
/// one of them puts the other key's record into the cache.
fn rows_got_from_disk(bank: &Bank, table: &Table, keys: &[u64]) -> u64 {
    let outside = || {
        let stats = bank.stats().store;
        stats.hits_disk + stats.hits_cache
    };
    let before = outside();
    let lease = table.get(keys, &mut vec![0.0; 2 * keys.len()]).unwrap();
    lease.apply(&vec![1.0; 2 * keys.len()]).unwrap();
    outside() - before
}

#[test]
fn an_announced_row_in_memory_outlives_a_flood_until_it_is_used() {
    let (test, table, keys, frames_bytes) = rows_in_memory(400);
    let (announced, others) = keys.split_at(200);
    assert_eq!(table.lookahead(announced).unwrap().resident, 200);
    flood(&test.bank, frames_bytes * 3 / 2);
    assert_eq!(rows_got_from_disk(&test.bank, &table, others), 200, "these were pushed out");
    assert_eq!(rows_got_from_disk(&test.bank, &table, announced), 0, "these were kept");
    let stats = settled(&test.bank);
    assert!(stats.kept >= 200 && stats.moved == 0, "{stats:?}");
    assert_eq!((stats.on_time, stats.wasted), (200, 0));
}

#[test]
fn rows_are_not_kept_once_they_are_used_or_given_up() {
    let (test, table, keys, frames_bytes) = rows_in_memory(300);
    table.lookahead(&keys[..200]).unwrap();
    assert_eq!(rows_got_from_disk(&test.bank, &table, &keys[..100]), 0);
    table.put(&keys[100..150], &[5.0; 100]).unwrap();
    table.lookahead(&keys[200..]).unwrap();
    test.bank.cancel_lookahead();
    flood(&test.bank, 2 * frames_bytes);
    assert_eq!(settled(&test.bank).kept, 0);
    assert_eq!(rows_got_from_disk(&test.bank, &table, &keys), 300);
}

#[test]
fn rows_that_nobody_comes_for_are_kept_for_some_rounds_only() {
    let (test, table, keys, frames_bytes) = rows_in_memory(100);
    table.lookahead(&keys).unwrap();
    flood(&test.bank, 8 * frames_bytes);
    let stats = settled(&test.bank);
    assert_eq!((stats.kept, stats.wasted), (300, 100), "{stats:?}");
    assert_eq!(rows_got_from_disk(&test.bank, &table, &keys), 100);
}

#[test]
fn a_row_that_was_moved_in_time_is_kept_too() {
    let (test, table, keys, frames_bytes) = rows_in_memory(200);
    flood(&test.bank, 2 * frames_bytes);
    assert_eq!(table.lookahead(&keys).unwrap().queued, 200);
    flood(&test.bank, frames_bytes * 3 / 2);
    assert_eq!(rows_got_from_disk(&test.bank, &table, &keys), 0);
    let stats = settled(&test.bank);
    assert_eq!((stats.moved, stats.on_time, stats.wasted), (200, 200, 0));
    assert!(stats.kept >= 200);
}

/// Shows that a full quota does not make the next announcement fail. If the disk has no space to
/// keep announced rows in memory, a Get reads them later.
#[test]
fn a_full_quota_does_not_fail_the_next_announcement() {
    let options = BankOptions { disk_quota_bytes: Some(6 << 20), ..small_options() };
    let test = new_bank_with(options);
    let table = test.bank.table("t", TableConfig::new(64)).unwrap();
    // The loop ends: each round uses up a part of the quota.
    for round in 0.. {
        let keys: Vec<u64> = (0..100).map(|i| (100 * round + i) % 4000).collect();
        let put = table.put(&keys, &vec![1.0; 100 * 64]);
        if round > 5 {
            table.lookahead(&keys[90..]).unwrap();
        }
        if put.is_err() {
            break;
        }
    }
    test.bank.checkpoint(b"").unwrap();
    assert!(test.bank.wait_lookahead(PATIENCE));
    table.lookahead(&[]).unwrap();
}
