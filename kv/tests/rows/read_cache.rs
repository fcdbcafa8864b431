//! Tests the read cache. Repeated peeks of rows on disk are served from memory, write nothing and
//! never give a wrong row.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Add, GetAll, PutAll, Random, options, peek, put, value};
use embank_kv::device::{Device, DeviceOptions, FaultyDevice, MemoryDevice};
use embank_kv::{Clock, Error, Store, StoreStats, TableId};

const BUDGET_BYTES: u64 = 1 << 20;
const VALUE_BYTES: usize = 64;
const RECORD_BYTES: u64 = 96;
const ROWS: u64 = 20_000;

struct Bank {
    store: Store,
    table: TableId,
    device: Arc<FaultyDevice>,
    _dir: tempfile::TempDir,
}

/// Makes and reopens a bank whose records take nearly twice the memory budget. All rows are on
/// disk.
fn bank() -> Bank {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
    let device = Arc::new(FaultyDevice::new(disk));
    let open = || {
        let device: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&device);
        Store::open_on(dir.path(), &options(BUDGET_BYTES), |_| Ok(device)).unwrap()
    };
    let store = open();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &(0..ROWS).collect::<Vec<_>>(), 0, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    drop(store);
    Bank { store: open(), table, device, _dir: dir }
}

fn check(bank: &Bank, keys: &[u64]) {
    for (&key, row) in keys.iter().zip(peek(&bank.store, bank.table, keys).unwrap()) {
        assert_eq!(row.unwrap(), value(key, 0, VALUE_BYTES), "key {key}");
    }
}

/// Peeks at rows until a peek reads at most `reads_max` of them from disk, so the cache has nearly
/// all of them. The cache gets its memory from the log's frames, and the log's writer thread frees
/// them. Therefore no fixed number of peeks is enough.
fn peek_until_cached(store: &Store, table: TableId, keys: &[u64], reads_max: u64) {
    // The loop ends: the writer thread frees the frames, and each peek adds rows to the cache.
    loop {
        let before = store.stats().disk_reads;
        peek(store, table, keys).unwrap();
        if store.stats().disk_reads - before <= reads_max {
            return;
        }
    }
}

/// Peeks at all rows until the cache has nearly all of the memory that log and cache share.
fn peek_until_cache_is_full(store: &Store, table: TableId) {
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut chunks = keys.chunks(1000).cycle();
    // The loop ends: the cache grows while peeks evict rows from it, up to 15 times the frames'
    // memory.
    loop {
        peek(store, table, chunks.next().unwrap()).unwrap();
        let stats = store.stats();
        if stats.memory_cache_bytes > 10 * stats.memory_frames_bytes {
            return;
        }
    }
}

fn assert_within_budget(stats: &StoreStats) {
    let used = stats.memory_frames_bytes
        + stats.memory_index_bytes
        + stats.memory_cache_bytes
        + stats.memory_buffers_bytes;
    assert!(used <= stats.memory_budget_bytes, "{stats:?}");
}

/// Returns `count` keys whose rows are spread over the whole log.
fn spread(count: u64) -> Vec<u64> {
    (0..count).map(|i| i * (ROWS / count)).collect()
}

#[test]
fn rows_that_are_peeked_at_again_come_from_memory_and_nothing_is_written() {
    let bank = bank();
    let opened = bank.device.calls();
    let hot = spread(500);
    peek_until_cached(&bank.store, bank.table, &hot, 9);
    let before = (bank.store.stats(), bank.device.calls());
    check(&bank, &hot);
    let after = (bank.store.stats(), bank.device.calls());
    let read = after.0.disk_reads - before.0.disk_reads;
    assert!(read < 10, "{read} reads for rows that were in the cache");
    assert_eq!(
        after.0.hits_cache - before.0.hits_cache + after.0.hits_disk - before.0.hits_disk,
        500
    );
    assert_eq!(after.1.writes, opened.writes);
    assert_eq!((after.0.records_appended, after.0.disk_write_bytes), (0, 0));
    assert_within_budget(&after.0);
    // The log has no row in memory, so the cache gets most of the memory.
    assert!(after.0.memory_cache_bytes > BUDGET_BYTES / 8, "{:?}", after.0);
}

#[test]
fn rows_read_once_do_not_push_out_those_in_use() {
    let bank = bank();
    peek_until_cache_is_full(&bank.store, bank.table);
    let hot = spread(250);
    peek_until_cached(&bank.store, bank.table, &hot, 9);
    // Reads twice as many other rows as the cache holds, and the hot rows in between.
    for (i, chunk) in (0..6000).map(|i| i * 3 + 1).collect::<Vec<u64>>().chunks(500).enumerate() {
        check(&bank, chunk);
        if i.is_multiple_of(3) {
            check(&bank, &hot);
        }
    }
    let before = bank.store.stats();
    check(&bank, &hot);
    let read = bank.store.stats().disk_reads - before.disk_reads;
    assert!(read < 50, "{read} of 250 hot rows were read again after a scan");
}

#[test]
fn an_updated_row_is_never_answered_from_its_old_copy() {
    let Bank { store, table, .. } = bank();
    let keys = spread(300);
    for version in 1..20 {
        for _ in 0..3 {
            for (&key, row) in keys.iter().zip(peek(&store, table, &keys).unwrap()) {
                assert_eq!(row.unwrap(), value(key, version - 1, VALUE_BYTES));
            }
        }
        put(&store, table, &keys, version, VALUE_BYTES);
        // Promotes other rows, which appends records, so that the new records go to disk.
        let others: Vec<u64> =
            (0..ROWS).filter(|key| key % 3 == 1 && !keys.contains(key)).collect();
        store.promote(table, &others).unwrap();
    }
    store.delete(table, &keys).unwrap();
    assert!(peek(&store, table, &keys).unwrap().iter().all(Option::is_none));
}

#[test]
fn a_get_uses_a_cached_copy_instead_of_the_disk() {
    let Bank { store, table, .. } = bank();
    let keys = spread(200);
    peek_until_cached(&store, table, &keys, 9);
    let before = store.stats();
    let mut values = vec![Vec::new(); keys.len()];
    let outcome = store.execute(table, &keys, Clock::Keep, &mut GetAll(&mut values)).unwrap();
    let after = store.stats();
    for (&key, found) in keys.iter().zip(&values) {
        assert_eq!(*found, value(key, 0, VALUE_BYTES));
    }
    let read = after.disk_reads - before.disk_reads;
    assert!(read < 10, "{read} of 200 rows were read again: {after:?}");
    assert_eq!(after.hits_cache - before.hits_cache + outcome.disk_reads, 200);
    assert_eq!(after.copied_to_tail - before.copied_to_tail, 200);
}

#[test]
fn memory_stays_within_the_budget_whatever_the_work() {
    let Bank { store, table, .. } = bank();
    let random = &mut Random::new();
    let mut next_key = ROWS;
    for _ in 0..300 {
        let keys: Vec<u64> = (0..200).map(|_| random.below(ROWS)).collect();
        match random.below(4) {
            0 | 1 => drop(peek(&store, table, &keys).unwrap()),
            2 => drop(put(&store, table, &keys, 1, VALUE_BYTES)),
            _ => {
                // New keys make the index grow.
                put(&store, table, &(next_key..next_key + 100).collect::<Vec<_>>(), 0, VALUE_BYTES);
                next_key += 100;
            }
        }
        assert_within_budget(&store.stats());
    }
}

#[test]
fn memory_goes_back_to_the_log_when_rows_are_used_for_training() {
    let Bank { store, table, .. } = bank();
    peek_until_cache_is_full(&store, table);
    // These rows fit into the log's frames once the log gets memory from the cache. Until then the
    // log grows in each pass, and the cache gives memory back as the log grows. The number of
    // passes depends on the writer thread.
    let working: Vec<u64> = spread(4000);
    let full = store.stats();
    let mut before = full.clone();
    for _ in 0..1000 {
        for chunk in working.chunks(500) {
            let mut add = Add { by: 1, insert: false };
            store.execute(table, chunk, Clock::Keep, &mut add).unwrap();
        }
        let trained = store.stats();
        assert_within_budget(&trained);
        if trained.hits_mutable - before.hits_mutable == working.len() as u64 {
            assert!(trained.memory_frames_bytes > 2 * full.memory_frames_bytes, "{trained:?}");
            assert!(trained.memory_cache_bytes < full.memory_cache_bytes, "{trained:?}");
            return;
        }
        before = trained;
    }
    panic!("the cache has kept the memory: {before:?}");
}

#[test]
fn a_damaged_record_is_never_kept() {
    let bank = bank();
    // Records are in key order and begin at offset 64. The flipped bit is in the row of key 7.
    bank.device.flip_bit_on_read(64 + 7 * RECORD_BYTES + 50, 3);
    for _ in 0..3 {
        let error = peek(&bank.store, bank.table, &[7]).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }
    bank.device.mend();
    peek_until_cached(&bank.store, bank.table, &[7], 0);
    // The row is in the cache, so the damaged record on disk is not read.
    bank.device.flip_bit_on_read(64 + 7 * RECORD_BYTES + 50, 3);
    check(&bank, &[7]);
}

#[test]
fn a_failed_read_leaves_nothing_wrong_behind() {
    let bank = bank();
    let keys = spread(400);
    for n in [1, 5, 20] {
        bank.device.fail_read(n, std::io::ErrorKind::Other);
        peek(&bank.store, bank.table, &(0..ROWS).collect::<Vec<_>>()).unwrap_err();
        check(&bank, &keys);
    }
}

/// Each key has one writer. A reader must get at least the version that was written before the read
/// began.
#[test]
fn readers_of_a_tiny_cache_never_see_an_old_row() {
    const KEYS: u64 = 4000;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(256 << 10)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &(0..KEYS).collect::<Vec<_>>(), 0, VALUE_BYTES);
    let written: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let random = Random::new();
    std::thread::scope(|s| {
        for reader in 0..3 {
            let mut random = random.stream(10 + reader);
            let (store, written, stop) = (&store, &written, &stop);
            s.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let end = if random.below(2) == 0 { 400 } else { KEYS };
                    let keys: Vec<u64> = (0..100).map(|_| random.below(end)).collect();
                    let least: Vec<u64> =
                        keys.iter().map(|&k| written[k as usize].load(Ordering::Acquire)).collect();
                    for ((&key, least), row) in
                        keys.iter().zip(least).zip(peek(store, table, &keys).unwrap())
                    {
                        // Odd versions are deletions. A writer may be one version ahead of
                        // `written`.
                        let now = written[key as usize].load(Ordering::Acquire) + 1;
                        let fits = |version: u64| {
                            let there =
                                version.is_multiple_of(2).then(|| value(key, version, VALUE_BYTES));
                            there == row
                        };
                        assert!(
                            (least..=now).any(fits),
                            "key {key} from {least} to {now}: {row:?}"
                        );
                    }
                }
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let mut random = random.stream(writer);
                let (store, written) = (&store, &written);
                s.spawn(move || {
                    for round in 0..600 {
                        let mut keys: Vec<u64> =
                            (0..40).map(|_| random.below(KEYS / 2) * 2 + writer).collect();
                        keys.sort_unstable();
                        keys.dedup();
                        if round % 5 == 0 {
                            store.promote(table, &keys).unwrap();
                        }
                        keys.retain(|&key| {
                            written[key as usize].load(Ordering::Relaxed).is_multiple_of(2)
                        });
                        store.delete(table, &keys).unwrap();
                        bump(written, &keys);
                        let values: Vec<_> = keys
                            .iter()
                            .map(|&k| {
                                value(
                                    k,
                                    written[k as usize].load(Ordering::Relaxed) + 1,
                                    VALUE_BYTES,
                                )
                            })
                            .collect();
                        store.execute(table, &keys, Clock::Keep, &mut PutAll(&values)).unwrap();
                        bump(written, &keys);
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(store.stats().hits_cache > 0, "{:?}", store.stats());
}

fn bump(written: &[AtomicU64], keys: &[u64]) {
    for &key in keys {
        written[key as usize].fetch_add(1, Ordering::Release);
    }
}

/// Regression test: while the cache had its maximum size and the index grew, each inserting thread
/// waited for a frame inside a chunk of its batch. A checkpoint waited for these threads, so all of
/// them hung. The log's writer thread also counted frames below zero.
#[test]
fn inserts_and_checkpoints_beside_a_full_cache_come_to_an_end() {
    const OLD: u64 = 1500;
    const THREADS: u64 = 12;
    for round in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
        let open =
            || Store::open_on(dir.path(), &options(320 << 10), |_| Ok(Arc::clone(&disk))).unwrap();
        let store = open();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        let old: Vec<u64> = (0..OLD).collect();
        put(&store, table, &old, 0, VALUE_BYTES);
        store.checkpoint(b"").unwrap();
        drop(store);
        let store = Arc::new(open());
        for _ in 0..20 {
            peek(&store, table, &old).unwrap();
        }
        let stats = store.stats();
        assert!(stats.memory_cache_bytes > stats.memory_budget_bytes / 2, "{stats:?}");
        // The threads are not scoped: otherwise a hanging thread would keep the test from ending.
        let (tell, told) = std::sync::mpsc::channel();
        for thread in 0..=THREADS {
            let (store, tell) = (Arc::clone(&store), tell.clone());
            std::thread::spawn(move || {
                if thread == THREADS {
                    for _ in 0..3 {
                        store.checkpoint(b"").unwrap();
                    }
                } else {
                    let keys: Vec<u64> = (0..1024).map(|i| (thread + 1) << 20 | i).collect();
                    put(&store, table, &keys, 1, VALUE_BYTES);
                }
                tell.send(()).unwrap();
            });
        }
        drop(tell);
        for _ in 0..=THREADS {
            let ended = told.recv_timeout(std::time::Duration::from_secs(60));
            assert!(ended.is_ok(), "round {round}: {ended:?} {:?}", store.stats());
        }
        assert_within_budget(&store.stats());
        let keys: Vec<u64> = (0..1024).map(|i| THREADS << 20 | i).collect();
        for (&key, row) in keys.iter().zip(peek(&store, table, &keys).unwrap()) {
            assert_eq!(row.unwrap(), value(key, 1, VALUE_BYTES));
        }
    }
}
