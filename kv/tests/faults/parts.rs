//! Tests of devices that fail while parts of the cold tier are written, read, synced or removed.
//! The caller gets an error and no wrong row, and the last checkpoint stays sound.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::ErrorKind;
use std::sync::Arc;

use super::faulty::{BUDGET_BYTES, Open, memory, open_on};
use crate::common::compacting::by_hand;
use crate::common::value;
use embank_kv::device::{Device, FaultyDevice, ReadFault, WriteFault};
use embank_kv::parts::{self, Rows};
use embank_kv::{Error, Store};

/// No table has this number.
const TABLE: u16 = 999;

/// Rows that fill several transfers of 1 MiB.
fn rows(version: u64) -> Rows {
    (0..2500).map(|key| ((TABLE, key), Some(value(key, version, 1000)))).collect()
}

/// A bank whose checkpoint 1 has two runs.
struct Bank {
    dir: tempfile::TempDir,
    disk: Arc<dyn Device>,
}

impl Bank {
    fn new() -> Self {
        let bank = Bank { dir: tempfile::tempdir().unwrap(), disk: memory() };
        let Open { store, .. } = bank.open();
        parts::add_run(&store, &rows(1)).unwrap();
        parts::add_run(&store, &rows(2)).unwrap();
        store.checkpoint(b"good").unwrap();
        bank
    }

    fn open(&self) -> Open {
        open_on(self.dir.path(), &self.disk, &by_hand(BUDGET_BYTES))
    }

    /// Opens the bank on a device for which `plan` requests a fault.
    fn open_with(&self, plan: impl Fn(&FaultyDevice)) -> Result<Store, Error> {
        let device = FaultyDevice::new(Arc::clone(&self.disk));
        plan(&device);
        Store::open_on(self.dir.path(), &by_hand(BUDGET_BYTES), |_| Ok(Arc::new(device)))
    }

    /// Asserts that the bank opens at checkpoint 1 with its rows, and takes another part.
    fn check_good(&self) {
        let Open { store, .. } = self.open();
        assert_eq!(store.recovered().unwrap().blob, b"good");
        assert!(parts::rows(&store).unwrap() == rows(2));
        assert_eq!(self.disk.part_files().unwrap().len(), 2, "no other part is left");
        parts::add_run(&store, &rows(3)).unwrap();
        assert!(parts::rows(&store).unwrap() == rows(3));
    }
}

/// Shows that a part that can't be written goes, and that the log is not poisoned.
#[test]
fn a_part_that_cannot_be_written_leaves_the_old_ones() {
    let bank = Bank::new();
    let writes = {
        let Open { store, device, .. } = bank.open();
        let before = device.calls().writes;
        parts::replace_by_base(&store, &rows(2), 2).unwrap();
        device.calls().writes - before
    };
    assert!(writes >= 4, "{writes} writes");
    for n in 1..=writes {
        for fault in [
            WriteFault::Fails { kind: ErrorKind::StorageFull, kept_bytes: 0 },
            WriteFault::Fails { kind: ErrorKind::Other, kept_bytes: 5000 },
        ] {
            let Open { store, device, .. } = bank.open();
            device.spoil_write(n, fault);
            let error = parts::replace_by_base(&store, &rows(2), 2).unwrap_err();
            assert!(error.to_string().contains("injected"), "{error}");
            assert!(parts::rows(&store).unwrap() == rows(2));
            assert_eq!(bank.disk.part_files().unwrap().len(), 2, "its output goes");
            store.checkpoint(b"good").unwrap();
            // The next attempt succeeds.
            parts::add_run(&store, &rows(2)).unwrap();
        }
    }
    bank.check_good();
}

/// A write that is lost, misplaced or flipped reports success. A reopening or a read finds it. The
/// last write repeats the header, which neither of them needs.
#[test]
fn a_part_that_was_not_written_as_it_should_is_damage() {
    let writes = {
        let Open { store, device, .. } = Bank::new().open();
        let before = device.calls().writes;
        parts::add_run(&store, &rows(3)).unwrap();
        device.calls().writes - before
    };
    for n in 1..=writes {
        for fault in [
            WriteFault::Lost,
            WriteFault::Misdirected { by: 1 << 20 },
            WriteFault::Misdirected { by: -8192 },
            WriteFault::Flipped { byte: 12_345, bit: 3 },
        ] {
            let bank = Bank::new();
            let Open { store, device, .. } = bank.open();
            device.spoil_write(n, fault);
            parts::add_run(&store, &rows(3)).unwrap();
            store.checkpoint(b"with damage").unwrap();
            drop(store);
            let found = bank.open_with(|_| ()).and_then(|store| parts::rows(&store));
            let error = match found {
                Ok(found) => {
                    assert!(n == writes && found == rows(3), "write {n}, {fault:?}: not noticed");
                    continue;
                }
                Err(error) => error,
            };
            let named = matches!(error, Error::Damaged { .. } | Error::Truncated { .. });
            assert!(named && error.to_string().contains(".seg"), "write {n}, {fault:?}: {error}");
        }
    }
}

#[test]
fn an_opening_that_cannot_read_a_part_changes_nothing() {
    let bank = Bank::new();
    let reads = {
        let Open { store, device, .. } = bank.open();
        parts::add_run(&store, &rows(3)).unwrap();
        device.calls().reads
    };
    for n in 1..=reads {
        for fault in [
            ReadFault::Fails(ErrorKind::Other),
            ReadFault::CutShort,
            ReadFault::Flipped { byte: 20, bit: 1 },
            ReadFault::Misdirected { by: 512 },
        ] {
            let opened = bank.open_with(|device| device.spoil_read(n, fault));
            assert!(opened.is_err(), "read {n}, {fault:?}");
        }
    }
    assert_eq!(bank.disk.part_files().unwrap().len(), 3, "no opening got as far as a removal");
    bank.check_good();
}

#[test]
fn a_failed_sync_of_a_part_leaves_the_checkpoint_before() {
    let bank = Bank::new();
    let Open { store, device, .. } = bank.open();
    parts::replace_by_base(&store, &rows(3), 2).unwrap();
    device.fail_sync(1, ErrorKind::Other);
    store.checkpoint(b"bad").unwrap_err();
    assert!(matches!(store.checkpoint(b"again"), Err(Error::Poisoned { .. })));
    assert!(parts::rows(&store).unwrap() == rows(3), "the parts can still be read");
    drop(store);
    bank.check_good();
}

/// A part that can't be removed stays, and each later checkpoint tries again.
#[test]
fn a_part_that_cannot_be_removed_is_removed_later() {
    let bank = Bank::new();
    let Open { store, device, .. } = bank.open();
    parts::replace_by_base(&store, &rows(3), 1).unwrap();
    store.checkpoint(b"2").unwrap();
    store.checkpoint(b"3").unwrap();
    assert_eq!(bank.disk.part_files().unwrap().len(), 1);
    parts::replace_by_base(&store, &rows(3), 1).unwrap();
    store.checkpoint(b"4").unwrap();
    // Checkpoint 3 was the last to name the replaced part. The log has nothing to free.
    device.fail_free(1, ErrorKind::PermissionDenied);
    store.checkpoint(b"5").unwrap();
    assert_eq!(bank.disk.part_files().unwrap().len(), 2);
    let lines = store.stats().not_removed;
    assert!(lines.len() == 1 && lines[0].contains(".seg"), "{lines:?}");
    store.checkpoint(b"6").unwrap();
    assert_eq!(bank.disk.part_files().unwrap().len(), 1);
    assert!(store.stats().not_removed.is_empty());
    assert!(parts::rows(&store).unwrap() == rows(3));
    drop(store);
    // An abandoned part whose number a later part gets must go.
    let Open { store, .. } = bank.open();
    parts::add_run(&store, &rows(4)).unwrap();
    drop(store);
    let refused = bank.open_with(|device| device.fail_free(1, ErrorKind::PermissionDenied));
    assert!(refused.unwrap_err().to_string().contains("injected"));
    let Open { store, .. } = bank.open();
    assert!(parts::rows(&store).unwrap() == rows(3));
}
