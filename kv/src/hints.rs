//! Hints: where the rows of a batch lie, so that the next batch over the same keys needs no index.
//!
//! **Problem.** Training works on each row twice: a Get reads it, and a moment later an update
//! writes it. Each time the batch looks the key up in the index, and in a large table that is a
//! second cache miss for each row.
//!
//! **Approach.** The store tells an operation where each row lies
//! ([`Operation::settled`](crate::Operation::settled)). The caller keeps these hints and gives them
//! to its next operation over the same keys ([`Operation::hints`](crate::Operation::hints)). The
//! batch then goes from the hint straight to the record. It uses the hints of a chunk of keys only
//! if all of them lead to the mutable region, and looks a key up in the index if its hint is out of
//! date.
//!
//! **Why it is safe.** A record never moves, and no address of the log is used twice while a store
//! is open. A record of the mutable region is in memory as long as the batch is pinned. The batch
//! checks table and key, and then takes the record's lock. If the lock succeeds, the record is the
//! row's newest one, because every newer record marks this one as replaced under its lock. If the
//! row was deleted there, the batch leaves the tombstone to a search. Hints carry the number of
//! their store, so a batch of another store does not use them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::address::Address;

/// Where a row lies in the memory of its store.
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

/// The hints of a batch, one for each place. A place may have no hint.
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
    /// The number of the store; 0 while no place has a hint.
    store: u64,
    /// The address of each row; 0 for a place without a hint.
    addresses: Vec<u64>,
}

impl RowHints {
    /// For a batch of `keys` keys; no place has a hint.
    #[must_use]
    pub fn none_of(keys: usize) -> Self {
        Self { store: 0, addresses: vec![0; keys] }
    }

    /// Notes where the row at place `i` lies.
    ///
    /// # Panics
    /// If another place has a hint of another store.
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

    /// The hint of place `i`; `None` if it has none.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<RowHint> {
        let address = Address::new(self.addresses[i]);
        (!address.is_none()).then_some(RowHint { store: self.store, address })
    }

    /// Removes the hint of place `i`.
    pub fn remove(&mut self, i: usize) {
        self.addresses[i] = 0;
    }

    /// Removes all hints.
    pub fn clear(&mut self) {
        self.addresses.fill(0);
    }

    /// Takes over the hints of a part of the batch, which begins at place `start`.
    ///
    /// # Panics
    /// If `part` has hints of another store, or reaches beyond the batch.
    pub fn take_in(&mut self, start: usize, part: &Self) {
        if part.store != 0 && self.store != part.store {
            assert_eq!(self.store, 0, "all hints of a batch are of one store");
            self.store = part.store;
        }
        self.addresses[start..][..part.addresses.len()].copy_from_slice(&part.addresses);
    }

    /// The hints of the whole batch.
    #[must_use]
    pub fn all(&self) -> Hints<'_> {
        Hints { store: self.store, addresses: &self.addresses }
    }
}

/// The hints of neighbouring places of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Hints<'a> {
    store: u64,
    addresses: &'a [u64],
}

impl<'a> Hints<'a> {
    /// The hints of these places.
    ///
    /// # Panics
    /// If a place is beyond the batch.
    #[must_use]
    pub fn part(self, places: Range<usize>) -> Self {
        Self { addresses: &self.addresses[places], ..self }
    }

    /// The addresses; `None` if they are those of another store, or not one for each of `keys`
    /// keys.
    #[inline]
    pub(crate) fn of_store(self, store: StoreNumber, keys: usize) -> Option<&'a [u64]> {
        (self.store == store.0 && self.addresses.len() == keys).then_some(self.addresses)
    }
}

/// The number of an open store. No other store of the process ever has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreNumber(u64);

impl StoreNumber {
    /// A new number, from 1 on.
    pub(crate) fn new() -> Self {
        /// Not one of `crate::sync`, because no model explores it: it is a number and nothing else.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: nothing but a number.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address of another store may lie outside the memory of this one, so the batch must not
    /// look there.
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
