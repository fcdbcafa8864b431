//! `buffers`: whether a feed reuses the memory of its batches. Page faults and rows/s of a feed,
//! beside a run that reuses the memory of its chunks.
//!
//! A feed whose batches are dropped reuses their memory. A feed whose matrices are taken as vectors
//! ([`Batch::into_matrices`]) can't reuse it: the allocator gets the memory back. So the second
//! feed shows what the reuse gains.
//!
//! The gain depends on the allocator. glibc recycles vectors of up to 32 MiB itself, so a feed of
//! small batches gains nothing there. The default sizes are one on each side of that limit.
//!
//! Estimates, written before measuring. A page fault with its zeroed page takes 0.5 to 1
//! microsecond, and 26 rows of 160 bytes fill a page, so fresh memory takes 20 to 40 ns a row. A
//! run with two threads takes 80 ns of processor time a row. The feed's own copy takes 15 ns a row.
//! So a feed with reused memory reaches 0.84 of the run's rate, and one with fresh memory 0.6.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use embank_pipeline::{
    Batch, FeedInput, FeedOptions, Format, Input, Matrix, Pipeline, RunOptions, Spec,
};

use super::Common;
use super::generate;
use super::reference::Reference;
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::Spread;

/// Options of `buffers`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Rows of a feed's batches; the defaults make batches of 640 KiB and of 40 MiB
    #[arg(long, value_delimiter = ',', default_value = "4096,262144")]
    batch_rows: Vec<usize>,
}

/// Batches of a feed before its page faults count. The feed has all its memory by then.
const WARM_BATCHES: usize = 20;
/// Fewest batches of the largest size. A shorter input is read several times. The reason: the run
/// of a feed needs new memory for a limited number of chunks, which is a large part of few batches.
const BATCHES_MIN: usize = 120;
const PAGE_BYTES: usize = 4096;
/// Values of a row.
const WIDTH: usize = 40;

/// What happens to the batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taker {
    /// `run`, whose chunks give their memory back.
    Run,
    /// A feed whose batches are dropped.
    Drops(usize),
    /// A feed whose matrices are taken as vectors and then dropped.
    TakesVectors(usize),
}

/// The input and the settings that all runs share.
struct Ground {
    rows: Arc<[u8]>,
    format: Format,
    modulus: u32,
    chunk_bytes: usize,
    /// How many times a run reads the rows.
    passes: usize,
}

/// One run of a taker.
struct Sample {
    rows_per_s: f64,
    /// Rows for each second of processor time. Other programs on the machine change this rate less.
    rows_per_cpu_s: f64,
    /// Page faults for each page of the batches after the first [`WARM_BATCHES`].
    faults_per_page: f64,
}

/// Runs `buffers`.
pub(super) fn run(args: Args) -> Result<()> {
    let Args { common, batch_rows } = args;
    let common = common.prepared()?;
    print_provenance();
    let largest = batch_rows.iter().max().context("--batch-rows is empty")?;
    let passes = (BATCHES_MIN * largest).div_ceil(common.rows as usize);
    let mut figures = Vec::new();
    for (name, format, write) in [
        ("text", Format::TSV, generate::write_text as fn(&_, &mut _)),
        ("packed", Format::Packed, generate::write_packed),
    ] {
        let ground = Ground {
            rows: generate::rows(common.seed, common.rows, write).into(),
            format,
            modulus: *common.moduli.first().context("--moduli is empty")?,
            chunk_bytes: common.chunk_kib << 10,
            passes,
        };
        if common.check {
            ground.check(&common)?;
            println!("checked: {name}, every row of a feed");
        }
        figures.extend(ground.measure(name, &batch_rows, &common)?);
    }
    common.output.publish("Pipeline, buffers of a feed", &figures)
}

impl Ground {
    fn pipeline(&self) -> Result<Pipeline> {
        let options = RunOptions {
            threads: 2,
            format: self.format,
            chunk_bytes: self.chunk_bytes,
            ..RunOptions::default()
        };
        Ok(Pipeline::new(&Spec::criteo(self.modulus), &options)?)
    }

    fn inputs(&self, passes: usize) -> Vec<FeedInput> {
        vec![FeedInput::memory("rows", Arc::clone(&self.rows)); passes]
    }

    /// Checks every row of a feed against the reference. The feed reuses the memory of its batches.
    fn check(&self, common: &Common) -> Result<()> {
        let mut reference = Reference::new(common.seed, self.modulus);
        let feed = self.pipeline()?.feed(self.inputs(1), &FeedOptions::default())?;
        for batch in feed {
            reference.check(batch?.bits32(0).context("the one output has 32 bits")?)?;
        }
        let checked = reference.checked();
        ensure!(checked == common.rows, "{checked} rows were checked of {}", common.rows);
        Ok(())
    }

    /// Measures the takers by turns, round after round. The first round warms up and does not
    /// count.
    fn measure(&self, name: &str, batch_rows: &[usize], common: &Common) -> Result<Vec<Row>> {
        let feeds = batch_rows.iter().flat_map(|&rows| {
            [
                (format!("{name}, feed of {rows}"), Taker::Drops(rows)),
                (format!("{name}, feed of {rows}, vectors taken"), Taker::TakesVectors(rows)),
            ]
        });
        let takers: Vec<_> =
            [(format!("{name}, run"), Taker::Run)].into_iter().chain(feeds).collect();
        let mut samples: Vec<Vec<Sample>> = takers.iter().map(|_| Vec::new()).collect();
        for round in 0..=common.rounds {
            for ((_, taker), samples) in takers.iter().zip(&mut samples) {
                let sample = self.sample(*taker, common)?;
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        let spread = |of: fn(&Sample) -> f64, samples: &[Sample]| {
            Spread::of(samples.iter().map(of).collect())
        };
        let mut figures: Vec<Row> = Vec::new();
        for ((name, taker), samples) in takers.iter().zip(&samples) {
            let rate = Row::rate(name, spread(|sample| sample.rows_per_s, samples));
            let cpu = spread(|sample| sample.rows_per_cpu_s, samples);
            let cpu = Row::of(format!("{name}, cpu"), "million rows/cpu s", cpu, 1e-6);
            if *taker == Taker::Run {
                figures.extend([rate, cpu]);
                continue;
            }
            let faults = spread(|sample| sample.faults_per_page, samples);
            let faults = Row::of(format!("{name}, page faults"), "of the pages", faults, 1.0);
            let (rate, cpu) = (rate.beside(&figures[0]), cpu.beside(&figures[1]));
            figures.extend([rate, cpu, faults]);
        }
        Ok(figures)
    }

    /// Makes a pipeline with empty vocabularies and runs it once.
    fn sample(&self, taker: Taker, common: &Common) -> Result<Sample> {
        let (started, before) = (Instant::now(), Usage::now());
        let pipeline = self.pipeline()?;
        let (rows, faults_per_page) = match taker {
            Taker::Run => (self.run(pipeline)?, 0.0),
            Taker::Drops(batch_rows) => self.feed(pipeline, batch_rows, drop)?,
            Taker::TakesVectors(batch_rows) => {
                self.feed(pipeline, batch_rows, |batch| drop::<Vec<Matrix>>(batch.into_matrices()))?
            }
        };
        let elapsed = started.elapsed().as_secs_f64();
        let cpu_s = Usage::now().cpu_s - before.cpu_s;
        let wanted = common.rows * self.passes as u64;
        ensure!(rows == wanted, "{rows} rows came out of {wanted}");
        let rows = rows as f64;
        Ok(Sample { rows_per_s: rows / elapsed, rows_per_cpu_s: rows / cpu_s, faults_per_page })
    }

    fn run(&self, mut pipeline: Pipeline) -> Result<u64> {
        let inputs = vec![Input::memory("rows", &self.rows); self.passes];
        Ok(pipeline.run(&inputs, &mut |_: &mut Batch| Ok(()))?.rows)
    }

    /// Returns the number of rows, and the page faults for each page of the later batches.
    fn feed(&self, pipeline: Pipeline, batch_rows: usize, take: fn(Batch)) -> Result<(u64, f64)> {
        let options = FeedOptions { batch_rows, ..FeedOptions::default() };
        let feed = pipeline.feed(self.inputs(self.passes), &options)?;
        let (mut rows, mut warm_rows, mut warm_faults) = (0, 0, 0);
        for (number, batch) in feed.enumerate() {
            let batch = batch?;
            rows += batch.rows() as u64;
            take(batch);
            if number + 1 == WARM_BATCHES {
                (warm_rows, warm_faults) = (rows, Usage::now().page_faults);
            }
        }
        let pages = (rows - warm_rows) as f64 * (WIDTH * size_of::<u32>()) as f64;
        let pages = pages / PAGE_BYTES as f64;
        Ok((rows, (Usage::now().page_faults - warm_faults) as f64 / pages))
    }
}

/// What all threads of this process have used so far.
struct Usage {
    /// Minor page faults.
    page_faults: u64,
    /// Processor time in seconds.
    cpu_s: f64,
}

impl Usage {
    fn now() -> Self {
        // SAFETY: `rusage` is plain numbers, for which zero bytes are a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes to `usage`, a local variable. It can't fail with these arguments.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
        let cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
        Self { page_faults: usage.ru_minflt as u64, cpu_s }
    }
}
