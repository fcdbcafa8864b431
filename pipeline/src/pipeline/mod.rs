//! The type [`Pipeline`]: a spec with its vocabularies.
//!
//! The methods of [`Pipeline`] are in this folder. This file makes a pipeline, [`run`] runs it,
//! [`counting`] counts values and keeps the frequent ones, [`merging`] merges vocabularies of
//! parts, and [`saving`] saves to a bank. [`feed`](crate::feed) makes feeds.

mod counting;
mod merging;
mod refill;
mod run;
mod saving;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use embank::locks::Mutex;

use crate::arrays::{self, ArrayCache, Decoder, Root};
use crate::batch::MatrixInfo;
use crate::error::{Error, Result};
use crate::execute::{BadRowLimit, RunReport};
use crate::options::RunOptions;
use crate::plan::{Plan, Plans};
use crate::spec::Spec;
use crate::vocabulary::{Numbering, RunNumbering, open};
use counting::Counted;

pub use merging::VocabularyValues;

/// A pipeline with its vocabularies. Each run continues the ids of the run before.
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
    /// The plan for rows with the fields in the spec's order.
    plan: Arc<Plan>,
    options: RunOptions,
    /// The folder of the files that fields name.
    root: Option<Arc<Root>>,
    /// The decoder of each column of arrays.
    decoders: Arc<[Arc<dyn Decoder>]>,
    /// The arrays of earlier runs. Evaluations share them.
    cache: Option<Arc<ArrayCache>>,
    bad_rows: BadRowLimit,
    infos: Arc<[MatrixInfo]>,
    /// The vocabularies. Evaluations share them, and read them when one of their runs begins. At
    /// most one pipeline adds values to them.
    numberings: Arc<Mutex<Vec<Numbering>>>,
    /// True if runs give ids to new values.
    learns: bool,
    /// True if runs read again what a run that learned has read ([`replay`](Self::replay)).
    replays: bool,
    /// True if the pipeline learns from parts ([`for_parts`](Self::for_parts)).
    is_of_parts: bool,
    /// Set when a feed of an evaluation is made: the vocabularies at that moment, for the feed's
    /// run.
    begun: Option<Vec<RunNumbering>>,
    saves_each_batch: bool,
    stop: Arc<AtomicBool>,
    /// The bank that keeps the vocabularies.
    bank: Option<embank::Bank>,
    counted: Counted,
    /// The sum of the reports of merged parts.
    merged: RunReport,
}

impl Pipeline {
    /// Checks a spec and makes the tables of ids. The vocabularies are dropped with the pipeline.
    ///
    /// # Errors
    /// [`Error::Spec`] if the spec or an option is invalid. [`Error::OutOfMemory`] if there is no
    /// memory for the tables.
    pub fn new(spec: &Spec, options: &RunOptions) -> Result<Self> {
        Self::with(spec, options, None, None)
    }

    /// Makes a pipeline as [`new`](Self::new) does, but its vocabularies are the bank's
    /// vocabularies of the same names. `with_bank` makes the vocabularies that the bank lacks.
    /// Vocabularies of a bank take values of known and of unknown range.
    ///
    /// Values of a known range are numbered in memory. New values reach the bank with
    /// [`checkpoint`](Self::checkpoint), with [`save`](Self::save), or batch by batch after
    /// [`save_each_batch`](Self::save_each_batch). Values of unknown range are in the bank before
    /// the consumer gets their batch. Only one pipeline at a time may add to a vocabulary.
    ///
    /// # Errors
    /// [`Error::Spec`] and [`Error::OutOfMemory`] as for [`new`](Self::new).
    /// [`Error::ValueOutOfRange`] if a vocabulary of the bank has a value that is not below the
    /// pipeline's modulus. [`Error::Bank`] for a failure of the bank, for example if the spec's
    /// settings differ from those of the vocabulary.
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
        Self::with(spec, options, Some(bank), None)
    }

    /// Makes a pipeline whose vocabularies `bank` keeps. With a `scratch` bank in place of it, that
    /// has the values of unknown range, and the pipeline counts as one without a bank.
    fn with(
        spec: &Spec,
        options: &RunOptions,
        bank: Option<&embank::Bank>,
        scratch: Option<&embank::Bank>,
    ) -> Result<Self> {
        options.check()?;
        let has_bank = bank.is_some() || scratch.is_some();
        let plans = Arc::new(Plans::new(spec, options.format, has_bank)?);
        let plan = Arc::clone(plans.own());
        let root = arrays::root(&plan.arrays, options.root.as_deref())?;
        let decoders = arrays::decoders(&plan.arrays, &options.decoders)?.into();
        let cache = ArrayCache::new(&plan.arrays, options)?.map(Arc::new);
        let numberings = plan.vocabularies.iter().map(|vocabulary| {
            let scratch = scratch.filter(|_| !vocabulary.is_of_known_range());
            open(vocabulary, bank.or(scratch))
        });
        let numberings = numberings.collect::<Result<Vec<_>>>()?;
        let info = |output: &crate::plan::OutputPlan| MatrixInfo {
            name: output.name.clone(),
            columns: output.columns.clone(),
            dtype: output.dtype,
            shape: output.shape.clone(),
        };
        let infos = plan.outputs.iter().map(info).collect();
        let learns = bank.is_none_or(|bank| bank.reading().is_none());
        Ok(Self {
            plan,
            plans,
            options: options.clone(),
            root,
            decoders,
            cache,
            bad_rows: BadRowLimit { policy: spec.bad_rows, share_max: spec.bad_rows_max },
            infos,
            numberings: Arc::new(Mutex::new(numberings)),
            learns,
            replays: false,
            is_of_parts: false,
            begun: None,
            saves_each_batch: false,
            stop: Arc::default(),
            bank: bank.cloned(),
            counted: Counted::Whole,
            merged: RunReport::default(),
        })
    }

    /// Makes another pipeline on the same vocabularies that only looks values up, for evaluation
    /// and serving. It adds no values, counts nothing, and can run at the same time as this
    /// pipeline.
    ///
    /// A run or feed of the evaluation knows the values that have ids when [`run`](Self::run) or
    /// [`feed`](Self::feed) is called. Values that get ids later are unknown to it. The batches
    /// therefore do not depend on the number of threads. An unknown value gets the vocabulary's
    /// [`unknown_id`](crate::VocabularySpec::unknown_id). Without an `unknown_id`, an unknown value
    /// ends the run with [`Error::UnknownValue`]. If [`keep_frequent`](Self::keep_frequent) is
    /// called during the run, the run ends with [`Error::VocabularyRenumbered`].
    ///
    /// A pipeline on a read-only bank behaves as an evaluation itself.
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
    ///     vocabularies: vec![VocabularySpec { first_id: 1, unknown_id: Some(0), ..new }],
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
            root: self.root.clone(),
            decoders: Arc::clone(&self.decoders),
            cache: self.cache.clone(),
            bad_rows: self.bad_rows,
            infos: Arc::clone(&self.infos),
            numberings: Arc::clone(&self.numberings),
            learns: false,
            replays: false,
            is_of_parts: false,
            begun: None,
            saves_each_batch: false,
            stop: Arc::default(),
            bank: self.bank.clone(),
            counted: Counted::Whole,
            merged: RunReport::default(),
        }
    }

    /// True if runs give ids to new values. False for an [evaluation](Self::evaluation), and on a
    /// read-only bank.
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

    /// Sets the number of threads of later runs to `threads`, limited to the range 1 to 4,096.
    pub fn set_threads(&mut self, threads: usize) {
        self.options.set_threads(threads);
    }

    pub(crate) fn infos(&self) -> &Arc<[MatrixInfo]> {
        &self.infos
    }

    /// Names and shapes of the outputs.
    #[must_use]
    pub fn outputs(&self) -> &[MatrixInfo] {
        &self.infos
    }

    /// Returns the name of each vocabulary whose values have a known range, and a copy of its
    /// values in the order of their ids. Other vocabularies can be read from the bank.
    pub fn vocabularies(&self) -> impl Iterator<Item = (&str, Vec<u32>)> {
        // Copies the values first, so that the lock is released before the caller takes the first
        // item.
        let numberings = self.numberings.lock();
        let values = |numbering: &Numbering| numbering.values().map(<[u32]>::to_vec);
        let values: Vec<_> = numberings.iter().map(values).collect();
        drop(numberings);
        let named = self.plan.vocabularies.iter().zip(values);
        named.filter_map(|(plan, values)| Some((plan.name.as_str(), values?)))
    }
}
