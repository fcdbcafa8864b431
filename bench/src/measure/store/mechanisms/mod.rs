//! `mechanisms`: the gain of each mechanism that decides which rows are in memory and when the
//! store reads them.
//!
//! Five models run with tables of several times the memory budget: three that train and are limited
//! by the drive (DLRM, a knowledge graph, a GNN), and two that mostly read. In each turn, a model
//! runs twice with all mechanisms, and once with each mechanism off, in random order. Each run
//! begins with the same bank at the same checkpoint, and has the same batches. A run computes a
//! checksum of all rows that it read, and of a part of the rows that it left. The checksums of all
//! runs must be equal. Times depend on what else the machine does, but the bytes read and written
//! depend little on it. Each figure is compared with the mean of the two runs of its turn that had
//! all mechanisms.

mod cases;
mod models;
mod training;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use embank_kv::mechanisms::turn_off;

use crate::ground::content::KeyStream;
use crate::ground::report::{Output, Row, print_provenance};
use crate::ground::rounds::Spread;
use crate::measure::store::in_memory::scratch_in;
use cases::CASES;
pub(crate) use cases::Case;
use models::{Kind, Model};
use training::{Figures, Plan};

/// Numbers of first steps that are not measured: in each run, and in the training that prepares a
/// bank.
const WARM_UP: (usize, usize) = (48, 192);
/// Least number of measured steps. In 96 steps, training writes a bank's memory several times over.
const STEPS_MIN: usize = 96;

/// Options of `mechanisms`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Memory budget of each bank, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16)]
    budget: u64,
    /// The bytes of the tables' records divided by the budget, each measured by itself
    #[arg(long, value_delimiter = ',', default_value = "4,16")]
    sizes: Vec<u64>,
    /// Models
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "clicks,triples,neighbours,serving,reading"
    )]
    models: Vec<Kind>,
    /// Turns; the median counts
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// No further turn begins after this number of minutes
    #[arg(long)]
    minutes: Option<u64>,
    /// Seconds of a run; its number of steps follows from the rate of the first run
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Only cases with one of these texts in their name. Cases with all mechanisms on always run
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Additional cases, each without several mechanisms: names as in
    /// `kv/src/testing/mechanisms.rs`, joined by +
    #[arg(long, value_name = "NAME+NAME", value_delimiter = ',')]
    without: Vec<String>,
    /// Milliseconds that each step of training sleeps, which stand for the computing of a model
    #[arg(long, default_value_t = 0.0)]
    compute_ms: f64,
    /// Seed of the order of cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of the banks; they are removed at the end
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    #[command(flatten)]
    output: Output,
    /// A rough answer: one turn, a second for each run, at the first size
    #[arg(long)]
    quick: bool,
}

/// A model with its loaded bank, and the figures of its runs.
struct Subject {
    label: String,
    model: Model,
    path: PathBuf,
    plan: Plan,
    cases: Vec<(Case, Vec<Figures>)>,
    /// The checksum of the rows, which is equal in every run.
    checksum: Option<u64>,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, a bank fails, or the checksums of two runs differ.
pub(crate) fn run(mut args: Args) -> Result<()> {
    ensure!(args.budget > 0 && args.turns > 0 && !args.sizes.is_empty(), "nothing to measure");
    ensure!(args.sizes.iter().all(|&size| size > 0), "--sizes must be positive");
    if args.quick {
        (args.turns, args.seconds) = (1, args.seconds.min(1.0));
        args.sizes.truncate(1);
    }
    print_provenance();
    let began = Instant::now();
    let scratch = scratch_in(&args.directory)?;
    let mut subjects = prepare(&args, scratch.path())?;
    let mut order = KeyStream::new(args.seed, 0, 1, 1 << 32);
    for turn in 0..args.turns {
        let limit = args.minutes.map(|minutes| Duration::from_secs(60 * minutes));
        if turn > 0 && limit.is_some_and(|limit| began.elapsed() > limit) {
            eprintln!("no time for turn {}", turn + 1);
            break;
        }
        for subject in &mut subjects {
            subject.turn(&mut order)?;
        }
        eprintln!("turn {} after {} s", turn + 1, began.elapsed().as_secs());
        args.output
            .publish("Mechanisms", &subjects.iter().flat_map(Subject::rows).collect::<Vec<_>>())?;
    }
    Ok(())
}

fn prepare(args: &Args, directory: &Path) -> Result<Vec<Subject>> {
    let wanted = |case: &Case| {
        args.only.is_empty()
            || case.is_control()
            || args.only.iter().any(|part| case.name.contains(part.as_str()))
    };
    let mut subjects = Vec::new();
    for &kind in &args.models {
        for &size in &args.sizes {
            let model = Model::new(kind, size * (args.budget << 20));
            let label = format!("{}, {size}x", kind.name());
            let path = directory.join(&label);
            let mut plan = Plan {
                budget_bytes: args.budget << 20,
                warm_up: WARM_UP.1,
                steps: 0,
                depth: None,
                compute: Duration::from_secs_f64(args.compute_ms / 1e3),
            };
            turn_off(&[]);
            let rate = training::prepare(&path, &model, &plan)
                .with_context(|| format!("preparing {label}"))?;
            plan.steps = ((rate * args.seconds) as usize).max(STEPS_MIN);
            plan.warm_up = WARM_UP.0;
            eprintln!("{label}: {} steps", plan.steps);
            let mut cases: Vec<Case> = CASES.into_iter().filter(wanted).collect();
            for names in &args.without {
                cases.push(Case::without(names)?);
            }
            cases.retain(|case| case.is_for(kind));
            let cases = cases.into_iter().map(|case| (case, Vec::new())).collect();
            subjects.push(Subject { label, model, path, plan, cases, checksum: None });
        }
    }
    Ok(subjects)
}

impl Subject {
    /// Runs each case once, in random order.
    fn turn(&mut self, order: &mut KeyStream) -> Result<()> {
        let mut places: Vec<usize> = (0..self.cases.len()).collect();
        for left in (1..places.len()).rev() {
            places.swap(left, order.below(left as u64 + 1) as usize);
        }
        for place in places {
            let case = self.cases[place].0.clone();
            let figures =
                self.run(&case).with_context(|| format!("{}, {}", self.label, case.name))?;
            let expected = *self.checksum.get_or_insert(figures.checksum);
            ensure!(
                figures.checksum == expected,
                "wrong answer: {}, {}: the rows' checksum is {:#x}, not {expected:#x}",
                self.label,
                case.name,
                figures.checksum
            );
            self.cases[place].1.push(figures);
        }
        Ok(())
    }

    fn run(&self, case: &Case) -> Result<Figures> {
        turn_off(&case.off);
        training::run(&self.path, &self.model, &Plan { depth: case.depth, ..self.plan })
    }

    /// The report's rows: each figure of each case, compared with the runs with all mechanisms.
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (case, figures) in &self.cases {
            let beside = |(all, _): &&(Case, Vec<Figures>)| case.is_beside(all);
            let controls: Vec<&[Figures]> =
                self.cases.iter().filter(beside).map(|(_, all)| all.as_slice()).collect();
            for (what, unit, of) in FIGURES {
                let values: Vec<f64> = figures.iter().map(of).collect();
                if values.is_empty() {
                    continue;
                }
                let ratios = values.iter().enumerate().map(|(turn, value)| {
                    let all: f64 = controls.iter().map(|all| of(&all[turn])).sum();
                    value * controls.len() as f64 / all.max(1e-9)
                });
                let ratios = Spread::of(ratios.collect());
                let name = format!("{}, {}: {what}", self.label, case.name);
                let mut row = Row::of(name, unit, Spread::of(values), 1.0);
                row.against = Some("all".to_owned());
                row.ratio = Some(ratios.median);
                rows.push(row);
                let name = format!("{}, {}: ratio of {what}", self.label, case.name);
                rows.push(Row::of(name, "of all", ratios, 1.0));
            }
        }
        rows
    }
}

/// A figure: its name, its unit, and its value in [`Figures`].
type Figure = (&'static str, &'static str, fn(&Figures) -> f64);

const FIGURES: [Figure; 9] = [
    ("read", "KiB/step", |figures| figures.read_kib_per_step),
    ("written", "KiB/step", |figures| figures.written_kib_per_step),
    ("log amplification", "of 1", |figures| figures.log_amplification),
    ("log on disk", "MiB", |figures| figures.disk_mib_max),
    ("rate", "rows/s", |figures| figures.rows_per_s),
    ("rate on a processor of its own", "rows/s", |figures| figures.undisturbed_rows_per_s),
    ("waits for a page", "ms/step", |figures| figures.page_wait_ms_per_step),
    ("processor", "ms/step", |figures| figures.cpu_ms_per_step),
    ("depth", "batches", |figures| figures.depth),
];
