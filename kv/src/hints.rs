//! Hints: the addresses of the rows of a batch. With hints, the next batch over the same keys does
//! not need the index.
//!
//! **Problem.** Training works on each row twice: a get reads the row, and a little later an update
//! writes it. Both batches look the key up in the index. In a large table, the lookup costs one
//! cache miss for each row, in addition to the miss for the row itself.
//!
//! **Approach.** The store tells an operation the address of each row
//! ([`Operation::settled`](crate::Operation::settled)). The caller keeps these hints and passes
//! them to its next operation over the same keys ([`Operation::hints`](crate::Operation::hints)).
//! The batch of that operation then goes directly to the records. It works through its keys in
//! chunks, and uses the hints of a chunk only if all of them lead to the mutable region. If a hint
//! is out of date, the batch looks the key up in the index.
//!
//! **Why it is safe.** A record never moves, and no address of the log is used twice while a store
//! is open. A record of the mutable region stays in memory while the batch is pinned. The batch
//! checks the record's table and key, and then takes the record's lock. A thread that replaces a
//! record marks the old record as replaced, and a record with this mark can't be locked. A record
//! that the batch has locked is therefore the row's newest record. If the record is a tombstone,
//! the batch searches for the key in the index. Hints contain the number of their store, so a batch
//! of another store ignores them.
//!
//! A peek takes no lock. A thread that replaces a record holds the record's lock until it has
//! marked the record as replaced. A peek waits while the lock is held, and searches the index if it
//! sees the mark. A value that it has read was therefore the row's newest value during the read.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::address::Address;

/// The address of a row in the memory of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowHint {
    store: u64,
    address: Address,
}

impl RowHint {
    pub(crate) fn new(store: StoreNumber, address: Address) -> Self {
        Self { store: store.0, address }
    }
}

/// The hints of a batch, one for each key. The hint of a key may be missing.
///
/// # Examples
/// ```
/// use embank_kv::{Access, Clock, Hints, Operation, RowHint, RowHints, Store, StoreOptions};
///
/// struct Get(RowHints);
/// impl Operation for Get {
///     const ACCESS: Access = Access::Get;
///     fn insert(&mut self, _: usize, value: &mut [u8]) -> bool {
///         value.fill(1);
///         true
///     }
///     fn settled(&mut self, i: usize, hint: RowHint) {
///         self.0.note(i, hint);
///     }
/// }
///
/// struct Double<'a>(Hints<'a>);
/// impl Operation for Double<'_> {
///     const ACCESS: Access = Access::Update;
///     fn update(&mut self, _: usize, value: &mut [u8]) {
///         value[0] *= 2;
///     }
///     fn hints(&self) -> Option<Hints<'_>> {
///         Some(self.0)
///     }
/// }
///
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let store = Store::open(dir.path(), &StoreOptions::default())?;
/// let table = store.create_table("numbers", 8, b"")?;
/// let mut get = Get(RowHints::none_of(2));
/// store.execute(table, &[7, 9], Clock::Keep, &mut get)?;
/// store.execute(table, &[7, 9], Clock::Keep, &mut Double(get.0.all()))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct RowHints {
    /// The number of the store that the hints belong to. 0 if there are no hints yet.
    store: u64,
    /// The address of each key's row. 0 if the key has no hint.
    addresses: Vec<u64>,
}

impl RowHints {
    /// Makes an empty list of hints for a batch of `keys` keys.
    #[must_use]
    pub fn none_of(keys: usize) -> Self {
        Self { store: 0, addresses: vec![0; keys] }
    }

    /// Notes the hint of the key at index `i`.
    ///
    /// # Panics
    /// Panics if the list has a hint of another store, or if `i` is beyond the batch.
    #[inline]
    pub fn note(&mut self, i: usize, hint: RowHint) {
        if self.store != hint.store {
            self.adopt(hint);
        }
        self.addresses[i] = hint.address.raw();
    }

    #[cold]
    fn adopt(&mut self, hint: RowHint) {
        assert_eq!(self.store, 0, "all hints of a batch are of one store");
        self.store = hint.store;
    }

    /// Returns the hint of the key at index `i`. `None` if the key has no hint.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<RowHint> {
        let address = Address::new(self.addresses[i]);
        (!address.is_none()).then_some(RowHint { store: self.store, address })
    }

    /// Removes the hint of the key at index `i`.
    pub fn remove(&mut self, i: usize) {
        self.addresses[i] = 0;
    }

    /// Removes all hints.
    pub fn clear(&mut self) {
        self.addresses.fill(0);
    }

    /// Copies into this list the hints of a part of the batch. The part's first key has the index
    /// `start`.
    ///
    /// # Panics
    /// Panics if `part` has hints of another store, or reaches beyond the batch.
    pub fn take_in(&mut self, start: usize, part: &Self) {
        if part.store != 0 && self.store != part.store {
            assert_eq!(self.store, 0, "all hints of a batch are of one store");
            self.store = part.store;
        }
        self.addresses[start..][..part.addresses.len()].copy_from_slice(&part.addresses);
    }

    /// Replaces the hints by hints of `from`: those of the keys at the indices `places` of the
    /// batch of `from`. An index may appear more than once.
    ///
    /// # Panics
    /// Panics if a place is beyond the batch of `from`.
    pub fn pick(&mut self, from: &Self, places: &[u32]) {
        self.store = from.store;
        self.addresses.clear();
        self.addresses.extend(places.iter().map(|&place| from.addresses[place as usize]));
    }

    /// Returns the hints of the whole batch.
    #[must_use]
    pub fn all(&self) -> Hints<'_> {
        Hints { store: self.store, addresses: &self.addresses }
    }
}

/// The hints of consecutive keys of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Hints<'a> {
    store: u64,
    addresses: &'a [u64],
}

impl<'a> Hints<'a> {
    /// Returns the hints of the keys in the index range `places`.
    ///
    /// # Panics
    /// Panics if the range reaches beyond the batch.
    #[must_use]
    pub fn part(self, places: Range<usize>) -> Self {
        Self { addresses: &self.addresses[places], ..self }
    }

    /// Returns the addresses, one for each of `keys` keys. `None` if the hints belong to another
    /// store, or if their number is not `keys`.
    #[inline]
    pub(crate) fn of_store(self, store: StoreNumber, keys: usize) -> Option<&'a [u64]> {
        (self.store == store.0 && self.addresses.len() == keys).then_some(self.addresses)
    }
}

/// The number of an open store. No other store of this process ever has the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreNumber(u64);

impl StoreNumber {
    /// Returns a new number, which is never 0.
    pub(crate) fn new() -> Self {
        /// This is an atomic of the standard library and not of `crate::sync`, because no
        /// concurrency model covers this counter.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: the number orders no other memory access.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a batch ignores hints of another store, whose addresses may lie outside the
    /// memory of the batch's store.
    #[test]
    fn hints_serve_their_own_store_and_batch_alone() {
        let (own, other) = (StoreNumber::new(), StoreNumber::new());
        let mut hints = RowHints::none_of(2);
        hints.note(1, RowHint::new(own, Address::new(64)));
        assert_eq!(hints.all().of_store(own, 2), Some(&[0, 64][..]));
        assert_eq!(hints.all().part(1..2).of_store(own, 1), Some(&[64][..]));
        assert_eq!(hints.all().of_store(other, 2), None);
        assert_eq!(hints.all().of_store(own, 3), None);
    }
}
