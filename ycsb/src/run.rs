//! `load` and `run`: one store, in this process.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::engine::{EngineKind, Named, Settings};
use crate::measure::{Measured, Spec};
use crate::options::{Data, Times, Work};
use crate::output::say;
use crate::report::{self, Row};
use crate::stand::Stand;

/// Options of `load`.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// The store
    #[arg(long, value_enum, default_value = "embank")]
    engine: EngineKind,
    #[command(flatten)]
    data: Data,
}

/// Options of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The store
    #[arg(long, value_enum, default_value = "embank")]
    engine: EngineKind,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    work: Work,
    /// Measure what `load` left in --directory, in place of loading a store that is removed at the end
    #[arg(long)]
    loaded: bool,
    /// At the end read every row and look at every byte
    #[arg(long)]
    check_all: bool,
    /// Write everything to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// All of a run, for `--json`.
#[derive(Serialize)]
struct Document<'a> {
    machine: String,
    commit: String,
    command: String,
    settings: &'a Settings,
    engine: &'static str,
    configuration: Named<String>,
    load_s: Option<f64>,
    rows: Vec<Row>,
    measurements: Vec<Measurement>,
}

#[derive(Serialize)]
struct Measurement {
    name: String,
    spec: Spec,
    measured: Measured,
}

/// Loads a store and keeps it in the directory.
///
/// # Errors
/// What the store reports; something is there already.
pub(crate) fn load(args: &LoadArgs) -> Result<()> {
    let kind = args.data.engine(args.engine);
    let directory = args.data.directory.join(kind.name());
    if directory.exists() {
        bail!("{} exists; remove it to load anew", directory.display());
    }
    let settings = args.data.settings(directory.join("store"))?;
    report::print_provenance();
    let (stand, seconds) =
        Stand::load(kind, &settings, args.data.key_order, args.data.load_threads)?;
    stand.keep(&directory)?;
    say!("{} rows of {} bytes in {seconds:.1} s", settings.rows, settings.value_bytes);
    say!("measure them with `run --loaded` and the same --engine and --directory");
    Ok(())
}

/// Loads a store (or opens a loaded one) and measures it.
///
/// # Errors
/// Options that do not fit together, a wrong answer, what the store reports.
pub(crate) fn run(args: &Args) -> Result<()> {
    let specs = args.work.specs(Times { seconds: 10.0, warm_up_seconds: 2.0 })?;
    let kind = args.data.engine(args.engine);
    report::print_provenance();
    let parent = &args.data.directory;
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    // Removed when it goes out of scope, after the store.
    let scratch = tempfile::tempdir_in(parent)?;
    let (settings, stand, load_s) = if args.loaded {
        let directory = parent.join(kind.name());
        let settings = args.data.settings(directory.join("store"))?;
        let stand = Stand::reopen(kind, &directory, &settings)?;
        (settings, stand, None)
    } else {
        let settings = args.data.settings(scratch.path().to_owned())?;
        let (stand, seconds) =
            Stand::load(kind, &settings, args.data.key_order, args.data.load_threads)?;
        (settings, stand, Some(seconds))
    };
    let configuration = stand.describe();
    report::print_configuration(kind.name(), &configuration, load_s);
    let mut measurements = Vec::new();
    let mut rows = Vec::new();
    for named in specs {
        if let Some(reason) = stand.refuses(&named.spec) {
            bail!("{}: {} can't do it: {reason}", named.name, kind.name());
        }
        let measured = stand.measure(&named.spec)?;
        report::print_measured(&named.name, &measured);
        rows.extend(Row::of_run(&named.name, &measured));
        measurements.push(Measurement { name: named.name, spec: named.spec, measured });
    }
    if args.check_all {
        stand.check_all()?;
        say!("every byte of every row is right");
    }
    if let Some(path) = &args.json {
        let document = Document {
            machine: crate::process::machine(),
            commit: crate::process::commit(),
            command: report::command(),
            settings: &settings,
            engine: kind.name(),
            configuration,
            load_s,
            rows,
            measurements,
        };
        report::write_json(path, &document)?;
    }
    Ok(())
}
