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

/// The number of a table within its bank. 0 is no table: it marks the unused end of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub(crate) u16);

impl TableId {
    /// The number as the log writes it.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}
