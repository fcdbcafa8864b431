//! Operations on the rows of a batch. The store calls an operation's methods for each row, while it
//! holds the lock of the row's record. Only a peek takes no lock.
//!
//! If another thread replaces a row's record meanwhile, the store may call a method twice for the
//! same key of the batch. Therefore each call computes only from its arguments and the batch, never
//! from the result of an earlier call.

use std::ops::Range;
use std::sync::Arc;

use embank_kv::{Access, Hints, Operation, RowHint, RowHints, Shortage};

use crate::row::layout::{RowLayout, Stepped};
use crate::row::live::Live;
use crate::stats::seen::SeenClocks;
use crate::table::gate::Decision;
use crate::table::gradients::{RowGradients, clipping};
use crate::table::parts::Divisible;

/// Marks the places of a batch whose rows' clocks the store has changed. Used only if the batch
/// fails halfway: the caller then lowers the clocks of these places' rows, or of all other rows.
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

    pub(crate) fn contains(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }

    /// Copies the marks of `part`, which begins at place `start` of the batch, a multiple of 64.
    fn take_in(&mut self, start: usize, part: &Self) {
        self.0[start / 64..][..part.0.len()].copy_from_slice(&part.0);
    }
}

/// Cuts `values` into parts that begin at `starts`. The first start must be 0.
pub(crate) fn cut<T>(mut values: &mut [T], starts: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
    let mut parts = Vec::new();
    let mut before = 0;
    for start in starts.skip(1) {
        let (part, rest) = values.split_at_mut(start - before);
        parts.push(part);
        values = rest;
        before = start;
    }
    parts.push(values);
    parts
}

/// Copies vectors out of the store without changing rows.
#[derive(Debug)]
pub(crate) struct PeekRows<'a> {
    pub(crate) layout: &'a RowLayout,
    /// One row per key.
    pub(crate) rows: &'a mut [f32],
    /// The rows' addresses in the store, if a lease has noted them.
    pub(crate) hints: Option<Hints<'a>>,
}

impl Operation for PeekRows<'_> {
    const ACCESS: Access = Access::Peek;

    /// In a table of f32, a row begins with its vector, so the store copies the vector to this
    /// destination without a call of `read`.
    #[inline]
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        let dim = self.layout.dim;
        let row = &mut self.rows[i * dim..][..dim];
        self.layout.is_plain().then(|| bytemuck::cast_slice_mut(row))
    }

    /// Converts the vectors of rows that are not plain f32.
    #[inline]
    fn read(&mut self, i: usize, value: &[u8]) {
        let dim = self.layout.dim;
        self.layout.read_vector(value, &mut self.rows[i * dim..][..dim]);
    }

    fn hints(&self) -> Option<Hints<'_>> {
        self.hints
    }
}

impl Divisible for PeekRows<'_> {
    type Part<'p>
        = PeekRows<'p>
    where
        Self: 'p;
    type Found = ();

    fn divide(&mut self, ranges: &[Range<usize>]) -> Vec<PeekRows<'_>> {
        let layout = self.layout;
        let starts = ranges.iter().map(|range| range.start * layout.dim);
        let parts = cut(self.rows, starts).into_iter().zip(ranges);
        let hints = self.hints;
        parts
            .map(|(rows, range)| PeekRows {
                layout,
                rows,
                hints: hints.map(|hints| hints.part(range.clone())),
            })
            .collect()
    }

    fn found(_: PeekRows<'_>) {}

    fn take_in(&mut self, _: usize, (): ()) {}
}

/// Finds out which rows exist, and reads no row.
#[derive(Debug)]
pub(crate) struct FindRows;

impl Operation for FindRows {
    const ACCESS: Access = Access::Peek;
}

impl Divisible for FindRows {
    type Part<'p> = FindRows;
    type Found = ();

    fn divide(&mut self, ranges: &[Range<usize>]) -> Vec<FindRows> {
        ranges.iter().map(|_| FindRows).collect()
    }

    fn found(_: FindRows) {}

    fn take_in(&mut self, _: usize, (): ()) {}
}

/// Copies vectors out of the store, and inserts missing rows with their initial values.
#[derive(Debug)]
pub(crate) struct GetRows<'a> {
    pub(crate) layout: &'a RowLayout,
    pub(crate) keys: &'a [u64],
    pub(crate) rows: GotRows<'a>,
    /// The addresses in the store of the rows whose clocks this Get has raised.
    pub(crate) reached: RowHints,
    pub(crate) seen: SeenClocks,
    /// For each key the decision about it if it has no row; see the module `admission`. Earlier
    /// attempts of this Get may have made some. `None` if every key gets a row.
    pub(crate) decisions: Option<Vec<Decision>>,
    /// Places of the keys that admission refused, ascending.
    pub(crate) refused: Vec<u32>,
}

/// The destination of the vectors that a Get reads.
#[derive(Debug)]
pub(crate) enum GotRows<'a> {
    /// No destination: the Get only raises the rows' clocks and brings the rows into mutable
    /// memory.
    Nowhere,
    /// The vector of place i becomes row i.
    InOrder(&'a mut [f32]),
    /// The vector of place i becomes row `places[i] - first`.
    To { places: &'a [u32], first: usize, rows: &'a mut [f32] },
}

impl GotRows<'_> {
    /// Returns the destination of the vector at place `i`. `None` if it is not copied.
    #[inline(always)]
    pub(crate) fn at(&mut self, i: usize, dim: usize) -> Option<&mut [f32]> {
        match self {
            Self::Nowhere => None,
            Self::InOrder(rows) => Some(&mut rows[i * dim..][..dim]),
            Self::To { places, first, rows } => {
                Some(&mut rows[(places[i] as usize - *first) * dim..][..dim])
            }
        }
    }

    /// Divides the destination by `ranges` of places. With `To`, the places must ascend.
    fn divide(&mut self, ranges: &[Range<usize>], dim: usize) -> Vec<GotRows<'_>> {
        match self {
            Self::Nowhere => ranges.iter().map(|_| GotRows::Nowhere).collect(),
            Self::InOrder(rows) => {
                let starts = ranges.iter().map(|range| range.start * dim);
                cut(rows, starts).into_iter().map(GotRows::InOrder).collect()
            }
            Self::To { places, first, rows } => {
                let first_of = |range: &Range<usize>| match range.start {
                    0 => *first,
                    start => places[start] as usize,
                };
                let starts = ranges.iter().map(|range| (first_of(range) - *first) * dim);
                let parts = cut(rows, starts).into_iter().zip(ranges);
                parts
                    .map(|(rows, range)| GotRows::To {
                        places: &places[range.clone()],
                        first: first_of(range),
                        rows,
                    })
                    .collect()
            }
        }
    }
}

impl Operation for GetRows<'_> {
    const ACCESS: Access = Access::Get;

    fn reads_values(&self) -> bool {
        !matches!(self.rows, GotRows::Nowhere)
    }

    /// See [`PeekRows`].
    #[inline]
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        if !self.layout.is_plain() {
            return None;
        }
        self.rows.at(i, self.layout.dim).map(bytemuck::cast_slice_mut)
    }

    #[inline]
    fn read(&mut self, i: usize, value: &[u8]) {
        let layout = self.layout;
        if let Some(to) = self.rows.at(i, layout.dim) {
            layout.read_vector(value, to);
        }
    }

    #[inline]
    fn seen(&mut self, _: usize, outstanding: u32) {
        self.seen.note(outstanding);
    }

    #[inline]
    fn settled(&mut self, i: usize, hint: RowHint) {
        self.reached.note(i, hint);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        if self.decisions.as_ref().is_some_and(|of| of[i] != Decision::Admitted) {
            return false;
        }
        let layout = self.layout;
        let key = self.keys[i];
        match self.rows.at(i, layout.dim) {
            Some(to) => layout.begin(key, value, to),
            None => layout.begin(key, value, &mut vec![0.0; layout.dim]),
        }
        true
    }
}

impl Divisible for GetRows<'_> {
    type Part<'p>
        = GetRows<'p>
    where
        Self: 'p;
    type Found = (RowHints, SeenClocks);

    fn divide(&mut self, ranges: &[Range<usize>]) -> Vec<GetRows<'_>> {
        let Self { layout, keys, rows, decisions, .. } = self;
        let parts = rows.divide(ranges, layout.dim).into_iter().zip(ranges);
        parts
            .map(|(rows, range)| GetRows {
                layout,
                keys: &keys[range.clone()],
                rows,
                reached: RowHints::none_of(range.len()),
                seen: SeenClocks::default(),
                decisions: decisions.as_ref().map(|of| of[range.clone()].to_vec()),
                refused: Vec::new(),
            })
            .collect()
    }

    fn found(part: GetRows<'_>) -> (RowHints, SeenClocks) {
        (part.reached, part.seen)
    }

    fn take_in(&mut self, start: usize, (reached, seen): (RowHints, SeenClocks)) {
        self.reached.take_in(start, &reached);
        self.seen.merge(&seen);
    }
}

/// The vectors that a batch writes, one per distinct key.
#[derive(Debug)]
pub(crate) struct PutRows<'a> {
    pub(crate) layout: &'a RowLayout,
    pub(crate) keys: &'a [u64],
    /// True if the vectors are put through a lease. They are then rounded like updates.
    pub(crate) updates: bool,
    pub(crate) rows: &'a [f32],
    /// For each key, the index of its vector in `rows`. `None` if the vectors are in the order of
    /// the keys.
    pub(crate) sources: Option<&'a [u32]>,
    /// The rows' addresses in the store, if a lease has noted them.
    pub(crate) hints: Option<Hints<'a>>,
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

impl<'a> PutRows<'a> {
    fn divide(&self, ranges: &[Range<usize>]) -> Vec<PutRows<'a>> {
        let Self { layout, keys, updates, rows, sources, hints, .. } = *self;
        let dim = layout.dim;
        let part = |range: &Range<usize>| PutRows {
            layout,
            keys: &keys[range.clone()],
            updates,
            rows: if sources.is_some() { rows } else { &rows[range.start * dim..] },
            sources: sources.map(|sources| &sources[range.clone()]),
            hints: hints.map(|hints| hints.part(range.clone())),
            reached: Reached::none_of(range.len()),
        };
        ranges.iter().map(part).collect()
    }
}

/// Replaces vectors. With `WHOLE`, a row is only a vector, so its old value is not needed. The
/// store still reads a row on disk, because only its record shows its key and its clock.
/// Without `WHOLE`, a row also has optimizer state, which must stay. The operation then reads the
/// old value. With `WHOLE` and `BLIND`, the store reads no row whose key the log does not have.
#[derive(Debug)]
pub(crate) struct Put<'a, const WHOLE: bool, const BLIND: bool>(pub(crate) PutRows<'a>);

impl<const WHOLE: bool, const BLIND: bool> Operation for Put<'_, WHOLE, BLIND> {
    const ACCESS: Access = if WHOLE { Access::Put } else { Access::Update };
    const BLIND: bool = BLIND;

    /// A put may stop halfway if the disk is full, because the caller can repeat the put.
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
    fn settled(&mut self, i: usize, _: RowHint) {
        self.0.reached.mark(i);
    }

    fn hints(&self) -> Option<Hints<'_>> {
        self.0.hints
    }
}

impl<const WHOLE: bool, const BLIND: bool> Divisible for Put<'_, WHOLE, BLIND> {
    type Part<'p>
        = Put<'p, WHOLE, BLIND>
    where
        Self: 'p;
    type Found = Reached;

    fn divide(&mut self, ranges: &[Range<usize>]) -> Vec<Put<'_, WHOLE, BLIND>> {
        self.0.divide(ranges).into_iter().map(Put).collect()
    }

    fn found(part: Put<'_, WHOLE, BLIND>) -> Reached {
        part.0.reached
    }

    fn take_in(&mut self, start: usize, reached: Reached) {
        self.0.reached.take_in(start, &reached);
    }
}

/// Takes one optimizer step per row.
#[derive(Debug)]
pub(crate) struct ApplyGradients<'a> {
    pub(crate) layout: &'a RowLayout,
    pub(crate) live: Arc<Live>,
    pub(crate) keys: &'a [u64],
    pub(crate) gradients: RowGradients<'a>,
    /// Gradients with a larger L2 norm are shortened to this norm.
    pub(crate) norm_max: Option<f32>,
    /// Scratch memory for the sum of a row's gradients; `dim` values.
    pub(crate) sum: Vec<f32>,
    /// True if a missing row is inserted with its initial values; otherwise it stays missing.
    pub(crate) insert_missing: bool,
    /// True if a step could make an f32 value infinite; see [`RowLayout::step`].
    pub(crate) careful: bool,
    pub(crate) shortage: Shortage,
    /// The rows' addresses in the store, if a lease has noted them.
    pub(crate) hints: Option<Hints<'a>>,
    pub(crate) reached: Reached,
    /// Scratch memory for rows that need conversion.
    pub(crate) room: Vec<f32>,
    /// The reports of all steps, beginning with the first one that is not [`Stepped::Taken`]. If a
    /// row moved, its place has several reports.
    pub(crate) noted: Vec<(u32, Stepped)>,
}

impl ApplyGradients<'_> {
    /// Returns the last report of each place.
    pub(crate) fn reports(&mut self) -> Vec<(u32, Stepped)> {
        last_reports(&mut self.noted)
    }
}

/// Takes the reports of an operation, which are in the order of its calls. Returns the last report
/// of each place, in the order of the places.
pub(crate) fn last_reports<T>(noted: &mut Vec<(u32, T)>) -> Vec<(u32, T)> {
    let mut reports = std::mem::take(noted);
    // The sort is stable, so the last report of a place stays last. After the reversal it comes
    // first, and `dedup_by_key` keeps it.
    reports.sort_by_key(|(place, _)| *place);
    reports.reverse();
    reports.dedup_by_key(|(place, _)| *place);
    reports.reverse();
    reports
}

impl Operation for ApplyGradients<'_> {
    const ACCESS: Access = Access::Update;

    fn shortage(&self) -> Shortage {
        self.shortage
    }

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        let gradient = self.gradients.at(i, &mut self.sum);
        let factor = self.norm_max.and_then(|norm_max| clipping(gradient, norm_max));
        let mut shortened = Vec::new();
        let gradient = match factor {
            None => gradient,
            Some(factor) => {
                let scale = |&value: &f32| (f64::from(value) * factor) as f32;
                shortened.extend(gradient.iter().map(scale));
                &shortened
            }
        };
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
    fn settled(&mut self, i: usize, _: RowHint) {
        self.reached.mark(i);
    }

    fn hints(&self) -> Option<Hints<'_>> {
        self.hints
    }
}

impl Divisible for ApplyGradients<'_> {
    type Part<'p>
        = ApplyGradients<'p>
    where
        Self: 'p;
    type Found = (Reached, Vec<(u32, Stepped)>);

    fn divide(&mut self, ranges: &[Range<usize>]) -> Vec<ApplyGradients<'_>> {
        let part = |range: &Range<usize>| ApplyGradients {
            layout: self.layout,
            live: Arc::clone(&self.live),
            keys: &self.keys[range.clone()],
            gradients: self.gradients.from(range.start),
            norm_max: self.norm_max,
            sum: vec![0.0; self.layout.dim],
            insert_missing: self.insert_missing,
            careful: self.careful,
            // Other parts may already have changed rows, so this part must not stop halfway.
            shortage: Shortage::GoesOn,
            hints: self.hints.map(|hints| hints.part(range.clone())),
            reached: Reached::none_of(range.len()),
            room: Vec::new(),
            noted: Vec::new(),
        };
        ranges.iter().map(part).collect()
    }

    fn found(mut part: ApplyGradients<'_>) -> (Reached, Vec<(u32, Stepped)>) {
        let reports = part.reports();
        (part.reached, reports)
    }

    fn take_in(&mut self, start: usize, (reached, reports): (Reached, Vec<(u32, Stepped)>)) {
        self.reached.take_in(start, &reached);
        let reports = reports.into_iter().map(|(place, stepped)| (start as u32 + place, stepped));
        self.noted.extend(reports);
    }
}

/// Replaces vectors of existing rows. This does not count as a use of the rows.
#[derive(Debug)]
pub(crate) struct RewriteVectors<'a>(pub(crate) PutRows<'a>);

impl Operation for RewriteVectors<'_> {
    const ACCESS: Access = Access::Update;

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        self.0.layout.write_vector(value, self.0.vector(i));
    }
}

/// Changes only the clocks of the rows. Does not insert rows that were deleted.
#[derive(Debug)]
pub(crate) struct TouchClocks<'a> {
    /// The rows' addresses in the store, if a lease has noted them.
    pub(crate) hints: Option<Hints<'a>>,
    pub(crate) reached: Reached,
}

impl Operation for TouchClocks<'_> {
    const ACCESS: Access = Access::Touch;

    #[inline]
    fn settled(&mut self, i: usize, _: RowHint) {
        self.reached.mark(i);
    }

    fn hints(&self) -> Option<Hints<'_>> {
        self.hints
    }
}

impl Divisible for TouchClocks<'_> {
    type Part<'p>
        = TouchClocks<'p>
    where
        Self: 'p;
    type Found = Reached;

    fn divide(&mut self, ranges: &[Range<usize>]) -> Vec<TouchClocks<'_>> {
        let part = |range: &Range<usize>| TouchClocks {
            hints: self.hints.map(|hints| hints.part(range.clone())),
            reached: Reached::none_of(range.len()),
        };
        ranges.iter().map(part).collect()
    }

    fn found(part: TouchClocks<'_>) -> Reached {
        part.reached
    }

    fn take_in(&mut self, start: usize, reached: Reached) {
        self.reached.take_in(start, &reached);
    }
}
