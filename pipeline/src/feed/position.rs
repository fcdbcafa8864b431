//! The place at which a feed stopped, and the inputs that the rows before it came from.
//!
//! A number of rows alone is a place only in unchanged inputs. If a file appears in a folder before
//! the files that a feed has read, the number skips other rows: some rows are trained twice, and
//! some never. A position therefore names its inputs, and a feed that resumes compares them.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::execute::{FeedPlace, RunPlaces};
use crate::input::Input;
use crate::options::FeedOptions;

/// An input of a feed, as a [`FeedPosition`] names it. In JSON, a list of name and bytes.
///
/// # Examples
/// ```
/// use embank_pipeline::InputId;
///
/// let input = InputId { name: "day_0.tsv".to_owned(), bytes: 4096 };
/// assert_eq!(input.to_string(), "\"day_0.tsv\" of 4096 bytes");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "(String, u64)", into = "(String, u64)")]
pub struct InputId {
    /// The input's name. For a file, its path as the caller gave it.
    pub name: String,
    /// The input's length in bytes. For a compressed input, compressed bytes count. 0 for a pipe.
    pub bytes: u64,
}

impl From<(String, u64)> for InputId {
    fn from((name, bytes): (String, u64)) -> Self {
        Self { name, bytes }
    }
}

impl From<InputId> for (String, u64) {
    fn from(id: InputId) -> Self {
        (id.name, id.bytes)
    }
}

impl std::fmt::Display for InputId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?} of {} bytes", self.name, self.bytes)
    }
}

/// The place at which a feed stopped ([`Feed::resume_position`](crate::Feed::resume_position)).
/// Another feed continues there ([`FeedOptions::resume`]).
///
/// # Examples
/// ```
/// use embank_pipeline::{FeedInput, FeedOptions, Pipeline, Spec};
///
/// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
/// let inputs = || vec![FeedInput::memory("ten rows", row.repeat(10).into_bytes())];
/// let pipeline = Pipeline::new(&Spec::criteo(5000), &Default::default())?;
/// let options = FeedOptions { batch_rows: 4, ..Default::default() };
/// let mut feed = pipeline.feed(inputs(), &options)?;
/// feed.next().unwrap()?;
/// let stopped = feed.resume_position();
/// assert_eq!((stopped.rows, stopped.inputs[0].name.as_str()), (4, "ten rows"));
/// let pipeline = feed.into_pipeline()?;
/// let mut feed = pipeline.feed(inputs(), &options.resume(&stopped)?)?;
/// assert_eq!(feed.next().unwrap()?.first_row(), 4);
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedPosition {
    /// Rows that the feed skipped or returned.
    pub rows: u64,
    /// Rows of the feed's shuffle buffer.
    pub shuffle_rows: usize,
    /// Seed of the feed's shuffle.
    pub seed: u64,
    /// The inputs that the feed had begun to read, in their order. All inputs if the feed shuffles,
    /// because the order of its last rows depends on them. Empty before the first batch.
    pub inputs: Vec<InputId>,
    /// Where a feed that continues may begin. `None` before the first batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<FeedPlace>,
}

impl FeedPosition {
    /// Returns the position after the first `rows` rows, which must be no later. It has no place if
    /// this position's place is later.
    #[must_use]
    pub fn back_to(self, rows: u64) -> Self {
        let place = self.place.filter(|place| place.is_before(rows, self.shuffle_rows));
        Self { rows, place, ..self }
    }
}

/// Number of places that a [`Cursor`] keeps, for a caller that takes batches ahead of their use.
/// Most callers take fewer ahead. A place has some tens of bytes, and 16 for each vocabulary.
const PLACES_KEPT: usize = 256;

/// How far a feed, or a part of one, has got.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    reached: Reached,
    /// The places of the last batches, in their order, each once. At first that of the options.
    places: VecDeque<Arc<FeedPlace>>,
    options: Arc<FeedOptions>,
    /// All inputs of the run. Empty until the run has begun.
    inputs: Arc<OnceLock<Vec<InputId>>>,
}

/// The end of a batch: the rows of the run up to it, the inputs that they came from, and the place
/// from which a feed can make the next row.
#[derive(Debug, Clone)]
pub(super) struct Reached {
    rows: u64,
    /// 0 before the first batch.
    inputs: usize,
    place: Option<Arc<FeedPlace>>,
}

impl Reached {
    pub(super) fn end_of(batch: &Batch) -> Self {
        let rows = batch.first_row() + batch.rows() as u64;
        Self { rows, inputs: batch.inputs, place: batch.place.clone() }
    }
}

impl Cursor {
    /// The cursor of a feed before its first batch.
    pub(super) fn beginning(options: &FeedOptions, inputs: Arc<OnceLock<Vec<InputId>>>) -> Self {
        let place = options.places().from.cloned().map(Arc::new);
        let reached = Reached { rows: options.skip_rows, inputs: 0, place: place.clone() };
        let places = place.into_iter().collect();
        Self { reached, places, options: Arc::new(options.clone()), inputs }
    }

    pub(super) fn reached(&self) -> &Reached {
        &self.reached
    }

    pub(super) fn reach(&mut self, reached: Reached) {
        if let Some(place) = &reached.place
            && self.places.back().is_none_or(|last| !Arc::ptr_eq(last, place))
        {
            if self.places.len() == PLACES_KEPT {
                self.places.pop_front();
            }
            self.places.push_back(Arc::clone(place));
        }
        self.reached = reached;
    }

    /// The place from which a feed can make the row at the cursor.
    #[cfg(feature = "flight")]
    pub(super) fn place(&self) -> Option<&Arc<FeedPlace>> {
        self.reached.place.as_ref()
    }

    pub(super) fn next_row(&self) -> u64 {
        self.reached.rows
    }

    /// The position after the first `rows` rows, or at the cursor if `rows` is above its row.
    pub(super) fn position_at(&self, rows: u64) -> FeedPosition {
        let FeedOptions { shuffle_rows, seed, .. } = *self.options;
        let rows = rows.min(self.reached.rows);
        let inputs = self.inputs().to_vec();
        let place = self.places.iter().rev().find(|place| place.is_before(rows, shuffle_rows));
        let place = place.map(|place| FeedPlace::clone(place));
        FeedPosition { rows, shuffle_rows, seed, inputs, place }
    }

    /// The inputs of [`position_at`](Self::position_at).
    pub(super) fn inputs(&self) -> &[InputId] {
        let FeedOptions { shuffle_rows, skipped_inputs, .. } = &*self.options;
        match self.inputs.get() {
            // Before the first batch, a part must not look at `inputs`: whether the run has begun
            // depends on the time of the call.
            Some(all) if self.reached.inputs > 0 => match *shuffle_rows {
                0 => &all[..self.reached.inputs.max(skipped_inputs.len())],
                _ => all,
            },
            Some(_) | None => skipped_inputs,
        }
    }

    #[cfg(feature = "flight")]
    pub(super) fn shuffle_rows(&self) -> usize {
        self.options.shuffle_rows
    }

    pub(super) fn batch_rows(&self) -> usize {
        self.options.batch_rows
    }

    /// Batches that a feed keeps ready ([`FeedOptions::batches_ahead`]).
    pub(super) fn batches_ahead(&self) -> usize {
        self.options.batches_ahead
    }
}

impl FeedOptions {
    /// Returns these options for a feed that continues at `position`.
    ///
    /// # Errors
    /// [`Error::Spec`] if the position belongs to another shuffle. The rows then have another
    /// order.
    pub fn resume(&self, position: &FeedPosition) -> Result<Self> {
        let FeedPosition { rows, shuffle_rows, seed, ref inputs, ref place } = *position;
        let shuffles = shuffle_rows > 0 || self.shuffle_rows > 0;
        if shuffles && (shuffle_rows, seed) != (self.shuffle_rows, self.seed) {
            return Err(Error::Spec(format!(
                "the position is of a feed with shuffle_rows {shuffle_rows} and seed {seed}, and this feed has shuffle_rows \
                 {} and seed {}, so its rows come in another order: resume with the settings of the position",
                self.shuffle_rows, self.seed
            )));
        }
        let (skipped_inputs, skipped_place) = (inputs.clone(), place.clone());
        Ok(Self { skip_rows: rows, skipped_inputs, skipped_place, ..self.clone() })
    }

    /// How the feed's run uses places, without its buffer. A place counts only in inputs that
    /// [`check_inputs`](Self::check_inputs) has compared, and before the rows to return.
    pub(super) fn places(&self) -> RunPlaces<'_> {
        let is_before = |place: &&FeedPlace| {
            place.is_before(self.skip_rows, self.shuffle_rows)
                && place.input < self.skipped_inputs.len()
        };
        let from = self.skipped_place.as_ref().filter(is_before);
        RunPlaces { records: true, from, holder: None }
    }

    /// Fails unless the inputs of a feed begin with those that the skipped rows came from. With a
    /// shuffle, both must have equal inputs.
    pub(super) fn check_inputs(&self, inputs: &[InputId]) -> Result<()> {
        let skipped = &self.skipped_inputs;
        if skipped.is_empty() {
            return Ok(());
        }
        let compared =
            if self.shuffle_rows > 0 { inputs.len().max(skipped.len()) } else { skipped.len() };
        let differs = |place: &usize| inputs.get(*place) != skipped.get(*place);
        let Some(place) = (0..compared).find(differs) else { return Ok(()) };
        let (then, now) = (skipped.get(place).cloned(), inputs.get(place).cloned());
        Err(Error::OtherInputs { rows: self.skip_rows, number: place + 1, then, now })
    }
}

/// Returns the name and the length of each input. Folders must be expanded.
pub(super) fn ids_of(inputs: &[Input<'_>]) -> Result<Vec<InputId>> {
    let id =
        |input: &Input<'_>| Ok(InputId { name: input.name().to_owned(), bytes: input.bytes()? });
    inputs.iter().map(id).collect()
}
