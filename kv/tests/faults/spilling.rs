//! Tests of devices that fail while rows leave the log for the cold tier, or while parts are
//! merged. The output of the failed work goes, the old parts stay, the store takes writes, and the
//! work is tried again after the next checkpoint.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

use super::faulty::{Open, VALUE_BYTES, memory, open_on, try_put};
use crate::common::{peek, value};
use embank_kv::device::{Device, WriteFault};
use embank_kv::parts::part_numbers;
use embank_kv::{CompactionOptions, Store, StoreOptions, TierLimits};

const KEYS: u64 = 1500;
/// The address of the first part, and the distance of two parts. A segment has at most 256 MiB.
const COLD_BEGIN: u64 = 1 << 49;
const SPAN_BYTES: u64 = 256 << 20;

fn settings(background: bool) -> StoreOptions {
    StoreOptions {
        memory_budget_bytes: 1 << 20,
        compaction: CompactionOptions { background, ..CompactionOptions::default() },
        ..StoreOptions::default()
    }
}

/// A bank in two tiers. Its limits are so low that each compaction spills and merges.
struct Bank {
    dir: tempfile::TempDir,
    disk: Arc<dyn Device>,
    /// The version of each row.
    versions: Vec<u64>,
}

impl Bank {
    fn new() -> Self {
        Bank { dir: tempfile::tempdir().unwrap(), disk: memory(), versions: vec![0; KEYS as usize] }
    }

    fn open(&self, background: bool) -> Open {
        let open = open_on(self.dir.path(), &self.disk, &settings(background));
        begin_second_tier(&open.store);
        open
    }

    /// Puts a new version of a third of the rows.
    fn put(&mut self, open: &Open, version: u64) {
        let keys: Vec<u64> = (0..KEYS).filter(|key| (key + version).is_multiple_of(3)).collect();
        try_put(open, &keys, version).unwrap();
        keys.iter().for_each(|&key| self.versions[key as usize] = version);
    }

    fn put_all(&mut self, open: &Open, version: u64) {
        try_put(open, &(0..KEYS).collect::<Vec<_>>(), version).unwrap();
        self.versions.fill(version);
    }

    fn check(&self, open: &Open) {
        let keys: Vec<u64> = (0..KEYS).collect();
        let rows = peek(&open.store, open.table, &keys).unwrap();
        for ((key, row), &version) in keys.iter().zip(rows).zip(&self.versions) {
            assert!(row == Some(value(*key, version, VALUE_BYTES)), "key {key}, not {version}");
        }
        assert_eq!(open.store.rows(open.table).unwrap(), KEYS);
    }

    /// Returns the numbers of the parts whose files the disk has.
    fn files(&self) -> BTreeSet<u64> {
        let files = self.disk.part_files().unwrap();
        files.into_iter().map(|file| (file.begin - COLD_BEGIN) / SPAN_BYTES).collect()
    }
}

fn begin_second_tier(store: &Store) {
    store.begin_second_tier(TierLimits {
        log_bytes: 64 << 10,
        sort_buffer_bytes: 32 << 10,
        base_part_bytes: 200 << 10,
        level_runs: 3,
    });
}

/// Compacts while write `n` from now on meets `fault`. Asserts what must hold if the fault struck,
/// and returns true then.
fn compact_with(bank: &Bank, open: &Open, n: u64, fault: WriteFault) -> bool {
    let files = bank.files();
    let before = open.device.calls().writes;
    open.device.spoil_write(n, fault);
    let done = open.store.compact();
    let has_struck = open.device.calls().writes - before >= n;
    open.device.mend();
    if !has_struck {
        done.unwrap();
        return false;
    }
    let stopped = open.store.stats().compaction_stopped;
    match done {
        Ok(done) => assert!(done.out_of_room && stopped.is_none(), "{fault:?}: {stopped:?}"),
        Err(error) => {
            assert!(error.to_string().contains("injected"), "{error}");
            assert_eq!(stopped, Some(error.to_string()));
        }
    }
    let view: BTreeSet<u64> = part_numbers(&open.store).into_iter().collect();
    let left: Vec<u64> = bank.files().into_iter().filter(|part| !view.contains(part)).collect();
    assert!(left.iter().all(|part| files.contains(part)), "{fault:?} {n}: its output is left");
    assert!(view.is_subset(&bank.files()), "{fault:?} {n}: a part is gone");
    true
}

/// Every second write of spills and merges fails once. The store is not poisoned, and the
/// statistics say why compaction has stopped until the next checkpoint.
#[test]
fn a_spill_or_merge_that_cannot_be_written_leaves_the_old_parts() {
    let faults = [
        WriteFault::Fails { kind: ErrorKind::StorageFull, kept_bytes: 0 },
        WriteFault::Fails { kind: ErrorKind::Other, kept_bytes: 5000 },
    ];
    for fault in faults {
        let mut bank = Bank::new();
        let open = bank.open(false);
        bank.put_all(&open, 1);
        let (mut version, mut struck) = (1, 0);
        for n in (1..40).step_by(2) {
            version += 1;
            bank.put(&open, version);
            open.store.checkpoint(b"").unwrap();
            struck += u64::from(compact_with(&bank, &open, n, fault));
            bank.check(&open);
            bank.put(&open, version);
            open.store.checkpoint(b"").unwrap();
            assert_eq!(open.store.stats().compaction_stopped, None, "the checkpoint tries again");
            if n == 7 || n == 21 {
                open.store.compact().unwrap();
                bank.check(&open);
            }
        }
        assert!(struck > 5, "{struck} faults struck");
        drop(open);
        let open = bank.open(false);
        bank.check(&open);
        open.store.compact().unwrap();
        bank.check(&open);
    }
}
