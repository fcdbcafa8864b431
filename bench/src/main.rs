//! `embank-bench`: measurements that check their answers and compare the results with a limit of
//! the machine.
//!
//! Every subcommand prints the machine, the commit, its command line, and a table with the median
//! and the spread. `--json`, `--markdown` and `--plot FILE` write these figures to a file. Users
//! start a measurement by `cargo xtask bench`.
//!
//! # Where to look
//!
//! | folder or file | what is there |
//! |---|---|
//! | `ground/` | what the measurements share: data, bare loops, contenders, rounds, reports |
//! | `measure/store/` | tables and the store in memory, index growth, cache policy, mechanisms, the soak |
//! | `measure/cold/` | a cold tier: its processor time and memory, and what RocksDB writes |
//! | `measure/drive/` | the drive, tables larger than memory, checkpoints, opening, damage |
//! | `measure/serving/` | a read-only bank beside a process that trains it |
//! | `measure/pipeline/` | preprocessing |
//! | `../python/` | measurements of training, and those beside Python libraries |
//! | `../results/` | the newest results, from which `docs/benchmarks.md` is made |
//!
//! A new subcommand is a module with an `Args` and a `run`, and one line in [`Command`].

mod ground;
mod measure;

use clap::{Parser, Subcommand};

use measure::cold;
use measure::drive::{checkpoint, checksum_cost, damage, out_of_core, recovery, roofline};
use measure::store::{batch_get, cache_policy, footprint, growth, in_memory, mechanisms, scaling};
use measure::store::{single_op, soak, staleness_cost};
use measure::{pipeline, serving};

/// Measurements of Embank beside the limits of the machine.
#[derive(Debug, Parser)]
#[command(name = "embank-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What memory and drive can do without a store: random gathers, reads and writes
    Roofline(roofline::Args),
    /// The Rust side of `bench/python/store/overhead.py`, which starts it: times one batch after
    /// another on request
    BatchGet(batch_get::Args),
    /// Rows/s of get, get + put and peek in memory, beside bare loops over the same memory
    InMemory(in_memory::Args),
    /// Calls with one key each: reads, peeks, half updates; uniform and Zipf; beside the figures of
    /// another store
    SingleOp(single_op::Args),
    /// Two threads against one in memory, beside two threads of the bare loops
    Scaling(scaling::Args),
    /// An hour of all operations at once, checked against a model: wrong answers, memory, space,
    /// stalls
    Soak(soak::Args),
    /// Tables larger than memory, beside other stores and the drive's own limit
    OutOfCore(out_of_core::Args),
    /// A cold tier without an index entry for each row: bytes that RocksDB writes for each changed
    /// row, and nanoseconds of a prototype
    Cold(cold::Args),
    /// Index bytes a row and bytes written to disk for each row loaded or updated
    Footprint(footprint::Args),
    /// The longest batch of inserts while the index grows
    Growth(growth::Args),
    /// What a checkpoint costs the batches beside it, and the bytes that it writes
    Checkpoint(checkpoint::Args),
    /// What the checksums of rows read from disk cost
    ChecksumCost(checksum_cost::Args),
    /// Seconds to open a bank, after one checkpoint and after many
    Recovery(recovery::Args),
    /// Latencies of a bank that is open read-only, alone and beside a process that trains it
    Serving(serving::Args),
    /// The process that trains, which `serving` starts
    #[command(hide = true)]
    ServingWriter,
    /// The share of peeks that the read cache serves, beside the ideal and simple policies
    CachePolicy(cache_policy::Args),
    /// Files with one bit flipped or cut short: the damage is reported, and repair brings back the
    /// rest
    Damage(damage::Args),
    /// The cost of the staleness clock: gets and puts that move it against ones that do not
    StalenessCost(staleness_cost::Args),
    /// The gain of each mechanism that keeps rows in memory: one turned off at a time
    Mechanisms(mechanisms::Args),
    /// Preprocessing: rows/s from text and packed rows, threads
    Pipeline(pipeline::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Roofline(args) => roofline::run(args),
        Command::BatchGet(args) => batch_get::run(args),
        Command::InMemory(args) => in_memory::run(args),
        Command::SingleOp(args) => single_op::run(args),
        Command::Scaling(args) => scaling::run(args),
        Command::Soak(args) => soak::run(args),
        Command::OutOfCore(args) => out_of_core::run(args),
        Command::Cold(args) => cold::run(args),
        Command::Footprint(args) => footprint::run(args),
        Command::Growth(args) => growth::run(args),
        Command::Checkpoint(args) => checkpoint::run(args),
        Command::ChecksumCost(args) => checksum_cost::run(args),
        Command::Recovery(args) => recovery::run(args),
        Command::Serving(args) => serving::run(args),
        Command::ServingWriter => serving::write(),
        Command::CachePolicy(args) => cache_policy::run(args),
        Command::Damage(args) => damage::run(args),
        Command::StalenessCost(args) => staleness_cost::run(args),
        Command::Mechanisms(args) => mechanisms::run(args),
        Command::Pipeline(args) => pipeline::run(args),
    }
}
