//! Tests batches that several threads share: each thread works on one or more *parts* of the batch.
//! Rows, clocks, counters and errors must equal those of one thread.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{TestBank, new_bank_with, rows_of, small_options, table};
use embank::{
    Admission, Bags, Bank, BankOptions, Error, Lease, Missing, Optimizer, Pooling, RowWiseAdagrad,
    StoreError, Table, TableConfig,
};
use fastrand::Rng;

const DIM: usize = 16;
const KEYS: u64 = 30_000;

fn bank_of(threads: usize, memory_budget_bytes: u64) -> TestBank {
    new_bank_with(BankOptions { threads, memory_budget_bytes, ..small_options() })
}

fn config() -> TableConfig {
    TableConfig::new(DIM as u32).optimizer(Optimizer::RowWiseAdagrad(RowWiseAdagrad::new(0.1)))
}

/// Runs several steps of every kind, and returns all values that the steps returned.
fn train(table: &Table, seed: u64) -> Vec<f32> {
    let mut random = Rng::with_seed(seed);
    let mut seen = Vec::new();
    for step in 0..12 {
        let places = random.usize(3000..9000);
        let keys: Vec<u64> = (0..places).map(|_| random.u64(..KEYS)).collect();
        let gradients: Vec<f32> = (0..places * DIM).map(|_| random.f32() - 0.5).collect();
        let mut rows = vec![f32::NAN; places * DIM];
        match step % 4 {
            0 => table.get(&keys, &mut rows).unwrap().apply(&gradients).unwrap(),
            1 => {
                let request = table.request(&keys).unwrap().distinct();
                let distinct = request.row_count() * DIM;
                let lease = table.get_rows(request, &mut rows[..distinct]).unwrap();
                lease.apply(&gradients[..distinct]).unwrap();
                rows.truncate(distinct);
            }
            2 => {
                let offsets: Vec<u64> = (0..=places as u64).collect();
                let bags = Bags { offsets: &offsets, pooling: Pooling::Mean, weights: None };
                let request = table.request(&keys).unwrap().bags(bags);
                table.get_rows(request, &mut rows).unwrap().apply(&gradients).unwrap();
            }
            _ => {
                table.put(&keys, &gradients).unwrap();
                table.apply_gradients(&keys, &gradients).unwrap();
                table.get(&keys, &mut rows).unwrap().put(&gradients).unwrap();
                table.get(&keys, &mut rows).unwrap().release().unwrap();
                table.peek(&keys, &mut rows, Missing::Initial).unwrap();
            }
        }
        seen.extend(rows);
    }
    seen
}

/// Shows that results have equal bits for any number of threads, in memory and from disk.
#[test]
fn any_number_of_threads_gives_the_rows_of_one() {
    for memory_budget_bytes in [1 << 20, 64 << 20] {
        let banks = [1, 2, 5].map(|threads| bank_of(threads, memory_budget_bytes));
        let tables = banks.each_ref().map(|bank| table(&bank.bank, config()));
        let [one, two, five] = tables.each_ref().map(|table| train(table, 3));
        assert!(one == two && one == five, "budget {memory_budget_bytes}");
        let keys: Vec<u64> = (0..KEYS)
            .zip(tables[0].contains(&(0..KEYS).collect::<Vec<_>>()).unwrap())
            .filter_map(|(key, is_there)| is_there.then_some(key))
            .collect();
        let [one, two, five] = tables.each_ref().map(|table| rows_of(table, &keys));
        assert!(one == two && one == five, "budget {memory_budget_bytes}");
        for table in &tables {
            let stats = table.stats();
            let of_one = tables[0].stats();
            assert_eq!(stats.get_rows, of_one.get_rows);
            assert_eq!(stats.apply_rows, of_one.apply_rows);
            assert_eq!(stats.put_rows, of_one.put_rows);
            assert_eq!(stats.peek_rows, of_one.peek_rows);
            assert!(keys.iter().all(|&key| table.outstanding(key).unwrap() == Some(0)));
        }
    }
}

/// Shows that a step that would make two rows infinite still changes all other rows of every part.
/// The error names the first of the two rows.
#[test]
fn a_refused_row_of_a_part_is_named_and_all_others_are_stepped() {
    let bank = bank_of(4, 64 << 20);
    let table = table(&bank.bank, config().optimizer(Optimizer::sgd(1.0)));
    let keys: Vec<u64> = (0..8192).collect();
    table.put(&keys, &vec![1.0; keys.len() * DIM]).unwrap();
    let mut gradients = vec![1.0; keys.len() * DIM];
    for key in [3000, 7000] {
        table.put(&[key], &[f32::MAX; DIM]).unwrap();
        gradients[key as usize * DIM..][..DIM].fill(-f32::MAX);
    }
    let mut rows = vec![0.0; keys.len() * DIM];
    let failed = table.get(&keys, &mut rows).unwrap().apply(&gradients);
    assert!(matches!(failed, Err(Error::RowOverflow { key: 3000, rows: 2, .. })), "{failed:?}");
    table.peek(&keys, &mut rows, Missing::Error).unwrap();
    for (key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
        let expected = if [3000, 7000].contains(key) { f32::MAX } else { 0.0 };
        assert!(row.iter().all(|&value| value == expected), "key {key}");
        assert_eq!(table.outstanding(*key).unwrap(), Some(0));
    }
}

/// Shows that a NaN in the last thread's part of the batch changes no row of any part.
#[test]
fn a_bad_gradient_of_a_part_changes_no_row() {
    let bank = bank_of(4, 64 << 20);
    let table = table(&bank.bank, config());
    let keys: Vec<u64> = (0..8192).collect();
    let mut before = vec![0.0; keys.len() * DIM];
    let lease = table.get(&keys, &mut before).unwrap();
    let mut gradients = vec![1.0; keys.len() * DIM];
    gradients[8000 * DIM + 3] = f32::NAN;
    let failed = lease.apply(&gradients);
    let is_named = matches!(failed, Err(Error::NonFiniteGradient { key: 8000, column: 3, .. }));
    assert!(is_named, "{failed:?}");
    assert_eq!(rows_of(&table, &keys), before);
    assert_eq!(table.outstanding(0).unwrap(), Some(0));
}

/// Shows that a row at its bound blocks the whole batch, and that the threads with the other parts
/// of the batch then hold no rows.
#[test]
fn a_blocked_row_of_a_part_blocks_the_batch() {
    let bank = bank_of(4, 64 << 20);
    let table = table(&bank.bank, config().staleness_bound(Some(0)));
    let keys: Vec<u64> = (0..8192).collect();
    let mut rows = vec![0.0; keys.len() * DIM];
    let holder = table.get(&[6000], &mut [0.0; DIM]).unwrap();
    assert!(table.try_get(&keys, &mut rows).unwrap().is_none());
    for &key in &keys {
        let outstanding = table.outstanding(key).unwrap().unwrap_or(0);
        assert_eq!(outstanding, u32::from(key == 6000), "key {key}");
    }
    holder.release().unwrap();
    table.try_get(&keys, &mut rows).unwrap().unwrap().release().unwrap();
}

/// Shows that shared batches admit the same keys as batches of one thread. The lease holds the
/// admitted rows of all parts.
#[test]
fn admission_counts_the_keys_of_all_parts() {
    let banks = [1, 4].map(|threads| bank_of(threads, 64 << 20));
    let tables =
        banks.each_ref().map(|bank| table(&bank.bank, config().admission(Admission::AfterGets(2))));
    let mut random = Rng::with_seed(4);
    for _ in 0..4 {
        let keys: Vec<u64> = (0..6000).map(|_| random.u64(..8000)).collect();
        for table in &tables {
            let mut rows = vec![0.0; keys.len() * DIM];
            table.get(&keys, &mut rows).unwrap().apply(&rows).unwrap();
        }
    }
    let keys: Vec<u64> = (0..8000).collect();
    let [one, four] = tables.each_ref().map(|table| table.contains(&keys).unwrap());
    assert_eq!(one, four);
    assert!(one.contains(&true) && one.contains(&false));
    let there: Vec<u64> = keys.into_iter().filter(|&key| one[key as usize]).collect();
    assert_eq!(rows_of(&tables[0], &there), rows_of(&tables[1], &there));
}

/// Shows that no update is lost with several callers at once. One caller shares its batch with the
/// pool's threads, and the others work alone.
#[test]
fn callers_at_once_lose_no_update() {
    let bank = bank_of(3, 64 << 20);
    let table = table(&bank.bank, config().optimizer(Optimizer::sgd(1.0)));
    let keys: Vec<u64> = (0..4096).collect();
    table.put(&keys, &vec![0.0; keys.len() * DIM]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let lease: Lease = table.get(&keys, &mut vec![0.0; keys.len() * DIM]).unwrap();
                    lease.apply(&vec![-1.0; keys.len() * DIM]).unwrap();
                }
            });
        }
    });
    assert!(rows_of(&table, &keys).iter().all(|&value| value == 40.0));
}

/// Shows that a peek in parts, or of bags, reads one checkpoint, even if the reader refreshes
/// during the peek.
#[test]
fn a_peek_shows_one_checkpoint_while_the_reader_is_refreshed() {
    let bank = bank_of(1, 64 << 20);
    let written = table(&bank.bank, config());
    let keys: Vec<u64> = (0..8192).collect();
    let put = |value: f32| {
        written.put(&keys, &vec![value; keys.len() * DIM]).unwrap();
        bank.bank.checkpoint(b"").unwrap();
    };
    put(0.0);
    let options = BankOptions { threads: 4, memory_budget_bytes: 64 << 20, ..small_options() };
    let reader = Bank::open_read_only(bank.dir.path().join("bank"), options, None).unwrap();
    let read = reader.open_table("t").unwrap();
    let last = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1..=30 {
                put(value as f32);
                reader.refresh().unwrap();
            }
            last.store(30, Ordering::Release);
        });
        let offsets: Vec<u64> = (0..=keys.len() as u64).collect();
        let bags = Bags { offsets: &offsets, pooling: Pooling::Sum, weights: None };
        let mut rows = vec![f32::NAN; keys.len() * DIM];
        // The loop ends once the other thread has stored its last round.
        while last.load(Ordering::Acquire) == 0 {
            read.peek(&keys, &mut rows, Missing::Error).unwrap();
            assert!(rows.iter().all(|&value| value == rows[0]), "a peek of two checkpoints");
            read.peek_bags(&keys, bags, &mut rows).unwrap();
            assert!(rows.iter().all(|&value| value == rows[0]), "bags of two checkpoints");
        }
    });
}

#[test]
fn a_number_of_threads_out_of_range_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let opened =
        |threads| Bank::open(dir.path().join("bank"), BankOptions { threads, ..small_options() });
    let refused = opened(1025).unwrap_err();
    assert!(
        matches!(refused, Error::Store(StoreError::InvalidOption { option: "threads", .. })),
        "{refused}"
    );
    assert!(refused.to_string().contains("from 1 to 1024, not 1025"), "{refused}");
    opened(1024).unwrap();
    opened(0).unwrap();
}

/// Shows that batches of rayon threads do not wait for themselves. If a batch waited for its parts
/// inside rayon, its thread would run other jobs of rayon meanwhile. Such a job could wait for rows
/// that the batch holds.
#[test]
fn jobs_of_another_pool_that_share_rows_do_not_wait_for_themselves() {
    let bank = bank_of(4, 64 << 20);
    let table = table(&bank.bank, config().staleness_bound(Some(0)));
    let keys: Vec<u64> = (0..8192).collect();
    let callers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    callers.scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|_| {
                let mut rows = vec![0.0; keys.len() * DIM];
                table.get(&keys, &mut rows).unwrap().apply(&rows).unwrap();
            });
        }
    });
    assert!(keys.iter().all(|&key| table.outstanding(key).unwrap() == Some(0)));
}

/// Shows that the threads of a bank end with it.
#[test]
fn the_threads_end_with_the_bank() {
    let bank = bank_of(3, 64 << 20);
    let table = table(&bank.bank, config());
    let keys: Vec<u64> = (0..8192).collect();
    let before = batch_threads();
    table.peek(&keys, &mut vec![0.0; keys.len() * DIM], Missing::Initial).unwrap();
    // Other tests of this process open and close their own banks.
    let own = || batch_threads().into_iter().filter(|id| !before.contains(id)).collect::<Vec<_>>();
    let deadline = Instant::now() + Duration::from_secs(60);
    // A thread names itself after it has started, on a busy machine after the batch has ended.
    let mut started = own();
    while started.len() < 2 {
        assert!(Instant::now() < deadline, "{started:?}");
        std::thread::yield_now();
        started = own();
    }
    drop((table, bank));
    // The system lists a thread for a moment after it has been joined.
    while started.iter().any(|id| batch_threads().contains(id)) {
        assert!(Instant::now() < deadline, "a thread outlives its bank");
        std::thread::yield_now();
    }
}

/// Returns the ids of all threads of the process that work on batches.
fn batch_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| {
            let task = task.ok()?;
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            name.starts_with("embank-batch").then(|| task.file_name().into_string().unwrap())
        })
        .collect()
}
