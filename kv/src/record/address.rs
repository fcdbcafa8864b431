//! Addresses in the log, and the numbers and ids of tables.

/// A byte position in the hybrid log. Addresses are multiples of 8. The log never reuses an
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address(u64);

impl Address {
    /// Means "no record". Page 0 begins with its page header, so no record lies at address 0.
    pub(crate) const NONE: Address = Address(0);

    pub(crate) fn new(raw: u64) -> Self {
        debug_assert!(raw.is_multiple_of(8));
        Address(raw)
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The number of a table within its bank, as stored in records and manifests. No table has the
/// number 0. In a page, a 0 in place of a record's table number marks the page's unused end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TableNumber(pub(crate) u16);

/// A table of an open store. A new table can get the number of a dropped table. The id therefore
/// also holds an incarnation: how many earlier tables of this store object had the same number. The
/// store refuses the id of a dropped table, whose incarnation is lower. An id is valid only for the
/// store object that returned it, and no file contains an id.
///
/// # Examples
/// ```
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let store = embank_kv::Store::open(dir.path(), &embank_kv::StoreOptions::default())?;
/// let table = store.create_table("squares", 8, b"")?;
/// assert_eq!((table.number(), table.incarnation()), (1, 0));
/// # Ok(())
/// # }
/// ```
// The id is packed into 6 bytes. Without packing it would take 8 bytes. Queues of rows to prefetch
// hold one id for each key, so the size matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(Rust, packed(2))]
pub struct TableId {
    pub(crate) number: TableNumber,
    pub(crate) incarnation: u32,
}

const _: () = assert!(size_of::<TableId>() == 6);

impl TableId {
    /// Returns the table's number, as the log stores it.
    #[must_use]
    pub fn number(self) -> u16 {
        self.number.0
    }

    /// Returns how many earlier tables of this store object had the same number.
    #[must_use]
    pub fn incarnation(self) -> u32 {
        self.incarnation
    }
}
