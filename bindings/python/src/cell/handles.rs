//! The handles of an open bank, their ids in Python objects, and calls on them.
//!
//! A Python object holds only the id of a handle. The handle is in a [`Registry`] of the bank's
//! cell, where `close` finds it.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use embank::locks::Mutex;
use embank::{
    AheadQueue, Bank, Lease, Pending, Prefetch, Scan, Table, TableId, Unsaved, Vocabulary,
};
use pyo3::prelude::*;

use super::bank_cell::{BankCell, InFlight, detached};
use super::dependents::Dependent;
use crate::errors;

/// A scan that one call at a time uses.
pub(crate) type SharedScan = Arc<Mutex<Scan>>;

pub(crate) type LeaseId = HandleId<Lease>;
pub(crate) type TableHandle = HandleId<Table>;
pub(crate) type PendingId = HandleId<Pending>;
pub(crate) type AheadQueueId = HandleId<Arc<AheadQueue>>;
pub(crate) type PrefetchId = HandleId<Prefetch>;
pub(crate) type ScanId = HandleId<SharedScan>;
pub(crate) type VocabularyId = HandleId<Vocabulary>;
pub(crate) type DependentId = HandleId<Dependent>;

/// Identifies a table within its cell. Two Python objects of one table have equal ids, unless the
/// bank was rolled back in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellTableId {
    /// The table's id within its open bank. After a drop another table may get the name and the
    /// number, but not this id.
    pub(crate) id: TableId,
    /// The number of roll backs of the bank when the Python object was made. After a roll back
    /// another table may have the `id`.
    pub(crate) roll_backs: u32,
}

/// Every handle of the bank that no call uses now. The handles are dropped in the order of the
/// fields.
#[derive(Debug)]
pub(crate) struct OpenHandles {
    pub(super) leases: Registry<Lease>,
    pub(super) pending: Registry<Pending>,
    pub(super) ahead_queues: Registry<Arc<AheadQueue>>,
    pub(super) prefetches: Registry<Prefetch>,
    pub(super) scans: Registry<SharedScan>,
    pub(super) vocabularies: Registry<Vocabulary>,
    pub(super) dependents: Registry<Dependent>,
    /// One handle for each Python object of a table. The handle of a dropped table stays until its
    /// object is gone, because it returns the error for a dropped table.
    pub(super) tables: Registry<Table>,
    pub(super) bank: Bank,
    /// The number of times that the cell's bank was taken back to a checkpoint.
    pub(super) roll_backs: u32,
}

impl OpenHandles {
    pub(super) fn new(bank: Bank, roll_backs: u32) -> Self {
        Self {
            leases: Registry::default(),
            pending: Registry::default(),
            ahead_queues: Registry::default(),
            prefetches: Registry::default(),
            scans: Registry::default(),
            vocabularies: Registry::default(),
            dependents: Registry::default(),
            tables: Registry::default(),
            bank,
            roll_backs,
        }
    }

    /// Takes out the handles with these numbers, so that the caller can drop them.
    pub(super) fn take_numbers(&mut self, numbers: &[u64]) -> (Vec<Table>, Vec<Vocabulary>) {
        let Self { tables, vocabularies, .. } = self;
        let tables = numbers.iter().filter_map(|&number| tables.take(&HandleId::of(number)));
        let tables = tables.collect();
        let vocabularies =
            numbers.iter().filter_map(|&number| vocabularies.take(&HandleId::of(number)));
        (tables, vocabularies.collect())
    }

    pub(super) fn table(&self, id: TableHandle) -> PyResult<Table> {
        self.tables.get(&id).cloned().ok_or_else(errors::not_in_checkpoint)
    }

    /// Closes the dependents, which hold further handles of the bank. Must be called before `self`
    /// is dropped.
    pub(super) fn close_dependents(&self) {
        self.dependents.handles().for_each(|dependent| dependent.0.close());
    }

    /// Drops all handles and the bank, and returns the changes that are lost. `until_alone` must
    /// wait until no call has a handle any more.
    pub(super) fn end(self, until_alone: impl FnOnce()) -> Option<Unsaved> {
        let bank = self.bank.clone();
        drop(self);
        until_alone();
        bank.unsaved()
    }
}

/// A kind of handle that has a registry in the cell.
pub(crate) trait Registered: Sized + Send {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self>;
}

impl Registered for Lease {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self> {
        &mut open.leases
    }
}

impl Registered for Pending {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self> {
        &mut open.pending
    }
}

impl Registered for Arc<AheadQueue> {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self> {
        &mut open.ahead_queues
    }
}

impl Registered for Prefetch {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self> {
        &mut open.prefetches
    }
}

impl Registered for SharedScan {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self> {
        &mut open.scans
    }
}

impl Registered for Table {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self> {
        &mut open.tables
    }
}

impl Registered for Vocabulary {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self> {
        &mut open.vocabularies
    }
}

impl Registered for Dependent {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self> {
        &mut open.dependents
    }
}

/// Calls on handles. They work for every kind of handle that has a registry.
impl BankCell {
    /// Makes a handle of the bank with the GIL released, and keeps it.
    pub(crate) fn keep_of_bank<H: Registered>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bank) -> embank::Result<H> + Send,
    ) -> PyResult<HandleId<H>> {
        let bank = self.pick(|open| Ok(open.bank.clone()))?;
        let kept = self.run(py, move || Ok(self.keep(call(&bank)?)))?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Makes a handle of a table with the GIL released, and keeps it.
    pub(crate) fn keep_of_table<H: Registered>(
        &self,
        py: Python<'_>,
        table: TableHandle,
        call: impl FnOnce(&Table) -> embank::Result<H> + Send,
    ) -> PyResult<HandleId<H>> {
        let table = self.pick(|open| open.table(table))?;
        let kept = self.run(py, move || Ok(self.keep(call(&table)?)))?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Runs `call` on a handle with the GIL released. The handle stays in its registry. `None` if
    /// the registry does not have it.
    pub(crate) fn with_shared<H: Registered + Clone, R: Send>(
        &self,
        py: Python<'_>,
        id: HandleId<H>,
        call: impl FnOnce(&H) -> embank::Result<R> + Send,
    ) -> PyResult<Option<R>> {
        let handle = self.pick(|open| Ok(H::registry(open).get(&id).cloned()))?;
        self.run(py, move || handle.map(|handle| call(&handle)).transpose())
    }

    /// Takes a handle and runs `call` on it with the GIL released. `None` if the registry does not
    /// have it.
    pub(crate) fn with_taken<H: Registered, R: Send>(
        &self,
        py: Python<'_>,
        id: HandleId<H>,
        call: impl FnOnce(H) -> embank::Result<R> + Send,
    ) -> PyResult<Option<R>> {
        let handle = self.pick(|open| Ok(H::registry(open).take(&id)))?;
        self.run(py, move || handle.map(call).transpose())
    }

    /// Calls `look` on a handle under the cell's lock, so `look` must be short. `None` if the
    /// registry does not have the handle or the bank is closed.
    pub(crate) fn look_at<H: Registered, R>(
        &self,
        id: HandleId<H>,
        look: impl FnOnce(&H) -> R,
    ) -> PyResult<Option<R>> {
        self.look(|open| open.and_then(|open| H::registry(open).get(&id).map(look)))
    }

    /// Drops a handle if the registry has it. `close` waits for the drop. Never fails, because the
    /// garbage collector calls it too.
    pub(crate) fn forget<H: Registered>(&self, id: HandleId<H>) {
        let Some(handle) = self.pick_forgotten(id) else { return };
        let call = InFlight::of(self);
        detached(move || drop(handle));
        drop(call);
    }

    /// Stores a handle that a call in flight has made. Drops the handle and returns `None` if the
    /// bank was closed in between.
    pub(super) fn keep<H: Registered>(&self, handle: H) -> Option<HandleId<H>> {
        self.store(handle, |open, handle| H::registry(open).keep(handle))
    }
}

/// The number of the next [`HandleId`] of the process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The id of a handle of type `H`. Ids are unique in the process, so the id of a dropped handle is
/// in no registry.
pub(crate) struct HandleId<H> {
    number: u64,
    handle: PhantomData<fn() -> H>,
}

impl<H> HandleId<H> {
    fn new() -> Self {
        // Relaxed: only the uniqueness of the numbers matters, and they order nothing.
        Self::of(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn of(number: u64) -> Self {
        Self { number, handle: PhantomData }
    }

    /// The number of the handle. No other handle of the process has it.
    pub(super) fn number(self) -> u64 {
        self.number
    }
}

// Not derived, because derived implementations would require the traits of `H`.
impl<H> Clone for HandleId<H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for HandleId<H> {}

impl<H> PartialEq for HandleId<H> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<H> Eq for HandleId<H> {}

impl<H> Hash for HandleId<H> {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.number.hash(state);
    }
}

impl<H> fmt::Debug for HandleId<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleId({})", self.number)
    }
}

/// The handles of one kind that no call has taken.
#[derive(Debug)]
pub(crate) struct Registry<H> {
    handles: HashMap<HandleId<H>, H>,
}

impl<H> Default for Registry<H> {
    fn default() -> Self {
        Self { handles: HashMap::new() }
    }
}

impl<H> Registry<H> {
    /// Stores a new handle and returns its id.
    pub(crate) fn keep(&mut self, handle: H) -> HandleId<H> {
        let id = HandleId::new();
        self.insert(id, handle);
        id
    }

    /// Stores a handle under a known id. An older handle with this id is dropped.
    pub(crate) fn insert(&mut self, id: HandleId<H>, handle: H) {
        self.handles.insert(id, handle);
    }

    pub(crate) fn get(&self, id: &HandleId<H>) -> Option<&H> {
        self.handles.get(id)
    }

    /// Removes a handle and returns it.
    pub(crate) fn take(&mut self, id: &HandleId<H>) -> Option<H> {
        self.handles.remove(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&HandleId<H>, &H)> {
        self.handles.iter()
    }

    pub(crate) fn handles(&self) -> impl Iterator<Item = &H> {
        self.handles.values()
    }
}
