//! What an open bank consists of.

use std::sync::Arc;

use embank::locks::Mutex;
use embank::{Bank, Lease, Prefetch, Scan, Table, TableId, Unsaved, Vocabulary};
use pyo3::prelude::*;

use super::registry::{HandleId, Registry};
use crate::errors;

/// A scan; one call at a time uses it.
pub(crate) type SharedScan = Arc<Mutex<Scan>>;

pub(crate) type LeaseId = HandleId<Lease>;
pub(crate) type PrefetchId = HandleId<Prefetch>;
pub(crate) type ScanId = HandleId<SharedScan>;
pub(crate) type VocabularyId = HandleId<Vocabulary>;
pub(crate) type DependentId = HandleId<Dependent>;

/// Names a table within its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellTableId {
    /// Names it within its open bank: its name and its number may come to mean another.
    pub(crate) id: TableId,
    /// How often the bank was taken back when the object was made: an id may then come to mean
    /// another table.
    pub(crate) roll_backs: u32,
}

/// What has handles of the bank that the cell does not own: a pipeline.
pub(crate) trait EndsWithBank: std::fmt::Debug + Send + Sync {
    /// Gives the bank the values that it lacks, with the GIL released.
    fn save(&self, py: Python<'_>) -> PyResult<()>;

    /// Drops its handles of the bank, now and for good. Is called without the GIL.
    fn close(&self);
}

/// The cell's share of what ends with the bank. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Dependent(pub(super) Arc<dyn EndsWithBank>);

impl Drop for Dependent {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Every handle of the bank that is not in use by a call right now. Dropped in this order.
#[derive(Debug)]
pub(crate) struct OpenHandles {
    pub(super) leases: Registry<Lease>,
    pub(super) prefetches: Registry<Prefetch>,
    pub(super) scans: Registry<SharedScan>,
    pub(super) vocabularies: Registry<Vocabulary>,
    pub(super) dependents: Registry<Dependent>,
    /// Those that were dropped too: their handles say so.
    pub(super) tables: Registry<Table, CellTableId>,
    pub(super) bank: Bank,
    /// How often the cell's bank was taken back to a checkpoint.
    pub(super) roll_backs: u32,
}

impl OpenHandles {
    pub(super) fn new(bank: Bank, roll_backs: u32) -> Self {
        Self {
            leases: Registry::default(),
            prefetches: Registry::default(),
            scans: Registry::default(),
            vocabularies: Registry::default(),
            dependents: Registry::default(),
            tables: Registry::default(),
            bank,
            roll_backs,
        }
    }

    pub(super) fn table(&self, id: CellTableId) -> PyResult<Table> {
        self.tables.get(&id).cloned().ok_or_else(errors::not_in_checkpoint)
    }

    /// Ends what has handles of its own, before the handles here.
    pub(super) fn close_dependents(&self) {
        self.dependents.handles().for_each(|dependent| dependent.0.close());
    }

    /// Drops all handles and the bank, and returns what that loses. `until_alone` returns when no call has a handle.
    pub(super) fn end(self, until_alone: impl FnOnce()) -> Option<Unsaved> {
        let bank = self.bank.clone();
        drop(self);
        until_alone();
        bank.unsaved()
    }
}

/// A handle of which the cell has a registry.
pub(crate) trait Registered: Sized + Send {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self>;
}

impl Registered for Lease {
    fn registry(open: &mut OpenHandles) -> &mut Registry<Self> {
        &mut open.leases
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
