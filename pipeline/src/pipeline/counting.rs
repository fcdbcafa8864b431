//! Counting how often values come, and keeping those that come often.

use super::Pipeline;
use crate::error::{Error, Result, refused};
use crate::execute::RunReport;
use crate::input::Input;
use crate::vocabulary::{Kept, KeptValues, Numbering};

/// What the counts of a pipeline's vocabularies are worth that have no id for rare values yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// All passes that counted have ended.
    Whole,
    /// A bank has counts of a pass that did not.
    OfAPart,
    /// As `Whole`, but what a run has counted was not kept, or of some vocabularies only: they must
    /// not be counted once more.
    NotKept,
}

impl Pipeline {
    /// Goes over the inputs without an output: numbers their values, and counts how often they come
    /// in those vocabularies that [count](crate::VocabularySpec::counts). PIPER's GenVocab
    /// alone.
    ///
    /// # Errors
    /// As [`run`](Self::run). After an error the vocabularies that a bank counts as the pass goes,
    /// those of values without a known range, have counts of a part of the rows;
    /// [`run`](Self::run) and `generate` fail with [`Error::CountedInPart`] from then on where
    /// they would count, and so does [`keep_frequent`](Self::keep_frequent): go back to a
    /// checkpoint, or begin with new vocabularies. Counts of values of a known range are as
    /// before then, and the pass may be made again. [`Error::Spec`] if the pipeline
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

    /// In all vocabularies that count and are not frozen yet: keeps the values that were counted
    /// `min_count` times or more, numbers them again in their old order, and freezes the
    /// vocabulary. Other values get the vocabulary's [id for
    /// them](crate::VocabularySpec::unknown_id). Ids from before are no longer valid.
    ///
    /// [`run`](Self::run) does it by itself where there is a
    /// [`min_count`](crate::VocabularySpec::min_count).
    ///
    /// # Errors
    /// [`Error::Bank`], [`Error::VocabularyChanged`], after which it may be called again and goes
    /// on with the vocabularies that are left (those with a `min_count` [`run`](Self::run)
    /// finishes as well); [`Error::CountedInPart`] after a pass that failed. [`Error::Spec`] if
    /// the pipeline does not [learn](Self::learns).
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
        // Before the bank's vocabularies are touched.
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

    /// The vocabularies with a `min_count` that are not made yet.
    pub(super) fn to_make(&self) -> Vec<usize> {
        let numberings = self.numberings.lock();
        let is_to_make = |(_, numbering): &(usize, &Numbering)| {
            numbering.min_count > 0 && !numbering.is_frozen()
        };
        numberings.iter().enumerate().filter(is_to_make).map(|(place, _)| place).collect()
    }

    /// Makes vocabularies with a `min_count`: counts the values of the inputs, and keeps what is
    /// frequent.
    pub(super) fn make(&mut self, inputs: &[Input<'_>], to_make: &[usize]) -> Result<()> {
        let expanded = Input::expand(inputs)?;
        if let Some(pipe) = expanded.iter().find(|input| input.is_pipe()) {
            return refused(format!(
                "a vocabulary with a min_count takes two passes, and {:?} can be read only once: make the \
                 vocabulary of files first, or write the pipe to one",
                pipe.name()
            ));
        }
        if self.counted != Counted::NotKept {
            self.generate(inputs)?;
        }
        // Until all are kept.
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

    /// A pass that counts begins.
    pub(super) fn counting_begins(&mut self) {
        // What is counted in memory is forgotten where a pass fails.
        if self.numberings.lock().iter().any(Numbering::counts_as_it_goes) {
            self.counted = Counted::OfAPart;
        }
    }

    /// Notes that others have kept what is frequent, or have frozen all.
    pub(super) fn nothing_is_left_to_keep(&mut self) {
        if self.counted == Counted::NotKept
            && !self.numberings.lock().iter().any(Numbering::is_counting)
        {
            self.counted = Counted::Whole;
        }
    }

    /// Refuses to count on where that would count some rows twice.
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
