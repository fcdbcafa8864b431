//! `embank`: looks at banks, verifies, dumps, copies, compacts and repairs them, evicts rows, and
//! plans new ones; runs pipelines over raw rows, and checks record files.
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
mod records;
mod repair;
mod reshard;
mod rollback;
#[cfg(feature = "flight")]
mod serve;
mod sets;
mod stat;
mod verify;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Looks at Embank banks, verifies, dumps, compacts and repairs them
///
/// A bank is a directory with a file BANK. `compact`, `import`, `evict`, `rollback`, `apply-delta`
/// and `pipeline run --bank` write a bank. All other subcommands change no byte of it, and work
/// while another process has it open. They show kept checkpoints, never changes after the newest
/// one.
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
    /// Prints what a bank holds: tables, rows, bytes, checkpoints, log, space amplification
    Stat(stat::Args),
    /// Checks every byte that the checkpoints of a bank or of a fleet rely on, and lists all damage
    ///
    /// Checks every page and record of the log, each entry of the index against the log, row
    /// counts, blob, manifest and BANK. Goes on after damage and lists all of it. Changes nothing
    /// and takes no lock. If another process writes the bank meanwhile, the result covers the
    /// checkpoints that are still kept at the end. Of a fleet, checks the bank of each shard, and
    /// then the sets.
    Verify(verify::Args),
    /// Lists the kept checkpoints
    Checkpoints(checkpoints::Args),
    /// Gives space back: moves current rows together and takes a checkpoint
    ///
    /// Opens the bank for writing, moves all current rows to the log's end, and takes a checkpoint
    /// with the blob of the newest checkpoint. Older kept checkpoints hold the space that they name
    /// until they are removed. With --keep 1 they are removed at once.
    Compact(compact::Args),
    /// Copies a checkpoint to a new bank; works while another process writes the bank
    ///
    /// On the file system of the bank, the copy shares the files that never change (hard links), so
    /// it takes seconds and little space. Bank and copy are independent afterwards. To another file
    /// system the command copies every file.
    Copy(copy::Args),
    /// Writes the changes between two checkpoints to a file; works while another process writes the
    /// bank
    ///
    /// `apply-delta` applies the file to a copy of the bank (`embank copy`) at the older
    /// checkpoint.
    ExportDelta(delta::ExportArgs),
    /// Brings a copy of a bank to the newer checkpoint of a delta
    ///
    /// The delta must follow the copy's newest checkpoint. No process may have the copy open for
    /// writing; processes that read it stay at their checkpoint until they refresh. After an error
    /// the copy is at its old checkpoint, or at the new one if only the last sync failed.
    ApplyDelta(delta::ApplyArgs),
    /// Prints rows of a table, as a checkpoint holds them
    ///
    /// Prints rows of embedding tables as numbers, and other values as hexadecimal digits. Rows
    /// come in no particular order. With --key they come in the order of the keys on the command
    /// line.
    Dump(dump::Args),
    /// Writes a table to a safetensors, npy or Parquet file; works while another process writes the
    /// bank
    ///
    /// Writes the table as a checkpoint holds it, in constant memory. The file gets its name when
    /// it is complete and on stable storage. It keeps the mode of a file that it replaces. If the
    /// path is a link, the command writes to the link's target. With --format parquet and `-`, the
    /// rows go to standard output and the report to standard error. docs/export.md describes the
    /// content of the files.
    Export(export::Args),
    /// Puts the rows of a file into a table, and takes a checkpoint with the newest one's blob
    ///
    /// Reads files that `export` wrote, and matrices of other programs. If a file has no keys, its
    /// row i is the row of key i. If it has something else that may be its keys, name that with
    /// --keys, or give --first-key. An imported row replaces the row of its key in the table.
    Import(import::Args),
    /// Deletes old, rare or small rows of a table, and takes a checkpoint with the newest one's
    /// blob
    ///
    /// Deletes the rows that meet every given condition. No other process may have the bank open,
    /// except with --dry-run. The checkpoint before the deletion stays; a `rollback` to it brings
    /// the rows back.
    Evict(evict::Args),
    /// Brings every intact row of a damaged bank into a new one, and says what was lost
    ///
    /// Takes the rows of the newest checkpoint whose manifest or index is whole. If its index is
    /// damaged, finds them by the log alone. All rows on undamaged pages come back. The damaged
    /// bank stays as it is. Exit status 1 if anything was damaged, although the new bank is then
    /// good.
    Repair(repair::Args),
    /// Makes a fleet of another number of shards
    ///
    /// Copies the newest complete set, with optimizer state, tracking and vocabularies. All shards
    /// must be on this machine. The old fleet stays as it is, and may be trained meanwhile.
    Reshard(reshard::Args),
    /// Lists the sets of a fleet: one checkpoint of each shard, and whether all are there
    Sets(sets::Args),
    /// Goes back to an older checkpoint for good: removes all newer checkpoints
    ///
    /// No process may have the bank open for writing, or read a newer checkpoint. The command first
    /// makes sure that the checkpoint opens; `verify --checkpoint` reads every page of it. Without
    /// --yes the command changes nothing.
    Rollback(rollback::Args),
    /// Turns files of raw rows into files of tensors, by a pipeline that a JSON file describes
    Pipeline(pipeline::Args),
    /// Looks at record files, which hold preprocessed rows, and checks them
    Records(records::Args),
    /// Serves a pipeline's batches over Arrow Flight, to a trainer in another process or on another
    /// machine
    ///
    /// Prints `serving at grpc://ADDRESS:PORT` and serves until it is ended (Ctrl-C). A client's
    /// do_get is an epoch, or a part of one that several clients share: batches of --batch-rows
    /// rows, sent no faster than the clients take them. Epochs with one seed have the same batches.
    /// The server serves one epoch at a time. Vocabularies keep their values from epoch to epoch.
    /// There is no authentication and no encryption.
    #[cfg(feature = "flight")]
    Serve(serve::Args),
    /// Estimates memory, disk space, checkpoint size and drive life of a table before it is made
    ///
    /// Uses the formulas of docs/architecture.md. The output says which numbers were measured and
    /// where. With --shards, prints what each shard of a fleet needs.
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
        Command::Reshard(args) => reshard::run(&args),
        Command::Sets(args) => sets::run(&args),
        Command::Rollback(args) => rollback::run(&args),
        Command::Pipeline(args) => pipeline::run(&args),
        Command::Records(args) => records::run(&args),
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
