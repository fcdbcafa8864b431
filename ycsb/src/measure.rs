//! The load phase and the run phase.
//!
//! **Blocks.** A thread draws the kinds and keys of a block of calls, then makes the calls. Only the second
//! half is timed: drawing a Zipf rank costs as much as a row in a processor's cache, and every store would
//! be charged for it alike. Preparing values for writes and checking those that were read is timed. A block
//! lasts some ten milliseconds and is drawn for the rows that exist when it begins; with inserts it is held
//! to a few calls, so that "the latest" stays the latest.
//!
//! **Rates** are summed over threads: what each did by the time that it spent in its calls.
//!
//! **Latencies** are those of whole calls. Reading the clock twice costs as much as a quarter of a row in memory, so
//! with batches below 16 only one call in 16 is timed by default (`--latency-every`).
//!
//! **Answers** are checked as they come; the first wrong one ends the run on all threads.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use crate::content;
use crate::distribution::{Chooser, Distribution, Skew};
use crate::engine::{Engine, Named, Session};
use crate::keyspace::Keyspace;
use crate::process::{self, Usage};
use crate::random::Random;
use crate::workload::{Kind, Mix};

/// Rows that a call of the load phase inserts.
const LOAD_BATCH: usize = 4096;
/// Rows that a block is drawn for at most, unless one batch is larger.
const BLOCK_ROWS: usize = 16 << 10;
/// The same while rows are being inserted.
const BLOCK_ROWS_GROWING: usize = 256;
const BLOCK: Duration = Duration::from_millis(10);

/// When a phase ends: at the first that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Limit {
    /// Seconds.
    pub(crate) seconds: Option<f64>,
    /// Operations of all threads together.
    pub(crate) operations: Option<u64>,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) mix: Mix,
    pub(crate) distribution: Distribution,
    pub(crate) skew: Skew,
    /// Operations of a call.
    pub(crate) batch: usize,
    pub(crate) threads: usize,
    pub(crate) warm_up: Limit,
    pub(crate) limit: Limit,
    /// The most rows of a scan; each is uniform from 1 on.
    pub(crate) scan_rows_max: u64,
    /// Every which call is timed on its own.
    pub(crate) latency_every: u64,
    pub(crate) seed: u64,
}

/// Latencies of one kind of call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) kind: Kind,
    /// Operations done.
    pub(crate) operations: u64,
    /// Calls that were timed.
    pub(crate) timed_calls: u64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
}

/// What a measurement found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Operations a second, threads added up.
    pub(crate) operations_per_s: f64,
    /// Operations done.
    pub(crate) operations: u64,
    /// Rows shown by scans.
    pub(crate) scanned_rows: u64,
    /// From the first thread's start to the last one's end, drawing included.
    pub(crate) wall_s: f64,
    /// Time that the store then took to finish work in the background.
    pub(crate) settle_s: f64,
    pub(crate) latencies: Vec<Latency>,
    /// Of the process, while measuring and settling.
    pub(crate) usage: Usage,
    /// Of the store, while measuring and settling.
    pub(crate) counters: Named<u64>,
}

/// A store, its rows and how long their values are.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) keyspace: &'a Keyspace,
    pub(crate) value_bytes: usize,
}

/// Inserts every row, in ascending order of the keys; seconds. All stores get the same order, sorted stores the one
/// that they like best, and a store that appends gets no locality from it that the requests could use.
///
/// # Errors
/// What the store reports.
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
            .map(|keys| scope.spawn(move || load_part(target, keys, progress)))
            .collect();
        parts.into_iter().try_for_each(|part| part.join().expect("a loading thread panicked"))
    })
    .context("loading")?;
    target.engine.settle()?;
    progress.finish_and_clear();
    Ok(started.elapsed().as_secs_f64())
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

/// Reads every row and looks at every byte of it; the sum of their versions.
///
/// # Errors
/// A wrong or missing row; what the store reports.
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

/// Warms up, then measures.
///
/// # Errors
/// A scan that the store doesn't have; a wrong answer; what the store reports.
pub(crate) fn measure(target: Target<'_>, spec: &Spec, progress: &ProgressBar) -> Result<Measured> {
    ensure!(target.keyspace.rows() > 0, "there are no rows to ask for");
    ensure!(spec.batch > 0 && spec.threads > 0, "--batch and --threads must be positive");
    spec.mix.check()?;
    if let (true, Some(reason)) = (spec.mix.scan > 0.0, target.engine.no_scan()) {
        bail!("this workload scans ranges of keys, and the store can't: {reason}");
    }
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
        scanned_rows: tallies.iter().map(|tally| tally.scanned_rows).sum(),
        wall_s,
        settle_s,
        latencies: latencies(&tallies)?,
        usage: process::usage().since(&usage),
        counters: target.engine.counters().into_iter().zip(counters).map(grown).collect(),
    })
}

/// Runs all threads to the limit.
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
    let start = Barrier::new(spec.threads);
    let stop = AtomicBool::new(false);
    let results: Vec<Result<Tally>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..spec.threads)
            .map(|thread| {
                let (start, stop) = (&start, &stop);
                scope.spawn(move || {
                    let worker = Worker::new(target, spec, seed, thread as u64);
                    start.wait();
                    let share = |all: u64| {
                        let (threads, thread) = (spec.threads as u64, thread as u64);
                        all / threads + u64::from(thread < all % threads)
                    };
                    let quota = limit.operations.map(share);
                    let done = worker.and_then(|worker| {
                        worker.run(limit.seconds, quota, stop, (thread == 0).then_some(progress))
                    });
                    if done.is_err() {
                        // Relaxed: a hint to end early; the threads are joined.
                        stop.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
    });
    progress.finish_and_clear();
    results.into_iter().collect()
}

fn millis(seconds: f64) -> u64 {
    (seconds * 1e3) as u64
}

fn fill(keys: &[u64], version: u32, values: &mut [u8], value_bytes: usize) {
    for (&key, value) in keys.iter().zip(values.chunks_exact_mut(value_bytes)) {
        content::fill(key, version, value);
    }
}

/// What a thread did.
struct Tally {
    operations: [u64; Kind::ALL.len()],
    scanned_rows: u64,
    spent: Duration,
    /// Nanoseconds of the calls that were timed.
    calls: [Histogram<u64>; Kind::ALL.len()],
}

/// Three digits up to a minute, in nanoseconds; longer calls count as a minute.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

impl Tally {
    fn operations(&self) -> u64 {
        self.operations.iter().sum()
    }

    fn rate(&self) -> f64 {
        self.operations() as f64 / self.spent.as_secs_f64().max(1e-9)
    }
}

fn latencies(tallies: &[Tally]) -> Result<Vec<Latency>> {
    let mut latencies = Vec::new();
    for kind in Kind::ALL {
        let mut all = histogram();
        for tally in tallies {
            all.add(&tally.calls[kind as usize])?;
        }
        let operations = tallies.iter().map(|tally| tally.operations[kind as usize]).sum();
        if operations > 0 {
            let us = |quantile: f64| all.value_at_quantile(quantile) as f64 * 1e-3;
            latencies.push(Latency {
                kind,
                operations,
                timed_calls: all.len(),
                mean_us: all.mean() * 1e-3,
                p50_us: us(0.5),
                p95_us: us(0.95),
                p99_us: us(0.99),
                p999_us: us(0.999),
                max_us: all.max() as f64 * 1e-3,
            });
        }
    }
    Ok(latencies)
}

/// One thread of a phase.
struct Worker<'a> {
    target: Target<'a>,
    spec: &'a Spec,
    session: Box<dyn Session + 'a>,
    random: Random,
    chooser: Chooser,
    /// The block: a kind a call, `batch` keys a call.
    kinds: Vec<Kind>,
    keys: Vec<u64>,
    values: Vec<u8>,
    version: u32,
    /// Calls up to and with the next one that is timed on its own.
    until_timed: u64,
    tally: Tally,
}

impl<'a> Worker<'a> {
    fn new(target: Target<'a>, spec: &'a Spec, seed: u64, thread: u64) -> Result<Self> {
        let rows = target.keyspace.rows();
        Ok(Worker {
            target,
            spec,
            session: target.engine.session()?,
            random: Random::new(seed, thread),
            chooser: Chooser::new(spec.distribution, spec.skew, rows, spec.mix.inserts()),
            kinds: Vec::new(),
            keys: Vec::new(),
            values: vec![0; spec.batch * target.value_bytes],
            version: thread as u32,
            until_timed: spec.latency_every,
            tally: Tally {
                operations: [0; 5],
                scanned_rows: 0,
                spent: Duration::ZERO,
                calls: std::array::from_fn(|_| histogram()),
            },
        })
    }

    fn run(
        mut self,
        seconds: Option<f64>,
        quota: Option<u64>,
        stop: &AtomicBool,
        progress: Option<&ProgressBar>,
    ) -> Result<Tally> {
        let started = Instant::now();
        let batch = self.spec.batch as u64;
        let rows_max = if self.spec.mix.inserts() { BLOCK_ROWS_GROWING } else { BLOCK_ROWS };
        let calls_max = (rows_max as u64 / batch).max(1);
        let mut calls = calls_max.min(16);
        // Ends at a limit, of which there is one, or when a thread failed.
        loop {
            let left = quota.map_or(u64::MAX, |quota| quota - self.tally.operations().min(quota));
            let elapsed = started.elapsed().as_secs_f64();
            if left == 0
                || seconds.is_some_and(|seconds| elapsed >= seconds)
                || stop.load(Ordering::Relaxed)
            {
                return Ok(self.tally);
            }
            if let Some(progress) = progress {
                let operations = self.tally.operations() * self.spec.threads as u64;
                progress.set_position(seconds.map_or(operations, |_| millis(elapsed)));
            }
            let rows = (calls * batch).min(left) as usize;
            self.draw(rows);
            let block = Instant::now();
            self.make_calls()?;
            let spent = block.elapsed();
            self.tally.spent += spent;
            let fitting = calls as f64 * BLOCK.as_secs_f64() / spent.as_secs_f64().max(1e-9);
            calls = (fitting as u64).clamp(1, calls_max);
        }
    }

    /// Draws a block of so many operations.
    fn draw(&mut self, operations: usize) {
        self.kinds.clear();
        self.keys.clear();
        let keyspace = self.target.keyspace;
        let rows = keyspace.rows();
        for _ in 0..operations.div_ceil(self.spec.batch) {
            self.kinds.push(self.spec.mix.draw(&mut self.random));
        }
        for _ in 0..operations {
            let row = self.chooser.next(rows, &mut self.random);
            self.keys.push(keyspace.key(row));
        }
    }

    fn make_calls(&mut self) -> Result<()> {
        let (kinds, keys) = (std::mem::take(&mut self.kinds), std::mem::take(&mut self.keys));
        for (&kind, keys) in kinds.iter().zip(keys.chunks(self.spec.batch)) {
            self.until_timed -= 1;
            if self.until_timed == 0 {
                self.until_timed = self.spec.latency_every;
                let began = Instant::now();
                self.call(kind, keys)?;
                let nanos = began.elapsed().as_nanos() as u64;
                self.tally.calls[kind as usize].saturating_record(nanos);
            } else {
                self.call(kind, keys)?;
            }
            self.tally.operations[kind as usize] += keys.len() as u64;
        }
        (self.kinds, self.keys) = (kinds, keys);
        Ok(())
    }

    #[inline]
    fn call(&mut self, kind: Kind, keys: &[u64]) -> Result<()> {
        let value_bytes = self.target.value_bytes;
        let values = &mut self.values[..keys.len() * value_bytes];
        match kind {
            Kind::Read => {
                self.session.read(keys, values)?;
                for (&key, value) in keys.iter().zip(values.chunks_exact(value_bytes)) {
                    content::check(key, value)?;
                }
                Ok(())
            }
            Kind::Update => {
                self.version = self.version.wrapping_add(self.spec.threads as u32);
                fill(keys, self.version, values, value_bytes);
                self.session.update(keys, values)
            }
            Kind::Rmw => self.session.read_modify_write(keys, values),
            Kind::Insert => self.insert(keys.len() as u64),
            Kind::Scan => self.scan(keys),
        }
    }

    /// Inserts new rows in place of those that were drawn.
    fn insert(&mut self, count: u64) -> Result<()> {
        let keyspace = self.target.keyspace;
        let first = keyspace.reserve(count);
        let keys: Vec<u64> = (first..first + count).map(|row| keyspace.key(row)).collect();
        let values = &mut self.values[..keys.len() * self.target.value_bytes];
        fill(&keys, 0, values, self.target.value_bytes);
        self.session.insert(&keys, values)?;
        keyspace.acknowledge(first, count);
        Ok(())
    }

    fn scan(&mut self, starts: &[u64]) -> Result<()> {
        for &start in starts {
            let limit = 1 + self.random.below(self.spec.scan_rows_max);
            let (mut shown, mut last) = (0, None);
            self.session.scan(start, limit as usize, &mut |key, value| {
                let in_order = last.map_or(key == start, |last| key > last);
                ensure!(in_order, "wrong answer: a scan from key {start:#018x} shows {key:#018x}");
                content::check(key, value)?;
                (shown, last) = (shown + 1, Some(key));
                Ok(())
            })?;
            ensure!(shown > 0, "wrong answer: a scan from key {start:#018x} shows nothing");
            ensure!(shown <= limit, "wrong answer: a scan of {limit} rows shows {shown}");
            self.tally.scanned_rows += shown;
        }
        Ok(())
    }
}
