//! Tests callers in unusual states: threads that end, and callbacks that panic.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{PutAll, options, peek, put, value};
use embank_kv::{Access, Clock, Operation, Store, TableId};

const VALUE_BYTES: usize = 64;

fn store_with_rows() -> (tempfile::TempDir, Arc<Store>, TableId) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(1 << 20)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &[1, 2], 0, VALUE_BYTES);
    (dir, Arc::new(store), table)
}

/// The rows that a thread reads when it ends, and the channel for the number of rows that it found.
struct Last {
    store: Arc<Store>,
    table: TableId,
    keys: Vec<u64>,
    found: mpsc::Sender<usize>,
}

/// A thread local that reads rows when its thread ends. The store's own thread locals are destroyed
/// before it.
struct AtTheEnd(Option<Last>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        if let Some(last) = self.0.take() {
            let rows = peek(&last.store, last.table, &last.keys).unwrap();
            last.found.send(rows.iter().flatten().count()).unwrap();
        }
    }
}

thread_local! {
    static AT_THE_END: RefCell<AtTheEnd> = const { RefCell::new(AtTheEnd(None)) };
}

/// Regression test: a batch in the destructor of a thread local aborted the process.
#[test]
fn an_ending_thread_may_still_use_the_store() {
    let (_dir, store, table) = store_with_rows();
    for keys in [vec![1], vec![1, 2]] {
        let (found, count) = mpsc::channel();
        let (store, wanted) = (Arc::clone(&store), keys.len());
        std::thread::spawn(move || {
            // Initialized before the store's thread locals, so it is destroyed after them.
            let last = AtTheEnd(Some(Last { store: Arc::clone(&store), table, keys, found }));
            AT_THE_END.with(|place| *place.borrow_mut() = last);
            peek(&store, table, &[1, 2]).unwrap();
        })
        .join()
        .unwrap();
        assert_eq!(count.recv().unwrap(), wanted);
    }
}

struct ReleaseThenPanic;

impl Operation for ReleaseThenPanic {
    const ACCESS: Access = Access::Get;
    fn read(&mut self, i: usize, _value: &[u8]) {
        assert_eq!(i, 0, "the callback's own failure");
    }
}

struct Ignore;

impl Operation for Ignore {
    const ACCESS: Access = Access::Get;
}

/// Regression test: a batch released rows and then panicked. Threads that waited for these rows
/// were not woken.
#[test]
fn a_panicking_release_still_wakes_who_waits() {
    let (_dir, store, table) = store_with_rows();
    store.execute(table, &[1, 2], Clock::Acquire { bound: Some(0) }, &mut Ignore).unwrap();
    let (ready, is_ready) = mpsc::channel();
    std::thread::scope(|scope| {
        let store = &store;
        let waiter = scope.spawn(move || {
            let ticket = store.release_ticket(table, 1);
            let bound = Clock::Acquire { bound: Some(0) };
            assert_eq!(store.execute(table, &[1], bound, &mut Ignore).unwrap().blocked, [0]);
            ready.send(()).unwrap();
            store.wait_released(ticket, Instant::now() + Duration::from_secs(60))
        });
        is_ready.recv().unwrap();
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            store.execute(table, &[1, 2], Clock::Release, &mut ReleaseThenPanic)
        }));
        assert!(broken.is_err());
        assert!(waiter.join().unwrap(), "woken, not timed out");
    });
    assert_eq!(store.clock_of(table, 1).unwrap(), Some(0));
}

/// Regression test: a store that refuses writes counted rows of a refused batch as changed.
#[test]
fn a_refused_batch_changes_no_count() {
    use embank_kv::device::{Device, DeviceOptions, FaultyDevice, MemoryDevice};
    let dir = tempfile::tempdir().unwrap();
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
    let device = Arc::new(FaultyDevice::new(memory));
    let wrapped: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&device);
    let store = Store::open_on(dir.path(), &options(1 << 20), |_| Ok(wrapped)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &[1, 2, 3], 0, VALUE_BYTES);
    device.break_writes(std::io::ErrorKind::Other);
    store.checkpoint(b"").unwrap_err();
    let before = store.stats().changed;
    let keys: Vec<u64> = (0..100).collect();
    let values: Vec<_> = keys.iter().map(|&key| value(key, 1, VALUE_BYTES)).collect();
    store.execute(table, &keys, Clock::Keep, &mut PutAll(&values)).unwrap_err();
    assert_eq!((before, store.stats().changed), (3, 3));
}
