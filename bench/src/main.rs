//! `embank-bench`: measurements that check their answers and stand beside a limit of the machine.
//!
//! Every subcommand prints the machine, the commit and its own command line, then a table with the
//! median and the spread, and takes `--json FILE` for the same figures as rows. `cargo xtask bench`
//! is the front door.
//!
//! A further subcommand is a module with an `Args` and a `run`, and one line in [`Command`].

mod contenders;
mod content;
mod gather;
mod gather_sweep;
mod in_memory;
mod report;
mod rounds;

use clap::{Parser, Subcommand};

/// Measurements of Embank beside the machine's own limits.
#[derive(Debug, Parser)]
#[command(name = "embank-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Rows/s of get, get + put and peek in memory, beside a bare random-gather loop
    InMemory(in_memory::Args),
    /// The bare random-gather loop alone: prefetch distances, with and without huge pages
    Gather(gather_sweep::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::InMemory(args) => in_memory::run(&args),
        Command::Gather(args) => gather_sweep::run(&args),
    }
}
