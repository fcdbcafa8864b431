//! Batches of a training loop's size, made in the background.
//!
//! **Problem.** A run hands out the rows that a chunk of input happens to hold, inside a call that
//! lasts as long as the run. A training loop asks for batches of a fixed number of rows, in another
//! order than the file's, and may stop at any time.
//!
//! **Approach.** The run works in a thread of its own, with its workers beside it. Its consumer,
//! the [`Feeder`], cuts the chunks into batches, through a shuffle buffer if there is one. It sends
//! whole batches through a channel that has room for a few. When the channel is full, the run
//! stands still, so memory is bounded. Batches of a run come in the order of the input for any
//! number of threads, and one place does all that follows, so the feed's batches are a function of
//! pipeline, input and [`FeedOptions`] alone.
//!
//! **Ending early.** Dropping the [`Feed`] closes the channel, which ends the consumer's wait, if
//! it waits, and sets a flag, which ends the run at its next chunk, if it doesn't, and its wait for
//! a pipe. Then the thread is joined.

mod feeder;
mod input;
mod shuffle;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use embank::locks::Mutex;

use crate::batch::{Batch, MatrixInfo};
use crate::error::{Error, Result};
use crate::execute::RunReport;
use crate::options::FeedOptions;
use crate::pipeline::Pipeline;
use feeder::Feeder;
pub use input::FeedInput;

/// A run in the background, as an iterator of batches that belong to the caller.
///
/// [`Batch::first_row`] of a batch is what [`Feed::next_row`] was before it. Dropping the feed ends
/// the run at its next chunk; of a pipe that is silent, within 50 ms.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use embank_pipeline::{FeedInput, FeedOptions, Pipeline, RunOptions, Spec};
///
/// let pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
/// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
/// let text: Arc<[u8]> = row.repeat(10).into_bytes().into();
/// let options = FeedOptions { batch_rows: 4, shuffle_rows: 100, ..Default::default() };
/// let mut feed = pipeline.feed(vec![FeedInput::memory("ten rows", text)], &options)?;
/// let rows: Vec<usize> = feed.by_ref().map(|batch| Ok(batch?.rows())).collect::<embank_pipeline::Result<_>>()?;
/// assert_eq!(rows, [4, 4, 2]);
/// assert_eq!(feed.next_row(), 10);
/// let pipeline = feed.into_pipeline()?; // with its vocabularies, for another feed
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug)]
pub struct Feed {
    infos: Arc<[MatrixInfo]>,
    position: u64,
    stop: Arc<AtomicBool>,
    /// The system refused a thread for the run; reported once.
    failure: Option<Error>,
    progress: Progress,
}

type Outcome = (Pipeline, Result<RunReport>);
type Run = Box<dyn FnOnce() -> Outcome + Send>;

#[derive(Debug)]
enum Progress {
    Running(Receiver<Batch>, JoinHandle<Outcome>),
    Ended(Box<Ended>),
    Panicked,
}

/// A run that has ended.
#[derive(Debug)]
struct Ended {
    pipeline: Pipeline,
    /// `None` if the run has not ended.
    report: Option<RunReport>,
}

/// What came of waiting for a batch.
#[derive(Debug, Clone)]
pub enum Waited {
    /// It is here.
    Batch(Batch),
    /// It isn't yet.
    Late,
    /// There are no more.
    End,
}

impl Pipeline {
    /// Runs over the inputs, one after the other, in the background, and hands out batches of
    /// `batch_rows` rows.
    ///
    /// Batches are the same with any number of threads. A feed that skips another's
    /// [`next_row`](Feed::next_row), made of the same pipeline as that one was (as new, or with
    /// the same values in its vocabularies), inputs and other options, hands out what the other
    /// one would have from there on.
    ///
    /// # Errors
    /// [`Error::Spec`] for options that make no sense ([`FeedOptions::check`] tells beforehand).
    /// Whatever [`run`](Self::run) fails at comes from the feed, after the whole batches of the
    /// chunks before its own; so does [`Error::ThreadRefused`], and the pipeline comes back
    /// then as always.
    pub fn feed(self, inputs: Vec<FeedInput>, options: &FeedOptions) -> Result<Feed> {
        let thread = std::thread::Builder::new().name("embank-feed".to_owned());
        self.feed_in(inputs, options, |run| thread.spawn(run))
    }

    fn feed_in(
        mut self,
        inputs: Vec<FeedInput>,
        options: &FeedOptions,
        spawn: impl FnOnce(Run) -> io::Result<JoinHandle<Outcome>>,
    ) -> Result<Feed> {
        options.check()?;
        self.begin_evaluation();
        let (sender, receiver) = sync_channel(options.batches_ahead);
        let infos = Arc::clone(self.infos());
        let stop = Arc::new(AtomicBool::new(false));
        let thread_infos = Arc::clone(&infos);
        let thread_stop = Arc::clone(&stop);
        let options = options.clone();
        let position = options.skip_rows;
        // If the system refuses the thread, the closure below is dropped. So the pipeline stays
        // here until the thread has begun.
        let lies = Arc::new(Mutex::new(Some(self)));
        let taken = Arc::clone(&lies);
        let run = move || {
            let taken = taken.lock().take();
            let mut pipeline = taken.expect("it is taken back only if there is no thread");
            // A pass that counts before the first batch has no consumer that could end it. A silent
            // pipe has none either.
            let before = pipeline.replace_stop(Arc::clone(&thread_stop));
            let inputs: Vec<_> = inputs.iter().map(FeedInput::input).collect();
            let outcome =
                Feeder::new(thread_infos, &options, thread_stop, sender).and_then(|mut feeder| {
                    let report = pipeline.run(&inputs, &mut feeder)?;
                    feeder.finish();
                    Ok(report)
                });
            pipeline.stop_when(before);
            (pipeline, outcome)
        };
        let (progress, failure) = match spawn(Box::new(run)) {
            Ok(thread) => (Progress::Running(receiver, thread), None),
            Err(source) => {
                let pipeline = lies.lock().take().expect("nobody took it");
                let progress = Progress::Ended(Box::new(Ended { pipeline, report: None }));
                (progress, Some(Error::ThreadRefused { thread: "feed", source }))
            }
        };
        Ok(Feed { infos, position, stop, failure, progress })
    }
}

impl Feed {
    /// Waits for the next batch, but not longer than `limit`.
    ///
    /// # Errors
    /// As of [`Pipeline::run`], once; there are no more batches after that.
    pub fn wait(&mut self, limit: Duration) -> Result<Waited> {
        let Progress::Running(batches, _) = &self.progress else {
            return self.failure.take().map_or(Ok(Waited::End), Err);
        };
        match batches.recv_timeout(limit) {
            Ok(batch) => Ok(Waited::Batch(self.handed_out(batch))),
            Err(RecvTimeoutError::Timeout) => Ok(Waited::Late),
            Err(RecvTimeoutError::Disconnected) => self.end().map(|()| Waited::End),
        }
    }

    fn handed_out(&mut self, batch: Batch) -> Batch {
        self.position = batch.first_row() + batch.rows() as u64;
        batch
    }

    /// Joins the thread; its failure.
    fn end(&mut self) -> Result<()> {
        if !matches!(self.progress, Progress::Running(..)) {
            return Ok(());
        }
        let Progress::Running(batches, thread) =
            std::mem::replace(&mut self.progress, Progress::Panicked)
        else {
            unreachable!("it is running")
        };
        drop(batches);
        let Ok((pipeline, outcome)) = thread.join() else {
            return Err(Error::Panicked("that of the feed".to_owned()));
        };
        let (report, failure) = match outcome {
            Ok(report) => (Some(report), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.progress = Progress::Ended(Box::new(Ended { pipeline, report }));
        failure
    }

    /// Ends the run, if it hasn't ended: there are no more batches.
    pub fn close(&mut self) {
        // Relaxed: it is only to be seen some time, and the channel or the join orders all else.
        self.stop.store(true, Ordering::Relaxed);
        // A run that was cut short has failed, and that is no news.
        let _ = self.end();
        self.failure = None;
    }

    /// The number of the row that the next batch begins with: rows that were handed out, and those
    /// that were skipped before them.
    #[must_use]
    pub fn next_row(&self) -> u64 {
        self.position
    }

    /// What came of the run; none before its end, and if it didn't come to that.
    #[must_use]
    pub fn report(&self) -> Option<&RunReport> {
        match &self.progress {
            Progress::Ended(ended) => ended.report.as_ref(),
            Progress::Running(..) | Progress::Panicked => None,
        }
    }

    /// The outputs' names and shapes.
    #[must_use]
    pub fn outputs(&self) -> &[MatrixInfo] {
        &self.infos
    }

    /// Ends the run, if it hasn't ended, and gives the pipeline back. Its vocabularies have the
    /// values of all batches that were handed out, and those of rows that were read ahead.
    ///
    /// # Errors
    /// [`Error::Panicked`]: then there is no pipeline any more.
    pub fn into_pipeline(mut self) -> Result<Pipeline> {
        self.close();
        match std::mem::replace(&mut self.progress, Progress::Panicked) {
            Progress::Ended(ended) => Ok(ended.pipeline),
            Progress::Running(..) | Progress::Panicked => {
                Err(Error::Panicked("that of the feed".to_owned()))
            }
        }
    }
}

impl Iterator for Feed {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        let Progress::Running(batches, _) = &self.progress else {
            return self.failure.take().map(Err);
        };
        match batches.recv() {
            Ok(batch) => Some(Ok(self.handed_out(batch))),
            Err(_) => self.end().err().map(Err),
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunOptions;
    use crate::spec::Spec;

    /// The pipeline was lost, with its vocabularies.
    #[test]
    fn the_pipeline_comes_back_when_no_thread_is_to_be_had() {
        let no_thread = |_| Err(io::ErrorKind::WouldBlock.into());
        let mut pipeline = Pipeline::new(&Spec::criteo(100), &RunOptions::default()).unwrap();
        for iterates in [true, false] {
            let mut feed =
                pipeline.feed_in(Vec::new(), &FeedOptions::default(), no_thread).unwrap();
            let error = if iterates {
                feed.next().unwrap().unwrap_err()
            } else {
                feed.wait(Duration::ZERO).unwrap_err()
            };
            for part in ["thread of the feed", "pids", "`ulimit -u`"] {
                assert!(error.to_string().contains(part), "{error}");
            }
            assert!(feed.next().is_none() && feed.report().is_none());
            pipeline = feed.into_pipeline().unwrap();
        }
        let nothing = vec![FeedInput::memory("no rows", Vec::new())];
        assert!(pipeline.feed(nothing, &FeedOptions::default()).unwrap().next().is_none());
    }
}
