//! Deals the batches of one feed to several trainers.
//!
//! **Problem.** Trainers of one model in parallel, each with its own share of the batches, would
//! need a pipeline each, or one reader that copies to all. A share must not depend on the speed of
//! the trainers, memory must be bounded, and a stopped training must continue exactly.
//!
//! **Approach.** Batch k of the feed belongs to part k mod n. The batches k to k + n - 1, one for
//! each part, are a *round*. No thread deals: a part whose queue is empty takes the feed out of the
//! shared state, waits for the feed's next batch without the lock, and puts both back. A complete
//! round goes into the queues of all parts at once. A round begins only if each queue has room, so
//! the slowest part holds the others back, and memory is bounded: `batches_ahead` batches for each
//! part, one round, and the feed's own `batches_ahead` batches.
//!
//! **Positions.** Each batch in a queue carries the feed's place at the end of its round. All parts
//! have equal places after as many batches, whatever the trainers' speeds. A feed that resumes
//! there begins with a whole round.
//!
//! **Waiting.** All changes of [`State`] are made under its lock, and each is followed by
//! `notify_all`. A part waits for a notification only if another part has the feed or a queue is
//! full. The part that has the feed puts it back, and a part takes a batch out of its full queue or
//! leaves. Both notify. A part that does neither holds the other parts back until it does.
//! [`FeedPart::into_pipeline`] notifies no part: all have left then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use embank::Home;
use embank::locks::{Condvar, Mutex, MutexGuard};

use super::position::{Cursor, Reached};
use super::{Feed, FeedPosition, Waited};
use crate::batch::{Batch, MatrixInfo};
use crate::error::{Error, Result, refused};
use crate::execute::RunReport;
use crate::pipeline::Pipeline;

/// Largest number of parts of a feed. A round has a batch for each part, so this bounds its memory.
pub const PARTS_MAX: usize = 4096;

/// One of the parts of a feed ([`Feed::split`]), as an iterator of the part's batches.
///
/// An error of the run comes out of each part, after the part's complete batches. Parts share the
/// error, so a part returns it in an [`Arc`].
///
/// # Examples
/// ```
/// use embank_pipeline::{FeedInput, FeedOptions, FeedPart, Pipeline, Spec};
///
/// let pipeline = Pipeline::new(&Spec::criteo(5000), &Default::default())?;
/// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
/// let inputs = vec![FeedInput::memory("ten rows", row.repeat(10).into_bytes())];
/// let options = FeedOptions { batch_rows: 4, ..Default::default() };
/// let parts = pipeline.feed(inputs, &options)?.split(2)?;
/// let train = |part: FeedPart| part.map(|batch| batch.unwrap().first_row()).collect::<Vec<_>>();
/// let trainers: Vec<_> =
///     parts.into_iter().map(|part| std::thread::spawn(move || train(part))).collect();
/// let found: Vec<_> = trainers.into_iter().map(|trainer| trainer.join().unwrap()).collect();
/// assert_eq!(found, [vec![0, 8], vec![4]]);
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug)]
pub struct FeedPart {
    split: Arc<Split>,
    number: usize,
    parts: usize,
    /// The number of the first row of the first round.
    begin: u64,
    infos: Arc<[MatrixInfo]>,
    /// The place after the rounds whose batches this part has returned.
    cursor: Cursor,
    /// True after the end or the error was returned, and after a close.
    ended: bool,
    home: Home,
}

/// What all parts of a feed share.
#[derive(Debug)]
struct Split {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// `None` while a part waits for the feed's next batch, and after
    /// [`FeedPart::into_pipeline`] has returned the pipeline.
    source: Option<Source>,
    /// The batches of each part, each with the place after its round. `None` for a part that has
    /// left.
    queues: Vec<Option<VecDeque<(Batch, Reached)>>>,
    /// Rows of batches whose part had left.
    discarded_rows: u64,
    /// `None` until the feed has ended.
    end: Option<End>,
}

/// The feed, and the batches of the next round that it has returned.
#[derive(Debug)]
struct Source {
    feed: Feed,
    round: Vec<Batch>,
}

#[derive(Debug)]
struct End {
    failure: Option<Arc<Error>>,
    report: Option<RunReport>,
    reached: Reached,
}

impl Feed {
    /// Divides the feed into `parts` parts: batch k from here on goes to part k mod `parts`. Parts
    /// can be used in different threads. Together they return the batches that the feed would have
    /// returned.
    ///
    /// **All parts must be used.** Each part keeps up to
    /// [`batches_ahead`](crate::FeedOptions::batches_ahead) batches ready, and then waits for the
    /// slowest. Dropping a part frees the others from it: its batches are discarded and
    /// [counted](FeedPart::discarded_rows). The run ends early when all parts are dropped.
    ///
    /// # Errors
    /// [`Error::Spec`] if `parts` is 0 or above [`PARTS_MAX`]. The pipeline is then lost.
    pub fn split(self, parts: usize) -> Result<Vec<FeedPart>> {
        if parts == 0 || parts > PARTS_MAX {
            return refused(format!(
                "a feed was to be split into {parts} parts, and can have 1 to {PARTS_MAX}"
            ));
        }
        let (infos, cursor, home) = (Arc::clone(&self.infos), self.cursor.clone(), self.home);
        self.keep_memory_for(parts);
        let begin = cursor.next_row();
        let state = State {
            source: Some(Source { feed: self, round: Vec::with_capacity(parts) }),
            queues: (0..parts).map(|_| Some(VecDeque::new())).collect(),
            discarded_rows: 0,
            end: None,
        };
        let split = Arc::new(Split { state: Mutex::new(state), changed: Condvar::new() });
        let part = |number| FeedPart {
            split: Arc::clone(&split),
            number,
            parts,
            begin,
            infos: Arc::clone(&infos),
            cursor: cursor.clone(),
            ended: false,
            home,
        };
        Ok((0..parts).map(part).collect())
    }
}

impl FeedPart {
    /// Waits for the part's next batch, at most for `limit`.
    ///
    /// # Errors
    /// The error of the run ([`Pipeline::run`]), once. After it there are no more batches.
    pub fn wait(&mut self, limit: Duration) -> std::result::Result<Waited, Arc<Error>> {
        if self.ended {
            return Ok(Waited::End);
        }
        // `None` if the clock can't show the time: then there is no limit.
        let deadline = Instant::now().checked_add(limit);
        let mut late = false;
        let mut state = self.split.state.lock();
        // The loop ends with a batch, with the feed or at the deadline. Each round waits for a
        // batch of the feed, or for a change of the state.
        loop {
            let queue = state.queues[self.number].as_mut().expect("a part that left has ended");
            if let Some((batch, reached)) = queue.pop_front() {
                self.cursor.reach(reached);
                // A part with an empty queue may wait for room in this one.
                self.split.changed.notify_all();
                return Ok(Waited::Batch(batch));
            }
            if let Some(end) = &state.end {
                self.ended = true;
                self.cursor.reach(end.reached.clone());
                return end.failure.as_ref().map_or(Ok(Waited::End), |why| Err(Arc::clone(why)));
            }
            if late {
                return Ok(Waited::Late);
            }
            let has_room = state.has_room(self.cursor.batches_ahead());
            if let Some(source) = state.source.take_if(|_| has_room) {
                let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
                self.split.pull(&mut state, source, left.unwrap_or(Duration::MAX));
            } else if let Some(deadline) = deadline {
                self.split.changed.wait_until(&mut state, deadline);
            } else {
                self.split.changed.wait(&mut state);
            }
            late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        }
    }

    /// Ends this part. Batches that belong to it are discarded from now on, and the other parts go
    /// on. Ends the run if no part is left.
    pub fn close(&mut self) {
        self.ended = true;
        let mut state = self.split.state.lock();
        let Some(queue) = state.queues[self.number].take() else { return };
        state.discarded_rows += queue.iter().map(|(batch, _)| batch.rows() as u64).sum::<u64>();
        // A part that has the feed is in `wait`, and has not left. The run takes some time to end,
        // so the lock is free meanwhile. No other part takes or closes the feed: all have left.
        if let Some(mut source) = state.take_source_of_none() {
            MutexGuard::unlocked(&mut state, || source.feed.close());
            state.source = Some(source);
        }
        drop(state);
        self.split.changed.notify_all();
    }

    /// The number of this part, from 0.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The number of the feed's parts.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// The number of the first row after the rounds that this part has finished, as
    /// [`resume_position`](Self::resume_position) explains.
    #[must_use]
    pub fn next_row(&self) -> u64 {
        self.cursor.next_row()
    }

    /// The place after the rounds that this part has finished. A round has one batch for each part.
    /// After equally many batches all parts have the same position. A feed that resumes there and
    /// is split into equally many parts continues all of them. After its end
    /// ([`Waited::End`]), a part's position is the end of the feed.
    ///
    /// Take the position of one part when all parts have used equally many batches, as they have
    /// after a step of data-parallel training. From the position of a part that is ahead, the
    /// batches that other parts have not used are skipped.
    #[must_use]
    pub fn resume_position(&self) -> FeedPosition {
        self.cursor.position_at(self.next_row())
    }

    /// The [`resume_position`](Self::resume_position) after the first `rows` rows of the feed, for
    /// a caller that takes batches ahead of their use. The rows of all parts count: n batches of
    /// each part are n * `parts` * `batch_rows` rows. A number above [`next_row`](Self::next_row)
    /// counts as `next_row`.
    ///
    /// # Errors
    /// [`Error::Spec`] if a round does not end there. Parts that resumed there would get batches
    /// again, or batches of other parts.
    pub fn resume_position_at(&self, rows: u64) -> Result<FeedPosition> {
        let round_rows = self.cursor.batch_rows() as u64 * self.parts as u64;
        let ends_round = rows.checked_sub(self.begin).is_some_and(|n| n.is_multiple_of(round_rows));
        if rows < self.next_row() && !ends_round {
            return refused(format!(
                "row {rows} is not the end of a round of this part: rounds have {round_rows} rows ({} parts of {} rows) and \
                 begin at row {}; count the rows of all parts",
                self.parts,
                self.cursor.batch_rows(),
                self.begin
            ));
        }
        Ok(self.cursor.position_at(rows))
    }

    /// The inputs of [`resume_position`](Self::resume_position).
    #[cfg(feature = "flight")]
    pub(crate) fn inputs_of_position(&self) -> &[super::InputId] {
        self.cursor.inputs()
    }

    /// Rows of the feed's shuffle buffer.
    #[cfg(feature = "flight")]
    pub(crate) fn shuffle_rows(&self) -> usize {
        self.cursor.shuffle_rows()
    }

    /// The place of [`resume_position`](Self::resume_position).
    #[cfg(feature = "flight")]
    pub(crate) fn place_of_position(&self) -> Option<&Arc<crate::execute::FeedPlace>> {
        self.cursor.place()
    }

    /// The run's report. `None` until the run has ended, and after an error.
    #[must_use]
    pub fn report(&self) -> Option<RunReport> {
        self.split.state.lock().end.as_ref()?.report.clone()
    }

    /// Rows that no trainer got, so far: rows of batches that belonged to a part that was closed
    /// early or dropped.
    #[must_use]
    pub fn discarded_rows(&self) -> u64 {
        self.split.state.lock().discarded_rows
    }

    /// Names and shapes of the outputs.
    #[must_use]
    pub fn outputs(&self) -> &[MatrixInfo] {
        &self.infos
    }

    /// [Closes](Self::close) this part, and returns the pipeline if no other part is open. `None`
    /// while one is, and if another part has returned the pipeline. Its vocabularies have the
    /// values that [`Feed::into_pipeline`] describes.
    ///
    /// # Errors
    /// [`Error::Panicked`] if the feed's thread panicked. The pipeline is then lost.
    pub fn into_pipeline(mut self) -> Result<Option<Pipeline>> {
        self.close();
        let mut state = self.split.state.lock();
        let source = state.take_source_of_none();
        drop(state);
        source.map(|source| source.feed.into_pipeline()).transpose()
    }
}

impl Split {
    /// Waits for the feed's next batch without the lock. Deals the round if it is complete or the
    /// last one, and puts the feed back.
    fn pull(&self, state: &mut MutexGuard<'_, State>, mut source: Source, limit: Duration) {
        // A panic here would lose the feed, and other parts would wait without end. `Feed::wait`
        // has no panic: it returns that of the feed's thread as an error.
        let ended = match MutexGuard::unlocked(state, || source.feed.wait(limit)) {
            Ok(Waited::Late) => None,
            Ok(Waited::Batch(batch)) => {
                source.round.push(batch);
                None
            }
            Ok(Waited::End) => Some(None),
            Err(error) => Some(Some(Arc::new(error))),
        };
        let reached = source.feed.cursor.reached().clone();
        if ended.is_some() || source.round.len() == state.queues.len() {
            state.deal(&mut source.round, &reached);
        }
        if let Some(failure) = ended {
            state.end = Some(End { failure, report: source.feed.report().cloned(), reached });
        }
        state.source = Some(source);
        self.changed.notify_all();
    }
}

impl State {
    fn has_room(&self, batches_ahead: usize) -> bool {
        self.queues.iter().flatten().all(|queue| queue.len() < batches_ahead)
    }

    /// Takes the feed, if all parts have left.
    fn take_source_of_none(&mut self) -> Option<Source> {
        if self.all_left() { self.source.take() } else { None }
    }

    fn all_left(&self) -> bool {
        self.queues.iter().all(Option::is_none)
    }

    /// Puts the batches of a round into the queues of their parts. Only the part that has the feed
    /// calls `deal`, so the queues still have the room that they had when the part took the feed.
    fn deal(&mut self, round: &mut Vec<Batch>, reached: &Reached) {
        for (queue, batch) in self.queues.iter_mut().zip(round.drain(..)) {
            match queue {
                Some(queue) => queue.push_back((batch, reached.clone())),
                None => self.discarded_rows += batch.rows() as u64,
            }
        }
    }
}

impl Iterator for FeedPart {
    type Item = std::result::Result<Batch, Arc<Error>>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.wait(Duration::MAX) {
            Ok(Waited::Batch(batch)) => Some(Ok(batch)),
            Ok(Waited::End) => None,
            Ok(Waited::Late) => unreachable!("there is no limit"),
            Err(error) => Some(Err(error)),
        }
    }
}

impl Drop for FeedPart {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // In a forked child a thread of the parent may hold the lock, and the feed's thread
            // does not exist. So the child neither locks nor drops the state.
            std::mem::forget(Arc::clone(&self.split));
            return;
        }
        self.close();
    }
}
