//! The separate tables in which admission counts the Gets of keys without a row. A table has two
//! generations of counts, each in a separate table whose name contains a number.

use std::collections::HashMap;

use embank_kv::{NewTable, Store, TableId, TableInfo, Width};

use crate::error::Result;
use crate::row::admission::Admission;
use crate::row::descriptor::counts_descriptor;

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

    /// Finds the generations of each table among the tables `counts`, by the table's name: the two
    /// with the largest numbers. Also returns the older generations. A checkpoint may contain a
    /// third generation, if it was taken while a new generation began.
    pub(crate) fn find(counts: &[TableInfo]) -> (HashMap<&str, Self>, Vec<TableId>) {
        let mut by_name = HashMap::<&str, Vec<(u64, TableId)>>::new();
        for info in counts {
            if let Some((name, number)) = split_name(&info.name) {
                by_name.entry(name).or_default().push((number, info.id));
            }
        }
        let mut left = Vec::new();
        let mut newest = HashMap::new();
        for (name, mut found) in by_name {
            found.sort_unstable_by_key(|&(number, _)| number);
            let Some((number, newer)) = found.pop() else { continue };
            let older = found.pop().map(|(_, older)| older);
            left.extend(found.into_iter().map(|(_, id)| id));
            newest.insert(name, Self { newer, older, number });
        }
        (newest, left)
    }
}

/// Returns the name of the separate table that holds generation `number` of the admission counts of
/// table `name`.
pub(crate) fn counts_name(name: &str, number: u64) -> String {
    match number {
        0 => format!("{name} (counts before admission)"),
        number => format!("{name} (counts before admission, {number})"),
    }
}

pub(crate) fn split_name(counts: &str) -> Option<(&str, u64)> {
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

/// Makes table `name` together with the separate table that `admission` needs: for the counts, or
/// for the number of Gets. Every checkpoint has both tables, or neither. Returns `None` for the
/// second if `admission` needs no separate table.
pub(crate) fn create_with_counts(
    store: &Store,
    table: NewTable<'_>,
    admission: Admission,
) -> Result<(TableId, Option<Generations>)> {
    if admission == Admission::Always {
        return Ok((store.create_tables(&[table])?[0], None));
    }
    let name = counts_name(table.name, 0);
    let descriptor = counts_descriptor();
    let counts = NewTable {
        name: &name,
        width: Width::Fixed,
        value_bytes: COUNT_BYTES,
        descriptor: &descriptor,
    };
    let made = store.create_tables(&[table, counts])?;
    Ok((made[0], Some(Generations { newer: made[1], older: None, number: 0 })))
}

/// Makes the separate table of generation `number` of the counts of table `name`.
pub(crate) fn create_generation(store: &Store, name: &str, number: u64) -> Result<TableId> {
    Ok(store.create_table(&counts_name(name, number), COUNT_BYTES, &counts_descriptor())?)
}
