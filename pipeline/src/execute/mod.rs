//! Runs a pipeline over its input.
//!
//! One pass, pipelined: every thread claims a chunk of whole lines, decodes it block by block, runs the columns'
//! kernels while the block is in the processor's cache, and looks values up in the shared tables, without a lock.
//! Values that have no id yet go into a list of the chunk. Then the chunk is put down, and committed when all before it
//! are ([`order`]): what is on the list is given its ids, in the order of the rows, and the batch goes to the consumer.
//! So ids and batches are the same with any number of threads, and nothing is merged afterwards.

mod apply;
mod commit;
mod order;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::batch::{Batch, MatrixInfo};
use crate::decode::{Level, row_bytes};
use crate::error::{BadRowReport, Error, Result};
use crate::input::{Chunks, Input};
use crate::plan::Plan;
use crate::spec::{BadRows, Format, Spec};
use crate::stream::Cut;
use crate::trace::{ReadBusy, Trace};
use crate::vocabulary::{DirectTable, Growing};
use commit::Committer;
use order::Order;

/// Of text, so many bytes are a chunk: some thousand rows.
const CHUNK_BYTES: usize = 512 << 10;
/// Places in a chunk, and in the longest line after it, are numbers of 32 bits.
const CHUNK_BYTES_MAX: usize = 1 << 30;
/// Chunks that may be under way for each thread: what is finished waits for what is not.
const CHUNKS_A_THREAD: usize = 16;
/// So many bad rows are reported one by one.
const REPORTED_BAD_ROWS: usize = 10;

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

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RunReport {
    /// Rows that came out.
    pub rows: u64,
    /// Rows that were left out as bad.
    pub bad_rows: u64,
    /// The first few of those, in the order of the input.
    pub first_bad_rows: Vec<BadRowReport>,
    /// Bytes of input, compressed ones as they are.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Where the time went, if that was asked for.
    pub trace: Option<Trace>,
}

/// Takes the batches of a run, in the order of the input.
pub trait Consumer: Send {
    /// Takes one. It is called by one thread at a time, not always the same. What it leaves of the batch is used again.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn consume(
        &mut self,
        batch: &mut Batch,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

impl<F> Consumer for F
where
    F: FnMut(&mut Batch) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>
        + Send,
{
    fn consume(
        &mut self,
        batch: &mut Batch,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self(batch)
    }
}

/// A pipeline with its vocabularies. Runs, one after the other, go on numbering where the last one stopped.
///
/// # Examples
/// ```
/// use embank_pipeline::{Input, Pipeline, RunOptions, Spec};
///
/// let mut pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
/// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
/// let mut ids = Vec::new();
/// let report = pipeline.run(&[Input::memory("two rows", row.repeat(2).as_bytes())], &mut |batch: &mut _| {
///     let batch: &mut embank_pipeline::Batch = batch;
///     ids.extend_from_slice(batch.bits32(0).unwrap());
///     Ok(())
/// })?;
/// assert_eq!(report.rows, 2);
/// assert_eq!(ids[14..40], [0; 26]); // the first value of each vocabulary
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug)]
pub struct Pipeline {
    plan: Plan,
    options: RunOptions,
    bad_rows: BadRows,
    infos: Arc<[MatrixInfo]>,
    tables: Vec<DirectTable>,
    growing: Vec<Growing>,
}

impl Pipeline {
    /// Checks a pipeline and makes its tables of ids.
    ///
    /// # Errors
    /// [`Error::Spec`], [`Error::OutOfMemory`].
    pub fn new(spec: &Spec, options: &RunOptions) -> Result<Self> {
        if options.threads == 0 {
            return Err(Error::Spec("it needs a thread to run".to_owned()));
        }
        if !(1..=CHUNK_BYTES_MAX).contains(&options.chunk_bytes) {
            let given = options.chunk_bytes;
            return Err(Error::Spec(format!(
                "chunks are of 1 byte to 1 GiB, not of {given}; 512 KiB is a good size"
            )));
        }
        let plan = Plan::new(spec, options.format)?;
        let table = |vocabulary: &crate::plan::VocabularyPlan| {
            DirectTable::new(vocabulary.range).map_err(|source| Error::OutOfMemory {
                name: vocabulary.name.clone(),
                bytes: u64::from(vocabulary.range) * 4,
                source,
            })
        };
        let tables = plan.vocabularies.iter().map(table).collect::<Result<Vec<_>>>()?;
        let growing = tables.iter().map(|_| Growing::default()).collect();
        let info = |output: &crate::plan::OutputPlan| MatrixInfo {
            name: output.name.clone(),
            columns: output.columns.clone(),
            dtype: output.dtype,
        };
        let infos = plan.outputs.iter().map(info).collect();
        Ok(Self { plan, options: options.clone(), bad_rows: spec.bad_rows, infos, tables, growing })
    }

    /// Runs over the inputs, one after the other, and hands the batches to `consumer`.
    ///
    /// # Errors
    /// [`Error::BadRow`] for the first bad row if the pipeline fails at those; [`Error::Io`], [`Error::Compressed`],
    /// [`Error::LineTooLong`], [`Error::NoWholeRows`], [`Error::Consumer`]. After an error the vocabularies have the values
    /// of the batches that were handed out, and perhaps some of the next one.
    pub fn run(&mut self, inputs: &[Input<'_>], consumer: &mut dyn Consumer) -> Result<RunReport> {
        let started = Instant::now();
        let cut = match self.options.format {
            Format::Text { quote: None, .. } => Cut::Lines,
            Format::Text { separator, quote: Some(quote), .. } => Cut::Quoted { separator, quote },
            Format::Packed => Cut::Rows(row_bytes(self.plan.layout.fields())),
        };
        let chunks = Chunks::open(inputs, self.options.chunk_bytes, cut)?;
        let committer = Mutex::new(Committer::new(
            &mut self.growing,
            self.bad_rows,
            consumer,
            self.options.trace,
        ));
        let order = Order::new(self.options.threads * CHUNKS_A_THREAD);
        let pool = Mutex::new(Vec::new());
        let reading = ReadBusy::default();
        let shared = worker::Shared {
            plan: &self.plan,
            options: &self.options,
            infos: &self.infos,
            tables: &self.tables,
            chunks: &chunks,
            order: &order,
            pool: &pool,
            reading: &reading,
            committer: &committer,
        };
        let panicked = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (1..self.options.threads).map(|_| scope.spawn(|| worker::work(&shared))).collect();
            let own =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker::work(&shared)));
            let others = threads.into_iter().map(|thread| thread.join());
            [own].into_iter().chain(others).find_map(std::result::Result::err)
        });
        let committer = committer.into_inner();
        if let Some(error) = committer.failure {
            return Err(error);
        }
        if let Some(panic) = panicked {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            return Err(Error::Panicked(text.unwrap_or_else(|| "without a message".to_owned())));
        }
        let elapsed = started.elapsed();
        let trace = committer.stopwatch.is_on().then(|| {
            let (rows, bytes) = (committer.rows, chunks.bytes());
            let threads = self.options.threads;
            Trace::new(rows, bytes, threads, elapsed, reading.total(), &committer.stopwatch)
        });
        Ok(RunReport {
            rows: committer.rows,
            bad_rows: committer.bad_rows,
            first_bad_rows: committer.reported,
            bytes: chunks.bytes(),
            elapsed,
            trace,
        })
    }

    /// Later runs use so many threads, one at least.
    pub fn set_threads(&mut self, threads: usize) {
        self.options.threads = threads.max(1);
    }

    pub(crate) fn infos(&self) -> &Arc<[MatrixInfo]> {
        &self.infos
    }

    /// The outputs' names and shapes.
    #[must_use]
    pub fn outputs(&self) -> &[MatrixInfo] {
        &self.infos
    }

    /// The vocabularies' names, and for each its values by their ids.
    pub fn vocabularies(&self) -> impl Iterator<Item = (&str, &[u32])> {
        let names = self.plan.vocabularies.iter().map(|vocabulary| vocabulary.name.as_str());
        names.zip(self.growing.iter().map(|growing| growing.values.as_slice()))
    }
}
