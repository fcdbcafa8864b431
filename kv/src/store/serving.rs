//! What the calls on a store work on.

use std::ops::Deref;
use std::sync::Arc;

use super::Store;
use super::reading::Reading;
use crate::engine::core::Core;

/// The core of a store.
#[derive(Debug)]
pub(super) enum Serving {
    /// Open for writing: the same core until the store is dropped.
    Writing(Arc<Core>),
    /// Open to read only: the core of the checkpoint that the store is at, which a refresh exchanges.
    Reading(Box<Reading>),
}

/// The core that a call works on, from its beginning to its end.
pub(crate) enum Served<'a> {
    /// Of a store that is open for writing: a call counts no reference.
    Lent(&'a Arc<Core>),
    /// Of a read-only store: a refresh meanwhile leaves the call its core.
    Owned(Arc<Core>),
}

impl Served<'_> {
    /// For what outlives the call, such as a scan.
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

    /// Whether the store was opened to read only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(self.serving, Serving::Reading(_))
    }
}
