//! What is done alike with the handles of every kind that has a registry.

use embank::{Bank, Table};
use pyo3::prelude::*;

use super::bank_cell::{BankCell, InFlight};
use super::calls::detached;
use super::open::{CellTableId, Registered};
use super::registry::HandleId;
use crate::errors;

impl BankCell {
    /// Gets a handle of the bank with the GIL released, and keeps it.
    pub(crate) fn keep_of_bank<H: Registered>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bank) -> embank::Result<H> + Send,
    ) -> PyResult<HandleId<H>> {
        let bank = self.pick(|open| Ok(open.bank.clone()))?;
        let kept = self.run(py, move || Ok(self.keep(call(&bank)?)))?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Gets a handle of a table with the GIL released, and keeps it.
    pub(crate) fn keep_of_table<H: Registered>(
        &self,
        py: Python<'_>,
        table: CellTableId,
        call: impl FnOnce(&Table) -> embank::Result<H> + Send,
    ) -> PyResult<HandleId<H>> {
        let table = self.pick(|open| open.table(table))?;
        let kept = self.run(py, move || Ok(self.keep(call(&table)?)))?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// Runs `call` on a handle, which stays in its place, with the GIL released. `None` if it is gone.
    pub(crate) fn with_shared<H: Registered + Clone, R: Send>(
        &self,
        py: Python<'_>,
        id: HandleId<H>,
        call: impl FnOnce(&H) -> embank::Result<R> + Send,
    ) -> PyResult<Option<R>> {
        let handle = self.pick(|open| Ok(H::registry(open).get(&id).cloned()))?;
        self.run(py, move || handle.map(|handle| call(&handle)).transpose())
    }

    /// Runs `call` on a handle, which it consumes, with the GIL released. `None` if it is gone.
    pub(crate) fn with_taken<H: Registered, R: Send>(
        &self,
        py: Python<'_>,
        id: HandleId<H>,
        call: impl FnOnce(H) -> embank::Result<R> + Send,
    ) -> PyResult<Option<R>> {
        let handle = self.pick(|open| Ok(H::registry(open).take(&id)))?;
        self.run(py, move || handle.map(call).transpose())
    }

    /// Looks at a handle under the cell's lock, so not for long. `None` if it is gone or the bank is closed.
    pub(crate) fn look_at<H: Registered, R>(
        &self,
        id: HandleId<H>,
        look: impl FnOnce(&H) -> R,
    ) -> PyResult<Option<R>> {
        self.look(|open| open.and_then(|open| H::registry(open).get(&id).map(look)))
    }

    /// Drops a handle if it is there, as a call that `close` waits for. Never fails, for the garbage collector calls it
    /// too.
    pub(crate) fn forget<H: Registered>(&self, id: HandleId<H>) {
        let Some(handle) = self.pick_if_there(|open| H::registry(open).take(&id)) else { return };
        let call = InFlight::of(self);
        detached(move || drop(handle));
        drop(call);
    }

    /// Stores a handle that a call in flight came by, or drops it if the bank was closed meanwhile.
    pub(super) fn keep<H: Registered>(&self, handle: H) -> Option<HandleId<H>> {
        self.store(handle, |open, handle| H::registry(open).keep(handle))
    }
}
