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
    /// Leaves the value, and moves the clock alone: what ends a lease without an update. No method
    /// of the operation but [`settled`](Operation::settled) is called.
    Touch,
}

/// How long the values of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// All alike, as embedding rows are ([`Store::create_table`](crate::Store::create_table)).
    Fixed,
    /// Each as long as it is, up to the table's maximum, as the entries of a vocabulary are
    /// ([`Store::create_variable_table`](crate::Store::create_variable_table)).
    Variable,
}

/// What an operation does to the staleness clock of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Leaves it.
    Keep,
    /// Up by one, unless more than `bound` are outstanding: then the row is left alone and reported
    /// as blocked. `None` is no bound.
    Acquire {
        /// Gets that may be outstanding before this one has to wait.
        bound: Option<u32>,
    },
    /// Down by one, not below zero.
    Release,
}

impl Clock {
    /// True if a row with `outstanding` Gets outstanding may be used.
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

/// What becomes of a batch where the disk or the quota has no room for its rows.
///
/// # Examples
/// ```
/// # use embank_kv::{Access, Operation, Shortage};
/// struct Add(u8);
/// impl Operation for Add {
///     const ACCESS: Access = Access::Update;
///     fn update(&mut self, _: usize, value: &mut [u8]) {
///         value[0] += self.0;
///     }
/// }
/// assert_eq!(Add(1).shortage(), Shortage::Whole); // half of it could not be made up for
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// It fails with some of its rows done. For operations that the caller can repeat.
    Stops,
    /// The store refuses it before its first row, or completes it. It exceeds the limit by its own
    /// rows at most.
    Whole,
    /// The store completes it: it is a part of something that has begun.
    GoesOn,
}

/// One operation over a batch of keys; `i` is a key's place in the batch.
///
/// Values are 8-byte aligned and as long as the table says. In a table of variable width each value
/// has a length of its own, which [`value_bytes`](Self::value_bytes) decides when the value is
/// written. The store may call a method again for the same place if the row moved in between: each
/// call must do the whole work for its place, and the last call counts. The methods run while the
/// store holds the row: they should only compute, and must not call any store.
pub trait Operation {
    /// What it does to rows that exist.
    const ACCESS: Access;

    /// The tables that it is for; others refuse it. A constant, so that rows of fixed width pay
    /// nothing for the others. Default: fixed.
    const WIDTH: Width = Width::Fixed;

    /// True if no caller waits for its reads yet: they then go behind the reads of other batches.
    /// Default: false.
    const AHEAD: bool = false;

    /// Whether the rows that `update` and `insert` write count as changed. An operation on rows
    /// that the program keeps for itself, beside those of its user, says no. Default: yes. A
    /// `Touch` never changes a row.
    const CHANGES: bool = true;

    /// What becomes of the batch where the disk or the quota has no room for its rows. Default:
    /// `Whole` for an `Update` or `Touch`, `Stops` for other operations. A batch with
    /// [`Clock::Release`] always completes.
    fn shortage(&self) -> Shortage {
        match Self::ACCESS {
            Access::Update | Access::Touch => Shortage::Whole,
            Access::Peek | Access::Get | Access::Put => Shortage::Stops,
        }
    }

    /// A row's value, for `Peek` and `Get`.
    fn read(&mut self, i: usize, value: &[u8]) {
        let _ = (i, value);
    }

    /// Where a `Peek` copies the row's value straight to, its first bytes, as many as there is room
    /// for: then `read` is not called. What lies there afterwards counts only if the row is not
    /// reported as missing. Default: none, and `read` is called with a copy of the value. Not
    /// asked for tables of variable width: there `read` is always called, and its slice tells
    /// the value's length.
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        let _ = i;
        None
    }

    /// Bytes of the row's next value, in a table of variable width: asked before each call of
    /// `update` and `insert`, which then get a slice of that length. `old` is the row's present
    /// value for `Update`, and none for `Put` and for a row that is missing. A length above the
    /// table's maximum fails the batch. Default: as long as before; empty without a value
    /// before, so a `Put` must give it.
    fn value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> usize {
        let _ = i;
        old.map_or(0, <[u8]>::len)
    }

    /// The staleness clock that a `Peek` or a `Get` saw on a row that was there, before its own
    /// count: called once for each, when it is certain that the row was read. Not for a row
    /// that was inserted, whose clock was 0.
    fn seen(&mut self, i: usize, outstanding: u32) {
        let _ = (i, outstanding);
    }

    /// What the operation did to the row at this place stands, and its clock has moved: called once
    /// for each that is neither missing nor blocked, for `Get`, `Update` and `Put`, inserted
    /// rows too. The other methods may have been called for a row that then moved, in a batch
    /// that failed before it came back to it: only from this can be told what such a batch has
    /// done.
    fn settled(&mut self, i: usize) {
        let _ = i;
    }

    /// Changes a row's value, for `Update`; fills it, for `Put`, which gets unspecified content.
    /// Where an `Update` changes a value's length, it gets as much of the old one as fits, then
    /// zeros.
    fn update(&mut self, i: usize, value: &mut [u8]) {
        let _ = (i, value);
    }

    /// The row is missing: fills a new (zeroed) one and returns true, or returns false to leave it
    /// so. Never called for `Peek`. Neither `read` nor `update` follows.
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

/// Where a row lay in mutable memory, and how often it had been used, when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMark {
    pub(crate) address: u64,
    /// Uses of the record, modulo 2^29.
    pub(crate) uses: u32,
}

impl RowMark {
    /// Where it lay in the log; compares with [`Store::boundaries`](crate::Store::boundaries).
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }
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
