//! Tests gets that name a destination for each row's value.

use embank_kv::{Access, Clock, Operation, Store};

use crate::common::options;

/// Gets the beginnings of values, as many bytes as the length of a destination.
struct Beginnings {
    rows: Vec<Vec<u8>>,
    /// Number of values that came by `read`.
    read: usize,
}

impl Operation for Beginnings {
    const ACCESS: Access = Access::Get;
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        Some(&mut self.rows[i])
    }
    fn read(&mut self, i: usize, value: &[u8]) {
        self.read += 1;
        let bytes = self.rows[i].len().min(value.len());
        self.rows[i][..bytes].copy_from_slice(&value[..bytes]);
    }
}

/// Writes `key + j` to byte j of each value.
struct Count<'a>(&'a [u64]);

impl Operation for Count<'_> {
    const ACCESS: Access = Access::Put;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&expected(self.0[i], value.len()));
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

fn expected(key: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|j| (key + j) as u8).collect()
}

/// Shows that a get copies rows in mutable memory straight to their destinations, and gives others
/// to `read`: rows in the read-only region, and rows on disk.
#[test]
fn gets_fill_their_destinations() {
    const VALUE_BYTES: usize = 100;
    for (lengths, clock) in [
        (0..VALUE_BYTES + 9, Clock::Acquire { bound: None }),
        (VALUE_BYTES..VALUE_BYTES + 1, Clock::Keep),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &options(2 << 20)).unwrap();
        let table = store.create_table("t", VALUE_BYTES as u32, b"").unwrap();
        let keys: Vec<u64> = (0..lengths.len() as u64).collect();
        let get = |what, by_read| {
            let rows = lengths.clone().map(|length| vec![0xFF; length]).collect();
            let mut get = Beginnings { rows, read: 0 };
            let outcome = store.execute(table, &keys, clock, &mut get).unwrap();
            assert_eq!((outcome.missing.len(), outcome.blocked.len()), (0, 0));
            assert_eq!(get.read, by_read, "{what}");
            for ((row, length), &key) in get.rows.iter().zip(lengths.clone()).zip(&keys) {
                let bytes = length.min(VALUE_BYTES);
                assert_eq!(row[..bytes], expected(key, bytes), "{what}, {length} bytes");
                assert!(row[bytes..].iter().all(|&byte| byte == 0xFF), "{what}, {length} bytes");
            }
        };
        store.execute(table, &keys, Clock::Keep, &mut Count(&keys)).unwrap();
        get("mutable", 0);
        store.checkpoint(b"").unwrap();
        get("read-only", keys.len());
        get("mutable again", 0);
        // Other rows take four times the budget, so these rows leave memory.
        let others: Vec<u64> = (1 << 20..(1 << 20) + 60_000).collect();
        store.execute(table, &others, Clock::Keep, &mut Count(&others)).unwrap();
        get("on disk", keys.len());
        get("mutable once more", 0);
    }
}
