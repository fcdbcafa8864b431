//! Tests a bank whose file descriptors other code of the process closes. The number of a closed
//! descriptor goes to the next file that the process opens. The bank must not write into that file,
//! and must not report a checkpoint as complete.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(all(target_os = "linux", not(miri)))]

mod common;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use common::before_sync::before_sync;
use common::reading::{by_hand, keys, rows_of};
use common::{peek, put};
use embank_kv::{DeviceChoice, Error, Store, StoreOptions};

const BYTES: usize = 120;

fn options() -> StoreOptions {
    let segment_size_bytes = Some(1 << 20);
    StoreOptions { page_size_bytes: Some(8 << 10), segment_size_bytes, ..by_hand(2) }
}

/// Gives each descriptor of a file whose path contains `of` to the file `other`, as a library does
/// that closes a descriptor twice. Returns the number of such descriptors.
fn hand_over(of: &str, other: &File) -> usize {
    let mut count = 0;
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap().path();
        if fs::read_link(&entry).is_ok_and(|to| to.to_string_lossy().contains(of)) {
            let number: i32 = entry.file_name().unwrap().to_str().unwrap().parse().unwrap();
            // SAFETY: `dup2` takes no pointers. The bank must stay correct without the descriptor.
            unsafe { libc::dup2(other.as_raw_fd(), number) };
            count += 1;
        }
    }
    count
}

/// Asserts that the bank opens at checkpoint 1 with its rows.
fn is_at_the_first(dir: &Path) {
    let store = Store::open(dir, &options()).unwrap();
    assert_eq!(store.recovered().unwrap().checkpoint, 1);
    let table = store.tables()[0].id;
    assert_eq!(peek(&store, table, &keys(500)).unwrap(), rows_of(&keys(500), 1, BYTES));
}

/// Regression test: if the descriptor of a segment belonged to another file, `checkpoint` returned,
/// the other file grew, and the bank did not open.
#[test]
fn a_segment_whose_descriptor_went_to_another_file_fails_the_checkpoint() {
    for choice in [DeviceChoice::Threads, DeviceChoice::Auto] {
        let dir = tempfile::tempdir().unwrap();
        let bank = dir.path().canonicalize().unwrap().join("bank");
        let store = Store::open(&bank, &StoreOptions { device: choice, ..options() }).unwrap();
        let table = store.create_table("rows", BYTES as u32, b"").unwrap();
        put(&store, table, &keys(500), 1, BYTES);
        store.checkpoint(b"first").unwrap();
        put(&store, table, &keys(500), 2, BYTES);
        let path = dir.path().join("other");
        let other = File::create(&path).unwrap();
        let marker = format!("{}/log/0", bank.display());
        assert!(hand_over(&marker, &other) > 0);
        let error = store.checkpoint(b"second").unwrap_err().to_string();
        assert!(error.contains("closed the bank's file descriptor"), "{error}");
        assert!(error.contains(".seg"), "{error}");
        assert!(matches!(store.checkpoint(b"third"), Err(Error::Poisoned { .. })));
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "the bank wrote into another file");
        drop(store);
        is_at_the_first(&bank);
    }
}

/// The other files of a checkpoint: the image of the index, the folder of checkpoints, the segments
/// between their last write and their sync. No checkpoint is complete without them.
#[test]
fn a_checkpoint_is_not_complete_if_any_of_its_descriptors_went_to_another_file() {
    for of in ["/checkpoints/0000000002.partial/index", "/checkpoints", "/log/0"] {
        let dir = tempfile::tempdir().unwrap();
        let bank = dir.path().canonicalize().unwrap().join("bank");
        let path = dir.path().join("other");
        let store = Store::open(&bank, &options()).unwrap();
        let table = store.create_table("rows", BYTES as u32, b"").unwrap();
        put(&store, table, &keys(500), 1, BYTES);
        store.checkpoint(b"first").unwrap();
        drop(store);
        let other = File::create(&path).unwrap();
        let marker = format!("{}{of}", bank.display());
        let act = move || assert!(hand_over(&marker, &other) > 0);
        let store = Store::open_on(&bank, &options(), before_sync(&bank, act)).unwrap();
        put(&store, store.tables()[0].id, &keys(500), 2, BYTES);
        let error = store.checkpoint(b"second").unwrap_err().to_string();
        assert!(error.contains("closed the bank's file descriptor"), "{of}: {error}");
        drop(store);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0, "{of}: the bank wrote into another file");
        is_at_the_first(&bank);
    }
}
