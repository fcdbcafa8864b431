//! Puts rows of a file into records of the store.

use embank_kv::{Access, Operation, Shortage};

use crate::dtype::Dtype;
use crate::files::batch::ReadBatch;
use crate::row::layout::RowLayout;

/// The parts of a file that go into rows beside the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) state: bool,
    pub(super) uses: TakenUses,
}

/// The part of a file's uses that goes into rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakenUses {
    /// The import counts as one use.
    None,
    /// The number of uses. The last use is the present time, because the file's times have another
    /// unit than the table's.
    Count,
    /// The number of uses and the last use.
    All,
}

/// A batch of a file that is put into the table.
#[derive(Debug)]
pub(super) struct PutImported<'a> {
    pub(super) layout: &'a RowLayout,
    pub(super) batch: &'a ReadBatch,
    /// For each distinct key, the place of its row in the batch.
    pub(super) sources: &'a [u32],
    pub(super) uses: TakenUses,
}

impl PutImported<'_> {
    /// If the file has an int8 row as it is stored, the row is stored so, because its scale can't
    /// be computed from its values.
    fn write_vector(&self, i: usize, value: &mut [u8]) {
        let place = self.sources[i] as usize;
        let layout = self.layout;
        let dim = layout.dim;
        match self.batch.int8_row(place, dim).filter(|_| layout.dtype() == Dtype::Int8) {
            Some((bytes, scale)) => layout.write_int8(value, bytes, scale),
            None => layout.write_vector(value, &self.batch.vectors[place * dim..][..dim]),
        }
        let last = match self.uses {
            TakenUses::None => return layout.note_use(value),
            TakenUses::Count => None,
            TakenUses::All => Some(self.batch.last_used[place]),
        };
        layout.import_uses(value, last, self.batch.uses[place]);
    }
}

/// Replaces whole rows, the optimizer's state too.
#[derive(Debug)]
pub(super) struct PutWithState<'a>(pub(super) PutImported<'a>);

impl Operation for PutWithState<'_> {
    const ACCESS: Access = Access::Put;

    fn update(&mut self, i: usize, value: &mut [u8]) {
        let Self(put) = self;
        let columns = put.layout.state_values();
        put.layout.fill_rest(value);
        put.write_vector(i, value);
        let place = put.sources[i] as usize;
        put.layout.import_state(value, &put.batch.state[place * columns..][..columns]);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Replaces vectors and keeps the optimizer's state.
#[derive(Debug)]
pub(super) struct PutKeepingState<'a>(pub(super) PutImported<'a>);

impl Operation for PutKeepingState<'_> {
    const ACCESS: Access = Access::Update;

    /// It can be put again.
    fn shortage(&self) -> Shortage {
        Shortage::Stops
    }

    fn update(&mut self, i: usize, value: &mut [u8]) {
        self.0.write_vector(i, value);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.0.layout.fill_rest(value);
        self.0.write_vector(i, value);
        true
    }
}
