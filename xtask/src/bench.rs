//! `bench`: which program makes which measurement.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Subcommand;

use crate::PassedOn;
use crate::{command, environment, report, workspace};

/// Every measurement, one line each; `cargo xtask bench <name> --help` lists its options.
#[derive(Debug, Subcommand)]
pub(crate) enum Measurement {
    /// What memory and drive can do without a store: random gathers, reads and writes
    #[command(disable_help_flag = true)]
    Roofline(PassedOn),
    /// Rows/s of get, get + put and peek in memory, beside bare loops over the same memory
    #[command(disable_help_flag = true)]
    InMemory(PassedOn),
    /// One key a call: reads, peeks, half updates; uniform and Zipf; beside another store's figures
    #[command(disable_help_flag = true)]
    SingleOp(PassedOn),
    /// Two threads against one in memory, beside how the bare loops scale
    #[command(disable_help_flag = true)]
    Scaling(PassedOn),
    /// Everything at once for an hour, against a model: no wrong answer, memory, space, stalls
    #[command(disable_help_flag = true)]
    Soak(PassedOn),
    /// Tables larger than memory, beside other stores and the drive's own limit
    #[command(disable_help_flag = true)]
    OutOfCore(PassedOn),
    /// Index bytes a row and bytes written to disk for each row loaded or updated
    #[command(disable_help_flag = true)]
    Footprint(PassedOn),
    /// How long a batch of inserts takes at most while the index grows under it
    #[command(disable_help_flag = true)]
    Growth(PassedOn),
    /// What a checkpoint costs the batches that go on meanwhile, and the bytes that it writes
    #[command(disable_help_flag = true)]
    Checkpoint(PassedOn),
    /// What verifying every row that comes from disk takes of the throughput
    #[command(disable_help_flag = true)]
    ChecksumCost(PassedOn),
    /// Seconds to open a bank, after one checkpoint and after many
    #[command(disable_help_flag = true)]
    Recovery(PassedOn),
    /// Latencies of a bank that is open read-only, alone and beside a process that trains it
    #[command(disable_help_flag = true)]
    Serving(PassedOn),
    /// The share of peeks that the row cache serves, beside the ideal and simple policies
    #[command(disable_help_flag = true)]
    CachePolicy(PassedOn),
    /// Single bits flipped and files cut, one at a time: reported, never data, and what repair
    /// brings back
    #[command(disable_help_flag = true)]
    Damage(PassedOn),
    /// The staleness clock moved against left alone: gets and puts, uniform and Zipf
    #[command(disable_help_flag = true)]
    StalenessCost(PassedOn),
    /// What each mechanism gains that decides which rows are in memory: one off at a time
    #[command(disable_help_flag = true)]
    Mechanisms(PassedOn),
    /// Preprocessing: rows/s from text and packed rows, threads; beside Polars and Meta's script;
    /// feeding a trainer
    #[command(disable_help_flag = true)]
    Pipeline(PassedOn),
    /// Power cuts: what may be left of a bank, opened and held against what its checkpoints held
    #[command(disable_help_flag = true)]
    CrashImages(PassedOn),
    /// Calls that go wrong one by one, as those of a disk that fails, fills up or lies: errors, and
    /// what is left
    #[command(disable_help_flag = true)]
    Faults(PassedOn),
    /// kill -9 of a writer at random and at chosen moments: every row after it, against an oracle
    #[command(disable_help_flag = true)]
    StoreKills(PassedOn),
    /// Six models on real data beside in-memory torch, at a quarter of the tables: `training
    /// quality`
    #[command(disable_help_flag = true)]
    Quality(PassedOn),
    /// Training: quality, speed, staleness, lookahead, optimizers, dtypes, python, in-memory;
    /// without a name, clicks
    #[command(disable_help_flag = true)]
    Training(PassedOn),
    /// Resident memory against the budget, at tables of 1x, 4x and 16x the budget
    #[command(disable_help_flag = true)]
    Memory(PassedOn),
    /// kill -9 at random moments of a training run: every resume must end at the same AUC
    #[command(disable_help_flag = true)]
    Kills(PassedOn),
    /// Makes docs/benchmarks.md from the results in bench/results
    Report,
}

/// Becomes the measurement's program.
///
/// # Errors
/// Its environment can't be set up, or it can't be started.
pub(crate) fn run(measurement: Measurement) -> Result<ExitCode> {
    let root = workspace::root()?;
    match measurement {
        Measurement::Roofline(PassedOn { args }) => rust(&root, "roofline", &args),
        Measurement::InMemory(PassedOn { args }) => rust(&root, "in-memory", &args),
        Measurement::SingleOp(PassedOn { args }) => rust(&root, "single-op", &args),
        Measurement::Scaling(PassedOn { args }) => rust(&root, "scaling", &args),
        Measurement::Soak(PassedOn { args }) => rust(&root, "soak", &args),
        Measurement::OutOfCore(PassedOn { args }) => rust(&root, "out-of-core", &args),
        Measurement::Footprint(PassedOn { args }) => rust(&root, "footprint", &args),
        Measurement::Growth(PassedOn { args }) => rust(&root, "growth", &args),
        Measurement::Checkpoint(PassedOn { args }) => rust(&root, "checkpoint", &args),
        Measurement::ChecksumCost(PassedOn { args }) => rust(&root, "checksum-cost", &args),
        Measurement::Recovery(PassedOn { args }) => rust(&root, "recovery", &args),
        Measurement::Serving(PassedOn { args }) => rust(&root, "serving", &args),
        Measurement::CachePolicy(PassedOn { args }) => rust(&root, "cache-policy", &args),
        Measurement::Damage(PassedOn { args }) => rust(&root, "damage", &args),
        Measurement::StalenessCost(PassedOn { args }) => rust(&root, "staleness-cost", &args),
        Measurement::Mechanisms(PassedOn { args }) => rust(&root, "mechanisms", &args),
        Measurement::Pipeline(PassedOn { args }) => pipeline(&root, &args),
        Measurement::CrashImages(PassedOn { args }) => {
            rust_of(&root, "embank-crash", "crash-images", &args)
        }
        Measurement::Faults(PassedOn { args }) => rust_of(&root, "embank-crash", "faults", &args),
        Measurement::StoreKills(PassedOn { args }) => {
            rust_of(&root, "embank-crash", "store-kills", &args)
        }
        Measurement::Quality(PassedOn { args }) => python(&root, "training/quality", &args),
        Measurement::Training(PassedOn { args }) => python(&root, "training/training", &args),
        Measurement::Memory(PassedOn { args }) => python(&root, "store/memory", &args),
        Measurement::Kills(PassedOn { args }) => python(&root, "training/kills", &args),
        Measurement::Report => report::write(&root).map(|()| ExitCode::SUCCESS),
    }
}

/// `pipeline`: what stands beside Python libraries is a script, the rest in Rust.
fn pipeline(root: &Path, args: &[OsString]) -> Result<ExitCode> {
    match args.split_first() {
        Some((name, rest)) if name == "peers" => python(root, "pipeline/peers", rest),
        Some((name, rest)) if name == "feed" => {
            // The served half of it starts `target/release/embank`.
            let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.current_dir(root).args(["build", "--release", "--package", "embank-cli"]);
            command::shown(&mut cargo).context("building the program `embank`")?;
            python(root, "pipeline/feed", rest)
        }
        _ => rust(root, "pipeline", args),
    }
}

/// A subcommand of `embank-bench`, in release.
fn rust(root: &Path, name: &str, args: &[OsString]) -> Result<ExitCode> {
    rust_of(root, "embank-bench", name, args)
}

/// A subcommand of one of the workspace's programs, in release.
fn rust_of(root: &Path, package: &str, name: &str, args: &[OsString]) -> Result<ExitCode> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    command::become_program(
        Command::new(cargo)
            .current_dir(root)
            .args(["run", "--release", "--package", package, "--", name])
            .args(args),
    )
}

/// A script of `bench/python`, in the virtual environment. It imports what `ground` there holds.
fn python(root: &Path, name: &str, args: &[OsString]) -> Result<ExitCode> {
    let script = format!("bench/python/{name}.py");
    let python = environment::prepared(root, &format!("running {script}"))?;
    command::become_program(
        python
            .command(root)
            .env("PYTHONPATH", root.join("bench/python/ground"))
            .arg(root.join(script))
            .args(args),
    )
}
