//! The pipeline of a server, which one feed at a time uses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use embank::locks::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::{Code, Status};

use super::message::{Encoder, Ticket, status, told};
use crate::batch::arrow_schema;
use crate::execute::RunReport;
use crate::feed::{Feed, FeedInput, Waited};
use crate::options::{FeedOptions, FlightOptions};
use crate::pipeline::Pipeline;

/// Interval at which a feed that waits for a batch checks whether its client is still connected,
/// and in which a client's wait for the feed is counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

pub(super) type Message = std::result::Result<FlightData, Status>;

/// Data that all connections share.
#[derive(Debug)]
pub(super) struct Epochs {
    pub(super) schema: SchemaRef,
    inputs: Vec<FeedInput>,
    options: FlightOptions,
    /// A semaphore with one permit. A feed holds the permit while it uses the pipeline.
    turn: Arc<Semaphore>,
    served: Mutex<ServedPipeline>,
    /// The threads of all running feeds, and of some feeds that have ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct ServedPipeline {
    /// `None` while a feed uses the pipeline; the feed's thread then holds the permit. Stays `None`
    /// if the feed panicked, because the pipeline is lost.
    pipeline: Option<Box<Pipeline>>,
    /// The report of the last feed that ended.
    report: Option<RunReport>,
}

impl Epochs {
    pub(super) fn new(pipeline: Pipeline, inputs: Vec<FeedInput>, options: FlightOptions) -> Self {
        let schema = arrow_schema(pipeline.outputs());
        let served = ServedPipeline { pipeline: Some(Box::new(pipeline)), report: None };
        Self {
            schema,
            inputs,
            options,
            turn: Arc::new(Semaphore::new(1)),
            served: Mutex::new(served),
            threads: Mutex::default(),
        }
    }

    /// The report of the last feed that ended.
    pub(super) fn report(&self) -> Option<RunReport> {
        self.served.lock().report.clone()
    }

    /// Waits until no other feed uses the pipeline, and starts a feed. Its messages come out of the
    /// returned channel.
    ///
    /// # Errors
    /// `UNAVAILABLE` if another client still has the feed after the wait.
    pub(super) async fn begin(
        self: Arc<Self>,
        ticket: &Ticket,
    ) -> std::result::Result<mpsc::Receiver<Message>, Status> {
        let mut options = self.options.feed.clone();
        options.skip_rows = ticket.skip_rows.unwrap_or(options.skip_rows);
        options.seed = ticket.seed.unwrap_or(options.seed);
        options.skipped_inputs.clone_from(&ticket.inputs);
        options.skipped_place.clone_from(&ticket.place);
        let turn = Arc::clone(&self.turn).acquire_owned();
        let Some(permit) = within(self.options.wait, turn).await.and_then(Result::ok) else {
            let why = "another client is taking this feed, and it is for one at a time: end that one, come again \
                       when it is done, or start a server for each";
            return Err(told(Code::Unavailable, why.to_owned(), r#"{"busy":true}"#.to_owned()));
        };
        // Capacity 1: while one batch is being sent, the thread encodes the next.
        let (to, from) = mpsc::channel(1);
        let epochs = Arc::clone(&self);
        let learn = ticket.learn;
        let run = move || epochs.run(&options, learn, to, permit);
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

    /// Runs one feed until its end, or until its client disconnects.
    fn run(
        &self,
        options: &FeedOptions,
        learn: Option<bool>,
        to: mpsc::Sender<Message>,
        turn: OwnedSemaphorePermit,
    ) {
        let mut encoder = Encoder::new(&self.schema, self.options.message_bytes);
        // If a message can't be sent, here or below, the client has disconnected.
        let _ = to.blocking_send(Ok(encoder.schema()));
        // A separate statement: inside the `match`, this expression would hold the lock during the
        // whole feed.
        let pipeline = self.served.lock().pipeline.take();
        let failure = match pipeline {
            None => Some(Status::internal(
                "the pipeline was lost when a thread panicked: start the server anew",
            )),
            Some(pipeline) => caught(|| self.feed(pipeline, options, learn, &mut encoder, &to)),
        };
        // Releases the permit before the client sees the end of the feed, so that the client can
        // start its next feed at once.
        drop(turn);
        if let Some(failure) = failure {
            let _ = to.blocking_send(Err(failure));
        }
    }

    /// Sends a feed's messages and puts the pipeline back. Returns the failure to report to the
    /// client.
    fn feed(
        &self,
        pipeline: Box<Pipeline>,
        options: &FeedOptions,
        learn: Option<bool>,
        encoder: &mut Encoder,
        to: &mpsc::Sender<Message>,
    ) -> Option<Status> {
        if learn == Some(true) && !pipeline.learns() {
            self.served.lock().pipeline = Some(pipeline);
            return Some(Status::invalid_argument(
                "`learn` is true, and the pipeline of this server looks values up and inserts nothing: leave it out",
            ));
        }
        // An evaluation uses a second pipeline on the same vocabularies. The server's own pipeline
        // is therefore free again at once.
        let evaluates = learn == Some(false);
        let pipeline = if evaluates {
            let evaluation = pipeline.evaluation();
            self.served.lock().pipeline = Some(pipeline);
            evaluation
        } else {
            *pipeline
        };
        let mut feed = match pipeline.feed(self.inputs.clone(), options) {
            Ok(feed) => feed,
            Err(error) => return Some(status(&error)),
        };
        let sent = send_all(&mut feed, encoder, to);
        let report = feed.report().cloned();
        let pipeline = feed.into_pipeline().ok().map(Box::new);
        let mut served = self.served.lock();
        if !evaluates {
            served.pipeline = pipeline;
        }
        served.report = report.or(served.report.take());
        sent.err()
    }

    /// Joins the threads of all feeds, and takes the pipeline out for good. `None` if a panic lost
    /// the pipeline. The caller has closed all connections, so every feed ends.
    pub(super) fn end(&self) -> Option<Pipeline> {
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // If the thread panicked, the pipeline is `None` below.
            let _ = thread.join();
        }
        self.served.lock().pipeline.take().map(|pipeline| *pipeline)
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

/// Sends a feed's batches until the feed ends or the client disconnects.
///
/// # Errors
/// The failure of the feed.
fn send_all(
    feed: &mut Feed,
    encoder: &mut Encoder,
    to: &mpsc::Sender<Message>,
) -> std::result::Result<(), Status> {
    // The loop ends: the feed ends or fails, or the client disconnects.
    while !to.is_closed() {
        let batch = match feed.wait(LOOK_INTERVAL).map_err(|error| status(&error))? {
            Waited::Batch(batch) => batch,
            Waited::Late => continue,
            Waited::End => break,
        };
        for message in encoder.batch(batch, feed.inputs_of_position()) {
            if to.blocking_send(message).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
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
