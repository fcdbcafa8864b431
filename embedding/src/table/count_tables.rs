//! The separate tables in which admission counts the Gets of keys without a row. A table has two
//! generations of counts, each in a separate table whose name contains a number.

use embank_kv::{Store, TableId};

use crate::error::Result;
use crate::row::admission::Admission;
use crate::row::descriptor::{counts_descriptor, is_counts_descriptor};

/// Bytes of a row of such a table. With `AfterGets`, the row is a count and the time of the key's
/// last Get, each a u32. With `Probability`, it is the number of Gets, a u64.
pub(crate) const COUNT_BYTES: u32 = 8;

/// The tables with the counts of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generations {
    pub(crate) newer: TableId,
    pub(crate) older: Option<TableId>,
    /// The number in the name of `newer`. The first generation has number 0.
    pub(crate) number: u64,
}

impl Generations {
    pub(crate) fn tables(self) -> impl Iterator<Item = TableId> {
        [Some(self.newer), self.older].into_iter().flatten()
    }

    /// Finds the generations of table `name` among the tables `counts`: the two with the largest
    /// numbers. Drops older generations. A checkpoint may contain a third generation, if it was
    /// taken while a new generation began.
    pub(crate) fn find(
        name: &str,
        counts: &[embank_kv::TableInfo],
        store: &Store,
    ) -> Result<Option<Self>> {
        let numbered =
            counts.iter().filter_map(|info| Some((number_in(&info.name, name)?, info.id)));
        let mut found: Vec<(u64, TableId)> = numbered.collect();
        found.sort_unstable_by_key(|&(number, _)| number);
        let Some((number, newer)) = found.pop() else { return Ok(None) };
        let older = found.pop().map(|(_, older)| older);
        if !store.is_read_only() {
            found.iter().try_for_each(|&(_, left)| store.drop_table(left))?;
        }
        Ok(Some(Self { newer, older, number }))
    }
}

/// Returns the name of the separate table that holds generation `number` of the admission counts of
/// table `name`.
fn counts_name(name: &str, number: u64) -> String {
    match number {
        0 => format!("{name} (counts before admission)"),
        number => format!("{name} (counts before admission, {number})"),
    }
}

/// Returns the generation number if `counts` is the name of a table that holds admission counts of
/// table `name`. `None` for any other name.
fn number_in(counts: &str, name: &str) -> Option<u64> {
    let (table, number) = split_name(counts)?;
    (table == name).then_some(number)
}

fn split_name(counts: &str) -> Option<(&str, u64)> {
    let (table, rest) = counts.rsplit_once(" (counts before admission")?;
    let rest = rest.strip_suffix(')')?;
    if rest.is_empty() {
        return Some((table, 0));
    }
    let number = rest.strip_prefix(", ")?.parse().ok()?;
    Some((table, number))
}

/// Returns the name of the main table if `name` is the name of a table of counts: a separate table
/// that counts the main table's Gets before admission. `None` for any other name. `embank stat`
/// shows tables of counts. To forget the counts, call
/// [`Table::forget_counts`](crate::Table::forget_counts) of the main table.
///
/// # Examples
/// ```
/// assert_eq!(embank::table_of_counts("item (counts before admission)"), Some("item"));
/// assert_eq!(embank::table_of_counts("item (counts before admission, 3)"), Some("item"));
/// assert_eq!(embank::table_of_counts("item"), None);
/// ```
#[must_use]
pub fn table_of_counts(name: &str) -> Option<&str> {
    split_name(name).map(|(table, _)| table)
}

/// Makes the separate table that `admission` needs: for the counts, or for the number of Gets.
/// Returns `None` if `admission` needs no table. The separate table must be made before its main
/// table, and dropped after the main table. If a crash has left a separate table without a main
/// table, this call replaces it by an empty one.
pub(crate) fn create_counts(
    store: &Store,
    name: &str,
    admission: Admission,
) -> Result<Option<Generations>> {
    if admission == Admission::Always {
        return Ok(None);
    }
    for left in store.tables() {
        if is_counts_descriptor(&left.descriptor) && number_in(&left.name, name).is_some() {
            store.drop_table(left.id)?;
        }
    }
    Ok(Some(Generations { newer: create_generation(store, name, 0)?, older: None, number: 0 }))
}

pub(crate) fn create_generation(store: &Store, name: &str, number: u64) -> Result<TableId> {
    Ok(store.create_table(&counts_name(name, number), COUNT_BYTES, &counts_descriptor())?)
}
