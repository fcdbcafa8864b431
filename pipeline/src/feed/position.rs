//! The place at which a feed stopped, and the inputs that the rows before it came from.
//!
//! A number of rows alone is a place only in unchanged inputs. If a file appears in a folder before
//! the files that a feed has read, the number skips other rows: some rows are trained twice, and
//! some never. A position therefore names its inputs, and a feed that resumes compares them.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::error::{Error, Result};
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
}

/// How far a feed, or a part of one, has got.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) reached: Reached,
    options: Arc<FeedOptions>,
    /// All inputs of the run. Empty until the run has begun.
    inputs: Arc<OnceLock<Vec<InputId>>>,
}

/// A number of rows from the beginning of a run, and of the inputs that they came from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reached {
    rows: u64,
    /// 0 before the first batch.
    inputs: usize,
}

impl Place {
    /// The place of a feed before its first batch.
    pub(super) fn beginning(options: &FeedOptions, inputs: Arc<OnceLock<Vec<InputId>>>) -> Self {
        let reached = Reached { rows: options.skip_rows, inputs: 0 };
        Self { reached, options: Arc::new(options.clone()), inputs }
    }

    pub(super) fn reach_end_of(&mut self, batch: &Batch) {
        let rows = batch.first_row() + batch.rows() as u64;
        self.reached = Reached { rows, inputs: batch.inputs };
    }

    pub(super) fn next_row(&self) -> u64 {
        self.reached.rows
    }

    pub(super) fn position(&self) -> FeedPosition {
        let FeedOptions { shuffle_rows, seed, .. } = *self.options;
        let inputs = self.inputs().to_vec();
        FeedPosition { rows: self.reached.rows, shuffle_rows, seed, inputs }
    }

    /// The inputs of [`position`](Self::position).
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
        let FeedPosition { rows, shuffle_rows, seed, ref inputs } = *position;
        let shuffles = shuffle_rows > 0 || self.shuffle_rows > 0;
        if shuffles && (shuffle_rows, seed) != (self.shuffle_rows, self.seed) {
            return Err(Error::Spec(format!(
                "the position is of a feed with shuffle_rows {shuffle_rows} and seed {seed}, and this feed has shuffle_rows \
                 {} and seed {}, so its rows come in another order: resume with the settings of the position",
                self.shuffle_rows, self.seed
            )));
        }
        Ok(Self { skip_rows: rows, skipped_inputs: inputs.clone(), ..self.clone() })
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
