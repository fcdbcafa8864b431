//! The operations and jobs that a batch can run, as the engine sees them.

use crate::operation::{Access, Operation, RowMark, Width};
use crate::record::address::Address;
use crate::record::clock::ClockWord;

/// The effect of a batch on a row that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The work looks only at the record's header, and only in memory.
    Locate,
    /// The work reads the value and leaves the row in place.
    Peek,
    /// The work reads the value. Afterwards the row is in mutable memory.
    Get,
    /// The work changes the value.
    Update,
    /// The work writes a new value without reading the old one.
    Put,
    /// The work changes the row's clock. Afterwards the row is in mutable memory.
    Touch,
    /// The work deletes the row. Afterwards its newest record is a tombstone.
    Delete,
    /// The work copies the row unchanged to the tail.
    Move,
}

/// How a batch gets room for its records when the tail's page is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// The batch waits until compaction has made room.
    Awaited,
    /// The batch does not wait. It uses the room that is reserved for work that frees space.
    Ending,
    /// The batch does not wait. It uses the room that is reserved for compaction.
    Compaction,
    /// The batch does not wait, and uses free room only. It runs within another batch, which waits
    /// if room is short.
    Spare,
}

/// What a batch does: an [`Operation`] of a caller, or one of the store's own jobs.
///
/// A job runs over tables of either width. The width is a constant of `Batch`.
pub(crate) trait Work {
    /// The operation whose methods get and give the values. A job that neither gets nor gives
    /// values has [`NoCaller`].
    type Caller: Operation;
    fn caller(&mut self) -> &mut Self::Caller;

    const EFFECT: Effect;
    /// The width of the tables that accept the work. `None` if the work runs over both.
    const WIDTH: Option<Width> = None;
    const ROOM: Room = Room::Awaited;
    /// True if the work ignores rows on disk.
    const IN_MEMORY: bool = matches!(Self::EFFECT, Effect::Locate);
    /// True if the work asks the cold tier for rows that the log does not have.
    const ASKS_COLD: bool = !Self::IN_MEMORY || matches!(Self::EFFECT, Effect::Locate);
    /// True if the work brings rows to mutable memory. Rows that are already there stay in place.
    const PROMOTES: bool = false;
    /// True if the reads of the work have lower priority than reads that a caller waits for.
    const AHEAD: bool = false;
    /// True if a row that the work reads from disk, and does not move to the tail, is copied into
    /// the read cache.
    const FILLS_CACHE: bool = true;

    /// True if the work may append records.
    const APPENDS: bool = !matches!(Self::EFFECT, Effect::Locate | Effect::Peek);
    /// True if the work changes or reads a row in mutable memory in place.
    const IN_PLACE: bool = matches!(
        Self::EFFECT,
        Effect::Get | Effect::Update | Effect::Put | Effect::Touch | Effect::Delete
    );
    /// True if the work gives a key that the log does not have a row without looking for an older
    /// version in the cold tier.
    const BLIND: bool = false;
    /// True if the work may insert a row that is missing.
    const INSERTS: bool = matches!(Self::EFFECT, Effect::Get | Effect::Update | Effect::Put);

    /// True if `Move` moves the row that was found at `address` with the clock `word`.
    fn wants(&self, _i: usize, _address: Address, _word: ClockWord) -> bool {
        true
    }
    /// True if `Delete` deletes the row. Called while the row is locked, or while no other thread
    /// can change it.
    fn deletes(&mut self, _i: usize, _value: &[u8], _outstanding: u32) -> bool {
        true
    }
    /// Called if `Locate`, or a work with `PROMOTES`, found the row in mutable memory.
    fn in_mutable_memory(&mut self, _i: usize, _mark: RowMark) {}
    /// Called if `Locate` found the row outside mutable memory. A row on disk may belong to another
    /// key with an equal hash, and a filter of the cold tier may err.
    fn elsewhere(&mut self, _i: usize) {}
    /// Called after a work with `PROMOTES` brought the row to mutable memory.
    fn moved(&mut self, _i: usize, _mark: RowMark) {}
    /// True if a moved row counts as promoted and not used since. `was` is true if the row counted
    /// as promoted before the move.
    fn is_promoted(was: bool) -> bool {
        let _ = was;
        false
    }
}

impl<O: Operation> Work for O {
    type Caller = O;
    #[inline(always)]
    fn caller(&mut self) -> &mut O {
        self
    }
    const EFFECT: Effect = match O::ACCESS {
        Access::Peek => Effect::Peek,
        Access::Get => Effect::Get,
        Access::Update => Effect::Update,
        Access::Put => Effect::Put,
        Access::Touch => Effect::Touch,
    };
    const WIDTH: Option<Width> = Some(O::WIDTH);
    const AHEAD: bool = O::AHEAD;
    const BLIND: bool = O::BLIND && matches!((O::ACCESS, O::WIDTH), (Access::Put, Width::Fixed));
}

/// The caller of a job, which neither gets nor gives values.
pub(crate) struct NoCaller;
impl Operation for NoCaller {
    const ACCESS: Access = Access::Peek;
}

/// Says that a job has no caller.
macro_rules! no_caller {
    () => {
        type Caller = NoCaller;
        fn caller(&mut self) -> &mut NoCaller {
            // Allocates nothing, because the value has no bytes.
            Box::leak(Box::new(NoCaller))
        }
    };
}

pub(crate) struct Delete;
impl Work for Delete {
    no_caller!();
    const EFFECT: Effect = Effect::Delete;
    const ROOM: Room = Room::Ending;
}

/// Deletes the rows for which the function returns true.
pub(crate) struct DeleteIf<F>(pub(crate) F);
impl<F: FnMut(usize, &[u8], u32) -> bool> Work for DeleteIf<F> {
    no_caller!();
    const EFFECT: Effect = Effect::Delete;
    const ROOM: Room = Room::Ending;
    fn deletes(&mut self, i: usize, value: &[u8], outstanding: u32) -> bool {
        (self.0)(i, value, outstanding)
    }
}

/// Brings rows to mutable memory, and reports the mark of each row.
pub(crate) struct Promote<'a, F>(pub(crate) &'a mut F);
impl<F: FnMut(usize, RowMark)> Work for Promote<'_, F> {
    no_caller!();
    const EFFECT: Effect = Effect::Move;
    const PROMOTES: bool = true;
    const AHEAD: bool = true;
    fn in_mutable_memory(&mut self, i: usize, mark: RowMark) {
        self.0(i, mark);
    }
    fn moved(&mut self, i: usize, mark: RowMark) {
        self.0(i, mark);
    }
    fn is_promoted(_: bool) -> bool {
        true
    }
}

/// Brings to mutable memory the rows that no operation has used or moved since `marks` were taken.
pub(crate) struct PromoteUnused<'a, F> {
    pub(crate) marks: &'a [RowMark],
    pub(crate) marked: &'a mut F,
}
impl<F: FnMut(usize, RowMark)> Work for PromoteUnused<'_, F> {
    no_caller!();
    const EFFECT: Effect = Effect::Move;
    const PROMOTES: bool = true;
    const AHEAD: bool = true;
    const IN_MEMORY: bool = true;
    fn wants(&self, i: usize, address: Address, word: ClockWord) -> bool {
        self.marks[i].address == address.raw() && !word.used_since(self.marks[i].uses)
    }
    /// Reports only the rows that this work moved. Other rows may be in mutable memory too, because
    /// an operation used them or retention copied them.
    fn moved(&mut self, i: usize, mark: RowMark) {
        (self.marked)(i, mark);
    }
    fn is_promoted(_: bool) -> bool {
        true
    }
}

/// Copies to the tail the rows that are still at these addresses in the read-only region.
pub(crate) struct Retain<'a>(pub(crate) &'a [Address]);
impl Work for Retain<'_> {
    no_caller!();
    const EFFECT: Effect = Effect::Move;
    const ROOM: Room = Room::Spare;
    const IN_MEMORY: bool = true;
    fn wants(&self, i: usize, address: Address, _: ClockWord) -> bool {
        self.0[i] == address
    }
    fn is_promoted(was: bool) -> bool {
        was
    }
}

/// Reports the rows in mutable memory with their marks, and the rows that are not in mutable
/// memory.
pub(crate) struct Announce<F, G> {
    pub(crate) resident: F,
    pub(crate) elsewhere: G,
}
impl<F: FnMut(usize, RowMark), G: FnMut(usize)> Work for Announce<F, G> {
    no_caller!();
    const EFFECT: Effect = Effect::Locate;
    fn in_mutable_memory(&mut self, i: usize, mark: RowMark) {
        (self.resident)(i, mark);
    }
    fn elsewhere(&mut self, i: usize) {
        (self.elsewhere)(i);
    }
}

/// Reads the clock of one row. Runs over tables of both widths, which an operation does not.
pub(crate) struct ReadClock(pub(crate) SeenClock);
impl Work for ReadClock {
    type Caller = SeenClock;
    fn caller(&mut self) -> &mut SeenClock {
        &mut self.0
    }
    const EFFECT: Effect = Effect::Peek;
}

/// The clock that a [`ReadClock`] has read. `None` until the batch has found the row.
pub(crate) struct SeenClock(pub(crate) Option<u32>);
impl Operation for SeenClock {
    const ACCESS: Access = Access::Peek;
    fn seen(&mut self, _: usize, outstanding: u32) {
        self.0 = Some(outstanding);
    }
}

/// Moves the rows that are still at these addresses, where compaction found them.
pub(crate) struct MoveChained<'a>(pub(crate) &'a [Address]);
impl Work for MoveChained<'_> {
    no_caller!();
    const EFFECT: Effect = Effect::Move;
    const ROOM: Room = Room::Compaction;
    const ASKS_COLD: bool = false;
    const AHEAD: bool = true;
    const FILLS_CACHE: bool = false;
    fn wants(&self, i: usize, address: Address, _: ClockWord) -> bool {
        self.0[i] == address
    }
}
