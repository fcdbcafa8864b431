//! Saves vocabularies to the bank, and adopts changes that other programs made there.

use super::Pipeline;
use crate::error::{Error, Result};
use crate::vocabulary::Numbering;

impl Pipeline {
    /// Adds to the bank the values and counts that it does not have yet. They are in the bank's
    /// memory when `save` returns, and durable with its next checkpoint. Does nothing without a
    /// bank, or if the pipeline does not [learn](Self::learns).
    ///
    /// # Errors
    /// [`Error::VocabularyChanged`] if another user of the vocabulary added values, froze it or
    /// renumbered it. [`Error::Bank`] for a failure of the bank. A part may then be saved, and the
    /// next save continues after it.
    pub fn save(&mut self) -> Result<()> {
        if !self.learns {
            return Ok(());
        }
        self.numberings.lock().iter_mut().try_for_each(Numbering::save)
    }

    /// [Saves](Self::save), and takes a checkpoint of the bank with the caller's bytes `blob`. The
    /// checkpoint has the vocabularies and the rows of their ids together. Returns its number.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save) and [`Bank::checkpoint`](embank::Bank::checkpoint).
    /// [`Error::Spec`] if `bank` is not the pipeline's bank, or if the pipeline does not
    /// [learn](Self::learns). [`Error::CountedInPart`] if the checkpoint would keep counts that
    /// must not be added to.
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
    /// batch. The consumer may then take checkpoints of the bank during a run. This costs some
    /// microseconds per batch for each vocabulary with new values. Default: false. An
    /// [evaluation](Self::evaluation) never saves.
    pub fn save_each_batch(&mut self, saves: bool) {
        self.saves_each_batch = saves;
    }

    /// Adopts changes that other programs made to the bank's vocabularies.
    pub(super) fn refresh(&mut self) -> Result<()> {
        if !self.learns && self.bank.as_ref().is_none_or(|bank| bank.reading().is_none()) {
            // An evaluation leaves this to the pipeline that learns, which does it between its own
            // runs.
            return Ok(());
        }
        self.numberings.lock().iter_mut().try_for_each(Numbering::refresh)?;
        self.nothing_is_left_to_keep();
        Ok(())
    }
}
