//! Serves feeds over Arrow Flight: a pipeline runs here, and a trainer in another process or on
//! another machine receives its batches.
//!
//! **Problem.** Preprocessing may need more cores than the machine with the accelerator has, or a
//! process of its own. The guarantees of a [`Feed`](crate::Feed) must hold across a network: exact
//! batches, an order that depends only on the seed, bounded memory, an error that names the row,
//! and a position to continue from.
//!
//! **Approach.** An epoch is a feed over the inputs, dealt to one or more clients ([`epoch`]). Each
//! `do_get` is one part of an epoch. A thread for this part takes batches out of it, encodes them,
//! and puts them into a channel with room for one. The connection empties the channel as fast as
//! the client's HTTP/2 window allows. If the client stops reading, the window fills, then the
//! channel, then the part's queue and the feed, and the run waits. If the client disconnects, the
//! channel closes and the thread ends the part. After all parts of an epoch, the pipeline with its
//! vocabularies is free for the next epoch. There is one epoch at a time; other clients wait up to
//! [`FlightOptions::wait`].
//!
//! A batch is one message of any size, unless [`FlightOptions::message_bytes`] limits it. Each
//! message carries the position after it ([`message`]).
//!
//! One thread with its own runtime serves all connections. A program that uses the server need not
//! be asynchronous, and stopping the server drops every connection at once.
//!
//! PIPER also attaches preprocessing to the network; the technique is PIPER's. The protocol is
//! [Arrow Flight](https://arrow.apache.org/docs/format/Flight.html).

mod durable;
mod epoch;
mod message;
mod service;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use embank::Home;
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::error::{Error, Result};
use crate::feed::FeedInput;
use crate::options::FlightOptions;
use crate::pipeline::Pipeline;
use durable::Durable;
use epoch::Epochs;
use service::Service;

/// Largest number of bytes of a client's request. The server refuses a longer request. A ticket
/// that resumes an epoch names the inputs that were read; this is enough for 100,000 names.
const REQUEST_BYTES_MAX: usize = 16 << 20;
/// Time without data after which the server pings a client.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time for a client's answer to a ping. A client's library answers within seconds, even while its
/// program computes.
const PING_TIMEOUT: Duration = Duration::from_secs(60);

/// A server of a pipeline's batches over Arrow Flight, until it is stopped or dropped.
///
/// `do_get` with an empty ticket is one feed over the inputs. The ticket `{"skip_rows": 8192,
/// "seed": 3}` makes the feed begin at that row and shuffle with that seed. The ticket `{"learn":
/// false}` makes a feed of the pipeline's [evaluation](crate::Pipeline::evaluation), which adds no
/// values to the vocabularies. Otherwise the vocabularies continue from feed to feed.
///
/// Several clients share one epoch by the tickets `{"part": 0, "of": 2}` and `{"part": 1, "of":
/// 2}`: batch k goes to part k mod `of`. The first ticket begins the epoch. The tickets must be
/// equal in all but `part`, and all clients must come within [`FlightOptions::wait`]. The batches
/// of a client that leaves early are discarded, and the others go on. As in [`Feed::split`], the
/// slowest client holds the others back, and positions are those of whole rounds. A part may end
/// with a batch without rows, which carries the position at the end.
///
/// [`Feed::split`]: crate::Feed::split
///
/// A batch has the schema [`arrow_schema`](crate::arrow_schema). Each message has `app_metadata`
/// such as `{"next_row": 12288, "inputs": [["day_0.tsv", 81920]]}`. A feed that skips this number
/// of rows continues after the message. `inputs` names the inputs that have begun since the last
/// message, and is left out if there are none. A ticket with all names so far as `inputs` makes the
/// feed fail if the server's inputs do not begin with them. Some messages also have a `place`. With
/// the last one in the ticket, beside `inputs`, the server need not read all skipped rows
/// ([`FeedPlace`](crate::FeedPlace)). The client gets an error of the run as
/// a status with the error's message. For a bad row, the details of the status are `{"input": ...,
/// "line": ..., "lines": ..., "column": ...}`. The action `report` returns the rows, bad rows and
/// bytes of the last feed that ended, as JSON. Its `discarded_rows` are those of parts whose
/// clients left early.
///
/// **Every client that reaches the address may take the batches**: there is no authentication and
/// no encryption.
///
/// # Examples
/// ```
/// use embank_pipeline::{FeedInput, FlightOptions, FlightServer, Pipeline, RunOptions, Spec};
///
/// let pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
/// let inputs = vec![FeedInput::file("train.tsv")];
/// let server = FlightServer::start(pipeline, inputs, "127.0.0.1:0", &FlightOptions::default())?;
/// println!("grpc://{}", server.address());
/// let pipeline = server.stop()?; // with its vocabularies
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug)]
pub struct FlightServer {
    address: SocketAddr,
    epochs: Arc<Epochs>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<std::result::Result<(), tonic::transport::Error>>>,
    home: Home,
}

impl FlightServer {
    /// Starts a server at `address`, which serves feeds over `inputs`. Port 0 selects any free
    /// port.
    ///
    /// # Errors
    /// [`Error::Spec`] for an invalid option, for a pipe, which can be read only once, and for
    /// [checkpoints](FlightOptions::checkpoints) of a pipeline that does not learn in a bank.
    /// [`Error::Io`] if the server can't listen on the address. [`Error::ThreadRefused`] if the
    /// system refuses a thread.
    pub fn start(
        mut pipeline: Pipeline,
        inputs: Vec<FeedInput>,
        address: impl ToSocketAddrs + std::fmt::Display,
        options: &FlightOptions,
    ) -> Result<Self> {
        options.feed.check()?;
        if options.message_bytes == Some(0) {
            return Err(Error::Spec("message_bytes is 0, and must be 1 at least".to_owned()));
        }
        if let Some(pipe) = inputs.iter().find(|input| input.input().is_pipe()) {
            return Err(Error::Spec(format!(
                "each client's epoch goes over the inputs anew, and {:?} can be read only once: write the pipe to a \
                 file first",
                pipe.name()
            )));
        }
        let durable = match options.checkpoints {
            true => {
                pipeline.save_each_batch(true);
                Some(Durable::of(pipeline.bank_that_grows()?))
            }
            false => None,
        };
        let wanted = address.to_string();
        let io = |source| Error::Io { doing: "listen on", path: wanted.clone().into(), source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io)?;
        let listener = TcpListener::bind(address).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        let epochs = Arc::new(Epochs::new(pipeline, inputs, options.clone(), durable));
        let (stop, stopped) = oneshot::channel();
        let service = Service::new(Arc::clone(&epochs));
        let run = move || {
            let served = runtime.block_on(serve(listener, service, stopped));
            // Dropping the runtime drops every connection, and so the receivers of all running
            // feeds.
            drop(runtime);
            served
        };
        let thread = std::thread::Builder::new().name("embank-flight".to_owned()).spawn(run);
        let refused = |source| Error::ThreadRefused { thread: "server", source };
        let thread = Some(thread.map_err(refused)?);
        Ok(Self { address, epochs, stop: Some(stop), thread, home: Home::here() })
    }

    /// The address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the server ends, which happens only after a failure.
    ///
    /// # Errors
    /// [`Error::Io`]: what failed.
    pub fn wait(mut self) -> Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(Error::Io {
                doing: "serve at",
                path: self.address.to_string().into(),
                source: std::io::Error::other(error),
            }),
            Some(Err(_)) => Err(Error::Panicked("that of the server".to_owned())),
        }
    }

    /// Ends all connections and the running feed, and returns the pipeline.
    ///
    /// # Errors
    /// [`Error::Panicked`] if a feed panicked. The pipeline is then lost.
    pub fn stop(mut self) -> Result<Pipeline> {
        self.end();
        self.epochs.end().ok_or_else(|| Error::Panicked("that of the feed".to_owned()))
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            // A failed send means that the server has already ended.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // An error of the server does not matter here: the pipeline is separate from it.
            let _ = thread.join();
        }
    }
}

impl Drop for FlightServer {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // A forked child does not have the server's threads. The parent goes on serving.
            std::mem::forget((self.stop.take(), self.thread.take()));
            return;
        }
        self.end();
        drop(self.epochs.end());
    }
}

/// Serves until `stopped` receives a message.
async fn serve(
    listener: TcpListener,
    service: Service,
    stopped: oneshot::Receiver<()>,
) -> std::result::Result<(), tonic::transport::Error> {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(_) => unreachable!("it does not block, and this is in a runtime"),
    };
    // Without Nagle's delay, the end of a message is sent at once.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let serving = Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .add_service(
            FlightServiceServer::new(service)
                .max_decoding_message_size(REQUEST_BYTES_MAX)
                .max_encoding_message_size(usize::MAX),
        )
        .serve_with_incoming(incoming);
    tokio::select! {
        served = serving => served,
        // An error means that the `FlightServer` was dropped, which also ends the serving.
        _ = stopped => Ok(()),
    }
}
