//! Memory of the budget that a caller uses for a while.

use std::sync::Arc;

use super::Store;
use crate::engine::core::Core;
use crate::error::Result;

/// Memory that the store does without until this is dropped. See [`Store::lend_memory`].
#[derive(Debug)]
pub struct Loan {
    core: Arc<Core>,
    bytes: u64,
}

impl Loan {
    /// Has the store get by with less, so that the memory may be used from now on. May wait until a page is written.
    ///
    /// # Errors
    /// `Poisoned` after a failed write.
    pub fn make_room(&self) -> Result<()> {
        self.core.cache.give_way(&self.core.log);
        self.core.log.give_way()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.core.budget.take_back(self.bytes);
        self.core.log.allowance_changed();
    }
}

impl Store {
    /// Lends so many bytes of the memory budget, at once; they may be used after [`Loan::make_room`].
    ///
    /// # Errors
    /// `BudgetTooSmall` if so much is lent already that the log could not turn its pages.
    pub fn lend_memory(&self, bytes: u64) -> Result<Loan> {
        let core = self.core().into_shared();
        core.budget
            .lend_for(bytes, "prefetching, with the prefetches and scans that are under way,")?;
        Ok(Loan { core, bytes })
    }
}
