//! Runs a pipeline over inputs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::Pipeline;
use super::refill::Refilled;
use crate::arrays::chunk_bytes;
use crate::error::{Error, Result};
use crate::execute::{
    self, ArrayReport, BadRowLimit, CommitOptions, Committer, Consumer, FeedPlace, Outcome,
    PlaceRecorder, RunPlaces, RunReport, Setup,
};
use crate::format::Format;
use crate::input::{Chunks, FileStates, Input};
use crate::plan::{Plans, TextLimits, VocabularyPlan};
use crate::trace::Trace;
use crate::vocabulary::{Numbering, RunNumbering, ValueCounts};

impl Pipeline {
    /// Runs over the inputs, one after the other, and passes each batch to `consumer`. An
    /// [evaluation](Self::evaluation) adds no values.
    ///
    /// A run reads its inputs twice if a vocabulary has a
    /// [`min_count`](crate::VocabularySpec::min_count) and is not frozen. The first pass
    /// [counts](Self::generate). Then the run [keeps the frequent values](Self::keep_frequent) of
    /// these vocabularies, and the second pass applies them. Later runs find the vocabularies
    /// frozen and read their inputs once.
    ///
    /// # Errors
    /// - The inputs: [`Error::Inputs`], [`Error::Header`], [`Error::Encoding`], [`Error::Io`],
    ///   [`Error::Compressed`], [`Error::LineTooLong`], [`Error::NoWholeRows`],
    ///   [`Error::Columns`], [`Error::InputChanged`].
    /// - Bad rows: [`Error::BadRow`] for the first bad row with
    ///   [`BadRows::Fail`](crate::BadRows::Fail), [`Error::TooManyBadRows`] with
    ///   [`BadRows::Skip`](crate::BadRows::Skip).
    /// - Values: [`Error::UnknownValue`] if a vocabulary lacks a value and is frozen or belongs to
    ///   an evaluation; [`Error::ValueTooLong`]; [`Error::IdTooLarge`].
    /// - The bank: [`Error::Bank`], [`Error::VocabularyChanged`], [`Error::IdsGivenElsewhere`].
    /// - The caller: [`Error::Consumer`], [`Error::Stopped`].
    /// - An evaluation: [`Error::VocabularyRenumbered`]; [`Error::Spec`] if a vocabulary with a
    ///   `min_count` is not frozen, because its ids are not final.
    ///
    /// After an error the vocabularies have the values of the batches that the consumer got. They
    /// may also have some values of the next batch.
    ///
    /// If a run of two passes fails in the first pass, the bank may have counts of only some rows.
    /// The next run would count these rows again, so it fails with [`Error::CountedInPart`], which
    /// says what to do.
    ///
    /// If a run fails after the first pass, while it keeps the frequent values, it can be repeated.
    /// The next run continues with the vocabularies that are left, and does not count again. A
    /// checkpoint of the bank that is taken before the repeated run also has the counts of the
    /// first pass, and a new pipeline can't detect them.
    pub fn run(&mut self, inputs: &[Input<'_>], consumer: &mut dyn Consumer) -> Result<RunReport> {
        self.run_from(inputs, consumer, RunPlaces::default())
    }

    /// As [`run`](Self::run), for a feed, which may begin at a place. A pass that counts reads all
    /// rows.
    pub(crate) fn run_from(
        &mut self,
        inputs: &[Input<'_>],
        consumer: &mut dyn Consumer,
        places: RunPlaces<'_>,
    ) -> Result<RunReport> {
        let started = Instant::now();
        consumer.begin(inputs)?;
        let begun = self.begun.take();
        // Called before `to_make`, because another program may have frozen or unfrozen a
        // vocabulary.
        self.refresh()?;
        let to_make = self.to_make();
        if let (false, Some(&place)) = (self.learns, to_make.first()) {
            return Err(Error::Spec(format!(
                "vocabulary {:?} has a min_count, and its ids are not final before a run that learns has counted and \
                 frozen it: let the pipeline run over its training inputs first",
                self.plan.vocabularies[place].name
            )));
        }
        // Both passes read the same files: a folder is listed once, and each file keeps its state.
        let inputs = Input::expand(inputs)?;
        let states = Arc::default();
        if !to_make.is_empty() {
            self.make(&inputs, &to_make, &states)?;
        }
        let report = self.go_over(&inputs, &states, Some(consumer), begun, places);
        let report = report.map_err(|error| self.in_terms_of_a_replay(error))?;
        Ok(RunReport { elapsed: started.elapsed(), ..report })
    }

    /// Reads the inputs once. Without a `consumer`, the run only gives ids and counts. `begun` is
    /// how the run sees the vocabularies; `None` takes their present state. `states` has the states
    /// of the inputs that an earlier pass of the run has read. Begins at the place of `places` if
    /// the batches are then the same ([`FeedPlace`]).
    pub(super) fn go_over(
        &mut self,
        inputs: &[Input<'_>],
        states: &Arc<FileStates>,
        consumer: Option<&mut dyn Consumer>,
        begun: Option<Vec<RunNumbering>>,
        places: RunPlaces<'_>,
    ) -> Result<RunReport> {
        let started = Instant::now();
        self.refresh()?;
        let generates = consumer.is_none();
        let inputs = Input::expand(inputs)?;
        let plans = self.plans_for(&inputs)?;
        let mut chunks = self.chunks(&inputs, &plans, states)?;
        if generates {
            self.counting_begins();
        }
        let numberings = begun.unwrap_or_else(|| self.numberings_of_a_run(generates));
        let settings = if places.records { plans.digest() } else { 0 };
        let fits = |place: &&FeedPlace| {
            place.fits(settings, &numberings, &self.numberings.lock()) && chunks.has(place.input)
        };
        let mut from = places.from.filter(fits);
        let mut refilled = None;
        if let (Some(place), Some(holder)) = (from, places.holder) {
            let run = Refilled { inputs: &inputs, plans: &plans, states, numberings: &numberings };
            let filled = self.refill(holder, place, &run);
            if let (Err(_), Some(cache)) = (&filled, &self.cache) {
                cache.end_run();
            }
            refilled = filled?;
            from = from.filter(|_| refilled.is_some());
        }
        if let Some(place) = from {
            chunks.begin_at(place.input, place.offset)?;
        }
        let recorder = || PlaceRecorder::new(settings, numberings.len(), self.learns);
        let setup = Setup {
            plan: plans.own(),
            format: plans.format(),
            options: &self.options,
            root: self.root.as_deref(),
            decoders: &self.decoders,
            cache: self.cache.as_deref(),
            infos: &self.infos,
            numberings: &numberings,
            generates,
            chunks: &chunks,
            kept: None,
        };
        let options = CommitOptions {
            bad_rows: self.bad_rows_of_a_run(),
            // An evaluation never saves: the values that are not saved belong to the pipeline that
            // learns.
            saves: self.saves_each_batch && self.learns,
            learns: self.learns,
            trace: self.options.trace,
            stop: Arc::clone(&self.stop),
            before: from.map(FeedPlace::counts).unwrap_or_default(),
            places: places.records.then(recorder),
        };
        // Reborrowed, so that the borrow ends with this run.
        let consumer = consumer.map(|consumer| &mut *consumer as &mut dyn Consumer);
        let committer = Committer::new(&self.numberings, consumer, options);
        let outcome = execute::run(&setup, committer);
        if let Some(cache) = &self.cache {
            cache.end_run();
        }
        let mut outcome = outcome?;
        let mut passed =
            Passed { rows: from.map_or(0, |place| place.rows), bytes: chunks.passed_bytes() };
        if let Some(refilled) = refilled {
            passed = Passed { rows: passed.rows - refilled.rows, bytes: 0 };
            outcome.arrays.add(refilled.arrays);
            outcome.reading += refilled.reading;
            outcome.stopwatch.add(&refilled.stopwatch);
        }
        let mut report = report(&outcome, passed, &chunks, started.elapsed());
        if !generates {
            // A run of two passes drops the report of the pass that counts.
            let failure = self.cache.as_ref().and_then(|cache| cache.take_failure());
            report.arrays.spool_failure = failure;
        }
        drop(chunks);
        self.add_counts(&outcome.counted);
        Ok(report)
    }

    /// Adds the counts of each thread of a run.
    fn add_counts(&self, counted: &[Vec<Option<ValueCounts>>]) {
        let mut numberings = self.numberings.lock();
        for thread in counted {
            for (numbering, counts) in numberings.iter_mut().zip(thread) {
                counts.iter().for_each(|counts| numbering.add(counts));
            }
        }
    }

    /// Returns how a run that begins now sees the vocabularies.
    fn numberings_of_a_run(&self, generates: bool) -> Vec<RunNumbering> {
        let numberings = self.numberings.lock();
        let one = |numbering: &Numbering| {
            if self.learns {
                RunNumbering::learning(numbering, generates)
            } else if self.replays {
                RunNumbering::replaying(numbering)
            } else {
                RunNumbering::evaluating(numbering)
            }
        };
        numberings.iter().map(one).collect()
    }

    /// Records which values the next run of an evaluation knows. `feed` calls this function,
    /// because the feed's run begins later, in another thread.
    pub(crate) fn begin_evaluation(&mut self) {
        // An error is ignored here: the run meets it again and returns it.
        if !self.learns && self.refresh().is_ok() {
            self.begun = Some(self.numberings_of_a_run(false));
        }
    }

    /// The plans for a run over these inputs that begins now. With [`Format::ByName`], their names
    /// decide the format.
    fn plans_for(&self, inputs: &[Input<'_>]) -> Result<Arc<Plans>> {
        let limits = self.text_limits();
        let of_part = inputs.iter().find_map(Input::format_of_part);
        if of_part.is_some() && inputs.len() > 1 {
            let why = "a part of a file must be the only input of its run".to_owned();
            return Err(Error::Inputs(why));
        }
        let format = of_part.unwrap_or(self.options.format);
        if limits.is_empty()
            && format == self.plans.format()
            && !matches!(format, Format::ByName(_))
        {
            return Ok(Arc::clone(&self.plans));
        }
        let format = format.of_names(inputs.iter().map(Input::name))?;
        Ok(Arc::new(self.plans.of_run(format, limits)?))
    }

    /// The longest text of each vocabulary to which a run that begins now may add texts. To a
    /// frozen vocabulary and to an evaluation, a longer text is a value that the vocabulary does
    /// not have, and no reason for a bad row: a text means the same in training and in evaluation.
    fn text_limits(&self) -> TextLimits {
        if !self.learns && !self.replays {
            return TextLimits::default();
        }
        let numberings = self.numberings.lock();
        let growing = self.plan.vocabularies.iter().zip(numberings.iter());
        let growing = growing.filter(|(_, numbering)| !numbering.is_frozen());
        let limit = |(plan, numbering): (&VocabularyPlan, &Numbering)| {
            Some((plan.name.clone(), numbering.value_bytes_max()?))
        };
        growing.filter_map(limit).collect()
    }

    /// How many bad rows a run may leave out. A run over a part leaves out any number: the share
    /// counts over all parts ([`add_report`](Self::add_report)).
    fn bad_rows_of_a_run(&self) -> BadRowLimit {
        if self.is_of_parts || self.replays {
            return BadRowLimit { share_max: 1.0, ..self.bad_rows };
        }
        self.bad_rows
    }

    pub(super) fn chunks<'a>(
        &self,
        inputs: &[Input<'a>],
        plans: &Arc<Plans>,
        states: &Arc<FileStates>,
    ) -> Result<Chunks<'a>> {
        let stop = Arc::clone(&self.stop);
        let chunk_bytes = chunk_bytes(&self.plan.arrays, self.options.chunk_bytes);
        Chunks::new(inputs, chunk_bytes, plans, stop, Arc::clone(states))
    }

    /// Measures how many bytes per second this pipeline can read from the inputs if it does nothing
    /// with them. The result is for [`Trace::explain_with_input`]. `read_rate` reads everything
    /// that a run would read, with the pipeline's threads and chunks. A file in the system's page
    /// cache is read from the cache. Decompression and the decoding of Parquet and Arrow count as
    /// reading, because the reading thread does them.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run) for inputs that can't be read. [`Error::Spec`] for a pipe,
    /// which can be read only once.
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{Input, Pipeline, RunOptions, Spec};
    ///
    /// let pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
    /// assert!(pipeline.read_rate(&[Input::memory("lines", &b"1\t2\n".repeat(1000))])? > 0.0);
    /// # Ok::<(), embank_pipeline::Error>(())
    /// ```
    pub fn read_rate(&self, inputs: &[Input<'_>]) -> Result<f64> {
        let inputs = Input::expand(inputs)?;
        if let Some(pipe) = inputs.iter().find(|input| input.is_pipe()) {
            return Err(Error::Spec(format!(
                "{:?} is a pipe, and can be read only once: measure with a file",
                pipe.name()
            )));
        }
        let chunks = self.chunks(&inputs, &self.plans_for(&inputs)?, &Arc::default())?;
        let started = Instant::now();
        chunks.read_all(self.options.threads)?;
        Ok(chunks.bytes() as f64 / started.elapsed().as_secs_f64())
    }

    /// Gives the pipeline a flag by which another thread can end later runs. Once `stop` is true, a
    /// [`run`](Self::run) or [`generate`](Self::generate) fails at its next chunk with
    /// [`Error::Stopped`]. A [feed](Self::feed) has a flag of its own.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use embank_pipeline::{Error, Input, Pipeline, Spec};
    ///
    /// let mut pipeline = Pipeline::new(&Spec::criteo(5000), &Default::default())?;
    /// let stop = Arc::new(AtomicBool::new(false));
    /// pipeline.stop_when(Arc::clone(&stop));
    /// stop.store(true, Ordering::Relaxed); // elsewhere
    /// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
    /// let stopped = pipeline.generate(&[Input::memory("a row", row.as_bytes())]);
    /// assert!(matches!(stopped, Err(Error::Stopped)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    /// As [`stop_when`](Self::stop_when), but returns the previous flag.
    pub(crate) fn replace_stop(&mut self, stop: Arc<AtomicBool>) -> Arc<AtomicBool> {
        std::mem::replace(&mut self.stop, stop)
    }
}

/// What a run that began at a place has not read.
struct Passed {
    /// Rows that the run has not decoded.
    rows: u64,
    bytes: u64,
}

/// Makes the report of a run over these chunks.
fn report(outcome: &Outcome, passed: Passed, chunks: &Chunks<'_>, elapsed: Duration) -> RunReport {
    let stopwatch = &outcome.stopwatch;
    let trace = stopwatch.is_on().then(|| {
        Trace::new(
            outcome.rows - passed.rows,
            chunks.bytes() - passed.bytes,
            outcome.threads,
            elapsed,
            outcome.reading,
            stopwatch,
        )
    });
    let missing = chunks.missing_columns();
    RunReport {
        rows: outcome.rows,
        arrays: ArrayReport::of(outcome.arrays),
        passed_rows: passed.rows,
        bad_rows: outcome.bad_rows,
        bad_lines: outcome.bad_lines,
        first_bad_rows: outcome.first_bad_rows.clone(),
        missing_columns: missing.count,
        first_missing_columns: missing.first,
        bytes: chunks.bytes(),
        elapsed,
        trace,
    }
}
