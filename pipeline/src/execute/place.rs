//! Places between the chunks of a feed's run, at which another feed can begin.
//!
//! **Problem.** A feed that resumes returns the rows after a position as if it had made all rows
//! before it. Making these rows again takes as long as the first time.
//!
//! **Approach.** The committer of a feed's run records the place before each chunk. A feed that
//! resumes begins at the last place before its position, and skips the rows between the two. It
//! does so only if the result is the same as that of a run from the first row.
//!
//! **Why the result is the same.** The rows before a place act on later rows in five ways.
//!
//! - They are counted. The place has the counts, so numbers of rows, line numbers and the share of
//!   bad lines stay the same. Which rows are good depends on the inputs, which the feed compares,
//!   and on the spec, the format and the limits of texts, which are in `settings`.
//! - They give ids to new values. [`VocabularyMark`] shows that the vocabulary has all values of
//!   these rows, or that no row changes it.
//! - Headers and types of columns decide what values mean. Each text decides for itself, and a run
//!   over columns checks the files before the place without reading their rows
//!   ([`crate::input::Chunks`]).
//! - A pass that counts values for a `min_count` reads all rows. It never begins at a place.
//! - A shuffle buffer holds some of them. The feed fills its buffer with these rows first, or reads
//!   all rows (`Pipeline::refill`).

use serde::{Deserialize, Serialize};

use super::kept::Holder;
use crate::error::{Error, Result};
use crate::vocabulary::{Marker, Numbering, RunNumbering, VocabularyMark};

/// A place in a feed's inputs, shortly before the position of the feed. In a feed that shuffles,
/// the position counts rows that were returned, and the place counts rows that were read. So the
/// place may be later by the rows of the buffer. A feed that resumes begins to read at the place,
/// if it then returns the same batches as after reading all rows. Otherwise it reads all rows.
/// Comes from [`Feed::resume_position`](crate::Feed::resume_position), and goes through JSON.
///
/// # Examples
/// See [`FeedPosition`](crate::FeedPosition).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedPlace {
    /// Index of the input, from 0.
    pub(crate) input: usize,
    /// Begin of a chunk in this input: its byte in the decompressed text or in the packed rows, or
    /// its row in a file of columns.
    pub(crate) offset: u64,
    /// Good rows of the run before the place.
    pub(crate) rows: u64,
    /// Bad rows of the run before the place.
    pub(crate) bad_rows: u64,
    /// Lines that the bad rows span.
    pub(crate) bad_lines: u64,
    /// Lines of this input before the place.
    pub(crate) lines: u64,
    /// Digest of the settings that decide which rows are good.
    pub(crate) settings: u64,
    /// The mark of each vocabulary of the pipeline. `None` if the vocabulary may lack values of the
    /// rows before the place.
    pub(crate) vocabularies: Vec<Option<VocabularyMark>>,
}

/// How a feed's run uses places.
#[derive(Clone, Copy, Default)]
pub(crate) struct RunPlaces<'p> {
    /// Whether to record the place of each batch.
    pub(crate) records: bool,
    /// Where to begin, if the result is the same.
    pub(crate) from: Option<&'p FeedPlace>,
    /// The buffer that must hold rows from before `from`. `None` if there is none.
    pub(crate) holder: Option<&'p dyn Holder>,
}

/// The counts of a run before a chunk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CountsBefore {
    pub(crate) rows: u64,
    pub(crate) bad_rows: u64,
    pub(crate) bad_lines: u64,
    /// Index of the chunk's input, and the lines of this input before the chunk.
    pub(crate) input: usize,
    pub(crate) lines: u64,
}

impl FeedPlace {
    /// Writes the place as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers have a JSON form")
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// [`Error::Spec`] with the fault and its place in the JSON.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json)
            .map_err(|error| Error::Spec(format!("no place of a feed: {error}")))
    }

    /// True if a feed that has returned `rows` rows, and has a shuffle buffer of `shuffle_rows`
    /// rows, has read the rows before the place.
    pub(crate) fn is_before(&self, rows: u64, shuffle_rows: usize) -> bool {
        self.rows <= rows.saturating_add(shuffle_rows as u64)
    }

    pub(crate) fn counts(&self) -> CountsBefore {
        let Self { rows, bad_rows, bad_lines, input, lines, .. } = *self;
        CountsBefore { rows, bad_rows, bad_lines, input, lines }
    }

    /// True if a run with these settings and vocabularies may begin at the place.
    pub(crate) fn fits(
        &self,
        settings: u64,
        runs: &[RunNumbering],
        numberings: &[Numbering],
    ) -> bool {
        let mut each = runs.iter().zip(numberings).zip(&self.vocabularies);
        self.settings == settings
            && self.vocabularies.len() == runs.len()
            && each.all(|((run, numbering), &mark)| run.may_begin_at(numbering, mark))
    }
}

/// Makes the places of a run.
pub(crate) struct PlaceRecorder {
    settings: u64,
    markers: Vec<Marker>,
    /// The marks of an evaluation, which knows only the values from before its run. The pipeline
    /// that learns may add values meanwhile. A later pipeline need not have these.
    fixed: Option<Vec<Option<VocabularyMark>>>,
    learns: bool,
}

impl PlaceRecorder {
    pub(crate) fn new(settings: u64, vocabularies: usize, learns: bool) -> Self {
        let markers = (0..vocabularies).map(|_| Marker::default()).collect();
        Self { settings, markers, fixed: None, learns }
    }

    /// Returns the place before the chunk that begins at `offset` of its input. Called before the
    /// chunk's values get ids.
    pub(crate) fn place(
        &mut self,
        before: CountsBefore,
        offset: u64,
        runs: &[RunNumbering],
        numberings: &[Numbering],
    ) -> FeedPlace {
        let vocabularies = self.fixed.clone().unwrap_or_else(|| {
            let each = self.markers.iter_mut().zip(runs.iter().zip(numberings));
            each.map(|(marker, (run, numbering))| marker.mark(run, numbering)).collect()
        });
        if !self.learns {
            self.fixed.get_or_insert_with(|| vocabularies.clone());
        }
        let CountsBefore { rows, bad_rows, bad_lines, input, lines } = before;
        let settings = self.settings;
        FeedPlace { input, offset, rows, bad_rows, bad_lines, lines, settings, vocabularies }
    }
}
