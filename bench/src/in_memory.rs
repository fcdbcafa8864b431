//! `in-memory`: get, get + put and peek of a table that fits in memory, beside the bare gather loop.
//!
//! Estimate, written before measuring: the bare loop touches one cache line a row (64 bytes, aligned).
//! A store also touches its index bucket and, as records carry a header, mostly two lines of the
//! record: three lines where the loop has one. If misses in flight are all that counts, a get comes at
//! a third of the loop's rate; hashing, tags and the lock word are some 20 ns of instructions a row on
//! top of the loop's 15 to 60 ns. So 0.25 to 0.4 of the loop for the store itself (`kv get`), somewhat
//! less for a table's get, which also removes duplicates and moves the clocks (its second pass finds
//! the 4,096 records of the batch in the core's own cache), and about two thirds of that for get + put.
//!
//! Everything is checked: see [`crate::rounds`] for the answers while measuring; at the end every row
//! of the table is read once more and must stand as the puts left it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use embank::{Bank, BankOptions, Initializer, Missing, Optimizer, Table, TableConfig};
use embank_kv::{Clock, Store, StoreOptions, StoreStats};
use indicatif::{ProgressBar, ProgressStyle};

use crate::contenders::{Flips, Gather, Get, GetPut, KvGet, Peek, WriteRows};
use crate::content::{self, KeyStream};
use crate::gather::{Pages, RowTable, huge_page_bytes};
use crate::report::{self, Row};
use crate::rounds::{Contender, Plan, Spread, alternate};

/// Options of `in-memory`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows of the table
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Columns (f32) of a row
    #[arg(long, default_value_t = 16)]
    dim: usize,
    /// Keys of a batch
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    /// Threads, each with its own share of the keys
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Measured rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seed of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Memory budget of each store in MiB; without it, one that holds every row in memory
    #[arg(long, value_name = "MIB")]
    budget: Option<u64>,
    /// Where the banks lie while this runs; they are removed at the end
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    /// Write the figures to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A rough answer within a minute: 1 million rows, 3 rounds
    #[arg(long)]
    quick: bool,
}

impl Args {
    fn plan(&self) -> Result<Plan> {
        ensure!(
            self.rows > 0 && self.dim > 0 && self.batch > 0 && self.threads > 0 && self.rounds > 0,
            "--rows, --dim, --batch, --threads and --rounds must be positive"
        );
        let (rows, rounds) =
            if self.quick { (self.rows.min(1_000_000), 3) } else { (self.rows, self.rounds) };
        ensure!(rows >= self.threads as u64, "--threads {} for {rows} rows", self.threads);
        let batches = (rows as usize / self.batch / self.threads).max(1);
        Ok(Plan {
            rows,
            dim: self.dim,
            batch: self.batch,
            threads: self.threads,
            rounds,
            batches,
            warm_up_batches: batches.min(64),
            seed: self.seed,
        })
    }

    /// Bytes that hold every row: payload, at most 32 bytes of header and 16 of index a row, and half as
    /// much again, so that the mutable region alone holds them all and the index has room to grow.
    fn budget_bytes(&self, plan: &Plan) -> u64 {
        let row_bytes = plan.dim as u64 * size_of::<f32>() as u64 + 32 + 16;
        self.budget.map_or(plan.rows * row_bytes * 3 / 2 + (64 << 20), |mib| mib << 20)
    }
}

/// Runs the subcommand.
///
/// # Errors
/// Options that do not fit together, what the store reports, a wrong answer, a read from disk.
pub(crate) fn run(args: &Args) -> Result<()> {
    let plan = args.plan()?;
    let budget_bytes = args.budget_bytes(&plan);
    fs::create_dir_all(&args.directory)
        .with_context(|| format!("creating {}", args.directory.display()))?;
    let directory = tempfile::tempdir_in(&args.directory)
        .with_context(|| format!("creating a directory in {}", args.directory.display()))?;
    report::print_provenance();
    println!(
        "workload  {} rows of {} f32, batches of {} uniform keys, {} thread(s), {} rounds of {} keys, \
         seed {}",
        plan.rows,
        plan.dim,
        plan.batch,
        plan.threads,
        plan.rounds,
        plan.batches * plan.batch * plan.threads,
        plan.seed
    );

    let bare = RowTable::filled(plan.rows as usize, plan.dim, Pages::Huge)?;
    let tuning = KeyStream::new(plan.seed ^ 1, 0, 1, plan.rows).draw(plan.batch * 64);
    let distance = bare.best_distance(&tuning, plan.batch);
    let bare = Gather { name: "bare gather", table: &bare, distance };
    let kv = load_kv(&plan, budget_bytes, &directory.path().join("kv"))?;
    let options = BankOptions { memory_budget_bytes: budget_bytes, ..BankOptions::default() };
    let bank = Bank::open(directory.path().join("bank"), options)?;
    let table = load_table(&bank, &plan)?;
    println!(
        "stores    budget {} MiB each; bare loop prefetches {distance} rows ahead; {} MiB in huge pages",
        budget_bytes >> 20,
        huge_page_bytes().map_or("?".to_owned(), |bytes| (bytes >> 20).to_string()),
    );

    let get = Get { table: &table, release: false };
    let get_release = Get { table: &table, release: true };
    let peek = Peek { table: &table };
    let get_put = GetPut { table: &table, flips: Mutex::new(Flips::new(plan.rows)) };
    let contenders: [&dyn Contender; 6] = [&bare, &kv, &get, &get_put, &get_release, &peek];
    let spreads = alternate(&plan, &contenders, &bar("measuring", 0))?;
    let figures = figures(&contenders, spreads);
    let flips = get_put.flips.into_inner().expect("a thread that panicked has ended the run");
    check_every_row(&table, &plan, &flips)?;
    check_in_memory("kv store", &kv.store.stats())?;
    check_in_memory("bank", &bank.stats().store)?;
    report::print_table(&figures);
    println!("every row checked; no reads from disk");
    if let Some(path) = &args.json {
        report::write_json(path, &figures)?;
    }
    Ok(())
}

/// One row a contender, each beside the first.
fn figures(contenders: &[&dyn Contender], spreads: Vec<Spread>) -> Vec<Row> {
    let mut figures: Vec<Row> = contenders
        .iter()
        .zip(spreads)
        .map(|(contender, spread)| Row::rate(format!("in memory: {}", contender.name()), spread))
        .collect();
    let (limit, rest) = figures.split_first_mut().expect("the bare loop comes first");
    for figure in rest {
        *figure = figure.clone().beside(limit);
    }
    figures
}

/// Prints where the rows were found; refuses a run that read the disk.
fn check_in_memory(name: &str, stats: &StoreStats) -> Result<()> {
    let mib = |bytes: u64| bytes >> 20;
    println!(
        "{name:9} hits {} mutable, {} read-only, {} disk; {} rows copied to the tail; log {} MiB, \
         index {} MiB, budget {} MiB",
        stats.hits_mutable,
        stats.hits_read_only,
        stats.hits_disk,
        stats.copied_to_tail,
        mib(stats.log_tail - stats.log_begin),
        mib(stats.memory_index_bytes),
        mib(stats.memory_budget_bytes)
    );
    ensure!(
        stats.disk_reads == 0,
        "the {name} read the disk {} times: {} MiB do not hold the table, so this is no measurement in \
         memory; raise --budget",
        stats.disk_reads,
        mib(stats.memory_budget_bytes)
    );
    Ok(())
}

fn load_kv(plan: &Plan, budget_bytes: u64, path: &Path) -> Result<KvGet> {
    let options = StoreOptions { memory_budget_bytes: budget_bytes, ..StoreOptions::default() };
    let store = Store::open(path, &options)?;
    let value_bytes = u32::try_from(plan.dim * size_of::<f32>()).context("--dim is too large")?;
    let table = store.create_table("rows", value_bytes, &[])?;
    for_all_rows("loading the kv store", plan, |keys, rows| {
        content::fill(keys, plan.dim, rows);
        store.execute(table, keys, Clock::Keep, &mut WriteRows { rows, dim: plan.dim })?;
        Ok(())
    })?;
    Ok(KvGet { store, table })
}

fn load_table(bank: &Bank, plan: &Plan) -> Result<Table> {
    let dim = u32::try_from(plan.dim).context("--dim is too large")?;
    let config = TableConfig::new(dim).optimizer(Optimizer::None).initializer(Initializer::Zeros);
    let table = bank.table("rows", config)?;
    for_all_rows("loading the table", plan, |keys, rows| {
        content::fill(keys, plan.dim, rows);
        Ok(table.put(keys, rows)?)
    })?;
    Ok(table)
}

/// Reads every row once and holds it against what the puts left.
fn check_every_row(table: &Table, plan: &Plan, flips: &Flips) -> Result<()> {
    for_all_rows("checking every row", plan, |keys, rows| {
        table.peek(keys, rows, Missing::Error)?;
        for (&key, row) in keys.iter().zip(rows.chunks_exact(plan.dim)) {
            let (found, expected) = (content::sign(key, row)?, flips.negated(key));
            ensure!(
                found == expected,
                "wrong answer: key {key} is {}negated, {} put lost",
                if found { "" } else { "not " },
                if found { "a later" } else { "its last" }
            );
        }
        Ok(())
    })
}

/// Calls `each` with all keys in ascending order, batch by batch, and room for their rows.
fn for_all_rows(
    what: &'static str,
    plan: &Plan,
    mut each: impl FnMut(&[u64], &mut [f32]) -> Result<()>,
) -> Result<()> {
    let progress = bar(what, plan.rows);
    let mut rows = vec![0.0; plan.batch * plan.dim];
    let mut first = 0;
    while first < plan.rows {
        let keys: Vec<u64> = (first..plan.rows.min(first + plan.batch as u64)).collect();
        each(&keys, &mut rows[..keys.len() * plan.dim]).with_context(|| what)?;
        first += keys.len() as u64;
        progress.set_position(first);
    }
    progress.finish_and_clear();
    Ok(())
}

/// A bar on stderr; nothing is drawn where stderr is not a terminal.
fn bar(what: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:24} {bar:40} {human_pos}/{human_len} {msg}")
        .expect("the template is well formed");
    ProgressBar::new(length).with_style(style).with_prefix(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_measures_and_checks_everything() {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("rows.json");
        let args = Args {
            rows: 20_000,
            dim: 16,
            batch: 512,
            threads: 2,
            rounds: 2,
            seed: 9,
            budget: None,
            directory: directory.path().to_owned(),
            json: Some(json.clone()),
            quick: false,
        };
        run(&args).unwrap();
        let rows: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 6);
        assert_eq!(rows[3]["name"], "in memory: get + put");
        assert_eq!(rows[3]["against"], "in memory: bare gather");
    }

    #[test]
    fn a_budget_that_does_not_hold_the_table_is_no_measurement_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let args = Args {
            rows: 200_000,
            dim: 16,
            batch: 512,
            threads: 1,
            rounds: 1,
            seed: 9,
            budget: Some(8),
            directory: directory.path().to_owned(),
            json: None,
            quick: false,
        };
        let error = run(&args).unwrap_err();
        assert!(format!("{error:#}").contains("raise --budget"), "{error:#}");
    }
}
