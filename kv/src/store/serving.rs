//! What the calls on a store work on.

use std::ops::Deref;
use std::sync::Arc;

use super::Store;
use super::reading::Reading;
use crate::engine::core::Core;

/// The core of a store.
#[derive(Debug)]
pub(super) enum Serving {
    /// Open for writing: the same for ever.
    Writing(Arc<Core>),
    /// Open to read only: that of the checkpoint that it is at.
    Reading(Box<Reading>),
}

/// A core for the length of a call.
pub(crate) enum Served<'a> {
    ForEver(&'a Arc<Core>),
    Now(Arc<Core>),
}

impl Deref for Served<'_> {
    type Target = Arc<Core>;

    #[inline]
    fn deref(&self) -> &Arc<Core> {
        match self {
            Served::ForEver(core) => core,
            Served::Now(core) => core,
        }
    }
}

impl Store {
    /// What a call works on, from its beginning to its end.
    #[inline]
    pub(crate) fn core(&self) -> Served<'_> {
        match &self.serving {
            Serving::Writing(core) => Served::ForEver(core),
            Serving::Reading(reading) => Served::Now(Arc::clone(&reading.core.read())),
        }
    }

    /// Whether the store was opened to read only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(self.serving, Serving::Reading(_))
    }
}
