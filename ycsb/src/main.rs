//! `embank-ycsb`: runs the YCSB workloads on Embank and on other stores, its peers, and checks the
//! answers.
//!
//! `run` loads one store and measures it. `compare` measures several stores in turn and prints the
//! ratios. `written` measures the bytes that a store writes. See `docs/ycsb.md`.
//!
//! - `workload`, `distribution`, `zipf` and `keyspace` choose operations and rows.
//! - `content` makes the values of rows and checks answers.
//! - `measure`, `worker`, `pace` and `latency` make the calls and take their times.
//! - `data`, `work` and `core_properties` read options and YCSB's properties.
//! - `engine` has the stores. `compare` and `serve` let the stores take turns.

mod compare;
mod content;
mod core_properties;
mod data;
mod distribution;
mod engine;
mod json_file;
mod keyspace;
mod latency;
mod loaded;
mod measure;
mod output;
mod pace;
mod process;
mod properties;
mod quantity;
mod random;
mod report;
mod run;
mod serve;
mod stand;
#[cfg(test)]
mod tests;
mod work;
mod worker;
mod workload;
mod written;
mod zipf;

use anyhow::Context;
use clap::{Parser, Subcommand};

/// Runs YCSB workloads on Embank and on other stores.
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
    /// Changes rows until the bytes that a store writes for each change have settled; prints them
    Written(written::Args),
    /// Serves one store of a comparison; requests come over standard input
    #[command(hide = true)]
    Serve,
}

fn main() -> anyhow::Result<()> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => return tell(&told),
    };
    let mut out = output::Output::stdout();
    match cli.command {
        Command::Load(args) => run::load(&args, &mut out),
        Command::Run(args) => run::run(&args, &mut out),
        Command::Compare(args) => compare::run(&args, &mut out),
        Command::Written(args) => written::run(&args, &mut out),
        Command::Serve => serve::run(),
    }?;
    out.finish()
}

/// Prints a help text to standard output. If the arguments are wrong, prints the error to standard
/// error and ends the program.
///
/// # Errors
/// Returns an error if the help text could not be written, unless its reader closed the pipe.
fn tell(told: &clap::Error) -> anyhow::Result<()> {
    if told.use_stderr() {
        told.exit();
    }
    match told.print() {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        _ => Ok(()),
    }
}
