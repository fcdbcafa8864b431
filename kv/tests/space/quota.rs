//! Tests the disk quota: which calls wait for compaction, which fail, and which continue.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::compacting::{RECORD_BYTES, VALUE_BYTES, check, ends, open};
use crate::common::{GetAll, PutAll, acquire, options, put, release, value};
use embank_kv::{Clock, Error, Store, StoreOptions, TierLimits};

#[test]
fn compaction_beside_a_checkpoint_keeps_to_the_quota() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 4 << 20;
    let options = StoreOptions { disk_quota_bytes: Some(quota), ..options(512 << 10) };
    let (store, table) = open(dir.path(), &options);
    let keys: Vec<u64> = (0..quota / RECORD_BYTES * 9 / 10).collect();
    put(&store, table, &keys, 0, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    let odd: Vec<u64> = keys.iter().copied().filter(|key| key % 2 == 1).collect();
    store.delete(table, &odd).unwrap();
    // In one second compaction can copy the whole log.
    let until = std::time::Instant::now() + Duration::from_secs(1);
    while std::time::Instant::now() < until {
        let stats = store.stats();
        // Deletions may exceed the quota by their tombstones, of 32 bytes each.
        assert!(stats.log_disk_bytes <= quota + 32 * odd.len() as u64, "{stats:?}");
        std::thread::yield_now();
    }
}

/// Writers run at the quota with background compaction and checkpoints. The test constantly
/// compares the log's size with the quota, as the store and as the file system report it.
#[test]
fn the_log_is_never_above_the_quota() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 4 << 20;
    let options = StoreOptions { disk_quota_bytes: Some(quota), ..options(512 << 10) };
    let (store, table) = open(dir.path(), &options);
    let keys: Vec<u64> = (0..quota / RECORD_BYTES / 2).collect();
    let done = AtomicBool::new(false);
    let on_disk = || -> u64 {
        let files = std::fs::read_dir(dir.path().join("log")).unwrap();
        // The store may remove a file between its listing and the call of `metadata`.
        files.filter_map(|file| file.unwrap().metadata().ok()).map(|file| file.blocks() * 512).sum()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 0..24 {
                let values: Vec<_> =
                    keys.iter().map(|&key| value(key, version, VALUE_BYTES)).collect();
                for (keys, values) in keys.chunks(500).zip(values.chunks(500)) {
                    match store.execute(table, keys, Clock::Keep, &mut PutAll(values)) {
                        Ok(_) | Err(Error::QuotaExceeded { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                if version % 3 == 2 {
                    store.checkpoint(b"").unwrap();
                }
            }
            done.store(true, Ordering::Release);
        });
        let mut most = (0, 0);
        while !done.load(Ordering::Acquire) {
            most = (most.0.max(store.stats().log_disk_bytes), most.1.max(on_disk()));
            std::thread::yield_now();
        }
        assert!(most.0 > quota / 2, "the quota came near: {most:?}");
        assert!(most.0 <= quota && most.1 <= quota, "{most:?}");
    });
}

/// The quota is smaller than the memory. The rows are deleted before their records reach the disk,
/// so the quota must not stop the calls.
#[test]
fn a_quota_below_the_memory_is_no_limit_to_what_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { disk_quota_bytes: Some(4 << 20), ..options(16 << 20) };
    let store = Arc::new(Store::open(dir.path(), &options).unwrap());
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let ended = ends(60, move || {
        for round in 0..100 {
            let keys: Vec<u64> = (round * 1000..round * 1000 + 1000).collect();
            put(&store, table, &keys, 0, VALUE_BYTES);
            store.delete(table, &keys).unwrap();
        }
    });
    assert!(ended, "stuck");
}

#[test]
fn at_the_quota_writers_wait_for_compaction_and_then_fail() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 4 << 20;
    let options = StoreOptions { disk_quota_bytes: Some(quota), ..options(512 << 10) };
    let (store, table) = open(dir.path(), &options);
    // Rows of two thirds of the quota are overwritten repeatedly. Compaction must make room each
    // time.
    let keys: Vec<u64> = (0..quota / RECORD_BYTES * 2 / 3).collect();
    for version in 0..6 {
        put(&store, table, &keys, version, VALUE_BYTES);
        assert!(store.stats().log_disk_bytes <= quota);
    }
    // Puts more rows than fit into the quota.
    let more: Vec<u64> = (1 << 20..(1 << 20) + quota / RECORD_BYTES).collect();
    let values: Vec<_> = more.iter().map(|&key| value(key, 0, VALUE_BYTES)).collect();
    let error = store.execute(table, &more, Clock::Keep, &mut PutAll(&values)).unwrap_err();
    let Error::QuotaExceeded { quota_bytes, live_bytes, .. } = error else { panic!("{error}") };
    assert_eq!(quota_bytes, quota);
    assert!(live_bytes > quota / 2, "{live_bytes}");
    assert!(store.stats().log_disk_bytes <= quota);
    // At the quota, peeks and deletions still work. The deletions make room for puts.
    let versions: HashMap<_, _> = keys.iter().map(|&key| (key, 5)).collect();
    check(&store, table, &versions, 0..keys.len() as u64);
    store.delete(table, &more).unwrap();
    store.delete(table, &keys[1000..]).unwrap();
    put(&store, table, &keys[..2000], 7, VALUE_BYTES);
    check(&store, table, &keys[..2000].iter().map(|&key| (key, 7)).collect(), 0..2000);
    // The kept checkpoint refers to the old records, so compaction can't free their space. The
    // error must say so.
    store.checkpoint(b"held").unwrap();
    let mut held = None;
    for version in 8..20 {
        let values: Vec<_> = keys.iter().map(|&key| value(key, version, VALUE_BYTES)).collect();
        let done = store.execute(table, &keys, Clock::Keep, &mut PutAll(&values));
        if let Err(error) = done {
            held = Some(error);
            break;
        }
    }
    let error = held.expect("a checkpoint holds the space");
    assert!(error.to_string().contains("take a checkpoint"), "{error}");
    // Does what the error advises. The puts then succeed.
    store.checkpoint(b"one").unwrap();
    store.checkpoint(b"two").unwrap();
    put(&store, table, &keys[..500], 30, VALUE_BYTES);
    let mut rows = vec![Vec::new(); 500];
    store.execute(table, &keys[..500], Clock::Keep, &mut GetAll(&mut rows)).unwrap();
    assert!(rows.iter().zip(&keys).all(|(row, &key)| *row == value(key, 30, VALUE_BYTES)));
}

/// Training gets more rows of a bank in two tiers than the quota has room for. Spills copy these
/// rows to the log's tail, which makes no room. The call fails, and after the step there is room.
#[test]
fn a_step_that_is_longer_than_the_quota_fails() {
    let dir = tempfile::tempdir().unwrap();
    let quota = StoreOptions { disk_quota_bytes: Some(4 << 20), ..options(1 << 20) };
    let ended = ends(300, move || {
        let (store, table) = open(dir.path(), &quota);
        store.begin_second_tier(TierLimits {
            log_bytes: 64 << 10,
            sort_buffer_bytes: 32 << 10,
            base_part_bytes: 4 << 20,
            level_runs: 16,
        });
        let keys: Vec<u64> = (0..20_000).collect();
        for keys in keys.chunks(500) {
            put(&store, table, keys, 0, VALUE_BYTES);
        }
        for step in 0..2 {
            let mut got = Vec::new();
            let error = keys.chunks(500).find_map(|keys| {
                let error = acquire(&store, table, keys, None).err();
                got.extend_from_slice(if error.is_none() { keys } else { &[] });
                error
            });
            let Some(Error::QuotaExceeded { .. }) = error else { panic!("{step}: {error:?}") };
            assert!(got.len() > 2_000, "{}", got.len());
            for keys in got.chunks(500) {
                release(&store, table, keys).unwrap();
            }
            for keys in keys.chunks(500) {
                put(&store, table, keys, 0, VALUE_BYTES);
            }
        }
        check(&store, table, &keys.iter().map(|&key| (key, 0)).collect(), 0..20_000);
    });
    assert!(ended, "the call waits for room that spills cannot make");
}
