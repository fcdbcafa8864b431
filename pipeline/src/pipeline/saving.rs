//! What the bank of a pipeline gets of its vocabularies, and what the pipeline sees of others'
//! changes.

use super::Pipeline;
use crate::error::{Error, Result};
use crate::vocabulary::Numbering;

impl Pipeline {
    /// Gives the bank the values and counts that it lacks. In memory when it returns; durable with
    /// the bank's next checkpoint. Nothing without a bank, and nothing if the pipeline does not
    /// [learn](Self::learns).
    ///
    /// # Errors
    /// [`Error::VocabularyChanged`] if another user of the vocabulary inserted into it, froze it or
    /// renumbered it. [`Error::Bank`], after which a part may be saved; the next save continues
    /// behind it.
    pub fn save(&mut self) -> Result<()> {
        if !self.learns {
            return Ok(());
        }
        self.numberings.lock().iter_mut().try_for_each(Numbering::save)
    }

    /// [Saves](Self::save), and takes a checkpoint of the bank with the caller's own bytes:
    /// vocabularies and the rows that their ids lead to, together. Returns the checkpoint's
    /// number.
    ///
    /// # Errors
    /// As [`save`](Self::save) and [`Bank::checkpoint`](embank::Bank::checkpoint); [`Error::Spec`]
    /// if it is another bank than the pipeline's, or if the pipeline does not
    /// [learn](Self::learns); [`Error::CountedInPart`] where it would keep counts that can't be
    /// gone on from.
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

    /// Whether all values of a batch are in the bank before the consumer gets it. Then it may take
    /// checkpoints of the bank in the middle of a run; it costs some microseconds for each
    /// vocabulary with new values, in turn. Default: no. An [evaluation](Self::evaluation)
    /// never saves.
    pub fn save_each_batch(&mut self, saves: bool) {
        self.saves_each_batch = saves;
    }

    /// Sees what has become of the bank's vocabularies.
    pub(super) fn refresh(&mut self) -> Result<()> {
        if !self.learns && self.bank.as_ref().is_none_or(|bank| bank.reading().is_none()) {
            // The pipeline that learns does it, where no run of its own is under way.
            return Ok(());
        }
        self.numberings.lock().iter_mut().try_for_each(Numbering::refresh)?;
        self.nothing_is_left_to_keep();
        Ok(())
    }
}
