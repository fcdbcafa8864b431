//! Tests that reads for a waiting caller and reads in the background have different priorities at
//! the device.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{GetAll, options, peek, put};
use embank_kv::device::{
    AlignedBuffer, Device, DeviceOptions, Freed, MemoryDevice, PartFile, Priority, Read, ReadStream,
};
use embank_kv::{Clock, Result, Store};

const ROWS: u64 = 20_000;

/// A device that counts its reads by priority.
#[derive(Debug)]
struct Counting {
    inner: MemoryDevice,
    foreground: AtomicU64,
    background: AtomicU64,
}

impl Counting {
    fn count(&self, priority: Priority) {
        let count = match priority {
            Priority::Foreground => &self.foreground,
            Priority::Background => &self.background,
        };
        count.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns whether there were foreground reads and background reads since the last call.
    fn look(&self) -> (bool, bool) {
        let read = |count: &AtomicU64| count.swap(0, Ordering::SeqCst) > 0;
        (read(&self.foreground), read(&self.background))
    }
}

impl Device for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.count(Priority::Foreground);
        self.inner.read_many(reads)
    }
    fn read_many_behind(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.count(Priority::Background);
        self.inner.read_many_behind(reads)
    }
    fn read_stream(&self, memory: &mut AlignedBuffer, stream: &mut dyn ReadStream) -> Result<u64> {
        self.count(stream.priority());
        self.inner.read_stream(memory, stream)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.inner.write(offset, bytes)
    }
    fn sync(&self) -> Result<()> {
        self.inner.sync()
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

#[test]
fn callers_read_in_the_foreground_and_housekeeping_in_the_background() {
    let dir = tempfile::tempdir().unwrap();
    let inner = MemoryDevice::new(&DeviceOptions::default()).unwrap();
    let (foreground, background) = (AtomicU64::new(0), AtomicU64::new(0));
    let device = Arc::new(Counting { inner, foreground, background });
    let wrapped: Arc<dyn Device> = Arc::<Counting>::clone(&device);
    // With this budget, the index has fewer entries than the table has rows, so several keys share
    // an entry. To learn whether a record is its key's newest, compaction then reads the other
    // records of that entry's chain.
    let store = Store::open_on(dir.path(), &options(256 << 10), |_| Ok(wrapped)).unwrap();
    let table = store.create_table("rows", 64, b"").unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    for some in keys.chunks(1000) {
        put(&store, table, some, 0, 64);
    }
    store.checkpoint(b"").unwrap();
    device.look();

    peek(&store, table, &keys[..100]).unwrap();
    assert_eq!(device.look(), (true, false), "peek");
    let mut rows = vec![Vec::new(); 100];
    store.execute(table, &keys[100..200], Clock::Keep, &mut GetAll(&mut rows)).unwrap();
    assert_eq!(device.look(), (true, false), "get");
    store.promote(table, &keys[200..300]).unwrap();
    assert_eq!(device.look(), (false, true), "promote");
    let mut scan = store.scan(table).unwrap();
    while scan.next_row().unwrap().is_some() {}
    drop(scan);
    assert_eq!(device.look(), (false, true), "scan");
    store.compact().unwrap();
    assert_eq!(device.look(), (false, true), "compaction");
}
