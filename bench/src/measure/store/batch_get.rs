//! `batch-get`: the Rust side of what Python's batch get costs; `bench/python/store/overhead.py`
//! starts it.
//!
//! Two programs, each with a table of its own of the same rows, take turns on the same keys: this
//! one calls the crate, the other one the package. A line on standard input, `get 50` or `peek 50`,
//! asks for so many calls, and a line of numbers answers, the nanoseconds of each. Rows go to one
//! buffer that lives as long as the program, as a caller in Rust would have it; a get's lease is
//! given back within the time, as in Python.
//!
//! A loop within the extension would spare the second process, and would be code that nobody but a
//! measurement needs, in every wheel.

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
    /// Batches that take turns
    #[arg(long, default_value_t = 64)]
    batches: usize,
    /// Seed of the keys
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Memory of the bank, in bytes
    #[arg(long, default_value_t = 1 << 29)]
    memory_budget_bytes: u64,
    /// Where the bank lies; it must not be there yet
    #[arg(long, value_name = "DIR")]
    directory: PathBuf,
}

/// Loads the table, says "ready", and answers until standard input ends.
///
/// # Errors
/// The bank can't be made, or a line is none of the two.
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

/// Uniform keys; `overhead.py` has the same function.
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

/// The timed calls give the rows that they should.
fn check(table: &Table, keys: &[u64], rows: &mut [f32]) -> Result<()> {
    let mut wanted = vec![0.0; rows.len()];
    table.initial(keys, &mut wanted)?;
    table.get(keys, rows)?.release()?;
    ensure!(rows == wanted, "a get gave other rows than those that were made");
    ensure!(table.outstanding(keys[0])? == Some(0), "a lease was not given back");
    Ok(())
}
