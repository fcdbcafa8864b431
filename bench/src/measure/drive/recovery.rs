//! `recovery`: how long opening a bank takes, after one checkpoint and after many.
//!
//! A bank is loaded, checkpointed and closed. Then the program opens it, after it has removed the
//! bank's index files from the system's page cache. It takes many more checkpoints, changes some
//! rows before each, and opens the bank again. The limit is a sequential read of the files that an
//! open reads.
//!
//! Estimate, written before measuring: opening reads the index's images, 10 bytes for each row, and
//! makes an index of 14 bytes for each row in memory. For 100 million rows the images are 1 GB. One
//! processor handles 0.5 to 1 GB/s of them (checksums, entries, first touch of memory), so an open
//! takes 1 to 2 s. After many checkpoints it takes a quarter more at most.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use embank_kv::{Clock, CompactionOptions, Store, StoreOptions};

use crate::ground::content::{self, KeyStream};
use crate::ground::index_loop::record_bytes;
use crate::ground::kv_contenders::KvRows;
use crate::ground::loading::bar;
use crate::ground::options::Common;
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::Spread;
use crate::measure::store::in_memory::scratch_in;

/// Keys of a batch.
const BATCH_KEYS: usize = 4096;
/// Rows that are checked after each open.
const CHECKED_ROWS: usize = 100_000;

/// Options of `recovery`.
#[derive(Debug, clap::Args)]
#[command(after_help = "With --quick, within a minute: 5 million rows, 20 checkpoints")]
pub(crate) struct Args {
    /// Rows of the bank
    #[arg(long, default_value_t = 100_000_000)]
    rows: u64,
    /// Columns (f32) of a row
    #[arg(long, default_value_t = 2)]
    dim: usize,
    /// Checkpoints before the second measurement
    #[arg(long, default_value_t = 100)]
    checkpoints: u64,
    /// Part of the rows that changes before each of these checkpoints
    #[arg(long, default_value_t = 0.002)]
    changed: f64,
    /// Times that the bank is opened for each figure; the median counts
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
        (args.rows, args.checkpoints) = (args.rows.min(5_000_000), args.checkpoints.min(20));
    }
    ensure!(args.rounds > 0 && args.rows > 0 && args.dim > 0, "sizes must be positive");
    print_provenance();
    let directory = scratch_in(&args.common.directory)?;
    let path = directory.path().join("kv");
    let record = record_bytes(args.dim * size_of::<f32>()) as u64;
    let budget_bytes = args.rows * 16 + args.rows * record / 4 + (64 << 20);
    let kv = KvRows::load(&path, args.rows, args.dim, budget_bytes)?;
    kv.store.checkpoint(&[])?;
    let KvRows { store, table, rows, dim } = kv;
    drop(store);
    let label = format!("{rows} rows of {} B", args.dim * size_of::<f32>());
    let mut figures = Vec::new();
    let mut open = |after: &str| -> Result<KvRows> {
        let mut opened = None;
        let (mut seconds, mut rates, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        for _ in 0..args.rounds {
            drop(opened.take());
            let images = images(&path)?;
            bytes = images.iter().map(|(_, bytes)| bytes).sum();
            plain.push(bytes as f64 / read_plainly(&images)?);
            forget(&images)?;
            let began = Instant::now();
            let options = StoreOptions {
                memory_budget_bytes: budget_bytes,
                compaction: CompactionOptions { background: true, ..CompactionOptions::default() },
                ..StoreOptions::default()
            };
            let store = Store::open(&path, &options)?;
            let took = began.elapsed().as_secs_f64();
            seconds.push(took);
            rates.push(bytes as f64 / took);
            opened = Some(KvRows { store, table, rows, dim });
        }
        let kv = opened.context("a round")?;
        check(&kv, args.common.seed)?;
        let name = |what: &str| format!("{label}, after {after}: {what}");
        let plain = Row::of(name("read as bytes"), "GB/s", Spread::of(plain), 1e-9);
        figures.push(Row::of(name("opened in"), "s", Spread::of(seconds), 1.0));
        figures.push(Row::of(name("index read"), "GB/s", Spread::of(rates), 1e-9).beside(&plain));
        figures.push(plain);
        let mib = bytes as f64 / 1048576.0;
        figures.push(Row::count(name("images of the index"), "MiB", mib));
        Ok(kv)
    };
    let mut kv = open("1 checkpoint")?;
    let progress = bar("checkpoints", args.checkpoints);
    let mut keys = KeyStream::new(args.common.seed, 0, 1, rows);
    let mut values = vec![0.0; BATCH_KEYS * dim];
    for number in 0..args.checkpoints {
        let changed = (rows as f64 * args.changed) as usize;
        for _ in 0..changed.div_ceil(BATCH_KEYS) {
            let mut drawn = keys.draw(BATCH_KEYS);
            drawn.sort_unstable();
            drawn.dedup();
            let values = &mut values[..drawn.len() * dim];
            content::fill(&drawn, dim, values);
            kv.write(&drawn, Clock::Keep, values)?;
        }
        kv.store.checkpoint(&number.to_le_bytes())?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    drop(kv);
    kv = open(&format!("{} more", args.checkpoints))?;
    drop(kv);
    args.common.output.publish("Recovery", &figures)
}

/// The newest checkpoint's images of the index, and their lengths in bytes.
fn images(bank: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let checkpoints = fs::read_dir(bank.join("checkpoints")).context("listing checkpoints")?;
    let newest = checkpoints
        .map(|entry| entry.map(|entry| entry.path()))
        .max_by_key(|path| path.as_ref().ok().cloned())
        .context("a checkpoint")?
        .context("listing checkpoints")?;
    let mut images = Vec::new();
    for entry in fs::read_dir(&newest).context("listing a checkpoint")? {
        let entry = entry.context("listing a checkpoint")?;
        if entry.file_name().to_string_lossy().starts_with("index.") {
            let bytes = entry.metadata().context("an image's length")?.len();
            images.push((entry.path(), bytes));
        }
    }
    Ok(images)
}

/// Removes the files from the system's page cache, so that the next read goes to the drive.
fn forget(files: &[(PathBuf, u64)]) -> Result<()> {
    for (path, _) in files {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        // SAFETY: the descriptor must be open during the call, and `file` keeps it open. The call
        // touches no memory of this process.
        let refused =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        ensure!(refused == 0, "the system keeps {} in its cache", path.display());
    }
    Ok(())
}

/// Reads the whole files from the drive, one after another. Returns the seconds.
fn read_plainly(files: &[(PathBuf, u64)]) -> Result<f64> {
    forget(files)?;
    let mut buffer = vec![0; 1 << 20];
    let began = Instant::now();
    for (path, _) in files {
        let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        while file.read(&mut buffer).context("reading an image")? > 0 {}
    }
    Ok(began.elapsed().as_secs_f64())
}

fn check(kv: &KvRows, seed: u64) -> Result<()> {
    let mut stream = KeyStream::new(seed ^ 0xC5, 0, 1, kv.rows);
    let mut values = vec![0.0; BATCH_KEYS * kv.dim];
    for _ in 0..CHECKED_ROWS.div_ceil(BATCH_KEYS) {
        let keys = stream.draw(BATCH_KEYS);
        kv.peek(&keys, &mut values)?;
        for (&key, row) in keys.iter().zip(values.chunks_exact(kv.dim)) {
            ensure!(!content::sign(key, row)?, "wrong answer: the row of key {key} is negated");
        }
    }
    Ok(())
}
