//! Operations on rows of tables of fixed and of variable width. A value depends only on key,
//! version and length.

use embank_kv::{Access, Clock, Operation, Result, Store, TableId, Width};

/// Returns a value of `bytes` bytes. Its bytes depend only on key and version.
pub fn value(key: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut state = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..bytes).map(next).collect()
}

/// Puts `values[i]` into row `i` of the batch.
struct Put<'a, const VARIABLE: bool>(&'a [Vec<u8>]);

impl<const VARIABLE: bool> Operation for Put<'_, VARIABLE> {
    const ACCESS: Access = Access::Put;
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
    fn value_bytes(&mut self, i: usize, _old: Option<&[u8]>) -> usize {
        self.0[i].len()
    }
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&self.0[i]);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Adds 3 to every byte of a value. Does not insert missing rows.
struct Add<const VARIABLE: bool>;

impl<const VARIABLE: bool> Operation for Add<VARIABLE> {
    const ACCESS: Access = Access::Update;
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
    fn value_bytes(&mut self, _i: usize, old: Option<&[u8]>) -> usize {
        old.map_or(0, <[u8]>::len)
    }
    fn update(&mut self, _i: usize, value: &mut [u8]) {
        value.iter_mut().for_each(|byte| *byte = byte.wrapping_add(3));
    }
    fn insert(&mut self, _i: usize, _value: &mut [u8]) -> bool {
        false
    }
}

/// Reads rows. If `GET` is true, reads them as a get for training, else as a peek.
struct Read<'a, const VARIABLE: bool, const GET: bool>(&'a mut [Option<Vec<u8>>]);

impl<const VARIABLE: bool, const GET: bool> Operation for Read<'_, VARIABLE, GET> {
    const ACCESS: Access = if GET { Access::Get } else { Access::Peek };
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0[i] = Some(value.to_vec());
    }
}

/// Puts `values[i]` into the row of `keys[i]`. Inserts missing rows.
pub fn put(
    store: &Store,
    (table, width): (TableId, Width),
    keys: &[u64],
    values: &[Vec<u8>],
) -> Result<()> {
    match width {
        Width::Fixed => store.execute(table, keys, Clock::Keep, &mut Put::<false>(values)),
        Width::Variable => store.execute(table, keys, Clock::Keep, &mut Put::<true>(values)),
    }
    .map(|_| ())
}

/// Adds 3 to every byte of the rows that exist.
pub fn add(store: &Store, (table, width): (TableId, Width), keys: &[u64]) -> Result<()> {
    match width {
        Width::Fixed => store.execute(table, keys, Clock::Keep, &mut Add::<false>),
        Width::Variable => store.execute(table, keys, Clock::Keep, &mut Add::<true>),
    }
    .map(|_| ())
}

/// Reads rows without moving them in the log.
pub fn peek(
    store: &Store,
    (table, width): (TableId, Width),
    keys: &[u64],
) -> Result<Vec<Option<Vec<u8>>>> {
    let mut found = vec![None; keys.len()];
    match width {
        Width::Fixed => {
            store.execute(table, keys, Clock::Keep, &mut Read::<false, false>(&mut found))
        }
        Width::Variable => {
            store.execute(table, keys, Clock::Keep, &mut Read::<true, false>(&mut found))
        }
    }?;
    Ok(found)
}

/// Reads rows for training, and changes their clocks as `clock` says.
pub fn get(
    store: &Store,
    (table, width): (TableId, Width),
    keys: &[u64],
    clock: Clock,
) -> Result<Vec<Option<Vec<u8>>>> {
    let mut found = vec![None; keys.len()];
    let outcome = match width {
        Width::Fixed => store.execute(table, keys, clock, &mut Read::<false, true>(&mut found)),
        Width::Variable => store.execute(table, keys, clock, &mut Read::<true, true>(&mut found)),
    }?;
    assert!(outcome.blocked.is_empty(), "no other get holds a row");
    Ok(found)
}
