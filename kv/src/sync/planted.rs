//! Bugs that the models must find.
//!
//! A model that can't fail proves nothing. Each of these bugs can therefore be planted in a model's
//! run, and a test asserts that the model fails (`models`). In other builds `planted` is a
//! constant, so the compiler removes the bugs.

/// A bug: a step that is left out or done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A record's or bucket's lock is taken by a load and a store instead of a compare-and-swap.
    #[cfg(embank_shuttle)]
    ExchangeUncompared,
    /// A reader without the lock checks only the generation, as the public MLKV code does.
    ReadThroughLock,
    /// A get raises the count without checking the bound under the row's lock.
    AcquireUnchecked,
    /// A release wakes waiting threads without being counted, so a thread that is about to wait
    /// misses it.
    ReleaseUncounted,
    /// An expirer and the lease's owner load and store the lease's state instead of a
    /// compare-and-swap.
    ExpiryUncompared,
    /// An insert does not check that the matching slots are still the searched ones.
    InsertUnchecked,
    /// A lookup does not check the bucket's meta word again.
    LookupOnce,
    /// A split does not set the bit that announces moving entries.
    SplitUntold,
    /// A split does not count its copies of entries without tag bits.
    SplitUncounted,
    /// A split moves an entry without tag bits only to the side of its chain's head.
    SplitByHead,
    /// A thread that turns a page does not check whether another thread has turned it.
    TurnTwice,
    /// The writer thread writes and frees pages without waiting for pinned threads.
    MoveAtOnce,
    /// The writer thread does not wake threads that wait for a page to be written.
    FlushUntold,
    /// The successful write on a full disk does not wake the waiting calls.
    RoomUntold,
    /// A checkpoint's pause does not wait for pinned threads.
    PauseAtOnce,
    /// A bucket is changed without being saved for the image that still needs it.
    ChangeUnsaved,
    /// An image copies a bucket without checking, under the bucket's lock, whether another thread
    /// has saved it.
    CopyUnchecked,
    /// Compaction moves the log's beginning before it has moved the rows below it.
    BeginEarly,
    /// A batch changes a row where its hint leads, although the row is in the read-only region.
    HintUnchecked,
}

#[cfg(not(embank_shuttle))]
#[inline(always)]
pub(crate) const fn planted(_: Planted) -> bool {
    false
}

#[cfg(all(test, embank_shuttle))]
pub(crate) use modelled::plant;
#[cfg(embank_shuttle)]
pub(crate) use modelled::planted;

#[cfg(embank_shuttle)]
mod modelled {
    use std::cell::Cell;

    use super::Planted;

    std::thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    pub(crate) fn planted(bug: Planted) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants a bug in all models that this system thread runs from now on.
    #[cfg(test)]
    pub(crate) fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }
}
