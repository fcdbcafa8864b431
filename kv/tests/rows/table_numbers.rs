//! Tests that a new table may get the number of a dropped table. It must show no row, clock or
//! count of the dropped table.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, RwLock};

use crate::common::reading::{by_hand, keys, rows_of, scanned};
use crate::common::{Add, PutAll, Random, acquire, options, peek, put, release, value};
use embank_kv::device::{Device, DeviceOptions, Freed, MemoryDevice, PartFile, Read};
use embank_kv::inspect::{SalvageOptions, TableReader, VerifyOptions, salvage, summary, verify};
use embank_kv::{Clock, Error, Result, RowMark, Store, StoreOptions, TableId};

/// Opens a store that allows at most `max` table numbers at a time.
fn open(dir: &Path, options: &StoreOptions, max: u16) -> Store {
    let store = Store::open(dir, options).unwrap();
    store.limit_table_numbers(max);
    store
}

fn is_clean(dir: &Path) {
    let found = verify(dir, &VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(found.is_clean(), "{found:?}");
}

/// Removes all records of dropped tables, and all older checkpoints that have these tables.
fn clear(store: &Store, checkpoints_kept: usize) {
    store.checkpoint(b"").unwrap();
    store.compact().unwrap();
    for _ in 0..checkpoints_kept {
        store.checkpoint(b"").unwrap();
    }
}

fn no_number_is_left(store: &Store) {
    let error = store.create_table("one too many", 8, b"").unwrap_err();
    assert!(matches!(error, Error::Exhausted(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("numbers of tables are taken") && text.contains("compact"), "{text}");
}

fn is_refused<T: std::fmt::Debug>(what: &str, result: Result<T>) {
    assert!(matches!(result, Err(Error::NoSuchTable(_))), "{what}: {result:?}");
}

/// Regression test: after 65,536 tables a bank refused every new table. A table without rows must
/// release its number without compaction or checkpoint.
#[test]
fn tables_can_be_made_and_dropped_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &by_hand(2)).unwrap();
    let other = store.create_table("other", 16, b"").unwrap();
    put(&store, other, &keys(10), 1, 16);
    let (mut last, mut reused) = (None, 0);
    for i in 0..70_000_u64 {
        let table = store.create_table("temporary", 8, b"").unwrap();
        assert_ne!(Some(table), last);
        assert_ne!(table.number(), other.number());
        reused += u64::from(table.incarnation() > 0);
        if i % 7_000 == 0 {
            put(&store, table, &keys(10), i, 8);
        }
        store.drop_table(table).unwrap();
        last = Some(table);
    }
    assert_eq!(reused, 70_001 - 65_535);
    assert_eq!(peek(&store, other, &keys(10)).unwrap(), rows_of(&keys(10), 1, 16));
    clear(&store, 2);
    drop(store);
    is_clean(dir.path());
    assert_eq!(summary(dir.path()).unwrap().table_numbers_left, 65_534);
}

/// A bank reuses a number only after every number has had a table.
#[test]
fn numbers_that_no_table_had_come_first() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &by_hand(1), 4);
    let mut made = Vec::new();
    for _ in 0..6 {
        let table = store.create_table("temporary", 8, b"").unwrap();
        store.drop_table(table).unwrap();
        made.push((table.number(), table.incarnation()));
    }
    assert_eq!(made, [(1, 0), (2, 0), (3, 0), (4, 0), (1, 1), (2, 1)]);
}

/// A thousand tables with several value lengths get the same few numbers, with checkpoints,
/// compactions and openings in between. No table may show a row, clock or count of an earlier
/// table.
#[test]
fn a_table_shows_no_row_of_one_that_had_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), &by_hand(1), 3);
    let kept = store.create_table("kept", 16, b"").unwrap();
    put(&store, kept, &keys(50), 7, 16);
    let (mut kept, mut most) = (kept, 0);
    for i in 0..1_000_u64 {
        let width = [8, 0, 24, 16, 40][i as usize % 5];
        let table = store.create_table(&format!("t{i}"), width as u32, b"").unwrap();
        most = most.max(table.number());
        assert_eq!(peek(&store, table, &keys(60)).unwrap(), vec![None; 60], "{i}");
        assert_eq!(store.rows(table).unwrap(), 0);
        assert_eq!(store.clock_of(table, 3).unwrap(), None);
        put(&store, table, &keys(40), i, width);
        acquire(&store, table, &[3], None).unwrap();
        if i % 4 == 1 {
            store.checkpoint(b"").unwrap();
            assert_eq!(scanned(&store, table).len(), 40);
        }
        if i % 16 == 9 {
            drop(store);
            store = open(dir.path(), &by_hand(1), 3);
            let id =
                |name: &str| store.tables().iter().find(|table| table.name == name).unwrap().id;
            kept = id("kept");
            let table = id(&format!("t{i}"));
            assert_eq!(peek(&store, table, &keys(40)).unwrap(), rows_of(&keys(40), i, width));
            store.drop_table(table).unwrap();
        } else {
            assert_eq!(peek(&store, table, &keys(40)).unwrap(), rows_of(&keys(40), i, width));
            store.drop_table(table).unwrap();
        }
        clear(&store, 1);
    }
    assert!(most <= 3);
    assert_eq!(peek(&store, kept, &keys(50)).unwrap(), rows_of(&keys(50), 7, 16));
    drop(store);
    is_clean(dir.path());
}

/// A number stays taken while a record or a checkpoint has it. The test covers kept and pinned
/// checkpoints, and a checkpoint that a reader holds.
#[test]
fn a_number_that_something_has_is_not_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &by_hand(1), 2);
    let table = store.create_table("rows", 24, b"").unwrap();
    put(&store, table, &keys(100), 1, 24);
    store.checkpoint(b"").unwrap();
    let other = store.create_table("other", 8, b"").unwrap();
    no_number_is_left(&store);
    store.pin(1).unwrap();
    store.drop_table(table).unwrap();
    no_number_is_left(&store);
    store.checkpoint(b"").unwrap();
    no_number_is_left(&store);
    store.compact().unwrap();
    no_number_is_left(&store);
    let reader = Store::open_read_only(dir.path(), &by_hand(1), None).unwrap();
    clear(&store, 1);
    no_number_is_left(&store);
    store.unpin(1).unwrap();
    clear(&store, 1);
    // The checkpoint that the reader holds still lists records of the dropped table.
    no_number_is_left(&store);
    assert_eq!(summary(dir.path()).unwrap().table_numbers_left, 65_533);
    drop(reader);
    store.checkpoint(b"").unwrap();
    assert_eq!(summary(dir.path()).unwrap().table_numbers_left, 65_534);
    let again = store.create_table("again", 8, b"").unwrap();
    assert_eq!((again.number(), again.incarnation()), (table.number(), 1));
    no_number_is_left(&store);
    // A dropped table without a row and without a checkpoint releases its number at once.
    store.drop_table(again).unwrap();
    let third = store.create_table("third", 8, b"").unwrap();
    assert_eq!((third.number(), third.incarnation()), (table.number(), 2));
    assert_eq!(store.rows(other).unwrap(), 0);
}

/// A pinned checkpoint keeps the numbers of its own tables taken, but not the numbers of tables
/// that were made later.
#[test]
fn a_pinned_checkpoint_keeps_only_the_numbers_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &by_hand(1), 2);
    let first = store.create_table("first", 8, b"").unwrap();
    put(&store, first, &keys(10), 1, 8);
    store.checkpoint(b"").unwrap();
    store.pin(1).unwrap();
    for round in 0..5 {
        let table = store.create_table("second", 8, b"").unwrap();
        assert_eq!((table.number(), table.incarnation()), (2, round));
        put(&store, table, &keys(10), 1, 8);
        store.checkpoint(b"").unwrap();
        store.drop_table(table).unwrap();
        clear(&store, 1);
    }
}

/// Another table gets the number of a dropped table. Each call with the old id must be refused and
/// must not affect the new table.
#[test]
fn ids_of_dropped_tables_are_refused_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &by_hand(1), 1);
    let old = store.create_table("rows", 24, b"").unwrap();
    put(&store, old, &keys(100), 1, 24);
    acquire(&store, old, &keys(5), None).unwrap();
    let (mut wanted, mut resident) = (Vec::new(), Vec::new());
    store.announce(old, &keys(100), &mut wanted, &mut resident).unwrap();
    let (marked, marks): (Vec<u64>, Vec<RowMark>) = resident.iter().copied().unzip();
    assert_eq!(marked.len(), 100);
    store.drop_table(old).unwrap();
    clear(&store, 1);
    let new = store.create_table("rows", 24, b"").unwrap();
    assert_eq!((new.number(), new.incarnation()), (old.number(), 1));
    let put_new = || put(&store, new, &keys(100), 2, 24);
    put_new();
    acquire(&store, new, &[1], None).unwrap();
    store.checkpoint(b"").unwrap();

    let one = [value(0, 3, 24)];
    let many = vec![one[0].clone(); 100];
    let held = || is_refused("release", release(&store, old, &keys(5)));
    is_refused("peek", peek(&store, old, &keys(100)));
    is_refused("peek one", peek(&store, old, &[1]));
    is_refused("put one", store.execute(old, &[1], Clock::Keep, &mut PutAll(&one)));
    is_refused("put", store.execute(old, &keys(100), Clock::Keep, &mut PutAll(&many)));
    is_refused("add", store.execute(old, &[1], Clock::Release, &mut Add { by: 1, insert: true }));
    is_refused("get", acquire(&store, old, &keys(100), None));
    is_refused("get one", acquire(&store, old, &[1], None));
    is_refused("release one", release(&store, old, &[1]));
    held();
    is_refused("delete", store.delete(old, &keys(100)));
    is_refused("delete_if", store.delete_if(old, &keys(100), |_, _, _| true));
    is_refused("announce", store.announce(old, &keys(100), &mut Vec::new(), &mut Vec::new()));
    is_refused("promote", store.promote(old, &keys(100)));
    is_refused("promote_unused", store.promote_unused(old, &marked, &marks, &mut Vec::new()));
    is_refused("scan", store.scan(old).map(drop));
    is_refused("rows", store.rows(old));
    is_refused("clock_of", store.clock_of(old, 1));
    is_refused("drop", store.drop_table(old));

    assert_eq!(peek(&store, new, &keys(100)).unwrap(), rows_of(&keys(100), 2, 24));
    assert_eq!(store.rows(new).unwrap(), 100);
    for key in 0..100 {
        assert_eq!(store.clock_of(new, key).unwrap(), Some(u32::from(key == 1)), "{key}");
    }
    assert_eq!(scanned(&store, new).len(), 100);
    // Marks of the dropped table's rows have no effect on the new table.
    let mut moved = Vec::new();
    store.promote_unused(new, &marked, &marks, &mut moved).unwrap();
    assert_eq!(peek(&store, new, &keys(100)).unwrap(), rows_of(&keys(100), 2, 24));
}

/// A device that can hold one read until the test releases it.
#[derive(Debug)]
struct HeldRead {
    inner: MemoryDevice,
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    No,
    Armed,
    Reading,
}

impl HeldRead {
    fn new() -> Arc<Self> {
        let inner = MemoryDevice::new(&DeviceOptions::default()).unwrap();
        Arc::new(HeldRead { inner, state: Mutex::new(Held::No), changed: Condvar::new() })
    }

    fn set(&self, state: Held) {
        *self.state.lock().unwrap() = state;
        self.changed.notify_all();
    }

    fn await_held(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| *state != Held::Reading).unwrap());
    }
}

impl Device for HeldRead {
    fn name(&self) -> &'static str {
        "held read"
    }
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if *state == Held::Armed {
            *state = Held::Reading;
            self.changed.notify_all();
            state = self.changed.wait_while(state, |state| *state == Held::Reading).unwrap();
        }
        drop(state);
        self.inner.read_many(reads)
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

/// Regression test: while a batch waited for the disk, its table was dropped and another table got
/// the table's number. The batch then looked up its keys in the new table, read and deleted its
/// rows, and changed their clocks.
#[test]
fn a_batch_under_way_does_not_reach_the_table_that_gets_the_number() {
    type Call = fn(&Store, TableId) -> Result<()>;
    let calls: [Call; 6] = [
        |store, old| acquire(store, old, &keys(500), None).map(drop),
        |store, old| store.delete(old, &keys(500)).map(drop),
        |store, old| store.promote(old, &keys(500)).map(drop),
        |store, old| {
            let mut add = Add { by: 1, insert: true };
            store.execute(old, &keys(700), Clock::Keep, &mut add).map(drop)
        },
        |store, old| peek(store, old, &keys(500)).map(drop),
        |store, old| store.delete_if(old, &keys(500), |_, _, _| true).map(drop),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let device = HeldRead::new();
        let open = || {
            let device: Arc<dyn Device> = Arc::<HeldRead>::clone(&device);
            let store = Store::open_on(dir.path(), &by_hand(1), |_| Ok(device)).unwrap();
            store.limit_table_numbers(1);
            store
        };
        let store = open();
        let old = store.create_table("rows", 24, b"").unwrap();
        put(&store, old, &keys(500), 1, 24);
        store.checkpoint(b"").unwrap();
        drop(store);
        // After the reopening all rows are on disk.
        let store = open();
        let old = store.tables()[0].id;
        device.set(Held::Armed);
        std::thread::scope(|scope| {
            let batch = scope.spawn(|| call(&store, old));
            device.await_held();
            store.drop_table(old).unwrap();
            clear(&store, 1);
            let new = store.create_table("rows", 24, b"").unwrap();
            assert_eq!((new.number(), new.incarnation()), (old.number(), 1));
            put(&store, new, &keys(500), 2, 24);
            let tail = store.stats().log_tail;
            device.set(Held::No);
            is_refused(&format!("call {number}"), batch.join().unwrap());
            assert_eq!(store.stats().log_tail, tail, "call {number}");
            assert_eq!(peek(&store, new, &keys(700)).unwrap()[..500], rows_of(&keys(500), 2, 24));
            assert_eq!(store.rows(new).unwrap(), 500, "call {number}");
            assert!((0..500).all(|key| store.clock_of(new, key).unwrap() == Some(0)), "{number}");
        });
    }
}

/// Counts a thread as ended when it is dropped, even after a panic. Other threads then do not wait
/// for it.
struct Ended<'a>(&'a AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1 << 32, Ordering::Relaxed);
    }
}

/// Threads use tables by ids that may be outdated. Meanwhile another thread drops and creates
/// tables. No batch may see a row of another table.
#[test]
fn no_row_crosses_while_tables_come_and_go_under_load() {
    const THREADS: u64 = 3;
    const NAMES: usize = 4;
    let random = Random::new();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &StoreOptions { checkpoints_kept: 1, ..options(1 << 20) }, 6);
    /// The present table of a name, and the version of its rows.
    #[derive(Clone, Copy)]
    struct Now(TableId, u64);
    let make = |place: usize, version: u64| {
        let name = format!("{place}");
        // The loop ends: compaction and checkpoints make a number free.
        loop {
            match store.create_table(&name, 32, b"") {
                Ok(id) => return Now(id, version),
                Err(Error::Exhausted(_)) => clear(&store, 1),
                Err(error) => panic!("{error}"),
            }
        }
    };
    let tables: Vec<RwLock<Now>> =
        (0..NAMES).map(|place| RwLock::new(make(place, place as u64))).collect();
    let stop = AtomicBool::new(false);
    let (refused, reused, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let start = Barrier::new(THREADS as usize + 1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut random = random.stream(thread);
            let (tables, store, stop, refused, done) = (&tables, &store, &stop, &refused, &done);
            let start = &start;
            scope.spawn(move || {
                let _ended = Ended(done);
                start.wait();
                while !stop.load(Ordering::Relaxed) {
                    // The read lock is released at the end of this statement, so another thread may
                    // then drop the table.
                    let Now(id, version) =
                        *tables[random.below(NAMES as u64) as usize].read().unwrap();
                    let first = random.below(4_000);
                    let count = 1 + random.below(400) * random.below(2);
                    let keys: Vec<u64> = (first..first + count).collect();
                    let values: Vec<_> = keys.iter().map(|&key| value(key, version, 32)).collect();
                    let result = match random.below(6) {
                        0 | 1 => {
                            store.execute(id, &keys, Clock::Keep, &mut PutAll(&values)).map(drop)
                        }
                        2 => store.delete(id, &keys).map(drop),
                        3 => store.promote(id, &keys).map(drop),
                        4 => acquire(store, id, &keys, None)
                            .and_then(|_| release(store, id, &keys))
                            .map(drop),
                        _ => Ok(()),
                    };
                    let peeked = result.and_then(|()| peek(store, id, &keys));
                    match peeked {
                        Ok(rows) => {
                            for (row, value) in rows.iter().zip(&values) {
                                assert!(row.is_none() || row.as_ref() == Some(value), "{id:?}");
                            }
                        }
                        Err(Error::NoSuchTable(_)) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut random = random.stream(99);
        start.wait();
        for version in 0..150_u64 {
            let place = random.below(NAMES as u64) as usize;
            let Now(id, _) = *tables[place].read().unwrap();
            let until = done.load(Ordering::Relaxed) + random.below(20);
            while done.load(Ordering::Relaxed) < until {
                std::thread::yield_now();
            }
            store.drop_table(id).unwrap();
            let now = make(place, 1_000 + version);
            reused.fetch_add(u64::from(now.0.incarnation() > 0), Ordering::Relaxed);
            *tables[place].write().unwrap() = now;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reused.into_inner() >= 140);
    println!("{} calls were refused", refused.into_inner());
    // The stored row counts must agree with the rows.
    for table in &tables {
        let Now(id, version) = *table.read().unwrap();
        let keys = keys(4_400);
        let rows = peek(&store, id, &keys).unwrap();
        let there = rows.iter().flatten().count() as u64;
        assert_eq!(store.rows(id).unwrap(), there);
        for (&key, row) in keys.iter().zip(&rows) {
            assert!(row.as_ref().is_none_or(|row| *row == value(key, version, 32)));
        }
    }
    store.checkpoint(b"").unwrap();
    drop(store);
    is_clean(dir.path());
}

/// A reader refreshes after a number was reused. Its old ids must stay refused, whichever table has
/// the name or the number now.
#[test]
fn a_readers_old_handles_are_refused_after_a_refresh() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &by_hand(1), 2);
    let other = store.create_table("other", 8, b"").unwrap();
    put(&store, other, &keys(20), 9, 8);
    let first = store.create_table("rows", 24, b"").unwrap();
    put(&store, first, &keys(100), 1, 24);
    store.checkpoint(b"").unwrap();
    let reader = Store::open_read_only(dir.path(), &by_hand(1), None).unwrap();
    let id_of = |name: &str| reader.tables().iter().find(|table| table.name == name).unwrap().id;
    let (other_read, mut handles) = (id_of("other"), vec![id_of("rows")]);
    for round in 0..4_u64 {
        let table = store.tables().iter().find(|table| table.name == "rows").unwrap().id;
        store.drop_table(table).unwrap();
        clear(&store, 1);
        // Until its refresh, the reader's checkpoint has the table and keeps the number taken.
        assert_eq!(peek(&reader, handles[0], &keys(100)).is_ok(), round == 0);
        no_number_is_left(&store);
        assert_eq!(peek(&reader, other_read, &keys(20)).unwrap(), rows_of(&keys(20), 9, 8));
        reader.refresh().unwrap();
        store.checkpoint(b"").unwrap();
        let new = store.create_table("rows", 24, b"").unwrap();
        assert_eq!(u64::from(new.incarnation()), round + 1);
        put(&store, new, &keys(100), round + 2, 24);
        store.checkpoint(b"").unwrap();
        for &old in &handles {
            is_refused("before the refresh", peek(&reader, old, &keys(100)));
        }
        reader.refresh().unwrap();
        let now = id_of("rows");
        assert_eq!(now.number(), first.number());
        assert_eq!(peek(&reader, now, &keys(100)).unwrap(), rows_of(&keys(100), round + 2, 24));
        for &old in &handles {
            is_refused("after the refresh", peek(&reader, old, &keys(100)));
            is_refused("a scan", reader.scan(old).map(drop));
            is_refused("a count", reader.rows(old));
        }
        handles.push(now);
        assert_eq!(peek(&reader, other_read, &keys(20)).unwrap(), rows_of(&keys(20), 9, 8));
    }
    // The old id must also be refused if the new table has the same name and another number.
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &by_hand(1), 2);
    let table = store.create_table("rows", 24, b"").unwrap();
    put(&store, table, &keys(10), 1, 24);
    store.checkpoint(b"").unwrap();
    let reader = Store::open_read_only(dir.path(), &by_hand(1), None).unwrap();
    let old = reader.tables()[0].id;
    store.drop_table(table).unwrap();
    let new = store.create_table("rows", 24, b"").unwrap();
    assert_ne!(new.number(), table.number());
    put(&store, new, &keys(10), 2, 24);
    store.checkpoint(b"").unwrap();
    reader.refresh().unwrap();
    is_refused("the old handle", peek(&reader, old, &keys(10)));
    let now = reader.tables()[0].id;
    assert_eq!(peek(&reader, now, &keys(10)).unwrap(), rows_of(&keys(10), 2, 24));
}

/// After a crash, the table that got the number is gone. Its rows must not appear in any table.
#[test]
fn a_crash_takes_back_the_table_that_got_the_number() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &by_hand(1), 1);
    let first = store.create_table("first", 8, b"").unwrap();
    put(&store, first, &keys(50), 1, 8);
    store.drop_table(first).unwrap();
    clear(&store, 1);
    let second = store.create_table("second", 16, b"").unwrap();
    put(&store, second, &keys(5_000), 2, 16);
    drop(store);
    let store = open(dir.path(), &by_hand(1), 1);
    assert!(store.tables().is_empty());
    // The number may stay taken until compaction has passed the checkpoint's log: an older build
    // may have left records there that its manifest did not count.
    if let Err(error) = store.create_table("third", 24, b"") {
        assert!(error.to_string().contains("compact"), "{error}");
        clear(&store, 1);
        store.create_table("third", 24, b"").unwrap();
    }
    let third = store.tables()[0].id;
    assert_eq!(third.number(), first.number());
    assert_eq!(peek(&store, third, &keys(5_000)).unwrap(), vec![None; 5_000]);
    put(&store, third, &keys(60), 3, 24);
    store.checkpoint(b"").unwrap();
    drop(store);
    is_clean(dir.path());
}

/// A roll back restores the old table of a number, and the later table is gone.
#[test]
fn a_roll_back_brings_back_the_table_that_had_the_number() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &by_hand(8), 2);
    let table = store.create_table("rows", 8, b"").unwrap();
    put(&store, table, &keys(50), 4, 8);
    store.checkpoint(b"1").unwrap();
    store.drop_table(table).unwrap();
    clear(&store, 2);
    let other = store.create_table("other", 16, b"").unwrap();
    assert_eq!(other.number(), 2);
    no_number_is_left(&store);
    drop(store);
    Store::roll_back(dir.path(), 1).unwrap();
    let store = open(dir.path(), &by_hand(8), 2);
    let table = store.tables()[0].id;
    assert_eq!(peek(&store, table, &keys(50)).unwrap(), rows_of(&keys(50), 4, 8));
    let other = store.create_table("other", 16, b"").unwrap();
    assert_eq!(other.number(), 2);
    // After every checkpoint with the table is removed, its number can be reused.
    store.drop_table(table).unwrap();
    drop(store);
    let store = open(dir.path(), &by_hand(1), 1);
    store.drop_table(store.tables()[0].id).unwrap();
    clear(&store, 2);
    let new = store.create_table("new", 16, b"").unwrap();
    assert_eq!(new.number(), 1);
    assert_eq!(peek(&store, new, &keys(50)).unwrap(), vec![None; 50]);
}

/// A copy has only its own checkpoints. A delta may bring a table with the number of a dropped
/// table. The copy must then remove its checkpoints with the dropped table.
#[test]
fn copies_and_deltas_give_no_table_the_rows_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let (bank, copy) = (dir.path().join("bank"), dir.path().join("copy"));
    let store = open(&bank, &by_hand(2), 2);
    let other = store.create_table("other", 8, b"").unwrap();
    put(&store, other, &keys(30), 9, 8);
    let table = store.create_table("rows", 24, b"").unwrap();
    put(&store, table, &keys(100), 1, 24);
    let mut at = store.checkpoint(b"").unwrap();
    let first = at;
    Store::copy_checkpoint(&bank, None, &copy).unwrap();
    let reader = Store::open_read_only(&copy, &by_hand(1), None).unwrap();
    let old = reader.tables().iter().find(|table| table.name == "rows").unwrap().id;
    let mut follow = |store: &Store| {
        let next = store.checkpoint(b"").unwrap();
        let file = dir.path().join(format!("{next}.delta"));
        Store::export_delta(&bank, at, Some(next), &file, &mut |_| {}).unwrap();
        at = next;
        Store::apply_delta(&copy, &file, 100, &mut |_| {}).map(|_| file)
    };
    store.drop_table(table).unwrap();
    follow(&store).unwrap();
    store.compact().unwrap();
    follow(&store).unwrap();
    follow(&store).unwrap();
    let new = store.create_table("rows", 24, b"").unwrap();
    assert_eq!((new.number(), new.incarnation()), (table.number(), 1));
    put(&store, new, &keys(100), 2, 24);
    // The copy refuses the delta, because a reader holds a checkpoint with the old table under this
    // number. After a refresh, both tables would look alike to that reader.
    let error = follow(&store).unwrap_err();
    assert!(error.to_string().contains("refresh"), "{error}");
    assert_eq!(peek(&reader, old, &keys(100)).unwrap(), rows_of(&keys(100), 1, 24));
    reader.refresh().unwrap();
    is_refused("dropped", peek(&reader, old, &keys(100)));
    let file = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = file.filter(|path| path.extension().is_some_and(|of| of == "delta")).max().unwrap();
    Store::apply_delta(&copy, &file, 100, &mut |_| {}).unwrap();
    let kept = summary(&copy).unwrap().checkpoints;
    assert!(kept.iter().all(|checkpoint| checkpoint.number != first), "{kept:?}");
    assert!(kept.len() >= 2, "those without the number stay");
    reader.refresh().unwrap();
    is_refused("another table", peek(&reader, old, &keys(100)));
    let now = reader.tables().iter().find(|table| table.name == "rows").unwrap().id;
    assert_eq!(peek(&reader, now, &keys(100)).unwrap(), rows_of(&keys(100), 2, 24));
    drop(reader);
    is_clean(&copy);
    // The copy must still accept writes.
    let copied = open(&copy, &by_hand(1), 2);
    let id = copied.tables().iter().find(|table| table.name == "rows").unwrap().id;
    assert_eq!(peek(&copied, id, &keys(100)).unwrap(), rows_of(&keys(100), 2, 24));
    copied.drop_table(id).unwrap();
    no_number_is_left(&copied);
    clear(&copied, 1);
    let id = copied.create_table("new", 24, b"").unwrap();
    assert_eq!(peek(&copied, id, &keys(100)).unwrap(), vec![None; 100]);
}

/// Regression test: the newest manifest was lost, and the older manifest listed a dropped table
/// under the number of a new table. Salvage took the new table's rows for rows of the dropped
/// table, and the report did not mention them.
#[test]
fn salvage_tells_of_rows_whose_table_got_a_number_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &by_hand(2), 3);
    let other = store.create_table("other", 8, b"").unwrap();
    put(&store, other, &keys(30), 9, 8);
    let dropped = store.create_table("dropped", 24, b"").unwrap();
    put(&store, dropped, &keys(100), 1, 24);
    let in_use = store.create_table("dropped later", 8, b"").unwrap();
    put(&store, in_use, &keys(40), 5, 8);
    store.checkpoint(b"").unwrap();
    store.drop_table(dropped).unwrap();
    clear(&store, 2);
    let new = store.create_table("new", 24, b"").unwrap();
    assert_eq!((new.number(), new.incarnation()), (dropped.number(), 1));
    put(&store, new, &keys(70), 2, 24);
    put(&store, other, &[100], 9, 8);
    let newest = store.checkpoint(b"").unwrap();
    drop(store);
    let manifest = dir.path().join(format!("checkpoints/{newest:010}/manifest"));
    let mut bytes = fs::read(&manifest).unwrap();
    bytes[40] ^= 1;
    fs::write(&manifest, bytes).unwrap();

    let salvaged = tempfile::tempdir().unwrap();
    let options = SalvageOptions::default();
    let report = salvage(dir.path(), salvaged.path(), &options, &mut |_| {}).unwrap();
    assert_eq!(report.checkpoint, newest);
    assert!(!report.is_complete());
    assert!(
        report.notes.iter().any(|note| note.contains("70 rows belong to tables")),
        "{report:?}"
    );
    let names: Vec<_> = report.tables.iter().map(|table| (&table.name[..], table.rows)).collect();
    assert_eq!(names, [("other", 31), ("dropped later", 40)]);
    let mut reader = TableReader::open(salvaged.path(), None, "dropped later").unwrap();
    let mut rows = 0;
    let visit = &mut |key: u64, found: &[u8]| {
        rows += 1;
        found == value(key, 5, 8)
    };
    assert!(reader.for_each_row(visit).unwrap().is_empty());
    assert_eq!(rows, 40);
    // The unreadable manifest may have any number, so all known numbers count as taken.
    assert_eq!(summary(dir.path()).unwrap().table_numbers_left, 65_532);
}
