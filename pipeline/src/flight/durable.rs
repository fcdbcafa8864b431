//! Makes ids durable before a client gets them.
//!
//! **Problem.** A client may train rows of its own by the ids of a batch, and keep them. If the
//! server is killed and its bank lacks a value of the batch, a later run over other inputs would
//! give the id to another value.
//!
//! **Approach.** The run saves the values of each batch to the bank before the feed gets the batch.
//! So a checkpoint that begins when a part has the batch contains them. A checkpoint also covers
//! the batches that the run has made ahead. After the first epoch new values are rare, and so are
//! checkpoints.

use embank::Bank;
use embank::locks::Mutex;
use tonic::Status;

use super::message::status;

/// The bank of a server that numbers new values.
#[derive(Debug)]
pub(super) struct Durable {
    bank: Bank,
    /// The caller's bytes of the checkpoint at which the bank was opened. Locked during a
    /// checkpoint: a part that waits for the lock mostly finds its values in the checkpoint.
    blob: Mutex<Vec<u8>>,
}

impl Durable {
    pub(super) fn of(bank: Bank) -> Self {
        let blob = bank.recovered().map(|recovered| recovered.blob.clone()).unwrap_or_default();
        Self { bank, blob: Mutex::new(blob) }
    }

    /// Returns when a checkpoint has all values that are in the bank now.
    ///
    /// # Errors
    /// The failure of the checkpoint.
    pub(super) fn checkpoint(&self) -> Result<(), Status> {
        let blob = self.blob.lock();
        // If other threads change the bank during a checkpoint, `unsaved` may count changes that
        // the checkpoint has. It counts each change that the checkpoint lacks.
        if self.bank.unsaved().is_some() {
            self.bank.checkpoint(&blob).map_err(|error| status(&error.into()))?;
        }
        Ok(())
    }
}
