//! Commits a chunk when all chunks before it are committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use embank::locks::Mutex;

use super::consumer::Consumer;
use super::number::{Turn, number};
use super::place::{CountsBefore, FeedPlace, PlaceRecorder};
use super::setup::Setup;
use super::work::Work;
use crate::arrays::ArrayCounts;
use crate::batch::Batch;
use crate::decode::{BadField, Fault, FieldKind, REPORTED_BAD_ROWS, is_whole_float};
use crate::error::{BadRowReport, Error, Result};
use crate::format::{Format, Separator};
use crate::input::{Claim, shown};
use crate::spec::BadRows;
use crate::trace::{Stage, Stopwatch};
use crate::vocabulary::Numbering;

/// A run that has good rows checks the share of bad lines only from this number of lines on,
/// because a small sample says little.
pub(crate) const ROWS_BEFORE_SHARE: u64 = 10_000;

/// How many bad rows a run may leave out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BadRowLimit {
    pub(crate) policy: BadRows,
    /// Largest share of bad lines among all lines, from 0 to 1.
    pub(crate) share_max: f64,
}

/// Options of a commit.
pub(crate) struct CommitOptions {
    pub(crate) bad_rows: BadRowLimit,
    /// Whether to save each batch's values to the bank before the consumer gets the batch.
    pub(crate) saves: bool,
    /// Whether new values get ids.
    pub(crate) learns: bool,
    pub(crate) trace: bool,
    /// Set to true to end the run.
    pub(crate) stop: Arc<AtomicBool>,
    /// The counts of the rows before the run's first chunk, which the run does not read.
    pub(crate) before: CountsBefore,
    /// Records the place of each batch, if the run is that of a feed.
    pub(crate) places: Option<PlaceRecorder>,
}

/// State of the commits. Only the committing thread uses it.
pub(crate) struct Committer<'c> {
    /// Locked while a chunk's values are numbered. Not locked while the consumer has the batch,
    /// because evaluations wait for the lock.
    numberings: &'c Mutex<Vec<Numbering>>,
    /// `None` if the run has no output.
    consumer: Option<&'c mut dyn Consumer>,
    options: CommitOptions,
    pub(super) rows: u64,
    pub(super) bad_rows: u64,
    pub(super) bad_lines: u64,
    pub(super) reported: Vec<BadRowReport>,
    /// Where the arrays came from. At the end of the run, the counts of all threads are added.
    pub(super) arrays: ArrayCounts,
    /// Index of the input whose chunks are being committed.
    input: usize,
    /// Lines of this input in the chunks committed so far.
    input_lines: u64,
    /// Times of the commits. At the end of the run, the times of all threads are added.
    pub(super) stopwatch: Stopwatch,
    /// The error that ended the run early.
    pub(super) failure: Option<Error>,
}

impl<'c> Committer<'c> {
    pub(crate) fn new(
        numberings: &'c Mutex<Vec<Numbering>>,
        consumer: Option<&'c mut dyn Consumer>,
        options: CommitOptions,
    ) -> Self {
        let stopwatch = Stopwatch::new(options.trace);
        let CountsBefore { rows, bad_rows, bad_lines, input, lines } = options.before;
        Self {
            numberings,
            consumer,
            options,
            rows,
            bad_rows,
            bad_lines,
            reported: Vec::new(),
            arrays: ArrayCounts::default(),
            input,
            input_lines: lines,
            stopwatch,
            failure: None,
        }
    }

    /// Commits a chunk; all chunks before it must be committed. Returns its work for reuse. `None`
    /// if the run must end.
    pub(super) fn commit(
        &mut self,
        setup: &Setup<'_, '_>,
        claim: &Claim<'_>,
        outcome: Result<Work>,
    ) -> Option<Work> {
        self.stopwatch.start();
        self.come_to(claim.input);
        let committed = outcome.and_then(|mut work| {
            self.commit_work(setup, claim, &mut work)?;
            // The consumer may have put another batch into the place of this one. If its shape
            // differs, the batch can't be reused.
            if !Arc::ptr_eq(&work.batch.infos, setup.infos) {
                work.batch = Batch::new(Arc::clone(setup.infos));
            }
            Ok(work)
        });
        match committed {
            Ok(work) => Some(work),
            Err(mut error) => {
                if let Error::LineTooLong { line, .. } = &mut error {
                    // The line's number counts the lines of this chunk only, so the lines of
                    // earlier chunks are added.
                    *line += self.input_lines;
                }
                self.failure = Some(error);
                None
            }
        }
    }

    fn come_to(&mut self, input: usize) {
        if self.input != input {
            self.input = input;
            self.input_lines = 0;
        }
    }

    fn commit_work(
        &mut self,
        setup: &Setup<'_, '_>,
        claim: &Claim<'_>,
        work: &mut Work,
    ) -> Result<()> {
        // Relaxed: nothing else depends on the flag, and it does not matter which commit is the
        // first to see it.
        if self.options.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let place = self.place(setup, claim.range.start);
        let name = setup.chunks.name(claim.input);
        self.report_bad(name, &claim.plan.field_names, setup.format, work)?;
        self.check_share(work.batch.rows as u64)?;
        self.input_lines += work.lines as u64;
        let turn = Turn {
            plan: setup.plan,
            numberings: setup.numberings,
            generates: setup.generates,
            input: name,
            rows_before: self.rows,
        };
        number(turn, self.numberings, work)?;
        if self.options.saves {
            self.numberings.lock().iter_mut().try_for_each(Numbering::save)?;
        } else if self.options.learns {
            self.numberings.lock().iter_mut().try_for_each(Numbering::give_out)?;
        }
        self.stopwatch.lap(Stage::Number);
        let batch = &mut work.batch;
        batch.first_row = self.rows;
        batch.input_bytes = claim.input_bytes;
        batch.inputs = claim.input + 1;
        batch.place = place;
        self.rows += batch.rows as u64;
        if let Some(consumer) = self.consumer.as_mut().filter(|_| batch.rows > 0) {
            consumer.consume(batch).map_err(Error::Consumer)?;
            self.stopwatch.lap(Stage::Consume);
        }
        Ok(())
    }

    /// The place before the chunk that begins at `offset` of its input, if the run records places.
    fn place(&mut self, setup: &Setup<'_, '_>, offset: u64) -> Option<Arc<FeedPlace>> {
        let Self { rows, bad_rows, bad_lines, input, input_lines: lines, .. } = *self;
        let before = CountsBefore { rows, bad_rows, bad_lines, input, lines };
        let recorder = self.options.places.as_mut()?;
        let numberings = self.numberings.lock();
        Some(Arc::new(recorder.place(before, offset, setup.numberings, &numberings)))
    }

    /// Counts the chunk's bad rows, and keeps the first few for the report.
    fn report_bad(
        &mut self,
        input: &str,
        fields: &[String],
        format: Format,
        work: &Work,
    ) -> Result<()> {
        for bad in work.bad.first() {
            let advises = self.reported.is_empty();
            let report = || BadRowReport {
                input: input.to_owned(),
                line: self.input_lines + bad.line as u64 + 1,
                lines: bad.lines as u64,
                column: bad.fault.column(),
                what: fault_text(&bad.fault, fields, format, advises),
            };
            match self.options.bad_rows.policy {
                BadRows::Fail => return Err(Error::BadRow(report())),
                BadRows::Skip if self.reported.len() < REPORTED_BAD_ROWS => {
                    self.reported.push(report());
                }
                BadRows::Skip => break,
            }
        }
        self.bad_rows += work.bad.count() as u64;
        self.bad_lines += work.bad.lines() as u64;
        Ok(())
    }

    /// Fails if the share of bad lines is too large. `rows` is the number of good rows in this
    /// chunk.
    fn check_share(&self, rows: u64) -> Result<()> {
        let lines = self.rows + rows + self.bad_lines;
        if lines < ROWS_BEFORE_SHARE { Ok(()) } else { self.check_share_of(lines) }
    }

    /// Called at the end of a run. Fails if every row is bad and the allowed share is below 1, even
    /// if there are fewer than 10,000 lines. The inputs then probably have another format than the
    /// run's, and the run has no result.
    pub(super) fn check_any_good(&self) -> Result<()> {
        if self.rows > 0 { Ok(()) } else { self.check_share_of(self.bad_lines) }
    }

    /// Fails if bad rows make up more than the allowed share of `lines`.
    fn check_share_of(&self, lines: u64) -> Result<()> {
        let BadRowLimit { policy, share_max } = self.options.bad_rows;
        if policy == BadRows::Fail || self.bad_lines as f64 <= share_max * lines as f64 {
            return Ok(());
        }
        Err(Error::TooManyBadRows {
            bad_lines: self.bad_lines,
            lines,
            limit: share_max,
            first: self.reported.clone(),
        })
    }
}

/// Describes the fault of a row. With `advises`, the text also names a setting with which such rows
/// can be read. Only the first report of a run has this advice, because an error may show ten
/// reports.
#[cold]
fn fault_text(fault: &Fault, fields: &[String], format: Format, advises: bool) -> String {
    match fault {
        Fault::Fields { found, expected } => wrong_count(*found, *expected, format, advises),
        #[cfg(feature = "parquet")]
        Fault::Value { field, why, snippet } => {
            wrong_field(&fields[*field], *why, snippet, advises)
        }
        #[cfg(feature = "parquet")]
        Fault::OfRow { name, fault } => {
            format!("{name:?}: {}", fault_text(fault, fields, format, advises))
        }
        Fault::Array { field, name, why } if name.is_empty() => {
            format!("field {:?} {why}", fields[*field])
        }
        Fault::Array { field, name, why } => {
            format!("field {:?}, {:?}, {why}", fields[*field], shown(name))
        }
        Fault::Field { field, why, snippet, .. } => {
            wrong_field(&fields[*field], *why, snippet, advises)
        }
    }
}

/// Describes the fault of a row with a wrong number of fields. If a row has only one field, its
/// text probably has another separator, and the advice says so.
fn wrong_count(found: usize, expected: usize, format: Format, advises: bool) -> String {
    let noun = if found == 1 { "field" } else { "fields" };
    let what = format!("has {found} {noun}, and the pipeline's rows have {expected}");
    let Format::Text { separator, .. } = format else { return what };
    if found == 1 && advises {
        let cure = if separator == Separator::from(b',') {
            "give the text's own `separator`"
        } else {
            "for text with commas and a header give `format: csv`, for other text a `separator`"
        };
        return format!(
            "{what}: it is read as text with the separator {separator:?}, which it does not have; {cure}"
        );
    }
    format!("{what}, separated by {separator:?}")
}

fn wrong_field(name: &str, why: BadField, snippet: &[u8], advises: bool) -> String {
    use FieldKind::{Float32, Int32, Int64, Uint64};
    let is_whole = matches!(why, BadField::NotA(Int32 | Int64 | Uint64)) && is_whole_float(snippet);
    let is_number = matches!(why, BadField::NotA(Int32 | Int64 | Uint64 | Float32));
    let is_word = is_number && snippet.len() > 1 && snippet.iter().all(u8::is_ascii_alphabetic);
    let cure = if is_whole && advises {
        ", but a float that the field's setting `whole_floats: true` reads"
    } else if is_word && advises {
        ", but a word, which a setting of the field reads as missing (`missing`) or as a number (`words`)"
    } else {
        ""
    };
    format!("field {name:?}, {:?}, {why}{cure}", shown(snippet))
}
