//! `written`: the bytes that a store writes to disk for each changed row, in its steady state.
//!
//! A freshly loaded store has less to rewrite than a store whose rows have changed for a long time.
//! The program therefore updates rows in *windows* of equally many changes until the bytes a change
//! have settled. It then measures windows of read-modify-writes. A window ends when the store's
//! background work is done, so no store writes a window's bytes in a later one.
//!
//! **Settled** means: the rows have changed [`PASSES_MIN`] times on average, and the last [`SPAN`]
//! windows wrote as many bytes as the [`SPAN`] windows before them, to [`TOLERANCE`]. The search
//! ends after [`PASSES_MAX`] changes a row; the report then says that the bytes have not settled.
//!
//! Read-modify-writes check every row that they read.
//!
//! The bytes are those that the kernel counts for the process (`/proc/self/io`). A store with an
//! account of its own adds it in its counters.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::core_properties::Core;
use crate::data::{self, Data};
use crate::distribution::{Distribution, Skew};
use crate::engine::leases::Leases;
use crate::engine::{EngineKind, Named, Settings};
use crate::json_file::JsonFile;
use crate::measure::{Limit, Measured, Spec};
use crate::output::Output;
use crate::process;
use crate::report;
use crate::stand::Stand;
use crate::worker::ScanLengths;
use crate::workload::Mix;

/// Windows in which every row changes once on average.
const WINDOWS_A_PASS: u64 = 16;
/// Windows whose mean is compared with that of the same number of windows before them.
const SPAN: usize = 6;
/// Largest relative difference of the two means.
const TOLERANCE: f64 = 0.05;
/// Smallest number of changes a row before the bytes count as settled. Embank's log grows to twice
/// its live rows before compaction begins, so its first pass writes less than later ones.
const PASSES_MIN: u64 = 2;
/// Largest number of changes a row that the program waits for.
const PASSES_MAX: u64 = 5;
/// Windows of read-modify-writes. A store that compacts whole levels writes much in some windows
/// and little in others, so the result is their mean.
const MEASURED_WINDOWS: u64 = 8;

/// Options of `written`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The store
    #[arg(long, value_enum, default_value = "embank")]
    engine: EngineKind,
    #[command(flatten)]
    data: Data,
    /// Request distribution
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// Operations of a call
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    /// Seed of the operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write everything to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The whole result, for `--json`.
#[derive(Serialize)]
struct Document<'a> {
    machine: String,
    commit: String,
    command: String,
    settings: &'a Settings,
    engine: &'static str,
    configuration: Named<String>,
    load_s: f64,
    /// The windows of updates, before and until the bytes have settled.
    updates: Vec<Measured>,
    settled: bool,
    /// The windows of read-modify-writes, which give the result.
    read_modify_writes: Vec<Measured>,
    /// Bytes of the store's files at the end.
    space_bytes: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error for options that do not fit together, for a wrong answer, for a system that
/// does not count written bytes, and any error of the store.
pub(crate) fn run(args: &Args, out: &mut Output) -> Result<()> {
    let kind = args.data.engine(args.engine);
    kind.ensure_built()?;
    let parent = &args.data.directory;
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    let scratch = tempfile::tempdir_in(parent)
        .with_context(|| format!("making a directory in {}", parent.display()))?;
    let settings = args.data.settings(&Core::default(), scratch.path().to_owned())?;
    let settings = Settings { counts_writes: true, ..settings };
    data::ensure_fits(&[kind], &settings, &[])?;
    ensure!(args.batch > 0, "--batch must be positive");
    ensure!(
        process::usage().storage_write_bytes.is_some(),
        "the system does not count written bytes: /proc/self/io has no write_bytes"
    );
    let json = args.json.as_deref().map(|path| JsonFile::check(path, &[])).transpose()?;
    report::print_provenance(out);
    let (stand, load_s) = Stand::load(kind, &settings)?;
    let configuration = stand.describe();
    report::print_configuration(out, kind.name(), &configuration, Some(load_s));

    let mut next = Windows { args, rows: settings.rows, number: 0 };
    let (updates, settled) = settle(&stand, &mut next, out)?;
    let mix = Mix { rmw: 1.0, ..Mix::default() };
    let mut read_modify_writes = Vec::new();
    for _ in 0..MEASURED_WINDOWS {
        read_modify_writes.push(stand.measure(&next.spec(mix))?);
    }
    let bytes = bytes_a_change(&read_modify_writes)?;
    writeln!(out, "read-modify-writes: {bytes:.0} bytes a change");
    let space_bytes = bytes_below(&settings.directory)?;
    let values = settings.rows * settings.value_bytes as u64;
    writeln!(out, "files: {:.2} times the values' bytes", space_bytes as f64 / values as f64);
    // The store must be closed before its directory is removed.
    drop(stand);
    drop(scratch);
    if let Some(file) = &json {
        file.write(&Document {
            machine: process::machine(),
            commit: process::commit(),
            command: report::command(),
            settings: &settings,
            engine: kind.name(),
            configuration,
            load_s,
            updates,
            settled,
            read_modify_writes,
            space_bytes,
        })?;
    }
    Ok(())
}

/// Updates rows until the bytes a change have settled. Returns the windows, and false if the bytes
/// have not settled.
fn settle(
    stand: &Stand,
    next: &mut Windows<'_>,
    out: &mut Output,
) -> Result<(Vec<Measured>, bool)> {
    let mix = Mix { update: 1.0, ..Mix::default() };
    let mut windows: Vec<Measured> = Vec::new();
    while windows.len() < (PASSES_MAX * WINDOWS_A_PASS) as usize {
        windows.push(stand.measure(&next.spec(mix))?);
        let Some(first) = windows.len().checked_sub(2 * SPAN) else { continue };
        let before = bytes_a_change(&windows[first..first + SPAN])?;
        let after = bytes_a_change(&windows[first + SPAN..])?;
        let settled = (after / before - 1.0).abs() <= TOLERANCE;
        if settled && windows.len() >= (PASSES_MIN * WINDOWS_A_PASS) as usize {
            let passes = windows.len() as f64 / WINDOWS_A_PASS as f64;
            writeln!(out, "updates: {after:.0} bytes a change, settled after {passes:.2} a row");
            return Ok((windows, true));
        }
    }
    writeln!(out, "updates: the bytes have not settled after {PASSES_MAX} changes a row");
    Ok((windows, false))
}

/// Returns the bytes written for each operation of the windows.
fn bytes_a_change(windows: &[Measured]) -> Result<f64> {
    let operations: u64 = windows.iter().map(|window| window.operations).sum();
    let bytes: Option<u64> = windows.iter().map(|window| window.usage.storage_write_bytes).sum();
    Ok(bytes.context("the system has stopped counting written bytes")? as f64 / operations as f64)
}

/// Makes the windows, each with other operations.
struct Windows<'a> {
    args: &'a Args,
    rows: u64,
    number: u64,
}

impl Windows<'_> {
    /// Returns the next window, with operations of `mix`.
    fn spec(&mut self, mix: Mix) -> Spec {
        self.number += 1;
        Spec {
            mix,
            distribution: self.args.distribution,
            skew: Skew::default(),
            batch: self.args.batch,
            threads: 1,
            leases: Leases::of(None, 1),
            target_operations_per_s: None,
            warm_up: Limit::default(),
            limit: Limit {
                seconds: None,
                operations: Some(self.rows.div_ceil(WINDOWS_A_PASS).max(1)),
            },
            scan_rows_min: 1,
            scan_rows_max: 1,
            scan_lengths: ScanLengths::Uniform,
            latency_every: 1,
            seed: self.args.seed.wrapping_add(self.number << 32),
        }
    }
}

/// Returns the bytes that the files below a directory take on disk.
fn bytes_below(directory: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in
        fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))?
    {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes +=
            if metadata.is_dir() { bytes_below(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}
