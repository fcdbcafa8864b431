//! What a user sets: how a pipeline runs, feeds and serves.

#[cfg(feature = "flight")]
use std::time::Duration;

use crate::decode::Level;
use crate::error::{Error, Result, refused};
use crate::format::Format;

/// Bytes of a chunk of text: some thousand rows.
const CHUNK_BYTES: usize = 512 << 10;
/// More threads than any machine has cores.
const THREADS_MAX: usize = 4096;
/// Places in a chunk, and in the longest line after it, are numbers of 32 bits.
const CHUNK_BYTES_MAX: usize = 1 << 30;
/// Most rows of a batch or a shuffle buffer.
const ROWS_MAX: usize = 1 << 31;

/// Each place of the channel takes memory, filled or not.
const BATCHES_AHEAD_MAX: usize = 1 << 16;

/// How to run a pipeline.
///
/// # Examples
/// ```
/// use embank_pipeline::RunOptions;
///
/// let options = RunOptions { threads: 2, ..Default::default() };
/// assert_eq!(options.format, embank_pipeline::Format::TSV);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RunOptions {
    /// Threads. Default: as many as the machine has cores for this process.
    pub threads: usize,
    /// What decoding may use. Default: the best that the processor has.
    pub level: Level,
    /// How rows lie in the input. Default: [`Format::TSV`].
    pub format: Format,
    /// Bytes of a chunk: what a thread works on at a time, and a batch holds. Default: 512 KiB.
    pub chunk_bytes: usize,
    /// Whether to measure where the time goes, which takes some percent of it. Default: no.
    pub trace: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            level: Level::detect(),
            format: Format::TSV,
            chunk_bytes: CHUNK_BYTES,
            trace: false,
        }
    }
}

impl RunOptions {
    /// Whether a pipeline can run so.
    ///
    /// # Errors
    /// [`Error::Spec`], which names the option.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=THREADS_MAX).contains(&self.threads) {
            let given = self.threads;
            return refused(format!("it runs with 1 to {THREADS_MAX} threads, not {given}"));
        }
        if !Level::available().contains(&self.level) {
            let given = self.level;
            return refused(format!(
                "this processor has no {given} instructions; Level::detect() finds what it has"
            ));
        }
        if !(1..=CHUNK_BYTES_MAX).contains(&self.chunk_bytes) {
            let given = self.chunk_bytes;
            return refused(format!(
                "chunks are of 1 byte to 1 GiB, not of {given}; 512 KiB is a good size"
            ));
        }
        Ok(())
    }

    /// Later runs use `threads` threads, one at least and 4,096 at most.
    pub(crate) fn set_threads(&mut self, threads: usize) {
        self.threads = threads.clamp(1, THREADS_MAX);
    }
}

/// How to feed.
///
/// # Examples
/// ```
/// use embank_pipeline::FeedOptions;
///
/// let options = FeedOptions { batch_rows: 2048, shuffle_rows: 100_000, ..Default::default() };
/// options.check()?;
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedOptions {
    /// Rows of each batch. Default: 4096.
    pub batch_rows: usize,
    /// Whether rows that are left over at the end and make no whole batch are dropped. Default:
    /// no, they are the last batch.
    pub drop_last: bool,
    /// Rows that wait in the shuffle buffer. Each row that comes in sends a random one of them
    /// out. Default: 0, the order of the input.
    pub shuffle_rows: usize,
    /// Of the shuffle. Default: 0.
    pub seed: u64,
    /// Rows at the beginning of the feed that are made, but not handed out: a feed goes on at
    /// another one's [`next_row`](crate::Feed::next_row) so. Default: 0.
    pub skip_rows: u64,
    /// Batches that may be ready beside the one in hand. Default: 2.
    pub batches_ahead: usize,
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self {
            batch_rows: 4096,
            drop_last: false,
            shuffle_rows: 0,
            seed: 0,
            skip_rows: 0,
            batches_ahead: 2,
        }
    }
}

impl FeedOptions {
    /// Whether a feed can be made so.
    ///
    /// # Errors
    /// [`Error::Spec`] which names the option.
    pub fn check(&self) -> Result<()> {
        let refused = |option: &str, found: usize, least: usize| {
            Err(Error::Spec(format!("{option} is {found}, and must be {least} to {ROWS_MAX}")))
        };
        if self.batch_rows == 0 || self.batch_rows > ROWS_MAX {
            return refused("batch_rows", self.batch_rows, 1);
        }
        if self.shuffle_rows > ROWS_MAX {
            return refused("shuffle_rows", self.shuffle_rows, 0);
        }
        if self.batches_ahead == 0 || self.batches_ahead > BATCHES_AHEAD_MAX {
            return refused("batches_ahead", self.batches_ahead, 1);
        }
        Ok(())
    }
}

/// How to serve a feed.
///
/// # Examples
/// ```
/// use embank_pipeline::{FeedOptions, FlightOptions};
///
/// let feed = FeedOptions { batch_rows: 65_536, ..Default::default() };
/// // For clients that take no messages above 4 MiB.
/// let options = FlightOptions { feed, message_bytes: Some(3 << 20), ..Default::default() };
/// assert_eq!(options.wait.as_secs(), 10);
/// ```
#[cfg(feature = "flight")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlightOptions {
    /// How batches are made. Clients may ask for another seed and another first row.
    pub feed: FeedOptions,
    /// Most bytes of values in a message; a larger batch goes out as several messages. For clients
    /// that limit the size of a message, as those in Rust do by default: 4 MiB, headers included.
    /// Default: `None`, a batch is a message.
    pub message_bytes: Option<usize>,
    /// How long a client that comes while another one has the feed waits for it before it is
    /// refused. Default: 10 s.
    pub wait: Duration,
}

#[cfg(feature = "flight")]
impl Default for FlightOptions {
    fn default() -> Self {
        Self { feed: FeedOptions::default(), message_bytes: None, wait: Duration::from_secs(10) }
    }
}
