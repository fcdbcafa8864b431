//! Runs of a pipeline over inputs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::Pipeline;
use crate::error::{Error, Result};
use crate::execute::{self, CommitOptions, Committer, Consumer, Outcome, RunReport, Setup};
use crate::format::Format;
use crate::input::{Chunks, Input};
use crate::plan::Plans;
use crate::trace::Trace;
use crate::vocabulary::{Numbering, RunNumbering};

impl Pipeline {
    /// Runs over the inputs, one after the other, and hands the batches to `consumer`. An
    /// [evaluation](Self::evaluation) inserts nothing.
    ///
    /// Where a vocabulary has a [`min_count`](crate::VocabularySpec::min_count) and is not frozen,
    /// it goes over them twice: it [generates](Self::generate), [keeps what is
    /// frequent](Self::keep_frequent) of such vocabularies, and then applies them. Later runs
    /// find them frozen and go over their inputs once.
    ///
    /// # Errors
    /// [`Error::Inputs`], [`Error::Header`], [`Error::Encoding`], [`Error::TooManyBadRows`];
    /// [`Error::BadRow`] for the first bad row if the pipeline fails at those; [`Error::Io`],
    /// [`Error::Compressed`], [`Error::LineTooLong`], [`Error::NoWholeRows`],
    /// [`Error::Consumer`], [`Error::Stopped`]; [`Error::UnknownValue`] for values that a
    /// vocabulary lacks which is frozen or looked up only; [`Error::ValueTooLong`];
    /// [`Error::IdTooLarge`]; [`Error::Bank`]; [`Error::VocabularyChanged`]; of an evaluation
    /// [`Error::VocabularyRenumbered`], and [`Error::Spec`] for a vocabulary with a `min_count`
    /// that is not frozen, as its ids are not final. After an error the vocabularies have the
    /// values of the batches that were handed out, and perhaps some of the next one.
    ///
    /// A run that goes over its inputs twice and fails in the first pass may leave counts of some
    /// rows behind. A later one would count them again, so it fails with
    /// [`Error::CountedInPart`], which says what can be done. If it has counted all and fails
    /// while it keeps what is frequent, the next run goes on from there and counts no more. A
    /// checkpoint of the bank that is taken before that is done has those counts, and a new
    /// pipeline can't tell.
    pub fn run(&mut self, inputs: &[Input<'_>], consumer: &mut dyn Consumer) -> Result<RunReport> {
        let started = Instant::now();
        consumer.begin(inputs)?;
        let begun = self.begun.take();
        // Done first: another program may have frozen a vocabulary, or let it grow again.
        self.refresh()?;
        let to_make = self.to_make();
        if let (false, Some(&place)) = (self.learns, to_make.first()) {
            return Err(Error::Spec(format!(
                "vocabulary {:?} has a min_count, and its ids are not final before a run that learns has counted and \
                 frozen it: let the pipeline run over its training inputs first",
                self.plan.vocabularies[place].name
            )));
        }
        if !to_make.is_empty() {
            self.make(inputs, &to_make)?;
        }
        let report = self.go_over(inputs, Some(consumer), begun)?;
        Ok(RunReport { elapsed: started.elapsed(), ..report })
    }

    /// Goes over the inputs once. Numbers and counts alone if there is no `consumer`. `begun` are
    /// the vocabularies as the run sees them; `None` if it sees them as they are now.
    pub(super) fn go_over(
        &mut self,
        inputs: &[Input<'_>],
        consumer: Option<&mut dyn Consumer>,
        begun: Option<Vec<RunNumbering>>,
    ) -> Result<RunReport> {
        let started = Instant::now();
        self.refresh()?;
        let generates = consumer.is_none();
        let inputs = Input::expand(inputs)?;
        let plans = self.plans_for(&inputs)?;
        let chunks = self.chunks(&inputs, &plans)?;
        if generates {
            self.counting_begins();
        }
        let numberings = begun.unwrap_or_else(|| self.numberings_of_a_run(generates));
        let setup = Setup {
            plan: plans.own(),
            format: plans.format(),
            options: &self.options,
            infos: &self.infos,
            numberings: &numberings,
            generates,
            chunks: &chunks,
        };
        let options = CommitOptions {
            bad_rows: self.bad_rows,
            // What the pipeline that learns has not saved is its own affair.
            saves: self.saves_each_batch && self.learns,
            learns: self.learns,
            trace: self.options.trace,
            stop: Arc::clone(&self.stop),
        };
        // Lent again for each run, because the borrow must not last longer than the run.
        let consumer = consumer.map(|consumer| &mut *consumer as &mut dyn Consumer);
        let committer = Committer::new(&self.numberings, consumer, options);
        let outcome = execute::run(&setup, committer)?;
        let report = report(&outcome, &chunks, started.elapsed());
        drop(chunks);
        let mut numberings = self.numberings.lock();
        for thread in outcome.counted {
            for (numbering, counts) in numberings.iter_mut().zip(&thread) {
                counts.iter().for_each(|counts| numbering.add(counts));
            }
        }
        drop(numberings);
        Ok(report)
    }

    /// The vocabularies as a run sees them that begins now.
    fn numberings_of_a_run(&self, generates: bool) -> Vec<RunNumbering> {
        let numberings = self.numberings.lock();
        let one = |numbering: &Numbering| {
            if self.learns {
                RunNumbering::learning(numbering, generates)
            } else {
                RunNumbering::evaluating(numbering)
            }
        };
        numberings.iter().map(one).collect()
    }

    /// Has the next run of an evaluation know the values that have ids now. A feed's run begins
    /// some time after the feed was asked for.
    pub(crate) fn begin_evaluation(&mut self) {
        // The run itself tells of an error.
        if !self.learns && self.refresh().is_ok() {
            self.begun = Some(self.numberings_of_a_run(false));
        }
    }

    /// The plans for inputs, whose format may follow from their names.
    fn plans_for(&self, inputs: &[Input<'_>]) -> Result<Arc<Plans>> {
        if !matches!(self.options.format, Format::ByName(_)) {
            return Ok(Arc::clone(&self.plans));
        }
        let format = self.options.format.of_names(inputs.iter().map(Input::name))?;
        Ok(Arc::new(self.plans.of_format(format)?))
    }

    fn chunks<'a>(&self, inputs: &[Input<'a>], plans: &Arc<Plans>) -> Result<Chunks<'a>> {
        Chunks::new(inputs, self.options.chunk_bytes, plans, Arc::clone(&self.stop))
    }

    /// Bytes a second at which the inputs come to this pipeline when nothing is done with them: all
    /// that a run would read, with the pipeline's threads and chunks. For
    /// [`Trace::explain_with_input`]; files that the system has in memory come from there.
    /// Decompressing, and the decoding of Parquet and Arrow, which one thread at a time does
    /// while it reads, are part of it.
    ///
    /// # Errors
    /// As [`run`](Self::run) for inputs that can't be read; [`Error::Spec`] for a pipe, which can
    /// be read only once.
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
        let chunks = self.chunks(&inputs, &self.plans_for(&inputs)?)?;
        let started = Instant::now();
        chunks.read_all(self.options.threads)?;
        Ok(chunks.bytes() as f64 / started.elapsed().as_secs_f64())
    }

    /// Later runs, [`generate`](Self::generate) too, end at their next chunk with
    /// [`Error::Stopped`] once `stop` is true. So another thread can end a run. A
    /// [feed](Self::feed) has a flag of its own.
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

    /// As [`stop_when`](Self::stop_when); the flag from before.
    pub(crate) fn replace_stop(&mut self, stop: Arc<AtomicBool>) -> Arc<AtomicBool> {
        std::mem::replace(&mut self.stop, stop)
    }
}

/// What came of a run over these chunks.
fn report(outcome: &Outcome, chunks: &Chunks<'_>, elapsed: Duration) -> RunReport {
    let stopwatch = &outcome.stopwatch;
    let trace = stopwatch.is_on().then(|| {
        Trace::new(
            outcome.rows,
            chunks.bytes(),
            outcome.threads,
            elapsed,
            outcome.reading,
            stopwatch,
        )
    });
    let missing = chunks.missing_columns();
    RunReport {
        rows: outcome.rows,
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
