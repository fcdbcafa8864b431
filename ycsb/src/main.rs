//! `embank-ycsb`: the YCSB workloads over Embank and its peers, with the answers checked.
//!
//! `run` loads one store and measures it; `compare` measures several in turn and prints the ratios. See
//! `docs/ycsb.md`. Where to look: `workload`, `distribution`, `zipf` and `keyspace` for what is asked,
//! `content` for how answers are checked, `measure` for how time is taken, `engine` for the stores,
//! `compare` and `serve` for how they take turns.

mod compare;
mod content;
mod distribution;
mod engine;
mod keyspace;
mod measure;
mod options;
mod output;
mod process;
mod random;
mod report;
mod run;
mod serve;
mod stand;
#[cfg(test)]
mod tests;
mod workload;
mod zipf;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// YCSB workloads over Embank and its peers.
#[derive(Debug, Parser)]
#[command(name = "embank-ycsb", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Loads a store and keeps it, for `run --loaded`
    Load(run::LoadArgs),
    /// Loads a store and measures it
    Run(run::Args),
    /// Measures several stores in turn and prints the ratios
    Compare(compare::Args),
    /// One store of a comparison, led over standard input
    #[command(hide = true)]
    Serve,
}

fn main() -> ExitCode {
    output::exit_code(match Cli::parse().command {
        Command::Load(args) => run::load(&args),
        Command::Run(args) => run::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Serve => serve::run(),
    })
}
