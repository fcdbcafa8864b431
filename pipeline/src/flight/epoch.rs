//! The pipeline of a server, which one epoch at a time uses, and the parts of that epoch.
//!
//! An epoch is one feed, dealt to the clients whose tickets ask for its parts
//! ([`Feed::split`](crate::Feed::split)). A ticket without a part asks for all of an undivided
//! feed, which is dealt to one part. The first client's ticket begins the epoch, and its batches
//! flow at once. The queues of the parts hold it until the other clients come. If some do not come
//! within [`FlightOptions::wait`], the others get a failure that names the missing parts.
//!
//! Each part has a thread. It ends the part before its client sees the end, so that the client can
//! begin its next epoch at once. When the last part ends, the pipeline is free.
//!
//! Lock order: the server's [`Served`], then the state of a split feed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use embank::locks::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tonic::{Code, Status};

use super::durable::Durable;
use super::message::{Encoder, Ticket, status, told};
use crate::batch::arrow_schema;
use crate::execute::RunReport;
use crate::feed::{FeedInput, FeedPart, Waited};
use crate::options::FlightOptions;
use crate::pipeline::Pipeline;

/// Interval at which a part that waits for a batch checks whether its client is still connected,
/// and in which a client's wait for its part is counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The details of a refusal after which the client may come again.
const BUSY: &str = r#"{"busy":true}"#;
/// The details of a refusal of a ticket that differs. A refusal without details is an `OSError` in
/// pyarrow, like one of the operating system.
const DIFFERS: &str = r#"{"differs":true}"#;

pub(super) type Message = std::result::Result<FlightData, Status>;

/// Data that all connections share.
#[derive(Debug)]
pub(super) struct Epochs {
    pub(super) schema: SchemaRef,
    inputs: Vec<FeedInput>,
    options: FlightOptions,
    /// `None` if ids need not be durable.
    durable: Option<Durable>,
    served: Mutex<Served>,
    /// Notified when a part has ended.
    changed: Notify,
    /// The threads of all running parts, and of some parts that have ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Served {
    /// `None` while an epoch uses the pipeline. Stays `None` if the feed panicked, because the
    /// pipeline is lost.
    pipeline: Option<Box<Pipeline>>,
    /// The epoch under way.
    epoch: Option<Epoch>,
    report: Option<EpochReport>,
}

/// The report of the last epoch whose feed has ended.
#[derive(Debug, Clone)]
pub(super) struct EpochReport {
    pub(super) run: RunReport,
    /// Rows of parts that left early, so far.
    pub(super) discarded_rows: u64,
}

#[derive(Debug)]
struct Epoch {
    /// The ticket of the first client.
    ticket: Ticket,
    parts: Vec<PartState>,
    /// True if the server's own pipeline is not in use.
    evaluates: bool,
    /// Set if parts were missing after the wait.
    missing: Arc<OnceLock<Status>>,
    /// Dropped when a client has come for each part.
    gathering: Option<oneshot::Sender<()>>,
}

/// A part goes from `Waiting` to `Taken` to `Over`, or from `Waiting` to `Missing` to `Over`.
#[derive(Debug)]
enum PartState {
    /// No client has come for the part.
    Waiting(FeedPart),
    /// A client has the part. The sender shows whether the client is still connected.
    Taken(mpsc::Sender<Message>),
    /// No client came within the wait. The part is being closed.
    Missing,
    Over,
}

/// A part of the epoch that is in use. Its drop ends the part.
#[derive(Debug)]
struct Claimed {
    epochs: Arc<Epochs>,
    /// `None` once the part has ended.
    part: Option<FeedPart>,
    missing: Arc<OnceLock<Status>>,
}

impl Epochs {
    pub(super) fn new(
        pipeline: Pipeline,
        inputs: Vec<FeedInput>,
        options: FlightOptions,
        durable: Option<Durable>,
    ) -> Self {
        let schema = arrow_schema(pipeline.outputs());
        let served = Served { pipeline: Some(Box::new(pipeline)), epoch: None, report: None };
        Self {
            schema,
            inputs,
            options,
            durable,
            served: Mutex::new(served),
            changed: Notify::new(),
            threads: Mutex::default(),
        }
    }

    pub(super) fn report(&self) -> Option<EpochReport> {
        self.served.lock().report.clone()
    }

    /// Begins an epoch or joins the one under way. Waits until the ticket's part is free. The
    /// part's messages come out of the returned channel.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the part is not free after the wait. The failures of [`claim`](Self::claim)
    /// and of the feed's start.
    pub(super) async fn begin(
        self: Arc<Self>,
        ticket: &Ticket,
    ) -> std::result::Result<mpsc::Receiver<Message>, Status> {
        // Capacity 1: while one batch is being sent, the thread encodes the next.
        let (to, from) = mpsc::channel(1);
        let claimed = within(self.options.wait, self.claim_when_free(ticket, &to)).await;
        let claimed = claimed.unwrap_or_else(|| Err(self.busy()))?;
        // If the system refuses the thread, the closure is dropped, which ends the part.
        let run = move || claimed.run(&to);
        let thread = std::thread::Builder::new().name("embank-epoch".to_owned()).spawn(run);
        let failed = |source| {
            let why = crate::Error::ThreadRefused { thread: "client", source };
            Status::resource_exhausted(why.to_string())
        };
        let thread = thread.map_err(failed)?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(from)
    }

    /// [Claims](Self::claim) the ticket's part as soon as it is free.
    async fn claim_when_free(
        self: &Arc<Self>,
        ticket: &Ticket,
        to: &mpsc::Sender<Message>,
    ) -> std::result::Result<Claimed, Status> {
        // The caller bounds the wait.
        loop {
            // Made before the look, so that a change after the look is not missed.
            let changed = self.changed.notified();
            if let Some(claimed) = self.claim(ticket, to)? {
                return Ok(claimed);
            }
            changed.await;
        }
    }

    /// Takes the ticket's part, of a new epoch if there is none under way. `None` if the part is
    /// not free.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` if the epoch waits for the part and began with another ticket.
    /// `UNAVAILABLE` if another client has the part.
    fn claim(
        self: &Arc<Self>,
        ticket: &Ticket,
        to: &mpsc::Sender<Message>,
    ) -> std::result::Result<Option<Claimed>, Status> {
        let mut served = self.served.lock();
        if served.epoch.is_none() {
            served.epoch = Some(self.start(&mut served, ticket)?);
        }
        let epoch = served.epoch.as_mut().expect("it was started");
        let (epochs, missing) = (Arc::clone(self), Arc::clone(&epoch.missing));
        let claimed = |part| Claimed { epochs, part: Some(part), missing };
        Ok(epoch.claim(ticket, to)?.map(claimed))
    }

    /// Starts the feed of an epoch.
    fn start(
        self: &Arc<Self>,
        served: &mut Served,
        ticket: &Ticket,
    ) -> std::result::Result<Epoch, Status> {
        let Some(pipeline) = served.pipeline.take() else {
            return Err(Status::internal(
                "the pipeline was lost when a thread panicked: start the server anew",
            ));
        };
        if ticket.learn == Some(true) && !pipeline.learns() {
            served.pipeline = Some(pipeline);
            return Err(Status::invalid_argument(
                "`learn` is true, and the pipeline of this server looks values up and inserts nothing: leave it out",
            ));
        }
        // An evaluation uses a second pipeline on the same vocabularies.
        let evaluates = ticket.learn == Some(false);
        let pipeline = if evaluates {
            let evaluation = pipeline.evaluation();
            served.pipeline = Some(pipeline);
            evaluation
        } else {
            *pipeline
        };
        let mut options = self.options.feed.clone();
        options.skip_rows = ticket.skip_rows.unwrap_or(options.skip_rows);
        options.seed = ticket.seed.unwrap_or(options.seed);
        options.skipped_inputs.clone_from(&ticket.inputs);
        options.skipped_place.clone_from(&ticket.place);
        let parts = pipeline.feed(self.inputs.clone(), &options);
        let parts = parts.and_then(|feed| feed.split(ticket.share().1));
        let parts = parts.map_err(|error| status(&error))?;
        let missing = Arc::new(OnceLock::new());
        let (gathering, gathered) = oneshot::channel();
        if parts.len() > 1 {
            tokio::spawn(Arc::clone(self).gather(Arc::clone(&missing), gathered));
        }
        Ok(Epoch {
            ticket: ticket.clone(),
            parts: parts.into_iter().map(PartState::Waiting).collect(),
            evaluates,
            missing,
            gathering: Some(gathering),
        })
    }

    /// Waits until a client has come for each part of an epoch. After the wait, closes the missing
    /// parts, and makes the epoch fail for the clients that came.
    async fn gather(self: Arc<Self>, missing: Arc<OnceLock<Status>>, all: oneshot::Receiver<()>) {
        // An error means that the sender was dropped, because all have come.
        if within(self.options.wait, all).await.is_some() {
            return;
        }
        let mut served = self.served.lock();
        let epoch = served.epoch.as_mut();
        let Some(epoch) = epoch.filter(|epoch| Arc::ptr_eq(&epoch.missing, &missing)) else {
            return;
        };
        let closed = epoch.take_waiting();
        if closed.is_empty() {
            return;
        }
        let numbers: Vec<_> = closed.iter().map(|part| part.number().to_string()).collect();
        let why = format!(
            "this epoch is of {} parts, and no client has come for part {} within {:?} (`wait`): connect all clients in \
             this time",
            epoch.parts.len(),
            numbers.join(", "),
            self.options.wait
        );
        missing.get_or_init(|| told(Code::DeadlineExceeded, why, String::new()));
        drop(served);
        // In another thread, because the close of the last part waits for the run to end. If the
        // system refuses the thread, the closure is dropped, which ends the parts here.
        let claimed = |part| Claimed {
            epochs: Arc::clone(&self),
            part: Some(part),
            missing: Arc::clone(&missing),
        };
        let closed: Vec<_> = closed.into_iter().map(claimed).collect();
        let _ =
            std::thread::Builder::new().name("embank-close".to_owned()).spawn(move || drop(closed));
    }

    fn busy(&self) -> Status {
        let served = self.served.lock();
        let parts = served.epoch.as_ref().map_or(&[][..], |epoch| &epoch.parts);
        let taken =
            parts.iter().enumerate().filter(|(_, part)| matches!(part, PartState::Taken(_)));
        let taken: Vec<_> = taken.map(|(number, _)| number.to_string()).collect();
        let who = match parts.len() {
            0 | 1 => "another client is taking this feed".to_owned(),
            of => {
                format!(
                    "other clients are taking this feed (of {of} parts, part {})",
                    taken.join(", ")
                )
            }
        };
        let why = format!(
            "{who}, and there is one epoch at a time: end that one, come again when it is done, or start a server for \
             each"
        );
        told(Code::Unavailable, why, BUSY.to_owned())
    }

    /// Ends a part. Puts the pipeline back if it was the last one.
    fn over(&self, mut part: FeedPart) {
        let number = part.number();
        // Outside of the lock, because the close of the last part waits for the run to end.
        part.close();
        let mut served = self.served.lock();
        // Read under the lock, so that a report never replaces a later one.
        let (run, discarded_rows) = (part.report(), part.discarded_rows());
        // Closed parts return the pipeline once. `Err` means that it is lost.
        let pipeline = part.into_pipeline().ok().flatten();
        if let Some(run) = run {
            served.report = Some(EpochReport { run, discarded_rows });
        }
        let epoch = served.epoch.as_mut().expect("it lasts until each part is over");
        epoch.parts[number] = PartState::Over;
        let (evaluates, ends) = (epoch.evaluates, epoch.is_over());
        if let (false, Some(pipeline)) = (evaluates, pipeline) {
            served.pipeline = Some(Box::new(pipeline));
        }
        if ends {
            served.epoch = None;
        }
        drop(served);
        self.changed.notify_waiters();
    }

    /// Joins the threads of all parts, and takes the pipeline out for good. `None` if a panic lost
    /// the pipeline. The caller has closed all connections, so every part that a client has ends.
    pub(super) fn end(&self) -> Option<Pipeline> {
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // If the thread panicked, the pipeline is `None` below.
            let _ = thread.join();
        }
        let waiting = self.served.lock().epoch.as_mut().map(Epoch::take_waiting);
        waiting.into_iter().flatten().for_each(|part| self.over(part));
        self.served.lock().pipeline.take().map(|pipeline| *pipeline)
    }
}

impl Epoch {
    /// Takes the ticket's part. `None` if it is not free, or if the ticket asks for another epoch.
    fn claim(
        &mut self,
        ticket: &Ticket,
        to: &mpsc::Sender<Message>,
    ) -> std::result::Result<Option<FeedPart>, Status> {
        let (number, of) = ticket.share();
        let divided = of > 1 && self.parts.len() > 1;
        let gathers = self.parts.iter().any(|part| matches!(part, PartState::Waiting(_)));
        let waits_for_it = match self.parts.get(number) {
            _ if of != self.parts.len() => divided && gathers,
            Some(PartState::Taken(client)) if divided && !client.is_closed() => {
                let why = format!(
                    "another client is taking part {number} of {of}: give each client a part of its own"
                );
                return Err(told(Code::Unavailable, why, BUSY.to_owned()));
            }
            part => matches!(part, Some(PartState::Waiting(_))),
        };
        if !waits_for_it {
            return Ok(None);
        }
        let differences = self.ticket.differences(ticket);
        if !differences.is_empty() {
            let why = format!(
                "the epoch under way waits for its parts, and began with another ticket: {differences}; the tickets of all \
                 parts must be equal in all but `part`"
            );
            return Err(told(Code::FailedPrecondition, why, DIFFERS.to_owned()));
        }
        let taken = PartState::Taken(to.clone());
        let PartState::Waiting(part) = std::mem::replace(&mut self.parts[number], taken) else {
            unreachable!("an epoch of an equal ticket waits for this part")
        };
        if !self.parts.iter().any(|part| matches!(part, PartState::Waiting(_))) {
            self.gathering = None;
        }
        Ok(Some(part))
    }

    /// Takes the parts for which no client has come.
    fn take_waiting(&mut self) -> Vec<FeedPart> {
        let waiting = |part: &mut PartState| match std::mem::replace(part, PartState::Missing) {
            PartState::Waiting(part) => Some(part),
            other => {
                *part = other;
                None
            }
        };
        self.parts.iter_mut().filter_map(waiting).collect()
    }

    fn is_over(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, PartState::Over))
    }
}

impl Claimed {
    /// Runs the part until its end, or until its client disconnects.
    fn run(mut self, to: &mpsc::Sender<Message>) {
        let Epochs { schema, options, .. } = &*self.epochs;
        let next_row = self.part.as_ref().map_or(0, FeedPart::next_row);
        let mut encoder = Encoder::new(schema, options.message_bytes, next_row);
        // If a message can't be sent, here or below, the client has disconnected.
        let _ = to.blocking_send(Ok(encoder.schema()));
        let failure = caught(|| self.send_all(&mut encoder, to).err());
        drop(self);
        if let Some(failure) = failure {
            let _ = to.blocking_send(Err(failure));
        }
    }

    /// Sends the part's batches until the part ends or the client disconnects.
    ///
    /// # Errors
    /// The failure of the feed or of a checkpoint, or that parts are missing.
    fn send_all(
        &mut self,
        encoder: &mut Encoder,
        to: &mpsc::Sender<Message>,
    ) -> std::result::Result<(), Status> {
        let part = self.part.as_mut().expect("it is there until the drop");
        // The loop ends: the feed ends or fails, the client disconnects, or parts are missing after
        // the wait. Until then a part may wait for a slower one.
        while !to.is_closed() {
            if let Some(missing) = self.missing.get() {
                return Err(missing.clone());
            }
            let batch = match part.wait(LOOK_INTERVAL).map_err(|error| status(&error))? {
                Waited::Batch(batch) => batch,
                Waited::Late => continue,
                Waited::End => {
                    if let Some(message) = encoder.end(part) {
                        // Fails only if the client has disconnected.
                        let _ = to.blocking_send(message);
                    }
                    break;
                }
            };
            // An evaluation, too, may give ids of values that no checkpoint has yet.
            if let Some(durable) = &self.epochs.durable {
                durable.checkpoint()?;
            }
            for message in encoder.batch(batch, part) {
                if to.blocking_send(message).is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            self.epochs.over(part);
        }
    }
}

/// Waits for `future`, at most for `wait`. `None` if the time passes first. Counts intervals, so a
/// suspension of the process counts as one interval at most.
async fn within<F: Future>(wait: Duration, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = wait;
    // The loop ends: each round counts an interval, and the last one what is left.
    loop {
        let interval = left.min(LOOK_INTERVAL);
        left -= interval;
        match tokio::time::timeout(interval, &mut future).await {
            Ok(done) => return Some(done),
            Err(_) if left.is_zero() => return None,
            Err(_) => {}
        }
    }
}

/// Turns a panic into a failure for the client. Otherwise the channel would close as it does at the
/// end of an epoch, and the client could not tell the difference.
fn caught(feed: impl FnOnce() -> Option<Status>) -> Option<Status> {
    // Unwind safe: unwinding drops the pipeline, and the encoder is not used after a panic.
    catch_unwind(AssertUnwindSafe(feed)).unwrap_or_else(|_| {
        Some(Status::internal(
            "a thread of the server panicked, a defect: this epoch is not complete, and the pipeline is lost; start \
             the server anew",
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    /// Regression test: when a feed panicked, the client got no failure, so it took the epoch for
    /// complete.
    #[test]
    fn a_panic_is_a_failure_and_no_end() {
        let status = caught(|| panic!("on purpose")).unwrap();
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains("not complete"), "{status}");
        assert!(caught(|| None).is_none());
    }

    /// A server that was suspended once told clients that waited for a feed that it was busy.
    #[test]
    fn a_suspension_counts_as_one_interval_of_a_wait() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut polls = 0;
        let ready_at_the_second_look = std::future::poll_fn(|context| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready(());
            }
            // Stands for the suspension: it outlasts the whole wait.
            std::thread::sleep(3 * LOOK_INTERVAL);
            context.waker().wake_by_ref();
            Poll::Pending
        });
        let done = runtime.block_on(within(2 * LOOK_INTERVAL, ready_at_the_second_look));
        assert_eq!(done, Some(()));
    }

    #[test]
    fn a_wait_ends_although_the_future_does_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for wait in [Duration::ZERO, Duration::from_millis(1), LOOK_INTERVAL * 3 / 2] {
            let waited = runtime.block_on(within(wait, std::future::pending::<()>()));
            assert_eq!(waited, None);
        }
        assert_eq!(runtime.block_on(within(Duration::ZERO, std::future::ready(5))), Some(5));
    }
}
