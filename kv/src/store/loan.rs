//! Memory of the store's budget that the store lends to a caller.

use std::sync::Arc;

use super::Store;
use crate::engine::core::Core;
use crate::error::Result;

/// Memory that the store does not use until this loan is dropped. See [`Store::lend_memory`].
#[derive(Debug)]
pub struct Loan {
    core: Arc<Core>,
    bytes: u64,
}

impl Loan {
    /// Makes the store release the lent memory. The caller may use the memory after this call. The
    /// call may wait until a page is written.
    ///
    /// # Errors
    /// `Poisoned` if an earlier write to the log has failed.
    pub fn make_room(&self) -> Result<()> {
        self.core.cache.give_way(&self.core.log);
        self.core.log.give_way()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if !self.core.home.is_here() {
            return;
        }
        self.core.budget.take_back(self.bytes);
        self.core.log.allowance_changed();
    }
}

impl Store {
    /// Lends `bytes` bytes of the memory budget, without waiting. The caller may use the memory
    /// after [`Loan::make_room`].
    ///
    /// # Errors
    /// `BudgetTooSmall` if the remaining memory would be too small for the log to turn its pages.
    pub fn lend_memory(&self, bytes: u64) -> Result<Loan> {
        let core = self.core().into_shared();
        core.budget
            .lend_for(bytes, "prefetching, with the prefetches and scans that are under way,")?;
        Ok(Loan { core, bytes })
    }
}
