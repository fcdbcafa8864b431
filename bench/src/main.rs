//! `embank-bench`: measurements that check their answers and stand beside a limit of the machine.
//!
//! Every subcommand prints the machine, the commit and its own command line, then a table with the
//! median and the spread, and takes `--json`, `--markdown` and `--plot FILE` for the same figures.
//! `cargo xtask bench` is the front door.
//!
//! A further subcommand is a module with an `Args` and a `run`, and one line in [`Command`].

mod ground;
mod measure;

use clap::{Parser, Subcommand};

use measure::drive::{checkpoint, checksum_cost, damage, out_of_core, recovery, roofline};
use measure::store::{batch_get, cache_policy, footprint, growth, in_memory, mechanisms, scaling};
use measure::store::{single_op, soak, staleness_cost};
use measure::{pipeline, serving};

/// Measurements of Embank beside the machine's own limits.
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
    /// The Rust side of `bench/python/store/overhead.py`, which starts it: batches on demand, timed
    /// one by one
    BatchGet(batch_get::Args),
    /// Rows/s of get, get + put and peek in memory, beside bare loops over the same memory
    InMemory(in_memory::Args),
    /// One key a call: reads, peeks, half updates; uniform and Zipf; beside another store's figures
    SingleOp(single_op::Args),
    /// Two threads against one in memory, beside how the bare loops scale
    Scaling(scaling::Args),
    /// Everything at once for an hour, against a model: no wrong answer, memory, space, stalls
    Soak(soak::Args),
    /// Tables larger than memory, beside other stores and the drive's own limit
    OutOfCore(out_of_core::Args),
    /// Index bytes a row and bytes written to disk for each row loaded or updated
    Footprint(footprint::Args),
    /// How long a batch of inserts takes at most while the index grows under it
    Growth(growth::Args),
    /// What a checkpoint costs the batches that go on meanwhile, and the bytes that it writes
    Checkpoint(checkpoint::Args),
    /// What verifying every row that comes from disk takes of the throughput
    ChecksumCost(checksum_cost::Args),
    /// Seconds to open a bank, after one checkpoint and after many
    Recovery(recovery::Args),
    /// Latencies of a bank that is open read-only, alone and beside a process that trains it
    Serving(serving::Args),
    /// The process that trains, which `serving` starts
    #[command(hide = true)]
    ServingWriter,
    /// The share of peeks that the row cache serves, beside the ideal and simple policies
    CachePolicy(cache_policy::Args),
    /// Single bits flipped and files cut, one at a time: reported, never data, and what repair
    /// brings back
    Damage(damage::Args),
    /// The staleness clock moved against left alone: gets and puts, uniform and Zipf
    StalenessCost(staleness_cost::Args),
    /// What each mechanism gains that decides which rows are in memory: one off at a time
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
