//! What a batch does with its rows, as the engine sees it.

use crate::operation::{Access, Operation, RowMark, Shortage, Width};
use crate::record::address::Address;
use crate::record::clock::ClockWord;

/// What the engine does, the store's own jobs included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Peek,
    Get,
    Update,
    Put,
    Delete,
    /// Brings rows into mutable memory.
    Promote,
    /// Copies rows to the tail that lie where compaction found them.
    Compact,
    /// Finds out which rows are not in mutable memory.
    Locate,
    /// Copies rows of the read-only region to the tail that are used often.
    Retain,
}

/// An operation as the engine runs it.
pub(crate) trait Work {
    const MODE: Mode;
    /// The tables that it is for.
    const WIDTH: Width;
    /// It leaves alone what is on disk.
    const IN_MEMORY: bool = matches!(Self::MODE, Mode::Locate | Mode::Retain);
    /// Its reads go behind those that somebody waits for.
    const AHEAD: bool = matches!(Self::MODE, Mode::Promote | Mode::Compact);
    /// Its updates change values.
    const CHANGES: bool = true;
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
    /// Whether `Compact`, `Promote` or `Retain` is to move the row that it found at an address with this clock.
    fn wants(&self, _i: usize, _address: Address, _word: ClockWord) -> bool {
        true
    }
    /// Whether `Delete` is to delete the row: asked while its lock is held, or nobody else can change it.
    fn deletes(&mut self, _i: usize, _value: &[u8], _outstanding: u32) -> bool {
        true
    }
    /// `Locate` or `Promote` found the row in mutable memory.
    fn in_mutable_memory(&mut self, _i: usize, _mark: RowMark) {}
    /// `Promote` brought the row to mutable memory.
    fn moved(&mut self, _i: usize, _mark: RowMark) {}
    /// The clock of a row that was peeked at or got, before the operation's own count.
    fn clock(&mut self, _i: usize, _outstanding: u32) {}
    /// What was done to a row by `Get`, `Update` or `Put` stands.
    fn settled(&mut self, _i: usize) {}
}

/// A caller's operation.
pub(crate) struct Caller<'a, O>(pub(crate) &'a mut O);

impl<O: Operation> Work for Caller<'_, O> {
    const MODE: Mode = match O::ACCESS {
        Access::Peek => Mode::Peek,
        Access::Get => Mode::Get,
        Access::Update => Mode::Update,
        Access::Put => Mode::Put,
    };
    const WIDTH: Width = O::WIDTH;
    const AHEAD: bool = O::AHEAD;
    const CHANGES: bool = O::CHANGES;
    fn shortage(&self) -> Shortage {
        self.0.shortage()
    }
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0.read(i, value);
    }
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        self.0.destination(i)
    }
    fn value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> usize {
        self.0.value_bytes(i, old)
    }
    fn update(&mut self, i: usize, value: &mut [u8]) {
        self.0.update(i, value);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.0.insert(i, value)
    }
    fn clock(&mut self, i: usize, outstanding: u32) {
        self.0.seen(i, outstanding);
    }
    #[inline]
    fn settled(&mut self, i: usize) {
        self.0.settled(i);
    }
}

/// The width of a store's own job, which there is for both.
const fn width(variable: bool) -> Width {
    if variable { Width::Variable } else { Width::Fixed }
}

pub(crate) struct Delete<const VARIABLE: bool>;
impl<const VARIABLE: bool> Work for Delete<VARIABLE> {
    const MODE: Mode = Mode::Delete;
    const WIDTH: Width = width(VARIABLE);
}

/// Deletes rows of fixed width on a condition.
pub(crate) struct DeleteIf<F>(pub(crate) F);
impl<F: FnMut(usize, &[u8], u32) -> bool> Work for DeleteIf<F> {
    const MODE: Mode = Mode::Delete;
    const WIDTH: Width = Width::Fixed;
    fn deletes(&mut self, i: usize, value: &[u8], outstanding: u32) -> bool {
        (self.0)(i, value, outstanding)
    }
}

/// Brings rows to mutable memory, and marks those that are there then.
pub(crate) struct Promote<'a, F, const VARIABLE: bool>(pub(crate) &'a mut F);
impl<F: FnMut(usize, RowMark), const VARIABLE: bool> Work for Promote<'_, F, VARIABLE> {
    const MODE: Mode = Mode::Promote;
    const WIDTH: Width = width(VARIABLE);
    fn in_mutable_memory(&mut self, i: usize, mark: RowMark) {
        self.0(i, mark);
    }
    fn moved(&mut self, i: usize, mark: RowMark) {
        self.0(i, mark);
    }
}

/// Brings rows to mutable memory that are as they were when they were marked.
pub(crate) struct Keep<'a, F, const VARIABLE: bool> {
    pub(crate) marks: &'a [RowMark],
    pub(crate) marked: &'a mut F,
}
impl<F: FnMut(usize, RowMark), const VARIABLE: bool> Work for Keep<'_, F, VARIABLE> {
    const MODE: Mode = Mode::Promote;
    const WIDTH: Width = width(VARIABLE);
    const IN_MEMORY: bool = true;
    fn wants(&self, i: usize, address: Address, word: ClockWord) -> bool {
        self.marks[i].address == address.raw() && !word.used_since(self.marks[i].uses)
    }
    /// Of the others, some are there as well: those were used, or are used often and so were retained.
    fn moved(&mut self, i: usize, mark: RowMark) {
        (self.marked)(i, mark);
    }
}

/// Copies rows to the tail that are where they were seen in the read-only region.
pub(crate) struct Retain<'a, const VARIABLE: bool>(pub(crate) &'a [Address]);
impl<const VARIABLE: bool> Work for Retain<'_, VARIABLE> {
    const MODE: Mode = Mode::Retain;
    const WIDTH: Width = width(VARIABLE);
    fn wants(&self, i: usize, address: Address, _: ClockWord) -> bool {
        self.0[i] == address
    }
}

/// Finds out which rows are not in mutable memory, and marks the others.
pub(crate) struct Announce<'a, F, const VARIABLE: bool>(pub(crate) &'a mut F);
impl<F: FnMut(usize, RowMark), const VARIABLE: bool> Work for Announce<'_, F, VARIABLE> {
    const MODE: Mode = Mode::Locate;
    const WIDTH: Width = width(VARIABLE);
    fn in_mutable_memory(&mut self, i: usize, mark: RowMark) {
        self.0(i, mark);
    }
}

/// What a clock is when a row is peeked at.
pub(crate) struct ReadClock<const VARIABLE: bool>(pub(crate) Option<u32>);
impl<const VARIABLE: bool> Work for ReadClock<VARIABLE> {
    const MODE: Mode = Mode::Peek;
    const WIDTH: Width = width(VARIABLE);
    fn clock(&mut self, _i: usize, outstanding: u32) {
        self.0 = Some(outstanding);
    }
}

/// Moves rows that lie at these addresses, where compaction found them.
pub(crate) struct MoveChained<'a, const VARIABLE: bool>(pub(crate) &'a [Address]);
impl<const VARIABLE: bool> Work for MoveChained<'_, VARIABLE> {
    const MODE: Mode = Mode::Compact;
    const WIDTH: Width = width(VARIABLE);
    fn wants(&self, i: usize, address: Address, _: ClockWord) -> bool {
        self.0[i] == address
    }
}
