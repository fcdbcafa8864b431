//! The program's subcommands.

mod crash_images;
mod faults;
mod fleet_kills;
mod open_files;
mod report;
mod store_kills;
mod strangers;

use clap::{Parser, Subcommand};

/// Tests what the store recovers after power cuts, kills and failed calls.
#[derive(Debug, Parser)]
#[command(name = "embank-crash", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Power cuts: opens what may be left of a bank, and compares its rows with its checkpoints
    CrashImages(crash_images::Args),
    /// Makes one system call after another go wrong, as on a disk that fails, fills up or lies, and
    /// checks the errors and the bank
    Faults(faults::Args),
    /// Kills the processes of a fleet (kill -9) at any moment of the set protocol, and checks that
    /// the fleet opens at its newest complete set with every row
    FleetKills(fleet_kills::Args),
    /// Trains a bank of thousands of segments in a process that may open few files, and whose free
    /// descriptors vanish now and then
    OpenFiles(open_files::Args),
    /// Kills a writer (kill -9) at random and at chosen moments, and checks every row after each
    /// kill
    StoreKills(store_kills::Args),
    /// Puts files, directories and links of other programs into a bank's folders, and checks every
    /// row and every other bank after each step
    Strangers(strangers::Args),
    /// A process that `fleet-kills` kills
    #[command(hide = true)]
    FleetWorker(fleet_kills::WorkerArgs),
    /// The writer that `store-kills` kills
    #[command(hide = true)]
    Writer(store_kills::WriterArgs),
}

/// Runs the subcommand that the command line names.
pub(crate) fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::CrashImages(args) => crash_images::run(&args),
        Command::Faults(args) => faults::run(&args),
        Command::FleetKills(args) => fleet_kills::run(&args),
        Command::FleetWorker(args) => fleet_kills::worker(&args),
        Command::OpenFiles(args) => open_files::run(&args),
        Command::StoreKills(args) => store_kills::run(&args),
        Command::Strangers(args) => strangers::run(&args),
        Command::Writer(args) => store_kills::write(&args),
    }
}
