//! Chooses the core that a call on a store works on.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::Store;
use super::reading::Reading;
use crate::engine::batch::Tally;
use crate::engine::core::Core;
use crate::error::Result;
use crate::operation::{Clock, Operation, Outcome};
use crate::record::address::TableId;

/// The core of a store. The variant says how the store is open.
#[derive(Debug)]
pub(super) enum Serving {
    /// The store is open for writing and has one core until it is dropped.
    Writing(Arc<Core>),
    /// The store is open read-only, and this value holds the core of its checkpoint. A refresh
    /// replaces the core.
    Reading(Box<Reading>),
}

/// The core that a call works on, from the call's beginning to its end.
pub(crate) enum Served<'a> {
    /// The core of a store that is open for writing. It is borrowed, so a call does not count a
    /// reference.
    Lent(&'a Arc<Core>),
    /// The core of a read-only store. The call counts a reference, so it keeps this core if a
    /// refresh replaces the store's core.
    Owned(Arc<Core>),
}

impl Served<'_> {
    /// Returns a counted reference, for a value that outlives the call (for example a scan).
    pub(super) fn into_shared(self) -> Arc<Core> {
        match self {
            Served::Lent(core) => Arc::clone(core),
            Served::Owned(core) => core,
        }
    }
}

impl Deref for Served<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        match self {
            Served::Lent(core) => core,
            Served::Owned(core) => core,
        }
    }
}

impl Store {
    #[inline]
    pub(crate) fn core(&self) -> Served<'_> {
        match &self.serving {
            Serving::Writing(core) => Served::Lent(core),
            Serving::Reading(reading) => Served::Owned(Arc::clone(&reading.core.read())),
        }
    }

    /// True if the store is open read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(self.serving, Serving::Reading(_))
    }
}

/// A store's state that the batches of one call share. See [`Store::call_state`].
pub struct CallState<'s>(pub(super) Served<'s>);

impl fmt::Debug for CallState<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CallState").finish_non_exhaustive()
    }
}

impl CallState<'_> {
    /// Runs an operation as [`Store::execute`] does, in this state.
    ///
    /// # Errors
    /// The errors of [`Store::execute`].
    pub fn execute<O: Operation>(
        &self,
        table: TableId,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        self.0.run(table, keys, clock, operation, &mut Tally::default())
    }
}
