//! Runs a plan over inputs.
//!
//! A run is one pass with several threads. Each thread claims a chunk of complete lines and decodes
//! it block by block. It runs the kernels while the block is in the processor's cache, and looks
//! values up in the shared tables without a lock. Values without an id go into a list of the chunk.
//! The thread then hands the chunk over. When all chunks before it are committed, the chunk is
//! committed too ([`order`]). The commit gives ids to the listed values in the order of the rows,
//! and passes the batch to the consumer. Ids and batches therefore do not depend on the number of
//! threads, and nothing is merged afterwards.
//!
//! [`mod@run`] starts the threads. Each thread is a [`worker`]. It reads a chunk into blocks
//! ([`rows`]) and turns each block into rows of a batch ([`blocks`], [`write_out`]). Decoders make
//! arrays in between ([`offload`]). [`commit`] and [`number`] commit a chunk. The run of a feed
//! records where it can be resumed ([`place`]).

mod blocks;
mod commit;
mod concatenate;
mod consumer;
mod kept;
mod number;
mod offload;
mod order;
mod place;
mod report;
mod rows;
mod run;
mod setup;
mod work;
mod worker;
mod write_out;

pub use consumer::Consumer;
pub use place::FeedPlace;
pub use report::{ArrayReport, RunReport};

pub(crate) use commit::{BadRowLimit, CommitOptions, Committer, ROWS_BEFORE_SHARE};
pub(crate) use kept::{Holder, KeptRows};
pub(crate) use place::{PlaceRecorder, RunPlaces};
pub(crate) use run::{Outcome, run};
pub(crate) use setup::Setup;
