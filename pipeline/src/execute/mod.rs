//! Runs a plan over inputs.
//!
//! One pass, pipelined: every thread claims a chunk of whole lines, decodes it block by block, runs
//! the columns' kernels while the block is in the processor's cache, and looks values up in the
//! shared tables, without a lock. Values that have no id yet go into a list of the chunk. Then the
//! chunk is put down, and committed when all before it are ([`order`]): what is on the list is
//! given its ids, in the order of the rows, and the batch goes to the consumer. So ids and batches
//! are the same with any number of threads, and nothing is merged afterwards.
//!
//! [`mod@run`] starts the threads. A thread is a [`worker`]: it turns a chunk into blocks
//! ([`rows`]) and a block into rows of a batch ([`blocks`], [`write_out`]). What happens when a
//! chunk's turn comes is in [`commit`] and [`number`].

mod blocks;
mod commit;
mod concatenate;
mod consumer;
mod number;
mod order;
mod report;
mod rows;
mod run;
mod setup;
mod work;
mod worker;
mod write_out;

pub use consumer::Consumer;
pub use report::RunReport;

pub(crate) use commit::{BadRowLimit, CommitOptions, Committer};
pub(crate) use run::{Outcome, run};
pub(crate) use setup::Setup;
