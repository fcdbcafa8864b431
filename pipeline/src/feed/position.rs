//! The place at which a feed stopped, and the inputs that the rows before it came from.
//!
//! A number of rows alone is a place only in unchanged inputs. If a file appears in a folder before
//! the files that a feed has read, the number skips other rows: some rows are trained twice, and
//! some never. A position therefore names its inputs, and a feed that resumes compares them.

use serde::{Deserialize, Serialize};

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
    /// Where a feed that continues may begin to read. `None` if it must read all rows: before the
    /// first batch, and with a shuffle, whose buffer has rows from everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<FeedPlace>,
}

impl FeedPosition {
    /// Returns the position after the first `rows` rows, which must be no later. It has no place if
    /// this position's place is later.
    #[must_use]
    pub fn back_to(self, rows: u64) -> Self {
        let place = self.place.filter(|place| place.rows <= rows);
        Self { rows, place, ..self }
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

    /// How the feed's run uses places. A shuffle's buffer has rows from everywhere before the
    /// position, so a feed that shuffles reads all rows. A place counts only in inputs that
    /// [`check_inputs`](Self::check_inputs) has compared, and before the rows to return.
    pub(super) fn places(&self) -> RunPlaces<'_> {
        let records = self.shuffle_rows == 0;
        let is_before = |place: &&FeedPlace| {
            records && place.rows <= self.skip_rows && place.input < self.skipped_inputs.len()
        };
        RunPlaces { records, from: self.skipped_place.as_ref().filter(is_before) }
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
