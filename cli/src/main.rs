//! `embank`: looks at banks, verifies, dumps, copies, compacts and repairs them, evicts rows, and
//! plans new ones; runs pipelines over raw rows.
//!
//! `embank_kv::inspect` and the store do the work. This program adds the command line, and prints
//! the results as text or JSON. A new subcommand needs a module with `Args` and `run`, a variant of
//! [`Command`], and a line in `run`.

mod checkpoints;
mod compact;
mod copy;
mod delta;
mod dump;
mod evict;
mod export;
mod import;
mod output;
mod pipeline;
mod plan;
mod repair;
mod rollback;
#[cfg(feature = "flight")]
mod serve;
mod stat;
mod verify;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Looks at Embank banks, verifies, dumps, compacts and repairs them
///
/// A bank is a directory with a file BANK. All subcommands but `compact`, `import`, `evict`,
/// `rollback` and `apply-delta` leave it as it is, to the byte, and work while another process has
/// it open; they show kept checkpoints, never what came after the newest.
///
/// Exit status: 0 if all is well, 1 if damage was found, 2 if the command could not run or standard
/// output could not be written. A closed pipe, as of `| head`, does not change the status.
#[derive(Debug, Parser)]
#[command(name = "embank", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What a bank holds: tables, rows, bytes, checkpoints, log, space amplification
    Stat(stat::Args),
    /// Checks every byte that a bank's checkpoints rely on, and lists all damage
    ///
    /// Every page and record of the log, each entry of the index against the log, row counts, blob,
    /// manifest and BANK are checked. Goes on after damage and lists all of it. Changes nothing
    /// and takes no lock: beside a writer it tells about the checkpoints that are still kept
    /// when it is done.
    Verify(verify::Args),
    /// Lists the kept checkpoints
    Checkpoints(checkpoints::Args),
    /// Gives space back: moves current rows together and takes a checkpoint
    ///
    /// Opens the bank for writing, moves all current rows to the log's end, and takes a checkpoint
    /// with the blob of the newest. Space that older kept checkpoints name comes back when they
    /// go: with --keep 1 that is at once.
    Compact(compact::Args),
    /// Makes a bank of its own out of a checkpoint, beside a process that writes the bank
    ///
    /// On one file system, files that never change are shared (hard links), so the copy takes
    /// seconds and little space; bank and copy are independent afterwards. To another file system
    /// everything is copied.
    Copy(copy::Args),
    /// Writes what lies between two checkpoints to a file, beside a process that writes the bank
    ///
    /// A copy of the bank (`embank copy`) that is at the first of them takes it with `apply-delta`.
    ExportDelta(delta::ExportArgs),
    /// Takes a copy of a bank to the checkpoint that a delta leads to
    ///
    /// The delta must follow the copy's newest checkpoint. No process may have the copy open for
    /// writing; processes that read it stay at their checkpoint until they refresh. After an error
    /// the copy is where it was, or at the new checkpoint if only the last sync failed.
    ApplyDelta(delta::ApplyArgs),
    /// Prints rows of a table, as a checkpoint holds them
    ///
    /// Rows of embedding tables are printed as numbers, other values as hexadecimal digits. Rows
    /// come in no particular order; keys that are asked for with --key come in that order.
    Dump(dump::Args),
    /// Writes a table to a file: safetensors, npy or Parquet, beside a process that writes the bank
    ///
    /// In constant memory, as a checkpoint holds the table. The file gets its name when it is
    /// complete and on stable storage; it keeps the mode of the one that it replaces, and a
    /// link is written through to its target. With --format parquet, `-` writes to standard
    /// output, and what would be printed goes to standard error. docs/export.md tells what lies
    /// where in it.
    Export(export::Args),
    /// Puts the rows of a file into a table, and takes a checkpoint with the blob of the newest
    ///
    /// Reads what `export` writes, and matrices that others made: row i is the row of key i, unless
    /// there are keys, or something that may be keys: then name it with --keys, or give
    /// --first-key. A row that is there is replaced.
    Import(import::Args),
    /// Deletes old, rare or small rows of a table, and takes a checkpoint with the blob of the
    /// newest
    ///
    /// Deletes the rows that meet every given condition. No other process may have the bank open,
    /// except with --dry-run. The checkpoint before stays: `rollback` to it brings the rows back.
    Evict(evict::Args),
    /// Brings every intact row of a damaged bank into a new one, and says what was lost
    ///
    /// Goes by the newest checkpoint whose manifest or index is whole, and by the log alone where
    /// the index is damaged. Rows on undamaged pages all come back. The damaged bank stays as
    /// it is. Exit status 1 if anything was damaged, though the new bank is then good.
    Repair(repair::Args),
    /// Goes back to an older checkpoint for good: removes all newer ones
    ///
    /// No process may have the bank open for writing, or read a newer checkpoint. The command first
    /// makes sure that the checkpoint opens; `verify --checkpoint` reads every page of it. Without
    /// --yes nothing is changed.
    Rollback(rollback::Args),
    /// Makes numbers of raw rows: text to files of tensors, by a pipeline that is written down as
    /// JSON
    Pipeline(pipeline::Args),
    /// Serves a pipeline's batches over Arrow Flight, to a trainer in another process or on another
    /// machine
    ///
    /// Prints `serving at grpc://ADDRESS:PORT` and serves until it is ended (Ctrl-C). A client's
    /// do_get is an epoch: batches of --batch-rows rows, the same for the same seed, no faster
    /// than the client takes them. One client at a time. Vocabularies go on from epoch to
    /// epoch. There is no authentication and no encryption.
    #[cfg(feature = "flight")]
    Serve(serve::Args),
    /// Memory, disk, checkpoint size and endurance of a table before it is made
    ///
    /// By the formulas of docs/architecture.md. The output says which numbers were measured and
    /// where.
    Plan(plan::Args),
}

/// How a subcommand ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// All is well.
    Good,
    /// The command finished its work and found damage.
    Damage,
}

fn main() -> ExitCode {
    output::exit_code(run(Cli::parse().command))
}

fn run(command: Command) -> Result<Ending> {
    match command {
        Command::Stat(args) => stat::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Checkpoints(args) => checkpoints::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Copy(args) => copy::run(&args),
        Command::ExportDelta(args) => delta::export(&args),
        Command::ApplyDelta(args) => delta::apply(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Evict(args) => evict::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::Rollback(args) => rollback::run(&args),
        Command::Pipeline(args) => pipeline::run(&args),
        #[cfg(feature = "flight")]
        Command::Serve(args) => serve::run(&args),
        Command::Plan(args) => plan::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
