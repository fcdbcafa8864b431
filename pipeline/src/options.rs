//! Options: how a pipeline runs, feeds and serves.

#[cfg(feature = "flight")]
use std::time::Duration;

use std::path::PathBuf;

use crate::arrays::Decoders;
use crate::decode::Level;
use crate::error::{Error, Result, refused};
use crate::execute::FeedPlace;
use crate::feed::InputId;
use crate::format::Format;

/// Default bytes of a chunk of text. A chunk of this size has some thousand rows.
const CHUNK_BYTES: usize = 512 << 10;
/// Largest number of threads of a run. No machine has as many cores.
const THREADS_MAX: usize = 4096;
/// Largest chunk. Offsets within a chunk, and within a long line that begins in it, must fit in 32
/// bits.
const CHUNK_BYTES_MAX: usize = 1 << 30;
/// Largest number of rows of a batch. Also the largest number of rows of a shuffle buffer.
const ROWS_MAX: usize = 1 << 31;

/// Largest number of batches in a feed's channel. The channel allocates memory for each place when
/// it is made.
const BATCHES_AHEAD_MAX: usize = 1 << 16;

/// Options of a pipeline's runs.
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
    /// Number of threads. Default: the cores that the process may use.
    pub threads: usize,
    /// Vector instructions that decoding may use. Default: the best level that the processor has.
    pub level: Level,
    /// Format of the inputs. Default: [`Format::TSV`].
    pub format: Format,
    /// Bytes of a chunk. A thread works on one chunk at a time, and a batch holds the rows of one
    /// chunk. Default: 512 KiB.
    pub chunk_bytes: usize,
    /// The folder below which the files of fields of kind [`File`](crate::FieldKind::File) lie.
    /// Default: none, which such fields refuse.
    pub root: Option<PathBuf>,
    /// The decoders that columns name ([`Operator::Decode`](crate::Operator::Decode)). Default:
    /// none.
    pub decoders: Decoders,
    /// Bytes of memory for arrays that decoders have made. Later runs of the pipeline take them
    /// from there. What came first stays. Default: 0, which keeps none.
    pub cache_bytes: u64,
    /// Where arrays are kept on disk, for later runs and later processes. Default: nowhere.
    pub spool: Option<SpoolOptions>,
    /// Whether to measure the time of each stage. A traced run takes a few percent longer. Default:
    /// false.
    pub trace: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            level: Level::detect(),
            format: Format::TSV,
            chunk_bytes: CHUNK_BYTES,
            root: None,
            decoders: Decoders::default(),
            cache_bytes: 0,
            spool: None,
            trace: false,
        }
    }
}

impl RunOptions {
    /// Checks that a pipeline can run with these options.
    ///
    /// # Errors
    /// [`Error::Spec`] if an option is out of its range; the message names it.
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

    /// Sets the number of threads of later runs to `threads`, limited to the range 1 to 4,096.
    pub(crate) fn set_threads(&mut self, threads: usize) {
        self.threads = threads.clamp(1, THREADS_MAX);
    }
}

/// Arrays on disk. Several pipelines and processes may use one folder at a time. It holds arrays of
/// any specs, and a pipeline finds those that it would make.
///
/// # Examples
/// ```
/// use embank_pipeline::{RunOptions, SpoolOptions};
///
/// let spool = SpoolOptions::new("/scratch/pictures", 100 << 30);
/// let options = RunOptions { spool: Some(spool), ..Default::default() };
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpoolOptions {
    /// The folder. It is made if it is missing. Remove its files to give the space back.
    pub folder: PathBuf,
    /// Bytes that the files of the folder may have. What came first stays. A pipeline counts the
    /// files that are there when it is made, and those that it adds.
    pub bytes: u64,
}

impl SpoolOptions {
    /// Keeps arrays in `folder`, up to `bytes` bytes of files.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, bytes: u64) -> Self {
        Self { folder: folder.into(), bytes }
    }
}

/// How a feed makes batches.
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
    /// Rows of a batch. Default: 4096.
    pub batch_rows: usize,
    /// Whether to drop the last rows if they do not fill a batch. Default: false, which returns
    /// these rows as a last, shorter batch.
    pub drop_last: bool,
    /// Rows that the shuffle buffer holds. Each new row takes the place of a random row of the
    /// buffer, and the feed returns the row that was there. Default: 0, which keeps the order of
    /// the input.
    pub shuffle_rows: usize,
    /// Seed of the shuffle. Default: 0.
    pub seed: u64,
    /// Number of rows at the beginning that the feed skips. To continue where another feed stopped,
    /// use [`resume`](Self::resume), which also compares the inputs. Default: 0.
    pub skip_rows: u64,
    /// The inputs that the skipped rows came from. The feed fails with
    /// [`Error::OtherInputs`] if its inputs do not begin with these. Default: empty, which skips
    /// without a check.
    pub skipped_inputs: Vec<InputId>,
    /// A [place](FeedPlace) at which the feed may begin to read. Set by
    /// [`resume`](Self::resume). Default: none, which reads all rows.
    pub skipped_place: Option<FeedPlace>,
    /// Batches that may be ready beside the one that the caller uses. Default: 2.
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
            skipped_inputs: Vec::new(),
            skipped_place: None,
            batches_ahead: 2,
        }
    }
}

impl FeedOptions {
    /// Checks that a feed can be made with these options.
    ///
    /// # Errors
    /// [`Error::Spec`] if an option is out of its range; the message names it.
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

/// How a server serves a feed.
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
    /// How batches are made. A client may ask for another seed and another first row.
    pub feed: FeedOptions,
    /// Largest number of bytes of values in a message. A larger batch is sent as several messages,
    /// for clients that limit the size of a message. A client in Rust takes 4 MiB by default,
    /// headers included. Default: `None`, which sends each batch as one message.
    pub message_bytes: Option<usize>,
    /// How long a client waits while other clients have the feed. After this time the server
    /// refuses the waiting client. An epoch of several parts waits as long for a client of each
    /// part, and then fails for the clients that came. Default: 10 s.
    pub wait: Duration,
    /// Whether a client gets a batch only when a checkpoint of the pipeline's bank has the values
    /// that the epoch gave ids to. The server then takes a checkpoint if new values have come since
    /// the last one. The checkpoint has the blob of the one at which the bank was opened. The
    /// pipeline must number in a bank. Default: false.
    pub checkpoints: bool,
}

#[cfg(feature = "flight")]
impl Default for FlightOptions {
    fn default() -> Self {
        Self {
            feed: FeedOptions::default(),
            message_bytes: None,
            wait: Duration::from_secs(10),
            checkpoints: false,
        }
    }
}
