//! `cold`: rows at rest without an index entry, beside RocksDB.
//!
//! This program measures what the cold tier costs, and what could refute its design. Each part of
//! `--part` stands alone:
//!
//! - `processor`: the store's own filters, blocks and merges, in memory, and a prototype of the
//!   sort buffer. With `--base-keys 214000000 --run-keys 5733333 --count 1` it has the 300 million
//!   rows of the design's first check.
//! - `tier`: a store in two tiers: memory, reads, processor time, bytes written and space for each
//!   row.
//! - `rocksdb`: the bytes that RocksDB and Embank write to disk for each changed row, at equal
//!   budgets. It builds `embank-ycsb` with its peers, as `out-of-core` does.

mod processor;
mod rows;
mod sort;
mod tier;
mod written;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::ground::options::Common;
use crate::ground::report::{Row, print_provenance};

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Nanoseconds of filters, blocks, sorts and merges
    Processor,
    /// A store in two tiers, with many more rows than memory
    Tier,
    /// Bytes that RocksDB and Embank write for each changed row
    Rocksdb,
}

/// Options of `cold`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With --quick, within two minutes: a tenth of the rows in memory, 3 rounds; rows of \
                        64 bytes at 10 times a budget of 4 MiB"
)]
pub(crate) struct Args {
    /// Parts, each measured by itself
    #[arg(long, value_enum, value_delimiter = ',', default_value = "processor,tier,rocksdb")]
    part: Vec<Part>,
    #[command(flatten)]
    processor: processor::Sizes,
    #[command(flatten)]
    tier: tier::Tier,
    #[command(flatten)]
    written: written::Stores,
    #[command(flatten)]
    common: Common,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, a store fails, or an answer is wrong.
pub(crate) fn run(mut args: Args) -> Result<()> {
    ensure!(!args.part.is_empty(), "--part names nothing to measure");
    if args.common.quick {
        args.processor.quicken();
        args.tier.quicken();
        args.written.quicken();
    }
    print_provenance();
    let mut figures: Vec<Row> = Vec::new();
    if args.part.contains(&Part::Processor) {
        processor::measure(&args.processor, args.common.seed, &mut figures)?;
    }
    if args.part.contains(&Part::Tier) {
        tier::measure(&args.tier, &args.common, &mut figures)?;
    }
    if args.part.contains(&Part::Rocksdb) {
        written::measure(&args.written, &args.common, &mut figures)?;
    }
    args.common.output.publish("The cold tier", &figures)
}
