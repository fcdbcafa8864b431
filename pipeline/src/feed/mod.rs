//! Makes batches of a training loop's size in the background.
//!
//! **Problem.** A run hands out the rows of one chunk of input at a time, inside a call that lasts
//! as long as the run. A training loop needs batches of a fixed number of rows, often in a shuffled
//! order, and may stop at any time.
//!
//! **Approach.** The run works in its own thread, with its workers beside it. Its consumer, the
//! [`Feeder`], cuts the rows into batches, through a shuffle buffer if there is one. It sends
//! complete batches through a channel of bounded size. If the channel is full, the run waits, so
//! memory is bounded. The run's own batches come in the order of the input with any number of
//! threads, and one thread at a time does all later steps. A feed's batches therefore depend only
//! on the pipeline, the input and the [`FeedOptions`].
//!
//! **Ending early.** Dropping the [`Feed`] closes the channel, which ends a waiting send of the
//! consumer. It also sets a flag, which ends the run at its next chunk and ends a wait for a pipe.
//! Then the thread is joined.

mod feeder;
mod input;
mod part;
mod position;
mod shuffle;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use embank::Home;
use embank::locks::Mutex;

use crate::batch::{Batch, MatrixInfo, Pool};
use crate::error::{Error, Result};
use crate::execute::{Holder, RunPlaces, RunReport};
use crate::input::Input;
use crate::options::FeedOptions;
use crate::pipeline::Pipeline;
use feeder::Feeder;
pub use input::FeedInput;
pub use part::{FeedPart, PARTS_MAX};
use position::{Cursor, Reached, ids_of};
pub use position::{FeedPosition, InputId};

/// A run in the background, as an iterator of batches that the caller owns.
///
/// A batch's [`Batch::first_row`] equals [`Feed::next_row`] before that batch. Dropping the feed
/// ends the run at its next chunk. A run that waits for a silent pipe ends within 50 ms.
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
    cursor: Cursor,
    stop: Arc<AtomicBool>,
    /// Lends the memory of the batches. Belongs to the run.
    pool: Weak<Pool>,
    /// The error if the system refused the feed's thread. `None` once it is reported.
    failure: Option<Error>,
    progress: Progress,
    home: Home,
}

type Outcome = (Pipeline, Result<RunReport>);
type Run = Box<dyn FnOnce() -> Outcome + Send>;

#[derive(Debug)]
enum Progress {
    Running(Receiver<Batch>, JoinHandle<Outcome>),
    Ended(Box<Ended>),
    Panicked,
}

/// The pipeline and the report of a run that has ended.
#[derive(Debug)]
struct Ended {
    pipeline: Pipeline,
    /// `None` if the run failed or never started.
    report: Option<RunReport>,
}

/// Result of [`Feed::wait`].
#[derive(Debug, Clone)]
pub enum Waited {
    /// The next batch.
    Batch(Batch),
    /// No batch was ready in time.
    Late,
    /// There are no more batches.
    End,
}

/// The largest number of batches whose memory a feed keeps for reuse. One batch is filled,
/// `batches_ahead` are ready, and each part's caller uses one. All of them may return before the
/// feed needs memory again.
fn spares_of(batches_ahead: usize, parts: usize) -> usize {
    batches_ahead + 1 + parts
}

impl Pipeline {
    /// Runs over the inputs, one after the other, in the background, and returns batches of
    /// `batch_rows` rows.
    ///
    /// Batches are the same with any number of threads. A feed can continue at another feed's
    /// [`resume_position`](Feed::resume_position) ([`FeedOptions::resume`]). It then returns the
    /// batches that the other feed would have returned next. The new feed's pipeline must begin
    /// with the vocabularies with which the other feed's pipeline began. All other options must be
    /// equal. Inputs after those of the position may be added, unless the feed shuffles.
    ///
    /// # Errors
    /// [`Error::Spec`] for invalid options, as [`FeedOptions::check`] reports them. Errors of
    /// [`run`](Self::run), [`Error::SkipsTooMany`], [`Error::OtherInputs`] and
    /// [`Error::ThreadRefused`] come out of the feed in place of a batch. The complete batches of
    /// earlier chunks come first. After such an error the feed can still
    /// give the pipeline back.
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
        let pool = Pool::new(self.infos(), spares_of(options.batches_ahead, 1));
        let of_feed = Arc::downgrade(&pool);
        let infos = Arc::clone(self.infos());
        let stop = Arc::new(AtomicBool::new(false));
        let thread_infos = Arc::clone(&infos);
        let thread_stop = Arc::clone(&stop);
        let known = Arc::new(OnceLock::new());
        let (thread_options, thread_known) = (options.clone(), Arc::clone(&known));
        // If the system refuses the thread, the closure below is dropped. The pipeline stays in
        // `lies` until the thread has begun, so it is not lost.
        let lies = Arc::new(Mutex::new(Some(self)));
        let taken = Arc::clone(&lies);
        let run = move || {
            let taken = taken.lock().take();
            let mut pipeline = taken.expect("it is taken back only if there is no thread");
            // The run checks the stop flag too. The consumer's own check is not enough: a pass that
            // only counts has no consumer, and during a wait for a silent pipe the consumer gets no
            // batch.
            let before = pipeline.replace_stop(Arc::clone(&thread_stop));
            let inputs: Vec<_> = inputs.iter().map(FeedInput::input).collect();
            let outcome = Feeder::new(thread_infos, &thread_options, thread_stop, sender, pool);
            let outcome = outcome.and_then(|mut feeder| {
                // Expanded here, so that the run reads exactly the inputs that are compared.
                let inputs = Input::expand(&inputs)?;
                let ids = ids_of(&inputs)?;
                thread_options.check_inputs(&ids)?;
                thread_known.get_or_init(|| ids);
                let shuffle = feeder.shuffle();
                let holder = shuffle.as_deref().map(|shuffle| shuffle as &dyn Holder);
                let places = RunPlaces { holder, ..thread_options.places() };
                let report = pipeline.run_from(&inputs, &mut feeder, places)?;
                feeder.finish(report.rows)?;
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
        let cursor = Cursor::beginning(options, known);
        Ok(Feed { infos, cursor, stop, pool: of_feed, failure, progress, home: Home::here() })
    }
}

impl Feed {
    /// Waits for the next batch, at most for `limit`.
    ///
    /// # Errors
    /// The error of the run ([`Pipeline::run`]), once. After it there are no more batches.
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

    /// Keeps the memory of as many batches as `parts` parts use at a time.
    fn keep_memory_for(&self, parts: usize) {
        if let Some(pool) = self.pool.upgrade() {
            pool.keep(spares_of(self.cursor.batches_ahead(), parts));
        }
    }

    fn handed_out(&mut self, batch: Batch) -> Batch {
        self.cursor.reach(Reached::end_of(&batch));
        batch
    }

    /// Joins the thread and returns its error.
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

    /// Ends the run if it has not ended. Afterwards there are no more batches.
    pub fn close(&mut self) {
        // Relaxed: it does not matter which check is the first to see the flag. The channel and the
        // join order all other data.
        self.stop.store(true, Ordering::Relaxed);
        // A run that was ended early fails with `Stopped`, which is expected.
        let _ = self.end();
        self.failure = None;
    }

    /// The number of the next batch's first row: the rows returned so far, plus the rows skipped at
    /// the beginning.
    #[must_use]
    pub fn next_row(&self) -> u64 {
        self.cursor.next_row()
    }

    /// The place after the rows that were skipped or returned, with the inputs that they came from.
    /// Another feed continues there ([`FeedOptions::resume`]).
    #[must_use]
    pub fn resume_position(&self) -> FeedPosition {
        self.resume_position_at(self.next_row())
    }

    /// The [`resume_position`](Self::resume_position) after the first `rows` rows, for a caller that
    /// takes batches ahead of their use. A number above [`next_row`](Self::next_row) counts as
    /// `next_row`.
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{FeedInput, FeedOptions, Pipeline, Spec};
    ///
    /// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
    /// let pipeline = Pipeline::new(&Spec::criteo(5000), &Default::default())?;
    /// let options = FeedOptions { batch_rows: 2, ..Default::default() };
    /// let inputs = vec![FeedInput::memory("ten rows", row.repeat(10).into_bytes())];
    /// let mut feed = pipeline.feed(inputs, &options)?;
    /// let ahead = [feed.next().unwrap()?, feed.next().unwrap()?];
    /// assert_eq!(feed.resume_position_at(ahead[0].rows() as u64).rows, 2);
    /// # Ok::<(), embank_pipeline::Error>(())
    /// ```
    #[must_use]
    pub fn resume_position_at(&self, rows: u64) -> FeedPosition {
        self.cursor.position_at(rows)
    }

    /// The run's report. `None` until the run has ended, and after an error.
    #[must_use]
    pub fn report(&self) -> Option<&RunReport> {
        match &self.progress {
            Progress::Ended(ended) => ended.report.as_ref(),
            Progress::Running(..) | Progress::Panicked => None,
        }
    }

    /// Names and shapes of the outputs.
    #[must_use]
    pub fn outputs(&self) -> &[MatrixInfo] {
        &self.infos
    }

    /// Ends the run if it has not ended, and returns the pipeline. Its vocabularies have the values
    /// of all returned batches. They also have values of rows that the run had read but not
    /// returned.
    ///
    /// # Errors
    /// [`Error::Panicked`] if the feed's thread panicked. The pipeline is then lost.
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
        if !self.home.is_here() {
            // A forked child does not have the feed's thread.
            std::mem::forget(std::mem::replace(&mut self.progress, Progress::Panicked));
            return;
        }
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunOptions;
    use crate::spec::Spec;

    /// Regression test: when the system refused the feed's thread, the feed dropped the pipeline,
    /// so its vocabularies were lost.
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
