//! `scaling`: two threads against one, in memory, compared with how the machine's memory scales.
//!
//! This runs `in-memory` for the store alone. A figure is the rate of a contender with two threads
//! divided by its rate with one thread. Each figure is compared with that of the plain gather.
//!
//! Estimate, written before measuring. The threads share only the counters (once for each batch)
//! and the epoch (once for each chunk), so the store scales as the bare loops do. The ratio is 1.9
//! while memory bandwidth allows it. It is less for 512-byte rows if one core alone nearly uses all
//! bandwidth. On two virtual processors of one physical core, both the store and the loops scale
//! badly.

use anyhow::{Result, ensure};

use crate::ground::report::Output;
use crate::measure::store::in_memory::{self, Level};

/// Options of `scaling`.
#[derive(Debug, clap::Args)]
// Clap would name the group of this struct like that of `in_memory::Args`, which it contains.
#[group(skip)]
pub(crate) struct Args {
    #[command(flatten)]
    in_memory: in_memory::Args,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails as [`in_memory::measure`] does. Also fails if `--threads` does not begin with 1 or has no
/// second number, or if `--threads-a-batch` is given.
pub(crate) fn run(Args { mut in_memory }: Args) -> Result<()> {
    in_memory.large_rows = 0;
    in_memory.only.get_or_insert(Level::Store);
    ensure!(
        in_memory.threads_a_batch.is_empty(),
        "--threads-a-batch belongs to in-memory: this measurement is about calling threads"
    );
    ensure!(
        in_memory.threads.threads.first() == Some(&1) && in_memory.threads.threads.len() > 1,
        "--threads must begin with 1 and name another number, as in 1,2"
    );
    let output: Output = in_memory.common.output.clone();
    let figures = in_memory::measure(in_memory)?;
    output.publish("Scaling", &figures)
}
