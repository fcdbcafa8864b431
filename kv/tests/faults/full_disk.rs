//! Tests a disk that becomes full. Calls fail with `DiskFull`, no row is lost, and the calls
//! succeed when there is room again.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Error as IoError, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::faulty::{BUDGET_BYTES, Open, VALUE_BYTES, memory, open_on, try_put};
use crate::common::compacting::by_hand;
use crate::common::{Add, options, peek, put, value};
use embank_kv::device::{Device, DeviceOptions, FaultyDevice, Freed, MemoryDevice, PartFile, Read};
use embank_kv::{Clock, DeviceChoice, Error, StoreOptions};

/// Number of rows, several times the number that memory holds.
const ROWS: u64 = 10_000;

fn assert_full(result: Result<impl std::fmt::Debug, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
}

/// Asserts that each row has one of the versions that the model allows. A row has two allowed
/// versions if a failed put may have changed it.
fn check(open: &Open, versions: &BTreeMap<u64, BTreeSet<u64>>) {
    let keys: Vec<u64> = versions.keys().copied().collect();
    for (&key, row) in keys.iter().zip(peek(&open.store, open.table, &keys).unwrap()) {
        let row = row.unwrap_or_else(|| panic!("key {key} is missing"));
        let known = &versions[&key];
        assert!(
            known.iter().any(|&version| row == value(key, version, VALUE_BYTES)),
            "key {key} has none of the versions {known:?}"
        );
    }
}

/// A way in which writes fail for want of something, and a part of the error's text.
type Want = (fn(&FaultyDevice), &'static str);

const WANTS: [Want; 5] = [
    (|device| device.break_writes(ErrorKind::StorageFull), "the disk is full"),
    (|device| device.break_writes(ErrorKind::QuotaExceeded), "the disk is full"),
    (|device| device.break_writes(ErrorKind::FileTooLarge), "`ulimit -f`"),
    (|device| device.refuse_descriptors(libc::EMFILE), "`ulimit -n`"),
    (|device| device.refuse_descriptors(libc::ENFILE), "fs.file-max"),
];

/// Regression test: after a full disk the store never wrote again. All rows since the last
/// checkpoint were lost. Later the same happened after a write that the limit of file sizes
/// (`ulimit -f`) refused, and after one that found no free file descriptor.
#[test]
fn no_row_is_lost_and_calls_work_again_when_there_is_room() {
    for (want, text) in WANTS {
        let (dir, disk) = (tempfile::tempdir().unwrap(), memory());
        let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
        let assert_refused = |error: Error| {
            let is_files = matches!(error, Error::TooManyOpenFiles { .. });
            assert!(is_files || matches!(error, Error::DiskFull { .. }), "{error}");
            assert!(error.to_string().contains(text), "{error}");
        };
        let keys: Vec<u64> = (0..ROWS).collect();
        put(&open.store, open.table, &keys, 0, VALUE_BYTES);
        open.store.checkpoint(b"first").unwrap();
        let mut versions: BTreeMap<u64, BTreeSet<u64>> =
            keys.iter().map(|&key| (key, [0].into())).collect();
        for round in 1..4 {
            want(&open.device);
            let mut failures = 0;
            for keys in keys.chunks(64) {
                let done = try_put(&open, keys, round);
                for key in keys {
                    let known = versions.get_mut(key).unwrap();
                    if done.is_ok() {
                        known.clear();
                    }
                    known.insert(round);
                }
                if let Err(error) = done {
                    assert_refused(error);
                    failures += 1;
                }
            }
            assert!(failures > 10, "{failures} failures: memory holds most rows");
            assert_refused(open.store.checkpoint(b"none").unwrap_err());
            check(&open, &versions);
            open.device.mend();
            // The first call after the disk has room must succeed.
            put(&open.store, open.table, &keys, round, VALUE_BYTES);
            versions.values_mut().for_each(|known| *known = [round].into());
            check(&open, &versions);
        }
        open.store.checkpoint(b"second").unwrap();
        drop(open);
        let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
        assert_eq!(open.store.recovered().unwrap().blob, b"second");
        check(&open, &versions);
    }
}

#[test]
fn each_call_that_needs_a_page_tries_once_more() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), memory());
    let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
    open.device.break_writes(ErrorKind::StorageFull);
    let keys: Vec<u64> = (0..ROWS).collect();
    assert_full(try_put(&open, &keys, 1));
    for key in 0..5 {
        let before = open.device.calls().writes;
        assert_full(try_put(&open, &[ROWS + 1000 + key], 1));
        assert_eq!(open.device.calls().writes - before, 1, "attempts of one call");
    }
    // A put changes a row in mutable memory in place, and tries no write.
    let before = open.device.calls().writes;
    let resident = keys
        .iter()
        .rev()
        .find(|&&key| peek(&open.store, open.table, &[key]).is_ok_and(|row| row[0].is_some()));
    try_put(&open, &[*resident.unwrap()], 2).unwrap();
    assert_eq!(open.device.calls().writes, before);
}

/// On a full disk, rows can still be deleted and read. A deletion may need a new page, so the last
/// free frames are reserved for deletions.
#[test]
fn rows_on_disk_can_be_deleted_and_read() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), memory());
    let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
    let keys: Vec<u64> = (0..ROWS).collect();
    put(&open.store, open.table, &keys, 0, VALUE_BYTES);
    // The checkpoint makes the writer thread find the disk full before memory is full.
    open.store.checkpoint(b"").unwrap();
    open.device.break_writes(ErrorKind::StorageFull);
    put(&open.store, open.table, &keys[..1], 1, VALUE_BYTES);
    assert_full(open.store.checkpoint(b""));
    assert_full(try_put(&open, &keys[..5000], 1));
    assert_eq!(open.store.delete(open.table, &keys[5000..5100]).unwrap(), 100);
    let rows = peek(&open.store, open.table, &keys).unwrap();
    let missing = (0..ROWS as usize).filter(|&i| rows[i].is_none());
    assert!(missing.eq(5000..5100));
    open.device.mend();
    put(&open.store, open.table, &keys, 2, VALUE_BYTES);
    check(&open, &keys.iter().map(|&key| (key, [2].into())).collect());
}

#[test]
fn threads_that_wait_for_a_page_hear_of_the_full_disk() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), memory());
    let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
    open.device.break_writes(ErrorKind::StorageFull);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let open = &open;
            scope.spawn(move || {
                let keys: Vec<u64> = (thread * ROWS..(thread + 1) * ROWS).collect();
                assert_full(try_put(open, &keys, 1));
            });
        }
    });
    open.device.mend();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let open = &open;
            scope.spawn(move || {
                let keys: Vec<u64> = (thread * ROWS..(thread + 1) * ROWS).collect();
                try_put(open, &keys, 1).unwrap();
            });
        }
    });
    let versions = (0..4 * ROWS).map(|key| (key, [1].into())).collect();
    check(&open, &versions);
}

/// A failed update must have changed no row, because the caller repeats it. If it failed after half
/// of its rows, the repetition would change these rows twice.
#[test]
fn an_update_is_refused_before_its_first_row_or_comes_to_its_end() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), memory());
    let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut counts = HashMap::new();
    open.store.checkpoint(b"").unwrap();
    let (mut refused, mut done) = (0, 0);
    for round in 0..300_u64 {
        // In 3 of 7 rounds the disk has no room.
        open.device.set_room(if round % 7 < 3 { 0 } else { 1 << 40 });
        let start = (round * 977 % (ROWS - 500)) as usize;
        let keys = &keys[start..start + 500];
        match open.store.execute(open.table, keys, Clock::Keep, &mut Add { by: 1, insert: true }) {
            Ok(_) => {
                done += 1;
                keys.iter().for_each(|&key| *counts.entry(key).or_insert(0_u64) += 1);
            }
            Err(error) => {
                assert!(matches!(error, Error::DiskFull { .. }), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 20 && done > 100, "{refused} refused, {done} done");
    for (key, row) in keys.iter().zip(peek(&open.store, open.table, &keys).unwrap()) {
        let count = row.map(|row| u64::from_le_bytes(row[..8].try_into().unwrap()));
        assert_eq!(count, counts.get(key).copied(), "key {key}");
    }
}

/// A failed update must have changed no row, even if the system reports free space and still
/// refuses writes, as it does for a user's disk quota.
#[test]
fn an_update_is_whole_where_the_system_does_not_tell_of_the_limit() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), memory());
    let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
    let keys: Vec<u64> = (0..ROWS).collect();
    put(&open.store, open.table, &keys, 0, VALUE_BYTES);
    let mut rows: Vec<Vec<u8>> = keys.iter().map(|&key| value(key, 0, VALUE_BYTES)).collect();
    let (mut refused, mut done) = (0, 0);
    for round in 0..200_u64 {
        match round % 20 {
            0 => {
                open.store.checkpoint(b"").unwrap();
                open.device.break_writes(ErrorKind::QuotaExceeded);
                put(&open.store, open.table, &[0], 0, VALUE_BYTES);
                rows[0] = value(0, 0, VALUE_BYTES);
                // The checkpoint makes the writer thread find the disk full before memory is full.
                assert_full(open.store.checkpoint(b""));
            }
            15 => open.device.mend(),
            _ => {}
        }
        let start = (round * 977 % (ROWS - 100)) as usize;
        let keys = &keys[start..start + 100];
        match open.store.execute(open.table, keys, Clock::Keep, &mut Add { by: 1, insert: false }) {
            Ok(_) => {
                done += 1;
                for &key in keys {
                    let row = &mut rows[key as usize];
                    let count = u64::from_le_bytes(row[..8].try_into().unwrap());
                    row[..8].copy_from_slice(&(count + 1).to_le_bytes());
                }
            }
            Err(error) => {
                assert!(matches!(error, Error::DiskFull { .. }), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 100 && done > 40, "{refused} refused, {done} done");
    for (key, row) in keys.iter().zip(peek(&open.store, open.table, &keys).unwrap()) {
        assert_eq!(row.as_ref(), Some(&rows[*key as usize]), "key {key}");
    }
}

/// Regression test: on a full disk, a put waited for ever for background compaction that had
/// nothing to do.
#[test]
fn no_writer_waits_for_compaction_that_cannot_help() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), memory());
    // These options let compaction run in the background. No checkpoint is taken.
    let open = open_on(dir.path(), &disk, &options(BUDGET_BYTES));
    let keys: Vec<u64> = (0..ROWS).collect();
    put(&open.store, open.table, &keys[..1000], 0, VALUE_BYTES);
    open.store.delete(open.table, &keys[..900]).unwrap();
    open.device.break_writes(ErrorKind::StorageFull);
    open.device.set_room(0);
    assert_full(try_put(&open, &keys, 1));
    assert_full(try_put(&open, &keys, 1));
    open.device.mend();
    try_put(&open, &keys, 1).unwrap();
}

/// A disk of a limited size, in blocks of 4 KiB.
#[derive(Debug)]
struct SmallDisk {
    inner: MemoryDevice,
    size_blocks: AtomicU64,
    taken: Mutex<BTreeSet<u64>>,
}

const BLOCK_BYTES: u64 = 4096;

impl SmallDisk {
    fn new(size_bytes: u64) -> Arc<Self> {
        let inner = MemoryDevice::new(&DeviceOptions::default()).unwrap();
        let size_blocks = (size_bytes / BLOCK_BYTES).into();
        Arc::new(Self { inner, size_blocks, taken: Mutex::default() })
    }

    fn room_blocks(&self) -> u64 {
        let taken = self.taken.lock().unwrap().len() as u64;
        self.size_blocks.load(Ordering::SeqCst).saturating_sub(taken)
    }
}

impl Device for SmallDisk {
    fn name(&self) -> &'static str {
        "small"
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> embank_kv::Result<()> {
        self.inner.read_many(reads)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> embank_kv::Result<()> {
        let mut taken = self.taken.lock().unwrap();
        for block in offset / BLOCK_BYTES..(offset + bytes.len() as u64).div_ceil(BLOCK_BYTES) {
            let size = self.size_blocks.load(Ordering::SeqCst);
            if !taken.contains(&block) && taken.len() as u64 >= size {
                let (path, _) = self.inner.locate(offset);
                let source = IoError::from(ErrorKind::StorageFull);
                return Err(Error::Io { operation: "write", path, source });
            }
            taken.insert(block);
        }
        self.inner.write(offset, bytes)
    }

    fn sync(&self) -> embank_kv::Result<()> {
        self.inner.sync()
    }

    fn truncate(&self, end: u64) -> embank_kv::Result<()> {
        let log = end.div_ceil(BLOCK_BYTES)..(1 << 49) / BLOCK_BYTES;
        self.taken.lock().unwrap().retain(|block| !log.contains(block));
        self.inner.truncate(end)
    }

    fn free(&self, below: u64) -> embank_kv::Result<Freed> {
        let freed = self.inner.free(below)?;
        let mut taken = self.taken.lock().unwrap();
        *taken = taken.split_off(&(below / BLOCK_BYTES));
        Ok(Freed { end: below, ..freed })
    }

    fn room_bytes(&self) -> Option<u64> {
        Some(self.room_blocks() * BLOCK_BYTES)
    }

    fn part_files(&self) -> embank_kv::Result<Vec<PartFile>> {
        self.inner.part_files()
    }
    fn remove_part(&self, begin: u64) -> embank_kv::Result<()> {
        let files = self.inner.part_files()?;
        self.inner.remove_part(begin)?;
        if let Some(file) = files.iter().find(|file| file.begin == begin) {
            let blocks = begin / BLOCK_BYTES..(begin + file.bytes).div_ceil(BLOCK_BYTES);
            self.taken.lock().unwrap().retain(|block| !blocks.contains(block));
        }
        Ok(())
    }
    fn locate(&self, offset: u64) -> (std::path::PathBuf, u64) {
        self.inner.locate(offset)
    }
}

/// Regression test: the bank filled the disk with superseded rows. `compact` then failed and freed
/// nothing.
#[test]
fn a_bank_that_has_filled_its_disk_compacts_in_the_room_that_is_left() {
    for has_checkpoint in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let small = SmallDisk::new(8 << 20);
        let disk: Arc<dyn Device> = Arc::<SmallDisk>::clone(&small);
        let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
        let keys: Vec<u64> = (0..ROWS).collect();
        let mut versions: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        if has_checkpoint {
            open.store.checkpoint(b"empty").unwrap();
        }
        // The loop ends: each round writes about 1 MB to a disk of 8 MiB.
        let full = (1..100).find_map(|round| {
            keys.chunks(500).find_map(|keys| {
                let done = try_put(&open, keys, round);
                for &key in keys {
                    let known = versions.entry(key).or_default();
                    if done.is_ok() {
                        known.clear();
                    }
                    known.insert(round);
                }
                done.err()
            })
        });
        assert!(matches!(full, Some(Error::DiskFull { .. })), "{full:?}");
        check(&open, &versions);
        let before = small.room_blocks();
        let mut rounds = 0;
        // The loop ends: each round frees the log that the oldest checkpoint held.
        loop {
            rounds += 1;
            assert!(rounds < 10, "compaction does not come to its end");
            let done = open.store.compact().unwrap();
            check(&open, &versions);
            if !has_checkpoint {
                assert!(!done.out_of_room, "{done:?}");
            }
            open.store.checkpoint(b"compacted").unwrap();
            if !done.out_of_room && rounds > 2 {
                break;
            }
        }
        let after = small.room_blocks();
        assert!(after > before + 1000, "{before} blocks of room before, {after} after");
        put(&open.store, open.table, &keys, 1000, VALUE_BYTES);
        open.store.checkpoint(b"last").unwrap();
        drop(open);
        let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
        check(&open, &keys.iter().map(|&key| (key, [1000].into())).collect());
    }
}

/// Compaction must free space even if another program has taken all free space, also the space that
/// the store reserves for a checkpoint.
#[test]
fn compaction_frees_as_it_goes_on_a_disk_without_any_room() {
    let dir = tempfile::tempdir().unwrap();
    let small = SmallDisk::new(8 << 20);
    let disk: Arc<dyn Device> = Arc::<SmallDisk>::clone(&small);
    let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
    let keys: Vec<u64> = (0..ROWS).collect();
    for round in 1..4 {
        put(&open.store, open.table, &keys, round, VALUE_BYTES);
    }
    // From here on the disk has no free block.
    let taken = small.taken.lock().unwrap().len() as u64;
    small.size_blocks.store(taken, Ordering::SeqCst);
    let mut versions: BTreeMap<u64, BTreeSet<u64>> =
        keys.iter().map(|&key| (key, [3].into())).collect();
    let full = keys.chunks(100).find_map(|keys| {
        let done = try_put(&open, keys, 4);
        for key in keys {
            let known = versions.get_mut(key).unwrap();
            if done.is_ok() {
                known.clear();
            }
            known.insert(4);
        }
        done.err()
    });
    assert!(matches!(full, Some(Error::DiskFull { .. })), "{full:?}");
    let done = open.store.compact().unwrap();
    assert!(done.freed_bytes > 1 << 20, "{done:?}");
    assert!(small.room_blocks() > 100);
    check(&open, &versions);
    put(&open.store, open.table, &keys[..2000], 5, VALUE_BYTES);
    for key in 0..2000 {
        versions.insert(key, [5].into());
    }
    check(&open, &versions);
}

/// The store reserves space for a checkpoint. A bank that filled its disk can therefore take a
/// checkpoint.
#[test]
fn writers_leave_room_for_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let small = SmallDisk::new(4 << 20);
    let disk: Arc<dyn Device> = Arc::<SmallDisk>::clone(&small);
    let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
    let mut versions = BTreeMap::new();
    for key in 0.. {
        match try_put(&open, &[key], 1) {
            Ok(_) => versions.insert(key, [1].into()),
            Err(error) => {
                assert!(matches!(error, Error::DiskFull { .. }), "{error}");
                assert!(error.to_string().contains("the next checkpoint need"), "{error}");
                break;
            }
        };
    }
    assert!(versions.len() > 20_000, "{} rows", versions.len());
    open.store.checkpoint(b"full").unwrap();
    drop(open);
    let open = open_on(dir.path(), &disk, &by_hand(BUDGET_BYTES));
    assert_eq!(open.store.recovered().unwrap().blob, b"full");
    check(&open, &versions);
}

/// Background compaction waits for space and then continues by itself.
#[test]
fn compaction_in_the_background_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { memory_budget_bytes: BUDGET_BYTES, ..options(BUDGET_BYTES) };
    let disk = memory();
    let open = open_on(dir.path(), &disk, &options);
    let keys: Vec<u64> = (0..ROWS).collect();
    put(&open.store, open.table, &keys, 0, VALUE_BYTES);
    open.device.break_writes(ErrorKind::StorageFull);
    // The loop ends: memory can hold only some of the rows.
    while try_put(&open, &keys, 1).is_ok() {}
    open.device.mend();
    for version in 2..8 {
        put(&open.store, open.table, &keys, version, VALUE_BYTES);
    }
    let until = Instant::now() + Duration::from_secs(60);
    while let Some(stopped) = open.store.stats().compaction_stopped {
        assert!(Instant::now() < until, "compaction stays stopped: {stopped}");
        std::thread::yield_now();
    }
    check(&open, &keys.iter().map(|&key| (key, [7].into())).collect());
}

/// A device on files reports the free space of its file system.
#[test]
fn a_file_system_says_what_room_it_has() {
    let dir = tempfile::tempdir().unwrap();
    for choice in [DeviceChoice::Threads, DeviceChoice::Auto] {
        let device =
            embank_kv::device::open(dir.path(), choice, &DeviceOptions::default()).unwrap();
        assert!(device.room_bytes().unwrap() > 0);
    }
}
