//! The endless sequence of steps that the writer in [`kills`](crate::kills) runs. The seed and the
//! number of a step decide the step. So the supervisor can compute the content of a checkpoint from
//! the seed and the number of steps in it.

use anyhow::{Context, Result};
use embank_kv::Store;
use fastrand::Rng;

use crate::content::content;
use crate::rows::{self, Model};

/// Keys are below this limit. No step uses the last key, `KEYS_END - 1`.
pub const KEYS_END: u64 = 3000;
/// A step whose number is a multiple of this makes the temporary table if the table is missing, and
/// drops it otherwise.
const TABLE_TURN: u64 = 150;
/// The permanent tables: the name, the length of the values, and whether the length varies.
const TABLES: [(&str, u32, bool); 3] =
    [("rows", 24, false), ("wide", 400, false), ("words", 500, true)];
const PASSING_TABLE: (&str, u32, bool) = ("passing", 64, false);

/// One step of the writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Makes the permanent tables.
    CreateAll,
    /// Makes the temporary table.
    Create,
    /// Drops the temporary table.
    Drop,
    /// Puts rows of a table.
    Put(&'static str, Vec<u64>, Vec<Vec<u8>>),
    /// Deletes rows of a table.
    Delete(&'static str, Vec<u64>),
    /// Gets rows for training.
    Get(&'static str, Vec<u64>),
    /// Calls `promote` for rows of a table.
    Promote(&'static str, Vec<u64>),
    /// Calls `compact`, in addition to background compaction.
    Compact,
    /// Takes a checkpoint.
    Checkpoint,
}

/// Returns step `number` of the program with a seed.
#[must_use]
pub fn step(seed: u64, number: u64) -> Step {
    if number == 0 {
        return Step::CreateAll;
    }
    let turn = number / TABLE_TURN;
    if number.is_multiple_of(TABLE_TURN) {
        return if turn % 2 == 1 { Step::Create } else { Step::Drop };
    }
    let mut random = Rng::with_seed(seed ^ number.wrapping_mul(0x9E6C_63D0_876A_3F6B));
    let passing = turn % 2 == 1 && random.u64(..4) == 0;
    let stays = TABLES[random.u64(..TABLES.len() as u64) as usize];
    let (table, value_bytes, variable) = if passing { PASSING_TABLE } else { stays };
    let mut keys = |count_max: u64| -> Vec<u64> {
        let (count, first) = (1 + random.u64(..count_max), random.u64(..KEYS_END - 1));
        (first..(first + count).min(KEYS_END - 1)).collect()
    };
    match Rng::with_seed(seed ^ number).u64(..100) {
        0..8 => Step::Checkpoint,
        8..16 => Step::Delete(table, keys(60)),
        16..24 => Step::Get(table, keys(100)),
        24..28 => Step::Promote(table, keys(200)),
        28 => Step::Compact,
        kind => {
            let keys = keys(if kind < 35 { 600 } else { 60 });
            let bytes = |key: u64| match variable {
                true => content(key, number, 1)[0] as usize * 2 % (value_bytes as usize + 1),
                false => value_bytes as usize,
            };
            let values = keys.iter().map(|&key| content(key, number, bytes(key))).collect();
            Step::Put(table, keys, values)
        }
    }
}

/// Runs a step that takes no checkpoint.
///
/// # Errors
/// Returns any error of the store.
pub fn act(store: &Store, step: &Step) -> Result<()> {
    match step {
        Step::CreateAll => {
            for (name, value_bytes, variable) in TABLES {
                rows::create(store, &mut Model::new(), name, value_bytes, variable)?;
            }
        }
        Step::Create => {
            let (name, value_bytes, variable) = PASSING_TABLE;
            rows::create(store, &mut Model::new(), name, value_bytes, variable)?;
        }
        Step::Drop => store.drop_table(rows::table(store, PASSING_TABLE.0)?.id)?,
        Step::Put(name, keys, values) => {
            rows::put(store, &rows::table(store, name)?, keys, values)?;
        }
        Step::Delete(name, keys) => {
            store.delete(rows::table(store, name)?.id, keys)?;
        }
        Step::Get(name, keys) => {
            rows::get(store, &rows::table(store, name)?, keys)?;
        }
        Step::Promote(name, keys) => {
            store.promote(rows::table(store, name)?.id, keys)?;
        }
        Step::Compact => {
            store.compact()?;
        }
        Step::Checkpoint => {}
    }
    Ok(())
}

/// Applies a step to a model of the tables.
///
/// # Errors
/// Returns an error if the step does not fit the model.
pub fn foresee(model: &mut Model, step: Step) -> Result<()> {
    let mut create = |(name, value_bytes, variable): (&str, u32, bool)| {
        let table = rows::ModelTable { value_bytes, variable, rows: Default::default() };
        model.insert(name.to_owned(), table);
    };
    match step {
        Step::CreateAll => TABLES.into_iter().for_each(create),
        Step::Create => create(PASSING_TABLE),
        Step::Drop => {
            model.remove(PASSING_TABLE.0).context("the table to drop")?;
        }
        Step::Put(name, keys, values) => {
            let table = model.get_mut(name).context("the table to put into")?;
            table.rows.extend(keys.into_iter().zip(values));
        }
        Step::Delete(name, keys) => {
            let table = model.get_mut(name).context("the table to delete from")?;
            keys.iter().for_each(|key| {
                table.rows.remove(key);
            });
        }
        Step::Get(..) | Step::Promote(..) | Step::Compact | Step::Checkpoint => {}
    }
    Ok(())
}
