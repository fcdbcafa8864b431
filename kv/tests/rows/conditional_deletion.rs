//! Tests `delete_if`: a row is deleted only if the condition accepts the value that the row has at
//! the deletion.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Add, GetAll, options, peek, put, value};
use embank_kv::{Access, Clock, DeviceChoice, Operation, Store, StoreOptions, StoreStats, TableId};

const VALUE_BYTES: usize = 64;
const ROWS: u64 = 6_000;

fn open(device: DeviceChoice) -> (tempfile::TempDir, Store, TableId) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &StoreOptions { device, ..options(256 << 10) }).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    (dir, store, table)
}

/// In each region, exactly the accepted rows are deleted. The condition gets each row's present
/// value, and is not called for missing rows.
#[test]
fn rows_of_every_region_go_on_their_condition() {
    for device in [DeviceChoice::Auto, DeviceChoice::Threads, DeviceChoice::Memory] {
        let (_dir, store, table) = open(device);
        let keys: Vec<u64> = (0..ROWS).collect();
        put(&store, table, &keys, 0, VALUE_BYTES);
        // The checkpoint makes all rows in memory read-only. The put makes 100 of them mutable
        // again.
        store.checkpoint(b"").unwrap();
        put(&store, table, &keys[..100], 7, VALUE_BYTES);
        // The deletion appends a tombstone for each deleted row, which evicts the oldest pages. The
        // rows in memory therefore come first: the mutable rows, and then the newest of the others.
        let asked: Vec<u64> = (0..100).chain((100..ROWS).rev()).chain([ROWS, ROWS + 1]).collect();
        let mut seen = vec![Vec::new(); asked.len()];
        let third = |i: usize| asked[i].is_multiple_of(3);
        let before = store.stats();
        let deleted = store
            .delete_if(table, &asked, |i, value, outstanding| {
                assert_eq!(outstanding, 0);
                seen[i] = value.to_vec();
                third(i)
            })
            .unwrap();
        assert_eq!(deleted, ROWS / 3);
        // The condition saw rows in every region.
        let after = store.stats();
        assert!(after.hits_mutable - before.hits_mutable >= 66);
        assert!(after.hits_read_only > before.hits_read_only);
        let found = |stats: &StoreStats| {
            stats.hits_mutable + stats.hits_read_only + stats.hits_disk + stats.hits_cache
        };
        assert_eq!(found(&after) - found(&before), ROWS);
        for (&key, seen) in asked.iter().zip(&seen).take(ROWS as usize) {
            let round = if key < 100 { 7 } else { 0 };
            assert_eq!(*seen, value(key, round, VALUE_BYTES), "{key}");
        }
        assert!(
            seen[ROWS as usize..].iter().all(Vec::is_empty),
            "the condition was called for a missing row"
        );
        let found = peek(&store, table, &keys).unwrap();
        for (&key, found) in keys.iter().zip(&found) {
            assert_eq!(found.is_some(), !key.is_multiple_of(3), "{key}");
        }
        assert_eq!(store.stats().live_rows, ROWS - ROWS / 3);
        store.checkpoint(b"").unwrap();
        assert_eq!(store.delete_if(table, &keys, |_, _, _| true).unwrap(), ROWS - ROWS / 3);
    }
}

#[test]
fn the_condition_sees_the_leases_of_a_row() {
    let (_dir, store, table) = open(DeviceChoice::Auto);
    put(&store, table, &[1, 2], 0, VALUE_BYTES);
    let acquire = Clock::Acquire { bound: None };
    let mut rows = vec![Vec::new()];
    store.execute(table, &[2], acquire, &mut GetAll(&mut rows)).unwrap();
    let idle = |_: usize, _: &[u8], outstanding: u32| outstanding == 0;
    assert_eq!(store.delete_if(table, &[1, 2], idle).unwrap(), 1);
    assert_eq!(store.clock_of(table, 2).unwrap(), Some(1), "what was kept is as it was");
}

/// The sum of all additions must equal the sum of the deleted and the remaining values. Otherwise
/// an update between the condition's answer and the deletion was lost.
#[test]
fn no_update_falls_between_the_look_and_the_deletion() {
    struct Number(u64);
    impl Operation for Number {
        const ACCESS: Access = Access::Peek;
        fn read(&mut self, _: usize, value: &[u8]) {
            self.0 = u64::from_le_bytes(value[..8].try_into().unwrap());
        }
    }
    let (_dir, store, table) = open(DeviceChoice::Auto);
    let (keys, filler): (Vec<u64>, Vec<u64>) = ((0..64).collect(), (1000..3000).collect());
    let (rounds, done) = (1500, AtomicBool::new(false));
    let taken: u64 = std::thread::scope(|scope| {
        let adder = scope.spawn(|| {
            for round in 0..rounds {
                store.execute(table, &keys, Clock::Keep, &mut Add { by: 1, insert: true }).unwrap();
                if round % 100 == 99 {
                    // Puts other rows, so that rows go to disk.
                    put(&store, table, &filler, round, VALUE_BYTES);
                }
            }
            done.store(true, Ordering::Release);
        });
        let remover = scope.spawn(|| {
            let mut taken = 0;
            while !done.load(Ordering::Acquire) {
                for key in &keys {
                    let mut seen = 0;
                    let deleted = store.delete_if(table, &[*key], |_, value, _| {
                        seen = u64::from_le_bytes(value[..8].try_into().unwrap());
                        seen % 3 == 0
                    });
                    taken += deleted.unwrap() * seen;
                }
            }
            taken
        });
        adder.join().unwrap();
        remover.join().unwrap()
    });
    let left: u64 = keys
        .iter()
        .map(|key| {
            let mut number = Number(0);
            store.execute(table, &[*key], Clock::Keep, &mut number).unwrap();
            number.0
        })
        .sum();
    assert!(taken > 0, "the deletions met rows");
    assert_eq!(taken + left, rounds * keys.len() as u64);
}
