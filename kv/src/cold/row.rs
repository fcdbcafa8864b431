//! A row at rest: one version of a row, as a part stores it.
//!
//! ```text
//! bytes 0..8    key
//! bytes 8..10   table
//! bytes 10..12  length of the value in units of 8 bytes
//! byte  12      bit 0 tombstone, bit 1 uncounted, bits 2..5 unused bytes at the value's end (0 to 7)
//! byte  13      uses
//! bytes 14..16  zero
//! bytes 16..    value
//! ```

use crate::record::address::TableNumber;
use crate::record::layout::VALUE_BYTES_MAX;

/// Bytes of a row before its value.
pub(crate) const ROW_HEADER_BYTES: usize = 16;
/// Bytes of the longest row.
pub(super) const ROW_BYTES_MAX: usize = ROW_HEADER_BYTES + VALUE_BYTES_MAX;

const FLAG_TOMBSTONE: u8 = 1;
const FLAG_UNCOUNTED: u8 = 2;
const UNUSED_SHIFT: u32 = 2;
const FLAGS_MAX: u8 = 0b1_1111;

/// Marks of a row at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RowFlags {
    /// The row was deleted.
    pub(crate) tombstone: bool,
    /// The table's count of rows does not have this version: a put wrote it, or a version before
    /// it, and did not know whether the row existed. See `record::layout`.
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

    /// Returns the bytes that the row takes in a block.
    pub(crate) fn stored_bytes(&self) -> usize {
        ROW_HEADER_BYTES + self.value.len()
    }

    /// Writes the row to the start of `into`, which has at least `stored_bytes` bytes.
    #[inline]
    pub(super) fn write(&self, into: &mut [u8]) {
        debug_assert!(self.value.len().is_multiple_of(8) && self.value.len() <= VALUE_BYTES_MAX);
        debug_assert!(usize::from(self.unused_bytes) <= self.value.len().min(7));
        let mut flags = self.unused_bytes << UNUSED_SHIFT;
        if self.flags.tombstone {
            flags |= FLAG_TOMBSTONE;
        }
        if self.flags.uncounted {
            flags |= FLAG_UNCOUNTED;
        }
        let rest = u64::from(self.table.0)
            | (self.value.len() as u64 / 8) << 16
            | u64::from(flags) << 32
            | u64::from(self.uses) << 40;
        into[..8].copy_from_slice(&self.key.to_le_bytes());
        into[8..ROW_HEADER_BYTES].copy_from_slice(&rest.to_le_bytes());
        into[ROW_HEADER_BYTES..ROW_HEADER_BYTES + self.value.len()].copy_from_slice(self.value);
    }
}

/// The bytes of a row before its value. They may be damaged.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowHeader {
    pub(super) key: u64,
    rest: u64,
}

impl RowHeader {
    /// Reads the header at the start of `bytes`. `None` if there are too few bytes.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (key, bytes) = bytes.split_first_chunk()?;
        let (rest, _) = bytes.split_first_chunk()?;
        Some(RowHeader { key: u64::from_le_bytes(*key), rest: u64::from_le_bytes(*rest) })
    }

    #[inline]
    pub(super) fn table(self) -> TableNumber {
        TableNumber(self.rest as u16)
    }

    /// Returns the bytes that the row takes in a block.
    #[inline]
    pub(super) fn stored_bytes(self) -> usize {
        ROW_HEADER_BYTES + usize::from((self.rest >> 16) as u16) * 8
    }

    /// Returns the row of this header. `value` is as long as the header says. `None` if
    /// `ColdRow::write` does not write such a header.
    #[inline]
    pub(super) fn row(self, hash: u64, value: &[u8]) -> Option<ColdRow<'_>> {
        let flags = (self.rest >> 32) as u8;
        let unused_bytes = flags >> UNUSED_SHIFT;
        let is_known = self.rest >> 48 == 0
            && flags <= FLAGS_MAX
            && usize::from(unused_bytes) <= value.len()
            && self.table().0 != 0;
        is_known.then_some(ColdRow {
            table: self.table(),
            key: self.key,
            hash,
            flags: RowFlags {
                tombstone: flags & FLAG_TOMBSTONE != 0,
                uncounted: flags & FLAG_UNCOUNTED != 0,
            },
            unused_bytes,
            uses: (self.rest >> 40) as u8,
            value,
        })
    }
}
