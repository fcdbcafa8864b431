//! `soak`: runs all operations at the same time for a given time, and checks them against a model.
//!
//! Two workers put, update, get, peek at and delete rows of a table several times larger than the
//! memory budget. Batches have 1 to 4,096 keys, uniform or skewed. The number of keys in use grows
//! over the first half of the run, so the index grows under load. Checkpoints are taken throughout
//! the run. A worker compares every row that it reads with the model ([`model`]), and the first
//! wrong answer ends the run. At the end the store is checkpointed and reopened, and every key is
//! read again.
//!
//! *Memory* is the process's resident memory, minus the resident memory before the store was
//! opened. *Space amplification* is the bytes of the log's files on the drive, divided by the bytes
//! of the records of present rows. Both are measured from outside of the store, so they check the
//! store's own statistics.
//!
//! The two kept checkpoints hold old versions of rows. The number of these old versions depends on
//! how much is written between two checkpoints; here that is most rows. So the report has two
//! further values of space amplification: one without the bytes appended since the older
//! checkpoint, and one without the bytes that only kept checkpoints hold by the store's own count
//! (`StoreStats::log_held_bytes`). Both have a limit. The first is too large if space is never
//! given back, the second if compaction is too slow.
//!
//! Estimate, written before measuring. There is no wrong answer. Memory stays within 1.02 of the
//! budget; a batch uses less than 2 MiB for each thread outside of the budget. Space amplification
//! is 1.3 to 1.4 once compaction is fast enough, 1.5 at worst. Without compaction it only grows. A
//! batch of 4,096 keys with most rows on disk is 3,000 reads, 30 ms; its p99.9 is twice that. The
//! longest stall is a wait for a page while the drive takes the pages of a checkpoint: 100 to 300
//! ms for 256 MiB.

mod model;
mod worker;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use embank_kv::{CompactionOptions, Store, StoreOptions};

use crate::ground::index_loop::record_bytes;
use crate::ground::options::Common;
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::Spread;
use crate::measure::store::in_memory::scratch_in;
use model::{Model, ROW_BYTES};
use worker::{Harvest, Worker, check_all};

/// Largest allowed memory, as a part of the budget.
const MEMORY_MAX: f64 = 1.05;
/// Largest allowed space amplification, in steady state.
const AMPLIFICATION_MAX: f64 = 1.5;
/// Time between two samples of memory and space.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// The part of the keys that is in use at the beginning.
const PART_FIRST: f64 = 0.1;

/// Options of `soak`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With --quick: half a minute with 1 million keys in 48 MiB; nothing is asked of space amplification"
)]
pub(crate) struct Args {
    /// Length of the run in minutes
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Keys; about nine tenths of them have a row at the end, of 64 bytes
    #[arg(long, default_value_t = 8_000_000)]
    keys: u64,
    /// Memory budget in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    budget: u64,
    /// Threads that work on the store
    #[arg(long, default_value_t = 2)]
    workers: u64,
    /// Seconds from one checkpoint to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    checkpoint_every: f64,
    /// The run ends with an error if the log takes more than this many GiB on the drive
    #[arg(long, value_name = "GIB", default_value_t = 40)]
    disk: u64,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn length(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    fn budget_bytes(&self) -> u64 {
        self.budget << 20
    }

    fn options(&self) -> StoreOptions {
        let compaction = CompactionOptions { background: true, ..CompactionOptions::default() };
        StoreOptions {
            memory_budget_bytes: self.budget_bytes(),
            compaction,
            ..StoreOptions::default()
        }
    }
}

/// The samples taken from outside of the store.
#[derive(Debug, Default)]
struct Samples {
    /// Resident bytes divided by the budget. Those that were resident before the store was opened
    /// do not count.
    memory: Vec<f64>,
    /// Bytes of the log's files divided by the bytes of present records, sampled in the second
    /// half.
    amplification: Vec<f64>,
    /// `amplification` without the bytes that only kept checkpoints hold.
    beside_held: Vec<f64>,
    /// `amplification` without the bytes appended since the older of the two kept checkpoints.
    before_checkpoints: Vec<f64>,
    checkpoints: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if an answer is wrong, the store fails, or memory, space amplification or drive space
/// exceeds its limit.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.common.quick {
        args.minutes = args.minutes.min(0.5);
        (args.keys, args.budget) = (args.keys.min(1_000_000), args.budget.min(48));
        args.checkpoint_every = args.checkpoint_every.min(5.0);
    }
    ensure!(args.minutes > 0.0 && args.checkpoint_every > 0.0, "times must be positive");
    ensure!(args.workers > 0 && args.keys >= args.workers, "a worker needs a key");
    print_provenance();
    println!(
        "soak      {} minutes, {} keys, {} MiB, seed {}",
        args.minutes, args.keys, args.budget, args.common.seed
    );
    let directory = scratch_in(&args.common.directory)?;
    let path = directory.path().join("store");
    let model = Model::new(args.keys);
    let (harvest, samples, mut figures) = soak(&args, &path, &model)?;

    // The last checkpoint holds every row, so the reopened store must equal the model.
    let store = Store::open(&path, &args.options())?;
    let table = store.tables().first().context("wrong answer: the table is lost")?.id;
    check_all(&store, table, &model).context("after the reopen")?;
    println!("reopened  {} rows, all as they should be", model.present());

    figures.extend(latencies("single key", &harvest.single));
    figures.extend(latencies("batch of 2 to 4,096 keys", &harvest.batch));
    let memory = Spread::of(samples.memory);
    figures.push(Row::of("memory", "of the budget", memory, 1.0));
    let all = Spread::of(samples.amplification);
    figures.push(Row::of("space amplification, second half", "x", all, 1.0));
    let asked = [
        ("beside what kept checkpoints hold", samples.beside_held),
        ("without what was appended since the older kept one", samples.before_checkpoints),
    ]
    .map(|(what, samples)| (format!("space amplification, {what}"), Spread::of(samples)));
    for (what, amplification) in &asked {
        figures.push(Row::of(what.clone(), "x", *amplification, 1.0));
    }
    args.common.output.publish("Soak", &figures)?;
    ensure!(
        memory.max <= MEMORY_MAX,
        "{:.3} of the memory budget was resident, {MEMORY_MAX} is asked",
        memory.max
    );
    for (what, amplification) in &asked {
        ensure!(
            args.common.quick || amplification.max <= AMPLIFICATION_MAX,
            "{what}: {:.3}, {AMPLIFICATION_MAX} is asked",
            amplification.max
        );
    }
    Ok(())
}

/// Runs the soak, up to the last checkpoint.
fn soak(args: &Args, path: &Path, model: &Model) -> Result<(Harvest, Samples, Vec<Row>)> {
    let baseline = resident_bytes()?;
    let store = Store::open(path, &args.options())?;
    let table = store.create_table("rows", ROW_BYTES as u32, &[])?;
    let (started, length) = (Instant::now(), args.length());
    let stop = AtomicBool::new(false);
    // Returns the part of the keys that is in use now. `None` when the run is over.
    let now = || {
        let passed = started.elapsed().as_secs_f64() / length.as_secs_f64();
        let part = PART_FIRST + (1.0 - PART_FIRST) * (passed * 2.0).min(1.0);
        (passed < 1.0 && !stop.load(Ordering::Relaxed)).then_some(part)
    };
    let (harvest, samples) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.workers)
            .map(|number| {
                let (workers, seed) = (args.workers, args.common.seed);
                let worker = Worker { store: &store, table, model, number, workers, seed };
                let (now, stop) = (&now, &stop);
                scope.spawn(move || {
                    let harvest = worker.run(now);
                    // Stops the other workers too if one has failed.
                    stop.store(true, Ordering::Relaxed);
                    harvest
                })
            })
            .collect();
        let watched = watch(args, &store, path, model, baseline, now);
        stop.store(true, Ordering::Relaxed);
        let mut harvest = Harvest::new()?;
        for worker in workers {
            harvest.add(&worker.join().expect("a worker does not panic")?)?;
        }
        anyhow::Ok((harvest, watched?))
    })?;
    check_all(&store, table, model).context("before the reopen")?;
    store.checkpoint(b"soak")?;
    let figures = counted(&store, &harvest, &samples, started.elapsed());
    Ok((harvest, samples, figures))
}

/// Takes checkpoints and samples, and prints progress, until the time is over.
fn watch(
    args: &Args,
    store: &Store,
    path: &Path,
    model: &Model,
    baseline: u64,
    now: impl Fn() -> Option<f64>,
) -> Result<Samples> {
    let mut samples = Samples::default();
    // The log's end at each kept checkpoint.
    let mut kept = [0_u64; 2];
    let (started, mut checkpointed, mut printed) = (Instant::now(), Instant::now(), Instant::now());
    while now().is_some() || samples.amplification.is_empty() {
        std::thread::sleep(SAMPLE_EVERY.min(args.length() / 8));
        let memory = resident_bytes()?.saturating_sub(baseline) as f64 / args.budget_bytes() as f64;
        samples.memory.push(memory);
        let stats = store.stats();
        let disk = log_bytes(path)?;
        ensure!(
            disk <= args.disk << 30,
            "the log takes {} GiB on the drive; see --disk",
            disk >> 30
        );
        let live = model.present() * record_bytes(ROW_BYTES) as u64;
        let amplification = |bytes: u64| bytes as f64 / live.max(1) as f64;
        let beside_held = amplification(disk.saturating_sub(stats.log_held_bytes));
        let appended = stats.log_tail - kept[0];
        let before_checkpoints = amplification(disk.saturating_sub(appended));
        let amplification = amplification(disk);
        if started.elapsed() * 2 > args.length() {
            samples.amplification.push(amplification);
            samples.beside_held.push(beside_held);
            samples.before_checkpoints.push(before_checkpoints);
        }
        if checkpointed.elapsed().as_secs_f64() > args.checkpoint_every {
            kept = [kept[1], store.stats().log_tail];
            store.checkpoint(b"soak")?;
            samples.checkpoints += 1;
            checkpointed = Instant::now();
        }
        if printed.elapsed() > Duration::from_secs(10).min(args.length() / 4) {
            println!(
                "{:>6.0} s  {} rows, {} keys worked on, memory {memory:.3} of the budget, space \
                 amplification {amplification:.2} ({beside_held:.2} beside what checkpoints hold), longest pause \
                 {} ms, longest page wait {} ms",
                started.elapsed().as_secs_f64(),
                model.present(),
                stats.get_keys + stats.put_keys + stats.update_keys + stats.peek_keys,
                stats.checkpoint_pauses_us_max / 1000,
                stats.page_waits_us_max / 1000,
            );
            printed = Instant::now();
        }
    }
    Ok(samples)
}

/// The figures that the store counted.
fn counted(store: &Store, harvest: &Harvest, samples: &Samples, took: Duration) -> Vec<Row> {
    let stats = store.stats();
    let keys = harvest.keys as f64 / took.as_secs_f64() / 1e6;
    let ms = |us: u64| us as f64 / 1e3;
    vec![
        Row::count("keys worked on", "million/s", keys),
        Row::count("checkpoints", "", samples.checkpoints as f64),
        Row::count("longest checkpoint pause", "ms", ms(stats.checkpoint_pauses_us_max)),
        Row::count("longest wait for a page", "ms", ms(stats.page_waits_us_max)),
        Row::count("longest growth step", "ms", ms(stats.growth_steps_us_max)),
        Row::count("written", "bytes/row changed", stats.written_bytes_per_changed_row()),
    ]
}

fn latencies(what: &str, histogram: &hdrhistogram::Histogram<u64>) -> Vec<Row> {
    let row = |name: &str, ns: u64| Row::count(format!("{what}: {name}"), "ms", ns as f64 / 1e6);
    vec![
        row("median", histogram.value_at_quantile(0.5)),
        row("p99", histogram.value_at_quantile(0.99)),
        row("p99.9", histogram.value_at_quantile(0.999)),
        row("longest", histogram.max()),
    ]
}

/// Resident anonymous memory of this process.
fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Ok(kib.context("the kernel does not say how much memory is resident")? << 10)
}

/// Bytes of the log's files on the drive. A file may be removed during this call.
fn log_bytes(path: &Path) -> Result<u64> {
    let mut bytes = 0;
    let log = path.join("log");
    for entry in fs::read_dir(&log).with_context(|| format!("listing {}", log.display()))? {
        if let Ok(metadata) = entry.and_then(|entry| entry.metadata()) {
            bytes += metadata.blocks() * 512;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_soak_finds_no_wrong_answer() {
        let directory = tempfile::tempdir().unwrap();
        let args = Args {
            minutes: 0.02,
            keys: 40_000,
            budget: 3,
            workers: 2,
            checkpoint_every: 0.3,
            disk: 4,
            common: Common { quick: true, ..Common::of_test(5, directory.path()) },
        };
        let path = directory.path().join("store");
        let model = Model::new(args.keys);
        let (harvest, samples, _) = soak(&args, &path, &model).unwrap();
        assert!(harvest.keys > 0 && samples.checkpoints > 0 && model.present() > 0);
        let store = Store::open(&path, &args.options()).unwrap();
        let table = store.tables()[0].id;
        check_all(&store, table, &model).unwrap();
        // Deletes a row that the model still has, so that the check must find a wrong answer.
        let key = (0..args.keys).find(|&key| model.word(key).is_present()).unwrap();
        store.delete(table, &[key]).unwrap();
        let error = check_all(&store, table, &model).unwrap_err();
        assert!(format!("{error:#}").contains("is lost"), "{error:#}");
    }
}
