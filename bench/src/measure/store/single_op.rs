//! `single-op`: one key in each call, as in YCSB and in stores without batches.
//!
//! `single-op` measures reads (a `Get` that keeps the clock), peeks, and a mix of half reads and
//! half blind updates. Rows have 8 or 64 bytes, keys are uniform or Zipf, and one or two threads
//! draw from the same keys. `--peer-json FILE` gives the figures of another store that was measured
//! on the same machine:
//!
//! ```json
//! {"peer": "C++ FASTER, -O3", "rows": [{"name": "64 B x 1 thread: uniform, reads", "value": 3.5}]}
//! ```
//!
//! The names in the file are those that this program prints, and `--list` prints only these names.
//! Values are in million operations a second.
//!
//! Estimate, written before measuring. A call has one dependent miss for the bucket and one for the
//! record. Each miss takes 100 ns if the table is not in a cache, and the processor overlaps little
//! of it with the next call. Pinning, counting and the scratch memory take 30 to 40 ns more. That
//! gives 4 million calls a second uniform, and 10 to 15 million under Zipf, where most requested
//! rows are in some cache. Updates cost as much as reads. Two threads are twice as fast uniform.
//! Under Zipf they gain less, because the lines of the most popular rows move between the cores.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::ground::content::{self, KeyStream, Popularity};
use crate::ground::kv_contenders::KvRows;
use crate::ground::loading::bar;
use crate::ground::options::{Common, Skew, Threads};
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::{Contender, Draw, Plan, Spread, alternate};
use crate::measure::store::in_memory::{check_in_memory, scratch_in, whole_budget_bytes};

/// Number of calls that are timed together.
const BATCH_KEYS: usize = 4096;

/// Options of `single-op`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With --quick, within a minute: 1 million rows, 3 rounds of 1 million operations"
)]
pub(crate) struct Args {
    /// Rows of the table
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Columns (f32) of a row, each length measured by itself
    #[arg(long, value_delimiter = ',', default_value = "2,16")]
    dims: Vec<usize>,
    #[command(flatten)]
    threads: Threads,
    /// Measured rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Operations of a round, by all threads together
    #[arg(long, default_value_t = 4_000_000)]
    operations: usize,
    #[command(flatten)]
    skew: Skew,
    /// Figures of another store: {"peer": "its name", "rows": [{"name": "...", "value": 3.5}]}
    #[arg(long, value_name = "FILE")]
    peer_json: Option<PathBuf>,
    /// Print the names of the figures, for --peer-json, and do nothing
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    common: Common,
}

/// Which operation each key gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mix {
    Reads,
    Peeks,
    HalfUpdates,
}

impl Mix {
    const ALL: [Mix; 3] = [Mix::Reads, Mix::Peeks, Mix::HalfUpdates];

    fn name(self) -> &'static str {
        match self {
            Mix::Reads => "reads",
            Mix::Peeks => "peeks",
            Mix::HalfUpdates => "50/50 reads and updates",
        }
    }
}

/// The contender: calls the store with one key at a time.
#[derive(Debug)]
struct Single<'a> {
    rows: &'a KvRows,
    mix: Mix,
}

impl Contender for Single<'_> {
    fn name(&self) -> &str {
        self.mix.name()
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let dim = self.rows.dim;
        // Draws the operation of each key, and prepares the rows to put. Where a row will be read,
        // the buffer must not hold that row already, so that the check detects a read that does
        // nothing.
        let mut toss = KeyStream::new(keys[0], 0, 1, 2);
        let updates: Vec<bool> =
            keys.iter().map(|_| self.mix == Mix::HalfUpdates && toss.next_key() == 1).collect();
        rows.fill(0.0);
        for ((&key, row), &update) in keys.iter().zip(rows.chunks_exact_mut(dim)).zip(&updates) {
            if update {
                content::fill(&[key], dim, row);
            }
        }
        let each = keys.chunks_exact(1).zip(rows.chunks_exact_mut(dim));
        let started = Instant::now();
        match self.mix {
            Mix::Reads => {
                for (key, row) in each {
                    self.rows.read(key, embank_kv::Clock::Keep, row)?;
                }
            }
            Mix::Peeks => {
                for (key, row) in each {
                    self.rows.peek(key, row)?;
                }
            }
            Mix::HalfUpdates => {
                for ((key, row), &update) in each.zip(&updates) {
                    if update {
                        self.rows.write(key, embank_kv::Clock::Keep, row)?;
                    } else {
                        self.rows.read(key, embank_kv::Clock::Keep, row)?;
                    }
                }
            }
        }
        Ok(started.elapsed())
    }
}

/// Figures of another store.
#[derive(Debug, Deserialize)]
struct Peer {
    peer: String,
    rows: Vec<PeerRow>,
}

#[derive(Debug, Deserialize)]
struct PeerRow {
    name: String,
    value: f64,
}

impl Peer {
    fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| {
            let form = r#"{"peer": "name", "rows": [{"name": "...", "value": 3.5}]}"#;
            format!("{} is not of the form {form}", path.display())
        })
    }
}

/// The name of a figure, in the report and in a peer's file.
fn figure_name(dim: usize, threads: usize, popularity: Popularity, mix: &str) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("{} B x {threads} thread{plural}: {popularity}, {mix}", dim * size_of::<f32>())
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, the peer's file can't be read or has unknown names, the store fails
/// or reads from disk, or an answer is wrong.
pub(crate) fn run(mut args: Args) -> Result<()> {
    ensure!(args.rows > 0 && args.operations > 0, "--rows and --operations must be positive");
    ensure!(args.dims.iter().all(|&dim| dim > 0), "--dims must be positive");
    ensure!((0.0..1.0).contains(&args.skew.zipf), "--zipf must be at least 0 and below 1");
    if args.common.quick {
        args.rows = args.rows.min(1_000_000);
        args.operations = args.operations.min(1_000_000);
        args.rounds = 3;
    }
    let names = names(&args);
    if args.list {
        names.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    let peer = args.peer_json.as_deref().map(Peer::read).transpose()?;
    for row in peer.iter().flat_map(|peer| &peer.rows) {
        ensure!(
            names.contains(&row.name),
            "the peer's figure {:?} has no counterpart here; --list prints the names",
            row.name
        );
    }
    print_provenance();
    let mut figures = Vec::new();
    for &dim in &args.dims {
        row_length(&args, dim, &mut figures)?;
    }
    let figures = match &peer {
        Some(peer) => beside_peer(figures, peer),
        None => figures,
    };
    args.common.output.publish("One key a call", &figures)
}

fn popularities(args: &Args) -> [Popularity; 2] {
    [Popularity::Uniform, Popularity::Zipf(args.skew.zipf)]
}

fn names(args: &Args) -> Vec<String> {
    let mut names = Vec::new();
    for &dim in &args.dims {
        for popularity in popularities(args) {
            for &threads in &args.threads.threads {
                names.extend(Mix::ALL.map(|m| figure_name(dim, threads, popularity, m.name())));
            }
        }
    }
    names
}

fn row_length(args: &Args, dim: usize, figures: &mut Vec<Row>) -> Result<()> {
    let directory = scratch_in(&args.common.directory)?;
    let budget_bytes = whole_budget_bytes(args.rows, dim);
    let rows = KvRows::load(&directory.path().join("kv"), args.rows, dim, budget_bytes)?;
    let singles = Mix::ALL.map(|mix| Single { rows: &rows, mix });
    let contenders = singles.each_ref().map(|single| single as &dyn Contender);
    for popularity in popularities(args) {
        let batches = (args.operations / BATCH_KEYS).max(1);
        let plan = Plan {
            rows: args.rows,
            dim,
            batch: BATCH_KEYS,
            threads: args.threads.threads.clone(),
            draw: Draw::Together(popularity),
            rounds: args.rounds,
            batches,
            warm_up_batches: batches.min(64),
            seed: args.common.seed,
        };
        let spreads = alternate(&plan, &contenders, &bar("one key a call", 0))?;
        for (&threads, spreads) in args.threads.threads.iter().zip(spreads) {
            for (contender, spread) in contenders.iter().zip(spreads) {
                let name = figure_name(dim, threads, popularity, contender.name());
                figures.push(Row::of(name, "million ops/s", spread, 1e-6));
            }
        }
    }
    check_in_memory("store", &rows.store.stats())?;
    rows.check_every_row(None)
}

/// Returns the figures. If the peer has a figure of the same name, the two are compared.
fn beside_peer(figures: Vec<Row>, peer: &Peer) -> Vec<Row> {
    let values: HashMap<&str, f64> =
        peer.rows.iter().map(|row| (row.name.as_str(), row.value)).collect();
    let beside = |row: Row| match values.get(row.name.as_str()) {
        None => row,
        Some(&value) => {
            let spread = Spread { median: value, min: value, max: value };
            row.beside(&Row::of(peer.peer.clone(), "million ops/s", spread, 1.0))
        }
    };
    figures.into_iter().map(beside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(directory: &Path) -> Args {
        Args {
            rows: 10_000,
            dims: vec![2, 16],
            threads: Threads { threads: vec![1, 2] },
            rounds: 1,
            operations: 10_000,
            skew: Skew { zipf: 0.99 },
            peer_json: Some(directory.join("peer.json")),
            list: false,
            common: Common::of_test(4, directory),
        }
    }

    #[test]
    fn every_figure_that_the_peer_has_stands_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let args = args(directory.path());
        let peer = r#"{"peer": "other", "rows": [
            {"name": "64 B x 2 threads: Zipf 0.99, reads", "value": 2.0}]}"#;
        fs::write(args.peer_json.as_ref().unwrap(), peer).unwrap();
        run(args).unwrap();
        let text = fs::read_to_string(directory.path().join("rows.json")).unwrap();
        let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(rows.len(), 2 * 2 * 2 * 3);
        let beside: Vec<_> = rows.iter().filter(|row| row["against"] == "other").collect();
        assert_eq!(beside.len(), 1);
        assert_eq!(beside[0]["against_value"], 2.0);
    }

    #[test]
    fn a_peers_figure_that_is_not_measured_here_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let args = args(directory.path());
        let peer = r#"{"peer": "other", "rows": [{"name": "gets", "value": 2.0}]}"#;
        fs::write(args.peer_json.as_ref().unwrap(), peer).unwrap();
        let error = run(args).unwrap_err();
        assert!(format!("{error:#}").contains("--list"), "{error:#}");
    }
}
