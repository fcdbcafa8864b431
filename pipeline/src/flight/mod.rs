//! Feeds served over Arrow Flight: a pipeline runs here, and a trainer in another process or on
//! another machine takes its batches.
//!
//! **Problem.** Preprocessing wants cores that the machine with the accelerator has not got, or is
//! a process of its own. What a trainer expects of a [`Feed`](crate::Feed) must hold across a
//! network: exact batches, in an order that follows from the seed, bounded memory, an error that
//! names the row, a position to go on from.
//!
//! **Approach.** Each `do_get` is a feed. A thread of its own ([`epoch`]) takes batches out of it,
//! encodes them, and puts them into a channel with room for one, which the connection empties as
//! fast as HTTP/2's window of the client lets it. When the client stands still, so do window,
//! channel, feed and run. When the client goes away the channel closes, the thread ends the feed,
//! and the pipeline, with its vocabularies, lies ready for the next one: one client at a time has
//! it, others wait in line for a while.
//!
//! A batch is one message, whatever its size, unless [`FlightOptions::message_bytes`] says
//! otherwise. With each goes the position behind it ([`message`]).
//!
//! One thread serves all connections, with a runtime that lives in that thread. So a program that
//! uses this need not be asynchronous, and stopping the server drops every connection at once.
//!
//! The technique, preprocessing attached to the network, is PIPER's; the protocol is
//! [Arrow Flight](https://arrow.apache.org/docs/format/Flight.html).

mod epoch;
mod message;
mod service;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::error::{Error, Result};
use crate::feed::FeedInput;
use crate::options::FlightOptions;
use crate::pipeline::Pipeline;
use epoch::Epochs;
use service::Service;

/// Most bytes of a client's ticket; no more is read.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// How often a client that sends nothing is asked whether it is still there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long it has to answer: a client's library looks for pings every few seconds, though its
/// program computes.
const PING_TIMEOUT: Duration = Duration::from_secs(60);

/// A pipeline whose batches are served over Arrow Flight, until it is stopped or dropped.
///
/// `do_get` with an empty ticket is one feed over the inputs. With `{"skip_rows": 8192, "seed": 3}`
/// it begins at that row, and that seed shuffles it. With `{"learn": false}` it is a feed of the
/// pipeline's [evaluation](crate::Pipeline::evaluation), which inserts nothing. A batch has the
/// schema [`arrow_schema`](crate::arrow_schema). The message's `app_metadata` is `{"next_row":
/// 12288}`, with which another feed continues behind it. Vocabularies continue from feed to feed.
/// An error of a run reaches the client as a status with the error's message. The details of a bad
/// row are `{"input": ..., "line": ..., "column": ...}`. The action `report` returns rows, bad rows
/// and bytes of the last feed that has ended, as JSON.
///
/// **Every client that reaches the address may take the batches**: there is neither authentication
/// nor encryption.
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
}

impl FlightServer {
    /// Serves a feed over `inputs` at an address, of which the port may be 0, for any that is free.
    ///
    /// # Errors
    /// [`Error::Spec`] for options that make no sense and for a pipe, which can be read only once;
    /// [`Error::Io`] for an address that can't be had; [`Error::ThreadRefused`] at a limit of
    /// threads.
    pub fn start(
        pipeline: Pipeline,
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
        let wanted = address.to_string();
        let io = |source| Error::Io { doing: "listen on", path: wanted.clone().into(), source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io)?;
        let listener = TcpListener::bind(address).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        let epochs = Arc::new(Epochs::new(pipeline, inputs, options.clone()));
        let (stop, stopped) = oneshot::channel();
        let service = Service::new(Arc::clone(&epochs));
        let run = move || {
            let served = runtime.block_on(serve(listener, service, stopped));
            // Drops every connection, and with them the receivers of all feeds under way.
            drop(runtime);
            served
        };
        let thread = std::thread::Builder::new().name("embank-flight".to_owned()).spawn(run);
        let refused = |source| Error::ThreadRefused { thread: "server", source };
        let thread = Some(thread.map_err(refused)?);
        Ok(Self { address, epochs, stop: Some(stop), thread })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it serves no more, which is when something failed.
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

    /// Ends all connections and the feed under way, if there is one, and gives the pipeline back.
    ///
    /// # Errors
    /// [`Error::Panicked`]: then there is no pipeline any more.
    pub fn stop(mut self) -> Result<Pipeline> {
        self.end();
        self.epochs.end().ok_or_else(|| Error::Panicked("that of the feed".to_owned()))
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            // If the server does not receive it, the server has ended.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // A failure has no bearing on what is given back.
            let _ = thread.join();
        }
    }
}

impl Drop for FlightServer {
    fn drop(&mut self) {
        self.end();
        drop(self.epochs.end());
    }
}

/// Serves until told to stop.
async fn serve(
    listener: TcpListener,
    service: Service,
    stopped: oneshot::Receiver<()>,
) -> std::result::Result<(), tonic::transport::Error> {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(_) => unreachable!("it does not block, and this is in a runtime"),
    };
    // Ends of messages go out at once.
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
        // An error is that the server was dropped.
        _ = stopped => Ok(()),
    }
}
