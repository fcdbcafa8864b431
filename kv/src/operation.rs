//! What a batch does to its rows.

/// What an operation does to a row that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads. Moves nothing, writes nothing, touches no clock, takes no lock.
    Peek,
    /// Reads, and brings the row into mutable memory, where its update will fall.
    Get,
    /// Reads and changes the value.
    Update,
    /// Replaces the whole value.
    Put,
}

/// What an operation does to the staleness clock of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Leaves it.
    Keep,
    /// Up by one, unless more than `bound` are outstanding: then the row is left alone and reported as
    /// blocked. `None` is no bound.
    Acquire {
        /// Gets that may be outstanding before this one has to wait.
        bound: Option<u32>,
    },
    /// Down by one, not below zero.
    Release,
}

impl Clock {
    /// Whether a row with so many Gets outstanding may be used.
    #[inline]
    pub(crate) fn admits(self, outstanding: u32) -> bool {
        match self {
            Clock::Acquire { bound: Some(bound) } => outstanding <= bound,
            Clock::Keep | Clock::Release | Clock::Acquire { bound: None } => true,
        }
    }

    /// The count after the operation. It saturates: 4 billion leases on one row are a leak anyway.
    #[inline]
    pub(crate) fn after(self, outstanding: u32) -> u32 {
        match self {
            Clock::Keep => outstanding,
            Clock::Acquire { .. } => outstanding.saturating_add(1),
            Clock::Release => outstanding.saturating_sub(1),
        }
    }
}

/// One operation over a batch of keys; `i` is a key's place in the batch.
///
/// Values are `value_bytes` of the table long and 8-byte aligned. A method may be called again for the
/// same place, when the row moved meanwhile: each call must do the whole work for its place anew,
/// and the last one counts. The methods run while the store holds the row: they should only compute,
/// and must not call any store.
pub trait Operation {
    /// What it does to rows that exist.
    const ACCESS: Access;

    /// A row's value, for `Peek` and `Get`.
    fn read(&mut self, i: usize, value: &[u8]) {
        let _ = (i, value);
    }

    /// Where a `Peek` copies the row's value straight to, its first bytes, as many as there is room for: then
    /// `read` is not called. What lies there afterwards counts only if the row is not reported as missing.
    /// Default: none, and `read` is called with a copy of the value.
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        let _ = i;
        None
    }

    /// Changes a row's value, for `Update`; fills it, for `Put`, which gets unspecified content.
    fn update(&mut self, i: usize, value: &mut [u8]) {
        let _ = (i, value);
    }

    /// The row is missing: fills a new (zeroed) one and returns true, or returns false to leave it so.
    /// Never called for `Peek`. Neither `read` nor `update` follows.
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        let _ = (i, value);
        false
    }
}

/// What became of a batch.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Places of rows that are missing and were not inserted, in no particular order.
    pub missing: Vec<u32>,
    /// Places of rows that the staleness bound kept from being acquired; they were left alone.
    pub blocked: Vec<u32>,
    /// Rows that were read from disk, deleted ones included.
    pub disk_reads: u64,
}

/// What became of the rows that [`promote`](crate::Store::promote) was asked for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Promoted {
    /// Brought into mutable memory.
    pub moved: u64,
    /// Already in mutable memory.
    pub resident: u64,
    /// Not in the store.
    pub missing: u64,
    /// Brought in by another operation while this one was reading them.
    pub overtaken: u64,
}
