//! `embank pipeline explain`: finds the limit of a pipeline's speed and tests the result.
//!
//! The command makes four passes over the inputs. The first pass only reads the inputs, so that
//! every later pass finds them in the system's page cache. The second pass measures the speed of
//! reading. The third pass is a traced run. The fourth pass runs with the number of threads that
//! the trace suggests. With `--from-disk` the command leaves out the first pass, and drops the
//! inputs from the page cache before each other pass.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use embank_pipeline::{
    Batch, Bound, Consumer, Explanation, Input, Pipeline, RunOptions, RunReport, Spec, Stage,
};
use serde::Serialize;

use super::{Bar, RowsArgs, plot, told};
use crate::Ending;
use crate::output::{self, bytes, count};

/// Options of `pipeline explain`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    rows: RowsArgs,
    /// Number of cores to plan for, on this machine or a larger one [default: as many as this one
    /// has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cores: Option<u32>,
    /// Drop the inputs from memory before each pass, so that they come from disk
    #[arg(long)]
    from_disk: bool,
    /// Write the stages' rates, predicted and measured speed as a picture
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The explanation of a pipeline's speed, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) rows: u64,
    input_bytes: u64,
    /// The speed of reading the inputs without processing them.
    read_bytes_per_second: f64,
    pub(super) bound: &'static str,
    pub(super) bottleneck: &'static str,
    pub(super) cores: usize,
    pub(super) stages: Vec<StageReport>,
    pub(super) traced: Speed,
    pub(super) predicted: Speed,
    pub(super) measured: Speed,
}

#[derive(Debug, Serialize)]
pub(super) struct StageReport {
    pub(super) stage: &'static str,
    /// `None` if the stage takes no time.
    pub(super) rows_per_second_per_core: Option<f64>,
    /// The cores that the best allocation gives to this stage.
    cores: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Speed {
    pub(super) threads: usize,
    pub(super) rows_per_second: f64,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns the errors of `pipeline run`. Also fails if an input cannot be read more than once, or
/// if the plot cannot be written.
pub(super) fn run(args: &Args) -> Result<Ending> {
    let spec = args.rows.spec()?;
    let inputs = Inputs::new(args)?;
    let options = args.rows.options()?;
    // The command makes a pipeline before it reads the inputs, to report an invalid pipeline first.
    let pipeline = args.rows.made(&spec, &options, None)?;
    let mut bar = Passes { bar: Bar::new(inputs.bytes * 3), done: 0, pass_bytes: 0, rows: 0 };
    let read_bytes_per_second = inputs.read_rate(&pipeline)?;
    drop(pipeline);
    bar.passed(inputs.bytes);
    let traced = RunOptions { trace: true, ..options.clone() };
    let ran = run_once(args, &inputs, &spec, &traced, &mut bar)?;
    let trace = ran.trace.as_ref().context("a run that was traced has a trace")?;
    let cores = match args.cores {
        Some(cores) => cores as usize,
        None => RunOptions::default().threads,
    };
    let explanation = trace.explain_with_input(cores, read_bytes_per_second);
    let best = RunOptions { threads: explanation.threads, ..options.clone() };
    let again = run_once(args, &inputs, &spec, &best, &mut bar)?;
    drop(bar);
    let report = report(&options, &ran, &explanation, &again, read_bytes_per_second);
    if let Some(path) = &args.plot {
        let picture = plot::svg(&args.rows.spec.display().to_string(), &report);
        let inputs = args.rows.inputs.iter().chain([&args.rows.spec]);
        output::write_file(path, &picture, &inputs.map(PathBuf::as_path).collect::<Vec<_>>())?;
    }
    if args.json {
        output::json(&report);
    } else {
        output::print(&words(&report, &explanation));
    }
    Ok(Ending::Good)
}

/// The input files, which are read several times.
struct Inputs {
    files: Vec<Input<'static>>,
    bytes: u64,
    from_disk: bool,
}

impl Inputs {
    fn new(args: &Args) -> Result<Self> {
        let files = args.rows.files()?;
        let bytes = args.rows.input_bytes()?;
        for file in &files {
            if !file.path().is_some_and(Path::is_file) {
                bail!(
                    "{} is no file, and `explain` reads its inputs several times: write it to a file first",
                    file.name()
                );
            }
        }
        Ok(Self { files, bytes, from_disk: args.from_disk })
    }

    /// Returns the inputs for a pass. With `--from-disk`, drops them from memory first.
    fn ready(&self) -> Result<Vec<Input<'static>>> {
        if self.from_disk {
            self.files.iter().filter_map(Input::path).try_for_each(forget)?;
        }
        Ok(self.files.clone())
    }

    /// Returns the speed of reading the inputs without processing them.
    fn read_rate(&self, pipeline: &Pipeline) -> Result<f64> {
        if !self.from_disk {
            pipeline.read_rate(&self.ready()?)?;
        }
        Ok(pipeline.read_rate(&self.ready()?)?)
    }
}

/// Drops a file from the system's page cache.
fn forget(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("the input {}", path.display()))?;
    // The system drops only pages that are on disk, so the file is synced first.
    file.sync_data().with_context(|| format!("syncing {}", path.display()))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .with_context(|| format!("dropping {} from memory", path.display()))
}

/// Runs the pipeline with new vocabularies in memory. If a vocabulary has a threshold
/// (`min_count`), a first run counts the values, and a second run drops the rare values. Returns
/// the report of the last run.
fn run_once(
    args: &Args,
    inputs: &Inputs,
    spec: &Spec,
    options: &RunOptions,
    bar: &mut Passes,
) -> Result<RunReport> {
    let mut pipeline = args.rows.made(spec, options, None)?;
    if spec.vocabularies.iter().any(|of| of.min_count > 0) {
        told(pipeline.run(&inputs.ready()?, &mut |_: &mut Batch| Ok(())))?;
    }
    let ran = told(pipeline.run(&inputs.ready()?, bar))?;
    bar.passed(inputs.bytes);
    Ok(ran)
}

/// Takes batches and drops them. Shows the progress over all passes.
struct Passes {
    bar: Bar,
    done: u64,
    pass_bytes: u64,
    rows: u64,
}

impl Passes {
    /// Notes that a pass over `input_bytes` bytes has ended.
    fn passed(&mut self, input_bytes: u64) {
        self.done += input_bytes;
        self.pass_bytes = 0;
        self.bar.show(self.done, self.rows);
    }
}

impl Consumer for Passes {
    fn consume(
        &mut self,
        batch: &mut Batch,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.rows += batch.rows() as u64;
        self.pass_bytes = batch.input_bytes();
        self.bar.show(self.done + self.pass_bytes, self.rows);
        Ok(())
    }
}

fn report(
    options: &RunOptions,
    ran: &RunReport,
    explanation: &Explanation,
    again: &RunReport,
    read_bytes_per_second: f64,
) -> Report {
    let stage = |&(stage, rate, cores): &(Stage, f64, f64)| StageReport {
        stage: stage.name(),
        rows_per_second_per_core: Some(rate).filter(|rate| rate.is_finite()),
        cores,
    };
    let bound = match explanation.bound {
        Bound::Cpu => "processor",
        Bound::Disk => "input",
        Bound::Serial if explanation.bottleneck == Stage::Consume => "consumer",
        _ => "one thread at a time",
    };
    let threads = explanation.threads;
    Report {
        rows: ran.rows,
        input_bytes: ran.bytes,
        read_bytes_per_second,
        bound,
        bottleneck: explanation.bottleneck.name(),
        cores: explanation.cores,
        stages: explanation.stages.iter().map(stage).collect(),
        traced: Speed {
            threads: options.threads,
            rows_per_second: explanation.measured_rows_per_s,
        },
        predicted: Speed { threads, rows_per_second: explanation.predicted_rows_per_s },
        measured: Speed {
            threads,
            rows_per_second: again.rows as f64 / again.elapsed.as_secs_f64().max(1e-9),
        },
    }
}

fn words(report: &Report, explanation: &Explanation) -> String {
    let mut text = format!(
        "{explanation}\n\ninput         {} rows, {}; read alone at {}/s\n\n",
        count(report.rows),
        bytes(report.input_bytes),
        bytes(report.read_bytes_per_second as u64)
    );
    let row = |what: &str, of: &Speed| {
        vec![what.to_owned(), count(of.threads as u64), count(of.rows_per_second as u64)]
    };
    text += &output::table(&[
        vec![String::new(), "threads".to_owned(), "rows/s".to_owned()],
        row("traced", &report.traced),
        row("predicted", &report.predicted),
        row("measured", &report.measured),
    ]);
    text += &format!(
        "measured is {:.0}% of what was predicted\n",
        100.0 * report.measured.rows_per_second / report.predicted.rows_per_second.max(1e-9)
    );
    text
}
