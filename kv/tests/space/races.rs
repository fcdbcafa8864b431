//! Tests compaction while other threads run batches, scans and checkpoints.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::compacting::{VALUE_BYTES, by_hand, ends, open};
use crate::common::{Add, GetAll, Random, options, peek, put, value};
use embank_kv::device::{Device, DeviceOptions, Freed, MemoryDevice, PartFile, Read};
use embank_kv::{Clock, CompactionOptions, Result, Store, StoreOptions};

#[test]
fn readers_writers_and_deleters_agree_while_compaction_moves_their_rows() {
    const KEYS: u64 = 12_000;
    let dir = tempfile::tempdir().unwrap();
    let compaction = CompactionOptions {
        background: true,
        space_amplification_target: 1.1,
        ..Default::default()
    };
    let (store, table) = open(dir.path(), &StoreOptions { compaction, ..options(512 << 10) });
    let all: Vec<u64> = (0..KEYS).collect();
    put(&store, table, &all, 0, VALUE_BYTES);
    // Each of two writers adds to its third of the keys. The last third is deleted and put again.
    let added: Vec<AtomicU64> = all.iter().map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let random = Random::new();
    let first = |key: u64| u64::from_le_bytes(value(key, 0, VALUE_BYTES)[..8].try_into().unwrap());
    std::thread::scope(|s| {
        let (store, added, stop) = (&store, &added, &stop);
        let mut workers = Vec::new();
        for writer in 0..2 {
            let mut random = random.stream(writer);
            workers.push(s.spawn(move || {
                for _ in 0..150 {
                    let mut keys: Vec<u64> =
                        (0..400).map(|_| random.below(KEYS / 3) * 3 + writer).collect();
                    keys.sort_unstable();
                    keys.dedup();
                    store
                        .execute(table, &keys, Clock::Keep, &mut Add { by: 1, insert: false })
                        .unwrap();
                    for key in keys {
                        added[key as usize].fetch_add(1, Ordering::Release);
                    }
                }
            }));
        }
        let mut third = random.stream(2);
        workers.push(s.spawn(move || {
            for round in 0..150 {
                let at = third.below(KEYS / 3 - 300);
                let keys: Vec<u64> = (at..at + 300).map(|i| i * 3 + 2).collect();
                store.delete(table, &keys).unwrap();
                assert!(peek(store, table, &keys).unwrap().iter().all(Option::is_none));
                put(store, table, &keys, round, VALUE_BYTES);
                store.promote(table, &keys).unwrap();
            }
        }));
        let mut fourth = random.stream(3);
        let reader = s.spawn(move || {
            while !stop.load(Ordering::Acquire) {
                let keys: Vec<u64> = (0..500).map(|_| fourth.below(KEYS / 3) * 3).collect();
                let before: Vec<u64> =
                    keys.iter().map(|&key| added[key as usize].load(Ordering::Acquire)).collect();
                for ((&key, row), before) in
                    keys.iter().zip(peek(store, table, &keys).unwrap()).zip(before)
                {
                    let row = row.expect("never deleted");
                    let now = u64::from_le_bytes(row[..8].try_into().unwrap());
                    assert!(now.wrapping_sub(first(key)) >= before, "key {key}");
                    assert_eq!(row[8..], value(key, 0, VALUE_BYTES)[8..]);
                }
            }
        });
        let keeper = s.spawn(move || {
            while !stop.load(Ordering::Acquire) {
                store.compact().unwrap();
                store.checkpoint(b"").unwrap();
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        stop.store(true, Ordering::Release);
        reader.join().unwrap();
        keeper.join().unwrap();
    });
    let check = |store: &Store| {
        for (&key, row) in all.iter().zip(peek(store, table, &all).unwrap()) {
            let row = row.unwrap();
            if key % 3 < 2 {
                let now = u64::from_le_bytes(row[..8].try_into().unwrap());
                let count = added[key as usize].load(Ordering::Acquire);
                assert_eq!(now.wrapping_sub(first(key)), count, "key {key}");
            }
        }
        assert_eq!(store.stats().live_rows, KEYS);
        assert_eq!(store.stats().compaction_stopped, None);
    };
    check(&store);
    store.checkpoint(b"end").unwrap();
    drop(store);
    check(&Store::open(dir.path(), &options(512 << 10)).unwrap());
}

/// More threads than the device has rings (queues of `io_uring`) move rows from disk to the tail.
/// The threads wait for compaction, which must still be able to read. A scan runs at the same time.
#[test]
fn batches_that_wait_for_compaction_leave_it_what_it_needs_to_read() {
    const ROWS: u64 = 60_000;
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), &options(4 << 20)).unwrap());
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let all: Vec<u64> = (0..ROWS).collect();
    put(&store, table, &all, 0, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    let random = Random::new();
    let worked = Arc::clone(&store);
    let ended = ends(600, move || {
        std::thread::scope(|s| {
            for thread in 0..6 {
                let (store, mut random) = (&worked, random.stream(thread));
                s.spawn(move || {
                    for _ in 0..60 {
                        let keys: Vec<u64> = (0..2048).map(|_| random.below(ROWS)).collect();
                        let mut rows = vec![Vec::new(); keys.len()];
                        store.execute(table, &keys, Clock::Keep, &mut GetAll(&mut rows)).unwrap();
                        for (key, row) in keys.iter().zip(rows) {
                            assert_eq!(row, value(*key, 0, VALUE_BYTES));
                        }
                    }
                });
            }
            let store = &worked;
            s.spawn(move || {
                let (mut scan, mut rows) = (store.scan(table).unwrap(), 0);
                while scan.next_row().unwrap().is_some() {
                    rows += 1;
                }
                assert_eq!(rows, ROWS);
            });
        });
    });
    let stats = store.stats();
    assert!(ended, "stuck on {}: {stats:?}", stats.device);
    println!("{} waits on {}", stats.compaction_waits, stats.device);
}

/// A device that holds the reads of the thread "slow" until the test releases them.
#[derive(Debug)]
struct Slow {
    inner: MemoryDevice,
    held: AtomicBool,
    waits: AtomicBool,
}

impl Device for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.inner.read_many(reads)?;
        if std::thread::current().name() == Some("slow") {
            self.waits.store(true, Ordering::SeqCst);
            while self.held.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.inner.write(offset, bytes)
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn truncate(&self, end: u64) -> Result<()> {
        self.inner.truncate(end)
    }
    fn free(&self, below: u64) -> Result<Freed> {
        self.inner.free(below)
    }
    fn part_files(&self) -> Result<Vec<PartFile>> {
        self.inner.part_files()
    }
    fn remove_part(&self, begin: u64) -> Result<()> {
        self.inner.remove_part(begin)
    }
    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        self.inner.locate(offset)
    }
}

/// A put has found tombstones on disk. Compaction then removes them, and a second put of the same
/// keys finds no record. Only one of the puts may insert each key.
#[test]
fn a_key_whose_tombstone_goes_is_inserted_once() {
    const ROWS: u64 = 160_000;
    let dir = tempfile::tempdir().unwrap();
    let inner = MemoryDevice::new(&DeviceOptions::default()).unwrap();
    let device =
        Arc::new(Slow { inner, held: AtomicBool::new(true), waits: AtomicBool::new(false) });
    let wrapped: Arc<dyn Device> = Arc::<Slow>::clone(&device);
    let store = Store::open_on(dir.path(), &by_hand(1 << 20), |_| Ok(wrapped)).unwrap();
    let table = store.create_table("rows", 8, b"").unwrap();
    let all: Vec<u64> = (0..ROWS).collect();
    for keys in all.chunks(4000) {
        put(&store, table, keys, 0, 8);
    }
    // There are more rows than index slots, so keys share slots.
    let deleted: Vec<u64> = (0..ROWS).filter(|key| key % 10 != 1).collect();
    for keys in deleted.chunks(4000) {
        store.delete(table, keys).unwrap();
    }
    store.checkpoint(b"").unwrap();
    // These rows get new records in memory, which lead to chains with tombstones.
    let heads: Vec<u64> = (ROWS / 20..ROWS / 10).map(|i| i * 10 + 1).take(5000).collect();
    put(&store, table, &heads, 1, 8);
    let keys = &deleted[..4000];
    let before = store.stats().live_rows;
    std::thread::scope(|s| {
        let slow = std::thread::Builder::new().name("slow".into());
        let slow = slow.spawn_scoped(s, || put(&store, table, keys, 7, 8)).unwrap();
        while !device.waits.load(Ordering::SeqCst) && !slow.is_finished() {
            std::thread::yield_now();
        }
        store.compact().unwrap();
        put(&store, table, keys, 8, 8);
        device.held.store(false, Ordering::SeqCst);
    });
    assert_eq!(store.stats().live_rows - before, 4000);
    assert_eq!(store.delete(table, keys).unwrap(), 4000);
    for _ in 0..3 {
        store.checkpoint(b"").unwrap();
        store.compact().unwrap();
    }
    assert!(peek(&store, table, keys).unwrap().iter().all(Option::is_none));
}
