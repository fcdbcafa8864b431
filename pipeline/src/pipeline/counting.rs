//! Counts how often values occur, and keeps the frequent values.

use std::sync::Arc;

use super::Pipeline;
use crate::error::{Error, Result, refused};
use crate::execute::{RunPlaces, RunReport};
use crate::input::{FileStates, Input};
use crate::vocabulary::{Kept, KeptValues, Numbering};

/// State of the counts of a pipeline's vocabularies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// Every pass that counted has finished.
    Whole,
    /// A pass that counted has failed. The bank has the counts of only some of the pass's rows.
    OfAPart,
    /// Every pass has finished, but not all vocabularies have kept their frequent values yet. The
    /// rows of these passes must not be counted again.
    NotKept,
}

impl Pipeline {
    /// Reads the inputs without output. Gives ids to their values. In vocabularies that
    /// [count](crate::VocabularySpec::counts), also counts how often each value occurs. This is
    /// PIPER's GenVocab alone.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run). [`Error::Spec`] if the pipeline does not
    /// [learn](Self::learns).
    ///
    /// If the range of a vocabulary's values is not known, a bank counts them during the pass. A
    /// pass that fails then leaves counts of only some rows. From then on `generate`, a
    /// [`run`](Self::run) that would count, and [`keep_frequent`](Self::keep_frequent) fail with
    /// [`Error::CountedInPart`]. The cure is an earlier checkpoint, or new vocabularies.
    ///
    /// If the range is known, a failed pass does not change the counts. A pass that counts only
    /// such values can be repeated.
    ///
    /// # Examples
    /// See [`keep_frequent`](Self::keep_frequent).
    pub fn generate(&mut self, inputs: &[Input<'_>]) -> Result<RunReport> {
        self.check_learns("generate")?;
        self.refresh()?;
        self.check_counted()?;
        self.count(inputs, &Arc::default())
    }

    fn count(&mut self, inputs: &[Input<'_>], states: &Arc<FileStates>) -> Result<RunReport> {
        let report = self.go_over(inputs, states, None, None, RunPlaces::default())?;
        self.counted = Counted::Whole;
        Ok(report)
    }

    /// Keeps the frequent values of all vocabularies that count and are not frozen. The values that
    /// were counted at least `min_count` times get new ids, in the order of their old ids, and the
    /// vocabulary is frozen. All other values get the vocabulary's
    /// [`unknown_id`](crate::VocabularySpec::unknown_id). Earlier ids are no longer valid.
    ///
    /// [`run`](Self::run) calls `keep_frequent` itself for vocabularies with a
    /// [`min_count`](crate::VocabularySpec::min_count).
    ///
    /// # Errors
    /// [`Error::Bank`] and [`Error::VocabularyChanged`]. After one of these, another call continues
    /// with the vocabularies that are left. [`run`](Self::run) also continues, with those that have
    /// a `min_count`. [`Error::CountedInPart`] after a failed pass. [`Error::Spec`] if the pipeline
    /// does not [learn](Self::learns).
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{
    ///     Batch, Column, Dtype, Field, FieldKind, Input, Operator, Output, Pipeline, Spec, VocabularySpec,
    /// };
    ///
    /// let site = Column::field("site").then(Operator::Modulus(100)).then(Operator::Vocabulary("site".to_owned()));
    /// let new = VocabularySpec::new("site");
    /// let settings = VocabularySpec { counts: true, first_id: 1, unknown_id: Some(0), ..new };
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
        // `refresh` may fail, so it is called before any vocabulary of the bank is changed.
        self.refresh()?;
        self.counted = Counted::NotKept;
        let mut all = Vec::new();
        let mut numberings = self.numberings.lock();
        for (plan, numbering) in self.plan.vocabularies.iter().zip(numberings.iter_mut()) {
            if !numbering.is_counting() {
                continue;
            }
            let Kept { kept, removed } = numbering.keep_frequent(min_count)?;
            all.push(KeptValues { vocabulary: plan.name.clone(), kept, removed });
        }
        drop(numberings);
        self.counted = Counted::Whole;
        Ok(all)
    }

    /// Indices of the vocabularies with a `min_count` that are not frozen yet.
    pub(super) fn to_make(&self) -> Vec<usize> {
        let numberings = self.numberings.lock();
        let is_to_make = |(_, numbering): &(usize, &Numbering)| {
            numbering.min_count > 0 && !numbering.is_frozen()
        };
        numberings.iter().enumerate().filter(is_to_make).map(|(place, _)| place).collect()
    }

    /// Makes the vocabularies `to_make`, which have a `min_count`: counts the values of the inputs,
    /// and keeps the frequent ones.
    pub(super) fn make(
        &mut self,
        inputs: &[Input<'_>],
        to_make: &[usize],
        states: &Arc<FileStates>,
    ) -> Result<()> {
        if let Some(pipe) = inputs.iter().find(|input| input.is_pipe()) {
            return refused(format!(
                "a vocabulary with a min_count takes two passes, and {:?} can be read only once: make the \
                 vocabulary of files first, or write the pipe to one",
                pipe.name()
            ));
        }
        if self.counted != Counted::NotKept {
            self.refresh()?;
            self.check_counted()?;
            self.count(inputs, states)?;
        }
        self.keep_made(to_make)
    }

    /// Keeps the frequent values of the vocabularies `to_make`, whose values are counted.
    pub(super) fn keep_made(&mut self, to_make: &[usize]) -> Result<()> {
        // If an error ends the loop below, `counted` stays `NotKept`.
        self.counted = Counted::NotKept;
        let mut numberings = self.numberings.lock();
        for &place in to_make {
            let numbering = &mut numberings[place];
            numbering.keep_frequent(numbering.min_count)?;
        }
        drop(numberings);
        self.counted = Counted::Whole;
        Ok(())
    }

    /// Called when a pass that counts begins. Until the pass has finished, its counts may be
    /// partial.
    pub(super) fn counting_begins(&mut self) {
        // Only a bank's counts survive a failed pass. Counts in memory are dropped.
        if self.numberings.lock().iter().any(Numbering::counts_as_it_goes) {
            self.counted = Counted::OfAPart;
        }
    }

    /// Changes `NotKept` to `Whole` if no vocabulary counts any more: another program may have kept
    /// the frequent values, or frozen the vocabularies.
    pub(super) fn nothing_is_left_to_keep(&mut self) {
        if self.counted == Counted::NotKept
            && !self.numberings.lock().iter().any(Numbering::is_counting)
        {
            self.counted = Counted::Whole;
        }
    }

    /// Fails if another pass would count some rows twice.
    pub(super) fn check_counted(&self) -> Result<()> {
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
}
