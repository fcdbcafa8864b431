//! Places in the log.

/// A byte position in the hybrid log. Addresses only grow and are never used twice; multiples of 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address(u64);

impl Address {
    /// No record lies at 0: page 0 begins with its page header.
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

/// The number of a table within its bank, as records and manifests have it. 0 is no table: it marks
/// the unused end of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TableNumber(pub(crate) u16);

/// A table of an open store. The number of a dropped table can become another table's. So the id
/// also has the number's incarnation: the count of tables that had the number in this store object
/// before. The store refuses an id of an earlier incarnation. An id means nothing to another store
/// object, and nothing in a file.
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
// Queues of rows that are read ahead have one for each key: 6 bytes, not 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(Rust, packed(2))]
pub struct TableId {
    pub(crate) number: TableNumber,
    pub(crate) incarnation: u32,
}

const _: () = assert!(size_of::<TableId>() == 6);

impl TableId {
    /// The number as the log writes it.
    #[must_use]
    pub fn number(self) -> u16 {
        self.number.0
    }

    /// How many tables had the number in this store object before.
    #[must_use]
    pub fn incarnation(self) -> u32 {
        self.incarnation
    }
}
