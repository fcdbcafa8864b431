//! Tables of a cell. A table's id stays valid through a roll back.

use std::sync::Arc;

use embank::{Admission, Bank, Table};
use pyo3::prelude::*;

use super::bank_cell::BankCell;
use super::handles::{CellTableId, TableHandle};
use crate::errors;

/// The facts of a table that a Python table object keeps.
#[derive(Debug)]
pub(crate) struct TableKey {
    pub(crate) handle: TableHandle,
    /// Orders tables: every call that takes leases of several tables takes them in this order.
    pub(crate) id: CellTableId,
    pub(crate) name: Arc<str>,
    pub(crate) dim: usize,
    /// True if a key can stay without a row after its first get (`TableConfig::admission`).
    pub(crate) is_gated: bool,
}

impl BankCell {
    /// Opens a table with the GIL released and keeps its handle.
    pub(crate) fn open_table(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bank) -> embank::Result<Table> + Send,
    ) -> PyResult<TableKey> {
        let bank = self.pick(|open| Ok(open.bank.clone()))?;
        let kept = self.run(py, move || {
            let table = call(&bank)?;
            Ok(self.store(table, |open, table| {
                let id = CellTableId { id: table.id(), roll_backs: open.roll_backs };
                let name = table.name().into();
                let dim = table.dim();
                let is_gated = table.config().admission != Admission::Always;
                TableKey { handle: open.tables.keep(table), id, name, dim, is_gated }
            }))
        })?;
        kept.ok_or_else(errors::bank_closed)
    }

    /// The number of table objects whose handles the cell has.
    pub(crate) fn table_handles(&self) -> PyResult<usize> {
        self.look(|open| open.map_or(0, |open| open.tables.handles().count()))
    }

    /// True if two table objects stand for one table. Two objects with the same table number stand
    /// for different tables if one of the tables was dropped.
    pub(crate) fn is_one_table(&self, one: &TableKey, other: &TableKey) -> PyResult<bool> {
        if one.id.id.number() != other.id.id.number() {
            return Ok(false);
        }
        self.look(|open| {
            let tables = &open.ok_or_else(errors::bank_closed)?.tables;
            let id_now = |of: &TableKey| tables.get(&of.handle).map(Table::id);
            Ok(id_now(one).is_some_and(|id_of_one| Some(id_of_one) == id_now(other)))
        })?
    }

    /// Runs `call` on a table from [`open_table`](Self::open_table) with the GIL released.
    pub(crate) fn with_table<R: Send>(
        &self,
        py: Python<'_>,
        id: TableHandle,
        call: impl FnOnce(&Table) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let table = self.pick(|open| open.table(id))?;
        self.run(py, move || call(&table))
    }
}
