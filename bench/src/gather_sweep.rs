//! `gather`: the bare gather loop alone, over prefetch distances, with huge pages and without.
//!
//! Estimate, written before measuring: a dependent miss costs about 100 ns, and a core keeps 12 to 16
//! misses in flight once they are prefetched, so 64-byte rows should come at 100 / 14 ~ 7 ns at the
//! very best and at 40 to 60 ns where the memory is shared with other guests: 17 to 26 million rows/s.
//! With 4 KiB pages every row also misses the TLB, whose page walk goes to memory too: about half.
//! A machine whose last-level cache holds most of the table does better than memory: 60 million
//! rows/s were measured where 480 MiB of cache stood before a table of 610 MiB.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use indicatif::ProgressBar;

use crate::contenders::Gather;
use crate::gather::{DISTANCES, Pages, RowTable, huge_page_bytes};
use crate::report::{self, Row};
use crate::rounds::{Contender, Plan, alternate};

/// Options of `gather`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows of the table
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Columns (f32) of a row
    #[arg(long, default_value_t = 16)]
    dim: usize,
    /// Rows of a batch
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    /// Threads, each with its own share of the rows
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Measured rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seed of the row numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the figures to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A rough answer within a minute: 1 million rows, 3 rounds
    #[arg(long)]
    quick: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// Options that do not fit together, no memory, a wrong answer.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.dim > 0 && args.batch > 0 && args.threads > 0, "sizes must be positive");
    let (rows, rounds) =
        if args.quick { (args.rows.min(1_000_000), 3) } else { (args.rows, args.rounds) };
    let plan = Plan {
        rows,
        dim: args.dim,
        batch: args.batch,
        threads: args.threads,
        rounds,
        batches: (rows as usize / args.batch / args.threads).max(1),
        warm_up_batches: 64,
        seed: args.seed,
    };
    report::print_provenance();
    let mut figures = Vec::new();
    for (pages, label) in [(Pages::Huge, "huge pages"), (Pages::Small, "4 KiB pages")] {
        let table = RowTable::filled(rows as usize, args.dim, pages)?;
        if let Some(bytes) = huge_page_bytes() {
            println!("{label}: {} MiB of this process lie in huge pages", bytes >> 20);
        }
        let loops: Vec<Gather<'_>> = DISTANCES
            .iter()
            .map(|&distance| Gather { name: "gather", table: &table, distance })
            .collect();
        let contenders: Vec<&dyn Contender> = loops.iter().map(|g| g as &dyn Contender).collect();
        let spreads = alternate(&plan, &contenders, &ProgressBar::hidden())?;
        for (distance, spread) in DISTANCES.iter().zip(spreads) {
            let name = match distance {
                0 => format!("gather, {label}, no prefetch"),
                _ => format!("gather, {label}, prefetch {distance} ahead"),
            };
            figures.push(Row::rate(name, spread));
        }
    }
    report::print_table(&figures);
    if let Some(path) = &args.json {
        report::write_json(path, &figures)?;
    }
    Ok(())
}
