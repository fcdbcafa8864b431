//! `embank serve`: serves a pipeline's batches over Arrow Flight.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use embank_pipeline::{FeedInput, FeedOptions, FlightOptions, FlightServer};

use crate::Ending;
use crate::output;
use crate::pipeline::{RowsArgs, open_bank, open_bank_to_read};

/// Options of `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    rows: RowsArgs,
    /// Where to listen; port 0 is any free port. Every client that reaches the address may take the
    /// batches
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Rows of a batch
    #[arg(long, value_name = "N", default_value_t = FeedOptions::default().batch_rows)]
    batch_rows: usize,
    /// Number of rows that wait in the shuffle buffer; 0 keeps the order of the input
    #[arg(long, value_name = "N", default_value_t = 0)]
    shuffle_rows: usize,
    /// Seed of the shuffle; a client may ask for another seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Leave out rows at the end that make no whole batch
    #[arg(long)]
    drop_last: bool,
    /// Batches that may be ready before they are asked for
    #[arg(long, value_name = "N", default_value_t = FeedOptions::default().batches_ahead)]
    batches_ahead: usize,
    /// Largest message, for clients that limit messages; a larger batch takes several [default: a
    /// batch is a message]
    #[arg(long, value_name = "SIZE", value_parser = output::parse_scaled)]
    message_bytes: Option<u64>,
    /// Look values up in the vocabularies of this bank, at its newest checkpoint; without --learn,
    /// insert nothing
    ///
    /// Without --learn, the server opens the bank read-only, also while a training run has the bank
    /// open. Without a bank, vocabularies are in memory and live as long as the process.
    #[arg(long, value_name = "DIR")]
    bank: Option<PathBuf>,
    /// With --bank: number new values in the bank's vocabularies; the server makes the bank if it
    /// does not exist
    ///
    /// A client gets a batch only when a checkpoint of the bank has the batch's values. So ids that
    /// a client has seen keep their values if the server is killed. Checkpoints have the blob of
    /// the newest checkpoint before the server. They take the place of older checkpoints that are
    /// not pinned.
    #[arg(long, requires = "bank")]
    learn: bool,
    /// With --bank: memory for index and pages; the command takes more if the bank needs it
    /// [default: 256MiB, or a quarter of the memory limit of the process's control group, if that
    /// is less]
    #[arg(long, value_name = "BYTES", value_parser = output::parse_scaled)]
    memory_budget: Option<u64>,
    /// Seconds that a client waits for the epoch of other clients to end; then the server refuses
    /// it. An epoch of several parts waits as long for a client of each part
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
}

/// Runs the subcommand until serving fails.
///
/// # Errors
/// Returns an error if the pipeline is invalid, an input is missing, or the address is not
/// available.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let open = |dir: &PathBuf| match args.learn {
        true => open_bank(dir, args.memory_budget, true),
        false => open_bank_to_read(dir, args.memory_budget),
    };
    let bank = args.bank.as_ref().map(open);
    let (pipeline, _) = args.rows.pipeline(bank.transpose()?.as_ref())?;
    let feed = FeedOptions {
        batch_rows: args.batch_rows,
        drop_last: args.drop_last,
        shuffle_rows: args.shuffle_rows,
        seed: args.seed,
        batches_ahead: args.batches_ahead,
        ..FeedOptions::default()
    };
    let message_bytes =
        args.message_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let wait = Duration::from_secs(args.wait);
    let options = FlightOptions { feed, message_bytes, wait, checkpoints: args.learn };
    let inputs = args.rows.inputs().map(FeedInput::from).collect();
    let server = FlightServer::start(pipeline, inputs, &args.listen, &options)?;
    // Scripts read this line to learn the port.
    output::print(&format!("serving at grpc://{}\n", server.address()));
    if !server.address().ip().is_loopback() {
        output::note(
            "note: everyone who reaches this address may take the batches, and sees them on the way\n",
        );
    }
    server.wait()?;
    Ok(Ending::Good)
}
