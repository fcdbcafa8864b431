//! What every handle of an open bank works with: the store, reading ahead, times to wait, and
//! counters of waits.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use embank_kv::Store;
use embank_kv::locks::Mutex;

use crate::lookahead::{self, Lookahead};
use crate::pool::BatchPool;
use crate::row::times::Times;
use crate::stats::WaitCounters;
use crate::stats::unsaved::Unsaved;

/// What all handles of a bank, of its tables and of its vocabularies share. The bank is open as
/// long as it is there.
#[derive(Debug)]
pub(crate) struct Context {
    // Before the store: dropping it stops the worker that uses the store.
    pub(crate) lookahead: Lookahead,
    pub(crate) store: Arc<Store>,
    pub(crate) wait_timeout: Duration,
    pub(crate) lease_timeout: Option<Duration>,
    pub(crate) waiting: WaitCounters,
    /// Some lease has been ended by another thread than the one that took it.
    pub(crate) leases_change_hands: AtomicBool,
    pub(crate) times: Times,
    /// Held while tables that admission keeps beside others are made or dropped, and while the
    /// tables that they belong to are. Taken after the lock of the bank's tables, if both are.
    pub(crate) side_tables: Mutex<()>,
    pub(crate) budget: Budget,
    pub(crate) pool: BatchPool,
}

/// The memory of a bank, as its options gave it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) bytes: u64,
    pub(crate) lookahead_queue_keys: Option<usize>,
}

impl Budget {
    /// An error of the store about its part of the budget as one about the whole.
    pub(crate) fn in_terms_of_the_bank(self, error: embank_kv::Error) -> embank_kv::Error {
        match error {
            embank_kv::Error::BudgetTooSmall { needed_bytes, what, .. } => {
                // The queue's share grows with the budget unless its size was given.
                let needed_bytes = match self.lookahead_queue_keys {
                    Some(keys) => needed_bytes.saturating_add(lookahead::memory_bytes(keys)),
                    None => lookahead::budget_for(needed_bytes),
                };
                embank_kv::Error::BudgetTooSmall { budget_bytes: self.bytes, needed_bytes, what }
            }
            other => other,
        }
    }
}

/// Tells of changes that no checkpoint has: they end with the bank.
impl Drop for Context {
    fn drop(&mut self) {
        let unsaved = Unsaved::of(&self.store.stats());
        if let Some(unsaved) = unsaved {
            log::warn!("{}", unsaved.describe(self.store.path()));
        }
    }
}
