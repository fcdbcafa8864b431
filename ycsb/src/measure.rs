//! The load phase and the run phase.
//!
//! **Blocks.** A thread draws the kinds and keys of a block of calls, then makes the calls. Only
//! the calls are timed. Drawing a Zipf rank takes as long as reading a row from the processor's
//! cache, and would add to the time of every store. The time of the calls includes making values
//! for writes and checking the values of reads. A block lasts about ten milliseconds and requests
//! only rows that exist when it begins. If the workload inserts rows, a block has only a few calls,
//! so that "the latest" row stays recent.
//!
//! **Rates** are sums over threads. The rate of a thread is its number of operations divided by its
//! time in calls.
//!
//! **Latencies** are the times of whole calls. Reading the clock twice takes a quarter of the time
//! of reading a row in memory. So by default the latency of only one call in 16 is taken if batches
//! have fewer than 16 operations (`--latency-every`).
//!
//! **Leases** (`embank-lease`): a thread holds its leases while it draws a block, and applies the
//! last ones when the measurement ends.
//!
//! **Schedules** (`--target`): a thread draws each call before the call's scheduled time, and
//! begins it at that time. The rate of a thread is its number of operations divided by its whole
//! time. See [`pace`](crate::pace).
//!
//! **Answers** are checked after each call. The first wrong answer ends the run on all threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use crate::content;
use crate::distribution::{Distribution, Skew};
use crate::engine::leases::Leases;
use crate::engine::{Engine, Named};
use crate::keyspace::Keyspace;
use crate::latency::{Latency, Tally, latencies};
use crate::process::{self, Usage};
use crate::worker::{End, ScanLengths, Worker};
use crate::workload::Mix;

/// The number of rows that a call of the load phase inserts.
const LOAD_BATCH: usize = 4096;

/// The limits of a phase. It ends at the first limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Limit {
    /// The longest duration in seconds.
    pub(crate) seconds: Option<f64>,
    /// The largest number of operations of all threads together.
    pub(crate) operations: Option<u64>,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) mix: Mix,
    pub(crate) distribution: Distribution,
    pub(crate) skew: Skew,
    /// The number of operations of a call.
    pub(crate) batch: usize,
    pub(crate) threads: usize,
    /// The leases of a store that has leases. Other stores ignore them.
    pub(crate) leases: Leases,
    /// The number of operations that all threads together begin in a second. `None` for full speed.
    pub(crate) target_operations_per_s: Option<u64>,
    pub(crate) warm_up: Limit,
    pub(crate) limit: Limit,
    /// The number of rows of the shortest scan.
    pub(crate) scan_rows_min: u64,
    /// The number of rows of the longest scan.
    pub(crate) scan_rows_max: u64,
    /// The distribution of the lengths of scans.
    pub(crate) scan_lengths: ScanLengths,
    /// One in this number of calls has its latency measured.
    pub(crate) latency_every: u64,
    pub(crate) seed: u64,
}

/// What a measurement found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The sum of the threads' operations per second.
    pub(crate) operations_per_s: f64,
    /// The number of operations that were done.
    pub(crate) operations: u64,
    /// The number of operations that `--target` scheduled before the end and that did not begin.
    pub(crate) overdue_operations: u64,
    /// The number of rows that scans have returned.
    pub(crate) scanned_rows: u64,
    /// The time from the first thread's start to the last thread's end. It includes drawing calls.
    pub(crate) wall_s: f64,
    /// The time that the store took after the measurement to finish its background work.
    pub(crate) settle_s: f64,
    pub(crate) latencies: Vec<Latency>,
    /// The resource use of the process during the measurement and the background work after it.
    pub(crate) usage: Usage,
    /// The growth of the store's counters during the measurement and the background work after it.
    pub(crate) counters: Named<u64>,
}

/// A store, its rows and the length of their values.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) keyspace: &'a Keyspace,
    pub(crate) value_bytes: usize,
}

/// Inserts every row in ascending order of the keys and returns the seconds that this took. All
/// stores get the rows in this order, which is the best order for sorted stores. If keys are
/// hashed, a store that appends its rows has no advantage from the order, because hot rows do not
/// lie together.
///
/// # Errors
/// Returns any error of the store.
pub(crate) fn load(target: Target<'_>, threads: usize, progress: &ProgressBar) -> Result<f64> {
    let rows = target.keyspace.rows();
    progress.set_length(rows);
    let mut keys: Vec<u64> = (0..rows).map(|row| target.keyspace.key(row)).collect();
    keys.sort_unstable();
    let started = Instant::now();
    let share = keys.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts: Vec<_> = keys
            .chunks(share)
            .map(|keys| start_thread(scope, move || load_part(target, keys, progress)))
            .collect::<Result<_>>()?;
        parts.into_iter().try_for_each(|part| part.join().expect("a loading thread panicked"))
    })
    .context("loading")?;
    target.engine.settle()?;
    progress.finish_and_clear();
    Ok(started.elapsed().as_secs_f64())
}

fn start_thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let refused = "the system refuses another thread; take fewer (--threads), or allow more (`ulimit -u`, the pids \
                   limit of the container)";
    thread::Builder::new().spawn_scoped(scope, work).context(refused)
}

fn load_part(target: Target<'_>, keys: &[u64], progress: &ProgressBar) -> Result<()> {
    let mut session = target.engine.session()?;
    let mut values = vec![0; LOAD_BATCH * target.value_bytes];
    for keys in keys.chunks(LOAD_BATCH) {
        let values = &mut values[..keys.len() * target.value_bytes];
        fill(keys, 0, values, target.value_bytes);
        session.insert(keys, values)?;
        progress.inc(keys.len() as u64);
    }
    Ok(())
}

/// Reads every row, checks every byte, and returns the sum of the versions.
///
/// # Errors
/// Returns an error for a wrong or missing row, and any error of the store.
pub(crate) fn check_all(target: Target<'_>, progress: &ProgressBar) -> Result<u64> {
    let rows = target.keyspace.rows();
    progress.set_length(rows);
    let mut session = target.engine.session()?;
    let mut values = vec![0; LOAD_BATCH * target.value_bytes];
    let mut versions = 0;
    let mut first = 0;
    while first < rows {
        let end = rows.min(first + LOAD_BATCH as u64);
        let keys: Vec<u64> = (first..end).map(|row| target.keyspace.key(row)).collect();
        let values = &mut values[..keys.len() * target.value_bytes];
        session.read(&keys, values)?;
        for (&key, value) in keys.iter().zip(values.chunks_exact(target.value_bytes)) {
            versions += u64::from(content::check_whole(key, value)?);
        }
        first = end;
        progress.set_position(first);
    }
    progress.finish_and_clear();
    Ok(versions)
}

/// Warms up, then measures. Waits at the end until the store's background work is done.
///
/// # Errors
/// Returns an error for a wrong answer, and any error of the store.
pub(crate) fn measure(target: Target<'_>, spec: &Spec, progress: &ProgressBar) -> Result<Measured> {
    ensure!(target.keyspace.rows() > 0, "there are no rows to ask for");
    ensure!(spec.batch > 0 && spec.threads > 0, "--batch and --threads must be positive");
    spec.mix.check()?;
    spec.leases.check(spec.threads)?;
    target.engine.set_leases(spec.leases);
    if spec.warm_up != Limit::default() {
        phase(target, spec, spec.warm_up, spec.seed ^ 0x5eed, progress).context("warming up")?;
    }
    let (usage, counters) = (process::usage(), target.engine.counters());
    let started = Instant::now();
    let tallies = phase(target, spec, spec.limit, spec.seed, progress).context("measuring")?;
    let wall_s = started.elapsed().as_secs_f64();
    let settling = Instant::now();
    target.engine.settle()?;
    let settle_s = settling.elapsed().as_secs_f64();
    let grown = |(after, before): ((String, u64), (String, u64))| (after.0, after.1 - before.1);
    Ok(Measured {
        operations_per_s: tallies.iter().map(Tally::rate).sum(),
        operations: tallies.iter().map(Tally::operations).sum(),
        overdue_operations: tallies.iter().map(|tally| tally.overdue).sum(),
        scanned_rows: tallies.iter().map(|tally| tally.scanned_rows).sum(),
        wall_s,
        settle_s,
        latencies: latencies(&tallies)?,
        usage: process::usage().since(&usage),
        counters: target.engine.counters().into_iter().zip(counters).map(grown).collect(),
    })
}

/// Runs all threads until the limit.
fn phase(
    target: Target<'_>,
    spec: &Spec,
    limit: Limit,
    seed: u64,
    progress: &ProgressBar,
) -> Result<Vec<Tally>> {
    ensure!(limit != Limit::default(), "no limit by time or by operations");
    progress.reset();
    progress.set_length(limit.operations.unwrap_or(0).max(limit.seconds.map_or(0, millis)));
    // Set when all threads are ready: true to begin the phase, false to end the threads.
    let start = OnceLock::new();
    let (ready, readies) = mpsc::channel();
    let stop = AtomicBool::new(false);
    let results: Vec<Result<Tally>> = std::thread::scope(|scope| {
        let started: Result<Vec<_>> = (0..spec.threads)
            .map(|thread| {
                let (start, stop, ready) = (&start, &stop, ready.clone());
                start_thread(scope, move || {
                    let worker = Worker::new(target, spec, seed, thread);
                    // A failed send means that the main thread has stopped waiting.
                    let _ = ready.send(());
                    drop(ready);
                    if !start.wait() {
                        return Ok(Tally::new(false));
                    }
                    let share = |all: u64| {
                        let (threads, thread) = (spec.threads as u64, thread as u64);
                        all / threads + u64::from(thread < all % threads)
                    };
                    let quota = limit.operations.map(share);
                    let end = End { seconds: limit.seconds, quota, stop };
                    let done = worker
                        .and_then(|worker| worker.run(&end, (thread == 0).then_some(progress)));
                    if done.is_err() {
                        // Relaxed: the flag only asks threads to end early. Joining the threads
                        // orders their data.
                        stop.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        let threads = match started {
            Ok(threads) => threads,
            Err(error) => {
                start.get_or_init(|| false);
                return vec![Err(error)];
            }
        };
        // The loop ends because a thread that panics before it is ready drops its sender.
        drop(ready);
        let all_ready = readies.iter().take(threads.len()).count() == threads.len();
        start.get_or_init(|| all_ready);
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
    });
    progress.finish_and_clear();
    results.into_iter().collect()
}

pub(crate) fn millis(seconds: f64) -> u64 {
    (seconds * 1e3) as u64
}

pub(crate) fn fill(keys: &[u64], version: u32, values: &mut [u8], value_bytes: usize) {
    for (&key, value) in keys.iter().zip(values.chunks_exact_mut(value_bytes)) {
        content::fill(key, version, value);
    }
}
