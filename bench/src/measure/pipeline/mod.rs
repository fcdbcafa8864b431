//! `pipeline`: the speed of preprocessing, compared with peers and with the machine's limits.

mod buffers;
mod cache;
mod device;
mod explain;
mod generate;
mod images;
mod parts;
mod python;
mod reference;
mod resume;
mod slow_drive;
mod speed;
mod vocabulary;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Subcommand;

use crate::ground::report::Output;

/// Options of `pipeline`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    /// Text in memory: rows/s with vocabularies of 5,000 and a million values a column, with each
    /// kind of instructions
    Utf8(Common),
    /// Packed rows in memory, beside copying the same bytes
    Binary(Common),
    /// Write the generated rows as text to a file, for measurements outside of this program
    #[command(hide = true)]
    Generate(GenerateArgs),
    /// Two threads against one, and beside a process that keeps a core busy
    Threads(Common),
    /// Feeds beside a run: rows/s, and page faults for each page of the batches
    Buffers(buffers::Args),
    /// Five pipelines, each with a slow stage: checks that the explanation names it and predicts
    /// the speed
    Explain(Common),
    /// Epochs over pictures whose arrays are kept in memory or on disk
    Cache(images::Args),
    /// Pictures through a simulated device that decodes beside the processor
    Device(device::Args),
    /// JPEGs to arrays, beside a bare loop over the same crates
    Images(images::Args),
    /// A feed that two consumers share, beside one consumer
    Parts(Common),
    /// A feed that resumes at 90% of a text: time to its first batch, beside the time of making the
    /// rows before it
    Resume(resume::Args),
    /// A bank's vocabulary of byte strings that is larger than memory: build, look up, reverse,
    /// verify, memory, disk
    Vocabulary(vocabulary::Args),
}

/// Options of `generate`.
#[derive(Debug, clap::Args)]
struct GenerateArgs {
    /// Rows
    #[arg(long)]
    rows: u64,
    /// Seed of the rows
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The file to write
    file: PathBuf,
}

/// Options of each measurement.
#[derive(Debug, clap::Args)]
struct Common {
    /// Rows of the generated input
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Rounds; the median counts
    #[arg(long = "count", default_value_t = 5)]
    rounds: usize,
    /// Seed of the input
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A rough answer within a minute: a million rows, three rounds
    #[arg(long)]
    quick: bool,
    /// Moduli of the categories, which bound the values of a vocabulary; the defaults are PIPER's
    #[arg(long, value_delimiter = ',', default_value = "5000,1000000")]
    moduli: Vec<u32>,
    /// KiB of a chunk, the part of the input that a thread works on at a time
    #[arg(long, default_value_t = 512)]
    chunk_kib: usize,
    /// Measure decoding without vector instructions too
    #[arg(long)]
    portable: bool,
    /// Before measuring, check every row against a simple reference
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    check: bool,
    /// Number of first rows that are also checked against a reference in Python
    /// (`bench/python/pipeline/reference.py`); 0 needs no python3
    #[arg(long, default_value_t = 20_000)]
    python_rows: u64,
    #[command(flatten)]
    output: Output,
}

impl Common {
    fn prepared(mut self) -> Result<Self> {
        if self.quick {
            (self.rows, self.rounds) = (self.rows.min(1_000_000), self.rounds.min(3));
        }
        ensure!(self.rows > 0 && self.rounds > 0, "--rows and --count must be positive");
        Ok(self)
    }
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if a row differs from the reference or the pipeline fails.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.measurement {
        Measurement::Generate(GenerateArgs { rows, seed, file }) => {
            let text = generate::rows(seed, rows, generate::write_text);
            std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
        }
        Measurement::Utf8(common) => speed::utf8(&common.prepared()?),
        Measurement::Binary(common) => speed::binary(&common.prepared()?),
        Measurement::Threads(common) => speed::threads(&common.prepared()?),
        Measurement::Buffers(args) => buffers::run(args),
        Measurement::Explain(common) => explain::run(&common.prepared()?),
        Measurement::Cache(args) => cache::run(args),
        Measurement::Device(args) => device::run(args),
        Measurement::Images(args) => images::run(args),
        Measurement::Parts(common) => parts::run(&common.prepared()?),
        Measurement::Resume(args) => resume::run(args),
        Measurement::Vocabulary(args) => vocabulary::run(args),
    }
}
