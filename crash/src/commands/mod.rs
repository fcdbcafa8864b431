//! The program's subcommands.

mod crash_images;
mod report;

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
}

/// Runs the subcommand that the command line names.
pub(crate) fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::CrashImages(args) => crash_images::run(&args),
    }
}
