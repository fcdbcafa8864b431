//! Space comes back, and nothing else goes with it.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use common::{Add, GetAll, PutAll, Random, options, peek, put, value};
use embank_kv::device::{Device, DeviceOptions, FaultyDevice, Freed, MemoryDevice, Read};
use embank_kv::{Clock, CompactionOptions, Error, Result, Store, StoreOptions, TableId};

const VALUE_BYTES: usize = 96;
const RECORD_BYTES: u64 = 128;

/// Only `Store::compact` compacts.
fn by_hand(budget_bytes: u64) -> StoreOptions {
    let compaction = CompactionOptions { background: false, ..CompactionOptions::default() };
    StoreOptions { compaction, ..options(budget_bytes) }
}

fn open(dir: &std::path::Path, options: &StoreOptions) -> (Store, TableId) {
    let store = Store::open(dir, options).unwrap();
    let table = store.tables().first().map(|table| table.id);
    let table =
        table.unwrap_or_else(|| store.create_table("rows", VALUE_BYTES as u32, b"").unwrap());
    (store, table)
}

/// Bytes that the files of the log take on disk, holes not counted.
fn log_bytes_on_disk(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(dir.join("log")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
}

fn check(store: &Store, table: TableId, versions: &HashMap<u64, u64>, keys: std::ops::Range<u64>) {
    let keys: Vec<u64> = keys.collect();
    for (&key, row) in keys.iter().zip(peek(store, table, &keys).unwrap()) {
        let expected = versions.get(&key).map(|&version| value(key, version, VALUE_BYTES));
        assert_eq!(row, expected, "key {key}");
    }
}

/// Runs `work` on a thread of its own, which stays behind if it hangs; false if it has not ended in time.
fn ends(seconds: u64, work: impl FnOnce() + Send + 'static) -> bool {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = tell.send(());
    });
    match told.recv_timeout(Duration::from_secs(seconds)) {
        Err(RecvTimeoutError::Timeout) => false,
        _ => thread.join().map(|()| true).unwrap(),
    }
}

/// Overwrites random rows, many times over, and holds every sample of the log against its rows.
fn hold_space(budget_bytes: u64, rows: u64, checkpoint_every: Option<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &options(budget_bytes));
    let mut random = Random::new();
    let mut versions = HashMap::new();
    let all: Vec<u64> = (0..rows).collect();
    put(&store, table, &all, 0, VALUE_BYTES);
    versions.extend(all.iter().map(|&key| (key, 0)));
    let live = rows * RECORD_BYTES;
    let page = store.stats().page_size_bytes;
    let (mut written, mut highest) = (0, 0.0_f64);
    for version in 1..=(12 * rows / 512) {
        let mut keys: Vec<u64> = (0..512).map(|_| random.below(rows)).collect();
        keys.sort_unstable();
        keys.dedup();
        put(&store, table, &keys, version, VALUE_BYTES);
        versions.extend(keys.iter().map(|&key| (key, version)));
        written += keys.len() as u64 * RECORD_BYTES;
        if checkpoint_every.is_some_and(|bytes| written >= bytes) {
            store.checkpoint(b"").unwrap();
            written = 0;
        }
        let stats = store.stats();
        assert_eq!(stats.live_bytes, live);
        // Until rows have been written a few times over, compaction does not know what checkpoints hold.
        let steady = version > 4 * rows / 512;
        if steady {
            highest = highest.max(stats.space_amplification());
        }
        let limit = if steady { 1.5 } else { 1.65 } + (8 * page) as f64 / live as f64;
        assert!(
            stats.space_amplification() < limit,
            "{:.3} after batch {version}: {stats:?}",
            stats.space_amplification()
        );
    }
    let stats = store.stats();
    println!(
        "{highest:.3} at most; compacted {} bytes, copied {}, at {:.0} bytes/s, {} waits",
        stats.compacted_bytes,
        stats.compaction_copied_bytes,
        stats.compaction_bytes_per_s(),
        stats.compaction_waits
    );
    assert_eq!(stats.compaction_stopped, None);
    assert!(stats.freed_bytes > 5 * live, "{stats:?}");
    // The files agree with the count, where the file system takes holes; each file may hold a block more.
    let on_disk = log_bytes_on_disk(dir.path());
    assert!(on_disk <= stats.log_disk_bytes + 16 * page, "{on_disk} {stats:?}");
    check(&store, table, &versions, 0..rows + 10);
    store.checkpoint(b"end").unwrap();
    drop(store);
    let (store, table) = open(dir.path(), &options(budget_bytes));
    assert_eq!(store.stats().live_bytes, live);
    check(&store, table, &versions, 0..rows + 10);
}

#[test]
fn a_log_without_checkpoints_stays_below_one_and_a_half_of_its_rows() {
    hold_space(2 << 20, 100_000, None);
}

#[test]
fn a_log_with_frequent_checkpoints_stays_below_one_and_a_half_of_its_rows() {
    hold_space(2 << 20, 100_000, Some(100_000 * RECORD_BYTES / 40));
}

#[test]
fn a_log_whose_keys_share_slots_is_compacted_too() {
    hold_space(384 << 10, 30_000, None);
}

#[test]
fn deleted_rows_give_their_space_and_their_slots_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &by_hand(1 << 20));
    let all: Vec<u64> = (0..50_000).collect();
    put(&store, table, &all, 3, VALUE_BYTES);
    store.checkpoint(b"full").unwrap();
    let full = log_bytes_on_disk(dir.path());
    assert_eq!(store.delete(table, &all[100..]).unwrap(), 49_900);
    assert_eq!(store.stats().live_rows, 100);
    // What checkpoints name stays until they go; tombstones go with the second pass.
    for _ in 0..4 {
        store.checkpoint(b"less").unwrap();
        store.compact().unwrap();
    }
    store.checkpoint(b"least").unwrap();
    let stats = store.stats();
    let left = log_bytes_on_disk(dir.path());
    assert!(left < full / 20, "{left} of {full} bytes are left: {stats:?}");
    assert!(stats.index_entries <= 100, "{stats:?}");
    let versions: HashMap<_, _> = all[..100].iter().map(|&key| (key, 3)).collect();
    check(&store, table, &versions, 0..50_000);
    drop(store);
    let (store, table) = open(dir.path(), &by_hand(1 << 20));
    assert_eq!(store.stats().live_rows, 100);
    check(&store, table, &versions, 0..50_000);
}

#[test]
fn a_dropped_table_is_gone_at_once_and_its_space_later() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &by_hand(1 << 20));
    let other = store.create_table("other", VALUE_BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    put(&store, table, &keys, 1, VALUE_BYTES);
    put(&store, other, &keys[..500], 2, VALUE_BYTES);
    store.checkpoint(b"both").unwrap();
    let full = log_bytes_on_disk(dir.path());
    store.drop_table(table).unwrap();
    assert!(matches!(store.drop_table(table), Err(Error::NoSuchTable(_))));
    assert!(matches!(peek(&store, table, &[1]), Err(Error::NoSuchTable(_))));
    assert!(matches!(store.delete(table, &[1]), Err(Error::NoSuchTable(_))));
    assert_eq!(store.stats().live_rows, 500);
    // Not yet in a checkpoint: a crash brings it back whole, even after compaction.
    store.compact().unwrap();
    drop(store);
    let (store, again) = open(dir.path(), &by_hand(1 << 20));
    assert_eq!((again, store.stats().live_rows), (table, 20_500));
    let versions: HashMap<_, _> = keys.iter().map(|&key| (key, 1)).collect();
    check(&store, table, &versions, 0..20_001);
    store.drop_table(table).unwrap();
    for _ in 0..3 {
        store.checkpoint(b"one").unwrap();
        store.compact().unwrap();
    }
    store.checkpoint(b"one").unwrap();
    assert!(log_bytes_on_disk(dir.path()) < full / 5);
    assert!(store.stats().index_entries <= 500);
    // The name is free, the number is not.
    let table = store.create_table("rows", 8, b"").unwrap();
    assert_eq!(table.number(), 3);
    drop(store);
    let (store, _) = open(dir.path(), &by_hand(1 << 20));
    assert_eq!(store.tables().len(), 1);
    assert_eq!(store.create_table("rows", 8, b"").unwrap().number(), 3);
    let versions: HashMap<_, _> = keys[..500].iter().map(|&key| (key, 2)).collect();
    check(&store, other, &versions, 0..1000);
}

#[test]
fn readers_writers_and_deleters_agree_while_compaction_moves_their_rows() {
    const KEYS: u64 = 12_000;
    let dir = tempfile::tempdir().unwrap();
    let compaction = CompactionOptions { space_amplification_target: 1.1, ..Default::default() };
    let (store, table) = open(dir.path(), &StoreOptions { compaction, ..options(512 << 10) });
    let all: Vec<u64> = (0..KEYS).collect();
    put(&store, table, &all, 0, VALUE_BYTES);
    // Each of two writers owns every third key and counts its rows up; the rest is deleted and put back.
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

#[test]
fn clocks_go_along_with_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &by_hand(512 << 10));
    let keys: Vec<u64> = (0..2000).collect();
    put(&store, table, &keys, 1, VALUE_BYTES);
    common::acquire(&store, table, &keys[..50], None).unwrap();
    common::acquire(&store, table, &keys[..20], None).unwrap();
    common::push_to_disk(&store, table, 0);
    for _ in 0..3 {
        assert!(store.compact().unwrap().copied_bytes > 0);
        for key in [0, 19, 20, 49, 50, 1999] {
            let count = u32::from(key < 20) + u32::from(key < 50);
            assert_eq!(store.clock_of(table, key).unwrap(), Some(count), "key {key}");
        }
    }
}

/// More threads than the device has rings bring rows from disk to the tail, which must wait for compaction;
/// that reads too. A scan stands beside them.
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
    let ended = ends(120, move || {
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

/// Long and short rows by turns leave pages half empty, though no record is dead: nobody waits for
/// compaction to gain what it can't.
#[test]
fn badly_filled_pages_are_not_copied_around_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), &options(512 << 10)).unwrap());
    assert_eq!(store.stats().page_size_bytes, 8192);
    let long = store.create_table("long", 7300, b"").unwrap();
    let short = store.create_table("short", 1200, b"").unwrap();
    let busy = Arc::clone(&store);
    let ended = ends(60, move || {
        for key in 0..400 {
            put(&busy, long, &[key], 0, 7300);
            put(&busy, short, &[key], 0, 1200);
        }
    });
    let stats = store.stats();
    assert!(ended, "stuck: {stats:?}");
    assert!(stats.compaction_copied_bytes < 2 * stats.live_bytes, "{stats:?}");
    // Rows that die end the rest.
    store.delete(long, &(0..400).collect::<Vec<_>>()).unwrap();
    let ended = ends(60, {
        let store = Arc::clone(&store);
        move || {
            while store.stats().log_disk_bytes > stats.live_bytes / 2 {
                std::thread::yield_now();
            }
        }
    });
    assert!(ended, "{:?}", store.stats());
}

#[test]
fn compaction_beside_a_checkpoint_keeps_to_the_quota() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 4 << 20;
    let options = StoreOptions { disk_quota_bytes: Some(quota), ..options(512 << 10) };
    let (store, table) = open(dir.path(), &options);
    let keys: Vec<u64> = (0..quota / RECORD_BYTES * 9 / 10).collect();
    put(&store, table, &keys, 0, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    let odd: Vec<u64> = keys.iter().copied().filter(|key| key % 2 == 1).collect();
    store.delete(table, &odd).unwrap();
    // Compaction would have copied the log once by then.
    let until = std::time::Instant::now() + Duration::from_secs(1);
    while std::time::Instant::now() < until {
        let stats = store.stats();
        // Deletions may go beyond it, by their tombstones.
        assert!(stats.log_disk_bytes <= quota + 32 * odd.len() as u64, "{stats:?}");
        std::thread::yield_now();
    }
}

/// A quota below the memory: what is dead was never on disk.
#[test]
fn a_quota_below_the_memory_is_no_limit_to_what_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { disk_quota_bytes: Some(4 << 20), ..options(16 << 20) };
    let store = Arc::new(Store::open(dir.path(), &options).unwrap());
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let ended = ends(60, move || {
        for round in 0..100 {
            let keys: Vec<u64> = (round * 1000..round * 1000 + 1000).collect();
            put(&store, table, &keys, 0, VALUE_BYTES);
            store.delete(table, &keys).unwrap();
        }
    });
    assert!(ended, "stuck");
}

#[test]
fn a_dropped_table_of_long_rows_asks_for_no_memory_once_they_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = Store::open(dir.path(), &by_hand(4 << 20)).unwrap();
        let long = store.create_table("long", 60_000, b"").unwrap();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        put(&store, long, &[1, 2, 3], 0, 60_000);
        put(&store, table, &[1, 2, 3], 4, VALUE_BYTES);
        store.checkpoint(b"").unwrap();
        store.drop_table(long).unwrap();
        store.checkpoint(b"").unwrap();
    }
    // Its records may still be in the way.
    Store::open(dir.path(), &by_hand(768 << 10)).unwrap_err();
    {
        let store = Store::open(dir.path(), &by_hand(4 << 20)).unwrap();
        for _ in 0..3 {
            store.compact().unwrap();
            store.checkpoint(b"").unwrap();
        }
    }
    let store = Store::open(dir.path(), &by_hand(768 << 10)).unwrap();
    let [table] = &store.tables()[..] else { panic!("one table is left") };
    let versions: HashMap<_, _> = (1..4).map(|key| (key, 4)).collect();
    check(&store, table.id, &versions, 0..5);
}

#[test]
fn a_checkpoint_that_failed_holds_no_space() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &options(512 << 10));
    let keys: Vec<u64> = (0..20_000).collect();
    put(&store, table, &keys, 0, VALUE_BYTES);
    // In the way of its name.
    let name = dir.path().join("checkpoints/0000000001");
    std::fs::create_dir(&name).unwrap();
    std::fs::write(name.join("x"), "x").unwrap();
    store.checkpoint(b"").unwrap_err();
    std::fs::remove_dir_all(&name).unwrap();
    for version in 1..6 {
        put(&store, table, &keys, version, VALUE_BYTES);
    }
    store.compact().unwrap();
    let stats = store.stats();
    assert_eq!(stats.log_held_bytes, 0, "{stats:?}");
}

/// Holds the reads of the thread that is called "slow" until told otherwise.
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
    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        self.inner.locate(offset)
    }
}

/// A put has found tombstones on disk, compaction passes them, and another put of the same keys finds nothing
/// any more: of the two, one inserts.
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
    // So many rows that they share slots.
    let deleted: Vec<u64> = (0..ROWS).filter(|key| key % 10 != 1).collect();
    for keys in deleted.chunks(4000) {
        store.delete(table, keys).unwrap();
    }
    store.checkpoint(b"").unwrap();
    // New heads in memory, in front of chains with tombstones.
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

/// A bank on a disk in memory, most of whose rows are on it.
fn on_memory(dir: &std::path::Path) -> (Store, Arc<FaultyDevice>, Arc<dyn Device>, TableId) {
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
    let device = Arc::new(FaultyDevice::new(Arc::clone(&disk)));
    let wrapped: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&device);
    let store = Store::open_on(dir, &by_hand(256 << 10), |_| Ok(wrapped)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..8000).collect();
    put(&store, table, &keys, 1, VALUE_BYTES);
    store.checkpoint(b"good").unwrap();
    (store, device, disk, table)
}

#[test]
fn a_damaged_page_stops_compaction_and_loses_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (store, device, _, table) = on_memory(dir.path());
    let page = store.stats().page_size_bytes;
    device.flip_bit_on_read(5 * page + 100, 3);
    let error = store.compact().unwrap_err();
    assert!(matches!(&error, Error::Damaged { what, .. } if what.contains("page 5")), "{error}");
    let stats = store.stats();
    assert_eq!(stats.log_begin, 5 * page);
    assert!(stats.compaction_stopped.unwrap().contains("page 5"));
    // The store goes on, and so does compaction once the page is good again.
    put(&store, table, &[1, 2, 3], 2, VALUE_BYTES);
    device.mend();
    let begin = store.stats().log_begin;
    assert!(store.compact().unwrap().scanned_bytes > 0);
    assert!(store.stats().log_begin > begin);
    assert_eq!(store.stats().compaction_stopped, None);
    let versions: HashMap<_, _> =
        (0..8000).map(|key| (key, if (1..4).contains(&key) { 2 } else { 1 })).collect();
    check(&store, table, &versions, 0..8000);
}

#[test]
fn every_failure_in_compaction_is_reported_and_harms_no_checkpoint() {
    let keys: Vec<u64> = (0..8000).collect();
    let versions: HashMap<_, _> = keys.iter().map(|&key| (key, 1)).collect();
    for (site, n) in
        [("read", 1), ("read", 9), ("write", 1), ("write", 12), ("free", 1), ("sync", 1)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (store, device, disk, table) = on_memory(dir.path());
        match site {
            "read" => device.fail_read(n, ErrorKind::Other),
            "write" => device.fail_write(n, ErrorKind::StorageFull),
            "sync" => device.fail_sync(n, ErrorKind::Other),
            _ => device.fail_free(n, ErrorKind::PermissionDenied),
        }
        let failed = match site {
            "sync" => store.compact().and_then(|_| store.checkpoint(b"bad").map(|_| ())),
            "free" => {
                // Two checkpoints are kept: the space of the first goes with the third.
                store.compact().unwrap();
                store.checkpoint(b"good").unwrap();
                store.checkpoint(b"good").unwrap();
                store.compact().map(|_| ())
            }
            _ => store.compact().map(|_| ()),
        };
        match site {
            // Giving back is tried again by the next call; the pass that found it done is none the worse.
            "free" => failed.unwrap(),
            _ => assert!(failed.unwrap_err().to_string().contains("injected"), "{site} {n}"),
        }
        if site == "read" {
            check(&store, table, &versions, 0..8000);
            store.compact().unwrap();
        }
        drop(store);
        let store = Store::open_on(dir.path(), &by_hand(256 << 10), |_| Ok(disk)).unwrap();
        assert_eq!(store.recovered().unwrap().blob, b"good");
        check(&store, table, &versions, 0..8000);
        store.compact().unwrap();
        check(&store, table, &versions, 0..8000);
    }
}

#[test]
fn a_crash_between_any_two_steps_reopens_at_the_newest_checkpoint() {
    // The steps: compact, checkpoint, give back. A crash after any number of them, at every checkpoint kept.
    for kept in [1, 2] {
        for steps in 0..9 {
            let dir = tempfile::tempdir().unwrap();
            let options = StoreOptions { checkpoints_kept: kept, ..by_hand(512 << 10) };
            let (store, table) = open(dir.path(), &options);
            let keys: Vec<u64> = (0..6000).collect();
            let mut durable = None;
            for step in 0..steps {
                match step % 3 {
                    0 => drop(put(&store, table, &keys, step, VALUE_BYTES)),
                    1 => {
                        store.checkpoint(&[step as u8]).unwrap();
                        durable = Some(step - 1);
                    }
                    _ => drop(store.compact().unwrap()),
                }
            }
            let recovered = store.stats();
            drop(store);
            // A crash before the segments went: what was given back of the first one is there again, damaged.
            let (store, table) = open(dir.path(), &options);
            let versions: HashMap<_, _> = match durable {
                Some(version) => keys.iter().map(|&key| (key, version)).collect(),
                None => HashMap::new(),
            };
            check(&store, table, &versions, 0..6000);
            assert!(store.stats().log_begin <= recovered.log_begin);
            store.compact().unwrap();
            store.checkpoint(b"after").unwrap();
            check(&store, table, &versions, 0..6000);
        }
    }
}

#[test]
fn at_the_quota_writers_wait_for_compaction_and_then_fail() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 4 << 20;
    let options = StoreOptions { disk_quota_bytes: Some(quota), ..options(512 << 10) };
    let (store, table) = open(dir.path(), &options);
    // Two thirds of the quota, overwritten again and again: compaction makes room each time.
    let keys: Vec<u64> = (0..quota / RECORD_BYTES * 2 / 3).collect();
    for version in 0..6 {
        put(&store, table, &keys, version, VALUE_BYTES);
        assert!(store.stats().log_disk_bytes <= quota);
    }
    // More rows than fit.
    let more: Vec<u64> = (1 << 20..(1 << 20) + quota / RECORD_BYTES).collect();
    let values: Vec<_> = more.iter().map(|&key| value(key, 0, VALUE_BYTES)).collect();
    let error = store.execute(table, &more, Clock::Keep, &mut PutAll(&values)).unwrap_err();
    let Error::QuotaExceeded { quota_bytes, live_bytes, .. } = error else { panic!("{error}") };
    assert_eq!(quota_bytes, quota);
    assert!(live_bytes > quota / 2, "{live_bytes}");
    assert!(store.stats().log_disk_bytes <= quota);
    // What was there is there, peeks go on, and so do deletions; then there is room again.
    let versions: HashMap<_, _> = keys.iter().map(|&key| (key, 5)).collect();
    check(&store, table, &versions, 0..keys.len() as u64);
    store.delete(table, &more).unwrap();
    store.delete(table, &keys[1000..]).unwrap();
    put(&store, table, &keys[..2000], 7, VALUE_BYTES);
    check(&store, table, &keys[..2000].iter().map(|&key| (key, 7)).collect(), 0..2000);
    // Space that checkpoints hold can't be made by compaction: the error says so.
    store.checkpoint(b"held").unwrap();
    let mut held = None;
    for version in 8..20 {
        let values: Vec<_> = keys.iter().map(|&key| value(key, version, VALUE_BYTES)).collect();
        let done = store.execute(table, &keys, Clock::Keep, &mut PutAll(&values));
        if let Err(error) = done {
            held = Some(error);
            break;
        }
    }
    let error = held.expect("a checkpoint holds the space");
    assert!(error.to_string().contains("take a checkpoint"), "{error}");
    // And the cure works.
    store.checkpoint(b"one").unwrap();
    store.checkpoint(b"two").unwrap();
    put(&store, table, &keys[..500], 30, VALUE_BYTES);
    let mut rows = vec![Vec::new(); 500];
    store.execute(table, &keys[..500], Clock::Keep, &mut GetAll(&mut rows)).unwrap();
    assert!(rows.iter().zip(&keys).all(|(row, &key)| *row == value(key, 30, VALUE_BYTES)));
}
