//! Tests that a batch with hints does what a batch without hints does, whatever has happened to its
//! rows since the hints were noted. The random model (`model`) tests hints of any age as well.

#![expect(clippy::unwrap_used, reason = "a test")]

use embank_kv::{Access, Clock, Hints, Operation, RowHint, RowHints, Store, TableId};

use crate::common::{acquire, options, peek, put, value};

const VALUE_BYTES: usize = 64;
/// Number of rows, more than a batch handles in one chunk.
const ROWS: u64 = 3000;

/// Gets rows and records a hint of where each row lies.
pub(crate) struct NoteHints(pub(crate) RowHints);

impl Operation for NoteHints {
    const ACCESS: Access = Access::Get;
    fn settled(&mut self, i: usize, hint: RowHint) {
        self.0.note(i, hint);
    }
}

/// Adds 1 to the first byte of each row. Finds the rows by hints.
struct AddOne<'a> {
    hints: Hints<'a>,
    /// Number of calls of `settled` for each row of the batch.
    settled: Vec<u32>,
}

impl Operation for AddOne<'_> {
    const ACCESS: Access = Access::Update;
    fn update(&mut self, _: usize, value: &mut [u8]) {
        value[0] = value[0].wrapping_add(1);
    }
    fn settled(&mut self, i: usize, _: RowHint) {
        self.settled[i] += 1;
    }
    fn hints(&self) -> Option<Hints<'_>> {
        Some(self.hints)
    }
}

/// Reads rows, which it finds by hints. A row stays `None` if the store does not read it.
pub(crate) struct PeekBy<'a> {
    pub(crate) hints: Hints<'a>,
    pub(crate) values: Vec<Option<Vec<u8>>>,
}

impl Operation for PeekBy<'_> {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, i: usize, value: &[u8]) {
        self.values[i] = Some(value.to_vec());
    }
    fn hints(&self) -> Option<Hints<'_>> {
        Some(self.hints)
    }
}

/// Changes only the clocks of rows. Finds the rows by hints.
struct Touch<'a>(Hints<'a>);

impl Operation for Touch<'_> {
    const ACCESS: Access = Access::Touch;
    fn hints(&self) -> Option<Hints<'_>> {
        Some(self.0)
    }
}

/// A store with `ROWS` rows of version 0, and the hints of all rows.
struct Test {
    store: Store,
    table: TableId,
    keys: Vec<u64>,
    values: Vec<Option<Vec<u8>>>,
    hints: RowHints,
    _dir: tempfile::TempDir,
}

impl Test {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &options(64 << 20)).unwrap();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        let keys: Vec<u64> = (0..ROWS).collect();
        put(&store, table, &keys, 0, VALUE_BYTES);
        let mut get = NoteHints(RowHints::none_of(keys.len()));
        store.execute(table, &keys, Clock::Keep, &mut get).unwrap();
        let values = keys.iter().map(|&key| Some(value(key, 0, VALUE_BYTES))).collect();
        Self { store, table, keys, values, hints: get.0, _dir: dir }
    }

    /// Reads all rows with `hints`, and checks them.
    fn peek_by(&self, hints: Hints<'_>) {
        let mut peek = PeekBy { hints, values: vec![None; self.keys.len()] };
        let outcome = self.store.execute(self.table, &self.keys, Clock::Keep, &mut peek).unwrap();
        assert_eq!(peek.values, self.values);
        assert_eq!(outcome.missing.len(), self.values.iter().filter(|row| row.is_none()).count());
    }

    /// Reads all rows with `hints`, adds 1 to them with `hints`, and checks all rows.
    fn add_by(&mut self, hints: Hints<'_>) {
        self.peek_by(hints);
        let mut add = AddOne { hints, settled: vec![0; self.keys.len()] };
        let outcome = self.store.execute(self.table, &self.keys, Clock::Keep, &mut add).unwrap();
        for (i, row) in self.values.iter_mut().enumerate() {
            assert_eq!(outcome.missing.contains(&(i as u32)), row.is_none(), "place {i}");
            assert_eq!(add.settled[i], u32::from(row.is_some()), "place {i}");
            if let Some(row) = row {
                row[0] = row[0].wrapping_add(1);
            }
        }
        assert_eq!(peek(&self.store, self.table, &self.keys).unwrap(), self.values);
        assert_eq!(self.store.stats().live_rows, self.values.iter().flatten().count() as u64);
        self.peek_by(hints);
    }

    fn add(&mut self) {
        let hints = self.hints.clone();
        self.add_by(hints.all());
    }
}

#[test]
fn an_update_by_hints_changes_the_rows() {
    let mut test = Test::new();
    test.add();
    test.add();
}

/// A deletion makes the record of a mutable row a tombstone where it lies, and a put fills that
/// record again. Batches with old hints must see the deletion and the new row.
#[test]
fn a_deleted_row_is_missing_and_comes_back_with_its_next_put() {
    let mut test = Test::new();
    let gone: Vec<u64> = (5..ROWS).step_by(7).collect();
    test.store.delete(test.table, &gone).unwrap();
    gone.iter().for_each(|&key| test.values[key as usize] = None);
    test.add();
    put(&test.store, test.table, &gone, 1, VALUE_BYTES);
    gone.iter().for_each(|&key| test.values[key as usize] = Some(value(key, 1, VALUE_BYTES)));
    test.add();
}

/// A checkpoint makes the whole log read-only, and the first update then copies the rows to the
/// tail. After that the hints lead to old records. A change of an old record would be lost with the
/// reopening.
#[test]
fn old_hints_find_no_row_that_has_moved() {
    let mut test = Test::new();
    test.store.checkpoint(b"").unwrap();
    test.add();
    test.add();
    test.store.checkpoint(b"").unwrap();
    test.add();
    test.store.checkpoint(b"").unwrap();
    let Test { store, table, keys, values, _dir: dir, .. } = test;
    drop(store);
    let store = Store::open(dir.path(), &options(64 << 20)).unwrap();
    assert_eq!(peek(&store, table, &keys).unwrap(), values);
}

/// Every second key has a hint of another row. Each key's own row must still change.
#[test]
fn a_hint_of_another_row_is_out_of_date() {
    let mut test = Test::new();
    let mut mixed = RowHints::none_of(test.keys.len());
    for i in 0..test.keys.len() {
        mixed.note(i, test.hints.get(if i % 2 == 0 { i } else { i / 2 }).unwrap());
    }
    test.add_by(mixed.all());
}

/// Two tables have rows with equal keys. The batch works on the second table with hints of the
/// first table's rows.
#[test]
fn a_hint_of_another_table_is_out_of_date() {
    let mut test = Test::new();
    let hints = test.hints.clone();
    let other = test.store.create_table("other", VALUE_BYTES as u32, b"").unwrap();
    put(&test.store, other, &test.keys, 0, VALUE_BYTES);
    let first = std::mem::replace(&mut test.table, other);
    let mut add = AddOne { hints: hints.all(), settled: vec![0; test.keys.len()] };
    test.store.execute(other, &test.keys, Clock::Keep, &mut add).unwrap();
    assert!(add.settled.iter().all(|&times| times == 1));
    assert_eq!(peek(&test.store, first, &test.keys).unwrap(), test.values);
    for row in test.values.iter_mut().flatten() {
        row[0] = row[0].wrapping_add(1);
    }
    assert_eq!(peek(&test.store, other, &test.keys).unwrap(), test.values);
}

/// Updates a store with hints of another store: first with hints of other keys, then with hints of
/// the same keys. The hints must not be used, and the other store must not change.
#[test]
fn hints_of_another_store_are_not_used() {
    let mut test = Test::new();
    let other = Test::new();
    let reversed: Vec<u64> = other.keys.iter().rev().copied().collect();
    let mut get = NoteHints(RowHints::none_of(reversed.len()));
    other.store.execute(other.table, &reversed, Clock::Keep, &mut get).unwrap();
    test.add_by(get.0.all());
    test.add_by(other.hints.all());
    assert_eq!(peek(&other.store, other.table, &other.keys).unwrap(), other.values);
}

/// A batch does not use hints whose number differs from the number of its keys.
#[test]
fn hints_of_another_batch_are_not_used() {
    let mut test = Test::new();
    let hints = test.hints.clone();
    test.add_by(hints.all().part(0..10));
    test.add_by(RowHints::none_of(ROWS as usize + 1).all());
    test.add_by(RowHints::default().all());
}

#[test]
fn a_release_by_hints_moves_each_clock_once() {
    let test = Test::new();
    acquire(&test.store, test.table, &test.keys, None).unwrap();
    acquire(&test.store, test.table, &test.keys, None).unwrap();
    for expected in [1, 0] {
        let mut touch = Touch(test.hints.all());
        test.store.execute(test.table, &test.keys, Clock::Release, &mut touch).unwrap();
        for &key in &test.keys {
            assert_eq!(test.store.clock_of(test.table, key).unwrap(), Some(expected), "key {key}");
        }
    }
    assert_eq!(peek(&test.store, test.table, &test.keys).unwrap(), test.values);
}

/// Two parts of a batch record their hints separately. The hints of the parts are then joined to
/// the hints of the batch.
#[test]
fn hints_of_parts_come_together() {
    let mut test = Test::new();
    let half = test.keys.len() / 2;
    let mut whole = RowHints::none_of(test.keys.len());
    for start in [0, half] {
        let keys = &test.keys[start..start + half];
        let mut get = NoteHints(RowHints::none_of(half));
        test.store.execute(test.table, keys, Clock::Keep, &mut get).unwrap();
        whole.take_in(start, &get.0);
    }
    for i in 0..test.keys.len() {
        assert_eq!(whole.get(i), test.hints.get(i), "place {i}");
    }
    whole.remove(3);
    assert_eq!((whole.get(3), whole.get(4)), (None, test.hints.get(4)));
    test.add_by(whole.all());
    whole.clear();
    assert_eq!(whole.get(4), None);
    test.add_by(whole.all());
}

/// Picks hints for a second batch, whose keys are some keys of the first batch in another order,
/// one of them twice.
#[test]
fn hints_of_some_keys_are_picked() {
    let test = Test::new();
    let places = [2999, 7, 7, 0];
    let keys = places.map(u64::from);
    let mut picked = RowHints::default();
    picked.pick(&test.hints, &places);
    for (i, &place) in places.iter().enumerate() {
        assert_eq!(picked.get(i), test.hints.get(place as usize));
    }
    let mut peek = PeekBy { hints: picked.all(), values: vec![None; keys.len()] };
    test.store.execute(test.table, &keys, Clock::Keep, &mut peek).unwrap();
    let expected = keys.map(|key| test.values[key as usize].clone());
    assert_eq!(peek.values, expected);
    assert_eq!(test.store.stats().hits_mutable, ROWS + 4);
}

#[test]
#[should_panic(expected = "all hints of a batch are of one store")]
fn hints_of_two_stores_do_not_mix() {
    let (test, other) = (Test::new(), Test::new());
    let mut mixed = test.hints.clone();
    mixed.note(0, other.hints.get(0).unwrap());
}
