//! One thread of a phase. It draws operations, makes the calls and checks the answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use fastrand::Rng;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use crate::content;
use crate::distribution::Chooser;
use crate::engine::Session;
use crate::latency::Tally;
use crate::measure::{Spec, Target, fill, millis};
use crate::pace::Pace;
use crate::random::stream;
use crate::workload::Kind;
use crate::zipf::Zipf;

/// A block has at most this number of rows, unless one batch is larger.
const BLOCK_ROWS: usize = 16 << 10;
/// If the workload inserts rows, a block has at most this number of rows, so that the next block's
/// draws soon see new rows.
const BLOCK_ROWS_GROWING: usize = 256;
/// A block of calls is sized to take about this time.
const BLOCK: Duration = Duration::from_millis(10);

/// The distribution of scan lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ScanLengths {
    /// Every length is equally likely
    Uniform,
    /// Zipf's law; the shortest scan is the most frequent
    Zipfian,
}

/// The conditions that end a thread's work. The first one that holds ends it.
pub(crate) struct End<'a> {
    pub(crate) seconds: Option<f64>,
    /// The number of operations of this thread.
    pub(crate) quota: Option<u64>,
    /// True after another thread has failed.
    pub(crate) stop: &'a AtomicBool,
}

/// One thread of a phase.
pub(crate) struct Worker<'a> {
    target: Target<'a>,
    spec: &'a Spec,
    thread: usize,
    session: Box<dyn Session + 'a>,
    random: Rng,
    chooser: Chooser,
    scan_ranks: Option<Zipf>,
    /// The kinds of the present block's calls. A block is a run of calls that the thread draws
    /// before it makes them.
    kinds: Vec<Kind>,
    /// The keys of the present block's calls, `batch` keys for each call.
    keys: Vec<u64>,
    values: Vec<u8>,
    version: u32,
    /// The number of calls up to the next call whose latency is taken, including that call.
    until_timed: u64,
    tally: Tally,
}

impl<'a> Worker<'a> {
    /// Makes a thread's worker with its own session.
    ///
    /// # Errors
    /// Returns any error of the store.
    pub(crate) fn new(
        target: Target<'a>,
        spec: &'a Spec,
        seed: u64,
        thread: usize,
    ) -> Result<Self> {
        let rows = target.keyspace.rows();
        let lengths = spec.scan_rows_max - spec.scan_rows_min + 1;
        Ok(Worker {
            target,
            spec,
            thread,
            session: target.engine.session()?,
            random: stream(seed, thread as u64),
            chooser: Chooser::new(spec.distribution, spec.skew, rows, spec.mix.inserts()),
            scan_ranks: (spec.scan_lengths == ScanLengths::Zipfian)
                .then(|| Zipf::new(lengths, spec.skew.theta)),
            kinds: Vec::new(),
            keys: Vec::new(),
            values: vec![0; spec.batch * target.value_bytes],
            version: thread as u32,
            until_timed: spec.latency_every,
            tally: Tally::new(spec.target_operations_per_s.is_some()),
        })
    }

    /// Makes calls until `end` is reached.
    ///
    /// # Errors
    /// Returns an error for a wrong answer, and any error of the store.
    pub(crate) fn run(self, end: &End<'_>, progress: Option<&ProgressBar>) -> Result<Tally> {
        match Pace::of(self.spec, self.thread) {
            None => self.run_freely(end, progress),
            Some(pace) => self.run_paced(&pace, end, progress),
        }
    }

    fn run_freely(mut self, end: &End<'_>, progress: Option<&ProgressBar>) -> Result<Tally> {
        let started = Instant::now();
        let batch = self.spec.batch as u64;
        let rows_max = if self.spec.mix.inserts() { BLOCK_ROWS_GROWING } else { BLOCK_ROWS };
        let calls_max = (rows_max as u64 / batch).max(1);
        let mut calls = calls_max.min(16);
        // The loop ends at a limit, which always exists, or after a thread failed.
        loop {
            let left = self.left(end);
            let elapsed = started.elapsed().as_secs_f64();
            if left == 0
                || end.seconds.is_some_and(|seconds| elapsed >= seconds)
                || end.stop.load(Ordering::Relaxed)
            {
                let finishing = Instant::now();
                self.session.finish()?;
                self.tally.spent += finishing.elapsed();
                return Ok(self.tally);
            }
            self.show(elapsed, end, progress);
            self.draw((calls * batch).min(left) as usize);
            let block = Instant::now();
            self.make_calls()?;
            let spent = block.elapsed();
            self.tally.spent += spent;
            let fitting = calls as f64 * BLOCK.as_secs_f64() / spent.as_secs_f64().max(1e-9);
            calls = (fitting as u64).clamp(1, calls_max);
        }
    }

    /// Begins each call at its scheduled time, or at once if that time has passed. Draws a call
    /// before its scheduled time, so drawing delays only a late thread.
    fn run_paced(
        mut self,
        pace: &Pace,
        end: &End<'_>,
        progress: Option<&ProgressBar>,
    ) -> Result<Tally> {
        let started = Instant::now();
        let duration = |s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX);
        let over = end.seconds.map(duration);
        let batch = self.spec.batch as u64;
        let mut calls = 0;
        // The loop ends at a limit, which always exists, or after a thread failed.
        loop {
            let left = self.left(end);
            if left == 0 {
                break;
            }
            self.show(started.elapsed().as_secs_f64(), end, progress);
            self.draw(batch.min(left) as usize);
            let intended = pace.start_of(calls);
            let until = over.map_or(intended, |over| over.min(intended));
            let now = pace.wait(started, until, end.stop);
            if end.stop.load(Ordering::Relaxed) || over.is_some_and(|over| now >= over) {
                break;
            }
            self.make_paced_call(started, intended)?;
            calls += 1;
        }
        self.session.finish()?;
        // The time is at least the scheduled time of the calls that were made. So the rate is at
        // most the target.
        self.tally.spent =
            started.elapsed().max(pace.start_of(calls).saturating_sub(pace.start_of(0)));
        if let Some(over) = over {
            self.tally.spent = self.tally.spent.min(over.max(started.elapsed()));
            let due = pace.calls_due(over).saturating_sub(calls) * batch;
            self.tally.overdue = due.min(self.left(end));
        }
        Ok(self.tally)
    }

    /// Returns the number of operations that this thread may still do.
    fn left(&self, end: &End<'_>) -> u64 {
        end.quota.map_or(u64::MAX, |quota| quota - self.tally.operations().min(quota))
    }

    fn show(&self, elapsed: f64, end: &End<'_>, progress: Option<&ProgressBar>) {
        if let Some(progress) = progress {
            let operations = self.tally.operations() * self.spec.threads as u64;
            progress.set_position(end.seconds.map_or(operations, |_| millis(elapsed)));
        }
    }

    /// Draws a block of `operations` operations.
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
                self.tally.record(kind, began.elapsed());
            } else {
                self.call(kind, keys)?;
            }
            self.tally.operations[kind as usize] += keys.len() as u64;
        }
        (self.kinds, self.keys) = (kinds, keys);
        Ok(())
    }

    /// Makes the one call of the block. If the call's latency is taken, records the service latency
    /// and the intended latency.
    fn make_paced_call(&mut self, started: Instant, intended: Duration) -> Result<()> {
        let (kind, keys) = (self.kinds[0], std::mem::take(&mut self.keys));
        let began = started.elapsed();
        self.call(kind, &keys)?;
        let ended = started.elapsed();
        self.until_timed -= 1;
        if self.until_timed == 0 {
            self.until_timed = self.spec.latency_every;
            self.tally.record(kind, ended.saturating_sub(began));
            self.tally.record_intended(kind, ended.saturating_sub(intended));
        }
        self.tally.operations[kind as usize] += keys.len() as u64;
        self.keys = keys;
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

    /// Inserts `count` new rows. Their keys are new, so an insert does not use the drawn keys.
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
            let limit = self.scan_rows();
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

    /// Draws the length of the next scan.
    fn scan_rows(&mut self) -> u64 {
        let lengths = self.spec.scan_rows_max - self.spec.scan_rows_min + 1;
        let above = match &mut self.scan_ranks {
            Some(zipf) => zipf.draw(lengths, &mut self.random),
            None => self.random.u64(..lengths),
        };
        self.spec.scan_rows_min + above
    }
}
