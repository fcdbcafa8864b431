//! `batch-get`: the Rust part of a measurement of what a batch get costs from Python.
//! `bench/python/store/overhead.py` starts it.
//!
//! Two programs, each with its own table of equal rows, take turns on the same keys. This program
//! calls the crate, and `overhead.py` calls the Python package. `overhead.py` writes a line to this
//! program's standard input, `get 50` or `peek 50`. This program then makes that number of calls,
//! and answers with a line that has the nanoseconds of each call. It writes all rows to one buffer
//! that it keeps for the whole run, as a caller in Rust does. The time of a get includes the
//! release of its lease, as in Python.
//!
//! A loop inside the Python extension would need no second program. But then every wheel would have
//! code that only this measurement uses.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use embank::{Bank, BankOptions, Missing, Table, TableConfig};

/// Options of `batch-get`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows of the table
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Columns (f32) of a row
    #[arg(long, default_value_t = 16)]
    dim: u32,
    /// Keys of a batch
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    /// Number of different batches
    #[arg(long, default_value_t = 64)]
    batches: usize,
    /// Seed of the keys
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Memory of the bank, in bytes
    #[arg(long, default_value_t = 1 << 29)]
    memory_budget_bytes: u64,
    /// Folder of the bank; it must not exist yet
    #[arg(long, value_name = "DIR")]
    directory: PathBuf,
}

/// Loads the table, prints "ready", and answers until standard input ends.
///
/// # Errors
/// The bank can't be made, or a line is neither `get N` nor `peek N`.
pub(crate) fn run(args: Args) -> Result<()> {
    let options =
        BankOptions { memory_budget_bytes: args.memory_budget_bytes, ..BankOptions::default() };
    let bank = Bank::open(&args.directory, options)?;
    let table = bank.table("item", TableConfig::new(args.dim))?;
    let dim = args.dim as usize;
    let every: Vec<u64> = (0..args.rows).collect();
    let mut rows = vec![0.0; args.batch * dim];
    for keys in every.chunks(args.batch) {
        table.get(keys, &mut rows[..keys.len() * dim])?.release()?;
    }
    let batches: Vec<Vec<u64>> = (0..args.batches)
        .map(|number| keys_of(args.seed, number * args.batch, args.batch, args.rows))
        .collect();
    check(&table, &batches[0], &mut rows)?;

    let mut output = io::stdout().lock();
    writeln!(output, "ready")?;
    output.flush()?;
    let mut turn = 0;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (what, count) = line.split_once(' ').context("a line is `get N` or `peek N`")?;
        let mut times = Vec::new();
        for _ in 0..count.parse::<usize>().context("calls must be a number")? {
            let keys = &batches[turn % batches.len()];
            turn += 1;
            let started = Instant::now();
            match what {
                "get" => table.get(keys, &mut rows)?.release()?,
                "peek" => drop(table.peek(keys, &mut rows, Missing::Initial)?),
                _ => bail!("{what:?} is neither get nor peek"),
            }
            times.push(started.elapsed().as_nanos().to_string());
        }
        writeln!(output, "{}", times.join(" "))?;
        output.flush()?;
    }
    Ok(())
}

/// Uniform keys. `overhead.py` computes the same keys.
fn keys_of(seed: u64, first: usize, count: usize, rows: u64) -> Vec<u64> {
    (first..first + count)
        .map(|place| {
            let mut mixed = (seed << 32).wrapping_add(place as u64 + 1).wrapping_mul(GOLDEN);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % rows
        })
        .collect()
}

/// The increment of splitmix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Checks that the timed calls give the right rows.
fn check(table: &Table, keys: &[u64], rows: &mut [f32]) -> Result<()> {
    let mut wanted = vec![0.0; rows.len()];
    table.initial(keys, &mut wanted)?;
    table.get(keys, rows)?.release()?;
    ensure!(rows == wanted, "a get gave other rows than those that were made");
    ensure!(table.outstanding(keys[0])? == Some(0), "a lease was not given back");
    Ok(())
}
