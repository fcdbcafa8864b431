//! The served bank: open read-only, peeked at by one thread, refreshed by another.
//!
//! **What is checked.** All rows of a peek must be those of one checkpoint. It is the checkpoint
//! that the bank showed before the call, or one that the bank moved to before the end of the call.
//! The run ends with an error if one answer has rows of two checkpoints, a row of an older
//! checkpoint, or a missing row.
//!
//! **How the rows are known.** A checkpoint's blob says how many batches were trained before it.
//! After each refresh, the thread that refreshes draws the batches between the old and the new
//! checkpoint. It sends their keys in a [`Move`]. When the thread that peeks finds the bank at the
//! new checkpoint, it counts these updates. Both happen outside of the measured time.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use embank::{Bank, BankOptions, Missing, Table};
use hdrhistogram::Histogram;

use super::history::{Training, Updates};
use super::percentiles::histogram;
use super::writer::{News, TABLE};
use crate::ground::content::KeyStream;
use crate::ground::loading::for_all_rows;

/// Keys of a warm-up batch.
const WARM_UP_KEYS: usize = 4096;

/// The rows that the reader must find: those of one checkpoint.
#[derive(Debug)]
pub(super) struct Expected {
    checkpoint: u64,
    updates: Updates,
}

impl Expected {
    /// The rows of the first checkpoint, which has `rows` rows as they were loaded.
    pub(super) fn loaded(rows: u64, checkpoint: u64) -> Self {
        Self { checkpoint, updates: Updates::none(rows) }
    }
}

/// A refresh of the read-only bank: before it the bank showed an older checkpoint, and afterwards
/// it shows `checkpoint`.
#[derive(Debug)]
pub(super) struct Move {
    checkpoint: u64,
    /// Keys of the batches between the two checkpoints, each as often as it was trained.
    trained: Vec<u64>,
}

impl Move {
    /// Makes the move to the checkpoint that `bank` shows now. `training` must have drawn the
    /// batches up to the previous checkpoint; this draws the batches after it.
    ///
    /// # Errors
    /// Fails if the checkpoint's blob does not hold the writer's number of batches.
    pub(super) fn to(bank: &Bank, training: &mut Training) -> Result<Self> {
        let at = bank.reading().context("the bank is open read-only")?;
        let blob = at.blob.as_slice().try_into();
        let batches = u64::from_le_bytes(blob.context("wrong answer: a blob of other bytes")?);
        ensure!(batches >= training.batches(), "wrong answer: checkpoint {} is old", at.checkpoint);
        let mut trained = Vec::new();
        while training.batches() < batches {
            trained.extend(training.next_batch());
        }
        Ok(Self { checkpoint: at.checkpoint, trained })
    }
}

/// A bank that is served.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bank: Bank,
    table: Table,
    expected: &'a mut Expected,
    /// Receives the moves of the bank from the thread that refreshes it. `None` while no thread
    /// does.
    pub(super) moves: Option<Receiver<Move>>,
    rows: Vec<f32>,
}

/// The results of requests of one kind over some seconds.
#[derive(Debug)]
pub(super) struct Pass {
    /// Nanoseconds of each request.
    pub(super) took: Histogram<u64>,
    /// The part of the rows that came from the drive.
    pub(super) from_drive: f64,
}

impl<'a> Reader<'a> {
    /// Opens the bank and its table.
    ///
    /// # Errors
    /// Returns the bank's error.
    pub(super) fn open(
        path: &Path,
        memory_budget_bytes: u64,
        expected: &'a mut Expected,
    ) -> Result<Self> {
        let options = BankOptions { memory_budget_bytes, ..BankOptions::default() };
        let bank = Bank::open_read_only(path, options, None)?;
        let table = bank.open_table(TABLE)?;
        Ok(Self { bank, table, expected, moves: None, rows: Vec::new() })
    }

    /// A handle of the bank, for the thread that refreshes it.
    pub(super) fn bank(&self) -> Bank {
        self.bank.clone()
    }

    /// Returns the checkpoint that the last peek showed.
    pub(super) fn checkpoint(&self) -> u64 {
        self.expected.checkpoint
    }

    /// Peeks at keys and checks every row. Returns the time of the peek.
    ///
    /// # Errors
    /// Fails if the bank fails, a row is missing, or the rows are not the rows of one checkpoint.
    pub(super) fn peek(&mut self, keys: &[u64]) -> Result<Duration> {
        self.catch_up()?;
        let dim = self.table.dim();
        self.rows.resize(keys.len() * dim, 0.0);
        // Clears the buffer, so that rows of an earlier peek cannot pass the check.
        self.rows.fill(0.0);
        let began = Instant::now();
        self.table.peek(keys, &mut self.rows, Missing::Error)?;
        let took = began.elapsed();
        let last = self.at()?;
        // The loop ends because each turn moves to a later checkpoint, up to the bank's checkpoint.
        while let Some(key) = self.expected.updates.wrong(keys, dim, &self.rows) {
            let first = self.expected.checkpoint;
            ensure!(
                first < last,
                "wrong answer: the row of key {key}, one of {} in a peek, is not that of checkpoint {last}",
                keys.len()
            );
            self.follow_one()?;
        }
        Ok(took)
    }

    /// Peeks at `count` keys a request for about `duration`.
    ///
    /// # Errors
    /// Fails as [`peek`](Self::peek) does.
    pub(super) fn pass(
        &mut self,
        keys: &mut KeyStream,
        count: usize,
        duration: Duration,
    ) -> Result<Pass> {
        let mut took = histogram()?;
        let (began, before) = (Instant::now(), self.rows_from_drive());
        while took.is_empty() || began.elapsed() < duration {
            let nanoseconds = self.peek(&keys.draw(count))?.as_nanos() as u64;
            took.record(nanoseconds).context("a peek of years")?;
        }
        let asked = took.len() * count as u64;
        let from_drive = (self.rows_from_drive() - before) as f64 / asked as f64;
        Ok(Pass { took, from_drive })
    }

    /// Peeks at keys for about `duration`, to fill the cache.
    ///
    /// # Errors
    /// Fails as [`peek`](Self::peek) does.
    pub(super) fn warm_up(&mut self, keys: &mut KeyStream, duration: Duration) -> Result<()> {
        self.pass(keys, WARM_UP_KEYS, duration).map(|_| ())
    }

    /// Peeks at every row, in the order of loading. Returns the part that came from the drive.
    ///
    /// # Errors
    /// Fails as [`peek`](Self::peek) does.
    pub(super) fn peek_at_all(&mut self) -> Result<f64> {
        let rows = self.expected.updates.rows();
        let before = self.rows_from_drive();
        for_all_rows("peeking at all", rows, 1, |keys, _| self.peek(keys).map(|_| ()))?;
        Ok((self.rows_from_drive() - before) as f64 / rows as f64)
    }

    /// Moves the expected rows to the checkpoint that the bank shows.
    ///
    /// # Errors
    /// Fails if the bank shows a checkpoint that no refresh has announced.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        let at = self.at()?;
        // The loop ends because each move leads to a later checkpoint, and one of them to `at`.
        while self.expected.checkpoint < at {
            self.follow_one()?;
        }
        ensure!(
            self.expected.checkpoint == at,
            "wrong answer: the bank went back to checkpoint {at}"
        );
        Ok(())
    }

    fn follow_one(&mut self) -> Result<()> {
        let Some(moves) = &self.moves else {
            bail!("wrong answer: the bank left its checkpoint without a refresh");
        };
        // The other thread sends the move right after the refresh, so this wait is short.
        let next = moves.recv().context("the thread that refreshes has ended")?;
        self.expected.updates.note(&next.trained);
        self.expected.checkpoint = next.checkpoint;
        Ok(())
    }

    fn at(&self) -> Result<u64> {
        Ok(self.bank.reading().context("the bank is open read-only")?.checkpoint)
    }

    fn rows_from_drive(&self) -> u64 {
        self.bank.stats().store.hits_disk
    }
}

/// The results of the thread that refreshes.
#[derive(Debug)]
pub(super) struct Followed {
    /// The time of each refresh.
    pub(super) refreshes: Vec<Duration>,
    /// Rows a second that the writer trained. The time includes the writer's checkpoints.
    pub(super) trained_per_second: f64,
}

/// Refreshes `bank` after each checkpoint of the writer, until the writer rests.
///
/// # Errors
/// Fails if the bank fails, a refresh does not reach the checkpoint, or the writer's process ends.
pub(super) fn follow(
    bank: &Bank,
    news: &Receiver<News>,
    training: &mut Training,
    moves: Sender<Move>,
) -> Result<Followed> {
    let (began, mut refreshes) = (Instant::now(), Vec::new());
    let mut at = 0;
    // The loop ends when the writer reports that it rests, which `mod.rs` orders even after an
    // error. If the writer's process ends, its channel of news closes.
    loop {
        match news.recv().context("the writer's process has ended; its error is above")? {
            News::Checkpoint(number) if number > at => {
                let refreshing = Instant::now();
                at = bank.refresh()?;
                refreshes.push(refreshing.elapsed());
                ensure!(at >= number, "wrong answer: a refresh led to {at}, not to {number}");
                // Sending fails if the thread that peeks has ended with an error, which that thread
                // reports.
                let _ = moves.send(Move::to(bank, training)?);
            }
            // The bank is already at this checkpoint or a later one, because an earlier refresh
            // moved it there.
            News::Checkpoint(_) => {}
            News::Resting { rows } => {
                let trained_per_second = rows as f64 / began.elapsed().as_secs_f64();
                return Ok(Followed { refreshes, trained_per_second });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::ground::content::Popularity;
    use crate::measure::serving::writer::{Task, Trainer};

    #[test]
    fn a_peek_is_held_against_the_checkpoint_that_the_bank_is_at() {
        let directory = tempfile::tempdir().unwrap();
        let (rows, memory_budget_bytes) = (2_000, 4 << 20);
        let task = Task {
            bank: directory.path().join("bank"),
            rows,
            dim: 8,
            memory_budget_bytes,
            zipf: 0.9,
            batch: 256,
            checkpoint_every_seconds: 1.0,
            seed: 5,
        };
        let mut trainer = Trainer::begin(&task).unwrap();
        let mut expected = Expected::loaded(rows, trainer.checkpoint().unwrap());
        let mut reader = Reader::open(&task.bank, memory_budget_bytes, &mut expected).unwrap();
        let (tell, moves) = mpsc::channel();
        reader.moves = Some(moves);
        let mut training = task.training();
        let mut keys = KeyStream::of(Popularity::Uniform, 1, rows);
        for _ in 0..3 {
            for _ in 0..4 {
                assert!(trainer.step().unwrap() > 0);
            }
            trainer.checkpoint().unwrap();
            reader.peek_at_all().unwrap();
            reader.bank().refresh().unwrap();
            tell.send(Move::to(&reader.bank, &mut training).unwrap()).unwrap();
            let pass = reader.pass(&mut keys, 64, Duration::ZERO).unwrap();
            assert_eq!(pass.took.len(), 1);
            reader.peek_at_all().unwrap();
        }
        // Trains one batch that the reader does not know.
        trainer.step().unwrap();
        trainer.step().unwrap();
        trainer.checkpoint().unwrap();
        reader.bank().refresh().unwrap();
        let mut told = Move::to(&reader.bank, &mut training).unwrap();
        told.trained.truncate(task.training().next_batch().len() / 2);
        tell.send(told).unwrap();
        let error = reader.peek_at_all().unwrap_err();
        assert!(format!("{error:#}").contains("wrong answer"), "{error:#}");
    }
}
