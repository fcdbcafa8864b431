//! Tests a process that has few file descriptors, or no free one. A store needs few descriptors,
//! however many segments its log has. If no descriptor is free, a call waits for one. If none
//! becomes free, the call fails and names the limit, no row is lost, and a later call works.
//!
//! The limit applies to the whole process, so one test of this file runs at a time.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use common::reading::{by_hand, keys, rows_of, scanned};
use common::{peek, put};
use embank_kv::{DeviceChoice, Error, Store, StoreOptions, TableId, wait_for_descriptors};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: u64 = 64;
const VALUE_BYTES: usize = 120;
const DEVICES: [DeviceChoice; 2] = [DeviceChoice::Threads, DeviceChoice::Auto];

/// Lowers the limit of this process, hard and soft, and lets only the caller run.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
    setrlimit(Resource::Nofile, limit).unwrap();
    wait_for_descriptors(Duration::from_secs(60));
    guard
}

/// Takes all free descriptors.
fn take_all() -> Vec<File> {
    let null = File::open("/dev/null").unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| null.try_clone().ok()).collect();
    taken.push(null);
    taken
}

/// Number of descriptors of the bank in `dir`, with its rings.
fn descriptors_of(dir: &Path) -> u64 {
    let is_of_bank = |number: u64| {
        // `readlink` needs no descriptor.
        let to = std::fs::read_link(format!("/proc/self/fd/{number}"));
        to.is_ok_and(|to| to.starts_with(dir) || to.to_string_lossy().contains("io_uring"))
    };
    (0..LIMIT).filter(|&number| is_of_bank(number)).count() as u64
}

fn options(device: DeviceChoice) -> StoreOptions {
    StoreOptions {
        page_size_bytes: Some(8 << 10),
        segment_size_bytes: Some(16 << 10),
        device,
        ..by_hand(2)
    }
}

fn segments(dir: &Path) -> u64 {
    std::fs::read_dir(dir.join("log")).unwrap().count() as u64
}

fn open(dir: &Path, device: DeviceChoice) -> (Store, TableId) {
    let store = Store::open(dir, &options(device)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    (store, table)
}

/// Asserts that the bank opens at the checkpoint `blob` with `rows` of `version`.
fn assert_saved(dir: &Path, device: DeviceChoice, blob: &[u8], all: &[u64], version: u64) {
    let store = Store::open(dir, &options(device)).unwrap();
    let table = store.tables()[0].id;
    assert_eq!(store.recovered().unwrap().blob, blob);
    assert_eq!(peek(&store, table, all).unwrap(), rows_of(all, version, VALUE_BYTES));
}

/// Regression test: a stream of reads kept the file of each segment open until its end. A batch
/// over more segments than the process may open files failed, and a writer that needed a file at
/// that moment lost all rows since the last checkpoint.
#[test]
fn a_bank_of_hundreds_of_segments_needs_a_quarter_of_few_descriptors() {
    let _alone = alone();
    for device in DEVICES {
        let dir = tempfile::tempdir().unwrap();
        let (store, table) = open(dir.path(), device);
        let all = keys(20_000);
        for version in 1..4 {
            put(&store, table, &all, version, VALUE_BYTES);
            store.checkpoint(b"").unwrap();
        }
        assert!(segments(dir.path()) > 4 * LIMIT, "{} segments", segments(dir.path()));
        let most = std::thread::scope(|scope| {
            let done = mpsc::channel::<()>();
            let (sender, ended) = done;
            for _ in 0..6 {
                let (store, all, sender) = (&store, &all, sender.clone());
                scope.spawn(move || {
                    let rows = peek(store, table, all).unwrap();
                    assert_eq!(rows, rows_of(all, 3, VALUE_BYTES));
                    drop(sender);
                });
            }
            drop(sender);
            let mut most = 0;
            // The loop ends when all readers have dropped their senders.
            while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                most = most.max(descriptors_of(dir.path()));
            }
            most
        });
        assert!(most <= LIMIT / 4, "{device:?}: {most} descriptors of {LIMIT}");
        assert_eq!(scanned(&store, table).len(), all.len());
    }
}

/// Regression test: without a free descriptor at the moment when the log began its second segment,
/// the store was poisoned.
#[test]
fn a_log_goes_on_with_the_descriptors_that_it_has() {
    let _alone = alone();
    for device in DEVICES {
        let dir = tempfile::tempdir().unwrap();
        let (store, table) = open(dir.path(), device);
        let all = keys(20_000);
        put(&store, table, &all[..300], 1, VALUE_BYTES);
        store.checkpoint(b"one segment").unwrap();
        let before = segments(dir.path());
        let taken = take_all();
        put(&store, table, &all, 2, VALUE_BYTES);
        assert_eq!(peek(&store, table, &all).unwrap(), rows_of(&all, 2, VALUE_BYTES));
        drop(taken);
        assert!(segments(dir.path()) > before + 50, "{} segments", segments(dir.path()));
        store.checkpoint(b"many").unwrap();
        drop(store);
        assert_saved(dir.path(), device, b"many", &all, 2);
    }
}

#[test]
fn calls_wait_until_a_descriptor_is_free() {
    let _alone = alone();
    for device in DEVICES {
        let dir = tempfile::tempdir().unwrap();
        let (store, table) = open(dir.path(), device);
        let all = keys(20_000);
        put(&store, table, &all, 1, VALUE_BYTES);
        let (waits, waiting) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let mut taken = take_all();
            scope.spawn(move || {
                waiting.recv().unwrap();
                // Whatever the store closes meanwhile is taken too, so its calls must wait.
                for _ in 0..20 {
                    taken.extend(File::open("/dev/null"));
                    std::thread::yield_now();
                }
                drop(taken);
            });
            waits.send(()).unwrap();
            put(&store, table, &all, 2, VALUE_BYTES);
            assert_eq!(peek(&store, table, &all).unwrap(), rows_of(&all, 2, VALUE_BYTES));
            store.checkpoint(b"waited").unwrap();
        });
        drop(store);
        assert_saved(dir.path(), device, b"waited", &all, 2);
    }
}

/// Takes all descriptors, and those that the store closes while it looks for one.
fn take_from(store: &Store) -> Vec<File> {
    wait_for_descriptors(Duration::ZERO);
    let mut taken = take_all();
    let mut failures = 0;
    // The loop ends: the store has finitely many descriptors that it can close.
    while failures < 3 {
        failures = if store.checkpoint(b"with few").is_ok() { 0 } else { failures + 1 };
        taken.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
    }
    taken
}

fn assert_refused(result: Result<impl std::fmt::Debug, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::TooManyOpenFiles { .. }), "{error}");
    for part in ["Too many open files", "nothing is lost", "ulimit -n"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Regression test: a write of the log that found no free descriptor poisoned the store, and the
/// return of the descriptors did not help.
#[test]
fn calls_fail_while_no_descriptor_is_free_and_nothing_is_lost() {
    let _alone = alone();
    for device in DEVICES {
        let dir = tempfile::tempdir().unwrap();
        let (store, table) = open(dir.path(), device);
        let all = keys(20_000);
        put(&store, table, &all, 1, VALUE_BYTES);
        store.checkpoint(b"before").unwrap();
        let taken = take_from(&store);
        assert_refused(store.checkpoint(b"with none"));
        assert_refused(store.scan(table).map(|_| ()));
        assert_refused(Store::open(&dir.path().join("other"), &options(device)).map(|_| ()));
        let delta = dir.path().join("delta");
        assert_refused(Store::export_delta(dir.path(), 1, None, &delta, &mut |_| {}).map(|_| ()));
        assert_refused(peek(&store, table, &all).map(|_| ()));
        // These rows are in memory.
        put(&store, table, &all[19_990..], 1, VALUE_BYTES);
        drop(taken);
        wait_for_descriptors(Duration::from_secs(60));
        put(&store, table, &all, 3, VALUE_BYTES);
        assert_eq!(peek(&store, table, &all).unwrap(), rows_of(&all, 3, VALUE_BYTES));
        store.compact().unwrap();
        store.checkpoint(b"healed").unwrap();
        drop(store);
        assert_saved(dir.path(), device, b"healed", &all, 3);
    }
}

/// Regression test: a limit that is lowered while a bank is open poisoned the store.
#[test]
fn a_limit_that_is_lowered_later_is_kept() {
    let _alone = alone();
    for device in DEVICES {
        let dir = tempfile::tempdir().unwrap();
        let (store, table) = open(dir.path(), device);
        let all = keys(20_000);
        put(&store, table, &all, 1, VALUE_BYTES);
        let found = getrlimit(Resource::Nofile);
        // The numbers below 20 belong to this program and to files of the bank that it can close.
        setrlimit(Resource::Nofile, Rlimit { current: Some(20), ..found }).unwrap();
        put(&store, table, &all, 2, VALUE_BYTES);
        assert_eq!(peek(&store, table, &all).unwrap(), rows_of(&all, 2, VALUE_BYTES));
        store.checkpoint(b"lowered").unwrap();
        drop(store);
        setrlimit(Resource::Nofile, found).unwrap();
        assert_saved(dir.path(), device, b"lowered", &all, 2);
    }
}

/// A bank raises the soft limit, at most to the hard one. It needs no more than a quarter of the
/// raised limit, and leaves a high limit alone.
#[test]
fn a_bank_raises_the_soft_limit() {
    let _alone = alone();
    let found = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(32), ..found }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), DeviceChoice::Auto));
    assert_eq!(getrlimit(Resource::Nofile).current, Some(LIMIT));
}
