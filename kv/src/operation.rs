//! What a batch does to its rows.

use crate::hints::{Hints, RowHint};

/// What an operation does to a row that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads the row. Moves and writes nothing, does not change the staleness clock, and takes no
    /// lock.
    Peek,
    /// Reads the row, and brings it into mutable memory, where a later update can change it in
    /// place.
    Get,
    /// Reads and changes the value.
    Update,
    /// Replaces the whole value.
    Put,
    /// Keeps the value and changes only the clock. A caller that ends a lease without an update
    /// uses this access. The store calls no method of the operation except
    /// [`settled`](Operation::settled).
    Touch,
}

/// Whether the values of a table have one length or different lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// All values have the table's length, for example embedding rows
    /// ([`Store::create_table`](crate::Store::create_table)).
    Fixed,
    /// Each value has its own length, up to the table's maximum, for example entries of a
    /// vocabulary ([`Store::create_variable_table`](crate::Store::create_variable_table)).
    Variable,
}

/// What an operation does to the staleness clock of each row. The clock counts the row's
/// outstanding gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The clock stays.
    Keep,
    /// Adds 1 to the clock. If more than `bound` gets of a row are outstanding, the batch leaves
    /// the row alone and reports it as blocked. A bound of `None` never blocks.
    Acquire {
        /// The row is blocked if more gets than this are outstanding.
        bound: Option<u32>,
    },
    /// Subtracts 1 from the clock, and leaves it at 0 if it is 0.
    Release,
}

impl Clock {
    /// True if the operation may use a row with `outstanding` outstanding gets.
    #[inline]
    pub(crate) fn admits(self, outstanding: u32) -> bool {
        match self {
            Clock::Acquire { bound: Some(bound) } => outstanding <= bound,
            Clock::Keep | Clock::Release | Clock::Acquire { bound: None } => true,
        }
    }

    /// Returns the count after the operation. The count saturates at `u32::MAX`: a caller with 4
    /// billion leases on one row leaks leases.
    #[inline]
    pub(crate) fn after(self, outstanding: u32) -> u32 {
        match self {
            Clock::Keep => outstanding,
            Clock::Acquire { .. } => outstanding.saturating_add(1),
            Clock::Release => outstanding.saturating_sub(1),
        }
    }
}

/// What the store does with a batch if the disk or the quota has no room for the batch's rows.
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
    /// The batch fails after some of its rows are done. This suits operations that the caller can
    /// repeat.
    Stops,
    /// The store either refuses the batch before its first row or completes it. A completed batch
    /// exceeds the limit by at most its own rows.
    Whole,
    /// The store completes the batch, because the batch continues a change that has already begun.
    GoesOn,
}

/// One operation over a batch of keys; `i` is a key's place in the batch.
///
/// Values are 8-byte aligned. A value in a table of fixed width has the table's length. In a table
/// of variable width, [`value_bytes`](Self::value_bytes) gives the length of each value before it
/// is written. If a row has moved meanwhile, the store calls the same method again for its place.
/// Each call must therefore do the whole work for its place, and the last call counts. Other
/// threads may wait for the row during a call, so a method should only compute, and must not call
/// any store.
pub trait Operation {
    /// What the operation does to a row that exists.
    const ACCESS: Access;

    /// The width of the tables that accept the operation. A table of the other width refuses it.
    /// The width is a constant, so the compiler removes the code for variable width from operations
    /// on fixed rows. Default: fixed.
    const WIDTH: Width = Width::Fixed;

    /// True if no caller waits for the operation's reads yet. These reads are then queued behind
    /// the reads of other batches. Default: false.
    const AHEAD: bool = false;

    /// True if the rows that `update` and `insert` write count as changed. An operation on rows
    /// that the program keeps for its own use says false. Default: true. A `Touch` never changes a
    /// row.
    const CHANGES: bool = true;

    /// What the store does with the batch if the disk or the quota has no room for its rows.
    /// Default: `Whole` for an `Update` or `Touch`, `Stops` for other operations. A batch with
    /// [`Clock::Release`] always completes.
    fn shortage(&self) -> Shortage {
        match Self::ACCESS {
            Access::Update | Access::Touch => Shortage::Whole,
            Access::Peek | Access::Get | Access::Put => Shortage::Stops,
        }
    }

    /// Receives a row's value, for `Peek` and `Get`.
    fn read(&mut self, i: usize, value: &[u8]) {
        let _ = (i, value);
    }

    /// False if a `Get` does not look at the values. The store then prefetches only the headers of
    /// the records. Default: true.
    fn reads_values(&self) -> bool {
        true
    }

    /// Returns the place for a `Peek` to copy the row's value to, in place of a call of `read`. The
    /// store copies the first bytes of the value, as many as fit. The content of the place is
    /// unspecified if the row is reported as missing. Default: `None`, and `read` is called with a
    /// copy of the value. The store does not call this method for tables of variable width. There
    /// it always calls `read` with the whole value.
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        let _ = i;
        None
    }

    /// Returns the length in bytes of the row's next value, in a table of variable width. The store
    /// calls this method before each call of `update` and `insert`, and gives them a slice of this
    /// length. `old` is the row's present value for `Update`, and `None` for `Put` and for a
    /// missing row. A length above the table's maximum fails the batch. Default: the length of
    /// `old`, or 0 without `old`. An operation with `Put` must therefore implement this method.
    fn value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> usize {
        let _ = i;
        old.map_or(0, <[u8]>::len)
    }

    /// Receives the staleness clock of an existing row, as a `Peek` or `Get` found it before adding
    /// its own count. The store calls this method once for each row, when it is certain that the
    /// row was read. The store does not call it for an inserted row, whose clock was 0.
    fn seen(&mut self, i: usize, outstanding: u32) {
        let _ = (i, outstanding);
    }

    /// Reports that the operation's effect on the row at this place is final, and that the clock
    /// has changed. The store calls this method for `Get`, `Update`, `Put` and `Touch`, once for
    /// each row that is neither missing nor blocked. Inserted rows are included. Other methods may
    /// have been called for a row that moved before the batch failed. Only this method tells which
    /// rows a failed batch has done. `hint` tells where the row lies now.
    fn settled(&mut self, i: usize, hint: RowHint) {
        let _ = (i, hint);
    }

    /// Returns where the rows of the batch were in the store after an earlier batch over the same
    /// keys. The store calls this method for `Peek`, `Update`, `Put` and `Touch` in a table of
    /// fixed width. If a hint is out of date, the store looks its key up in the index. Each call
    /// during a batch must return the same hints. Default: `None`, and the store looks up all keys.
    fn hints(&self) -> Option<Hints<'_>> {
        None
    }

    /// Changes a row's value for `Update`, or fills it for `Put`. For a `Put`, the slice has
    /// unspecified content. If an `Update` changes the value's length, the slice begins with the
    /// old bytes that fit, followed by zeros.
    fn update(&mut self, i: usize, value: &mut [u8]) {
        let _ = (i, value);
    }

    /// Fills the new, zeroed value of a missing row and returns true, or returns false to insert
    /// nothing. The store never calls this method for `Peek`. It does not call `read` or `update`
    /// for the row afterwards.
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        let _ = (i, value);
        false
    }
}

/// The result of a batch.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Places of rows that are missing and were not inserted, in no particular order.
    pub missing: Vec<u32>,
    /// Places of rows that the batch left alone because of the staleness bound, in no particular
    /// order.
    pub blocked: Vec<u32>,
    /// Number of rows that the batch read from disk, including deleted rows.
    pub disk_reads: u64,
}

/// A row's address in mutable memory and its use count, at the time when the caller looked at the
/// row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMark {
    pub(crate) address: u64,
    /// Uses of the record, modulo 2^29.
    pub(crate) uses: u32,
}

impl RowMark {
    /// Returns the row's address in the log. Compare it with
    /// [`Store::boundaries`](crate::Store::boundaries).
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }
}

/// Counts of the rows that [`promote`](crate::Store::promote) was asked to bring into memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Promoted {
    /// Rows that the call brought into mutable memory.
    pub moved: u64,
    /// Rows that were already in mutable memory.
    pub resident: u64,
    /// Rows that the store does not have.
    pub missing: u64,
    /// Rows that another operation brought into mutable memory while this call was reading them.
    pub overtaken: u64,
}
