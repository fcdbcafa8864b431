//! `crash-images`: thousands of power cuts over many recorded lives of a bank. A *life* is a
//! sequence of operations, checkpoints, kills and reopens (`embank_crash::workload`).

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use embank_crash::disk::Left;
use embank_crash::images::{Cut, Oracle, Phase, cuts};
use embank_crash::journal::Op;
use embank_crash::parts::{Parts, is_part};
use embank_crash::recorder;
use embank_crash::workload::{Life, live};
use fastrand::Rng;
use indicatif::ProgressBar;
use parking_lot::Mutex;

use super::report::{Row, publish, scratch, seed};

/// The number of images that are checked for each life.
const IMAGES_PER_LIFE: usize = 500;
/// The run keeps the images of at most this many failures for inspection.
const KEPT_MAX: usize = 5;

/// Options of `crash-images`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of images
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// Seed of the lives and the power cuts [default: a random one, which the run prints]
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of each life
    #[arg(long, default_value_t = 100)]
    steps: u64,
    /// Directory for the images during their checks [default: in memory, /dev/shm]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Directory that keeps the images that fail, with their journals
    #[arg(long, value_name = "DIR", default_value = "target/crash-images")]
    keep: PathBuf,
    /// Write the counts to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A rough answer within seconds: 500 images
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Default)]
struct Tally {
    images: BTreeMap<(Phase, &'static str), u64>,
    maybe: u64,
    failed: Vec<String>,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the check of an image failed, or if a bank's life could not be recorded.
pub(crate) fn run(args: &Args) -> Result<()> {
    let seed = seed(args.seed);
    let count = if args.quick { args.count.min(IMAGES_PER_LIFE) } else { args.count };
    let dir = scratch(args.directory.as_ref())?;
    recorder::skip_syncs();
    let started = Instant::now();
    let bar = ProgressBar::new(count as u64);
    let mut tally = Tally::default();
    let (mut lives, mut calls, mut checkpoints, mut deltas) = (0, 0, 0, 0);
    let (mut kills, mut kills_inside, mut freed, mut growth) = (0, 0, 0, 0);
    let (mut roll_backs, mut kills_in_roll_back) = (0, 0);
    let (mut cold_lives, mut parts) = (0, Parts::default());
    let mut left = count;
    while left > 0 {
        let life_seed = seed.wrapping_add(lives);
        let home = tempfile::tempdir_in(dir.path())?;
        let life = live(home.path(), life_seed, args.steps)
            .with_context(|| format!("recording the life of seed {life_seed}"))?;
        let images = left.min(IMAGES_PER_LIFE);
        check_life(args, &life, life_seed, images, dir.path(), &bar, &mut tally)?;
        left -= images;
        lives += 1;
        calls += life.journal.ops.len();
        checkpoints += life.checkpoints;
        kills += life.kills;
        kills_inside += life.kills_in_checkpoint;
        deltas += delta_checkpoints(&life);
        freed += segments_freed(&life);
        growth += life.growth_steps;
        roll_backs += life.roll_backs;
        kills_in_roll_back += life.kills_in_roll_back;
        cold_lives += u64::from(life.settings.tier.is_some());
        parts += life.parts;
    }
    bar.finish_and_clear();
    let mut rows = vec![
        Row::new("lives", lives as f64, ""),
        Row::new("calls recorded", calls as f64, ""),
        Row::new("checkpoints completed", checkpoints as f64, ""),
        Row::new("checkpoints that add to earlier images", deltas as f64, ""),
        Row::new("segments removed, holes punched", freed as f64, ""),
        Row::new("steps of the growing index", growth as f64, ""),
        Row::new("kills on the way", kills as f64, ""),
        Row::new("kills inside a checkpoint", kills_inside as f64, ""),
        Row::new("times that a bank was rolled back", roll_backs as f64, ""),
        Row::new("of these, killed on the way", kills_in_roll_back as f64, ""),
        Row::new("lives in two tiers", cold_lives as f64, ""),
        Row::new("runs that left the log", parts.runs as f64, ""),
        Row::new("parts of joined runs", parts.joined as f64, ""),
        Row::new("parts of the base", parts.base as f64, ""),
        Row::new("parts removed", parts.removed as f64, ""),
    ];
    for ((phase, left), images) in &tally.images {
        rows.push(Row::new(format!("images: {phase:?}, {left}"), *images as f64, ""));
    }
    rows.push(Row::new("images", count as f64, ""));
    rows.push(Row::new("images where two checkpoints will do", tally.maybe as f64, ""));
    rows.push(Row::new("images that failed", tally.failed.len() as f64, ""));
    rows.push(Row::new("time", started.elapsed().as_secs_f64().round(), "s"));
    publish(&rows, args.json.as_deref())?;
    ensure!(tally.failed.is_empty(), "{} images failed: {}", tally.failed.len(), tally.failed[0]);
    Ok(())
}

fn check_life(
    args: &Args,
    life: &Life,
    life_seed: u64,
    images: usize,
    dir: &Path,
    bar: &ProgressBar,
    tally: &mut Tally,
) -> Result<()> {
    let mut random = Rng::with_seed(life_seed);
    let cuts = cuts(&life.journal, images, &mut random);
    let oracle = Oracle::new(life);
    let next = AtomicUsize::new(0);
    let shared = Mutex::new(std::mem::take(tally));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || -> Result<()> {
        // Relaxed: the counter only hands out each number once; no other data depends on it.
        while let Some((i, cut)) =
            cuts.get(next.fetch_add(1, Ordering::Relaxed)).map(|cut| (cut.moment.position, cut))
        {
            let image = tempfile::tempdir_in(dir)?;
            let checked = oracle.check(cut, image.path(), life_seed ^ i as u64);
            let mut tally = shared.lock();
            *tally.images.entry((cut.moment.phase, kind(cut))).or_default() += 1;
            tally.maybe += u64::from(cut.moment.maybe.is_some());
            bar.inc(1);
            if let Err(error) = checked {
                let text = format!("life {life_seed}, {cut}: {error:#}");
                bar.println(&text);
                if tally.failed.len() < KEPT_MAX {
                    let name = format!("{}-{}", std::process::id(), tally.failed.len());
                    keep(&args.keep.join(name), &oracle, life, cut, &text)?;
                }
                tally.failed.push(text);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(done) => done?,
                Err(_) => bail!("a check panicked, in the life of seed {life_seed}"),
            }
        }
        Ok(())
    })?;
    *tally = shared.into_inner();
    Ok(())
}

fn kind(cut: &Cut) -> &'static str {
    match cut.left {
        Left::Nothing => "nothing unsynced",
        Left::Everything => "everything unsynced",
        Left::AllBut(_) => "all but one call",
        Left::Only(_) => "one call alone",
        Left::Random(_) => "random subset, torn",
    }
}

/// Keeps the image and the journal for inspection.
fn keep(dir: &Path, oracle: &Oracle<'_>, life: &Life, cut: &Cut, text: &str) -> Result<()> {
    let image = dir.join("image");
    fs::create_dir_all(&image).with_context(|| format!("making {}", image.display()))?;
    oracle.lay_out(cut, &image)?;
    let mut journal = fs::File::create(dir.join("journal.txt"))?;
    writeln!(journal, "{text}")?;
    for (i, op) in life.journal.ops.iter().enumerate() {
        let here = if i == cut.moment.position { "--- the power goes ---\n" } else { "" };
        writeln!(journal, "{here}{i:6} {op}")?;
    }
    Ok(())
}

/// Counts the life's checkpoints that store only changes of the index. Such a checkpoint hard-links
/// the index images of earlier checkpoints.
fn delta_checkpoints(life: &Life) -> u64 {
    let mut dirs: Vec<_> = life
        .journal
        .ops
        .iter()
        .filter_map(|op| match op {
            Op::Link { dir, .. } => Some(*dir),
            _ => None,
        })
        .collect();
    dirs.sort_unstable();
    dirs.dedup();
    dirs.len() as u64
}

fn segments_freed(life: &Life) -> u64 {
    let freed = |op: &&Op| match op {
        Op::Punch { .. } => true,
        Op::Unlink { name, .. } => name.ends_with(".seg") && !is_part(name),
        _ => false,
    };
    life.journal.ops.iter().filter(freed).count() as u64
}
