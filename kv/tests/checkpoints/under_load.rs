//! Tests that batches run while a checkpoint is written. The checkpoint must show all batches at
//! one moment.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::compacting::ends;
use crate::common::gate::{Gate, Opens};
use crate::common::{PutAll, Random, options, peek, put, value};
use embank_kv::device::Device;
use embank_kv::{Clock, Store, StoreOptions, TableId};

const VALUE_BYTES: usize = 24;

fn reopened(dir: &tempfile::TempDir, options: &StoreOptions, gate: &Arc<Gate>) -> Store {
    let device: Arc<dyn Device> = Arc::<Gate>::clone(gate);
    Store::open_on(dir.path(), options, |_| Ok(device)).unwrap()
}

/// Regression test: a checkpoint paused all batches until each of its pages was on disk.
#[test]
fn batches_go_on_while_the_disk_does_not_take_the_checkpoint() {
    let ended = ends(120, || {
        let dir = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate::new());
        let options = options(8 << 20);
        let store = reopened(&dir, &options, &gate);
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        let keys: Vec<u64> = (0..10_000).collect();
        put(&store, table, &keys, 1, VALUE_BYTES);
        let opens = Opens::after_closing(&gate);
        let page = store.stats().page_size_bytes;
        let tail = store.stats().log_tail;
        let taken = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                store.checkpoint(b"cut").unwrap();
                taken.store(true, Ordering::Release);
            });
            // A checkpoint pauses batches until it has cut the log: it settles the last page and
            // begins a new one. The loop ends when the tail is on the new page.
            let until = Instant::now() + Duration::from_secs(60);
            while store.stats().log_tail / page == tail / page {
                assert!(Instant::now() < until, "{:?}", store.stats());
                std::thread::yield_now();
            }
            put(&store, table, &keys[..3000], 2, VALUE_BYTES);
            let more: Vec<u64> = (20_000..25_000).collect();
            put(&store, table, &more, 1, VALUE_BYTES);
            store.delete(table, &keys[9000..]).unwrap();
            let rows = peek(&store, table, &keys).unwrap();
            for (&key, row) in keys.iter().zip(rows) {
                let expected = match key {
                    ..3000 => Some(value(key, 2, VALUE_BYTES)),
                    3000..9000 => Some(value(key, 1, VALUE_BYTES)),
                    _ => None,
                };
                assert_eq!(row, expected, "key {key}");
            }
            assert!(!taken.load(Ordering::Acquire), "the disk took what it could not");
            drop(opens);
        });
        assert_eq!(store.stats().checkpoints, 1);
        drop(store);
        let store = reopened(&dir, &options, &gate);
        assert_eq!(store.stats().live_rows, keys.len() as u64);
        let rows = peek(&store, table, &keys).unwrap();
        for (&key, row) in keys.iter().zip(rows) {
            assert_eq!(row, Some(value(key, 1, VALUE_BYTES)), "key {key}");
        }
    });
    assert!(ended, "a batch hangs");
}

/// Regression test: the writer thread freed no frame until all pages of a checkpoint were on disk.
/// With memory full, a thread that appended rows waited for all these pages.
#[test]
fn who_appends_with_memory_full_waits_for_some_pages_of_a_checkpoint_and_not_for_all() {
    let ended = ends(120, || {
        let dir = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate::new());
        let options = options(1 << 20);
        let store = reopened(&dir, &options, &gate);
        let table = store.create_table("rows", 1000, b"").unwrap();
        let mut rows = 0;
        let mut insert = |count: u64| {
            put(&store, table, &(rows..rows + count).collect::<Vec<_>>(), 1, 1000);
            rows += count;
        };
        while store.stats().log_head == 0 {
            insert(10);
        }
        let opens = Opens::after_closing(&gate);
        let before = store.stats();
        let page = before.page_size_bytes;
        let settled = (before.log_tail - before.log_read_only) / page;
        let done = AtomicBool::new(false);
        let mut passed = 0;
        std::thread::scope(|s| {
            s.spawn(|| store.checkpoint(b"").unwrap());
            let until = Instant::now() + Duration::from_secs(60);
            while store.stats().log_tail / page == before.log_tail / page {
                assert!(Instant::now() < until, "{:?}", store.stats());
                // Each written page frees a frame. The checkpoint may need a free frame before it
                // can cut the log.
                if gate.all_passed() {
                    gate.let_one_through();
                }
                std::thread::yield_now();
            }
            s.spawn(|| {
                // Inserts more rows than fit into the free frames.
                insert(5 * page / 1032);
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                assert!(Instant::now() < until, "{:?}", store.stats());
                if gate.all_passed() {
                    gate.let_one_through();
                    passed += 1;
                    // Waits up to 20 ms for the batch to use the freed frame, because other
                    // programs may occupy the processor.
                    let tail = store.stats().log_tail;
                    let pause = Instant::now() + Duration::from_millis(20);
                    while store.stats().log_tail == tail
                        && !done.load(Ordering::Acquire)
                        && Instant::now() < pause
                    {
                        std::thread::yield_now();
                    }
                }
                std::thread::yield_now();
            }
            drop(opens);
        });
        assert!(settled > 20 && passed < settled / 2, "{passed} of {settled} pages");
    });
    assert!(ended, "a batch hangs");
}

/// Returns the version of each row of a table in the newest checkpoint.
fn scanned(store: &Store, table: TableId) -> HashMap<u64, u64> {
    let mut versions = HashMap::new();
    let mut scan = store.scan(table).unwrap();
    while let Some(row) = scan.next_row().unwrap() {
        let (version, _) = row.value.split_first_chunk().unwrap();
        versions.insert(row.key, u64::from_le_bytes(*version));
    }
    versions
}

/// Asserts that a thread's rows show one moment. The thread writes a version to all its rows in
/// order, then the next version. At any moment, the first rows have one version and the other rows
/// have the version before. Returns the newer version.
fn check_moment(versions: &HashMap<u64, u64>, thread: u64, rows: u64) -> u64 {
    let of = |i: u64| versions.get(&(thread * rows + i)).copied().unwrap_or(0);
    let mut newer = true;
    for i in 0..rows {
        if of(i) + 1 == of(0) {
            newer = false;
        } else {
            assert!(of(i) == of(0) && newer, "thread {thread}: row {i} is {}, {}", of(i), of(0));
        }
    }
    of(0)
}

/// Stops the other threads when it is dropped, even if the test panics.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_checkpoint_shows_one_moment_of_every_thread() {
    const THREADS: u64 = 3;
    const ROWS: u64 = 400;
    const MOST: u64 = 50_000;
    for (budget_bytes, checkpoints) in [(2 << 20, 15), (8 << 20, 15)] {
        let dir = tempfile::tempdir().unwrap();
        let options = options(budget_bytes);
        let mut random = Random::new();
        let store = Store::open(dir.path(), &options).unwrap();
        let table = store.create_table("rows", 8, b"").unwrap();
        // The table `others` has many rows that rarely change, so that most of the index is
        // unchanged. It also gets new rows, so that the index grows.
        let others = store.create_table("others", 8, b"").unwrap();
        let still: Vec<u64> = (0..15_000).collect();
        put(&store, others, &still, 7, 8);
        let (stop, came) = (AtomicBool::new(false), AtomicU64::new(still.len() as u64));
        let mut seen = 0;
        std::thread::scope(|s| {
            let _stops = Stops(&stop);
            for thread in 0..THREADS {
                let (store, stop) = (&store, &stop);
                s.spawn(move || {
                    for version in 1u64.. {
                        for key in thread * ROWS..(thread + 1) * ROWS {
                            if stop.load(Ordering::Relaxed) {
                                return;
                            }
                            let value = version.to_le_bytes().to_vec();
                            let put = &mut PutAll(std::slice::from_ref(&value));
                            store.execute(table, &[key], Clock::Keep, put).unwrap();
                        }
                    }
                });
            }
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let from = came.load(Ordering::Relaxed);
                    put(&store, others, &(from..from + 20).collect::<Vec<_>>(), 7, 8);
                    came.store(from + 20, Ordering::Release);
                    if from > MOST {
                        break;
                    }
                }
            });
            for _ in 0..checkpoints {
                let before = came.load(Ordering::Acquire);
                store.checkpoint(b"").unwrap();
                let after = came.load(Ordering::Acquire) + 20;
                let versions = scanned(&store, table);
                seen = (0..THREADS).map(|thread| check_moment(&versions, thread, ROWS)).sum();
                let there = scanned(&store, others).len() as u64;
                assert!((before..=after).contains(&there), "{before} <= {there} <= {after}");
                if random.below(4) == 0 {
                    store.compact().unwrap();
                }
            }
        });
        assert!(seen > 0, "nothing was written");
        let expected = (scanned(&store, table), scanned(&store, others));
        drop(store);
        // The reopened bank must show the same checkpoint as the scans before.
        let store = Store::open(dir.path(), &options).unwrap();
        assert_eq!((scanned(&store, table), scanned(&store, others)), expected);
        for (&key, &version) in &expected.0 {
            let row = peek(&store, table, &[key]).unwrap().pop().unwrap();
            assert_eq!(row, Some(version.to_le_bytes().to_vec()), "key {key}");
        }
    }
}
