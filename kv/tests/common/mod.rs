//! Operations that the behaviour tests share.
#![expect(clippy::unwrap_used, reason = "a test")]
#![allow(dead_code, reason = "each test binary uses some of these")]

pub(crate) mod banks;
pub(crate) mod before_sync;
pub(crate) mod compacting;
pub(crate) mod gate;
pub(crate) mod reading;
pub(crate) mod threads;

use embank_kv::{
    Access, Clock, CompactionOptions, Operation, Outcome, Result, Store, StoreOptions, TableId,
    Width,
};

/// Puts `values[i]` into row `i` of the batch. Inserts missing rows.
pub(crate) struct PutAll<'a>(pub(crate) &'a [Vec<u8>]);

impl Operation for PutAll<'_> {
    const ACCESS: Access = Access::Put;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&self.0[i]);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        assert!(value.iter().all(|&byte| byte == 0), "a new value is zeroed");
        self.update(i, value);
        true
    }
}

/// Puts rows as `PutAll` does, blindly.
pub(crate) struct PutBlind<'a>(pub(crate) &'a [Vec<u8>]);

impl Operation for PutBlind<'_> {
    const ACCESS: Access = Access::Put;
    const BLIND: bool = true;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        PutAll(self.0).update(i, value);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        PutAll(self.0).insert(i, value)
    }
}

/// Reads row `i` of the batch into `values[i]`. Leaves `values[i]` unchanged if the row is missing.
pub(crate) struct ReadAll<'a>(pub(crate) &'a mut [Vec<u8>]);

impl Operation for ReadAll<'_> {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0[i] = value.to_vec();
    }
}

/// Reads rows into `values` as `ReadAll` does. As a get for training, it also moves the rows to
/// mutable memory, where rows change in place.
pub(crate) struct GetAll<'a>(pub(crate) &'a mut [Vec<u8>]);

impl Operation for GetAll<'_> {
    const ACCESS: Access = Access::Get;
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0[i] = value.to_vec();
    }
}

/// Adds `by` to the first eight bytes of a value, taken as a number. If `insert` is true, a missing
/// row gets the number `by`.
pub(crate) struct Add {
    pub(crate) by: u64,
    pub(crate) insert: bool,
}

impl Operation for Add {
    const ACCESS: Access = Access::Update;
    fn update(&mut self, _i: usize, value: &mut [u8]) {
        let now = u64::from_le_bytes(value[..8].try_into().unwrap());
        value[..8].copy_from_slice(&now.wrapping_add(self.by).to_le_bytes());
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        self.insert
    }
}

/// Puts `values[i]` into row `i` of the batch, in a table of variable width.
pub(crate) struct PutEach<'a>(pub(crate) &'a [Vec<u8>]);

impl Operation for PutEach<'_> {
    const ACCESS: Access = Access::Put;
    const WIDTH: Width = Width::Variable;
    fn value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> usize {
        assert_eq!(old, None, "a put does not get the old value");
        self.0[i].len()
    }
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&self.0[i]);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        assert!(value.iter().all(|&byte| byte == 0), "a new value is zeroed");
        self.update(i, value);
        true
    }
}

/// Reads rows as `ReadAll` does, from a table of variable width.
pub(crate) struct ReadEach<'a>(pub(crate) &'a mut [Vec<u8>]);

impl Operation for ReadEach<'_> {
    const ACCESS: Access = Access::Peek;
    const WIDTH: Width = Width::Variable;
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0[i] = value.to_vec();
    }
    fn destination(&mut self, _i: usize) -> Option<&mut [u8]> {
        panic!("not asked for a table of variable width")
    }
}

/// Reads rows as `GetAll` does, from a table of variable width.
pub(crate) struct GetEach<'a>(pub(crate) &'a mut [Vec<u8>]);

impl Operation for GetEach<'_> {
    const ACCESS: Access = Access::Get;
    const WIDTH: Width = Width::Variable;
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0[i] = value.to_vec();
    }
}

/// Changes the length and content of each row, depending on its old value: see `turned`. A missing
/// row is inserted with 9 bytes.
pub(crate) struct Turn {
    pub(crate) max: usize,
    pub(crate) insert: bool,
}

/// Returns the value that `Turn` writes in place of an old value.
pub(crate) fn turned(old: Option<&[u8]>, max: usize) -> Vec<u8> {
    let mut value = old.unwrap_or_default().to_vec();
    value.resize(turned_bytes(old, max), 0);
    value.iter_mut().for_each(|byte| *byte = byte.wrapping_add(3));
    value
}

fn turned_bytes(old: Option<&[u8]>, max: usize) -> usize {
    let last = |old: &[u8]| usize::from(old.last().copied().unwrap_or(7));
    old.map_or(9, |old| match last(old) % 3 {
        // Two of the three cases keep about the old length, often with the same padded length. The
        // third case gives any length.
        0 => old.len(),
        1 => (old.len() ^ 3).min(max),
        _ => (old.len() * 5 + last(old)) % (max + 1),
    })
}

impl Operation for Turn {
    const ACCESS: Access = Access::Update;
    const WIDTH: Width = Width::Variable;
    fn value_bytes(&mut self, _i: usize, old: Option<&[u8]>) -> usize {
        turned_bytes(old, self.max)
    }
    fn update(&mut self, _i: usize, value: &mut [u8]) {
        value.iter_mut().for_each(|byte| *byte = byte.wrapping_add(3));
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        self.insert
    }
}

/// Options of a store that compacts in the background, so that compaction runs during most tests.
pub(crate) fn options(budget_bytes: u64) -> StoreOptions {
    let compaction = CompactionOptions { background: true, ..CompactionOptions::default() };
    StoreOptions { memory_budget_bytes: budget_bytes, compaction, ..StoreOptions::default() }
}

/// Returns a value of `bytes` bytes that depends only on key and version.
pub(crate) fn value(key: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut state = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

pub(crate) fn put(
    store: &Store,
    table: TableId,
    keys: &[u64],
    version: u64,
    bytes: usize,
) -> Outcome {
    let values: Vec<_> = keys.iter().map(|&key| value(key, version, bytes)).collect();
    store.execute(table, keys, Clock::Keep, &mut PutAll(&values)).unwrap()
}

/// Gets rows and raises their clocks. Does not insert missing rows.
pub(crate) fn acquire(
    store: &Store,
    table: TableId,
    keys: &[u64],
    bound: Option<u32>,
) -> Result<Outcome> {
    let mut values = vec![Vec::new(); keys.len()];
    store.execute(table, keys, Clock::Acquire { bound }, &mut GetAll(&mut values))
}

/// Lowers the clocks of rows.
pub(crate) fn release(store: &Store, table: TableId, keys: &[u64]) -> Result<Outcome> {
    let mut values = vec![Vec::new(); keys.len()];
    store.execute(table, keys, Clock::Release, &mut GetAll(&mut values))
}

/// True if the row's newest record is on disk. The read cache may have a copy of it: a search that
/// passes the record on its way to another key puts the record into the cache. No other thread may
/// use the store during the call.
pub(crate) fn is_on_disk(store: &Store, table: TableId, key: u64) -> bool {
    let before = store.stats().hits_cache;
    let mut values = [Vec::new()];
    let outcome = store.execute(table, &[key], Clock::Keep, &mut ReadAll(&mut values)).unwrap();
    outcome.disk_reads > 0 || store.stats().hits_cache > before
}

/// Inserts rows into another table until the row of `key` leaves memory.
pub(crate) fn push_to_disk(store: &Store, table: TableId, key: u64) {
    let name = "push rows to disk";
    let other = store.tables().iter().find(|table| table.name == name).map(|table| table.id);
    let other = other.unwrap_or_else(|| store.create_table(name, 1000, b"").unwrap());
    let memory = store.stats().memory_budget_bytes;
    for _ in 0..4 {
        let keys: Vec<u64> = (0..memory / 1032).collect();
        store.delete(other, &keys).unwrap();
        put(store, other, &keys, 0, 1000);
        if is_on_disk(store, table, key) {
            return;
        }
    }
    panic!("4 budgets of newer rows did not push key {key} to disk");
}

/// Random numbers from a seed. A failed test prints the seed; `EMBANK_TEST_SEED` sets it.
#[derive(Debug, Clone)]
pub(crate) struct Random(fastrand::Rng);

impl Random {
    pub(crate) fn new() -> Self {
        use std::hash::{BuildHasher, RandomState};
        let seed = match std::env::var("EMBANK_TEST_SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => RandomState::new().hash_one(0),
        };
        println!("replay with EMBANK_TEST_SEED={seed}");
        Random(fastrand::Rng::with_seed(seed))
    }

    /// Returns a separate stream of random numbers from the same seed, for another thread.
    pub(crate) fn stream(&self, number: u64) -> Self {
        let seed = self.0.get_seed() ^ number.wrapping_mul(0xD1B5_4A32_D192_ED03);
        Random(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a random number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }
}

/// Returns the value of each key's row. `None` for a missing row.
pub(crate) fn peek(store: &Store, table: TableId, keys: &[u64]) -> Result<Vec<Option<Vec<u8>>>> {
    let mut values = vec![Vec::new(); keys.len()];
    let outcome = store.execute(table, keys, Clock::Keep, &mut ReadAll(&mut values))?;
    Ok(rows(values, &outcome))
}

/// Returns the values that an operation read. `None` for a row that `outcome` lists as missing.
pub(crate) fn rows(values: Vec<Vec<u8>>, outcome: &Outcome) -> Vec<Option<Vec<u8>>> {
    let mut rows: Vec<_> = values.into_iter().map(Some).collect();
    for &i in &outcome.missing {
        rows[i as usize] = None;
    }
    rows
}

/// Returns the value of each key's row in a table of variable width. `None` for a missing row.
pub(crate) fn peek_each(
    store: &Store,
    table: TableId,
    keys: &[u64],
) -> Result<Vec<Option<Vec<u8>>>> {
    let mut values = vec![Vec::new(); keys.len()];
    let outcome = store.execute(table, keys, Clock::Keep, &mut ReadEach(&mut values))?;
    Ok(rows(values, &outcome))
}
