//! The trait [`Operation`], which says what a batch does to its rows, and the types of its results.

use crate::error::{Error, Result};
use crate::hints::{Hints, RowHint};

/// What an operation does to a row that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads the row. Does not move the row, write a record, change the staleness clock or take the
    /// row's lock.
    Peek,
    /// Reads the row. If the row is not in mutable memory, writes a new record of it there, which a
    /// later update can change in place.
    Get,
    /// Reads and changes the value.
    Update,
    /// Replaces the whole value.
    Put,
    /// Keeps the value and changes only the staleness clock. A caller uses this access to end a
    /// lease without an update. Of the operation's methods that get a key's index, the store calls
    /// only [`settled`](Operation::settled).
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
    /// Does not change the clock.
    Keep,
    /// Adds 1 to the clock. If more than `bound` gets of a row are outstanding before that, the
    /// batch does not use the row and reports it as blocked. If `bound` is `None`, no row is
    /// blocked.
    Acquire {
        /// The largest number of outstanding gets with which the row is not blocked.
        bound: Option<u32>,
    },
    /// Subtracts 1 from the clock. A clock of 0 stays 0.
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

    /// Returns the number of outstanding gets after the operation. The number does not exceed
    /// `u32::MAX`. A caller reaches this limit only if it never ends its leases.
    #[inline]
    pub(crate) fn after(self, outstanding: u32) -> u32 {
        match self {
            Clock::Keep => outstanding,
            Clock::Acquire { .. } => outstanding.saturating_add(1),
            Clock::Release => outstanding.saturating_sub(1),
        }
    }
}

/// What the store does with a batch if the disk, or the quota, has no room for the records that the
/// batch must write.
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
/// assert_eq!(Add(1).shortage(), Shortage::Whole); // adding to some rows twice is wrong
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// The batch fails, and some of its rows may be done. This suits operations that the caller can
    /// repeat for all rows.
    Stops,
    /// The store either refuses the batch before its first row, or completes the batch. A completed
    /// batch exceeds the available room by at most its own records.
    Whole,
    /// The store completes the batch even if there is no room. This suits a batch that continues a
    /// change that an earlier batch has begun.
    GoesOn,
}

/// One operation over a batch of keys. In its methods, `i` is the index of a key in the batch.
///
/// Values are 8-byte aligned. A value in a table of fixed width has the table's length. In a table
/// of variable width, [`value_bytes`](Self::value_bytes) gives the length of each value before it
/// is written. Another thread may replace the row's record before the effect of a call is final.
/// The store then calls the same method again with the same `i`. Each call must therefore do the
/// whole work for key `i`, and the last call counts. Other threads may wait for the row during a
/// call. A method should therefore only compute. It must not call any store, and must not wait for
/// another thread: every store may pause all batches at any time.
pub trait Operation {
    /// What the operation does to a row that exists.
    const ACCESS: Access;

    /// The width of the tables that accept the operation. A table of the other width refuses it.
    /// The width is a constant, so the compiler removes the code for variable width from operations
    /// on fixed rows. Default: fixed.
    const WIDTH: Width = Width::Fixed;

    /// True if the operation reads rows ahead of their use, so that no thread waits for these reads
    /// yet. The device then does the reads of other batches first. Default: false.
    const AHEAD: bool = false;

    /// True if the rows that `update` and `insert` write count as changed in the statistics. False
    /// suits internal rows of a program, which are not rows of its user. Default: true. A `Touch`
    /// never counts as a change.
    const CHANGES: bool = true;

    /// True if a `Put` does not look for old rows in the cold tier where that is not needed. A put
    /// of a whole value needs no old one. So in a bank with two tiers, it reads no row of the cold
    /// tier for a key that the log does not have. It still reads a record that the log has only on
    /// disk. The store calls [`insert`](Self::insert) for a key that the log does not have,
    /// although the row may exist, and the outcome does not say whether it did. The table's number
    /// of rows stays as it is until merges have found out ([`Store::rows`](crate::Store::rows)). If
    /// `insert` returns false, the store looks the row up. Has an effect only for a `Put` of fixed
    /// width with [`Clock::Keep`] or [`Clock::Release`]. Default: false.
    const BLIND: bool = false;

    /// What the store does with the batch if the disk, or the quota, has no room for its records.
    /// Default: `Whole` for an `Update` or `Touch`, `Stops` for other operations. A batch with
    /// [`Clock::Release`] is always completed, whatever this method returns.
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

    /// Returns a slice into which a `Peek` or `Get` copies the row's value. The store then does not
    /// call `read`. It copies the first bytes of the value, as many as fit. If the row is reported
    /// as missing, the content of the slice is unspecified. Default: `None`, and the store calls
    /// `read` with a copy of the value. For a row that a `Get` does not find in mutable memory, and
    /// in tables of variable width, the store does not call this method, and always calls `read`
    /// with the whole value.
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        let _ = i;
        None
    }

    /// Returns the length in bytes of the value that the row gets, in a table of variable width.
    /// The store calls this method before each call of `update` and `insert`, and gives them a
    /// slice of this length. `old` is the row's present value for `Update`, and `None` for `Put`
    /// and for a missing row. A length above the table's maximum fails the batch. Default: the
    /// length of `old`, or 0 without `old`. An operation with `Put` must therefore implement this
    /// method.
    fn value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> usize {
        let _ = i;
        old.map_or(0, <[u8]>::len)
    }

    /// Receives the staleness clock of an existing row that a `Peek` or `Get` has read. The clock
    /// does not include this get. The store calls this method once for each row, when the read is
    /// final. The store does not call it for an inserted row, whose clock was 0.
    fn seen(&mut self, i: usize, outstanding: u32) {
        let _ = (i, outstanding);
    }

    /// Reports that the operation's effect on the row of key `i` is final, and that the change of
    /// its clock is done. The store calls this method for `Get`, `Update`, `Put` and `Touch`, once
    /// for each row that is neither missing nor blocked. Inserted rows are included. If a batch
    /// fails, only this method tells which rows are done: the store may have called other methods
    /// for a row and then failed before the effect was final. `hint` tells where the row lies now.
    fn settled(&mut self, i: usize, hint: RowHint) {
        let _ = (i, hint);
    }

    /// Returns the hints of the batch: where its rows lay after an earlier batch over the same
    /// keys. The store uses them for `Peek`, `Update`, `Put` and `Touch` in a table of fixed width.
    /// If a hint is out of date, the store looks the key up in the index. Each call during a batch
    /// must return the same hints. Default: `None`, and the store looks all keys up in the index.
    fn hints(&self) -> Option<Hints<'_>> {
        None
    }

    /// Changes a row's value for `Update`, or fills it for `Put`. For a `Put`, the slice has
    /// unspecified content. If an `Update` changes the value's length, the slice begins with as
    /// many bytes of the old value as fit, followed by zeros.
    fn update(&mut self, i: usize, value: &mut [u8]) {
        let _ = (i, value);
    }

    /// Inserts a missing row: fills its new value, which is zeroed, and returns true. Returns false
    /// to insert nothing. The store never calls this method for `Peek`. After this method, it does
    /// not call `read` or `update` for the row.
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        let _ = (i, value);
        false
    }
}

/// Fails if a batch has more keys than a place of 32 bits can number: 4,294,967,295.
///
/// # Errors
/// `InvalidArgument`.
#[doc(hidden)]
#[inline]
pub fn check_batch(keys: usize) -> Result<()> {
    if u32::try_from(keys).is_ok() { Ok(()) } else { Err(too_many_keys(keys)) }
}

#[cold]
fn too_many_keys(keys: usize) -> Error {
    Error::InvalidArgument(format!(
        "a batch holds at most 4,294,967,295 keys, and this one has {keys}; divide it into several batches"
    ))
}

/// The result of a batch.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Indexes of the keys whose rows are missing and were not inserted, in no particular order.
    pub missing: Vec<u32>,
    /// Indexes of the keys whose rows the batch did not use because of the staleness bound, in no
    /// particular order.
    pub blocked: Vec<u32>,
    /// Number of rows whose newest record the batch read from disk. A deleted row counts too if its
    /// deletion record was on disk.
    pub disk_reads: u64,
}

/// A row's address in mutable memory and its use count, at the time of the call that returned the
/// mark. With the mark, a later call can tell whether the row was used or moved since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMark {
    pub(crate) address: u64,
    /// Use count of the record, modulo 2^28.
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
    /// Number of rows that the call brought into mutable memory.
    pub moved: u64,
    /// Number of rows that were already in mutable memory.
    pub resident: u64,
    /// Number of keys without a row.
    pub missing: u64,
    /// Number of rows that another operation brought into mutable memory while this call was
    /// reading them.
    pub overtaken: u64,
}
