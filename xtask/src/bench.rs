//! `bench`: starts the program of a measurement, and makes `docs/benchmarks.md`.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Subcommand;

use crate::PassedOn;
use crate::environment::Python;
use crate::{bench_all, command, environment, report, workspace};

/// Every measurement, one line each; `cargo xtask bench <name> --help` lists its options.
#[derive(Debug, Subcommand)]
pub(crate) enum Measurement {
    /// What memory and drive can do without a store: random gathers, reads and writes
    #[command(disable_help_flag = true)]
    Roofline(PassedOn),
    /// Rows/s of get, get + put and peek in memory, beside bare loops over the same memory
    #[command(disable_help_flag = true)]
    InMemory(PassedOn),
    /// Calls with one key each: reads, peeks, half updates; uniform and Zipf; beside the figures of
    /// another store
    #[command(disable_help_flag = true)]
    SingleOp(PassedOn),
    /// Two threads against one in memory, beside two threads of the bare loops
    #[command(disable_help_flag = true)]
    Scaling(PassedOn),
    /// An hour of all operations at once, checked against a model: wrong answers, memory, space,
    /// stalls
    #[command(disable_help_flag = true)]
    Soak(PassedOn),
    /// Tables larger than memory, beside other stores and the drive's own limit
    #[command(disable_help_flag = true)]
    OutOfCore(PassedOn),
    /// A cold tier without an index entry for each row: bytes that RocksDB writes for each changed
    /// row, and nanoseconds of a prototype
    #[command(disable_help_flag = true)]
    Cold(PassedOn),
    /// Index bytes a row and bytes written to disk for each row loaded or updated
    #[command(disable_help_flag = true)]
    Footprint(PassedOn),
    /// The longest batch of inserts while the index grows
    #[command(disable_help_flag = true)]
    Growth(PassedOn),
    /// What a checkpoint costs the batches beside it, and the bytes that it writes
    #[command(disable_help_flag = true)]
    Checkpoint(PassedOn),
    /// What the checksums of rows read from disk cost
    #[command(disable_help_flag = true)]
    ChecksumCost(PassedOn),
    /// Seconds to open a bank, after one checkpoint and after many
    #[command(disable_help_flag = true)]
    Recovery(PassedOn),
    /// Latencies of a bank that is open read-only, alone and beside a process that trains it
    #[command(disable_help_flag = true)]
    Serving(PassedOn),
    /// The share of peeks that the read cache serves, beside the ideal and simple policies
    #[command(disable_help_flag = true)]
    CachePolicy(PassedOn),
    /// Files with one bit flipped or cut short: the damage is reported, and repair brings back the
    /// rest
    #[command(disable_help_flag = true)]
    Damage(PassedOn),
    /// The cost of the staleness clock: gets and puts that move it against ones that do not
    #[command(disable_help_flag = true)]
    StalenessCost(PassedOn),
    /// The gain of each mechanism that keeps rows in memory: one turned off at a time
    #[command(disable_help_flag = true)]
    Mechanisms(PassedOn),
    /// Preprocessing: rows/s from text and packed rows, threads; beside Polars and Meta's script;
    /// feeding a training loop, and the memory of its batches; two workers of Ray and of Spark
    /// beside one
    #[command(disable_help_flag = true)]
    Pipeline(PassedOn),
    /// Power cuts: each possible state of the disk, opened and compared with the checkpoints
    #[command(disable_help_flag = true)]
    CrashImages(PassedOn),
    /// System calls that fail one at a time: a broken, full or lying disk; errors and what is left
    #[command(disable_help_flag = true)]
    Faults(PassedOn),
    /// A bank of thousands of segments in a process that may open few files
    #[command(disable_help_flag = true)]
    OpenFiles(PassedOn),
    /// kill -9 of a writer at random and at chosen moments: every row afterwards, against a model
    #[command(disable_help_flag = true)]
    StoreKills(PassedOn),
    /// kill -9 of the processes of a fleet: it opens at its newest complete set, with every row
    #[command(disable_help_flag = true)]
    FleetKills(PassedOn),
    /// Files, directories and links of other programs in a bank's folders: no checkpoint is lost
    #[command(disable_help_flag = true)]
    Strangers(PassedOn),
    /// Eight models on real data beside in-memory torch, at a quarter of the tables: `training
    /// quality`
    #[command(disable_help_flag = true)]
    Quality(PassedOn),
    /// Training: quality, speed, staleness, lookahead, pipelined, optimizers, dtypes, python,
    /// in-memory, busy, distributed, rank-kills, forecast, locality; without a name, clicks
    #[command(disable_help_flag = true)]
    Training(PassedOn),
    /// Resident memory against the budget, at tables of 1x, 4x and 16x the budget
    #[command(disable_help_flag = true)]
    Memory(PassedOn),
    /// kill -9 at random moments of a training run, and exceptions at random steps: every resume
    /// must end at the same AUC
    #[command(disable_help_flag = true)]
    Kills(PassedOn),
    /// Every measurement, one after the other: a night on an idle machine
    All(bench_all::Args),
    /// Makes docs/benchmarks.md from the results in bench/results
    Report,
}

/// Replaces this process by the measurement's program. `report` writes the page.
///
/// # Errors
/// Returns an error if the environment cannot be set up, the program cannot be started, or a file
/// of results is wrong.
pub(crate) fn run(measurement: Measurement) -> Result<ExitCode> {
    let root = workspace::root()?;
    match measurement {
        Measurement::Roofline(PassedOn { args }) => rust(&root, "roofline", &args),
        Measurement::InMemory(PassedOn { args }) => rust(&root, "in-memory", &args),
        Measurement::SingleOp(PassedOn { args }) => rust(&root, "single-op", &args),
        Measurement::Scaling(PassedOn { args }) => rust(&root, "scaling", &args),
        Measurement::Soak(PassedOn { args }) => rust(&root, "soak", &args),
        Measurement::OutOfCore(PassedOn { args }) => rust(&root, "out-of-core", &args),
        Measurement::Cold(PassedOn { args }) => rust(&root, "cold", &args),
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
        Measurement::OpenFiles(PassedOn { args }) => {
            rust_of(&root, "embank-crash", "open-files", &args)
        }
        Measurement::StoreKills(PassedOn { args }) => {
            rust_of(&root, "embank-crash", "store-kills", &args)
        }
        Measurement::FleetKills(PassedOn { args }) => {
            rust_of(&root, "embank-crash", "fleet-kills", &args)
        }
        Measurement::Strangers(PassedOn { args }) => {
            rust_of(&root, "embank-crash", "strangers", &args)
        }
        Measurement::Quality(PassedOn { args }) => python(&root, "training/quality", &args),
        Measurement::Training(PassedOn { args }) => python(&root, "training/training", &args),
        Measurement::Memory(PassedOn { args }) => python(&root, "store/memory", &args),
        Measurement::Kills(PassedOn { args }) => python(&root, "training/kills", &args),
        Measurement::All(args) => bench_all::run(&root, &args),
        Measurement::Report => report::write(&root).map(|()| ExitCode::SUCCESS),
    }
}

/// Runs `bench pipeline`. Comparisons with Python libraries are scripts; the other measurements are
/// in Rust.
fn pipeline(root: &Path, args: &[OsString]) -> Result<ExitCode> {
    match args.split_first() {
        Some((name, rest)) if name == "arrays" => python(root, "pipeline/arrays", rest),
        Some((name, rest)) if name == "peers" => python(root, "pipeline/peers", rest),
        Some((name, rest)) if name == "pictures" => python(root, "pipeline/pictures", rest),
        Some((name, rest)) if name == "feed" => python(root, "pipeline/feed", rest),
        Some((name, rest)) if name == "cluster" => on_engines(root, "pipeline/cluster", rest),
        _ => rust(root, "pipeline", args),
    }
}

/// Runs a subcommand of `embank-bench` in release mode.
fn rust(root: &Path, name: &str, args: &[OsString]) -> Result<ExitCode> {
    rust_of(root, "embank-bench", name, args)
}

/// Runs a subcommand of a program of the workspace in release mode.
fn rust_of(root: &Path, package: &str, name: &str, args: &[OsString]) -> Result<ExitCode> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    command::become_program(
        Command::new(cargo)
            .current_dir(root)
            .args(["run", "--release", "--package", package, "--", name])
            .args(args),
    )
}

/// Runs a script of `bench/python` in the virtual environment. The script can import the modules of
/// `bench/python/ground`.
fn python(root: &Path, name: &str, args: &[OsString]) -> Result<ExitCode> {
    let script = format!("bench/python/{name}.py");
    let python = environment::prepared(root, &format!("running {script}"))?;
    become_script(root, &python, &script, args)
}

/// Runs a script of `bench/python` as [`python`] does, in the environment of Ray and Spark.
fn on_engines(root: &Path, name: &str, args: &[OsString]) -> Result<ExitCode> {
    let script = format!("bench/python/{name}.py");
    let python = environment::prepared_with_engines(root, &format!("running {script}"))?;
    become_script(root, &python, &script, args)
}

fn become_script(
    root: &Path,
    python: &Python,
    script: &str,
    args: &[OsString],
) -> Result<ExitCode> {
    command::become_program(
        python
            .command(root)
            .env("PYTHONPATH", root.join("bench/python/ground"))
            .arg(root.join(script))
            .args(args),
    )
}
