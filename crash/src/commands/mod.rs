//! The program's subcommands.

mod crash_images;
mod faults;
mod report;
mod store_kills;

use clap::{Parser, Subcommand};

/// What the store recovers to after power cuts and kills.
#[derive(Debug, Parser)]
#[command(name = "embank-crash", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Power cuts: what may be left of a bank, opened and held against what its checkpoints held
    CrashImages(crash_images::Args),
    /// Calls that go wrong one by one, as those of a disk that fails, fills up or lies: errors, and
    /// what is left
    Faults(faults::Args),
    /// kill -9 of a writer at random and at chosen moments: every row after it, against an oracle
    StoreKills(store_kills::Args),
    /// The writer that `store-kills` kills
    #[command(hide = true)]
    Writer(store_kills::WriterArgs),
}

/// Runs the subcommand that the command line names.
pub(crate) fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::CrashImages(args) => crash_images::run(&args),
        Command::Faults(args) => faults::run(&args),
        Command::StoreKills(args) => store_kills::run(&args),
        Command::Writer(args) => store_kills::write(&args),
    }
}
