//! Vocabularies of parts: makes them on several machines, and merges them.

use embank::{Bank, BankOptions, DeviceChoice, OwnedValues, Values};

use super::Pipeline;
use crate::error::{Error, Result, refused};
use crate::execute::{BadRowLimit, ROWS_BEFORE_SHARE, RunReport};
use crate::operators::ValueSpace;
use crate::options::RunOptions;
use crate::plan::{Plan, VocabularyPlan};
use crate::spec::{BadRows, Spec};
use crate::vocabulary::{Numbering, write};

/// The values of a vocabulary.
///
/// # Examples
/// See [`Pipeline::for_parts`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularyValues {
    /// The vocabulary's name.
    pub vocabulary: String,
    /// The values in the order of their ids.
    pub values: OwnedValues,
    /// How often each value occurred. `None` if the vocabulary does not count.
    pub counts: Option<Vec<u64>>,
}

impl Pipeline {
    /// Makes a pipeline for the parts of a split ([`split_files`](crate::split_files)). All of its
    /// vocabularies are in the memory of the process, also those of values of unknown range.
    ///
    /// To give all values of many parts the ids of one run over the files, call
    /// [`generate`](Self::generate) on each part with a pipeline of its own, in any process. Then
    /// [`absorb`](Self::absorb) the values of each part into one pipeline, in the order of the
    /// parts, and call [`finish_merge`](Self::finish_merge). Its [`replay`](Self::replay) turns the
    /// parts into batches.
    ///
    /// # Errors
    /// [`Error::Spec`] and [`Error::OutOfMemory`] as for [`new`](Self::new). [`Error::Spec`] also
    /// for a spec whose vocabularies can't be merged with equal ids: with `bad_rows: skip`, a
    /// text of a vocabulary with a `min_count` may be too long for it. Such a row is bad in the
    /// pass that counts, and good in the next. Values that only such rows have then get their ids
    /// in the second pass, in vocabularies without a `min_count`. [`Error::Bank`] if the memory
    /// for values of unknown range can't be set up.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("words");
    /// # std::fs::write(&path, "red\ngreen\nred\nblue\n").unwrap();
    /// use embank_pipeline::{
    ///     Batch, Column, Dtype, Field, FieldKind, Format, Input, Operator, Output, Pipeline, Spec, split_files,
    /// };
    ///
    /// let spec = Spec {
    ///     fields: vec![Field::new("word", FieldKind::Bytes).required()],
    ///     columns: vec![Column::field("word").then(Operator::Vocabulary("word".to_owned()))],
    ///     outputs: vec![Output::new("ids", Dtype::I64, ["word"])],
    ///     ..Spec::default()
    /// };
    /// let (split, parts) = split_files(&spec, &[Input::file(&path)], Format::TSV, 8)?;
    /// assert_eq!(parts.len(), 2);
    /// let mut merged = Pipeline::for_parts(&spec, &Default::default())?;
    /// for part in &parts {
    ///     let mut one = Pipeline::for_parts(&spec, &Default::default())?;
    ///     merged.add_report(&one.generate(&[split.input(&spec, part)?])?)?;
    ///     for of in one.vocabulary_values()? {
    ///         let counts = of.counts.as_deref().unwrap_or_default();
    ///         merged.absorb(&of.vocabulary, of.values.values(), counts)?;
    ///     }
    /// }
    /// merged.finish_merge()?;
    /// let mut ids = Vec::new();
    /// for part in &parts {
    ///     merged.replay().run(&[split.input(&spec, part)?], &mut |batch: &mut Batch| {
    ///         ids.extend_from_slice(batch.i64(0).unwrap());
    ///         Ok(())
    ///     })?;
    /// }
    /// assert_eq!(ids, [0, 1, 0, 2]);
    /// # Ok::<(), embank_pipeline::Error>(())
    /// ```
    pub fn for_parts(spec: &Spec, options: &RunOptions) -> Result<Self> {
        let made = match Self::with(spec, options, None, None) {
            // The spec may need a place for values of unknown range. Another fault is found again.
            Err(Error::Spec(_)) => Self::with(spec, options, None, Some(&scratch()?))?,
            made => made?,
        };
        check_mergeable(spec, &made.plan)?;
        Ok(Self { is_of_parts: true, ..made })
    }

    /// Returns the values of all vocabularies, in the order of their ids.
    ///
    /// # Errors
    /// [`Error::Spec`] if the pipeline has a bank, whose vocabularies have the values.
    /// [`Error::Bank`] for a failure of the memory for values of unknown range.
    pub fn vocabulary_values(&self) -> Result<Vec<VocabularyValues>> {
        self.check_merges("vocabulary_values")?;
        let numberings = self.numberings.lock();
        let all = self.plan.vocabularies.iter().zip(numberings.iter());
        let one = |(plan, numbering): (&VocabularyPlan, &Numbering)| {
            let (values, counts) = numbering.export()?;
            Ok(VocabularyValues { vocabulary: plan.name.clone(), values, counts })
        };
        all.map(one).collect()
    }

    /// Gives ids to those of `values` that have none in the vocabulary, in their order. Adds the
    /// counts if the vocabulary counts. `counts` is empty, or has a count for each value.
    ///
    /// # Errors
    /// [`Error::Spec`] if the pipeline has no such vocabulary or has a bank, if the values are of
    /// another kind, or if `counts` has another length. [`Error::ValueOutOfRange`] and
    /// [`Error::Bank`].
    ///
    /// # Examples
    /// See [`for_parts`](Self::for_parts).
    pub fn absorb(&mut self, vocabulary: &str, values: Values<'_>, counts: &[u64]) -> Result<()> {
        self.check_merges("absorb")?;
        if !counts.is_empty() && counts.len() != values.len() {
            return refused(format!(
                "vocabulary {vocabulary:?} was given {} values and {} counts",
                values.len(),
                counts.len()
            ));
        }
        let place = self.plan.vocabularies.iter().position(|plan| plan.name == vocabulary);
        let Some(place) = place else {
            return refused(format!("it has no vocabulary {vocabulary:?} to merge values into"));
        };
        self.numberings.lock()[place].absorb(values, counts)
    }

    /// Ends a merge: keeps the frequent values of vocabularies with a
    /// [`min_count`](crate::VocabularySpec::min_count), and freezes these.
    ///
    /// # Errors
    /// [`Error::Spec`] if the pipeline has a bank. [`Error::Bank`].
    ///
    /// # Examples
    /// See [`for_parts`](Self::for_parts).
    pub fn finish_merge(&mut self) -> Result<()> {
        self.check_merges("finish_merge")?;
        self.check_rows(&self.merged)?;
        self.keep_made(&self.to_make())
    }

    /// Ends the making of a copy of a merged pipeline, after all its
    /// [values](Self::vocabulary_values) were [absorbed](Self::absorb): freezes the vocabularies
    /// that [`finish_merge`](Self::finish_merge) has frozen.
    ///
    /// # Errors
    /// [`Error::Spec`] if the pipeline has a bank. [`Error::Bank`].
    pub fn finish_copy(&mut self) -> Result<()> {
        self.check_merges("finish_copy")?;
        let to_freeze = self.to_make();
        let mut numberings = self.numberings.lock();
        to_freeze.iter().try_for_each(|&place| numberings[place].freeze())
    }

    /// Adds the report of a run over a part. The reports must come in the order of the parts.
    ///
    /// # Errors
    /// [`Error::TooManyBadRows`] if the rows so far have a larger share of bad lines than the spec
    /// allows.
    pub fn add_report(&mut self, report: &RunReport) -> Result<()> {
        self.merged.add(report);
        let lines = self.merged.rows + self.merged.bad_lines;
        if lines < ROWS_BEFORE_SHARE {
            return Ok(());
        }
        self.check_share(&self.merged)
    }

    /// The sum of all reports that were [added](Self::add_report).
    #[must_use]
    pub fn merged_report(&self) -> &RunReport {
        &self.merged
    }

    /// Makes a pipeline that reads again the parts from which this pipeline's vocabularies were
    /// made, as the run that learned would have handed them out. It differs from an
    /// [evaluation](Self::evaluation) in two points. A text that is too long for a vocabulary
    /// without a `min_count` makes its row bad. A value that such a vocabulary lacks ends the run
    /// with [`Error::InputChanged`].
    ///
    /// # Examples
    /// See [`for_parts`](Self::for_parts).
    #[must_use]
    pub fn replay(&self) -> Self {
        Self { replays: true, ..self.evaluation() }
    }

    /// Writes the vocabularies, with their counts, into the bank, where pipelines of this spec open
    /// them. They are durable with the bank's next checkpoint. Does nothing for a vocabulary that
    /// the bank has with exactly these values.
    ///
    /// # Errors
    /// [`Error::Spec`] if the bank has a vocabulary of one of the names with other values.
    /// [`Error::Bank`] for a failure of the bank, for example if its vocabulary has other settings.
    pub fn write_vocabularies(&self, bank: &Bank) -> Result<()> {
        let numberings = self.numberings.lock();
        let mut all = self.plan.vocabularies.iter().zip(numberings.iter());
        all.try_for_each(|(plan, numbering)| write(plan, numbering, bank))
    }

    fn check_merges(&self, what: &str) -> Result<()> {
        if self.bank.is_some() {
            return refused(format!("{what} is for a pipeline without a bank"));
        }
        self.check_learns(what)
    }

    /// Fails if the share of bad lines is too large, or if all rows are bad.
    fn check_rows(&self, report: &RunReport) -> Result<()> {
        if report.rows > 0 { Ok(()) } else { self.check_share(report) }
    }

    fn check_share(&self, report: &RunReport) -> Result<()> {
        let BadRowLimit { policy, share_max } = self.bad_rows;
        let lines = report.rows + report.bad_lines;
        if policy == BadRows::Fail || report.bad_lines as f64 <= share_max * lines as f64 {
            return Ok(());
        }
        Err(Error::TooManyBadRows {
            bad_lines: report.bad_lines,
            lines,
            limit: share_max,
            first: report.first_bad_rows.clone(),
        })
    }

    /// In a replay, a value that a growing vocabulary lacks shows that the input is another one.
    pub(super) fn in_terms_of_a_replay(&self, error: Error) -> Error {
        match error {
            Error::UnknownValue { name, column, value, input, frozen: false, .. }
                if self.replays =>
            {
                let what = format!(
                    "column {column:?} has value {value}, which the pass that made vocabulary {name:?} did not meet"
                );
                Error::InputChanged { input, what }
            }
            other => other,
        }
    }
}

/// A directory in memory, on Linux. Making a bank there is several times faster than on a disk.
const MEMORY_DIRECTORY: &str = "/dev/shm";

/// Makes a bank in memory, for values of unknown range. Its directory is removed at once, so
/// nothing stays of it if the process is killed later.
fn scratch() -> Result<Bank> {
    let io =
        |source| Error::Io { doing: "make a directory in", path: std::env::temp_dir(), source };
    let folder = tempfile::tempdir_in(MEMORY_DIRECTORY).or_else(|_| tempfile::tempdir());
    let options = BankOptions {
        device: DeviceChoice::Memory,
        lookahead_queue_keys: Some(0),
        threads: 1,
        ..BankOptions::default()
    };
    Ok(Bank::open(folder.map_err(io)?.path().join("bank"), options)?)
}

/// Fails if merged vocabularies of the spec could differ from those of one run.
fn check_mergeable(spec: &Spec, plan: &Plan) -> Result<()> {
    let min_count =
        |plan: &VocabularyPlan| plan.settings.as_ref().map_or(0, |settings| settings.min_count);
    let counted = plan.vocabularies.iter();
    let counted =
        counted.clone().find(|plan| plan.space == ValueSpace::Strings && min_count(plan) > 0);
    let growing = plan.vocabularies.iter().find(|plan| min_count(plan) == 0);
    let (Some(counted), Some(growing)) = (counted, growing) else { return Ok(()) };
    if spec.bad_rows == BadRows::Fail {
        return Ok(());
    }
    refused(format!(
        "the vocabularies {:?} and {:?} can't be merged from parts: a text that is too long for the first makes its row \
         bad only in the pass that counts, so the ids of the second depend on the order of two passes; give both a \
         min_count, or none, or set bad_rows to fail",
        counted.name, growing.name
    ))
}
