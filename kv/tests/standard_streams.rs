//! Tests a bank in a process whose standard input, output or error is closed. The bank's files must
//! not get descriptors 0 to 2. Otherwise a library that writes to descriptor 2 would write into the
//! bank.
//!
//! The process is this test binary, run again. It has no streams, so it writes its findings into
//! the file `report`.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(all(target_os = "linux", not(miri)))]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use common::reading::{by_hand, keys, rows_of};
use common::{peek, put};
use embank_kv::device::{self, Device, DeviceOptions, Freed, PartFile, Read};
use embank_kv::{DeviceChoice, Result, Store, StoreOptions, inspect};

const ROLE: &str = "EMBANK_TEST_STREAMS_ROLE";
const BYTES: usize = 120;

/// Describes the files that have the descriptors 0 to 2.
fn taken() -> Vec<String> {
    let of = |number: i32| {
        let path = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        // `/dev/null` is allowed: the store opens it in place of a closed stream while another
        // thread opens a file.
        let is_null = path == Path::new("/dev/null");
        (!is_null).then(|| format!("{number} is {}", path.display()))
    };
    (0..3).filter_map(of).collect()
}

fn message(after: &str) {
    let text = format!("libfoo: warning: a deprecated option, seen after {after}\n").repeat(20);
    for number in 0..3 {
        // SAFETY: the duty is to pass readable memory. The call reads from a string. If the
        // descriptor is closed, the call only fails.
        unsafe { libc::write(number, text.as_ptr().cast(), text.len()) };
    }
}

/// A device that checks at each call which files have the descriptors 0 to 2. During `sync`, a
/// checkpoint has its own files open.
#[derive(Debug)]
struct Watching {
    inner: Arc<dyn Device>,
    seen: std::sync::Mutex<Vec<String>>,
}

impl Watching {
    fn look(&self, during: &str) {
        let found = taken().into_iter().map(|found| format!("during {during}: {found}"));
        self.seen.lock().unwrap().extend(found);
    }
}

impl Device for Watching {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.look("a read");
        self.inner.read_many(reads)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.look("a write");
        self.inner.write(offset, bytes)
    }
    fn sync(&self) -> Result<()> {
        self.look("a sync");
        self.inner.sync()
    }
    fn truncate(&self, end: u64) -> Result<()> {
        self.inner.truncate(end)
    }
    fn free(&self, below: u64) -> Result<Freed> {
        self.look("a free");
        self.inner.free(below)
    }
    fn part_files(&self) -> Result<Vec<PartFile>> {
        self.inner.part_files()
    }
    fn remove_part(&self, begin: u64) -> Result<()> {
        self.look("a removal");
        self.inner.remove_part(begin)
    }
    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        self.inner.locate(offset)
    }
}

fn close(numbers: std::ops::Range<i32>) {
    for number in numbers {
        // SAFETY: no object of this process owns the stream. A later write to it only fails, or
        // reaches a file of the bank, which the test would find.
        unsafe { libc::close(number) };
    }
}

fn options(device: DeviceChoice) -> StoreOptions {
    let segment_size_bytes = Some(64 << 10);
    StoreOptions { page_size_bytes: Some(8 << 10), segment_size_bytes, device, ..by_hand(2) }
}

/// Makes calls of the store that open files. After each step, writes to the standard streams, as a
/// library may do.
fn daemon(
    dir: &Path,
    closed: std::ops::Range<i32>,
    early: bool,
    choice: DeviceChoice,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut look = |after: &str| {
        let open = taken().into_iter().filter(|found| {
            let number: i32 = found[..1].parse().unwrap();
            closed.contains(&number)
        });
        faults.extend(open.map(|found| format!("after {after}: {found}")));
        message(after);
    };
    let (bank, copy) = (dir.join("bank"), dir.join("copy"));
    if early {
        close(closed.clone());
    }
    let store = Store::open(&bank, &options(choice)).unwrap();
    if !early {
        close(closed.clone());
    }
    look("the open");
    let all = keys(6_000);
    let table = store.create_table("rows", BYTES as u32, b"").unwrap();
    for version in 1..3 {
        put(&store, table, &all, version, BYTES);
        look("a put");
        store.checkpoint(b"blob").unwrap();
        look("a checkpoint");
    }
    assert_eq!(peek(&store, table, &all).unwrap(), rows_of(&all, 2, BYTES));
    store.pin(1).unwrap();
    let reader = Store::open_read_only(&bank, &options(choice), None).unwrap();
    look("a read-only open");
    assert_eq!(peek(&reader, table, &all).unwrap(), rows_of(&all, 2, BYTES));
    assert!(Store::open(&bank, &options(choice)).is_err(), "it is locked");
    look("a refused open");
    Store::copy_checkpoint(&bank, Some(1), &copy).unwrap();
    let delta = dir.join("delta");
    Store::export_delta(&bank, 1, Some(2), &delta, &mut |_| {}).unwrap();
    Store::apply_delta(&copy, &delta, 1, &mut |_| {}).unwrap();
    look("a delta");
    drop((store, reader));
    let verified = inspect::verify(&bank, &inspect::VerifyOptions::default(), &mut |_| {});
    assert!(verified.unwrap().is_clean(), "the bank is damaged");
    Store::roll_back(&bank, 1).unwrap();
    look("a roll back");
    let inner = device::open(
        &bank,
        DeviceChoice::Threads,
        &DeviceOptions { segment_size_bytes: 64 << 10, ..DeviceOptions::default() },
    );
    let watching = Arc::new(Watching { inner: inner.unwrap(), seen: Default::default() });
    let device: Arc<dyn Device> = watching.clone();
    let store = Store::open_on(&bank, &options(choice), |_| Ok(device)).unwrap();
    assert_eq!(peek(&store, table, &all).unwrap(), rows_of(&all, 1, BYTES));
    put(&store, table, &all, 9, BYTES);
    store.checkpoint(b"again").unwrap();
    look("a checkpoint after the roll back");
    drop(store);
    faults.extend(
        watching
            .seen
            .lock()
            .unwrap()
            .iter()
            .filter(|seen| closed.clone().any(|number| seen.contains(&format!(": {number} is"))))
            .cloned(),
    );
    faults
}

/// Runs in the process without streams. Does nothing in an ordinary run of the tests.
#[test]
fn process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(':').collect();
    let [first, end, early, device, dir] = words[..] else { panic!("{role}") };
    let choice = if device == "uring" { DeviceChoice::Auto } else { DeviceChoice::Threads };
    let (closed, dir) = (first.parse().unwrap()..end.parse().unwrap(), Path::new(dir));
    // The process has no stream for a panic's message, so the report contains it.
    let faults = std::panic::catch_unwind(|| daemon(dir, closed, early == "early", choice));
    let report = faults.map_or_else(
        |panic| {
            let text = panic.downcast_ref::<String>().cloned();
            format!("panicked: {}", text.unwrap_or_default())
        },
        |faults| faults.join("\n"),
    );
    std::fs::write(dir.join("report"), report).unwrap();
    std::process::exit(0);
}

fn run(closed: std::ops::Range<i32>, early: &str, device: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (first, end, path) = (closed.start, closed.end, dir.path().display());
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process", "--nocapture"])
        .env(ROLE, format!("{first}:{end}:{early}:{device}:{path}"))
        .output()
        .unwrap();
    let report = std::fs::read_to_string(dir.path().join("report"));
    assert_eq!(
        report.as_deref().unwrap_or("no report"),
        "",
        "{closed:?} {early} {device}: {ran:?}"
    );
}

/// Regression test: a segment file got descriptor 2, and a library's warnings were written into it.
#[test]
fn a_bank_in_a_daemon_without_streams_stays_whole() {
    for device in ["threads", "uring"] {
        run(0..3, "early", device);
        run(0..3, "late", device);
    }
}

/// A single closed stream must be safe too.
#[test]
fn a_bank_with_a_single_closed_stream_stays_whole() {
    for device in ["threads", "uring"] {
        run(2..3, "early", device);
        run(1..2, "late", device);
        run(0..1, "early", device);
    }
}
