//! Saves vocabularies to the bank, and adopts changes that other programs made there.

use super::Pipeline;
use crate::error::{Error, Result};
use crate::vocabulary::Numbering;

impl Pipeline {
    /// Saves to the bank the values and counts that the bank lacks. When `save` returns, they are
    /// in the bank's memory; they are durable with the bank's next checkpoint. Does nothing if the
    /// pipeline has no bank or does not [learn](Self::learns).
    ///
    /// # Errors
    /// [`Error::VocabularyChanged`] if another user of the vocabulary added values, froze it or
    /// renumbered it. [`Error::Bank`] for a failure of the bank. Some of the values may then be
    /// saved, and the next save continues after them.
    pub fn save(&mut self) -> Result<()> {
        if !self.learns {
            return Ok(());
        }
        self.numberings.lock().iter_mut().try_for_each(Numbering::save)
    }

    /// [Saves](Self::save), and takes a checkpoint of the bank with the caller's bytes `blob`. The
    /// checkpoint holds the vocabularies together with the rows of their ids. Returns the
    /// checkpoint's number.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save) and [`Bank::checkpoint`](embank::Bank::checkpoint).
    /// [`Error::Spec`] if `bank` is not the pipeline's bank, or if the pipeline does not
    /// [learn](Self::learns). [`Error::CountedInPart`] if a pass that counted or the keeping of
    /// frequent values failed: the checkpoint would hold counts to which no pass may add.
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

    /// Sets whether each batch's new values are saved to the bank before the consumer gets the
    /// batch. With `true`, the consumer may take checkpoints of the bank during a run. Saving costs
    /// some microseconds per batch for each vocabulary with new values. Default: false. An
    /// [evaluation](Self::evaluation) never saves.
    pub fn save_each_batch(&mut self, saves: bool) {
        self.saves_each_batch = saves;
    }

    /// The bank to which runs save new values.
    ///
    /// # Errors
    /// [`Error::Spec`] if the pipeline has no bank, or does not [learn](Self::learns).
    #[cfg(feature = "flight")]
    pub(crate) fn bank_that_grows(&self) -> Result<embank::Bank> {
        self.check_learns("a server with checkpoints")?;
        self.bank.clone().ok_or_else(|| {
            Error::Spec("it has no bank, and a server with checkpoints needs one".to_owned())
        })
    }

    /// Adopts changes that other programs made to the bank's vocabularies.
    pub(super) fn refresh(&mut self) -> Result<()> {
        if !self.learns && self.bank.as_ref().is_none_or(|bank| bank.reading().is_none()) {
            // An evaluation does not adopt changes. The pipeline that learns does it, between its
            // own runs.
            return Ok(());
        }
        self.numberings.lock().iter_mut().try_for_each(Numbering::refresh)?;
        self.nothing_is_left_to_keep();
        Ok(())
    }
}
