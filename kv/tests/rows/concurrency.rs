//! Tests threads that work on the same rows while pages are filled and evicted.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::common::{
    Add, GetAll, PutEach, Random, acquire, options, peek, push_to_disk, put, release, value,
};
use embank_kv::{Access, Clock, DeviceChoice, Operation, Store, StoreOptions, TableId, Width};

const THREADS: u64 = 4;
const BUDGET_BYTES: u64 = 256 << 10;

struct Bank {
    store: Store,
    table: TableId,
    dir: tempfile::TempDir,
}

fn bank(device: DeviceChoice, value_bytes: u32) -> Bank {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { device, ..options(BUDGET_BYTES) };
    let store = Store::open(dir.path(), &options).unwrap();
    let table = store.create_table("rows", value_bytes, b"").unwrap();
    Bank { store, table, dir }
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// Four threads add to counters. Another thread deletes, puts, peeks, promotes and takes
/// checkpoints. The test compares the final counters with the number of additions.
fn add_and_compare(device: DeviceChoice, batches: u64) {
    const KEYS: u64 = 8000;
    let Bank { store, table, dir: _dir } = bank(device, 32);
    let random = Random::new();
    let expected: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let adders = AtomicU64::new(THREADS);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let mut random = random.stream(thread);
            let (store, expected, adders) = (&store, &expected, &adders);
            s.spawn(move || {
                for batch in 0..batches {
                    // Half of the keys come from a sixteenth of the table.
                    let end = [KEYS, KEYS / 16];
                    let keys: Vec<u64> = (0..64).map(|i| random.below(end[i % 2])).collect();
                    let mut add = Add { by: 1, insert: true };
                    let outcome = store.execute(table, &keys, Clock::Keep, &mut add).unwrap();
                    assert!(outcome.missing.is_empty());
                    for &key in &keys {
                        expected[key as usize].fetch_add(1, Ordering::Relaxed);
                    }
                    if batch % 16 == thread {
                        store.promote(table, &keys).unwrap();
                    }
                    if batch % 16 == 8 + thread {
                        let rows = peek(store, table, &keys).unwrap();
                        assert!(rows.iter().all(Option::is_some), "inserted above");
                    }
                }
                adders.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let (store, adders) = (&store, &adders);
        let mut random = random.stream(THREADS);
        s.spawn(move || {
            let mut round = 0;
            while adders.load(Ordering::Relaxed) > 0 {
                let first = KEYS + random.below(1000);
                let keys: Vec<u64> = (first..first + 200).collect();
                put(store, table, &keys, round, 32);
                let rows = peek(store, table, &keys).unwrap();
                for (row, &key) in rows.into_iter().zip(&keys) {
                    assert_eq!(row.unwrap(), value(key, round, 32));
                }
                assert_eq!(store.delete(table, &keys).unwrap(), 200);
                assert!(peek(store, table, &keys).unwrap().iter().all(Option::is_none));
                if round % 8 == 0 {
                    store.checkpoint(b"").unwrap();
                }
                round += 1;
            }
        });
    });
    let stats = store.stats();
    assert!(stats.log_head > 4 * BUDGET_BYTES, "pages were evicted: {stats:?}");
    assert!(stats.hits_disk > 0 && stats.checkpoints > 0, "{stats:?}");
    let keys: Vec<u64> = (0..KEYS).collect();
    let rows = peek(&store, table, &keys).unwrap();
    for ((key, row), expected) in keys.iter().zip(rows).zip(&expected) {
        let found = row.map_or(0, |row| number(&row));
        assert_eq!(found, expected.load(Ordering::Relaxed), "key {key}");
    }
}

#[test]
fn no_addition_is_lost() {
    add_and_compare(DeviceChoice::Memory, 3000);
}

#[test]
fn no_addition_is_lost_on_a_real_disk() {
    add_and_compare(DeviceChoice::Auto, 600);
}

#[test]
fn no_addition_is_lost_on_the_thread_pool() {
    add_and_compare(DeviceChoice::Threads, 300);
}

const WORDS: usize = 33;

/// Asserts that each row consists of one repeated word, and counts the rows.
struct Filled(usize);

fn check_filled(value: &[u8]) -> u64 {
    let words = value.as_chunks::<8>().0;
    assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
    u64::from_le_bytes(words[0])
}

struct PutFilled(u64);

impl Operation for PutFilled {
    const ACCESS: Access = Access::Put;
    fn update(&mut self, _i: usize, value: &mut [u8]) {
        for word in value.as_chunks_mut::<8>().0 {
            *word = self.0.to_le_bytes();
        }
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Fills each row with another word, after asserting that the old value consists of one repeated
/// word.
struct TurnFilled(u64);

impl Operation for TurnFilled {
    const ACCESS: Access = Access::Update;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        let word = check_filled(value).wrapping_add(self.0);
        PutFilled(word).update(i, value);
    }
}

impl Operation for Filled {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, _i: usize, value: &[u8]) {
        check_filled(value);
        self.0 += 1;
    }
}

#[test]
fn a_peeked_value_is_never_torn() {
    // Regression test: a reader checked a record's generation number but not its lock. It saw
    // halves of two values.
    const KEYS: u64 = 1500;
    let Bank { store, table, dir: _dir } = bank(DeviceChoice::Memory, WORDS as u32 * 8);
    let all: Vec<u64> = (0..KEYS).collect();
    store.execute(table, &all, Clock::Keep, &mut PutFilled(1)).unwrap();
    let random = Random::new();
    let writers = AtomicU64::new(2);
    std::thread::scope(|s| {
        for thread in 0..2 {
            let mut random = random.stream(thread);
            let (store, writers) = (&store, &writers);
            s.spawn(move || {
                // `cargo xtask bench soak` runs the same check for an hour.
                for _ in 0..1500 {
                    // Some keys are hot rows in memory, and some are random rows.
                    let mut keys: Vec<u64> = (0..40).map(|_| random.below(8)).collect();
                    keys.extend((0..8).map(|_| random.below(KEYS)));
                    let word = random.next();
                    store.execute(table, &keys, Clock::Keep, &mut PutFilled(word)).unwrap();
                    store.execute(table, &keys, Clock::Keep, &mut TurnFilled(word)).unwrap();
                }
                writers.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for thread in 2..4 {
            let mut random = random.stream(thread);
            let (store, writers) = (&store, &writers);
            s.spawn(move || {
                while writers.load(Ordering::Relaxed) > 0 {
                    let mut keys: Vec<u64> = (0..8).cycle().take(64).collect();
                    keys.extend((0..4).map(|_| random.below(KEYS)));
                    let mut filled = Filled(0);
                    let outcome = store.execute(table, &keys, Clock::Keep, &mut filled).unwrap();
                    assert!(outcome.missing.is_empty());
                    assert_eq!(filled.0, keys.len());
                }
            });
        }
    });
    assert!(store.stats().log_head > 0, "pages were evicted");
}

#[test]
fn each_key_is_inserted_once_however_many_threads_insert_it() {
    const KEYS: u64 = 1_100_000;
    const BATCH: u64 = 1024;
    let dir = tempfile::tempdir().unwrap();
    // The budget lets rows leave memory and leaves room for the index to grow.
    let options = StoreOptions { device: DeviceChoice::Memory, ..options(40 << 20) };
    let store = Store::open(dir.path(), &options).unwrap();
    let table = store.create_table("counters", 8, b"").unwrap();
    let start = Barrier::new(THREADS as usize);
    let index_at_first = store.stats().memory_index_bytes;
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (store, start) = (&store, &start);
            s.spawn(move || {
                for first in (0..KEYS).step_by(BATCH as usize) {
                    // All threads insert the same new keys at the same time, each in a different
                    // order.
                    let end = KEYS.min(first + BATCH);
                    let mut keys: Vec<u64> = (first..end).collect();
                    let by = (thread * BATCH / THREADS) as usize % keys.len();
                    keys.rotate_left(by);
                    if thread % 2 == 1 {
                        keys.reverse();
                    }
                    start.wait();
                    let mut add = Add { by: 1, insert: true };
                    let outcome = store.execute(table, &keys, Clock::Keep, &mut add).unwrap();
                    assert!(outcome.missing.is_empty());
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!(stats.inserted, KEYS);
    assert!(stats.memory_index_bytes > 800 * index_at_first, "{stats:?}");
    assert!(stats.index_entries > 1_000_000, "{stats:?}");
    for first in (0..KEYS).step_by(1 << 16) {
        let keys: Vec<u64> = (first..KEYS.min(first + (1 << 16))).collect();
        for (key, row) in keys.iter().zip(peek(&store, table, &keys).unwrap()) {
            assert_eq!(row.map(|row| number(&row)), Some(THREADS), "key {key}");
        }
    }
}

#[test]
fn no_more_leases_are_out_than_the_bound_admits() {
    const KEYS: u64 = 6000;
    const HOT: u64 = 16;
    let random = Random::new();
    for bound in [0, 2] {
        let Bank { store, table, dir: _dir } = bank(DeviceChoice::Memory, 32);
        let all: Vec<u64> = (0..KEYS).collect();
        put(&store, table, &all, 0, 32);
        let out: Vec<AtomicU32> = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
        let most = AtomicU32::new(0);
        let blocked = AtomicU64::new(0);
        std::thread::scope(|s| {
            for thread in 0..THREADS {
                let mut random = random.stream(thread);
                let (store, out, most, blocked) = (&store, &out, &most, &blocked);
                s.spawn(move || {
                    for _ in 0..2500 {
                        let mut keys: Vec<u64> = (0..HOT).collect();
                        keys.extend((0..32).map(|_| random.below(KEYS)));
                        keys.sort_unstable();
                        keys.dedup();
                        let outcome = acquire(store, table, &keys, Some(bound)).unwrap();
                        assert!(outcome.missing.is_empty());
                        let mut is_blocked = vec![false; keys.len()];
                        for &i in &outcome.blocked {
                            is_blocked[i as usize] = true;
                        }
                        let mut is_blocked = is_blocked.into_iter();
                        keys.retain(|_| !is_blocked.next().unwrap());
                        // Counts the leases while they are held, so the count never exceeds the
                        // number of admitted leases.
                        for &key in &keys {
                            let now = out[key as usize].fetch_add(1, Ordering::SeqCst) + 1;
                            most.fetch_max(now, Ordering::Relaxed);
                            assert!(now <= bound + 1, "key {key}: {now} leases");
                        }
                        for &key in &keys {
                            out[key as usize].fetch_sub(1, Ordering::SeqCst);
                        }
                        release(store, table, &keys).unwrap();
                        blocked.fetch_add(outcome.blocked.len() as u64, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(blocked.load(Ordering::Relaxed) > 0, "threads met");
        println!("bound {bound}: at most {} out", most.load(Ordering::Relaxed));
        assert!(store.stats().log_head > 4 * BUDGET_BYTES, "pages were evicted");
        for key in 0..KEYS {
            assert_eq!(store.clock_of(table, key).unwrap(), Some(0), "key {key}");
        }
    }
}

#[test]
fn a_checkpoint_between_two_batches_of_its_thread_holds_that_threads_rows_whole() {
    const KEYS: u64 = 1500;
    let Bank { store, table, dir } = bank(DeviceChoice::Auto, 32);
    let other = store.create_table("others", 100, b"").unwrap();
    let random = Random::new();
    let done = AtomicBool::new(false);
    let all: Vec<u64> = (0..KEYS).collect();
    let last = 25u64;
    std::thread::scope(|s| {
        for thread in 0..3 {
            let mut random = random.stream(thread);
            let (store, done) = (&store, &done);
            s.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let keys: Vec<u64> = (0..64).map(|_| random.below(3000)).collect();
                    let mut add = Add { by: 1, insert: true };
                    store.execute(other, &keys, Clock::Keep, &mut add).unwrap();
                    let mut values = vec![Vec::new(); keys.len()];
                    store.execute(table, &keys, Clock::Keep, &mut GetAll(&mut values)).unwrap();
                }
            });
        }
        for version in 1..=last {
            put(&store, table, &all, version, 32);
            store.checkpoint(&version.to_le_bytes()).unwrap();
        }
        // No checkpoint has these changes.
        put(&store, table, &all[..1000], last + 1, 32);
        done.store(true, Ordering::Relaxed);
    });
    assert!(store.stats().log_head > 4 * BUDGET_BYTES, "pages were evicted");
    drop(store);
    let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
    assert_eq!(store.recovered().unwrap().blob, last.to_le_bytes());
    for (&key, row) in all.iter().zip(peek(&store, table, &all).unwrap()) {
        assert_eq!(row.unwrap(), value(key, last, 32), "key {key}");
    }
    // Each row of the other table has a whole number of additions. Its 100 bytes are zero except
    // for the first word.
    let keys: Vec<u64> = (0..3000).collect();
    for row in peek(&store, other, &keys).unwrap().into_iter().flatten() {
        assert!(number(&row) > 0 && row[8..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_row_that_comes_and_goes_is_whole_or_missing() {
    // Threads delete and insert the same keys while others read them, in memory and on disk.
    const KEYS: u64 = 4000;
    let Bank { store, table, dir: _dir } = bank(DeviceChoice::Memory, 40);
    let random = Random::new();
    let deleted = AtomicU64::new(0);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let mut random = random.stream(thread);
            let (store, deleted) = (&store, &deleted);
            s.spawn(move || {
                for round in 0..2000 {
                    let hot = if round % 2 == 0 { KEYS } else { 32 };
                    let keys: Vec<u64> = (0..32).map(|_| random.below(hot)).collect();
                    if random.below(2) == 0 {
                        let gone = store.delete(table, &keys).unwrap();
                        deleted.fetch_add(gone, Ordering::Relaxed);
                    } else {
                        let mut put = PutFilled(random.next());
                        store.execute(table, &keys, Clock::Keep, &mut put).unwrap();
                    }
                    let mut filled = Filled(0);
                    let outcome = store.execute(table, &keys, Clock::Keep, &mut filled).unwrap();
                    assert_eq!(filled.0 + outcome.missing.len(), keys.len());
                }
            });
        }
    });
    let all: Vec<u64> = (0..KEYS).collect();
    let there = peek(&store, table, &all).unwrap().into_iter().flatten().count() as u64;
    // Each inserted row was deleted or still exists.
    assert_eq!(store.stats().inserted, deleted.load(Ordering::Relaxed) + there);
}

/// Adds 1 to a row. Before the new record is published, it calls a function, which acts as another
/// thread.
struct Overtaken<F: FnMut()>(F);

impl<F: FnMut()> Operation for Overtaken<F> {
    const ACCESS: Access = Access::Update;
    fn update(&mut self, _: usize, value: &mut [u8]) {
        (self.0)();
        value[0] = value[0].wrapping_add(1);
    }
}

/// Regression test: an update that was overtaken by an insertion began again and reused the space
/// of its first record. It linked that record in front of the inserted record, which has a higher
/// address. The chain then no longer led to ever older records, and a row could not be read.
#[test]
fn a_record_that_was_overtaken_does_not_lead_to_a_newer_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(1 << 20)).unwrap();
    let table = store.create_table("rows", 8, b"").unwrap();
    // Two keys with the same hash bits in the index, so that they share a slot.
    let mut seen = std::collections::HashMap::new();
    let (first, second) = (0..1u64 << 20)
        .find_map(|key| {
            let slot = store.key_hash(table, key) & ((1 << 24) - 1);
            seen.insert(slot, key).map(|before| (before, key))
        })
        .unwrap();
    put(&store, table, &[first], 0, 8);
    store.checkpoint(b"").unwrap();
    let mut overtaken = false;
    let mut update = Overtaken(|| {
        if !std::mem::replace(&mut overtaken, true) {
            std::thread::scope(|s| s.spawn(|| put(&store, table, &[second], 0, 8)).join().unwrap());
        }
    });
    store.execute(table, &[first], Clock::Keep, &mut update).unwrap();
    let mut expected = value(first, 0, 8);
    expected[0] = expected[0].wrapping_add(1);
    for key in [first, second] {
        push_to_disk(&store, table, key);
    }
    assert_eq!(
        peek(&store, table, &[first, second]).unwrap(),
        [Some(expected), Some(value(second, 0, 8))]
    );
}

/// Makes each value empty, after it has called a function.
struct Shrink<F: FnMut()>(F);

impl<F: FnMut()> Operation for Shrink<F> {
    const ACCESS: Access = Access::Update;
    const WIDTH: Width = Width::Variable;
    fn value_bytes(&mut self, _: usize, _: Option<&[u8]>) -> usize {
        0
    }
    fn update(&mut self, _: usize, _: &mut [u8]) {
        (self.0)();
    }
}

/// Takes a checkpoint and opens the bank again. Asserts that only the table "kept" exists, with the
/// rows of `keys`.
fn goes_on(dir: &tempfile::TempDir, store: Store, keys: &[u64]) {
    let kept = store.create_table("kept", 8, b"").unwrap();
    put(&store, kept, keys, 1, 8);
    store.checkpoint(b"").unwrap();
    drop(store);
    let store = Store::open(dir.path(), &options(4 << 20)).unwrap();
    assert_eq!(store.stats().live_rows, keys.len() as u64);
    assert_eq!(peek(&store, kept, &keys[..1]).unwrap(), [Some(value(keys[0], 1, 8))]);
}

/// Regression test: a deletion that ran while its table was dropped subtracted from the table's row
/// count, which was already 0. The next manifest had an impossible count, and the bank could not be
/// opened again.
#[test]
fn a_drop_beside_a_delete_leaves_a_bank_that_opens() {
    let mut random = Random::new();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(4 << 20)).unwrap();
    let keys: Vec<u64> = (0..3000).collect();
    for round in 0..24 {
        let table = store.create_table("rows", 8, b"").unwrap();
        put(&store, table, &keys, round, 8);
        let begin = Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                begin.wait();
                // The deletion fails if the drop comes first, so its result is ignored.
                let _ = store.delete(table, &keys);
            });
            begin.wait();
            for _ in 0..random.below(4000) {
                std::hint::spin_loop();
            }
            store.drop_table(table).unwrap();
        });
    }
    goes_on(&dir, store, &keys);
}

/// A table of variable width is dropped during a batch that makes its rows shorter. The table's
/// byte count must not go below zero.
#[test]
fn a_drop_beside_a_batch_that_shrinks_leaves_a_bank_that_opens() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(4 << 20)).unwrap();
    let words = store.create_variable_table("words", 300, b"").unwrap();
    let keys: Vec<u64> = (0..100).collect();
    let long = vec![vec![7; 300]; keys.len()];
    store.execute(words, &keys, Clock::Keep, &mut PutEach(&long)).unwrap();
    let mut dropped = false;
    let mut shrink = Shrink(|| {
        if !std::mem::replace(&mut dropped, true) {
            std::thread::scope(|s| s.spawn(|| store.drop_table(words)).join().unwrap()).unwrap();
        }
    });
    let _ = store.execute(words, &keys, Clock::Keep, &mut shrink);
    assert!(dropped);
    goes_on(&dir, store, &keys);
}
