//! Tests callbacks that panic. The store must stay usable, and its counts must match its rows.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{options, peek, peek_each, push_to_disk, put, value};
use embank_kv::{
    Access, Clock, DeviceChoice, Error, Operation, RowHint, Store, StoreOptions, TableId, Width,
};

const VALUE_BYTES: usize = 64;
const ROWS: u64 = 20_000;

/// Panics at every 64th row of a batch.
struct Panics;

impl Operation for Panics {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, i: usize, _: &[u8]) {
        assert!(i % 64 != 63, "a callback's panic, which this test wants");
    }
}

/// The callback panics while the device still reads many rows into the store's buffer. The store
/// must stay usable and return right rows.
#[test]
fn a_panic_amid_reads_from_disk_leaves_the_device_whole() {
    for choice in [DeviceChoice::IoUring, DeviceChoice::Threads] {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { device: choice, ..options(1 << 20) };
        let Ok(store) = Store::open(dir.path(), &options) else {
            eprintln!("left out: {choice:?} is refused here");
            continue;
        };
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        put(&store, table, &(0..ROWS).collect::<Vec<_>>(), 0, VALUE_BYTES);
        store.checkpoint(b"").unwrap();
        for round in 0..10 {
            let keys: Vec<u64> = (0..700).map(|i| (i * 43 + round * 700) % (ROWS / 2)).collect();
            let run = || store.execute(table, &keys, Clock::Keep, &mut Panics);
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            for (&key, row) in keys.iter().zip(peek(&store, table, &keys).unwrap()) {
                assert_eq!(row.unwrap(), value(key, 0, VALUE_BYTES), "{choice:?} key {key}");
            }
        }
        put(&store, table, &(0..ROWS).collect::<Vec<_>>(), 1, VALUE_BYTES);
        assert!(store.checkpoint(b"").is_ok());
    }
}

/// Takes a checkpoint inside a callback, which the store must refuse.
struct Checkpoints<'a>(&'a Store);

impl Operation for Checkpoints<'_> {
    const ACCESS: Access = Access::Get;
    fn read(&mut self, _: usize, _: &[u8]) {
        let error = self.0.checkpoint(b"").expect_err("a checkpoint inside a callback");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    }
}

/// Regression test: a checkpoint inside a callback waited for ever for its own batch.
#[test]
fn a_checkpoint_in_a_callback_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(1 << 20)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let keys = [1, 2];
    put(&store, table, &keys, 0, VALUE_BYTES);
    store.execute(table, &keys, Clock::Keep, &mut Checkpoints(&store)).unwrap();
    assert_eq!(store.checkpoint(b"").unwrap(), 1);
}

/// Inserts rows and panics at the batch's last row. `VARIABLE` selects the width of the table.
struct PanicsAtTheEnd<const VARIABLE: bool>(usize);

impl<const VARIABLE: bool> Operation for PanicsAtTheEnd<VARIABLE> {
    const ACCESS: Access = Access::Put;
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
    fn value_bytes(&mut self, _: usize, _: Option<&[u8]>) -> usize {
        VALUE_BYTES
    }
    fn update(&mut self, i: usize, value: &mut [u8]) {
        self.insert(i, value);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        assert!(i + 1 < self.0, "a callback's panic, which this test wants");
        value.fill(i as u8);
        true
    }
}

/// Regression test: if a batch panicked, the store did not count the rows that the batch had
/// inserted. Their deletion took the count below zero, and all later checkpoints failed.
#[test]
fn rows_that_were_inserted_before_a_panic_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(1 << 20)).unwrap();
    let fixed = store.create_table("fixed", VALUE_BYTES as u32, b"").unwrap();
    let variable = store.create_variable_table("variable", 2 * VALUE_BYTES as u32, b"").unwrap();
    for count in [2_u64, 10, 300, 3_000] {
        let keys: Vec<u64> = (0..count).collect();
        for table in [fixed, variable] {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let rows = keys.len();
                if table == fixed {
                    store.execute(table, &keys, Clock::Keep, &mut PanicsAtTheEnd::<false>(rows))
                } else {
                    store.execute(table, &keys, Clock::Keep, &mut PanicsAtTheEnd::<true>(rows))
                }
            }));
            assert!(panicked.is_err());
        }
        // Rows that still waited for a read when the batch panicked were not inserted.
        let there = peek(&store, fixed, &keys).unwrap().into_iter().flatten().count()
            + peek_each(&store, variable, &keys).unwrap().into_iter().flatten().count();
        assert!(there > 0);
        assert_eq!(store.stats().live_rows, there as u64);
        let deleted = [fixed, variable].map(|table| store.delete(table, &keys).unwrap());
        assert_eq!(deleted[0] + deleted[1], there as u64);
        assert_eq!((store.stats().live_rows, store.stats().live_bytes), (0, 0));
        store.checkpoint(b"").unwrap();
    }
}

/// Counts the calls of `seen` and `settled` for each row of a batch.
struct Settles<const ACCESS: u8> {
    settled: Vec<u32>,
    seen: Vec<u32>,
}

impl<const ACCESS: u8> Operation for Settles<ACCESS> {
    const ACCESS: Access = match ACCESS {
        0 => Access::Peek,
        1 => Access::Get,
        2 => Access::Update,
        _ => Access::Put,
    };
    fn insert(&mut self, i: usize, _: &mut [u8]) -> bool {
        // Does not insert every third row, so that it stays missing.
        !i.is_multiple_of(3)
    }
    fn seen(&mut self, i: usize, _: u32) {
        self.seen[i] += 1;
    }
    fn settled(&mut self, i: usize, _: RowHint) {
        self.settled[i] += 1;
    }
}

fn settles<const ACCESS: u8>(store: &Store, table: TableId, keys: &[u64], there: &[bool]) {
    for clock in [Clock::Keep, Clock::Acquire { bound: Some(0) }, Clock::Release] {
        for keys_each in [1, keys.len()] {
            for (group, there) in keys.chunks(keys_each).zip(there.chunks(keys_each)) {
                if clock == (Clock::Acquire { bound: Some(0) }) {
                    // Ends the leases of earlier rounds, so that the bound 0 admits the rows.
                    store.execute(table, group, Clock::Release, &mut Reads).unwrap();
                }
                let none = || vec![0; group.len()];
                let mut work = Settles::<ACCESS> { settled: none(), seen: none() };
                let outcome = store.execute(table, group, clock, &mut work).unwrap();
                for i in 0..group.len() {
                    let missing = outcome.missing.contains(&(i as u32));
                    let done = ACCESS != 0 && !missing;
                    let what =
                        format!("access {ACCESS}, {clock:?}, {keys_each} keys, key {}", group[i]);
                    assert_eq!(work.settled[i], u32::from(done), "settled: {what}");
                    let seen = ACCESS < 2 && !missing && there[i];
                    assert_eq!(work.seen[i], u32::from(seen), "seen: {what}");
                }
            }
        }
    }
}

/// Gets rows and inserts no missing row.
struct Reads;

impl Operation for Reads {
    const ACCESS: Access = Access::Get;
}

/// Regression test: a batch with one get did not call `settled` if the row was in mutable memory
/// and its clock stayed the same.
#[test]
fn what_was_done_to_a_row_is_told_once_wherever_it_lies() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(512 << 10)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..48).collect();
    for region in ["mutable", "read-only", "disk"] {
        let prepare = || {
            store.delete(table, &keys).unwrap();
            put(&store, table, &keys[..32], 0, VALUE_BYTES);
            match region {
                "mutable" => {}
                "read-only" => drop(store.checkpoint(b"").unwrap()),
                _ => push_to_disk(&store, table, 31),
            }
        };
        println!("{region}");
        let there: Vec<bool> = keys.iter().map(|&key| key < 32).collect();
        prepare();
        settles::<0>(&store, table, &keys, &there);
        prepare();
        settles::<1>(&store, table, &keys[..32], &there[..32]);
        prepare();
        settles::<2>(&store, table, &keys, &there);
        prepare();
        settles::<3>(&store, table, &keys, &there);
    }
}
