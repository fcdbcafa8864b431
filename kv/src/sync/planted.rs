//! Bugs that the models must find.
//!
//! A model that can't fail proves nothing. Each of these bugs can therefore be planted, which means
//! switched on while a model runs. A test asserts that the model then fails (`testing::models`). In
//! builds without models, `planted` is the constant false, so the compiler removes the bugs.

/// A bug: a step that is left out or done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// Every compare-and-swap stores its new value without comparing. Two threads can therefore
    /// take the lock of one record or bucket.
    #[cfg(embank_shuttle)]
    ExchangeUncompared,
    /// A reader without a record's lock checks only that the generation is unchanged, and not that
    /// the record is unlocked. The public code of MLKV has this bug.
    ReadThroughLock,
    /// A get adds 1 to a row's clock without checking the staleness bound when it takes the row's
    /// lock.
    AcquireUnchecked,
    /// A release wakes the waiting threads without raising the count of releases. A thread that
    /// begins to wait afterwards compares this count and misses the release.
    ReleaseUncounted,
    /// A lease's state changes by a load and a store instead of a compare-and-swap. The lease's
    /// owner and a thread that expires the lease can then both succeed.
    ExpiryUncompared,
    /// An insert into the index does not check that the bucket's matching entries are still those
    /// that the caller's search has seen.
    InsertUnchecked,
    /// A record whose predecessor lies below the log's beginning becomes the row's newest record.
    /// The row may have gone to the cold tier.
    RowBelowBegin,
    /// A lookup in the index does not check the bucket's meta word again after it has read the
    /// slots, so it misses a split.
    LookupOnce,
    /// A split does not set the bit that tells lookups that the bucket's entries are moving.
    SplitUntold,
    /// A split does not count the copies that it makes of entries without tag bits, which go into
    /// both buckets.
    SplitUncounted,
    /// A split moves an entry without tag bits only into the bucket of its chain's newest record.
    /// Older records of the chain may belong to the other bucket.
    SplitByHead,
    /// Buckets are folded without a pause of the batches.
    FoldUnpaused,
    /// After a fold, the next image of the index may be one of changes.
    FoldUntold,
    /// A thread that begins a new page at the log's tail does not check whether another thread has
    /// done so already.
    TurnTwice,
    /// The writer thread writes and frees pages without waiting for pinned threads.
    MoveAtOnce,
    /// The writer thread does not wake threads that wait for a page to be written.
    FlushUntold,
    /// After the disk was full, the first successful write does not wake the calls that wait for
    /// memory.
    RoomUntold,
    /// A checkpoint's pause of batches does not wait for threads that are pinned, which means that
    /// they work in memory.
    PauseAtOnce,
    /// A bucket of the index is changed without being saved for the checkpoint image that still
    /// needs its old content.
    ChangeUnsaved,
    /// The thread that writes a checkpoint image copies a bucket without checking, under the
    /// bucket's lock, whether a batch has already saved it.
    CopyUnchecked,
    /// Compaction moves the log's beginning past a page before it has copied the page's rows to the
    /// tail.
    BeginEarly,
    /// The writer thread leaves pages out that a checkpoint needs, because the log's beginning has
    /// passed them since.
    CutUnwritten,
    /// A spill moves the log's beginning before searches can see the run with the rows.
    SpillBeginFirst,
    /// A spill moves rows with outstanding Gets to the cold tier, where they lose their clocks.
    SpillLeased,
    /// A record that is equal to the cold tier's counts as equal also after a change of its value.
    /// A spill then drops it.
    CleanKept,
    /// A spill writes rows without the mark *uncounted*, so the count of rows never gets them.
    CountsApart,
    /// A batch gives a key a record although the log's beginning has passed records that other
    /// threads have published since the search.
    InsertStale,
    /// The file of a part is removed although a batch has the part.
    PartRemovedEarly,
    /// The memory of a part goes back to the budget without waking the threads that wait for it.
    PartMemoryUntold,
    /// A part of a run is dropped once a base part has merged some of its hashes.
    RunDroppedEarly,
    /// A batch changes the record to which a hint leads, although the record is in the read-only
    /// region.
    HintUnchecked,
    /// A dropped table is counted after the lock of the tables is released. A checkpoint that takes
    /// the lock in between gets the id of a state that has the table.
    DropCountedLate,
    /// A crew that one caller has is given to another caller too.
    CrewShared,
    /// A helper enters a round that its caller has closed.
    EnterClosed,
    /// A helper sleeps without looking for a job under the lock.
    SleepUnchecked,
    /// The last helper that leaves a round does not wake the caller.
    LeftUntold,
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

    /// Plants a bug in all models that this system thread runs from now on. `None` plants no bug.
    #[cfg(test)]
    pub(crate) fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }
}
