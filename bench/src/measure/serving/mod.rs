//! `serving`: the latencies of a bank that is open read-only, for serving and evaluation.
//!
//! A process trains a bank and takes checkpoints. This process has the bank open read-only and
//! peeks at its rows. A request has one key or some tens of keys, Zipf or uniform. The memory
//! budget holds the whole bank in one run, and a quarter of it in the other. This process first
//! peeks while the writer rests. Then it peeks while the writer trains and a thread refreshes the
//! reader after each checkpoint. It compares every row of every peek with the checkpoint
//! (`reader`). The limits are a bare gather of as many rows from memory, and as many random reads
//! at once from the drive (`limits`).
//!
//! A round measures four things: the limits, opening the bank, every kind of request while the
//! writer rests ("alone"), and every kind of request while the writer trains ("beside the writer").
//! Beside the writer, requests count only after the first refresh, which empties the read cache,
//! and peeks go on until the writer rests. A figure is the median of the rounds' percentiles, with
//! the least and the largest. Each request begins when the request before it has ended and has been
//! checked. A request that waited for a processor therefore counts once. The latencies are those of
//! one caller, not of a queue of callers.
//!
//! Estimate, written before measuring.
//!
//! Alone, with the whole bank in memory: a row of a read-only bank is a copy in the read cache,
//! behind the index and a shard's lock. That is 3 dependent misses and 256 bytes, 0.5 to 0.8 us for
//! one key. 64 keys take 8 to 12 us, because their misses overlap only in part. p99.9 is 5 to 30
//! us. If another guest has the processor, it is 1 to 10 ms.
//!
//! Alone, with a quarter in memory: index and pages leave the cache room for a sixth of the rows. A
//! uniform key takes a read of the drive and 10 us, and 64 uniform keys take a burst of 53 reads.
//! Half of all Zipf keys are in memory, so p50 of one Zipf key may be that of memory or of the
//! drive. 64 Zipf keys always wait for the drive.
//!
//! Beside a writer on two processors: p50 of requests from memory is 1.2 to 2 times that alone, and
//! p99.9 is the scheduler's 3 to 10 ms. **A refresh begins with an empty read cache.** So beside a
//! writer a bank that fits in memory is as slow as one that does not, until its rows have been
//! requested again. Opening and refreshing read 10 bytes of index for each row and make the index
//! in memory. For 2 million rows that takes 20 to 60 ms, and twice that beside a writer.

mod history;
mod limits;
mod percentiles;
mod reader;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use indicatif::ProgressBar;

use crate::ground::content::{KeyStream, Popularity};
use crate::ground::gather::{Ground, Pages};
use crate::ground::index_loop::record_bytes;
use crate::ground::loading::bar;
use crate::ground::options::{Common, Skew};
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::Spread;
use crate::measure::store::in_memory::scratch_in;

use history::Training;
use limits::Limits;
use percentiles::Percentiles;
use reader::{Expected, Followed, Reader, follow};
pub(crate) use writer::run as write;
use writer::{Order, Task, Writer};

/// Time to measure the limits, as a part of the time for a kind of request. Less time is enough,
/// because the limits vary less than the requests.
const LIMIT_TIME_PART: f64 = 0.25;
/// Largest number of warm-up passes over all rows of a bank that fits in memory.
const WARM_UPS_MAX: usize = 4;
/// A bank counts as in memory if the drive supplies less than this part of the rows of a warm-up
/// pass.
const COLD_PART_MAX: f64 = 0.001;

/// Options of `serving`.
#[derive(Debug, clap::Args)]
#[command(after_help = "With --quick, within a minute: 500,000 rows, 2 rounds of half a second")]
pub(crate) struct Args {
    /// Rows of the bank
    #[arg(long, default_value_t = 2_000_000)]
    rows: u64,
    /// Columns (f32) of a row
    #[arg(long, default_value_t = 64)]
    dim: usize,
    /// Memory budgets of the reader and of the writer, divided by the bank's rows and index, each
    /// measured by itself
    #[arg(long, value_delimiter = ',', default_value = "2,0.25")]
    budgets: Vec<f64>,
    /// Keys of a request, each number measured by itself
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    keys: Vec<usize>,
    #[command(flatten)]
    skew: Skew,
    /// Keys of a batch that the writer trains
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    /// Seconds of training between two checkpoints
    #[arg(long, default_value_t = 1.0)]
    checkpoint_every: f64,
    /// Seconds of each kind of request in a round
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Measured rounds; the median counts
    #[arg(long = "count", default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    common: Common,
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kind {
    popularity: Popularity,
    /// Keys of a request.
    keys: usize,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.keys == 1 { "" } else { "s" };
        write!(f, "{}, {} key{plural}", self.popularity, self.keys)
    }
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, the bank or the writer's process fails, or an answer is wrong.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.common.quick {
        args.rows = args.rows.min(500_000);
        args.rounds = args.rounds.min(2);
        args.seconds = args.seconds.min(0.5);
        args.checkpoint_every = args.checkpoint_every.min(0.25);
    }
    check(&args)?;
    print_provenance();
    let directory = scratch_in(&args.common.directory)?;
    let kinds = kinds(&args);
    let bytes = usize::try_from(args.rows).context("too many rows")? * args.dim * size_of::<f32>();
    let ground = Ground::filled(bytes, Pages::Huge)?;
    let mut limits = Limits::new(&ground, &kinds, args.dim, directory.path());
    let mut measured = Vec::new();
    for &budget in &args.budgets {
        let path = directory.path().join(format!("bank-{}", measured.len()));
        measured.push(measure(&args, budget, &path, &kinds, &mut limits)?);
    }
    let mut figures = limits.figures();
    for (&budget, measured) in args.budgets.iter().zip(&measured) {
        measured.publish(&args, budget, &limits, &mut figures);
    }
    args.common.output.publish("Serving", &figures)
}

fn check(args: &Args) -> Result<()> {
    ensure!(
        args.rows > 0 && args.dim > 0 && args.batch > 0 && args.rounds > 0,
        "--rows, --dim, --batch and --count must be positive"
    );
    ensure!(
        !args.keys.is_empty() && args.keys.iter().all(|keys| (1..=4096).contains(keys)),
        "--keys must be from 1 to 4096"
    );
    ensure!(!args.budgets.is_empty(), "--budgets names none");
    ensure!(args.budgets.iter().all(|&budget| budget > 0.0), "--budgets must be positive");
    ensure!((0.0..1.0).contains(&args.skew.zipf), "--zipf must be at least 0 and below 1");
    ensure!(
        args.seconds > 0.0 && args.checkpoint_every > 0.0,
        "--seconds and --checkpoint-every must be positive"
    );
    Ok(())
}

/// All kinds of requests, each with its keys.
fn kinds(args: &Args) -> Vec<(Kind, KeyStream)> {
    let mut kinds = Vec::new();
    for popularity in [Popularity::Zipf(args.skew.zipf), Popularity::Uniform] {
        let stream = KeyStream::of(popularity, args.common.seed, args.rows);
        for &keys in &args.keys {
            kinds
                .push((Kind { popularity, keys }, stream.reseeded(args.common.seed + keys as u64)));
        }
    }
    kinds
}

/// The results of one kind of request, round by round.
#[derive(Debug, Default)]
struct Requests {
    took: Percentiles,
    from_drive: Vec<f64>,
}

/// The results at one budget.
#[derive(Debug)]
struct Measured {
    kinds: Vec<(Kind, KeyStream)>,
    /// The requests alone, one entry for each kind.
    alone: Vec<Requests>,
    beside: Vec<Requests>,
    /// Seconds of each opening.
    opened: Vec<f64>,
    /// Seconds of each refresh.
    refreshed: Vec<f64>,
    /// Refreshes in each round.
    refreshes: Vec<f64>,
    /// Rows a second that the writer trained, in each round.
    trained: Vec<f64>,
}

/// Measures both processes at one budget, round after round.
fn measure(
    args: &Args,
    budget: f64,
    path: &Path,
    kinds: &[(Kind, KeyStream)],
    limits: &mut Limits<'_>,
) -> Result<Measured> {
    let record = record_bytes(args.dim * size_of::<f32>()) as u64;
    let task = Task {
        bank: path.to_owned(),
        rows: args.rows,
        dim: args.dim,
        memory_budget_bytes: (args.rows as f64 * (record + 16) as f64 * budget) as u64,
        zipf: args.skew.zipf,
        batch: args.batch,
        checkpoint_every_seconds: args.checkpoint_every,
        seed: args.common.seed,
    };
    let mut writer = Writer::start(&task)?;
    let mut expected = Expected::loaded(args.rows, writer.first_checkpoint);
    let mut training = task.training();
    let none = || kinds.iter().map(|_| Requests::default()).collect();
    let mut measured = Measured {
        kinds: kinds.to_vec(),
        alone: none(),
        beside: none(),
        opened: Vec::new(),
        refreshed: Vec::new(),
        refreshes: Vec::new(),
        trained: Vec::new(),
    };
    let progress = bar("serving", (args.rounds * 2) as u64);
    for _ in 0..args.rounds {
        limits.round(args.dim, Duration::from_secs_f64(args.seconds * LIMIT_TIME_PART))?;
        let began = Instant::now();
        let mut reader = Reader::open(path, task.memory_budget_bytes, &mut expected)?;
        measured.opened.push(began.elapsed().as_secs_f64());
        for _ in 0..WARM_UPS_MAX {
            if reader.peek_at_all()? < COLD_PART_MAX || budget < 1.0 {
                break;
            }
        }
        progress.set_message("alone");
        let Measured { kinds, alone, .. } = &mut measured;
        let duration = Duration::from_secs_f64(args.seconds);
        requests(&mut reader, kinds, alone, (duration, true))?;
        progress.inc(1);
        progress.set_message("beside the writer");
        beside(args, &mut reader, &mut writer, &mut training, &mut measured)?;
        progress.inc(1);
    }
    finish(&progress, path, &task, &mut expected)?;
    Ok(measured)
}

/// Opens the bank at its last checkpoint and checks every row.
fn finish(progress: &ProgressBar, path: &Path, task: &Task, expected: &mut Expected) -> Result<()> {
    progress.finish_and_clear();
    let mut reader = Reader::open(path, task.memory_budget_bytes, expected)?;
    reader.peek_at_all().map(|_| ())
}

/// Measures every kind of request, one after another.
fn requests(
    reader: &mut Reader<'_>,
    kinds: &mut [(Kind, KeyStream)],
    requests: &mut [Requests],
    (duration, warm_up): (Duration, bool),
) -> Result<()> {
    let mut warm_for = None;
    for ((kind, keys), requests) in kinds.iter_mut().zip(requests) {
        if warm_up && warm_for.replace(kind.popularity) != Some(kind.popularity) {
            reader.warm_up(keys, duration)?;
        }
        let pass = reader.pass(keys, kind.keys, duration)?;
        requests.took.note(&pass.took);
        requests.from_drive.push(pass.from_drive);
    }
    Ok(())
}

/// Measures every kind of request while the writer trains and a thread refreshes the reader. A
/// refresh empties the cache, so there is no warm-up.
fn beside(
    args: &Args,
    reader: &mut Reader<'_>,
    writer: &mut Writer,
    training: &mut Training,
    measured: &mut Measured,
) -> Result<()> {
    let Writer { orders, news, .. } = writer;
    let Measured { kinds, beside, .. } = measured;
    let (tell, moves) = mpsc::channel();
    reader.moves = Some(moves);
    let (bank, first) = (reader.bank(), reader.checkpoint());
    let duration = Duration::from_secs_f64(args.seconds);
    orders.give(Order::Train)?;
    let followed = thread::scope(|scope| -> Result<Followed> {
        let follower = scope.spawn(move || follow(&bank, news, training, tell));
        let moved = |reader: &Reader<'_>| reader.checkpoint() > first || follower.is_finished();
        let passed = peek_until(reader, &mut kinds[0], moved)
            .and_then(|()| requests(reader, kinds, beside, (duration, false)));
        // Gives the order to rest also after an error. The thread that refreshes ends only when the
        // writer rests.
        let rested = orders.give(Order::Rest);
        // Peeks continue until the writer's last checkpoint, so that each refresh happens beside
        // peeks.
        let went_on =
            passed.and_then(|()| peek_until(reader, &mut kinds[0], |_| follower.is_finished()));
        let followed = follower.join().map_err(|_| anyhow!("the refreshing thread panicked"))?;
        went_on?;
        let followed = followed?;
        rested?;
        Ok(followed)
    })?;
    reader.catch_up()?;
    measured.refreshes.push(followed.refreshes.len() as f64);
    measured.refreshed.extend(followed.refreshes.iter().map(Duration::as_secs_f64));
    measured.trained.push(followed.trained_per_second);
    Ok(())
}

/// Peeks until `done` returns true. These requests are not part of any figure.
fn peek_until(
    reader: &mut Reader<'_>,
    (kind, keys): &mut (Kind, KeyStream),
    done: impl Fn(&Reader<'_>) -> bool,
) -> Result<()> {
    // The loop ends because the writer takes checkpoints until it rests. If the writer's process
    // ends, the loop ends too.
    while !done(reader) {
        reader.peek(&keys.draw(kind.keys))?;
    }
    Ok(())
}

impl Measured {
    /// Adds the figures of this budget.
    fn publish(&self, args: &Args, budget: f64, limits: &Limits<'_>, figures: &mut Vec<Row>) {
        let row_bytes = args.dim * size_of::<f32>();
        let label = format!("{} rows of {row_bytes} B, budget {budget}", args.rows);
        // Most rows of a bank that does not fit come from the drive.
        let drive = budget < 1.0;
        let kinds = self.kinds.iter().map(|(kind, _)| *kind);
        for ((kind, alone), beside) in kinds.zip(&self.alone).zip(&self.beside) {
            let limits = limits.beside(kind, drive);
            let named = |how: &str, requests: &Requests| {
                let name = format!("{label}: {kind}, {how}");
                let from_drive = Spread::of(requests.from_drive.clone());
                let part = Row::of(format!("{name}: from the drive"), "% of rows", from_drive, 1e2);
                (requests.took.figures(&name), part)
            };
            let (alone, part_alone) = named("alone", alone);
            let (beside, part_beside) = named("beside a writer", beside);
            let beside = beside.into_iter().zip(&alone).map(|(row, alone)| row.beside(alone));
            let beside: Vec<Row> =
                beside.zip(&limits).map(|(row, of)| row.over_floor(of)).collect();
            figures.extend(alone.into_iter().zip(&limits).map(|(row, of)| row.beside(of)));
            figures.push(part_alone);
            figures.extend(beside);
            figures.push(part_beside);
        }
        let mut push = |what: &str, unit, samples: &[f64], scale| {
            let name = format!("{label}: {what}");
            figures.push(Row::of(name, unit, Spread::of(samples.to_vec()), scale));
        };
        push("opened in", "ms", &self.opened, 1e3);
        push("a refresh beside the writer", "ms", &self.refreshed, 1e3);
        push("refreshes in a round", "", &self.refreshes, 1.0);
        push("trained meanwhile", "million rows/s", &self.trained, 1e-6);
    }
}
