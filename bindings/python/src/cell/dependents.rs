//! Objects that end with the bank: pipelines and their feeds.

use std::sync::Arc;

use embank::Bank;
use pyo3::prelude::*;

use super::bank_cell::{BankCell, InFlight};
use super::handles::DependentId;
use crate::errors;

/// A dependent: an object, such as a pipeline, that owns handles of the bank itself. The cell must
/// end it before the bank can close.
pub(crate) trait EndsWithBank: std::fmt::Debug + Send + Sync {
    /// Saves the object's new values in the bank, with the GIL released.
    fn save(&self, py: Python<'_>) -> PyResult<()>;

    /// Drops the object's handles of the bank for good. The caller must not hold the GIL.
    fn close(&self);
}

/// The cell's share of a dependent. Its drop closes the dependent.
#[derive(Debug)]
pub(crate) struct Dependent(pub(super) Arc<dyn EndsWithBank>);

impl Drop for Dependent {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A dependent, and its id in the bank's cell.
pub(crate) struct Attached<D> {
    pub(crate) id: DependentId,
    pub(crate) dependent: Arc<D>,
}

impl BankCell {
    /// Makes a dependent with the GIL released, and keeps a share of it. The outer `Result` is an
    /// error of the bank. The inner `Result` is an error of `call`.
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

    /// Saves the new values of all dependents in the bank, with the GIL released.
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
