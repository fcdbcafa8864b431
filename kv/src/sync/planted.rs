//! Bugs that the models must find.
//!
//! A model that can't fail proves nothing. So each of these can be planted in a model's run, and a test asks that it
//! is found (`models`). Outside of such a build `planted` is a constant, and nothing of it is left.

/// What is left out or done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// Record and bucket locks are taken by a load and a store in place of a compare-and-swap.
    #[cfg(embank_shuttle)]
    ExchangeUncompared,
    /// A reader without the lock looks at the generation only, as in the public MLKV code.
    ReadThroughLock,
    /// A Get takes a count without looking at the bound under the row's lock.
    AcquireUnchecked,
    /// A release wakes who waits, but is not counted: who is about to wait does not see it.
    ReleaseUncounted,
    /// An expiring lease and its owner look at its state and set it, in place of a compare-and-swap.
    ExpiryUncompared,
    /// An insert does not look whether the slots are still those that were searched.
    InsertUnchecked,
    /// A lookup does not look at the bucket's meta word again.
    LookupOnce,
    /// A split does not tell that entries are moving.
    SplitUntold,
    /// A split does not count the copies that it makes of entries without tag bits.
    SplitUncounted,
    /// A split sends an entry without tag bits to the side of its chain's head.
    SplitByHead,
    /// Whoever gets to turn a page does not look whether another has turned it.
    TurnTwice,
    /// The writer writes and frees pages without waiting for who is pinned.
    MoveAtOnce,
    /// Who waits for a page to be written is not told that it is.
    FlushUntold,
    /// Calls that wait on a full disk are not told of the write that succeeds.
    RoomUntold,
    /// A checkpoint's pause does not wait for who is pinned.
    PauseAtOnce,
    /// A bucket is changed without being saved for the image that still has to have it.
    ChangeUnsaved,
    /// An image copies a bucket without looking, under its lock, whether somebody has saved it meanwhile.
    CopyUnchecked,
    /// Compaction moves the log's beginning before it has moved the rows below.
    BeginEarly,
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

    /// Plants a bug in all models that this thread of the system runs from now on.
    #[cfg(test)]
    pub(crate) fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }
}
