//! One thread of a soak: batches of every kind over its own keys, and peeks at the keys of other
//! workers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use embank_kv::{Access, Clock, Operation, Store, TableId};
use hdrhistogram::Histogram;

use super::model::{Model, ROW_BYTES, ROW_WORDS, check_row, fill};
use crate::ground::content::{KeyStream, scattered};

/// Sizes of batches, each drawn equally often.
const BATCH_KEYS: [usize; 4] = [1, 32, 1024, 4096];

/// Longest latency of the histograms, an hour. A longer one counts as an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// The operation of a batch. [`Kind::draw`] has the probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    Put,
    Update,
    Delete,
    Peek,
    PeekAtOthers,
}

impl Kind {
    fn draw(stream: &mut KeyStream) -> Self {
        match stream.below(100) {
            0..25 => Kind::Get,
            25..60 => Kind::Put,
            60..75 => Kind::Update,
            75..80 => Kind::Delete,
            80..90 => Kind::Peek,
            _ => Kind::PeekAtOthers,
        }
    }
}

/// The results of one worker thread: the latencies and counts of its operations.
#[derive(Debug)]
pub(super) struct Harvest {
    /// Latencies of single keys, in nanoseconds.
    pub(super) single: Histogram<u64>,
    /// Latencies of larger batches, in nanoseconds.
    pub(super) batch: Histogram<u64>,
    pub(super) keys: u64,
}

impl Harvest {
    /// Empty results.
    ///
    /// # Errors
    /// Never fails, because the histogram accepts three digits.
    pub(super) fn new() -> Result<Self> {
        let histogram =
            || Histogram::new_with_max(LONGEST_NS, 3).map_err(|e| anyhow!("a histogram: {e}"));
        Ok(Self { single: histogram()?, batch: histogram()?, keys: 0 })
    }

    fn note(&mut self, keys: usize, took: Duration) {
        let histogram = if keys == 1 { &mut self.single } else { &mut self.batch };
        histogram.saturating_record(took.as_nanos() as u64);
        self.keys += keys as u64;
    }

    /// Adds the results of another worker.
    ///
    /// # Errors
    /// Never fails, because all histograms have equal limits.
    pub(super) fn add(&mut self, other: &Harvest) -> Result<()> {
        self.single.add(&other.single).context("adding histograms")?;
        self.batch.add(&other.batch).context("adding histograms")?;
        self.keys += other.keys;
        Ok(())
    }
}

/// A worker thread.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    pub(super) store: &'a Store,
    pub(super) table: TableId,
    pub(super) model: &'a Model,
    pub(super) number: u64,
    pub(super) workers: u64,
    pub(super) seed: u64,
}

impl Worker<'_> {
    /// Works until `now` returns `None`, which means that the run is over. Otherwise `now` returns
    /// the part of the keys that is in use.
    ///
    /// # Errors
    /// Fails if an answer is wrong or the store fails.
    pub(super) fn run(&self, now: impl Fn() -> Option<f64>) -> Result<Harvest> {
        let mut harvest = Harvest::new()?;
        let mut stream = KeyStream::new(self.seed ^ (self.number << 32), 0, 1, 2);
        let mut rows = Vec::new();
        while let Some(part) = now() {
            let kind = Kind::draw(&mut stream);
            let size = BATCH_KEYS[stream.below(BATCH_KEYS.len() as u64) as usize];
            let keys = self.draw(&mut stream, kind, size, part);
            rows.clear();
            rows.resize(keys.len() * ROW_WORDS, 0);
            let took = self
                .batch(kind, &keys, &mut rows)
                .with_context(|| format!("a batch of {} keys, {kind:?}", keys.len()))?;
            harvest.note(keys.len(), took);
        }
        Ok(harvest)
    }

    /// Draws distinct keys: half of the batches uniform, half heavily skewed.
    fn draw(&self, stream: &mut KeyStream, kind: Kind, size: usize, part: f64) -> Vec<u64> {
        let share = self.model.keys() / self.workers;
        let used = ((share as f64 * part) as u64).clamp(1, share);
        let skewed = stream.below(2) == 0;
        let owner = match kind {
            Kind::PeekAtOthers => stream.below(self.workers),
            _ => self.number,
        };
        let mut keys: Vec<u64> = (0..size)
            .map(|_| {
                // The product of three uniform numbers gives a tenth of the keys more than half of
                // the draws.
                let bound = if skewed {
                    let bound = stream.below(used) + 1;
                    stream.below(bound) + 1
                } else {
                    used
                };
                scattered(stream.below(bound), used) * self.workers + owner
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn batch(&self, kind: Kind, keys: &[u64], rows: &mut [u64]) -> Result<Duration> {
        match kind {
            Kind::Get => {
                let (found, took) = self.read::<{ READ_GET }>(keys, rows)?;
                keys.iter()
                    .zip(found)
                    .try_for_each(|(&key, row)| self.model.check_own(key, row))?;
                Ok(took)
            }
            Kind::Peek => {
                let (found, took) = self.read::<{ READ_PEEK }>(keys, rows)?;
                keys.iter()
                    .zip(found)
                    .try_for_each(|(&key, row)| self.model.check_own(key, row))?;
                Ok(took)
            }
            Kind::PeekAtOthers => {
                let before: Vec<_> = keys.iter().map(|&key| self.model.word(key)).collect();
                let (found, took) = self.read::<{ READ_PEEK }>(keys, rows)?;
                for ((&key, row), before) in keys.iter().zip(found).zip(before) {
                    self.model.check_foreign(key, before, row)?;
                }
                Ok(took)
            }
            Kind::Put => self.put(keys, rows),
            Kind::Update => self.update(keys),
            Kind::Delete => self.delete(keys),
        }
    }

    /// Reads rows. Returns each row, or `None` if it is missing, and the time.
    fn read<'r, const HOW: u8>(
        &self,
        keys: &[u64],
        rows: &'r mut [u64],
    ) -> Result<(Vec<Option<&'r [u64]>>, Duration)> {
        let started = Instant::now();
        let mut operation = Read::<HOW>(rows);
        let outcome = self.store.execute(self.table, keys, Clock::Keep, &mut operation)?;
        let took = started.elapsed();
        let mut found: Vec<Option<&[u64]>> = rows.chunks_exact(ROW_WORDS).map(Some).collect();
        outcome.missing.iter().for_each(|&i| found[i as usize] = None);
        Ok((found, took))
    }

    fn put(&self, keys: &[u64], rows: &mut [u64]) -> Result<Duration> {
        for (&key, row) in keys.iter().zip(rows.chunks_exact_mut(ROW_WORDS)) {
            fill(key, self.model.word(key).version() + 1, row);
            self.model.begin_change(key);
        }
        let started = Instant::now();
        let outcome = self.store.execute(self.table, keys, Clock::Keep, &mut Put(rows))?;
        let took = started.elapsed();
        ensure!(outcome.missing.is_empty(), "wrong answer: a put row is reported missing");
        keys.iter().for_each(|&key| self.model.end_change(key, true));
        Ok(took)
    }

    fn update(&self, keys: &[u64]) -> Result<Duration> {
        keys.iter().for_each(|&key| self.model.begin_change(key));
        let mut operation = Update { keys, wrong: vec![None; keys.len()], model: self.model };
        let started = Instant::now();
        let outcome = self.store.execute(self.table, keys, Clock::Keep, &mut operation)?;
        let took = started.elapsed();
        if let Some(wrong) = operation.wrong.into_iter().flatten().next() {
            return Err(anyhow!(wrong));
        }
        let mut there = vec![true; keys.len()];
        outcome.missing.iter().for_each(|&i| there[i as usize] = false);
        for (&key, there) in keys.iter().zip(there) {
            ensure!(
                there == self.model.word(key).is_present(),
                "wrong answer: an update finds the row of key {key} {}",
                if there { "though it was deleted" } else { "missing" }
            );
            if there {
                self.model.end_change(key, true);
            } else {
                self.model.cancel_change(key);
            }
        }
        Ok(took)
    }

    fn delete(&self, keys: &[u64]) -> Result<Duration> {
        let there = keys.iter().filter(|&&key| self.model.word(key).is_present()).count() as u64;
        keys.iter().for_each(|&key| self.model.begin_change(key));
        let started = Instant::now();
        let deleted = self.store.delete(self.table, keys)?;
        let took = started.elapsed();
        ensure!(deleted == there, "wrong answer: {deleted} rows deleted where there were {there}");
        for &key in keys {
            if self.model.word(key).is_present() {
                self.model.end_change(key, false);
            } else {
                self.model.cancel_change(key);
            }
        }
        Ok(took)
    }
}

/// Reads every row of the model. Must be called while no worker changes a row.
///
/// # Errors
/// Fails if an answer is wrong or the store fails.
pub(super) fn check_all(store: &Store, table: TableId, model: &Model) -> Result<()> {
    let all = Worker { store, table, model, number: 0, workers: 1, seed: 0 };
    let mut rows = vec![0; BATCH_KEYS[3] * ROW_WORDS];
    let mut first = 0;
    while first < model.keys() {
        let keys: Vec<u64> = (first..model.keys().min(first + BATCH_KEYS[3] as u64)).collect();
        let (found, _) = all.read::<{ READ_PEEK }>(&keys, &mut rows[..keys.len() * ROW_WORDS])?;
        keys.iter().zip(found).try_for_each(|(&key, row)| model.check_own(key, row))?;
        first += keys.len() as u64;
    }
    Ok(())
}

const READ_GET: u8 = 0;
const READ_PEEK: u8 = 1;

/// Copies rows out of the store.
struct Read<'a, const HOW: u8>(&'a mut [u64]);

impl<const HOW: u8> Operation for Read<'_, HOW> {
    const ACCESS: Access = if HOW == READ_GET { Access::Get } else { Access::Peek };

    fn read(&mut self, i: usize, value: &[u8]) {
        let row: &mut [u8] = bytemuck::cast_slice_mut(&mut self.0[i * ROW_WORDS..][..ROW_WORDS]);
        row.copy_from_slice(value);
    }
}

/// Copies rows into the store.
struct Put<'a>(&'a [u64]);

impl Operation for Put<'_> {
    const ACCESS: Access = Access::Put;

    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(bytemuck::cast_slice(&self.0[i * ROW_WORDS..][..ROW_WORDS]));
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Changes each row from its version to the next. The store may call `update` several times for a
/// row. Only the last call counts.
struct Update<'a> {
    keys: &'a [u64],
    wrong: Vec<Option<String>>,
    model: &'a Model,
}

impl Operation for Update<'_> {
    const ACCESS: Access = Access::Update;

    fn update(&mut self, i: usize, value: &mut [u8]) {
        let key = self.keys[i];
        let expected = self.model.word(key).version();
        let mut row = [0; ROW_WORDS];
        let bytes: &mut [u8; ROW_BYTES] = bytemuck::cast_mut(&mut row);
        bytes.copy_from_slice(value);
        self.wrong[i] = match check_row(key, &row) {
            Ok(version) if version == expected => None,
            Ok(version) => Some(format!(
                "wrong answer: an update finds version {version} of key {key}, not {expected}"
            )),
            Err(wrong) => Some(wrong.to_string()),
        };
        fill(key, expected + 1, &mut row);
        value.copy_from_slice(bytemuck::bytes_of(&row));
    }
}
