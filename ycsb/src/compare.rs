//! `compare`: measures several stores with the same work, in alternating rounds.
//!
//! Every store runs in its own process ([`serve`](crate::serve)), which loads the store once. One
//! process measures at a time, and the other processes are idle. A store's turn ends when its
//! background work is done.
//!
//! In one common process the stores would share an allocator. The counts of storage traffic and
//! memory would be sums over all stores, and background threads of one store would disturb another
//! store. A new process for each round would measure how a store warms up. The price of one process
//! for each store: the memory budgets of all stores must fit into memory at the same time.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::core_properties::Core;
use crate::data::{self, Data};
use crate::engine::{EngineKind, Named, Settings};
use crate::json_file::JsonFile;
use crate::latency::{Latency, Percentiles};
use crate::measure::{Measured, Spec};
use crate::output::Output;
use crate::process;
use crate::properties::PropertyArgs;
use crate::report::{self, Row, Spread, grouped};
use crate::serve::{Client, Opening};
use crate::work::{NamedSpec, Times, Work};

/// Options of `compare`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Stores; the report has the ratio of the first store to each other store
    #[arg(long, value_enum, value_delimiter = ',', required = true)]
    engines: Vec<EngineKind>,
    #[command(flatten)]
    properties: PropertyArgs,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    work: Work,
    /// Number of rounds; the report has the median over the rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A rough answer: at most 1M rows, 3 rounds of one second after half a second of warm-up
    #[arg(long)]
    quick: bool,
    /// Write everything to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The whole result of a comparison, for `--json`.
#[derive(Serialize)]
struct Document<'a> {
    machine: String,
    commit: String,
    command: String,
    settings: &'a Settings,
    rounds: usize,
    engines: Vec<Configured>,
    rows: Vec<Row>,
    measurements: Vec<Measurement>,
}

#[derive(Serialize)]
struct Configured {
    name: &'static str,
    configuration: Named<String>,
    load_s: f64,
}

/// The result of one store for one measurement.
#[derive(Serialize)]
struct Measurement {
    name: String,
    engine: &'static str,
    spec: Spec,
    /// The reason why the store cannot do this work. `None` if it was measured.
    refused: Option<String>,
    rounds: Vec<Measured>,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error for options that do not fit together, for a wrong answer, and any error of a
/// store.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    let times = if args.quick {
        Times { seconds: 1.0, warm_up_seconds: 0.5 }
    } else {
        Times { seconds: 5.0, warm_up_seconds: 2.0 }
    };
    let core = Core::read(&args.properties)?;
    let specs = args.work.specs(times, &core)?;
    let data = &args.data;
    let mut settings = data.settings(&core, data.directory.clone())?;
    let mut rounds = args.rounds;
    if args.quick {
        (settings.rows, rounds) = (settings.rows.min(1_000_000), rounds.min(3));
    }
    let engines: Vec<EngineKind> = args.engines.iter().map(|&kind| data.engine(kind)).collect();
    check(&engines, rounds, settings.memory_budget_bytes)?;
    args.work.ensure_leases(&engines)?;
    check_work(&engines, &specs)?;
    data::ensure_fits(&engines, &settings, &specs)?;
    let inputs = &args.properties.files;
    let json = args.json.as_deref().map(|path| JsonFile::check(path, inputs)).transpose()?;

    let parent = &data.directory;
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    let scratch = tempfile::tempdir_in(parent)
        .with_context(|| format!("making a directory in {}", parent.display()))?;
    settings.directory = scratch.path().to_owned();
    report::print_provenance(out);
    writeln!(
        out,
        "rows      {} of {} bytes, {:?} keys; budget {} bytes each; {rounds} rounds",
        settings.rows, settings.value_bytes, settings.key_order, settings.memory_budget_bytes
    );
    let (mut clients, mut configured) = (Vec::new(), Vec::new());
    for &engine in &engines {
        let directory = scratch.path().join(engine.name());
        let settings = Settings { directory, ..settings.clone() };
        let (client, ready) = Client::start(&Opening { engine, settings })?;
        report::print_configuration(out, engine.name(), &ready.configuration, Some(ready.load_s));
        let (name, configuration, load_s) = (engine.name(), ready.configuration, ready.load_s);
        configured.push(Configured { name, configuration, load_s });
        clients.push(client);
    }

    let (mut rows, mut measurements) = (Vec::new(), Vec::new());
    for named in &specs {
        let measured = alternate(&mut clients, named, rounds)?;
        rows.extend(figures(&named.name, &measured));
        print_comparison(out, &named.name, &measured);
        measurements.extend(measured);
    }
    clients.into_iter().try_for_each(Client::finish)?;
    if let Some(file) = &json {
        let document = Document {
            machine: process::machine(),
            commit: process::commit(),
            command: report::command(),
            settings: &settings,
            rounds,
            engines: configured,
            rows,
            measurements,
        };
        file.write(&document)?;
    }
    Ok(())
}

fn check(engines: &[EngineKind], rounds: usize, budget: u64) -> Result<()> {
    ensure!(rounds > 0, "--rounds must be positive");
    let mut names: Vec<_> = engines.iter().map(|engine| engine.name()).collect();
    names.sort_unstable();
    names.dedup();
    ensure!(names.len() == engines.len(), "--engines names a store twice");
    engines.iter().try_for_each(|engine| engine.ensure_built())?;
    if let Some(available) = process::memory_available_bytes() {
        let needed = budget.saturating_mul(engines.len() as u64);
        ensure!(
            needed <= available,
            "{} stores with {budget} bytes each need {needed} bytes at the same time, and {available} are \
             available; lower --memory-budget or compare fewer stores at a time",
            engines.len()
        );
    }
    Ok(())
}

/// Returns an error if no store can do any of the work.
fn check_work(engines: &[EngineKind], specs: &[NamedSpec]) -> Result<()> {
    let pieces = || specs.iter().flat_map(|named| engines.iter().map(move |&kind| (kind, named)));
    if pieces().any(|(kind, named)| refuses(kind, &named.spec).is_none()) {
        return Ok(());
    }
    let reasons = pieces().filter_map(|(kind, named)| {
        let reason = refuses(kind, &named.spec)?;
        Some(format!("{}: {} can't do it: {reason}", named.name, kind.name()))
    });
    bail!("no store can do any of the work: {}", reasons.collect::<Vec<_>>().join("; "))
}

/// Returns the reason why the store cannot do this work. `None` if it can.
fn refuses(kind: EngineKind, spec: &Spec) -> Option<&'static str> {
    kind.no_scan().filter(|_| spec.mix.scan > 0.0)
}

/// Runs all rounds of one measurement. Each round begins with the next store, so that no store is
/// always first.
fn alternate(clients: &mut [Client], named: &NamedSpec, rounds: usize) -> Result<Vec<Measurement>> {
    let mut measurements: Vec<Measurement> = clients
        .iter()
        .map(|client| Measurement {
            name: named.name.clone(),
            engine: client.engine().name(),
            spec: named.spec.clone(),
            refused: refuses(client.engine(), &named.spec).map(str::to_owned),
            rounds: Vec::new(),
        })
        .collect();
    for round in 0..rounds {
        // Every store gets the same sequence of operations. The sequence changes with the round.
        let seed = named.spec.seed.wrapping_add(round as u64);
        let spec = Spec { seed, ..named.spec.clone() };
        for turn in 0..clients.len() {
            let place = (turn + round) % clients.len();
            if measurements[place].refused.is_some() {
                continue;
            }
            let measured = clients[place].measure(&spec).with_context(|| named.name.clone())?;
            measurements[place].rounds.push(measured);
        }
    }
    Ok(measurements)
}

fn spread(measurement: &Measurement) -> Option<Spread> {
    let rates: Vec<f64> = measurement.rounds.iter().map(|round| round.operations_per_s).collect();
    (!rates.is_empty()).then(|| Spread::of(rates))
}

/// Returns the rate of every store, and the rate of the first store compared with each other store.
fn figures(name: &str, measurements: &[Measurement]) -> Vec<Row> {
    let mut rows = Vec::new();
    let subject = measurements.first().and_then(|first| Some((first.engine, spread(first)?)));
    for measurement in measurements {
        let Some(peer) = spread(measurement) else { continue };
        rows.push(Row::rate(format!("{name}: {}", measurement.engine), peer));
        if let Some((engine, spread)) = subject.filter(|(engine, _)| *engine != measurement.engine)
        {
            let name = format!("{name}: {engine} beside {}", measurement.engine);
            let peer_name = measurement.engine.to_owned();
            rows.push(Row::rate(name, spread).beside(peer_name, peer.median));
        }
    }
    rows
}

/// Returns the round with the median rate. If the number of rounds is even, returns the lower one
/// of the two rounds in the middle.
fn middle_round(measurement: &Measurement) -> Option<&Measured> {
    let mut rounds: Vec<&Measured> = measurement.rounds.iter().collect();
    rounds.sort_by(|a, b| a.operations_per_s.total_cmp(&b.operations_per_s));
    rounds.get(rounds.len().saturating_sub(1) / 2).copied()
}

fn print_comparison(out: &mut Output, name: &str, measurements: &[Measurement]) {
    writeln!(out, "\n{name}");
    writeln!(
        out,
        "  {:13}{:>14}{:>14}{:>14} operations/s  ratio  of the middle round, us a call",
        "store", "median", "min", "max"
    );
    let subject = measurements.first().and_then(spread);
    for measurement in measurements {
        let engine = measurement.engine;
        if let Some(reason) = &measurement.refused {
            writeln!(out, "  {engine:13}refused: {reason}");
        }
        let (Some(spread), Some(middle)) = (spread(measurement), middle_round(measurement)) else {
            continue;
        };
        let ratio = subject.map_or(f64::NAN, |subject| subject.median / spread.median);
        writeln!(
            out,
            "  {engine:13}{:>14}{:>14}{:>14} {ratio:>18.2}x  {}; {}",
            grouped(spread.median),
            grouped(spread.min),
            grouped(spread.max),
            middle.latencies.iter().map(short).collect::<Vec<_>>().join("; "),
            report::usage(middle)
        );
    }
}

fn short(latency: &Latency) -> String {
    let text = |times: Percentiles| {
        format!(
            "p50 {:.1} p99 {:.1} p99.9 {:.1} max {:.0}",
            times.p50_us, times.p99_us, times.p999_us, times.max_us
        )
    };
    let intended = latency.intended.map(|times| format!(", from intended starts {}", text(times)));
    format!("{} {}{}", latency.kind, text(latency.service), intended.unwrap_or_default())
}
