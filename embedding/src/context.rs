//! The state that all handles of an open bank share: the store, lookahead, timeouts, and counters
//! of waits.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use embank_kv::Store;
use embank_kv::locks::Mutex;

use crate::error::StoreError;
use crate::lookahead::{self, Lookahead};
use crate::pool::BatchPool;
use crate::row::times::Times;
use crate::stats::WaitCounters;
use crate::stats::unsaved::Unsaved;

/// All handles of a bank, of its tables and of its vocabularies share this state. The bank stays
/// open while the state exists.
#[derive(Debug)]
pub(crate) struct Context {
    // Declared before `store`: Rust drops fields in this order, so the lookahead thread stops
    // before the store is dropped.
    pub(crate) lookahead: Lookahead,
    pub(crate) store: Arc<Store>,
    pub(crate) wait_timeout: Duration,
    pub(crate) lease_timeout: Option<Duration>,
    pub(crate) waiting: WaitCounters,
    /// True once a thread has ended a lease that another thread took and did not hand over.
    pub(crate) leases_change_hands: AtomicBool,
    pub(crate) times: Times,
    /// A thread holds this lock while it makes or drops a table or the table's side table, in which
    /// admission counts Gets. A thread that also needs the lock of the bank's tables must take that
    /// lock first.
    pub(crate) side_tables: Mutex<()>,
    pub(crate) budget: Budget,
    pub(crate) pool: BatchPool,
}

/// The memory budget of a bank, from its options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) bytes: u64,
    pub(crate) lookahead_queue_keys: Option<usize>,
}

impl Budget {
    /// Translates an error that states the store's part of the memory budget into an error that
    /// states the bank's whole budget.
    pub(crate) fn in_terms_of_the_bank(self, error: StoreError) -> StoreError {
        match error {
            StoreError::BudgetTooSmall { needed_bytes, what, .. } => {
                // If the options set no queue length, the queue's memory grows with the budget.
                let needed_bytes = match self.lookahead_queue_keys {
                    Some(keys) => needed_bytes.saturating_add(lookahead::memory_bytes(keys)),
                    None => lookahead::budget_for(needed_bytes),
                };
                StoreError::BudgetTooSmall { budget_bytes: self.bytes, needed_bytes, what }
            }
            other => other,
        }
    }
}

/// Logs a warning if the bank closes with changes that no checkpoint contains. A forked child only
/// drops its copy, and the bank stays open in the parent.
impl Drop for Context {
    fn drop(&mut self) {
        if !self.store.is_of_this_process() {
            return;
        }
        let unsaved = Unsaved::of(&self.store.stats());
        if let Some(unsaved) = unsaved {
            log::warn!("{}", unsaved.describe(self.store.path()));
        }
    }
}
