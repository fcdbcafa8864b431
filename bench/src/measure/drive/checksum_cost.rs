//! `checksum-cost`: what the checksums of rows read from disk cost.
//!
//! Checksums can't be turned off, so this measurement adds verifications. It peeks at batches of
//! rows on disk. By turns, it verifies each record once and verifies each record five times. A
//! quarter of the difference is the cost of one verification.
//!
//! Estimate, written before measuring: CRC-32C runs at 10 GB/s and more. The checksum of a record
//! of 96 bytes takes 20 ns, that of a record of 544 bytes 60 ns. A row from disk takes 5 to 10 us
//! of the drive and 1 to 2 us of the processor. So the cost is below 1% if the drive is the limit.
//! It is 3% at most if the processor is the limit.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embank_kv::bench::set_extra_checksums;

use crate::ground::content::{self, KeyStream};
use crate::ground::index_loop::record_bytes;
use crate::ground::kv_contenders::KvRows;
use crate::ground::options::Common;
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::Spread;
use crate::measure::store::in_memory::scratch_in;

/// Number of additional verifications of each record in every other pass.
const EXTRA: u64 = 4;
/// Keys of a batch.
const BATCH_KEYS: usize = 4096;

/// Options of `checksum-cost`.
#[derive(Debug, clap::Args)]
#[command(after_help = "With --quick, within a minute: 256 MiB, 3 passes")]
pub(crate) struct Args {
    /// Bytes of rows, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    data: u64,
    /// Columns (f32) of a row, each measured by itself
    #[arg(long, value_delimiter = ',', default_value = "16,128")]
    dims: Vec<usize>,
    /// The memory budget is the data divided by this number
    #[arg(long, default_value_t = 8)]
    part: u64,
    /// Seconds of a pass
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Passes of each kind, by turns; the median counts
    #[arg(long = "count", default_value_t = 9)]
    rounds: usize,
    #[command(flatten)]
    common: Common,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, the store fails, or an answer is wrong.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.common.quick {
        (args.data, args.rounds) = (args.data.min(256), args.rounds.min(3));
    }
    let sizes = [args.data, args.part, args.rounds as u64];
    ensure!(sizes.iter().all(|&size| size > 0), "sizes must be positive");
    ensure!(args.dims.iter().all(|&dim| dim > 0), "--dims must be positive");
    print_provenance();
    let mut figures = Vec::new();
    for &dim in &args.dims {
        let row_bytes = dim * size_of::<f32>();
        let rows = (args.data << 20) / row_bytes as u64;
        let budget_bytes =
            (rows * record_bytes(row_bytes) as u64 / args.part).max(16 << 20) + rows * 16;
        let directory = scratch_in(&args.common.directory)?;
        let kv = KvRows::load(&directory.path().join("kv"), rows, dim, budget_bytes)?;
        kv.store.checkpoint(&[])?;
        let mut keys = KeyStream::new(args.common.seed, 0, 1, rows);
        let (mut once, mut often, mut cost) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=args.rounds {
            set_extra_checksums(0);
            let plain = pass(&kv, &mut keys, args.seconds)?;
            set_extra_checksums(EXTRA);
            let more = pass(&kv, &mut keys, args.seconds);
            set_extra_checksums(0);
            let more = more?;
            // The first round does not count: it fills the read cache.
            if round > 0 {
                cost.push((plain / more - 1.0) / EXTRA as f64 * 100.0);
                once.push(plain);
                often.push(more);
            }
        }
        ensure!(kv.store.stats().disk_reads > 0, "nothing was read from disk");
        let name = |what: &str| format!("{row_bytes} B: {what}");
        let once = Row::rate(name("verified once"), Spread::of(once));
        let often = Row::rate(name("verified five times"), Spread::of(often)).beside(&once);
        figures.extend([once, often]);
        figures.push(Row::of(name("once costs"), "% of the time", Spread::of(cost), 1.0));
    }
    args.common.output.publish("Checksum cost", &figures)
}

/// Peeks at batches of random rows for `seconds`, and returns rows a second.
fn pass(kv: &KvRows, keys: &mut KeyStream, seconds: f64) -> Result<f64> {
    let mut values = vec![0.0; BATCH_KEYS * kv.dim];
    let (mut took, mut rows) = (Duration::ZERO, 0);
    while took.as_secs_f64() < seconds {
        let drawn = keys.draw(BATCH_KEYS);
        let began = Instant::now();
        kv.peek(&drawn, &mut values)?;
        took += began.elapsed();
        rows += drawn.len();
        for (&key, row) in drawn.iter().zip(values.chunks_exact(kv.dim)).step_by(61) {
            ensure!(!content::sign(key, row)?, "wrong answer: the row of key {key} is negated");
        }
    }
    Ok(rows as f64 / took.as_secs_f64())
}
