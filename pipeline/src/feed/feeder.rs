//! Cuts the rows of a run into batches, and sends them to the feed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use embank::locks::Mutex;

use super::shuffle::Shuffle;
use crate::batch::{Batch, MatrixInfo, Pool};
use crate::error::{Error, Result};
use crate::execute::{Consumer, FeedPlace};
use crate::options::FeedOptions;

/// A batch reserves memory for at most this number of values of a matrix. A larger batch grows
/// as it fills.
const RESERVED_VALUES: usize = 16 << 20;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The consumer of a feed's run.
pub(super) struct Feeder {
    shuffle: Option<Arc<Mutex<Shuffle>>>,
    skip_rows: u64,
    /// True once the run has sent a batch.
    began: bool,
    cut: BatchCutter,
}

impl Feeder {
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) if there is no memory for the shuffle buffer.
    pub(super) fn new(
        infos: Arc<[MatrixInfo]>,
        options: &FeedOptions,
        stop: Arc<AtomicBool>,
        to: SyncSender<Batch>,
        pool: Arc<Pool>,
    ) -> Result<Self> {
        let shuffle = match options.shuffle_rows {
            0 => None,
            rows => {
                let shuffle = Shuffle::new(Arc::clone(&infos), rows, options.seed)?;
                Some(Arc::new(Mutex::new(shuffle)))
            }
        };
        let mut cut = BatchCutter {
            batch_rows: options.batch_rows,
            drop_last: options.drop_last,
            skip: options.skip_rows,
            position: options.skip_rows,
            input_bytes: 0,
            inputs: 0,
            place: None,
            batch: Batch::lent(infos, &pool),
            pool,
            stop,
            to,
        };
        cut.reserve();
        Ok(Self { shuffle, skip_rows: options.skip_rows, began: false, cut })
    }

    /// The buffer of a feed that shuffles.
    pub(super) fn shuffle(&self) -> Option<Arc<Mutex<Shuffle>>> {
        self.shuffle.clone()
    }

    /// Sends the remaining rows after the run's last batch. The run had `rows` rows.
    ///
    /// # Errors
    /// [`Error::SkipsTooMany`] if the run had fewer rows than the feed skips. Without this error,
    /// the caller would take the empty feed for a complete one.
    pub(super) fn finish(&mut self, rows: u64) -> Result<()> {
        if let Some(shuffle) = &self.shuffle
            && shuffle.lock().finish(&mut self.cut).is_err()
        {
            return Ok(());
        }
        let skip_rows = self.skip_rows;
        if rows < skip_rows {
            return Err(Error::SkipsTooMany { skip_rows, rows });
        }
        if self.cut.batch.rows > 0 && !self.cut.drop_last {
            // A failed send means that the feed was closed.
            let _ = self.cut.send();
        }
        Ok(())
    }
}

impl Consumer for Feeder {
    fn consume(&mut self, batch: &mut Batch) -> std::result::Result<(), Failure> {
        // Relaxed: the comment in `Feed::close` gives the reason.
        if self.cut.stop.load(Ordering::Relaxed) {
            return Err(Stopped.into());
        }
        if !self.began {
            self.began = true;
            // The run has passed over the rows before its first batch. Those that the feed returned
            // are not more than those to skip: the feed begins at no later place.
            let passed = match &self.shuffle {
                Some(shuffle) => shuffle.lock().given_back(batch.first_row),
                None => batch.first_row,
            };
            self.cut.skip = self.cut.skip.saturating_sub(passed);
        }
        self.cut.input_bytes = batch.input_bytes;
        self.cut.inputs = batch.inputs;
        self.cut.place.clone_from(&batch.place);
        match &mut self.shuffle {
            Some(shuffle) => shuffle.lock().push(batch, &mut self.cut)?,
            None => {
                let mut row = self.cut.skipped(batch.rows);
                // The loop ends: each round takes at least one row.
                while row < batch.rows {
                    let rows = self.cut.room().min(batch.rows - row);
                    self.cut.batch.append(batch, row..row + rows);
                    row += rows;
                    self.cut.send_if_full()?;
                }
            }
        }
        Ok(())
    }
}

/// The error of a run whose feed was closed.
#[derive(Debug, thiserror::Error)]
#[error("the feed was closed")]
pub(super) struct Stopped;

/// Cuts rows into batches and sends each full batch.
pub(super) struct BatchCutter {
    batch_rows: usize,
    drop_last: bool,
    /// Rows that remain to be skipped.
    skip: u64,
    /// Number of the first row of the current batch.
    position: u64,
    /// Bytes of input read for the rows received so far.
    input_bytes: u64,
    /// Number of inputs that the rows received so far came from.
    inputs: usize,
    /// The place before the chunk of the last row received.
    place: Option<Arc<FeedPlace>>,
    pub(super) batch: Batch,
    /// Lends the memory of the batches.
    pool: Arc<Pool>,
    stop: Arc<AtomicBool>,
    to: SyncSender<Batch>,
}

impl BatchCutter {
    /// Returns how many of the next `rows` rows to skip.
    pub(super) fn skipped(&mut self, rows: usize) -> usize {
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rows);
        self.skip -= skipped as u64;
        skipped
    }

    /// Rows that still fit in the batch; at least one.
    pub(super) fn room(&self) -> usize {
        self.batch_rows - self.batch.rows
    }

    pub(super) fn send_if_full(&mut self) -> std::result::Result<(), Stopped> {
        if self.batch.rows < self.batch_rows { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> std::result::Result<(), Stopped> {
        let mut batch = self.batch.take();
        batch.first_row = self.position;
        batch.input_bytes = self.input_bytes;
        batch.inputs = self.inputs;
        batch.place.clone_from(&self.place);
        self.position += batch.rows as u64;
        self.to.send(batch).map_err(|_| Stopped)?;
        // Lent after the send, which may wait: memory may return in the meantime.
        self.batch = Batch::lent(Arc::clone(&self.batch.infos), &self.pool);
        self.reserve();
        Ok(())
    }

    fn reserve(&mut self) {
        let batch_rows = self.batch_rows;
        for (values, width) in self.batch.matrices_mut() {
            values.reserve(batch_rows.saturating_mul(width).min(RESERVED_VALUES));
        }
    }
}
