//! `load` and `run`: one store in this process. The program makes every check that can refuse a run
//! before it loads the first row.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::core_properties::Core;
use crate::data::{self, Data};
use crate::engine::{EngineKind, Named, Settings};
use crate::json_file::JsonFile;
use crate::loaded::Loaded;
use crate::measure::{Measured, Spec};
use crate::output::Output;
use crate::properties::PropertyArgs;
use crate::report::{self, Row};
use crate::stand::Stand;
use crate::work::{NamedSpec, Times, Work};
use crate::workload::Mix;

/// Options of `load`.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// The store
    #[arg(long, value_enum, default_value = "embank")]
    engine: EngineKind,
    #[command(flatten)]
    properties: PropertyArgs,
    #[command(flatten)]
    data: Data,
}

/// Options of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The store [default: embank; with --loaded the only load in --directory]
    #[arg(long, value_enum)]
    engine: Option<EngineKind>,
    #[command(flatten)]
    properties: PropertyArgs,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    work: Work,
    /// Measure the store that `load` left in --directory. Without this option the program loads a
    /// store, and removes it at the end. Rows, value size, key order and memory budget default to
    /// those of the load. The program refuses other values, except for the memory budget
    #[arg(long)]
    loaded: bool,
    /// At the end read every row and check every byte
    #[arg(long)]
    check_all: bool,
    /// Write everything to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The whole result of a run, for `--json`.
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
/// Returns an error if options or properties cannot be honoured, or if the directory holds a store.
/// Returns any error of the store.
pub(crate) fn load(args: &LoadArgs, out: &mut Output) -> Result<()> {
    let core = Core::read(&args.properties)?;
    let kind = args.data.engine(args.engine);
    kind.ensure_built()?;
    ensure!(kind.keeps_rows(), "{} can't be kept for a later process; use `run`", kind.name());
    if let Some(mix) = core.mix {
        ensure_runs(kind, "the properties' workload", mix)?;
    }
    let directory = args.data.directory.join(kind.name());
    if directory.exists() {
        bail!("{} exists; remove it to load anew", directory.display());
    }
    let settings = args.data.settings(&core, directory.join("store"))?;
    data::ensure_fits(&[kind], &settings, &[])?;
    report::print_provenance(out);
    let (stand, seconds) = Stand::load(kind, &settings)?;
    stand.keep(&directory, &settings)?;
    writeln!(out, "{} rows of {} bytes in {seconds:.1} s", settings.rows, settings.value_bytes);
    writeln!(out, "measure them with `run --loaded` and the same --engine and --directory");
    Ok(())
}

/// Checks that a store can do the operations of `mix`.
///
/// # Errors
/// Returns an error with the store's reason if it cannot.
fn ensure_runs(kind: EngineKind, name: &str, mix: Mix) -> Result<()> {
    match kind.no_scan() {
        Some(reason) if mix.scan > 0.0 => bail!("{name}: {} can't do it: {reason}", kind.name()),
        _ => Ok(()),
    }
}

/// A run whose settings have passed every check.
struct Plan {
    kind: EngineKind,
    settings: Settings,
    specs: Vec<NamedSpec>,
    json: Option<JsonFile>,
    /// The directory of a temporary store. Dropping this removes it.
    scratch: Option<tempfile::TempDir>,
}

impl Plan {
    /// Reads and checks the options, the properties and the settings of an earlier load.
    fn of(args: &Args) -> Result<Self> {
        let core = Core::read(&args.properties)?;
        let data = &args.data;
        let parent = &data.directory;
        let asked = args.engine.or(data.embank_clock.then_some(EngineKind::Embank));
        let asked = asked.map(|kind| data.engine(kind));
        let loaded = if args.loaded { Some(Loaded::find(parent, asked)?) } else { None };
        let kind = loaded.as_ref().map_or(asked.unwrap_or(EngineKind::Embank), |l| l.engine);
        kind.ensure_built()?;
        let specs = args.work.specs(Times { seconds: 10.0, warm_up_seconds: 2.0 }, &core)?;
        args.work.ensure_leases(&[kind])?;
        for named in &specs {
            ensure_runs(kind, &named.name, named.spec.mix)?;
        }
        let settings = match &loaded {
            Some(loaded) => data.settings_of(&core, loaded)?,
            None => data.settings(&core, parent.clone())?,
        };
        data::ensure_fits(&[kind], &settings, &specs)?;
        let mut inputs = args.properties.files.clone();
        inputs.extend(loaded.map(|loaded| loaded.note()));
        let json = args.json.as_deref().map(|path| JsonFile::check(path, &inputs)).transpose()?;
        if args.loaded {
            return Ok(Plan { kind, settings, specs, json, scratch: None });
        }
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        let scratch = tempfile::tempdir_in(parent)
            .with_context(|| format!("making a directory in {}", parent.display()))?;
        let settings = Settings { directory: scratch.path().to_owned(), ..settings };
        Ok(Plan { kind, settings, specs, json, scratch: Some(scratch) })
    }
}

/// Loads a store or opens a loaded store, then measures it.
///
/// # Errors
/// Returns an error for options that do not fit together or for a wrong answer, and any error of
/// the store.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    let Plan { kind, settings, specs, json, scratch } = Plan::of(args)?;
    report::print_provenance(out);
    let (stand, load_s) = if settings.reopen {
        (Stand::open(kind, &settings)?, None)
    } else {
        let (stand, seconds) = Stand::load(kind, &settings)?;
        (stand, Some(seconds))
    };
    let configuration = stand.describe();
    report::print_configuration(out, kind.name(), &configuration, load_s);
    let mut measurements = Vec::new();
    let mut rows = Vec::new();
    for named in specs {
        let measured = stand.measure(&named.spec)?;
        report::print_measured(out, &named.name, &measured);
        rows.extend(Row::of_run(&named.name, &measured));
        measurements.push(Measurement { name: named.name, spec: named.spec, measured });
    }
    if args.check_all {
        stand.check_all()?;
        writeln!(out, "every byte of every row is right");
    }
    // The store must be closed before its directory is removed.
    drop(stand);
    drop(scratch);
    if let Some(file) = &json {
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
        file.write(&document)?;
    }
    Ok(())
}
