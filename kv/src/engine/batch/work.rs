//! What a batch does with its rows, as the engine sees it.

use crate::hints::{Hints, RowHint};
use crate::operation::{Access, Operation, RowMark, Shortage, Width};
use crate::record::address::Address;
use crate::record::clock::ClockWord;

/// What becomes of a row that a batch finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The work looks only at the record's header, and only in memory.
    Locate,
    /// The work reads the value where it lies.
    Peek,
    /// The work reads the value, and the row is in mutable memory afterwards.
    Get,
    /// The work changes the value.
    Update,
    /// The work writes a new value.
    Put,
    /// The work moves the clock, and the row is in mutable memory afterwards.
    Touch,
    /// The row is a tombstone afterwards.
    Delete,
    /// The row is copied to the tail as it is.
    Move,
}

/// How a batch gets room for its records when the tail's page is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// It waits until compaction has made room.
    Awaited,
    /// It takes the room that is reserved for work that gives space back, and does not wait.
    Ending,
    /// It takes the room that is reserved for compaction, and does not wait.
    Compaction,
    /// It takes room that is free, and does not wait: the batch that it runs within waits.
    Spare,
}

/// An operation as the engine runs it: each [`Operation`] of a caller, and the store's own jobs.
///
/// A job runs over tables of either width; the width is a constant of `Batch`.
pub(crate) trait Work {
    const EFFECT: Effect;
    const ROOM: Room = Room::Awaited;
    /// The work leaves rows on disk alone.
    const IN_MEMORY: bool = matches!(Self::EFFECT, Effect::Locate);
    /// The work brings rows to mutable memory. Rows that are there already stay where they are.
    const PROMOTES: bool = false;
    /// Its reads wait behind reads that a caller waits for.
    const AHEAD: bool = false;
    /// Rows that it reads from disk without moving them get a copy in the row cache.
    const FILLS_CACHE: bool = true;
    /// Its updates change values.
    const CHANGES: bool = true;

    /// The work may append records.
    const APPENDS: bool = !matches!(Self::EFFECT, Effect::Locate | Effect::Peek);
    /// In mutable memory, the work is done where the row lies.
    const IN_PLACE: bool = matches!(
        Self::EFFECT,
        Effect::Get | Effect::Update | Effect::Put | Effect::Touch | Effect::Delete
    );
    /// In mutable memory, the work looks only at a record's header.
    const HEADERS_ALONE: bool = matches!(Self::EFFECT, Effect::Locate | Effect::Touch);
    /// The work may insert a row that is missing.
    const INSERTS: bool = matches!(Self::EFFECT, Effect::Get | Effect::Update | Effect::Put);

    /// See [`Operation::shortage`].
    fn shortage(&self) -> Shortage {
        Shortage::Stops
    }
    fn read(&mut self, _i: usize, _value: &[u8]) {}
    fn destination(&mut self, _i: usize) -> Option<&mut [u8]> {
        None
    }
    fn value_bytes(&mut self, _i: usize, _old: Option<&[u8]>) -> usize {
        0
    }
    fn update(&mut self, _i: usize, _value: &mut [u8]) {}
    fn insert(&mut self, _i: usize, _value: &mut [u8]) -> bool {
        false
    }
    /// True if `Move` is to move the row that was found at `address` with the clock `word`.
    fn wants(&self, _i: usize, _address: Address, _word: ClockWord) -> bool {
        true
    }
    /// True if `Delete` is to delete the row. Called while the row is locked, or while no other
    /// thread can change it.
    fn deletes(&mut self, _i: usize, _value: &[u8], _outstanding: u32) -> bool {
        true
    }
    /// `Locate` or a work that `PROMOTES` found the row in mutable memory.
    fn in_mutable_memory(&mut self, _i: usize, _mark: RowMark) {}
    /// `Locate` found the row outside mutable memory. A row on disk may be that of another key with
    /// an equal hash.
    fn elsewhere(&mut self, _i: usize) {}
    /// A work that `PROMOTES` brought the row to mutable memory.
    fn moved(&mut self, _i: usize, _mark: RowMark) {}
    /// True if a moved row counts as promoted and not used since. `was`: whether it counted as such
    /// before the move.
    fn is_promoted(was: bool) -> bool {
        let _ = was;
        false
    }
    /// The clock of a row that was peeked at or got, without the operation's own count.
    fn clock(&mut self, _i: usize, _outstanding: u32) {}
    /// What `Get`, `Update`, `Put` or `Touch` did to a row is final.
    fn settled(&mut self, _i: usize, _hint: RowHint) {}
    /// See [`Operation::hints`].
    fn hints(&self) -> Option<Hints<'_>> {
        None
    }
}

impl<O: Operation> Work for O {
    const EFFECT: Effect = match O::ACCESS {
        Access::Peek => Effect::Peek,
        Access::Get => Effect::Get,
        Access::Update => Effect::Update,
        Access::Put => Effect::Put,
        Access::Touch => Effect::Touch,
    };
    const AHEAD: bool = O::AHEAD;
    const CHANGES: bool = O::CHANGES && !matches!(O::ACCESS, Access::Touch);
    fn shortage(&self) -> Shortage {
        Operation::shortage(self)
    }
    fn read(&mut self, i: usize, value: &[u8]) {
        Operation::read(self, i, value);
    }
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        match O::ACCESS {
            Access::Peek => Operation::destination(self, i),
            Access::Get | Access::Update | Access::Put | Access::Touch => None,
        }
    }
    fn value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> usize {
        Operation::value_bytes(self, i, old)
    }
    fn update(&mut self, i: usize, value: &mut [u8]) {
        Operation::update(self, i, value);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        Operation::insert(self, i, value)
    }
    fn clock(&mut self, i: usize, outstanding: u32) {
        Operation::seen(self, i, outstanding);
    }
    #[inline]
    fn settled(&mut self, i: usize, hint: RowHint) {
        Operation::settled(self, i, hint);
    }
    #[inline]
    fn hints(&self) -> Option<Hints<'_>> {
        match O::ACCESS {
            Access::Update | Access::Put | Access::Touch => Operation::hints(self),
            Access::Peek | Access::Get => None,
        }
    }
}

/// True for an operation on tables of variable width.
pub(crate) const fn is_variable<O: Operation>() -> bool {
    matches!(O::WIDTH, Width::Variable)
}

pub(crate) struct Delete;
impl Work for Delete {
    const EFFECT: Effect = Effect::Delete;
    const ROOM: Room = Room::Ending;
}

/// Deletes rows on a condition.
pub(crate) struct DeleteIf<F>(pub(crate) F);
impl<F: FnMut(usize, &[u8], u32) -> bool> Work for DeleteIf<F> {
    const EFFECT: Effect = Effect::Delete;
    const ROOM: Room = Room::Ending;
    fn deletes(&mut self, i: usize, value: &[u8], outstanding: u32) -> bool {
        (self.0)(i, value, outstanding)
    }
}

/// Brings rows to mutable memory, and marks all of them there.
pub(crate) struct Promote<'a, F>(pub(crate) &'a mut F);
impl<F: FnMut(usize, RowMark)> Work for Promote<'_, F> {
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

/// Brings rows to mutable memory whose marks say that they have not changed since.
pub(crate) struct PromoteUnused<'a, F> {
    pub(crate) marks: &'a [RowMark],
    pub(crate) marked: &'a mut F,
}
impl<F: FnMut(usize, RowMark)> Work for PromoteUnused<'_, F> {
    const EFFECT: Effect = Effect::Move;
    const PROMOTES: bool = true;
    const AHEAD: bool = true;
    const IN_MEMORY: bool = true;
    fn wants(&self, i: usize, address: Address, word: ClockWord) -> bool {
        self.marks[i].address == address.raw() && !word.used_since(self.marks[i].uses)
    }
    /// Some of the other rows are in mutable memory as well: they were used, or were retained
    /// because they are used often.
    fn moved(&mut self, i: usize, mark: RowMark) {
        (self.marked)(i, mark);
    }
    fn is_promoted(_: bool) -> bool {
        true
    }
}

/// Copies rows to the tail that are still where the batch saw them in the read-only region.
pub(crate) struct Retain<'a>(pub(crate) &'a [Address]);
impl Work for Retain<'_> {
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

/// Finds out which rows are in mutable memory, and their marks, and which rows are elsewhere.
pub(crate) struct Announce<F, G> {
    pub(crate) resident: F,
    pub(crate) elsewhere: G,
}
impl<F: FnMut(usize, RowMark), G: FnMut(usize)> Work for Announce<F, G> {
    const EFFECT: Effect = Effect::Locate;
    fn in_mutable_memory(&mut self, i: usize, mark: RowMark) {
        (self.resident)(i, mark);
    }
    fn elsewhere(&mut self, i: usize) {
        (self.elsewhere)(i);
    }
}

/// The clock of a row that is peeked at.
pub(crate) struct ReadClock(pub(crate) Option<u32>);
impl Work for ReadClock {
    const EFFECT: Effect = Effect::Peek;
    fn clock(&mut self, _i: usize, outstanding: u32) {
        self.0 = Some(outstanding);
    }
}

/// Moves rows that are still at these addresses, where compaction found them.
pub(crate) struct MoveChained<'a>(pub(crate) &'a [Address]);
impl Work for MoveChained<'_> {
    const EFFECT: Effect = Effect::Move;
    const ROOM: Room = Room::Compaction;
    const AHEAD: bool = true;
    const FILLS_CACHE: bool = false;
    fn wants(&self, i: usize, address: Address, _: ClockWord) -> bool {
        self.0[i] == address
    }
}
