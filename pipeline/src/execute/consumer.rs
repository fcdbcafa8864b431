//! The consumer of a run's batches.

use crate::batch::Batch;
use crate::error::Result;
use crate::input::Input;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Receives the batches of a run, in the order of the input.
pub trait Consumer: Send {
    /// Called with the run's inputs before the first one is read. Default: accepts all.
    ///
    /// # Errors
    /// An error ends the run: for example, if the consumer would overwrite an input.
    fn begin(&mut self, inputs: &[Input<'_>]) -> Result<()> {
        let _ = inputs;
        Ok(())
    }

    /// Receives a batch. Different threads may call `consume`, one at a time. The run reuses the
    /// memory that the consumer leaves in the batch.
    ///
    /// # Errors
    /// An error ends the run.
    fn consume(&mut self, batch: &mut Batch) -> std::result::Result<(), Failure>;
}

impl<F> Consumer for F
where
    F: FnMut(&mut Batch) -> std::result::Result<(), Failure> + Send,
{
    fn consume(&mut self, batch: &mut Batch) -> std::result::Result<(), Failure> {
        self(batch)
    }
}
