//! `embank pipeline`: turns files of raw rows into files of tensors.

mod explain;
mod plot;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Subcommand, ValueEnum};
use embank::fleet::refuse_shard;
use embank::{Bank, BankOptions};
use embank_kv::inspect::summary;
use embank_pipeline::{
    BadRows, Batch, Consumer, Error, FileFormat, FileSink, Format, Header, Input, Operator,
    Pipeline, RunOptions, RunReport, Separator, Spec, SpoolOptions, TextSettings,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::Ending;
use crate::export::with_enough_memory;
use crate::output::{self, bytes, count};

/// Options of `pipeline`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a pipeline over files and writes a file for each of its outputs
    ///
    /// The pipeline is JSON: `embank pipeline criteo` prints one, and docs/pipeline.md describes
    /// the parts of pipelines. With any number of threads, rows come out in the order of the
    /// inputs, and values get ids in the order of first appearance. All files get their names
    /// together, after all are complete and on stable storage, and replace files of these names.
    /// After an error there are no files.
    Run(RunArgs),
    /// Finds what limits a pipeline's speed; predicts and measures the speed with the best number
    /// of threads
    ///
    /// Runs the pipeline over the inputs and measures the time of each stage. Works out what limits
    /// the speed (processor, input, or the work of one thread) and the best number of threads. Runs
    /// the pipeline again with that number, and shows predicted and measured speed. Writes nothing
    /// but the plot, and makes vocabularies in memory.
    Explain(explain::Args),
    /// Prints the pipeline of the PIPER paper for the Criteo sets, as JSON
    ///
    /// A label, 13 integers (missing to 0, negative to 0, log(x + 1)) and 26 categories (missing to
    /// 0, modulo, numbered by a vocabulary each); one output, `row`, of 40 values of 32 bits.
    Criteo(CriteoArgs),
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    #[command(flatten)]
    rows: RowsArgs,
    /// The directory of the outputs' files; the run makes it if it does not exist. `-` writes to
    /// standard output, packed or as Parquet: the pipeline must then have one output, and the
    /// report goes to standard error
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The files' format: NAME.bin (rows of 32-bit numbers), NAME.npy or NAME.parquet for an
    /// output NAME
    #[arg(long, value_enum, default_value = "npy")]
    format: OutputFormat,
    /// Number values in the vocabularies of this bank, and take a checkpoint at the end; the run
    /// makes the bank if it does not exist
    ///
    /// Known values keep their ids, and columns of any range may be numbered. The new checkpoint
    /// has the blob of the newest checkpoint before it. The bank takes it before the files get
    /// their names. After an error of the run the bank has no new checkpoint.
    #[arg(long, value_name = "DIR")]
    bank: Option<PathBuf>,
    /// With --bank: do not make the bank; it must exist
    #[arg(long, requires = "bank")]
    no_create: bool,
    /// With --bank: look values up and insert nothing, as for evaluation; the run opens the bank
    /// read-only
    ///
    /// The run reads the bank at its newest checkpoint, also while a training run has the bank
    /// open, and takes no checkpoint. A value that its vocabulary does not have gets the
    /// vocabulary's `unknown_id`. If there is none, the value ends the run.
    #[arg(long, requires = "bank")]
    no_learn: bool,
    /// With --bank: memory for index and pages; the command takes more if the bank needs it
    /// [default: 256MiB, or a quarter of the memory limit of the process's control group, if that
    /// is less]
    #[arg(long, value_name = "BYTES", value_parser = output::parse_scaled)]
    memory_budget: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A pipeline and its rows.
#[derive(Debug, clap::Args)]
pub(crate) struct RowsArgs {
    /// The pipeline, as JSON
    spec: PathBuf,
    /// Files of rows, one after the other; text files may be compressed: FILE.gz, FILE.zst
    ///
    /// A directory means its files in sorted order, without those whose names begin with `_` or
    /// `.`. For `pipeline run`, `-` means standard input: text, also compressed, or packed rows. It
    /// is read once. So it cannot be Parquet or Arrow, and a vocabulary with a `min_count` must be
    /// made from files first. A file named `-` is `./-`.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Format of the inputs [default: by their names: .csv, .tsv, .bin, .parquet, .arrow, .feather,
    /// .tar; else tsv]
    ///
    /// The names may be in upper or lower case, and .gz or .zst may follow. The command refuses
    /// inputs whose names say different formats.
    #[arg(long, value_enum)]
    input_format: Option<InputFormat>,
    /// The text between fields, such as `;` or `::`; `\t` is a tab [default: that of the format]
    #[arg(long, value_name = "TEXT", value_parser = parse_separator)]
    separator: Option<Separator>,
    /// The content of each input's first line [default: names for csv, none for tsv]
    #[arg(long, value_enum)]
    header: Option<HeaderArg>,
    /// Short for --header none
    #[arg(long, conflicts_with = "header")]
    no_header: bool,
    /// Take quotes in csv as plain text; faster if no field is quoted
    #[arg(long)]
    no_quotes: bool,
    /// Leave out bad rows, count them and name the first ones, instead of ending at the first bad
    /// row
    #[arg(long)]
    skip_bad_rows: bool,
    /// The largest share of bad rows with --skip-bad-rows. A larger share ends the run, after
    /// 10,000 rows or if every row is bad; 1 means no limit [default: the share in the pipeline, or
    /// else 0.01]
    #[arg(long, value_name = "SHARE")]
    bad_rows_max: Option<f64>,
    /// Threads [default: as many as there are cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The folder below which the files of fields of kind `file` lie
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Keep the arrays of pictures in this directory, and take them from there in later runs
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// The largest size of the spool's files
    #[arg(long, value_name = "BYTES", value_parser = output::parse_scaled, requires = "spool",
        default_value = "64GiB")]
    spool_bytes: u64,
    /// Memory for arrays of pictures, which later epochs of the same command take from there
    #[arg(long, value_name = "BYTES", value_parser = output::parse_scaled, default_value = "0")]
    cache: u64,
}

#[derive(Debug, clap::Args)]
struct CriteoArgs {
    /// Categories become numbers below this; from 1 to 2^31
    #[arg(long, value_name = "M", default_value_t = 5000,
        value_parser = clap::value_parser!(u32).range(1..=1 << 31))]
    modulus: u32,
}

/// The input formats on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum InputFormat {
    /// One row in each line, tabs between fields, no header
    Tsv,
    /// One row in each line, commas between fields, double quotes around some, a header with the
    /// names
    Csv,
    /// Numbers of 32 bits, little-endian, nothing between rows
    Packed,
    /// Parquet, Arrow or tar files: each field is the column, or the member, of its name
    Columns,
}

/// The meanings of a file's first line on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum HeaderArg {
    /// The columns' names: each field is the column of its name, and the run ignores other columns
    Names,
    /// A line to skip: columns stand in the order of the pipeline's fields
    Skip,
    /// A row
    None,
}

fn parse_separator(text: &str) -> embank_pipeline::Result<Separator> {
    text.replace("\\t", "\t").parse()
}

/// The output formats on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OutputFormat {
    Packed,
    Npy,
    Parquet,
}

#[derive(Debug, Serialize)]
struct Report {
    rows: u64,
    rows_per_second: f64,
    seconds: f64,
    input_bytes: u64,
    bad_rows: u64,
    /// The number of lines that the bad rows span.
    bad_lines: u64,
    first_bad_rows: Vec<String>,
    /// The number of the pipeline's columns that Parquet or Arrow files lack.
    missing_columns: u64,
    first_missing_columns: Vec<String>,
    made_arrays: u64,
    cached_arrays: u64,
    spooled_arrays: u64,
    damaged_groups: u64,
    vocabularies: Vec<Vocabulary>,
    /// The number of the bank's checkpoint that the run read.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<u64>,
    /// The paths as text, because a path need not be UTF-8 and JSON must be.
    files: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Vocabulary {
    name: String,
    values: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the pipeline is invalid, an input cannot be read, a row is bad, or an output
/// cannot be written.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    match &args.command {
        Command::Run(args) => run_pipeline(args),
        Command::Explain(args) => explain::run(args),
        Command::Criteo(args) => {
            output::print(&(Spec::criteo(args.modulus).to_json() + "\n"));
            Ok(Ending::Good)
        }
    }
}

impl RowsArgs {
    /// Returns the pipeline and the total length of its inputs in bytes.
    ///
    /// # Errors
    /// Returns an error if the pipeline is invalid or an input is missing.
    #[cfg(feature = "flight")]
    pub(crate) fn pipeline(&self, bank: Option<&Bank>) -> Result<(Pipeline, u64)> {
        let pipeline = self.made(&self.spec()?, &self.options()?, bank)?;
        Ok((pipeline, self.input_bytes()?))
    }

    fn spec(&self) -> Result<Spec> {
        let path = &self.spec;
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("the pipeline {}; `embank pipeline criteo` prints one", path.display())
        })?;
        let mut spec = Spec::from_json(&text).with_context(|| {
            format!("{}; `embank pipeline criteo` prints one that can", path.display())
        })?;
        if self.skip_bad_rows {
            spec.bad_rows = BadRows::Skip;
        }
        spec.bad_rows_max = self.bad_rows_max.unwrap_or(spec.bad_rows_max);
        Ok(spec)
    }

    fn options(&self) -> Result<RunOptions> {
        let root = self.root.clone();
        let spool = self.spool.as_ref().map(|dir| SpoolOptions::new(dir, self.spool_bytes));
        let mut options = RunOptions {
            format: self.format()?,
            root,
            spool,
            cache_bytes: self.cache,
            ..RunOptions::default()
        };
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
        Ok(options)
    }

    /// Returns the inputs as they are given. `-` is standard input.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = Input<'static>> {
        self.inputs.iter().map(|path| match path.as_os_str() == "-" {
            true => Input::standard_input(),
            false => Input::file(path),
        })
    }

    /// Returns the inputs with the files of a directory in its place.
    fn files(&self) -> Result<Vec<Input<'static>>> {
        Ok(Input::expand(&self.inputs().collect::<Vec<_>>())?)
    }

    /// Makes the pipeline of a spec, with its vocabularies in `bank`, or in memory if `bank` is
    /// `None`.
    fn made(&self, spec: &Spec, options: &RunOptions, bank: Option<&Bank>) -> Result<Pipeline> {
        let made = match bank {
            Some(bank) => Pipeline::with_bank(spec, options, bank),
            None => Pipeline::new(spec, options),
        };
        made.with_context(|| format!("the pipeline {}", self.spec.display()))
    }

    /// Returns the total length of the inputs in bytes.
    fn input_bytes(&self) -> Result<u64> {
        let mut input_bytes = 0;
        for input in self.files()? {
            let metadata = input.path().map(std::fs::metadata).transpose();
            let metadata = metadata.with_context(|| format!("the input {}", input.name()))?;
            input_bytes += metadata.map_or(0, |metadata| metadata.len());
        }
        Ok(input_bytes)
    }

    fn format(&self) -> Result<Format> {
        let header = match self.header {
            Some(HeaderArg::Names) => Some(Header::Names),
            Some(HeaderArg::Skip) => Some(Header::Skip),
            Some(HeaderArg::None) => Some(Header::None),
            None => self.no_header.then_some(Header::None),
        };
        let quote = self.no_quotes.then_some(None);
        let settings = TextSettings { separator: self.separator, header, quote };
        let format = match self.input_format {
            None => Format::ByName(TextSettings::default()),
            Some(InputFormat::Tsv) => Format::TSV,
            Some(InputFormat::Csv) => Format::CSV,
            Some(InputFormat::Packed) => Format::Packed,
            Some(InputFormat::Columns) => Format::Columns,
        };
        Ok(format.with(settings)?)
    }
}

fn run_pipeline(args: &RunArgs) -> Result<Ending> {
    let (spec, input_bytes) = (args.rows.spec()?, args.rows.input_bytes()?);
    let open = |dir: &PathBuf, memory_budget| match args.no_learn {
        true => open_bank_to_read(dir, memory_budget),
        false => open_bank(dir, memory_budget, !args.no_create),
    };
    let bank = args.bank.as_ref().map(|dir| open(dir, args.memory_budget)).transpose()?;
    let mut pipeline = args.rows.made(&spec, &args.rows.options()?, bank.as_ref())?;
    let format = match args.format {
        OutputFormat::Packed => FileFormat::Packed,
        OutputFormat::Npy => FileFormat::Npy,
        OutputFormat::Parquet => FileFormat::Parquet,
    };
    let inputs = args.rows.files()?;
    let sink = match output::is_stdout(&args.out) {
        true => FileSink::stream(std::io::stdout(), format, pipeline.outputs())?,
        false => FileSink::create(&args.out, format, pipeline.outputs())?,
    };
    let mut shown = Shown { sink, bar: Bar::new(input_bytes) };
    let ran = told(pipeline.run(&inputs, &mut shown))?;
    drop(shown.bar);
    // The bank takes its checkpoint before the files get their names. Otherwise a crash could leave
    // files with ids that the bank does not know.
    let checkpoint = bank.as_ref().filter(|_| pipeline.learns()).map(|bank| {
        let blob = bank.recovered().map(|recovered| recovered.blob.clone()).unwrap_or_default();
        pipeline.checkpoint(bank, &blob)
    });
    let checkpoint = checkpoint.transpose()?;
    let files = shown.sink.finish()?;
    let vocabularies = match &bank {
        Some(bank) => vocabularies_of(&spec, bank),
        None => pipeline
            .vocabularies()
            .map(|(name, values)| Vocabulary { name: name.to_owned(), values: values.len() as u64 })
            .collect(),
    };
    show(args, &ran, vocabularies, checkpoint, &files)
}

/// Opens a bank for writing, with memory for its index and pages.
pub(crate) fn open_bank(dir: &Path, memory_budget: Option<u64>, create: bool) -> Result<Bank> {
    refuse_shard(dir)?;
    // The bank keeps as many checkpoints as it has now, and at least 2. So one checkpoint removes
    // at most the oldest one.
    let kept = if dir.join("BANK").exists() { summary(dir)?.checkpoints.len().max(2) } else { 2 };
    with_enough_memory(memory_budget, |options| {
        Bank::open(dir, BankOptions { checkpoints_kept: kept, create, ..options })
    })
}

/// Opens a bank read-only at its newest checkpoint. A pipeline with this bank inserts no values
/// into the vocabularies.
pub(crate) fn open_bank_to_read(dir: &Path, memory_budget: Option<u64>) -> Result<Bank> {
    with_enough_memory(memory_budget, |options| Bank::open_read_only(dir, options, None))
}

/// Returns the name and the number of values of each vocabulary of the bank that the pipeline uses.
fn vocabularies_of(spec: &Spec, bank: &Bank) -> Vec<Vocabulary> {
    let operators = spec.columns.iter().flat_map(|column| &column.operators);
    let named = |name: &str| {
        operators.clone().any(|operator| matches!(operator, Operator::Vocabulary(of) if of == name))
    };
    let all = bank.vocabularies().into_iter().filter(|of| named(&of.name));
    all.map(|of| Vocabulary { name: of.name, values: of.len }).collect()
}

/// Adds to the error of a run the option of the command line that helps.
fn told(ran: embank_pipeline::Result<RunReport>) -> Result<RunReport> {
    match ran {
        Err(Error::BadRow(row)) => {
            let row = in_names_of_options(&format!("{row:#}"));
            bail!("{row}; --skip-bad-rows leaves out single bad rows and counts them")
        }
        Err(error @ Error::TooManyBadRows { .. }) => bail!(in_names_of_options(&error.to_string())),
        // The consumer of this run writes the output files, so its error needs no addition.
        Err(Error::Consumer(why)) => Err(anyhow::Error::from_boxed(why)),
        ran => Ok(ran?),
    }
}

/// Returns a message of the pipeline in which options of the command line replace the names of the
/// pipeline's settings.
fn in_names_of_options(text: &str) -> String {
    text.replace("`format: csv`", "`--input-format csv`")
        .replace("`separator`", "`--separator`")
        .replace("`bad_rows_max`", "`--bad-rows-max`")
        .replace("`bad_rows_max: 1`", "`--bad-rows-max 1`")
}

/// Writes batches and shows the progress.
struct Shown {
    sink: FileSink,
    bar: Bar,
}

impl Consumer for Shown {
    fn begin(&mut self, inputs: &[Input<'_>]) -> embank_pipeline::Result<()> {
        self.sink.begin(inputs)
    }

    fn consume(
        &mut self,
        batch: &mut Batch,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.sink.consume(batch)?;
        self.bar.show(batch.input_bytes(), self.sink.rows());
        Ok(())
    }
}

/// A progress bar of input bytes on stderr. Nothing is drawn if stderr is not a terminal.
struct Bar {
    bar: ProgressBar,
    started: Instant,
}

impl Bar {
    fn new(input_bytes: u64) -> Self {
        let style = ProgressStyle::with_template(
            "{bar:40} {binary_bytes}/{binary_total_bytes} {msg} {eta} left",
        );
        let style = style.expect("the template is well formed");
        Self { bar: ProgressBar::new(input_bytes).with_style(style), started: Instant::now() }
    }

    fn show(&self, input_bytes: u64, rows: u64) {
        // The text is made only for a visible bar.
        if !self.bar.is_hidden() {
            let speed = rows as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
            self.bar.set_message(format!("{} rows, {} rows/s", count(rows), count(speed as u64)));
            self.bar.set_position(input_bytes);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn show(
    args: &RunArgs,
    ran: &RunReport,
    vocabularies: Vec<Vocabulary>,
    checkpoint: Option<u64>,
    files: &[PathBuf],
) -> Result<Ending> {
    let seconds = ran.elapsed.as_secs_f64();
    if let Some(why) = &ran.arrays.spool_failure {
        output::note(&format!("warning: {}\n", output::shown(why)));
    }
    let report = Report {
        rows: ran.rows,
        rows_per_second: ran.rows as f64 / seconds.max(1e-9),
        seconds,
        input_bytes: ran.bytes,
        bad_rows: ran.bad_rows,
        bad_lines: ran.bad_lines,
        first_bad_rows: ran.first_bad_rows.iter().map(|bad| format!("{bad:#}")).collect(),
        missing_columns: ran.missing_columns,
        first_missing_columns: ran.first_missing_columns.clone(),
        made_arrays: ran.arrays.made,
        cached_arrays: ran.arrays.cached,
        spooled_arrays: ran.arrays.spooled,
        damaged_groups: ran.arrays.damaged_groups,
        vocabularies,
        checkpoint,
        files: files.iter().map(|file| file.display().to_string()).collect(),
    };
    output::report(&report, args.json, output::is_stdout(&args.out), || words(&report));
    Ok(Ending::Good)
}

fn words(report: &Report) -> String {
    let mut text = format!(
        "rows          {}, {} rows/s\ninput         {} in {:.2} s\nbad rows      {}\n",
        count(report.rows),
        count(report.rows_per_second as u64),
        bytes(report.input_bytes),
        report.seconds,
        count(report.bad_rows),
    );
    for row in &report.first_bad_rows {
        text += &format!("  {}\n", output::shown(row));
    }
    if report.bad_rows > report.first_bad_rows.len() as u64 {
        text += "  and more\n";
    }
    if report.missing_columns > 0 {
        text += &format!(
            "columns that files lack, so that their values are missing: {}\n",
            report.missing_columns
        );
        for column in &report.first_missing_columns {
            text += &format!("  {column}\n");
        }
        if report.missing_columns > report.first_missing_columns.len() as u64 {
            text += "  and more\n";
        }
    }
    let arrays = report.made_arrays + report.cached_arrays + report.spooled_arrays;
    if arrays > 0 {
        text += &format!(
            "arrays        {} made, {} from memory, {} from the spool\n",
            count(report.made_arrays),
            count(report.cached_arrays),
            count(report.spooled_arrays),
        );
    }
    if report.damaged_groups > 0 {
        text += &format!("damaged       {} groups of the spool\n", count(report.damaged_groups));
    }
    text += &format!("files         {}\n", output::shown(report.files.join(", ")));
    if let Some(checkpoint) = report.checkpoint {
        text += &format!("checkpoint    {checkpoint}\n");
    }
    if !report.vocabularies.is_empty() {
        let mut table = vec![vec!["vocabulary".to_owned(), "values".to_owned()]];
        let row = |vocabulary: &Vocabulary| vec![vocabulary.name.clone(), count(vocabulary.values)];
        table.extend(report.vocabularies.iter().map(row));
        text.push('\n');
        text += &output::table(&table);
    }
    text
}
