//! `checkpoint`: what a checkpoint costs the batches beside it, and the bytes that it writes.
//!
//! The load is one or more threads, each of which peeks at a batch of rows and puts a batch by
//! turns, as YCSB's workload A does. Checkpoints are taken while the load runs. The load's rate and
//! longest batch during a checkpoint are compared with those just before it. The first checkpoint
//! holds the whole bank, because all rows are new. After the load, 1% of the rows (`--changed`)
//! changes. The bytes that the next checkpoint writes are compared with all bytes written up to the
//! end of the first checkpoint.
//!
//! Estimate, written before measuring. A checkpoint makes batches wait until each thread has
//! finished its chunk of up to 1,024 rows in memory. That takes 0.1 to 1 ms, or longer if a thread
//! is off the processor. After that, the first put of each row makes a new record, in 100 ns
//! instead of 50. It also touches new pages, with a page fault for each 2 MiB (0.1 to 0.5 ms). The
//! thread that writes pages computes their checksums at 1.5 GB/s, which takes a part of a
//! processor. So if there are as many processors as threads and the budget has room for the new
//! records, the rate is 0.5 to 0.8 of the rate before, and a batch takes 5 ms at most. The second
//! checkpoint writes a record for each changed row, and 5 entries, 50 bytes, for each changed
//! bucket.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use embank_kv::{Clock, CompactionOptions, StoreOptions};

use crate::ground::content::{self, KeyStream, Popularity};
use crate::ground::index_loop::record_bytes;
use crate::ground::kv_contenders::KvRows;
use crate::ground::options::Common;
use crate::ground::report::{Row, print_provenance};
use crate::measure::store::in_memory::scratch_in;

/// Options of `checkpoint`.
#[derive(Debug, clap::Args)]
#[command(after_help = "With --quick, within a minute: 512 MiB, 2 rounds of a second")]
pub(crate) struct Args {
    /// Size of the bank's rows with their headers, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    bank: u64,
    /// Columns (f32) of a row, each measured by itself
    #[arg(long, value_delimiter = ',', default_value = "16,128")]
    dims: Vec<usize>,
    /// Memory budget divided by the bank's rows and index: 2 has room for a second version of each
    /// row, 3 for a third
    #[arg(long, value_delimiter = ',', default_value = "3.5,0.5")]
    budgets: Vec<f64>,
    /// Exponents of the load's Zipf distribution, each measured by itself; 0: uniform
    #[arg(long, value_delimiter = ',', default_value = "0.99,0")]
    zipf: Vec<f64>,
    /// Compact in the background during the run
    #[arg(long)]
    compaction: bool,
    /// Threads of the load
    #[arg(long, default_value_t = 1)]
    threads: u64,
    /// Keys of a batch
    #[arg(long, default_value_t = 1024)]
    batch: usize,
    /// Seconds of load before the checkpoint
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Part of the rows that changes before the second checkpoint
    #[arg(long, default_value_t = 0.01)]
    changed: f64,
    /// Rounds of checkpoints under load; the median counts
    #[arg(long = "count", default_value_t = 5)]
    rounds: u64,
    #[command(flatten)]
    common: Common,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, the store fails, or an answer is wrong.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.common.quick {
        (args.bank, args.rounds) = (args.bank.min(512), args.rounds.min(2));
        args.seconds = args.seconds.min(1.0);
    }
    ensure!(args.rounds > 0 && args.threads > 0 && args.batch > 0, "counts must be positive");
    ensure!(args.dims.iter().all(|&dim| dim > 0), "--dims must be positive");
    ensure!(args.changed > 0.0 && args.changed < 1.0, "--changed must be between 0 and 1");
    print_provenance();
    let mut figures = Vec::new();
    for &dim in &args.dims {
        for &budget in &args.budgets {
            for &zipf in &args.zipf {
                measure(&args, dim, budget, zipf, &mut figures)?;
            }
        }
    }
    args.common.output.publish("Checkpoint", &figures)
}

/// The progress of the load's threads.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    rows: AtomicU64,
    /// The longest batch since the last reset, in nanoseconds.
    longest: AtomicU64,
}

/// The load's rows a second and its longest batch while some work ran.
struct Stretch {
    rate: f64,
    longest: Duration,
}

impl Load {
    /// Runs `work`. Returns its result, and the load's rate and longest batch during the call.
    fn during<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Stretch)> {
        self.longest.store(0, Ordering::Relaxed);
        let (began, rows) = (Instant::now(), self.rows.load(Ordering::Relaxed));
        let done = work()?;
        let rows = self.rows.load(Ordering::Relaxed) - rows;
        let rate = rows as f64 / began.elapsed().as_secs_f64();
        // A batch counts in the stretch in which it ends, so a batch that is still running does not
        // count.
        let longest = Duration::from_nanos(self.longest.load(Ordering::Relaxed));
        Ok((done, Stretch { rate, longest }))
    }

    /// Peeks and puts by turns until `stop` is set.
    fn run(&self, kv: &KvRows, batch: usize, mut keys: KeyStream) -> Result<()> {
        let mut rows = vec![0.0; batch * kv.dim];
        for number in 0u64.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let mut drawn = keys.draw(batch);
            drawn.sort_unstable();
            drawn.dedup();
            let rows = &mut rows[..drawn.len() * kv.dim];
            let puts = number % 2 == 1;
            if puts {
                content::fill(&drawn, kv.dim, rows);
            }
            let began = Instant::now();
            if puts {
                kv.write(&drawn, Clock::Keep, rows)?;
            } else {
                kv.peek(&drawn, rows)?;
            }
            let took = began.elapsed().as_nanos() as u64;
            self.longest.fetch_max(took, Ordering::Relaxed);
            self.rows.fetch_add(drawn.len() as u64, Ordering::Relaxed);
            if !puts && number % 64 == 0 {
                for (&key, row) in drawn.iter().zip(rows.chunks_exact(kv.dim)) {
                    ensure!(!content::sign(key, row)?, "wrong answer: key {key} is negated");
                }
            }
        }
        Ok(())
    }
}

fn measure(args: &Args, dim: usize, budget: f64, zipf: f64, figures: &mut Vec<Row>) -> Result<()> {
    let row_bytes = dim * size_of::<f32>();
    let record = record_bytes(row_bytes) as u64;
    let rows = (args.bank << 20) / record;
    let budget_bytes = (rows as f64 * (record + 16) as f64 * budget) as u64 + (64 << 20);
    let directory = scratch_in(&args.common.directory)?;
    let path = directory.path().join("kv");
    let compaction =
        CompactionOptions { background: args.compaction, ..CompactionOptions::default() };
    let memory_budget_bytes = budget_bytes;
    let options = StoreOptions { memory_budget_bytes, compaction, ..StoreOptions::default() };
    let kv = KvRows::load_with(&path, rows, dim, &options)?;
    let popularity = if zipf > 0.0 { Popularity::Zipf(zipf) } else { Popularity::Uniform };
    let label =
        format!("{} MiB in rows of {row_bytes} B, budget {budget}, {popularity}", args.bank);
    let keys = KeyStream::of(popularity, args.common.seed, rows);
    let (mut pauses, mut batches, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut before_rates, mut rates, mut durations) = (Vec::new(), Vec::new(), Vec::new());
    let mut before_batches = Vec::new();
    let mut first_bytes = 0;
    let load = Load::default();
    std::thread::scope(|s| -> Result<()> {
        // Dropping this value ends the threads, also if this function fails.
        let _stops = Stops(&load.stop);
        let threads: Vec<_> = (0..args.threads)
            .map(|thread| {
                let (load, kv) = (&load, &kv);
                let keys = keys.reseeded(args.common.seed * 100 + thread);
                s.spawn(move || load.run(kv, args.batch, keys))
            })
            .collect();
        for round in 0..args.rounds {
            let pass = Duration::from_secs_f64(args.seconds);
            let ((), before) = load.during(|| {
                std::thread::sleep(pass);
                Ok(())
            })?;
            let (took, during) = load.during(|| {
                let began = Instant::now();
                kv.store.checkpoint(&round.to_le_bytes())?;
                Ok(began.elapsed())
            })?;
            if round == 0 {
                // Counts all bytes since the bank was made. Loading wrote some of the bank's pages
                // before the checkpoint, and these bytes belong to the comparison.
                first_bytes = kv.store.stats().disk_write_bytes + own_bytes(&kv, &path)?;
            }
            let stats = kv.store.stats();
            pauses.push(stats.last_checkpoint_pause_us as f64 / 1e3);
            before_batches.push(before.longest.as_secs_f64() * 1e3);
            batches.push(during.longest.as_secs_f64() * 1e3);
            before_rates.push(before.rate);
            rates.push(during.rate);
            parts.push(during.rate / before.rate);
            durations.push(took.as_secs_f64());
            ensure!(threads.iter().all(|thread| !thread.is_finished()), "the load has ended");
        }
        load.stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a thread of the load panicked"))?
        })
    })?;
    // Compacts the log, which has old records of the rows that the load changed. Compaction then
    // has nothing to copy while the next checkpoint is measured.
    kv.store.compact()?;
    kv.store.checkpoint(&[])?;
    let written = kv.store.stats().disk_write_bytes;
    change(&kv, (rows as f64 * args.changed) as u64, args.common.seed)?;
    kv.store.checkpoint(&[])?;
    let second_bytes = kv.store.stats().disk_write_bytes - written + own_bytes(&kv, &path)?;
    kv.check_every_row(None)?;
    let spread = |samples: Vec<f64>| crate::ground::rounds::Spread::of(samples);
    let name = |what: &str| format!("{label}: {what}");
    let before = Row::rate(name("rows/s before"), spread(before_rates));
    let during = Row::rate(name("rows/s during a checkpoint"), spread(rates)).beside(&before);
    figures.extend([before, during]);
    figures.push(Row::of(name("of the rate before"), "", spread(parts), 1.0));
    let mut push = |what: &str, unit, samples| {
        figures.push(Row::of(name(what), unit, spread(samples), 1.0));
    };
    push("longest batch before", "ms", before_batches);
    push("longest batch during it", "ms", batches);
    push("batches were held", "ms", pauses);
    push("a checkpoint took", "s", durations);
    push("written up to the first's end", "MiB", vec![first_bytes as f64 / 1048576.0]);
    push("one after 1% of the rows wrote", "MiB", vec![second_bytes as f64 / 1048576.0]);
    push("of that", "", vec![second_bytes as f64 / first_bytes as f64]);
    Ok(())
}

/// Ends the threads of the load when it is dropped, also if the measurement fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Puts random rows.
fn change(kv: &KvRows, rows: u64, seed: u64) -> Result<()> {
    let mut keys = KeyStream::new(seed ^ 0xC4, 0, 1, kv.rows);
    let mut values = vec![0.0; 1024 * kv.dim];
    let mut left = rows as usize;
    while left > 0 {
        let mut drawn = keys.draw(left.min(1024));
        left -= drawn.len();
        drawn.sort_unstable();
        drawn.dedup();
        let values = &mut values[..drawn.len() * kv.dim];
        content::fill(&drawn, kv.dim, values);
        kv.write(&drawn, Clock::Keep, values)?;
    }
    Ok(())
}

/// Returns the bytes of the files that only the newest checkpoint has. Files that earlier
/// checkpoints have too do not count.
fn own_bytes(kv: &KvRows, path: &Path) -> Result<u64> {
    let number = kv.store.stats().checkpoints;
    let image = format!("index.{number:010}");
    let directory = path.join("checkpoints").join(format!("{number:010}"));
    let mut bytes = 0;
    for entry in fs::read_dir(&directory).context("listing a checkpoint")? {
        let entry = entry.context("listing a checkpoint")?;
        let name = entry.file_name();
        let linked = name.to_string_lossy().starts_with("index.") && *name != *image;
        if !linked {
            bytes += entry.metadata().context("a checkpoint's file")?.len();
        }
    }
    Ok(bytes)
}
