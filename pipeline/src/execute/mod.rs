//! Runs a pipeline over its input.
//!
//! One pass, pipelined: every thread claims a chunk of whole lines, decodes it block by block, runs the columns'
//! kernels while the block is in the processor's cache, and looks values up in the shared tables, without a lock.
//! Values that have no id yet go into a list of the chunk. Then the chunk is put down, and committed when all before it
//! are ([`order`]): what is on the list is given its ids, in the order of the rows, and the batch goes to the consumer.
//! So ids and batches are the same with any number of threads, and nothing is merged afterwards.

mod commit;
mod concatenate;
mod order;
mod rows;
mod worker;
mod write_out;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use embank::locks::Mutex;

use crate::batch::{Batch, MatrixInfo};
use crate::decode::Level;
use crate::error::{BadRowReport, Error, Result};
use crate::format::Format;
use crate::input::{Chunks, Input};
use crate::operators::ValueSpace;
use crate::plan::{Plan, Plans};
use crate::spec::{BadRows, Spec};
use crate::trace::{ReadBusy, Trace};
use crate::vocabulary::{Growing, KeptValues, Numbering, RunNumbering, open};
use commit::{Committer, How};
use order::Order;

/// Of text, so many bytes are a chunk: some thousand rows.
const CHUNK_BYTES: usize = 512 << 10;
/// More threads than any machine has cores.
const THREADS_MAX: usize = 4096;
/// Places in a chunk, and in the longest line after it, are numbers of 32 bits.
const CHUNK_BYTES_MAX: usize = 1 << 30;
/// Chunks that may be under way for each thread: what is finished waits for what is not.
const CHUNKS_A_THREAD: usize = 16;

/// How to run a pipeline.
///
/// # Examples
/// ```
/// use embank_pipeline::RunOptions;
///
/// let options = RunOptions { threads: 2, ..Default::default() };
/// assert_eq!(options.format, embank_pipeline::Format::TSV);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RunOptions {
    /// Threads. Default: as many as the machine has cores for this process.
    pub threads: usize,
    /// What decoding may use. Default: the best that the processor has.
    pub level: Level,
    /// How rows lie in the input. Default: [`Format::TSV`].
    pub format: Format,
    /// Bytes of a chunk: what a thread works on at a time, and a batch holds. Default: 512 KiB.
    pub chunk_bytes: usize,
    /// Whether to measure where the time goes, which takes some percent of it. Default: no.
    pub trace: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            level: Level::detect(),
            format: Format::TSV,
            chunk_bytes: CHUNK_BYTES,
            trace: false,
        }
    }
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RunReport {
    /// Rows that came out.
    pub rows: u64,
    /// Rows that were left out as bad.
    pub bad_rows: u64,
    /// Lines that those span: more, where a quote is open at a line's end.
    pub bad_lines: u64,
    /// The first few of those, in the order of the input.
    pub first_bad_rows: Vec<BadRowReport>,
    /// Columns that files of Parquet or Arrow lack, each file's own counted: their values are missing.
    pub missing_columns: u64,
    /// The first ten of those: file and column.
    pub first_missing_columns: Vec<String>,
    /// Bytes of input, compressed ones as they are; of pipes, what was read of them.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Where the time went, if that was asked for.
    pub trace: Option<Trace>,
}

/// Takes the batches of a run, in the order of the input.
pub trait Consumer: Send {
    /// Looks at a run's inputs before the first is read. Default: takes all.
    ///
    /// # Errors
    /// Whatever makes them unfit: an input that the consumer would overwrite.
    fn begin(&mut self, inputs: &[Input<'_>]) -> Result<()> {
        let _ = inputs;
        Ok(())
    }

    /// Takes one. It is called by one thread at a time, not always the same. What it leaves of the batch is used again.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn consume(
        &mut self,
        batch: &mut Batch,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

impl<F> Consumer for F
where
    F: FnMut(&mut Batch) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>
        + Send,
{
    fn consume(
        &mut self,
        batch: &mut Batch,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self(batch)
    }
}

/// A pipeline with its vocabularies. Runs, one after the other, go on numbering where the last one stopped.
///
/// # Examples
/// ```
/// use embank_pipeline::{Input, Pipeline, RunOptions, Spec};
///
/// let mut pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
/// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
/// let mut ids = Vec::new();
/// let report = pipeline.run(&[Input::memory("two rows", row.repeat(2).as_bytes())], &mut |batch: &mut _| {
///     let batch: &mut embank_pipeline::Batch = batch;
///     ids.extend_from_slice(batch.bits32(0).unwrap());
///     Ok(())
/// })?;
/// assert_eq!(report.rows, 2);
/// assert_eq!(ids[14..40], [0; 26]); // the first value of each vocabulary
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug)]
pub struct Pipeline {
    plans: Arc<Plans>,
    /// Of rows that have the fields in their own order.
    plan: Arc<Plan>,
    options: RunOptions,
    bad_rows: (BadRows, f64),
    infos: Arc<[MatrixInfo]>,
    numberings: Arc<[Numbering]>,
    /// Shared with its evaluations, which read it when their runs begin. At most one pipeline adds to it.
    growing: Arc<Mutex<Vec<Growing>>>,
    /// Else its runs give no ids.
    learns: bool,
    /// The vocabularies as the next run of an evaluation sees them, from when its feed was asked for.
    begun: Option<Vec<RunNumbering>>,
    saves_each_batch: bool,
    stop: Arc<AtomicBool>,
    /// The bank of its vocabularies.
    bank: Option<embank::Bank>,
    counted: Counted,
}

/// What the counts of a pipeline's vocabularies are worth that have no id for rare values yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// All passes that counted came to their end.
    Whole,
    /// A bank has counts of a pass that did not.
    OfAPart,
    /// As `Whole`, but what a run has counted was not kept, or of some vocabularies only: they must not be counted
    /// once more.
    NotKept,
}

impl Pipeline {
    /// Checks a pipeline and makes its tables of ids. Its vocabularies end with it.
    ///
    /// # Errors
    /// [`Error::Spec`], [`Error::OutOfMemory`].
    pub fn new(spec: &Spec, options: &RunOptions) -> Result<Self> {
        Self::with(spec, options, None)
    }

    /// As [`new`](Self::new), but its vocabularies are those of the bank that have their names: they are opened, or
    /// made. They take any values, of known range or not.
    ///
    /// Values of a known range are numbered in memory, and new ones come to the bank with
    /// [`checkpoint`](Self::checkpoint), with [`save`](Self::save), or, if
    /// [`save_each_batch`](Self::save_each_batch) says so, batch by batch. Others are in the bank before the consumer
    /// gets their batch. One pipeline at a time may number in a vocabulary.
    ///
    /// # Errors
    /// [`Error::Spec`], [`Error::OutOfMemory`]; [`Error::ValueOutOfRange`] for a vocabulary that was made with a larger
    /// modulus; [`Error::Bank`], such as settings that differ from the vocabulary's.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions};
    /// use embank_pipeline::{Batch, Column, Dtype, Field, FieldKind, Input, Operator, Output, Pipeline, Spec};
    ///
    /// let spec = Spec {
    ///     fields: vec![Field::new("word", FieldKind::Bytes).required()],
    ///     columns: vec![Column::field("word").then(Operator::Vocabulary("word".to_owned()))],
    ///     outputs: vec![Output::new("ids", Dtype::I64, ["word"])],
    ///     ..Spec::default()
    /// };
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let mut pipeline = Pipeline::with_bank(&spec, &Default::default(), &bank)?;
    /// let mut ids = Vec::new();
    /// pipeline.run(&[Input::memory("words", b"red\ngreen\nred\n")], &mut |batch: &mut Batch| {
    ///     ids.extend_from_slice(batch.i64(0).unwrap());
    ///     Ok(())
    /// })?;
    /// assert_eq!(ids, [0, 1, 0]);
    /// pipeline.checkpoint(&bank, b"first file")?;
    /// assert_eq!(bank.open_vocabulary("word")?.len(), 2);
    /// # Ok::<(), embank_pipeline::Error>(())
    /// ```
    pub fn with_bank(spec: &Spec, options: &RunOptions, bank: &embank::Bank) -> Result<Self> {
        Self::with(spec, options, Some(bank))
    }

    fn with(spec: &Spec, options: &RunOptions, bank: Option<&embank::Bank>) -> Result<Self> {
        if !(1..=THREADS_MAX).contains(&options.threads) {
            let given = options.threads;
            return Err(Error::Spec(format!(
                "it runs with 1 to {THREADS_MAX} threads, not {given}"
            )));
        }
        if !Level::available().contains(&options.level) {
            let given = options.level;
            return Err(Error::Spec(format!(
                "this processor has no {given} instructions; Level::detect() finds what it has"
            )));
        }
        if !(1..=CHUNK_BYTES_MAX).contains(&options.chunk_bytes) {
            let given = options.chunk_bytes;
            return Err(Error::Spec(format!(
                "chunks are of 1 byte to 1 GiB, not of {given}; 512 KiB is a good size"
            )));
        }
        let plans = Arc::new(Plans::new(spec, options.format, bank.is_some())?);
        let plan = Arc::clone(plans.own());
        let opened = plan.vocabularies.iter().map(|vocabulary| open(vocabulary, bank));
        let opened = opened.collect::<Result<Vec<_>>>()?;
        let (numberings, growing): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let (numberings, growing) = (numberings.into(), Arc::new(Mutex::new(growing)));
        let learns = bank.is_none_or(|bank| bank.reading().is_none());
        let info = |output: &crate::plan::OutputPlan| MatrixInfo {
            name: output.name.clone(),
            columns: output.columns.clone(),
            dtype: output.dtype,
        };
        let infos = plan.outputs.iter().map(info).collect();
        let (options, bad_rows) = (options.clone(), (spec.bad_rows, spec.bad_rows_max));
        let (saves_each_batch, stop, counted) = (false, Arc::default(), Counted::Whole);
        let bank = bank.cloned();
        Ok(Self {
            plans,
            plan,
            options,
            bad_rows,
            infos,
            numberings,
            growing,
            learns,
            begun: None,
            saves_each_batch,
            stop,
            bank,
            counted,
        })
    }

    /// Another pipeline with the vocabularies of this one, that looks values up and inserts and counts nothing: for
    /// evaluation and serving. It runs beside this one.
    ///
    /// A run or feed knows the values that have ids when [`run`](Self::run) or [`feed`](Self::feed) is called; what this
    /// pipeline learns meanwhile is unknown to it. So its batches are the same with any number of threads. An unknown value gets the vocabulary's
    /// [id for such values](crate::VocabularySpec::out_of_vocabulary), and without one ends the run with
    /// [`Error::UnknownValue`]. A [`keep_frequent`](Self::keep_frequent) meanwhile ends it with
    /// [`Error::VocabularyRenumbered`].
    ///
    /// A pipeline on a bank that is open to read only is one itself.
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{
    ///     Batch, Column, Dtype, Field, FieldKind, Input, Operator, Output, Pipeline, Spec, VocabularySpec,
    /// };
    ///
    /// let site = Column::field("site").then(Operator::Modulus(100)).then(Operator::Vocabulary("site".to_owned()));
    /// let new = VocabularySpec::new("site");
    /// let spec = Spec {
    ///     fields: vec![Field::new("site", FieldKind::Int32).required()],
    ///     columns: vec![site],
    ///     outputs: vec![Output::new("ids", Dtype::I32, ["site"])],
    ///     vocabularies: vec![VocabularySpec { first_id: 1, out_of_vocabulary: Some(0), ..new }],
    ///     ..Spec::default()
    /// };
    /// let mut pipeline = Pipeline::new(&spec, &Default::default())?;
    /// pipeline.run(&[Input::memory("training", b"7\n9\n")], &mut |_: &mut Batch| Ok(()))?;
    /// let mut ids = Vec::new();
    /// pipeline.evaluation().run(&[Input::memory("evaluation", b"9\n8\n7\n")], &mut |batch: &mut Batch| {
    ///     ids.extend_from_slice(batch.i32(0).unwrap());
    ///     Ok(())
    /// })?;
    /// assert_eq!(ids, [2, 0, 1]);
    /// assert_eq!(pipeline.vocabularies().next().unwrap().1, [7, 9]);
    /// # Ok::<(), embank_pipeline::Error>(())
    /// ```
    #[must_use]
    pub fn evaluation(&self) -> Self {
        Self {
            plans: Arc::clone(&self.plans),
            plan: Arc::clone(&self.plan),
            options: self.options.clone(),
            bad_rows: self.bad_rows,
            infos: Arc::clone(&self.infos),
            numberings: Arc::clone(&self.numberings),
            growing: Arc::clone(&self.growing),
            learns: false,
            begun: None,
            saves_each_batch: false,
            stop: Arc::default(),
            bank: self.bank.clone(),
            counted: Counted::Whole,
        }
    }

    /// Whether its runs give ids to new values. False for an [evaluation](Self::evaluation) and on a bank that is open
    /// to read only.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.learns
    }

    fn check_learns(&self, what: &str) -> Result<()> {
        if self.learns {
            return Ok(());
        }
        let why = match &self.bank {
            Some(bank) if bank.reading().is_some() => {
                format!("its bank, {}, is open to read only", bank.path().display())
            }
            _ => "it is an evaluation of another pipeline".to_owned(),
        };
        Err(Error::Spec(format!(
            "it looks values up and inserts nothing, since {why}; {what} needs a pipeline that learns"
        )))
    }

    /// Runs over the inputs, one after the other, and hands the batches to `consumer`. An
    /// [evaluation](Self::evaluation) inserts nothing.
    ///
    /// Where a vocabulary has a [`min_count`](crate::VocabularySpec::min_count) and is not frozen, it goes over them
    /// twice: it [generates](Self::generate), [keeps what is frequent](Self::keep_frequent) of such
    /// vocabularies, and then applies them. Later runs find them frozen and go over their inputs once.
    ///
    /// # Errors
    /// [`Error::Inputs`], [`Error::Header`], [`Error::Encoding`], [`Error::TooManyBadRows`]; [`Error::BadRow`] for the first bad row if the pipeline
    /// fails at those; [`Error::Io`], [`Error::Compressed`],
    /// [`Error::LineTooLong`], [`Error::NoWholeRows`], [`Error::Consumer`], [`Error::Stopped`]; [`Error::UnknownValue`]
    /// for values that a vocabulary lacks which is frozen or looked up only; [`Error::ValueTooLong`];
    /// [`Error::IdTooLarge`]; [`Error::Bank`]; [`Error::VocabularyChanged`]; of an evaluation
    /// [`Error::VocabularyRenumbered`], and [`Error::Spec`] for a vocabulary with a `min_count` that is not frozen, as
    /// its ids are not final. After an error the vocabularies have the values of the batches that were handed
    /// out, and perhaps some of the next one.
    ///
    /// A run that goes over its inputs twice and fails in the first pass may leave counts of some rows behind. A later
    /// one would count them again, so it fails with [`Error::CountedInPart`], which says what can be done. If it has
    /// counted all and fails while it keeps what is frequent, the next run goes on from there and counts no more. A
    /// checkpoint of the bank that is taken before that is done has those counts, and a new pipeline can't tell.
    pub fn run(&mut self, inputs: &[Input<'_>], consumer: &mut dyn Consumer) -> Result<RunReport> {
        let started = Instant::now();
        consumer.begin(inputs)?;
        let begun = self.begun.take();
        // First: somebody else may have frozen one, or let it grow again.
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
            let expanded = Input::expand(inputs)?;
            if let Some(pipe) = expanded.iter().find(|input| input.is_pipe()) {
                return Err(Error::Spec(format!(
                    "a vocabulary with a min_count takes two passes, and {:?} can be read only once: make the \
                     vocabulary of files first, or write the pipe to one",
                    pipe.name()
                )));
            }
            if self.counted != Counted::NotKept {
                self.generate(inputs)?;
            }
            // Until all are kept.
            self.counted = Counted::NotKept;
            let mut growing = self.growing.lock();
            for place in to_make {
                let numbering = &self.numberings[place];
                numbering.keep_frequent(&mut growing[place], numbering.min_count)?;
            }
            drop(growing);
            self.counted = Counted::Whole;
        }
        let report = self.go_over(inputs, Some(consumer), begun)?;
        Ok(RunReport { elapsed: started.elapsed(), ..report })
    }

    /// The vocabularies with a `min_count` that are not made yet.
    fn to_make(&self) -> Vec<usize> {
        let growing = self.growing.lock();
        let is_to_make = |&place: &usize| {
            let numbering = &self.numberings[place];
            numbering.min_count > 0 && !numbering.is_frozen(&growing[place])
        };
        (0..self.numberings.len()).filter(is_to_make).collect()
    }

    /// Goes over the inputs without an output: numbers their values, and counts how often they come in those
    /// vocabularies that [count](crate::VocabularySpec::counts). PIPER's GenVocab alone.
    ///
    /// # Errors
    /// As [`run`](Self::run). After an error the vocabularies that a bank counts as the pass goes, those of values
    /// without a known range, have counts of a part of the rows; [`run`](Self::run) and `generate` fail with
    /// [`Error::CountedInPart`] from then on where they would count, and so does
    /// [`keep_frequent`](Self::keep_frequent): go back to a checkpoint, or begin with new vocabularies. Counts of
    /// values of a known range are as before then, and the pass may be made again. [`Error::Spec`] if the pipeline
    /// does not [learn](Self::learns).
    ///
    /// # Examples
    /// See [`keep_frequent`](Self::keep_frequent).
    pub fn generate(&mut self, inputs: &[Input<'_>]) -> Result<RunReport> {
        self.check_learns("generate")?;
        self.refresh()?;
        self.check_counted()?;
        let report = self.go_over(inputs, None, None)?;
        self.counted = Counted::Whole;
        Ok(report)
    }

    /// Refuses to count on where that would count some rows twice.
    fn check_counted(&self) -> Result<()> {
        match self.counted {
            Counted::Whole => Ok(()),
            Counted::OfAPart => Err(Error::CountedInPart(
                "a pass that counted failed before its end: its rows would be counted twice, and a checkpoint would \
                 keep counts of a part; go back to a checkpoint from before it, or drop the vocabularies that count, \
                 and begin anew with a new pipeline"
                    .to_owned(),
            )),
            Counted::NotKept => Err(Error::CountedInPart(
                "all rows have been counted, and keeping what is frequent failed: they would be counted twice, by a \
                 new pipeline too after a checkpoint of this; run again, or call keep_frequent again if that failed, \
                 which goes on from there, or go back to a checkpoint from before and begin anew with a new pipeline"
                    .to_owned(),
            )),
        }
    }

    /// Keeps the values that came so often, numbered anew in their old order, and freezes: in all vocabularies that
    /// count and are not frozen yet. Other values get the vocabulary's
    /// [id for them](crate::VocabularySpec::out_of_vocabulary). Ids from before are worth nothing afterwards.
    ///
    /// [`run`](Self::run) does it by itself where there is a [`min_count`](crate::VocabularySpec::min_count).
    ///
    /// # Errors
    /// [`Error::Bank`], [`Error::VocabularyChanged`], after which it may be called again and goes on with the
    /// vocabularies that are left (those with a `min_count` [`run`](Self::run) finishes as well);
    /// [`Error::CountedInPart`] after a pass that failed. [`Error::Spec`] if the pipeline does not
    /// [learn](Self::learns).
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{
    ///     Batch, Column, Dtype, Field, FieldKind, Input, Operator, Output, Pipeline, Spec, VocabularySpec,
    /// };
    ///
    /// let site = Column::field("site").then(Operator::Modulus(100)).then(Operator::Vocabulary("site".to_owned()));
    /// let new = VocabularySpec::new("site");
    /// let settings = VocabularySpec { counts: true, first_id: 1, out_of_vocabulary: Some(0), ..new };
    /// let spec = Spec {
    ///     fields: vec![Field::new("site", FieldKind::Int32).required()],
    ///     columns: vec![site],
    ///     outputs: vec![Output::new("ids", Dtype::I32, ["site"])],
    ///     vocabularies: vec![settings],
    ///     ..Spec::default()
    /// };
    /// let mut pipeline = Pipeline::new(&spec, &Default::default())?;
    /// let input = [Input::memory("sites", b"7\n9\n8\n9\n7\n")];
    /// pipeline.generate(&input)?;
    /// let kept = pipeline.keep_frequent(2)?;
    /// assert_eq!((kept[0].kept, kept[0].removed), (2, 1));
    /// let mut ids = Vec::new();
    /// pipeline.run(&input, &mut |batch: &mut Batch| {
    ///     ids.extend_from_slice(batch.i32(0).unwrap());
    ///     Ok(())
    /// })?;
    /// assert_eq!(ids, [1, 2, 0, 2, 1]);
    /// # Ok::<(), embank_pipeline::Error>(())
    /// ```
    pub fn keep_frequent(&mut self, min_count: u64) -> Result<Vec<KeptValues>> {
        self.check_learns("keep_frequent")?;
        if self.counted == Counted::OfAPart {
            self.check_counted()?;
        }
        // Before the bank's vocabularies are touched.
        self.refresh()?;
        self.counted = Counted::NotKept;
        let mut all = Vec::new();
        let mut growing = self.growing.lock();
        let vocabularies = self.numberings.iter().zip(growing.iter_mut());
        for (plan, (numbering, growing)) in self.plan.vocabularies.iter().zip(vocabularies) {
            if !numbering.counts || numbering.is_frozen(growing) {
                continue;
            }
            let (kept, removed) = numbering.keep_frequent(growing, min_count)?;
            all.push(KeptValues { vocabulary: plan.name.clone(), kept, removed });
        }
        drop(growing);
        self.counted = Counted::Whole;
        Ok(all)
    }

    /// Gives the bank the values and counts that it lacks. In memory when it returns; durable with the bank's next
    /// checkpoint. Nothing without a bank, and nothing if the pipeline does not [learn](Self::learns).
    ///
    /// # Errors
    /// [`Error::VocabularyChanged`] if somebody else inserted into a vocabulary, froze or renumbered it;
    /// [`Error::Bank`], after which a part may be there, and the next save goes on behind it.
    pub fn save(&mut self) -> Result<()> {
        if !self.learns {
            return Ok(());
        }
        self.growing.lock().iter_mut().try_for_each(Growing::save)
    }

    /// [Saves](Self::save), and takes a checkpoint of the bank with the caller's own bytes: vocabularies and
    /// the rows that their ids lead to, together. Returns the checkpoint's number.
    ///
    /// # Errors
    /// As [`save`](Self::save) and [`Bank::checkpoint`](embank::Bank::checkpoint); [`Error::Spec`] if it is another
    /// bank than the pipeline's, or if the pipeline does not [learn](Self::learns); [`Error::CountedInPart`] where it would keep counts that can't be gone on from.
    ///
    /// # Examples
    /// See [`with_bank`](Self::with_bank).
    pub fn checkpoint(&mut self, bank: &embank::Bank, blob: &[u8]) -> Result<u64> {
        if !self.bank.as_ref().is_some_and(|own| own.is_same(bank)) {
            let own = self.bank.as_ref().map_or_else(
                || "was made without a bank".to_owned(),
                |own| format!("numbers in that in {}", own.path().display()),
            );
            return Err(Error::Spec(format!(
                "a checkpoint of another bank was asked for, {}, and the pipeline {own}: take it of the pipeline's \
                 own bank, or with Bank::checkpoint",
                bank.path().display()
            )));
        }
        self.check_learns("checkpoint")?;
        self.refresh()?;
        self.check_counted()?;
        self.save()?;
        Ok(bank.checkpoint(blob)?)
    }

    /// Whether all values of a batch are in the bank before the consumer gets it. Then it may take checkpoints of the
    /// bank in the middle of a run; it costs some microseconds for each vocabulary with new values, in turn.
    /// Default: no. An [evaluation](Self::evaluation) never saves.
    pub fn save_each_batch(&mut self, saves: bool) {
        self.saves_each_batch = saves;
    }

    /// Later runs, [`generate`](Self::generate) too, end at their next chunk with [`Error::Stopped`] once `stop` is
    /// true, for who has to end one from another thread. A [feed](Self::feed) has a flag of its own.
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

    /// Bytes a second at which the inputs come to this pipeline when nothing is done with them: all that a run would
    /// read, with the pipeline's threads and chunks. For
    /// [`Trace::explain_with_input`]; files that the system has in memory come from there. Decompressing, and the
    /// decoding of Parquet and Arrow, which one thread at a time does while it reads, are part of it.
    ///
    /// # Errors
    /// As [`run`](Self::run) for inputs that can't be read; [`Error::Spec`] for a pipe, which can be read only once.
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

    /// The plans for inputs, whose format may follow from their names.
    fn plans_for(&self, inputs: &[Input<'_>]) -> Result<Arc<Plans>> {
        if !matches!(self.options.format, Format::ByName(_)) {
            return Ok(Arc::clone(&self.plans));
        }
        let format = self.options.format.of_names(inputs.iter().map(Input::name))?;
        Ok(Arc::new(self.plans.of_format(format)?))
    }

    fn chunks<'a>(&self, inputs: &[Input<'a>], plans: &Arc<Plans>) -> Result<Chunks<'a>> {
        let (bytes, stop) = (self.options.chunk_bytes, Arc::clone(&self.stop));
        Chunks::new(inputs, bytes, plans, stop)
    }

    /// Sees what has become of the bank's vocabularies.
    fn refresh(&mut self) -> Result<()> {
        if !self.learns && self.bank.as_ref().is_none_or(|bank| bank.reading().is_none()) {
            // The pipeline that learns does it, where no run of its own is under way.
            return Ok(());
        }
        let mut all = self.growing.lock();
        all.iter_mut().try_for_each(Growing::refresh)?;
        let mut vocabularies = self.numberings.iter().zip(all.iter());
        let counting = |(numbering, growing): (&Numbering, &Growing)| {
            numbering.counts && !numbering.is_frozen(growing)
        };
        if self.counted == Counted::NotKept && !vocabularies.any(counting) {
            // Somebody else has kept what is frequent, or has frozen all: nothing is left to do.
            self.counted = Counted::Whole;
        }
        Ok(())
    }

    /// Has the next run of an evaluation know the values that have ids now. A feed's run begins some time after the
    /// feed was asked for.
    pub(crate) fn begin_evaluation(&mut self) {
        // The run itself tells of an error.
        if !self.learns && self.refresh().is_ok() {
            self.begun = Some(self.numberings_of_a_run(false));
        }
    }

    /// The vocabularies as a run sees them that begins now.
    fn numberings_of_a_run(&self, generates: bool) -> Vec<RunNumbering> {
        let growing = self.growing.lock();
        let all = self.numberings.iter().zip(growing.iter());
        all.map(|(numbering, growing)| {
            if self.learns {
                numbering.learning(growing, generates)
            } else {
                numbering.evaluating(growing)
            }
        })
        .collect()
    }

    fn go_over(
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
        let how = How {
            // What the pipeline that learns has not saved is its own affair.
            saves: self.saves_each_batch && self.learns,
            learns: self.learns,
            trace: self.options.trace,
            stop: Arc::clone(&self.stop),
        };
        // What is counted in memory is forgotten where a pass fails.
        if generates && self.numberings.iter().any(Numbering::counts_as_it_goes) {
            self.counted = Counted::OfAPart;
        }
        // For as long as the run, no longer: so it is lent anew.
        let consumer = consumer.map(|consumer| &mut *consumer as &mut dyn Consumer);
        let numberings = begun.unwrap_or_else(|| self.numberings_of_a_run(generates));
        let committer = Committer::new(&self.growing, self.bad_rows, consumer, how);
        let committer = Mutex::new(committer);
        let counted = Mutex::new(Vec::new());
        let order = Order::new(self.options.threads * CHUNKS_A_THREAD);
        let pool = Mutex::new(Vec::new());
        let reading = ReadBusy::default();
        let shared = worker::Shared {
            plan: plans.own(),
            format: plans.format(),
            options: &self.options,
            infos: &self.infos,
            numberings: &numberings,
            generates,
            counted: &counted,
            chunks: &chunks,
            order: &order,
            pool: &pool,
            reading: &reading,
            committer: &committer,
        };
        let (panicked, threads) = std::thread::scope(|scope| {
            // Where the system gives no more threads, those that there are do all.
            let threads: Vec<_> = (1..self.options.threads)
                .map_while(|_| {
                    let thread = std::thread::Builder::new();
                    thread.spawn_scoped(scope, || worker::work(&shared)).ok()
                })
                .collect();
            let own =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker::work(&shared)));
            let started = 1 + threads.len();
            (first_panic(own, threads), started)
        });
        let committer = committer.into_inner();
        if let Some(error) = committer.failure {
            return Err(error);
        }
        if let Some(panic) = panicked {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            return Err(Error::Panicked(text.unwrap_or_else(|| "without a message".to_owned())));
        }
        let elapsed = started.elapsed();
        let trace = committer.stopwatch.is_on().then(|| {
            let (rows, bytes) = (committer.rows, chunks.bytes());
            Trace::new(rows, bytes, threads, elapsed, reading.total(), &committer.stopwatch)
        });
        let missing = chunks.missing_columns();
        let report = RunReport {
            rows: committer.rows,
            bad_rows: committer.bad_rows,
            bad_lines: committer.bad_lines,
            first_bad_rows: committer.reported,
            missing_columns: missing.count,
            first_missing_columns: missing.first,
            bytes: chunks.bytes(),
            elapsed,
            trace,
        };
        drop(chunks);
        let mut growing = self.growing.lock();
        for thread in counted.into_inner() {
            for (growing, counts) in growing.iter_mut().zip(&thread) {
                counts.iter().for_each(|counts| growing.add(counts));
            }
        }
        drop(growing);
        Ok(report)
    }

    /// Later runs use so many threads, one at least and 4,096 at most.
    pub fn set_threads(&mut self, threads: usize) {
        self.options.threads = threads.clamp(1, THREADS_MAX);
    }

    pub(crate) fn infos(&self) -> &Arc<[MatrixInfo]> {
        &self.infos
    }

    /// The outputs' names and shapes.
    #[must_use]
    pub fn outputs(&self) -> &[MatrixInfo] {
        &self.infos
    }

    /// The names of the vocabularies whose values have a known range, and for each a copy of its values by their ids,
    /// the first one's first. Others are to be seen in the bank.
    pub fn vocabularies(&self) -> impl Iterator<Item = (&str, Vec<u32>)> {
        let all = self.plan.vocabularies.iter().enumerate();
        let known = all.filter(|(_, plan)| matches!(plan.space, ValueSpace::Below(_)));
        known.map(|(place, plan)| (plan.name.as_str(), self.growing.lock()[place].values.clone()))
    }
}

/// Waits for all threads, and returns what the first one of them panicked with.
fn first_panic(
    own: std::thread::Result<()>,
    threads: Vec<ScopedJoinHandle<'_, ()>>,
) -> Option<Box<dyn Any + Send>> {
    let others = threads.into_iter().map(ScopedJoinHandle::join);
    // All before the first is looked for: a scope panics itself with a thread that nobody has joined.
    let all: Vec<_> = [own].into_iter().chain(others).collect();
    all.into_iter().find_map(std::result::Result::err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second panic came out of the scope, and so out of `run`.
    #[test]
    fn two_threads_that_panic_are_an_error() {
        let panicked = std::thread::scope(|scope| {
            let threads =
                vec![scope.spawn(|| panic!("the first")), scope.spawn(|| panic!("the second"))];
            first_panic(Ok(()), threads)
        });
        assert_eq!(panicked.unwrap().downcast_ref(), Some(&"the first"));
    }
}
