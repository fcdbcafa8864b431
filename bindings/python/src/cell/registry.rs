//! Handles by the names under which Python's objects know them.
//!
//! A Python object holds no handle of the bank but the name of one. The handle lies in a [`Registry`] of the bank's
//! cell, where closing the bank finds it.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the next [`HandleId`] of the process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Names a handle of type `H`. No two handles of a process have the same name, so the name of one that is gone leads
/// to none, in any registry.
pub(crate) struct HandleId<H> {
    number: u64,
    handle: PhantomData<fn() -> H>,
}

impl<H> HandleId<H> {
    fn new() -> Self {
        // Relaxed: the numbers have to differ, and order nothing.
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), handle: PhantomData }
    }
}

// By hand: what is derived would ask `H` for the same traits.
impl<H> Clone for HandleId<H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for HandleId<H> {}

impl<H> PartialEq for HandleId<H> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<H> Eq for HandleId<H> {}

impl<H> Hash for HandleId<H> {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.number.hash(state);
    }
}

impl<H> fmt::Debug for HandleId<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleId({})", self.number)
    }
}

/// The handles of one kind that no call has taken.
#[derive(Debug)]
pub(crate) struct Registry<H, Id = HandleId<H>> {
    handles: HashMap<Id, H>,
}

impl<H, Id> Default for Registry<H, Id> {
    fn default() -> Self {
        Self { handles: HashMap::new() }
    }
}

impl<H> Registry<H> {
    /// Stores a handle that is new, and names it.
    pub(crate) fn keep(&mut self, handle: H) -> HandleId<H> {
        let id = HandleId::new();
        self.insert(id, handle);
        id
    }
}

impl<H, Id: Eq + Hash> Registry<H, Id> {
    /// Stores a handle whose name is known. Another one of that name is dropped.
    pub(crate) fn insert(&mut self, id: Id, handle: H) {
        self.handles.insert(id, handle);
    }

    pub(crate) fn get(&self, id: &Id) -> Option<&H> {
        self.handles.get(id)
    }

    /// Takes a handle out.
    pub(crate) fn take(&mut self, id: &Id) -> Option<H> {
        self.handles.remove(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Id, &H)> {
        self.handles.iter()
    }

    pub(crate) fn handles(&self) -> impl Iterator<Item = &H> {
        self.handles.values()
    }
}
