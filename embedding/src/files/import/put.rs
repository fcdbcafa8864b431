//! Operations that put a file's rows into records of the store.

use embank_kv::{Access, Operation, Shortage};

use crate::dtype::Dtype;
use crate::files::batch::ReadBatch;
use crate::row::layout::RowLayout;

/// The parts of a file that the import takes in addition to the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) state: bool,
    pub(super) uses: TakenUses,
}

/// The use data that an import takes from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakenUses {
    /// No use data; the import counts as one use.
    None,
    /// Only the number of uses. The time of last use is set to the present, because the file's
    /// times have another unit than the table's.
    Count,
    /// The number of uses and the time of last use.
    All,
}

/// A batch of a file's rows that is put into the table.
#[derive(Debug)]
pub(super) struct PutImported<'a> {
    pub(super) layout: &'a RowLayout,
    pub(super) batch: &'a ReadBatch,
    /// For each distinct key, the position of its row in `batch`.
    pub(super) sources: &'a [u32],
    pub(super) uses: TakenUses,
}

impl PutImported<'_> {
    /// Writes a vector and its use data. An int8 row of the file is copied with its scale, because
    /// the scale can't be computed from the values.
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

/// Replaces whole rows, including the optimizer's state.
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

    /// The batch may stop half-way if disk space runs out: the caller can repeat the import.
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
