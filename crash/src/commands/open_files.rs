//! `open-files`: trains a bank of thousands of segments in a process that may open few files.
//!
//! Another thread of the process takes all free descriptors at random moments, and gives them back
//! after 200 ms. No call may fail, every row must be right, and the bank may use at most a quarter
//! of the limit. The run consists of rounds. Each round opens the bank with another number of
//! threads and another device, trains it with six callers beside a thread that takes checkpoints,
//! closes it, and compares all rows with the number of steps that they took.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use embank::{Bank, BankOptions, DeviceChoice, Missing, Optimizer, Table, TableConfig};
use embank_kv::{CompactionOptions, Store, StoreOptions};
use fastrand::Rng;

use super::report::{Row, publish, scratch, seed};

/// Number of threads that train at the same time. Each has rows of its own.
const CALLERS: u64 = 6;
const DIM: usize = 256;
/// Largest number of rows of a batch. The threads of a bank share batches of 2,048 rows or more.
const BATCH_ROWS: usize = 3000;
const SEGMENT_BYTES: u64 = 64 << 10;
/// Memory budget, about a tenth of the rows.
const BUDGET_BYTES: u64 = 16 << 20;
/// Longest time that a round trains.
const ROUND: Duration = Duration::from_secs(20);
const CHECKPOINT_EVERY: Duration = Duration::from_secs(2);
/// How long all free descriptors are taken.
const TAKEN: Duration = Duration::from_millis(200);
/// Longest time between two times when all free descriptors are taken.
const BETWEEN_MS_MAX: u64 = 800;

/// Options of `open-files`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Length of the run in minutes
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Number of files that the process may open
    #[arg(long, default_value_t = 64)]
    limit: u64,
    /// Threads that work on a batch [default: in each round another number from 1 to 16]
    #[arg(long)]
    threads: Option<usize>,
    /// Least number of segments of the bank
    #[arg(long, default_value_t = 2000)]
    segments: u64,
    /// Seed of the batches [default: a random one, which the run prints]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the bank; the run removes the bank at the end
    #[arg(long, value_name = "DIR", default_value = "target/open-files")]
    directory: PathBuf,
    /// Write the counts to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A rough answer within seconds: one round of 5 seconds with 300 segments
    #[arg(long)]
    quick: bool,
}

/// What the threads of a run count.
#[derive(Debug, Default)]
struct Counts {
    batches: AtomicU64,
    checkpoints: AtomicU64,
    vanished: AtomicU64,
    /// Odd while all free descriptors are taken.
    vanishing: AtomicU64,
    descriptors_most: AtomicU64,
    done: AtomicBool,
}

impl Counts {
    fn goes_on(&self) -> bool {
        !self.done.load(Ordering::Relaxed)
    }
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if a call fails, a row is wrong, or the bank uses more than a quarter of the
/// limit.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut rng = Rng::with_seed(seed(args.seed));
    let dir = scratch(Some(&args.directory))?;
    let bank = dir.path().join("bank");
    let segments = if args.quick { args.segments.min(300) } else { args.segments };
    let rows = segments * SEGMENT_BYTES / (DIM as u64 * 4 + 40);
    let length = Duration::from_secs_f64(if args.quick { 5.0 } else { args.minutes * 60.0 });
    create(&bank, rows)?;
    limit_open_files(args.limit)?;
    let counts = Counts::default();
    // The steps that each row took.
    let mut steps: Vec<Vec<u32>> =
        (0..CALLERS).map(|caller| vec![0; (rows - caller).div_ceil(CALLERS) as usize]).collect();
    let started = Instant::now();
    let mut rounds = 0;
    while started.elapsed() < length {
        let threads = args.threads.unwrap_or_else(|| rng.usize(1..=16));
        let device = [DeviceChoice::Auto, DeviceChoice::Threads][rounds % 2];
        let end = ROUND.min(length - started.elapsed());
        round(&bank, (threads, device), end, &mut steps, &mut rng, &counts)
            .with_context(|| format!("round {rounds}, {threads} threads, {device:?}"))?;
        rounds += 1;
    }
    let on_disk = fs::read_dir(bank.join("log"))?.count() as u64;
    let most = counts.descriptors_most.load(Ordering::Relaxed);
    let count = |name, count: &AtomicU64| Row::new(name, count.load(Ordering::Relaxed) as f64, "");
    let figures = [
        Row::new("limit of open files", args.limit as f64, ""),
        Row::new("segments at the end", on_disk as f64, ""),
        Row::new("rounds", rounds as f64, ""),
        count("batches of a get and an update", &counts.batches),
        count("checkpoints", &counts.checkpoints),
        count("times that all free descriptors vanished", &counts.vanished),
        Row::new("most descriptors of the bank", most as f64, ""),
        Row::new("calls that failed, rows that were wrong", 0.0, ""),
        Row::new("time", started.elapsed().as_secs_f64().round(), "s"),
    ];
    publish(&figures, args.json.as_deref())?;
    ensure!(on_disk >= segments * 9 / 10, "the bank has only {on_disk} segments");
    ensure!(most <= args.limit / 4, "the bank used {most} descriptors of {}", args.limit);
    Ok(())
}

/// Creates the bank with its small segments and its rows, all zero.
fn create(dir: &Path, rows: u64) -> Result<()> {
    let options = StoreOptions {
        memory_budget_bytes: BUDGET_BYTES,
        page_size_bytes: Some(16 << 10),
        segment_size_bytes: Some(SEGMENT_BYTES),
        ..StoreOptions::default()
    };
    // A bank keeps the segment size with which it was created.
    Store::open(dir, &options)?.checkpoint(b"")?;
    let bank = open(dir, 1, DeviceChoice::Auto)?;
    let table = table(&bank)?;
    let keys: Vec<u64> = (0..rows).collect();
    for keys in keys.chunks(BATCH_ROWS) {
        table.put(keys, &vec![0.0; keys.len() * DIM])?;
    }
    bank.checkpoint(b"")?;
    Ok(())
}

fn open(dir: &Path, threads: usize, device: DeviceChoice) -> Result<Bank> {
    let options = BankOptions {
        memory_budget_bytes: BUDGET_BYTES,
        device,
        threads,
        compaction: CompactionOptions { background: true, ..CompactionOptions::default() },
        ..BankOptions::default()
    };
    Ok(Bank::open(dir, options)?)
}

fn table(bank: &Bank) -> Result<Table> {
    let config = TableConfig::new(DIM as u32).optimizer(Optimizer::sgd(1.0)).staleness_bound(None);
    Ok(bank.table("rows", config)?)
}

fn limit_open_files(limit: u64) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the call reads the limit, which lives until the call returns.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    ensure!(set == 0, "the limit can't be set: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Trains for the time `length`, and then compares all rows with their steps.
fn round(
    dir: &Path,
    (threads, device): (usize, DeviceChoice),
    length: Duration,
    steps: &mut [Vec<u32>],
    rng: &mut Rng,
    counts: &Counts,
) -> Result<()> {
    counts.done.store(false, Ordering::Relaxed);
    let others = descriptors().context("the process's descriptors can't be listed")?;
    let bank = open(dir, threads, device)?;
    let all_rows = table(&bank)?;
    let (table, bank_of) = (&all_rows, &bank);
    thread::scope(|scope| {
        let callers: Vec<_> = steps
            .iter_mut()
            .zip(0..)
            .map(|(steps, caller)| {
                let rng = rng.fork();
                scope.spawn(move || train(table, caller, steps, rng, counts))
            })
            .collect();
        let saves = scope.spawn(move || save(bank_of, counts));
        let vanish_rng = rng.fork();
        scope.spawn(move || vanish(vanish_rng, counts));
        scope.spawn(move || watch(others, counts));
        let end = Instant::now() + length;
        while Instant::now() < end && counts.goes_on() {
            thread::sleep(Duration::from_millis(20));
        }
        counts.done.store(true, Ordering::Relaxed);
        for caller in callers.into_iter().chain([saves]) {
            match caller.join() {
                Ok(done) => done?,
                Err(_) => bail!("a thread panicked"),
            }
        }
        Ok(())
    })?;
    bank.checkpoint(b"")?;
    // The table's handle keeps the bank open too.
    drop(all_rows);
    drop(bank);
    check(dir, steps)
}

/// Marks the run as ended if a thread ends with an error.
fn ending(counts: &Counts, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let done = work();
    if done.is_err() {
        counts.done.store(true, Ordering::Relaxed);
    }
    done
}

/// Gets batches of the caller's rows, checks them, and adds 1 to each value.
fn train(
    table: &Table,
    caller: u64,
    steps: &mut [u32],
    mut rng: Rng,
    counts: &Counts,
) -> Result<()> {
    let mut rows = vec![0.0; BATCH_ROWS * DIM];
    let gradients = vec![-1.0; BATCH_ROWS * DIM];
    ending(counts, || {
        while counts.goes_on() {
            let mut places: Vec<usize> =
                (0..BATCH_ROWS).map(|_| rng.usize(..steps.len())).collect();
            places.sort_unstable();
            places.dedup();
            let keys: Vec<u64> = places.iter().map(|&at| at as u64 * CALLERS + caller).collect();
            let rows = &mut rows[..keys.len() * DIM];
            let lease = table.get(&keys, rows)?;
            for (row, &at) in rows.chunks(DIM).zip(&places) {
                check_row(row, at as u64 * CALLERS + caller, steps[at])?;
            }
            lease.apply(&gradients[..keys.len() * DIM])?;
            places.iter().for_each(|&at| steps[at] += 1);
            counts.batches.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })
}

fn check_row(row: &[f32], key: u64, steps: u32) -> Result<()> {
    let is_right = row.iter().all(|&value| value == steps as f32);
    ensure!(is_right, "row {key} begins with {:?} after {steps} steps", &row[..4]);
    Ok(())
}

fn save(bank: &Bank, counts: &Counts) -> Result<()> {
    let mut due = Instant::now() + CHECKPOINT_EVERY;
    ending(counts, || {
        while counts.goes_on() {
            thread::sleep(Duration::from_millis(20));
            if Instant::now() >= due {
                bank.checkpoint(b"")?;
                counts.checkpoints.fetch_add(1, Ordering::Relaxed);
                due = Instant::now() + CHECKPOINT_EVERY;
            }
        }
        Ok(())
    })
}

/// Takes all free descriptors again and again.
fn vanish(mut rng: Rng, counts: &Counts) {
    while counts.goes_on() {
        thread::sleep(Duration::from_millis(rng.u64(..BETWEEN_MS_MAX)));
        // SeqCst: pairs with the loads of `watch`.
        counts.vanishing.fetch_add(1, Ordering::SeqCst);
        let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        counts.vanished.fetch_add(1, Ordering::Relaxed);
        thread::sleep(TAKEN);
        drop(taken);
        counts.vanishing.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the number of this process's descriptors. The system lists them in one call. So a file
/// has little time to be closed, opened again, and counted twice.
fn descriptors() -> Option<usize> {
    // The list has a descriptor too.
    Some(fs::read_dir("/proc/self/fd").ok()?.count() - 1)
}

/// Counts the bank's descriptors again and again: all but the `others`, while no descriptors are
/// taken away.
fn watch(others: usize, counts: &Counts) {
    let vanishing = || counts.vanishing.load(Ordering::SeqCst);
    while counts.goes_on() {
        let before = vanishing();
        let least = (0..3).filter_map(|_| descriptors()).min();
        if before % 2 == 0 && vanishing() == before {
            let of_bank = least.unwrap_or(0).saturating_sub(others) as u64;
            counts.descriptors_most.fetch_max(of_bank, Ordering::Relaxed);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Opens the bank and compares all rows with their steps.
fn check(dir: &Path, steps: &[Vec<u32>]) -> Result<()> {
    let bank = open(dir, 1, DeviceChoice::Auto)?;
    let table = table(&bank)?;
    for (steps, caller) in steps.iter().zip(0..) {
        let keys: Vec<u64> = (0..steps.len() as u64).map(|at| at * CALLERS + caller).collect();
        for (keys, steps) in keys.chunks(BATCH_ROWS).zip(steps.chunks(BATCH_ROWS)) {
            let mut rows = vec![0.0; keys.len() * DIM];
            table.peek(keys, &mut rows, Missing::Error)?;
            for ((row, &key), &steps) in rows.chunks(DIM).zip(keys).zip(steps) {
                check_row(row, key, steps)?;
            }
        }
    }
    Ok(())
}
