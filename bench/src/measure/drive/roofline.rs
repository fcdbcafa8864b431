//! `roofline`: the limits of the machine, without a store.
//!
//! In memory, `roofline` measures:
//!
//! - random gathers of rows of 8 to 512 bytes by one and two threads, and of 64-byte rows also from
//!   4 KiB pages;
//! - the loop over an index and records, which is the limit of any store with a hash index
//!   ([`crate::ground::index_loop`]);
//! - the cost of a second cache line ([`crate::ground::page_cost`]).
//!
//! On the drive, `roofline` measures random and sequential reads and writes at several queue depths
//! ([`crate::ground::device_limit`]).
//!
//! Estimate, written before measuring. A dependent miss costs about 100 ns, and a core keeps 12 to
//! 16 misses in flight, so a random line takes 7 to 20 ns. If a large last-level cache holds much
//! of the table, rows of 8 and 64 bytes reach 50 to 60 million rows/s. A row of 512 bytes is eight
//! lines, which pass the fill buffers one after another: 50 to 80 ns, 6 to 10 GB/s. Behind an
//! index, a row touches two places and, for the header of 32 bytes, one more line. That gives half
//! of the gather's rate at 8 and 64 bytes, and 0.8 of it at 512. Without huge pages the rate is two
//! thirds. Two threads are twice as fast until memory bandwidth is the limit. The drive is virtual:
//! 10,000 reads a second at depth 1 and ten times as many at depth 64, both for 512 bytes and for 4
//! KiB.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::ground::device_limit::{DriveFile, Load};
use crate::ground::gather::{Gather, Ground, Pages, huge_page_bytes};
use crate::ground::index_loop::{BareIndex, IndexAndRecord, record_bytes};
use crate::ground::loading::bar;
use crate::ground::options::{Common, Threads};
use crate::ground::page_cost::{PageCost, Second};
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::{Contender, Draw, Plan, Spread, alternate};

/// Queue depths of the random reads.
const DEPTHS: [u32; 7] = [1, 4, 16, 64, 128, 256, 512];
/// Queue depth of the random writes, and of the random reads by two threads.
const DEPTH_FULL: u32 = 256;
const SEQUENTIAL_DEPTH: u32 = 16;

/// Options of `roofline`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With --quick, within a minute: 1 million rows, a file of 512 MiB, 3 rounds"
)]
pub(crate) struct Args {
    /// Rows to gather from
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Bytes to gather from, instead of --rows: as many rows of each length as fit
    #[arg(long, value_name = "BYTES")]
    bytes: Option<u64>,
    /// Bytes of a row
    #[arg(long, value_delimiter = ',', default_value = "8,64,256,512")]
    row_bytes: Vec<usize>,
    /// Rows of a batch
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    #[command(flatten)]
    threads: Threads,
    /// Measured rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only one half of the measurements
    #[arg(long, value_enum)]
    only: Option<Half>,
    /// Size of the drive's file in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    file: u64,
    /// Milliseconds of each figure of the drive in each round
    #[arg(long, default_value_t = 500)]
    milliseconds: u64,
    #[command(flatten)]
    common: Common,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Half {
    Memory,
    Drive,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, memory or direct I/O is not available, or an answer is wrong.
pub(crate) fn run(mut args: Args) -> Result<()> {
    ensure!(
        args.batch > 0 && args.rows > 0 && args.rounds > 0,
        "--rows, --batch and --rounds must be positive"
    );
    ensure!(
        args.row_bytes.iter().all(|&bytes| bytes > 0 && bytes.is_multiple_of(4)),
        "--row-bytes must be multiples of 4"
    );
    if args.common.quick {
        args.rows = args.rows.min(1_000_000);
        args.rounds = 3;
        args.file = args.file.min(512);
        args.milliseconds = args.milliseconds.min(200);
    }
    print_provenance();
    let mut figures = Vec::new();
    if args.only != Some(Half::Drive) {
        memory(&args, &mut figures)?;
    }
    if args.only != Some(Half::Memory) {
        drive(&args, &mut figures)?;
    }
    args.common.output.publish("The machine without a store", &figures)
}

fn memory(args: &Args, figures: &mut Vec<Row>) -> Result<()> {
    let rows_of = |row_bytes: usize| {
        let rows = args.bytes.map_or(args.rows, |bytes| bytes / row_bytes as u64);
        rows.max(1)
    };
    let needed = |&row_bytes: &usize| rows_of(row_bytes) as usize * record_bytes(row_bytes);
    let bytes = args.row_bytes.iter().map(needed).max().context("--row-bytes names none")?;
    let ground = Ground::filled(bytes, Pages::Huge)?;
    for &row_bytes in &args.row_bytes {
        gathers(args, &ground, rows_of(row_bytes), row_bytes, figures)?;
    }
    let plan = |rows: u64, dim| plan(args, rows, dim);
    // Gathers 64-byte rows again, from small pages.
    let rows = rows_of(64);
    let small = Ground::filled(rows as usize * 64, Pages::Small)?;
    let mut contenders = Vec::new();
    for (ground, pages) in [(&ground, "huge pages"), (&small, "4 KiB pages")] {
        contenders.push((Gather::tuned(ground, rows, 64, args.batch), pages));
    }
    let all: Vec<&dyn Contender> = contenders.iter().map(|(g, _)| g as &dyn Contender).collect();
    let one_thread = Plan { threads: vec![1], ..plan(rows, 16) };
    let spreads = alternate(&one_thread, &all, &bar("page sizes", 0))?.remove(0);
    let first = figures.len();
    for ((_, pages), spread) in contenders.iter().zip(spreads) {
        let row = Row::rate(format!("64 B x 1 thread: gather, {pages}"), spread);
        figures.push(if figures.len() > first { row.beside(&figures[first]) } else { row });
    }
    drop(contenders);
    drop(small);
    page_costs(&one_thread, &ground, rows as usize * 64, figures)
}

fn plan(args: &Args, rows: u64, dim: usize) -> Plan {
    let batches = (rows.min(args.rows) as usize / args.batch).max(1);
    Plan {
        rows,
        dim,
        batch: args.batch,
        threads: args.threads.threads.clone(),
        draw: Draw::Together(crate::ground::content::Popularity::Uniform),
        rounds: args.rounds,
        batches,
        warm_up_batches: batches.min(64),
        seed: args.common.seed,
    }
}

/// Measures the plain gather and the loop over an index and records, for one length of rows.
fn gathers(
    args: &Args,
    ground: &Ground,
    rows: u64,
    row_bytes: usize,
    figures: &mut Vec<Row>,
) -> Result<()> {
    let index = BareIndex::filled(rows)?;
    let gather = Gather::tuned(ground, rows, row_bytes, args.batch);
    let behind_index = IndexAndRecord::tuned(&index, ground, row_bytes, args.batch);
    println!(
        "{row_bytes} B     {rows} rows; gather: {}; index + record: {}; {} MiB in huge pages",
        gather.ahead(),
        behind_index.how(),
        huge_page_bytes().map_or("?".to_owned(), |bytes| (bytes >> 20).to_string()),
    );
    let contenders: [&dyn Contender; 2] = [&gather, &behind_index];
    let spreads = alternate(&plan(args, rows, row_bytes / 4), &contenders, &bar("gathering", 0))?;
    let mut one_thread: Vec<Row> = Vec::new();
    for (&threads, spreads) in args.threads.threads.iter().zip(spreads) {
        let label =
            format!("{row_bytes} B x {threads} thread{}", if threads == 1 { "" } else { "s" });
        let gather = Row::rate(format!("{label}: gather"), spreads[0]);
        let behind = Row::rate(format!("{label}: index + record"), spreads[1]).beside(&gather);
        if threads == 1 {
            one_thread = vec![gather.clone(), behind.clone()];
        } else {
            let now = [&gather, &behind];
            for (one, many) in one_thread.iter().zip(now) {
                figures.push(Row::scaling(many, one));
            }
        }
        figures.extend([gather, behind]);
    }
    Ok(())
}

/// Measures the nanoseconds for each row: first with one cache line, then with a second line at
/// each place of [`Second`].
fn page_costs(plan: &Plan, ground: &Ground, bytes: usize, figures: &mut Vec<Row>) -> Result<()> {
    let loops: Vec<PageCost<'_>> =
        Second::ALL.iter().filter_map(|&second| PageCost::new(ground, bytes, second)).collect();
    let contenders: Vec<&dyn Contender> = loops.iter().map(|l| l as &dyn Contender).collect();
    if contenders.is_empty() {
        return Ok(());
    }
    let spreads = alternate(plan, &contenders, &bar("page costs", 0))?.remove(0);
    let first = figures.len();
    for (contender, spread) in contenders.iter().zip(spreads) {
        let row = Row::nanoseconds(format!("a random row: {}", contender.name()), spread);
        figures.push(if figures.len() > first { row.beside(&figures[first]) } else { row });
    }
    Ok(())
}

fn drive(args: &Args, figures: &mut Vec<Row>) -> Result<()> {
    std::fs::create_dir_all(&args.common.directory)
        .with_context(|| format!("creating {}", args.common.directory.display()))?;
    let directory = tempfile::tempdir_in(&args.common.directory)
        .with_context(|| format!("creating a directory in {}", args.common.directory.display()))?;
    let file = DriveFile::filled(&directory.path().join("drive"), args.file << 20)?;
    let loads = loads();
    let duration = Duration::from_millis(args.milliseconds);
    let progress = bar("the drive", (args.rounds * loads.len()) as u64);
    let mut samples = vec![Vec::new(); loads.len()];
    for round in 0..args.rounds as u64 {
        for (load, samples) in loads.iter().zip(&mut samples) {
            progress.set_message(load.name());
            let seed = args.common.seed.wrapping_add(round << 8);
            samples.push(file.measure(*load, duration, seed)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    for (load, samples) in loads.iter().zip(samples) {
        let spread = Spread::of(samples);
        figures.push(match load.random {
            true => Row::of(load.name(), "thousand/s", spread, 1e-3),
            false => {
                let mib = load.request_bytes as f64 / (1u64 << 20) as f64;
                Row::of(load.name(), "MiB/s", spread, mib)
            }
        });
    }
    Ok(())
}

/// The loads of the drive.
fn loads() -> Vec<Load> {
    let read = |request_bytes, depth| Load {
        random: true,
        write: false,
        request_bytes,
        depth,
        threads: 1,
    };
    let full = read(4096, DEPTH_FULL);
    let sequential = Load {
        random: false,
        write: false,
        request_bytes: 1 << 20,
        depth: SEQUENTIAL_DEPTH,
        threads: 1,
    };
    let mut loads: Vec<Load> =
        [4096, 512].iter().flat_map(|&bytes| DEPTHS.map(|depth| read(bytes, depth))).collect();
    loads.extend([
        Load { threads: 2, ..full },
        Load { threads: 2, request_bytes: 512, ..full },
        Load { write: true, ..full },
        sequential,
        Load { write: true, ..sequential },
    ]);
    loads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_measures_memory_in_every_row_length() {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("rows.json");
        let args = Args {
            rows: 140_000,
            bytes: None,
            row_bytes: vec![8, 64],
            batch: 256,
            threads: Threads { threads: vec![1, 2] },
            rounds: 1,
            only: Some(Half::Memory),
            file: 1,
            milliseconds: 1,
            common: Common::of_test(3, directory.path()),
        };
        run(args).unwrap();
        let rows: Vec<serde_json::Value> =
            serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
        assert_eq!(rows.len(), 2 * (4 + 2) + 2 + 4);
        assert_eq!(rows[1]["against"], "8 B x 1 thread: gather");
    }
}
