//! What a batch does to the rows of a table, as the store executes it under each record's lock.
//!
//! The store may call a method again for the same place when the row moved meanwhile. So each call
//! computes from what it is given and from the batch, never from what an earlier call left behind.

use std::borrow::Cow;
use std::sync::Arc;

use embank_kv::{Access, Operation, Shortage};

use crate::row::layout::{RowLayout, Stepped};
use crate::row::live::Live;
use crate::stats::seen::SeenClocks;
use crate::table::gate::Decision;

/// The places of a batch whose clocks the store has moved. Looked at only when a batch failed halfway: then counts are
/// given back for just these, or for just the others.
#[derive(Debug)]
pub(crate) struct Reached(Vec<u64>);

impl Reached {
    pub(crate) fn none_of(places: usize) -> Self {
        Self(vec![0; places.div_ceil(64)])
    }

    #[inline]
    pub(crate) fn mark(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    pub(crate) fn unmark(&mut self, place: usize) {
        self.0[place / 64] &= !(1 << (place % 64));
    }

    pub(crate) fn forget(&mut self) {
        self.0.fill(0);
    }

    pub(crate) fn contains(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }
}

/// Copies vectors out and touches nothing else.
#[derive(Debug)]
pub(crate) struct PeekRows<'a> {
    pub(crate) layout: &'a RowLayout,
    /// One row per key.
    pub(crate) rows: &'a mut [f32],
}

impl Operation for PeekRows<'_> {
    const ACCESS: Access = Access::Peek;

    /// A row of f32 begins with its vector.
    #[inline]
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        let dim = self.layout.dim;
        let row = &mut self.rows[i * dim..][..dim];
        self.layout.is_plain().then(|| bytemuck::cast_slice_mut(row))
    }

    /// Other rows are converted.
    #[inline]
    fn read(&mut self, i: usize, value: &[u8]) {
        let dim = self.layout.dim;
        self.layout.read_vector(value, &mut self.rows[i * dim..][..dim]);
    }
}

/// Only asks which rows there are.
#[derive(Debug)]
pub(crate) struct FindRows;

impl Operation for FindRows {
    const ACCESS: Access = Access::Peek;
}

/// Copies vectors out and inserts missing rows with their initial values.
#[derive(Debug)]
pub(crate) struct GetRows<'a> {
    pub(crate) layout: &'a RowLayout,
    pub(crate) keys: &'a [u64],
    pub(crate) rows: &'a mut [f32],
    /// Where in `rows` each key's vector goes; `None`: to its own place.
    pub(crate) destinations: Option<&'a [u32]>,
    pub(crate) reached: Reached,
    pub(crate) seen: SeenClocks,
    /// Whether a missing row stays so unless it was admitted (see the module `admission`).
    pub(crate) gated: bool,
    /// What was decided about missing rows so far.
    pub(crate) decisions: Option<Vec<Decision>>,
    /// Places of the rows that were refused in the end, ascending.
    pub(crate) refused: Vec<u32>,
}

impl GetRows<'_> {
    #[inline]
    fn destination(&mut self, i: usize) -> &mut [f32] {
        let place = self.destinations.map_or(i, |places| places[i] as usize);
        let dim = self.layout.dim;
        &mut self.rows[place * dim..][..dim]
    }
}

impl Operation for GetRows<'_> {
    const ACCESS: Access = Access::Get;

    #[inline]
    fn read(&mut self, i: usize, value: &[u8]) {
        let layout = self.layout;
        layout.read_vector(value, self.destination(i));
    }

    #[inline]
    fn seen(&mut self, _: usize, outstanding: u32) {
        self.seen.note(outstanding);
    }

    #[inline]
    fn settled(&mut self, i: usize) {
        self.reached.mark(i);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        let admitted = || self.decisions.as_ref().is_some_and(|of| of[i] == Decision::Admitted);
        if self.gated && !admitted() {
            return false;
        }
        let layout = self.layout;
        let key = self.keys[i];
        layout.begin(key, value, self.destination(i));
        true
    }
}

/// The vectors that a batch writes, one per distinct key.
#[derive(Debug)]
pub(crate) struct PutRows<'a> {
    pub(crate) layout: &'a RowLayout,
    pub(crate) keys: &'a [u64],
    /// Whether the vectors are updates of rows that were got, and rounded as such.
    pub(crate) updates: bool,
    pub(crate) rows: &'a [f32],
    /// Where in `rows` each key's vector lies; `None`: at its own place.
    pub(crate) sources: Option<&'a [u32]>,
    pub(crate) reached: Reached,
}

impl PutRows<'_> {
    fn vector(&self, i: usize) -> &'_ [f32] {
        let place = self.sources.map_or(i, |places| places[i] as usize);
        let dim = self.layout.dim;
        &self.rows[place * dim..][..dim]
    }

    #[inline]
    fn write_vector(&mut self, i: usize, value: &mut [u8]) {
        if self.updates {
            self.layout.update_vector(self.keys[i], value, self.vector(i));
        } else {
            self.layout.write_vector(value, self.vector(i));
        }
        self.layout.note_use(value);
    }

    #[inline]
    fn write_new(&mut self, i: usize, value: &mut [u8]) {
        self.layout.write_vector(value, self.vector(i));
        self.layout.fill_rest(value);
        self.layout.note_use(value);
    }
}

/// Replaces vectors. With `WHOLE` the row is nothing but its vector, so what it held plays no part. (A row on disk is
/// read all the same: its place in the index and its clock have to be known.) Without, the optimizer's state stays, so
/// the operation must see the row.
#[derive(Debug)]
pub(crate) struct Put<'a, const WHOLE: bool>(pub(crate) PutRows<'a>);

impl<const WHOLE: bool> Operation for Put<'_, WHOLE> {
    const ACCESS: Access = if WHOLE { Access::Put } else { Access::Update };

    /// A put can be made again.
    fn shortage(&self) -> Shortage {
        Shortage::Stops
    }

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        if WHOLE {
            self.0.write_new(i, value);
        } else {
            self.0.write_vector(i, value);
        }
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.0.write_new(i, value);
        true
    }

    #[inline]
    fn settled(&mut self, i: usize) {
        self.0.reached.mark(i);
    }
}

/// Takes one optimizer step per row.
#[derive(Debug)]
pub(crate) struct ApplyGradients<'a> {
    pub(crate) layout: &'a RowLayout,
    pub(crate) live: Arc<Live>,
    pub(crate) keys: &'a [u64],
    /// One gradient per key, as the optimizer takes them.
    pub(crate) gradients: Cow<'a, [f32]>,
    /// Whether a missing row starts from its initial values; else it stays missing.
    pub(crate) insert_missing: bool,
    /// Whether a step may make a value of f32 infinite; see [`RowLayout::step`].
    pub(crate) careful: bool,
    pub(crate) shortage: Shortage,
    pub(crate) reached: Reached,
    /// For rows that have to be converted.
    pub(crate) room: Vec<f32>,
    /// Steps that came to something else than [`Stepped::Taken`], and all steps after the first of them. A place comes
    /// again if its row moved meanwhile.
    pub(crate) noted: Vec<(u32, Stepped)>,
}

impl ApplyGradients<'_> {
    /// What the last step of each place had to report, by place.
    pub(crate) fn reports(&mut self) -> Vec<(u32, Stepped)> {
        let mut reports = std::mem::take(&mut self.noted);
        // Stable: of the calls for one place the last one comes last, which `dedup_by` keeps after the reversal.
        reports.sort_by_key(|(place, _)| *place);
        reports.reverse();
        reports.dedup_by_key(|(place, _)| *place);
        reports.reverse();
        reports
    }
}

impl Operation for ApplyGradients<'_> {
    const ACCESS: Access = Access::Update;

    fn shortage(&self) -> Shortage {
        self.shortage
    }

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        let dim = self.layout.dim;
        let gradient = &self.gradients[i * dim..][..dim];
        let stepped = self.layout.step(
            &self.live.stepper,
            self.keys[i],
            value,
            gradient,
            self.careful,
            &mut self.room,
        );
        if stepped != Stepped::Taken || !self.noted.is_empty() {
            self.noted.push((i as u32, stepped));
        }
        if !matches!(stepped, Stepped::Refused { .. }) {
            self.layout.note_use(value);
        }
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        if self.insert_missing {
            self.room.resize(self.layout.dim, 0.0);
            self.layout.begin(self.keys[i], value, &mut self.room);
            self.update(i, value);
        }
        self.insert_missing
    }

    #[inline]
    fn settled(&mut self, i: usize) {
        self.reached.mark(i);
    }
}

/// Replaces vectors of rows that are there; not a use of them.
#[derive(Debug)]
pub(crate) struct RewriteVectors<'a>(pub(crate) PutRows<'a>);

impl Operation for RewriteVectors<'_> {
    const ACCESS: Access = Access::Update;

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        self.0.layout.write_vector(value, self.0.vector(i));
    }
}

/// Leaves the value alone: the batch is executed for its clocks. Rows deleted meanwhile stay so.
#[derive(Debug)]
pub(crate) struct TouchClocks {
    pub(crate) reached: Reached,
}

impl Operation for TouchClocks {
    const ACCESS: Access = Access::Touch;

    #[inline]
    fn settled(&mut self, i: usize) {
        self.reached.mark(i);
    }
}
