//! What ends with the bank: pipelines and their feeds.

use std::sync::Arc;

use embank::Bank;
use pyo3::prelude::*;

use super::bank_cell::{BankCell, InFlight};
use super::handles::DependentId;
use crate::errors;

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

/// What a call made, and the name by which the bank's cell knows it.
pub(crate) struct Attached<D> {
    pub(crate) id: DependentId,
    pub(crate) dependent: Arc<D>,
}

impl BankCell {
    /// Makes what ends with the bank, with the GIL released, and keeps a share of it. An error of
    /// the call is the inner one.
    pub(crate) fn attach<D: EndsWithBank + 'static, E: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Bank) -> Result<Arc<D>, E> + Send,
    ) -> PyResult<Result<Attached<D>, E>> {
        let bank = self.pick(|open| Ok(open.bank.clone()))?;
        let made = self.run(py, move || {
            let dependent = match call(&bank) {
                Ok(dependent) => dependent,
                Err(error) => return Ok(Some(Err(error))),
            };
            let share: Arc<dyn EndsWithBank> = Arc::<D>::clone(&dependent);
            let id = self.keep(Dependent(share));
            Ok(id.map(|id| Ok(Attached { id, dependent })))
        })?;
        made.ok_or_else(errors::bank_closed)
    }

    /// Saves what the dependents have numbered and the bank lacks, with the GIL released.
    pub(crate) fn save_dependents(&self, py: Python<'_>) -> PyResult<()> {
        let shares: Vec<_> = self.pick(|open| {
            Ok(open.dependents.handles().map(|dependent| Arc::clone(&dependent.0)).collect())
        })?;
        let in_flight = InFlight::of(self);
        let saved = shares.iter().try_for_each(|share| share.save(py));
        drop(shares);
        drop(in_flight);
        saved
    }
}
