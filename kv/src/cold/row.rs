//! One version of a row, as a part stores it.

use crate::record::address::TableNumber;

/// Marks of a row at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RowFlags {
    /// The row was deleted.
    pub(crate) tombstone: bool,
    /// A put wrote the row and did not know whether the row existed, so the table's count of rows
    /// may lack it.
    pub(crate) uncounted: bool,
}

/// One version of a row, as a part stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColdRow<'a> {
    pub(crate) table: TableNumber,
    pub(crate) key: u64,
    /// The hash of table and key (`record::hash`), by which rows are ordered.
    pub(crate) hash: u64,
    pub(crate) flags: RowFlags,
    /// Bytes at the end of `value` that do not belong to the value, 0 to 7.
    pub(crate) unused_bytes: u8,
    pub(crate) uses: u8,
    /// The value, padded to a multiple of 8 bytes. Empty for a tombstone.
    pub(crate) value: &'a [u8],
}

/// The order of rows: by hash, then by table and key, which differ where hashes are equal.
pub(crate) type RowOrder = (u64, TableNumber, u64);

impl ColdRow<'_> {
    /// Returns the row's place in the order of a part's rows.
    pub(crate) fn order(&self) -> RowOrder {
        (self.hash, self.table, self.key)
    }
}
