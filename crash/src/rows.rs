//! Puts and reads batches of rows of fixed or variable length. Also holds the model of a store's
//! expected content.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use embank_kv::{Access, Clock, Operation, Store, TableId, TableInfo, Width};

struct PutFixed<'a>(&'a [Vec<u8>]);

impl Operation for PutFixed<'_> {
    const ACCESS: Access = Access::Put;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&self.0[i]);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

struct PutVariable<'a>(&'a [Vec<u8>]);

impl Operation for PutVariable<'_> {
    const ACCESS: Access = Access::Put;
    const WIDTH: Width = Width::Variable;
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

/// Reads values. If `GET`, the read is a get, as in training; otherwise it is a peek.
struct Fetch<'a, const GET: bool, const VARIABLE: bool>(&'a mut [Option<Vec<u8>>]);

impl<const GET: bool, const VARIABLE: bool> Operation for Fetch<'_, GET, VARIABLE> {
    const ACCESS: Access = if GET { Access::Get } else { Access::Peek };
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0[i] = Some(value.to_vec());
    }
}

fn fetch<const GET: bool>(
    store: &Store,
    table: &TableInfo,
    keys: &[u64],
) -> embank_kv::Result<Vec<Option<Vec<u8>>>> {
    let mut values = vec![None; keys.len()];
    let outcome = match table.width {
        Width::Fixed => {
            store.execute(table.id, keys, Clock::Keep, &mut Fetch::<GET, false>(&mut values))?
        }
        Width::Variable => {
            store.execute(table.id, keys, Clock::Keep, &mut Fetch::<GET, true>(&mut values))?
        }
    };
    for &i in &outcome.missing {
        values[i as usize] = None;
    }
    Ok(values)
}

/// Reads rows by a get, as training does. A get moves each row to the mutable part of the log. A
/// missing row is `None`.
///
/// # Errors
/// Returns any error of the store.
pub fn get(
    store: &Store,
    table: &TableInfo,
    keys: &[u64],
) -> embank_kv::Result<Vec<Option<Vec<u8>>>> {
    fetch::<true>(store, table, keys)
}

/// Reads rows by a peek, which leaves each row at its place in the log. A missing row is `None`.
///
/// # Errors
/// Returns any error of the store.
pub fn peek(
    store: &Store,
    table: &TableInfo,
    keys: &[u64],
) -> embank_kv::Result<Vec<Option<Vec<u8>>>> {
    fetch::<false>(store, table, keys)
}

/// Puts rows.
///
/// # Errors
/// Returns any error of the store.
pub fn put(
    store: &Store,
    table: &TableInfo,
    keys: &[u64],
    values: &[Vec<u8>],
) -> embank_kv::Result<()> {
    match table.width {
        Width::Fixed => store.execute(table.id, keys, Clock::Keep, &mut PutFixed(values))?,
        Width::Variable => store.execute(table.id, keys, Clock::Keep, &mut PutVariable(values))?,
    };
    Ok(())
}

/// The expected content of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTable {
    /// The length of the values in bytes. If lengths vary, the longest length.
    pub value_bytes: u32,
    /// True if the lengths of values vary.
    pub variable: bool,
    /// The expected values by key.
    pub rows: BTreeMap<u64, Vec<u8>>,
}

/// The expected content of a store: the tables by name.
pub type Model = BTreeMap<String, ModelTable>;

/// Makes a table in the store and in the model.
///
/// # Errors
/// Returns any error of the store.
pub fn create(
    store: &Store,
    model: &mut Model,
    name: &str,
    value_bytes: u32,
    variable: bool,
) -> embank_kv::Result<TableId> {
    let id = if variable {
        store.create_variable_table(name, value_bytes, name.as_bytes())?
    } else {
        store.create_table(name, value_bytes, name.as_bytes())?
    };
    model.insert(name.to_owned(), ModelTable { value_bytes, variable, rows: BTreeMap::new() });
    Ok(id)
}

/// Returns the store's table with a name.
///
/// # Errors
/// Returns an error if the store has no table with this name.
pub fn table(store: &Store, name: &str) -> Result<TableInfo> {
    let mut tables = store.tables().into_iter();
    tables.find(|table| table.name == name).with_context(|| format!("table {name} is missing"))
}

/// One in this number of the keys without a row is checked. In a bank in two tiers, each reads a
/// block and checks all of it. The tests put and delete ranges of keys, so a wrong range shows.
const MISSING_CHECKED: usize = 4;

/// Compares every table and every row with the model, and some of the keys without a row. The
/// caller must have used only keys below `keys_end`.
///
/// # Errors
/// Returns the first difference, or any error of the store.
pub fn check(store: &Store, model: &Model, keys_end: u64) -> Result<()> {
    let mut tables = store.tables();
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<_> = tables.iter().map(|table| &table.name).collect();
    ensure!(names.iter().copied().eq(model.keys()), "tables {names:?}, not {:?}", model.keys());
    for (table, expected) in tables.iter().zip(model.values()) {
        let (mut keys, missing): (Vec<u64>, Vec<u64>) =
            (0..keys_end).partition(|key| expected.rows.contains_key(key));
        keys.extend(missing.iter().skip(keys.len() % MISSING_CHECKED).step_by(MISSING_CHECKED));
        keys.extend(missing.last());
        let variable = table.width == Width::Variable;
        ensure!(
            (table.value_bytes, variable) == (expected.value_bytes, expected.variable)
                && table.descriptor == table.name.as_bytes(),
            "table {} came back with other settings: {table:?}",
            table.name
        );
        let rows = peek(store, table, &keys).with_context(|| format!("table {}", table.name))?;
        for (key, row) in keys.iter().zip(&rows) {
            let expected = expected.rows.get(key);
            ensure!(
                row.as_ref() == expected,
                "table {}, key {key}: {}, not {}",
                table.name,
                shown(row.as_ref()),
                shown(expected)
            );
        }
        let (count, counted) = (expected.rows.len() as u64, store.rows(table.id)?);
        ensure!(counted == count, "table {} counts {counted} rows, not {count}", table.name);
    }
    Ok(())
}

/// Compares a scan of each table with the model. A scan shows the newest checkpoint, so no row may
/// have changed after that checkpoint.
///
/// # Errors
/// Fails with the first difference. Returns the store's errors.
pub fn check_by_scan(store: &Store, model: &Model) -> Result<()> {
    for (name, expected) in model {
        let mut found = BTreeMap::new();
        let mut scan = store.scan(table(store, name)?.id)?;
        while let Some(row) = scan.next_row()? {
            let twice = found.insert(row.key, row.value.to_vec());
            ensure!(twice.is_none(), "a scan of {name} yields key {} twice", row.key);
        }
        ensure!(
            found == expected.rows,
            "a scan of {name} yields {} rows that are not the {} expected ones",
            found.len(),
            expected.rows.len()
        );
    }
    Ok(())
}

fn shown(row: Option<&Vec<u8>>) -> String {
    row.map_or("missing".into(), |row| {
        format!("{} bytes {:02x?}", row.len(), &row[..row.len().min(8)])
    })
}
