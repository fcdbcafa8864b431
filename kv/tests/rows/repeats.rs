//! Tests batches in which keys appear several times.
//!
//! A batch probes the index for the next group of keys before it works on the current group. If a
//! key is in both groups, the entry that the probe found may be out of date: the work on the
//! current group may insert the row, or write a new record for it.

#![expect(clippy::unwrap_used, reason = "a test")]

use embank_kv::{Access, Clock, Operation, Store, TableId};

use crate::common::options;

const VALUE_BYTES: u32 = 200;
const KEYS: u64 = 20_000;

/// Adds 1 to the number at the beginning of a value. A missing row begins with 1.
struct AddOne;

impl Operation for AddOne {
    const ACCESS: Access = Access::Update;
    fn update(&mut self, _: usize, value: &mut [u8]) {
        let count = u64::from_le_bytes(value[..8].try_into().unwrap()) + 1;
        value[..8].copy_from_slice(&count.to_le_bytes());
    }
    fn insert(&mut self, _: usize, value: &mut [u8]) -> bool {
        value.fill(7);
        value[..8].copy_from_slice(&1_u64.to_le_bytes());
        true
    }
}

/// Reads the numbers. A missing row has 0.
struct Numbers(Vec<u64>);

impl Operation for Numbers {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, i: usize, value: &[u8]) {
        assert!(value[8..].iter().all(|&byte| byte == 7), "the rest of the value is as inserted");
        self.0[i] = u64::from_le_bytes(value[..8].try_into().unwrap());
    }
}

fn check(store: &Store, table: TableId, counts: &[u64]) {
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut numbers = Numbers(vec![0; keys.len()]);
    store.execute(table, &keys, Clock::Keep, &mut numbers).unwrap();
    assert_eq!(numbers.0, counts);
}

/// Shows that each occurrence of a key counts, whether its row is missing, in mutable memory, in
/// read-only memory or on disk. This also holds if the batch begins new pages of the log between
/// two occurrences.
#[test]
fn every_occurrence_of_a_key_takes_effect() {
    let dir = tempfile::tempdir().unwrap();
    // The rows take 4.6 MB, so a part of them is on disk.
    let store = Store::open(dir.path(), &options(2 << 20)).unwrap();
    let table = store.create_table("numbers", VALUE_BYTES, b"").unwrap();
    let mut counts = vec![0; KEYS as usize];
    let mut state = 3_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..120 {
        // A small span repeats each key in successive groups. A large span inserts rows and begins
        // new pages.
        let span = [20, 40, 500, KEYS][round % 4];
        let first = random(KEYS - span + 1);
        let keys: Vec<u64> = (0..2500).map(|_| first + random(span)).collect();
        store.execute(table, &keys, Clock::Keep, &mut AddOne).unwrap();
        for &key in &keys {
            counts[key as usize] += 1;
        }
        if round % 20 == 19 {
            check(&store, table, &counts);
        }
    }
    let stats = store.stats();
    assert!(stats.hits_mutable > 0 && stats.hits_read_only > 0 && stats.hits_disk > 0, "{stats:?}");
}
