//! `resume`: the time to the first batch of a feed that resumes at 90% of a text, beside the time
//! of making the rows before it.
//!
//! The rows are those of `utf8`, in a file that the page cache has. A feed makes the first 90% of
//! the rows, and gives its position and then its pipeline to the feed that resumes. The first batch
//! of that feed must be the batch that the first feed returned next.
//!
//! Estimate, written before measuring: without a shuffle, the feed reads the chunks from the
//! position on, 2 to 4 ms for each thread. It compares 26 vocabularies with those of the position,
//! 0.02 ms with 5,000 values each and 10 ms with a million. Making 9 million rows takes 0.5 s or
//! more, so the share is below 2%. With a shuffle of a tenth of the rows, the feed decodes a tenth
//! of them, and reads the text twice to find them: 2 GB at 3 GB/s a core, 0.35 s each time. So the
//! share is 20 to 30%.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use embank_pipeline::{Feed, FeedInput, FeedOptions, Pipeline, RunOptions, Spec};

use super::generate;
use crate::ground::report::{Output, Row, print_provenance};
use crate::ground::rounds::Spread;

/// Share of the rows at which a feed resumes, in percent.
const PERCENT: u64 = 90;

/// Options of `resume`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Rows of the generated text
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Rows of a batch
    #[arg(long, default_value_t = 4096)]
    batch_rows: usize,
    /// Rows of the shuffle buffer
    #[arg(long, default_value_t = 1_000_000)]
    shuffle_rows: usize,
    /// Rounds; the median counts
    #[arg(long = "count", default_value_t = 5)]
    rounds: usize,
    /// Moduli of the categories, which bound the values of a vocabulary
    #[arg(long, value_delimiter = ',', default_value = "5000,1000000")]
    moduli: Vec<u32>,
    /// A rough answer within a minute: a million rows, a shuffle of 100,000, three rounds
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

/// Seconds of one round.
struct Round {
    making: f64,
    resuming: f64,
    /// Rows that the feed that resumed did not decode.
    passed_rows: u64,
}

/// Takes the next batch: its first row, and its values.
fn next(feed: &mut Feed) -> Result<(u64, Vec<u32>)> {
    let batch = feed.next().context("the feed ended early")??;
    let values = batch.bits32(0).context("the one output has 32 bits")?;
    Ok((batch.first_row(), values.to_vec()))
}

/// Makes the first rows of the text, and resumes after them.
fn round(path: &Path, modulus: u32, options: &FeedOptions, args: &Args) -> Result<Round> {
    let inputs = || vec![FeedInput::file(path)];
    let pipeline = Pipeline::new(&Spec::criteo(modulus), &RunOptions::default())?;
    let started = Instant::now();
    let mut feed = pipeline.feed(inputs(), options)?;
    // The loop ends: each round moves on by a batch, and the text has more rows.
    while feed.next_row() < args.rows * PERCENT / 100 {
        feed.next().context("the feed ended early")??;
    }
    let making = started.elapsed().as_secs_f64();
    let position = feed.resume_position();
    let expected = next(&mut feed)?;
    let pipeline = feed.into_pipeline()?;

    let started = Instant::now();
    let mut feed = pipeline.feed(inputs(), &options.resume(&position)?)?;
    let found = next(&mut feed)?;
    let resuming = started.elapsed().as_secs_f64();
    ensure!(found == expected, "the first batch is not that of the uninterrupted feed");
    feed.by_ref().try_for_each(|batch| batch.map(drop))?;
    let passed_rows = feed.report().context("the feed is at its end")?.passed_rows;
    Ok(Round { making, resuming, passed_rows })
}

/// Runs `resume`.
pub(super) fn run(mut args: Args) -> Result<()> {
    if args.quick {
        args.rows = args.rows.min(1_000_000);
        args.shuffle_rows = args.shuffle_rows.min(100_000);
        args.rounds = args.rounds.min(3);
    }
    ensure!(args.rows > 0 && args.rounds > 0, "--rows and --count must be positive");
    ensure!(
        args.batch_rows > 0 && args.rows / 20 > args.batch_rows as u64,
        "a batch must be smaller than 5% of the rows"
    );
    print_provenance();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("rows.tsv");
    std::fs::write(&path, generate::rows(1, args.rows, generate::write_text))?;

    let mut figures = Vec::new();
    for &modulus in &args.moduli {
        for shuffle_rows in [0, args.shuffle_rows] {
            let options =
                FeedOptions { batch_rows: args.batch_rows, shuffle_rows, ..FeedOptions::default() };
            let way = if shuffle_rows == 0 { "in order" } else { "shuffled" };
            let (mut making, mut resuming, mut shares) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..args.rounds {
                let round = round(&path, modulus, &options, &args)?;
                making.push(round.making);
                resuming.push(round.resuming);
                shares.push(round.resuming / round.making);
                ensure!(round.passed_rows > 0, "{way}, the feed passed over no row");
            }
            let name = |what: &str| format!("modulus {modulus}, {way}: {what}");
            let made = Row::of(name("making the rows"), "s", Spread::of(making), 1.0);
            let first = Row::of(name("first batch"), "s", Spread::of(resuming), 1.0).beside(&made);
            let share = Row::of(name("share"), "%", Spread::of(shares), 100.0);
            figures.extend([made, first, share]);
        }
    }
    println!("checked: each first batch is that of the uninterrupted feed");
    args.output.publish("pipeline resume", &figures)
}
