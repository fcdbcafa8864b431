//! Where the batches of a run go.

use crate::batch::Batch;
use crate::error::Result;
use crate::input::Input;

type Failure = Box<dyn std::error::Error + Send + Sync>;

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

    /// Takes one. It is called by one thread at a time, not always the same. What it leaves of the
    /// batch is used again.
    ///
    /// # Errors
    /// Whatever ends the run.
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
