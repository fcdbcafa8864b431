//! Tests that a bank has exactly the content of its newest checkpoint after a crash.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Add, Random, options, peek, put, value};
use embank_kv::{Clock, Error, Store, StoreOptions, TableId};

const BUDGET_BYTES: u64 = 256 << 10;
const VALUE_BYTES: usize = 48;
const ROWS: u64 = 5000;

fn open(dir: &Path) -> Store {
    Store::open(dir, &options(BUDGET_BYTES)).unwrap()
}

fn create(dir: &Path) -> (Store, TableId) {
    let store = open(dir);
    let table = store.create_table("rows", VALUE_BYTES as u32, b"d").unwrap();
    (store, table)
}

fn all() -> Vec<u64> {
    (0..ROWS).collect()
}

/// Asserts that every row exists and has `version`.
fn check(store: &Store, version: u64) {
    let table = store.tables()[0].id;
    for (key, row) in all().into_iter().zip(peek(store, table, &all()).unwrap()) {
        assert_eq!(row.unwrap(), value(key, version, VALUE_BYTES), "key {key}");
    }
}

/// Returns the sorted names of the checkpoint directories.
fn listed(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join("checkpoints")).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<String> = entries.map(|entry| name(entry).into_string().unwrap()).collect();
    names.sort();
    names
}

fn checkpoint_dir(dir: &Path, number: u64) -> PathBuf {
    dir.join("checkpoints").join(format!("{number:010}"))
}

#[test]
fn a_crash_goes_back_to_the_newest_checkpoint_and_nothing_newer_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = create(dir.path());
    assert_eq!(store.recovered(), None);
    put(&store, table, &all(), 1, VALUE_BYTES);
    assert_eq!(store.checkpoint(b"first").unwrap(), 1);
    put(&store, table, &all(), 2, VALUE_BYTES);
    assert_eq!(store.checkpoint(b"second").unwrap(), 2);
    // The following changes, deletions, insertions and the new table are in no checkpoint. They
    // exceed the memory, so some are on disk.
    put(&store, table, &all()[..4000], 3, VALUE_BYTES);
    store.delete(table, &all()[3000..]).unwrap();
    put(&store, table, &[ROWS, ROWS + 1], 3, VALUE_BYTES);
    store.create_table("later", 8, b"").unwrap();
    drop(store);

    for _ in 0..2 {
        let store = open(dir.path());
        let recovered = store.recovered().unwrap();
        assert_eq!((recovered.checkpoint, &recovered.blob[..]), (2, &b"second"[..]));
        assert_eq!(store.tables().len(), 1);
        check(&store, 2);
        assert_eq!(peek(&store, table, &[ROWS, ROWS + 1]).unwrap(), [None, None]);
        // The second opening must not see these rows.
        put(&store, table, &all(), 4, VALUE_BYTES);
    }
}

#[test]
fn what_was_never_checkpointed_is_gone_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = create(dir.path());
    put(&store, table, &all(), 1, VALUE_BYTES);
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.recovered(), None);
    assert!(store.tables().is_empty());
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    assert!(peek(&store, table, &all()).unwrap().iter().all(Option::is_none));
    assert_eq!(store.stats().log_tail, 64, "an empty log: one page header");
}

#[test]
fn checkpoints_follow_one_another_over_many_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let mut table = None;
    for version in 1..=12u64 {
        let store = open(dir.path());
        let id = *table
            .get_or_insert_with(|| store.create_table("rows", VALUE_BYTES as u32, b"").unwrap());
        if version > 1 {
            check(&store, version - 1);
            assert_eq!(store.recovered().unwrap().checkpoint, version - 1);
        }
        put(&store, id, &all(), version, VALUE_BYTES);
        assert_eq!(store.checkpoint(&version.to_le_bytes()).unwrap(), version);
        if version % 3 == 0 {
            // Puts rows after the checkpoint. The crash must discard them.
            put(&store, id, &all(), 99, VALUE_BYTES);
        }
    }
    check(&open(dir.path()), 12);
}

#[test]
fn as_many_checkpoints_are_kept_as_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let keep = |checkpoints_kept| StoreOptions { checkpoints_kept, ..options(BUDGET_BYTES) };
    let store = Store::open(dir.path(), &keep(3)).unwrap();
    for number in 1..=5 {
        assert_eq!(store.checkpoint(b"").unwrap(), number);
    }
    assert_eq!(listed(dir.path()), ["0000000003", "0000000004", "0000000005"]);
    drop(store);
    let store = Store::open(dir.path(), &keep(1)).unwrap();
    store.checkpoint(b"").unwrap();
    assert_eq!(listed(dir.path()), ["0000000006"]);
    drop(store);
    let error = Store::open(dir.path(), &keep(0)).unwrap_err();
    assert!(matches!(error, Error::InvalidOption { option: "checkpoints_kept", .. }), "{error}");
}

#[test]
fn the_blob_comes_back_whatever_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::new();
    for length in [0, 1, 4096, 65_535, 65_536, 65_537, 1_000_003] {
        let blob: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        open(dir.path()).checkpoint(&blob).unwrap();
        let store = open(dir.path());
        assert_eq!(store.recovered().unwrap().blob, blob);
    }
}

#[test]
fn tables_and_their_descriptors_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for i in 0..50u32 {
        let id = store.create_table(&format!("table {i}"), i, &i.to_le_bytes()).unwrap();
        put(&store, id, &[7], u64::from(i), i as usize);
    }
    let before = store.tables();
    store.checkpoint(b"").unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.tables(), before);
    for (i, table) in (0..50).zip(before) {
        let row = peek(&store, table.id, &[7]).unwrap();
        assert_eq!(row, [Some(value(7, i, i as usize))]);
    }
}

#[test]
fn without_the_newest_checkpoint_the_one_before_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = create(dir.path());
    for version in 1..=3 {
        put(&store, table, &all(), version, VALUE_BYTES);
        store.checkpoint(&[version as u8]).unwrap();
    }
    drop(store);
    fs::remove_dir_all(checkpoint_dir(dir.path(), 3)).unwrap();
    let store = open(dir.path());
    let recovered = store.recovered().unwrap();
    assert_eq!((recovered.checkpoint, &recovered.blob[..]), (2, &[2][..]));
    check(&store, 2);
    // The bank can take checkpoints again after it was opened at checkpoint 2.
    put(&store, table, &all(), 4, VALUE_BYTES);
    assert_eq!(store.checkpoint(&[4]).unwrap(), 3);
    drop(store);
    check(&open(dir.path()), 4);
}

#[test]
fn a_crash_in_the_middle_of_a_checkpoint_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = create(dir.path());
    put(&store, table, &all(), 1, VALUE_BYTES);
    store.checkpoint(b"good").unwrap();
    put(&store, table, &all(), 2, VALUE_BYTES);
    store.checkpoint(b"half").unwrap();
    drop(store);
    // Simulates crashes before the checkpoint's directory got its final name, one for each stage of
    // the checkpoint.
    let second = checkpoint_dir(dir.path(), 2);
    let partial = second.with_extension("partial");
    fs::rename(&second, &partial).unwrap();
    for file in ["manifest", "blob", "index.0000000001"] {
        let store = open(dir.path());
        assert_eq!(listed(dir.path()), ["0000000001"], "the half-written one is cleared away");
        assert_eq!(store.recovered().unwrap().blob, b"good");
        check(&store, 1);
        drop(store);
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join(file), b"the beginning of a file").unwrap();
    }
    check(&open(dir.path()), 1);
}

#[test]
fn a_bank_is_opened_once_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = create(dir.path());
    put(&store, table, &all(), 1, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    let error = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap_err();
    let Error::Locked { path, .. } = &error else { panic!("{error}") };
    assert_eq!(path, &dir.path().canonicalize().unwrap());
    if cfg!(target_os = "linux") {
        let told = format!("is open for writing in this process ({}) already", std::process::id());
        assert!(error.to_string().contains(&told), "{error}");
    }
    // The refused opening changed nothing.
    check(&store, 1);
    put(&store, table, &all(), 2, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    drop(store);
    check(&open(dir.path()), 2);
}

#[test]
fn the_page_size_stays_with_another_budget() {
    let dir = tempfile::tempdir().unwrap();
    let created = StoreOptions { page_size_bytes: Some(32 << 10), ..options(4 << 20) };
    let store = Store::open(dir.path(), &created).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &all(), 1, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    drop(store);
    for (version, budget_bytes) in [(1, 512 << 10), (2, 1 << 20), (3, 256 << 20)] {
        let other = StoreOptions { page_size_bytes: Some(8 << 10), ..options(budget_bytes) };
        let store = Store::open(dir.path(), &other).unwrap();
        assert_eq!(store.stats().page_size_bytes, 32 << 10);
        check(&store, version);
        put(&store, table, &all(), version + 1, VALUE_BYTES);
        store.checkpoint(b"").unwrap();
    }
}

#[test]
fn the_segment_size_stays_whatever_a_later_open_says() {
    let segments = |dir: &Path| std::fs::read_dir(dir.join("log")).unwrap().count();
    let of = |segment_size_bytes| StoreOptions { segment_size_bytes, ..options(256 << 10) };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &of(Some(64 << 10))).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &all(), 1, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    let log_bytes = store.stats().log_tail;
    assert_eq!(segments(dir.path()) as u64, log_bytes.div_ceil(64 << 10));
    drop(store);
    let store = Store::open(dir.path(), &of(None)).unwrap();
    check(&store, 1);
    put(&store, table, &all(), 2, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    assert!(segments(dir.path()) as u64 > log_bytes.div_ceil(64 << 10));
    drop(store);
    for refused in [0, 100 << 10, 4 << 10] {
        let error = Store::open(dir.path(), &of(Some(refused))).unwrap_err();
        assert!(error.to_string().contains("segment_size_bytes"), "{error}");
    }
    check(&Store::open(dir.path(), &of(None)).unwrap(), 2);
}

#[test]
fn too_small_a_budget_on_reopening_is_refused_with_the_one_that_does() {
    for page_size_bytes in [16 << 10, 64 << 10, 1 << 20, 4 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let created = StoreOptions { page_size_bytes: Some(page_size_bytes), ..options(64 << 20) };
        let store = Store::open(dir.path(), &created).unwrap();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        put(&store, table, &all(), 1, VALUE_BYTES);
        store.checkpoint(b"").unwrap();
        drop(store);
        let mut budget_bytes = 1 << 10;
        // The first error names the budget that the pages need. The second error names the budget
        // that the index needs.
        let store = (0..3)
            .find_map(|_| match Store::open(dir.path(), &options(budget_bytes)) {
                Ok(store) => Some(store),
                Err(Error::BudgetTooSmall { needed_bytes, .. }) => {
                    assert!(needed_bytes > budget_bytes);
                    budget_bytes = needed_bytes;
                    None
                }
                Err(error) => panic!("{error}"),
            })
            .unwrap();
        check(&store, 1);
        put(&store, table, &all(), 2, VALUE_BYTES);
        check(&store, 2);
    }
}

#[test]
fn a_budget_below_the_least_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = Store::open(dir.path(), &options(embank_kv::BUDGET_BYTES_MIN - 1)).unwrap_err();
    let Error::BudgetTooSmall { needed_bytes, .. } = error else { panic!("{error}") };
    assert_eq!(needed_bytes, embank_kv::BUDGET_BYTES_MIN);
    Store::open(dir.path(), &options(needed_bytes)).unwrap();
}

#[test]
fn checkpoints_are_taken_while_other_threads_run_batches() {
    const KEYS: u64 = 3000;
    const THREADS: u64 = 3;
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = create(dir.path());
    let random = Random::new();
    let done = AtomicBool::new(false);
    let keys: Vec<u64> = (0..KEYS).collect();
    put(&store, table, &keys, 0, VALUE_BYTES);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let mut random = random.stream(thread);
            let (store, done) = (&store, &done);
            s.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let keys: Vec<u64> = (0..50).map(|_| random.below(KEYS)).collect();
                    let mut add = Add { by: 1, insert: false };
                    store.execute(table, &keys, Clock::Keep, &mut add).unwrap();
                }
            });
        }
        for number in 1..=30 {
            assert_eq!(store.checkpoint(&[number as u8]).unwrap(), number);
        }
        done.store(true, Ordering::Relaxed);
    });
    let number = |row: &[u8]| u64::from_le_bytes(row[..8].try_into().unwrap());
    let before: Vec<u64> =
        peek(&store, table, &keys).unwrap().into_iter().map(|row| number(&row.unwrap())).collect();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.recovered().unwrap().checkpoint, 30);
    for ((key, row), before) in keys.iter().zip(peek(&store, table, &keys).unwrap()).zip(before) {
        let row = row.unwrap();
        let first = value(*key, 0, VALUE_BYTES);
        // The row in the checkpoint has a whole number of additions. It has at most as many as the
        // row in memory had.
        let in_checkpoint = number(&row).wrapping_sub(number(&first));
        assert!(in_checkpoint <= before.wrapping_sub(number(&first)), "key {key}");
        assert_eq!(row[8..], first[8..], "key {key}");
    }
}

#[test]
fn a_checkpoint_that_can_not_be_begun_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = create(dir.path());
    put(&store, table, &all(), 1, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    put(&store, table, &all(), 2, VALUE_BYTES);
    let in_the_way = checkpoint_dir(dir.path(), 2).with_extension("partial");
    let name = |n: u32| match n {
        0 => in_the_way.clone(),
        n => checkpoint_dir(dir.path(), 2).with_extension(format!("{n}.partial")),
    };
    // Files have all 16 names that a checkpoint tries for its unfinished directory, so the
    // checkpoint fails.
    (0..16).for_each(|n| fs::write(name(n), b"").unwrap());
    let error = store.checkpoint(b"").unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if *path == in_the_way), "{error}");
    // The store stays usable. With one of the names free, the next checkpoint succeeds.
    put(&store, table, &all(), 3, VALUE_BYTES);
    fs::remove_file(name(9)).unwrap();
    assert_eq!(store.checkpoint(b"").unwrap(), 2);
    assert_eq!(store.stats().not_removed.len(), 15, "{:?}", store.stats().not_removed);
    drop(store);
    check(&open(dir.path()), 3);
}

/// Regression test: opening a bank without a checkpoint failed if the bank's old files had another
/// segment size, although such a bank has no durable content.
#[test]
fn a_bank_without_a_checkpoint_takes_another_segment_size() {
    let dir = tempfile::tempdir().unwrap();
    let page_size_bytes = Some(8 << 10);
    let sizes =
        [(4 << 20, None), (64 << 10, page_size_bytes), (32 << 10, Some(32 << 10)), (1 << 20, None)];
    for (segment_bytes, page_size_bytes) in sizes {
        let segment_size_bytes = Some(segment_bytes);
        let created = StoreOptions { segment_size_bytes, page_size_bytes, ..options(512 << 10) };
        let store = Store::open(dir.path(), &created).unwrap();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        for version in 0..4 {
            put(&store, table, &all(), version, VALUE_BYTES);
        }
        assert!(store.stats().disk_write_bytes > segment_bytes.min(64 << 10));
    }
    let created = StoreOptions { segment_size_bytes: Some(2 << 20), ..options(512 << 10) };
    let store = Store::open(dir.path(), &created).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &all(), 5, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    drop(store);
    // The bank has a checkpoint now, so it keeps its segment size.
    let store = Store::open(dir.path(), &options(512 << 10)).unwrap();
    check(&store, 5);
}
