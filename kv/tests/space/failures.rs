//! Tests compaction on a disk that fails, and crashes between steps of compaction.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;

use crate::common::compacting::{VALUE_BYTES, by_hand, check, open};
use crate::common::put;
use embank_kv::device::{Device, DeviceOptions, FaultyDevice, MemoryDevice};
use embank_kv::{Error, Store, StoreOptions, TableId};

/// Makes a bank on a disk in memory. Most rows are on that disk.
fn on_memory(dir: &std::path::Path) -> (Store, Arc<FaultyDevice>, Arc<dyn Device>, TableId) {
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
    let device = Arc::new(FaultyDevice::new(Arc::clone(&disk)));
    let wrapped: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&device);
    let store = Store::open_on(dir, &by_hand(256 << 10), |_| Ok(wrapped)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..8000).collect();
    put(&store, table, &keys, 1, VALUE_BYTES);
    store.checkpoint(b"good").unwrap();
    (store, device, disk, table)
}

#[test]
fn a_damaged_page_stops_compaction_and_loses_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (store, device, _, table) = on_memory(dir.path());
    let page = store.stats().page_size_bytes;
    device.flip_bit_on_read(5 * page + 100, 3);
    let error = store.compact().unwrap_err();
    assert!(matches!(&error, Error::Damaged { what, .. } if what.contains("page 5")), "{error}");
    let stats = store.stats();
    assert_eq!(stats.log_begin, 5 * page);
    assert!(stats.compaction_stopped.unwrap().contains("page 5"));
    // The store stays usable. Compaction continues when the page can be read again.
    put(&store, table, &[1, 2, 3], 2, VALUE_BYTES);
    device.mend();
    let begin = store.stats().log_begin;
    assert!(store.compact().unwrap().scanned_bytes > 0);
    assert!(store.stats().log_begin > begin);
    assert_eq!(store.stats().compaction_stopped, None);
    let versions: HashMap<_, _> =
        (0..8000).map(|key| (key, if (1..4).contains(&key) { 2 } else { 1 })).collect();
    check(&store, table, &versions, 0..8000);
}

#[test]
fn every_failure_in_compaction_is_reported_and_harms_no_checkpoint() {
    let keys: Vec<u64> = (0..8000).collect();
    let versions: HashMap<_, _> = keys.iter().map(|&key| (key, 1)).collect();
    for (site, n) in
        [("read", 1), ("read", 9), ("write", 1), ("write", 12), ("free", 1), ("sync", 1)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (store, device, disk, table) = on_memory(dir.path());
        match site {
            "read" => device.fail_read(n, ErrorKind::Other),
            "write" => device.fail_write(n, ErrorKind::Other),
            "sync" => device.fail_sync(n, ErrorKind::Other),
            _ => device.fail_free(n, ErrorKind::PermissionDenied),
        }
        let failed = match site {
            "sync" => store.compact().and_then(|_| store.checkpoint(b"bad").map(|_| ())),
            "free" => {
                // Two checkpoints are kept, so only a third one frees the space of the first.
                store.compact().unwrap();
                store.checkpoint(b"good").unwrap();
                store.checkpoint(b"good").unwrap();
                store.compact().map(|_| ())
            }
            _ => store.compact().map(|_| ()),
        };
        match site {
            // The compaction succeeds although it could not free the space. The next call frees it.
            "free" => failed.unwrap(),
            _ => assert!(failed.unwrap_err().to_string().contains("injected"), "{site} {n}"),
        }
        if site == "read" {
            check(&store, table, &versions, 0..8000);
            store.compact().unwrap();
        }
        drop(store);
        let store = Store::open_on(dir.path(), &by_hand(256 << 10), |_| Ok(disk)).unwrap();
        assert_eq!(store.recovered().unwrap().blob, b"good");
        check(&store, table, &versions, 0..8000);
        store.compact().unwrap();
        check(&store, table, &versions, 0..8000);
    }
}

#[test]
fn a_crash_between_any_two_steps_reopens_at_the_newest_checkpoint() {
    // The steps are put, checkpoint and compact, in turn. The test crashes after each number of
    // steps, with one and with two kept checkpoints.
    for kept in [1, 2] {
        for steps in 0..9 {
            let dir = tempfile::tempdir().unwrap();
            let options = StoreOptions { checkpoints_kept: kept, ..by_hand(512 << 10) };
            let (store, table) = open(dir.path(), &options);
            let keys: Vec<u64> = (0..6000).collect();
            let mut durable = None;
            for step in 0..steps {
                match step % 3 {
                    0 => drop(put(&store, table, &keys, step, VALUE_BYTES)),
                    1 => {
                        store.checkpoint(&[step as u8]).unwrap();
                        durable = Some(step - 1);
                    }
                    _ => drop(store.compact().unwrap()),
                }
            }
            let recovered = store.stats();
            drop(store);
            // Opens the bank as after a crash at this step.
            let (store, table) = open(dir.path(), &options);
            let versions: HashMap<_, _> = match durable {
                Some(version) => keys.iter().map(|&key| (key, version)).collect(),
                None => HashMap::new(),
            };
            check(&store, table, &versions, 0..6000);
            assert!(store.stats().log_begin <= recovered.log_begin);
            store.compact().unwrap();
            store.checkpoint(b"after").unwrap();
            check(&store, table, &versions, 0..6000);
        }
    }
}
