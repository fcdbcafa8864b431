//! `in-memory`: the store and its tables with every row in memory, compared with the machine's
//! limits.
//!
//! The run also measures two limits of the machine. The bare random gather touches one place in
//! memory for each row. The bare loop behind an index touches two, as every store with a hash index
//! must. The targets are parts of the gather's rate. The loop shows which part of the difference is
//! due to the machine.
//!
//! Estimate, written before measuring. At 64 bytes `kv get` does 0.8 of the loop behind an index.
//! It adds about 15 ns of hashing, tags and headers to 45 to 50 ns of misses, which hide a part of
//! the 15 ns. At 512 bytes it does 0.9, because copying takes a larger part of the time. Of the
//! plain gather that is 0.3 to 0.4 at 64 bytes and 0.7 at 512. The put of get + put finds its rows
//! in the core's own cache if a row has 64 bytes, and in the next level if it has 512: 0.6 of the
//! rate of the get alone. A table's get also removes duplicates and moves clocks: 0.9 of the rate
//! of the store's get. 100 million rows of 8 bytes take 5.6 GB, far more than any cache and TLB.
//! Their rate is 0.75 of the rate with 10 million rows on machines with small caches, and less if
//! the caches hold most of the 10 million.
//!
//! All answers are checked: by [`crate::ground::rounds`] while it measures, and at the end by
//! reading every row. Each row must be as the puts left it.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use embank::{Bank, BankOptions, Initializer, Missing, Optimizer, Table, TableConfig};
use embank_kv::StoreStats;

use crate::ground::contenders::{Flips, Get, GetPut, Peek};
use crate::ground::content;
use crate::ground::gather::{Gather, Ground, Pages, huge_page_bytes};
use crate::ground::index_loop::{BareIndex, IndexAndRecord, record_bytes};
use crate::ground::kv_contenders::{KvGet, KvGetPut, KvPeek, KvRows};
use crate::ground::loading::{bar, for_all_rows};
use crate::ground::options::{Common, Threads};
use crate::ground::report::{self, Row};
use crate::ground::rounds::{Contender, Draw, Plan, Spread, alternate};
use crate::measure::store::threads_a_batch;

/// Columns (f32) of a row in the comparison of a large table with a smaller one: 8 bytes.
const SIZES_DIM: usize = 2;

/// Options of `in-memory`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With --quick, within a minute: 1 million rows (fewer where they exceed 512 MiB) \
                  beside 10 million, 3 rounds"
)]
pub(crate) struct Args {
    /// Rows of the table
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Columns (f32) of a row, each length measured by itself
    #[arg(long, value_delimiter = ',', default_value = "16,128,1024")]
    dims: Vec<usize>,
    /// Largest number of MiB of values in a table; if --rows of a length exceed it, the table has
    /// fewer rows
    #[arg(long, value_name = "MIB", default_value_t = 5 << 10)]
    table_mib: u64,
    /// Rows of a larger table of 8-byte rows, to compare with one of --rows; 0 leaves it out
    #[arg(long, value_name = "ROWS", default_value_t = 100_000_000)]
    pub(crate) large_rows: u64,
    /// Only the store or only the tables above it
    #[arg(long, value_enum)]
    pub(crate) only: Option<Level>,
    /// Keys of a batch
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    #[command(flatten)]
    pub(crate) threads: Threads,
    /// Measure this instead: tables alone, one calling thread, batches of 256, 4,096 and 32,768
    /// keys, with these numbers of the bank's threads compared with one
    #[arg(long, value_name = "N[,M..]", value_delimiter = ',', conflicts_with_all = ["only", "batch", "threads"])]
    pub(crate) threads_a_batch: Vec<usize>,
    /// Measured rounds; the median counts
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Memory budget of each store in MiB; without it, one that holds every row in memory
    #[arg(long, value_name = "MIB")]
    budget: Option<u64>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The layer that is compared with the bare loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Level {
    Store,
    Tables,
}

impl Args {
    /// Rows of a table with `dim` columns.
    pub(crate) fn rows_of(&self, dim: usize) -> u64 {
        let row_bytes = (dim * size_of::<f32>()) as u64;
        self.rows.min((self.table_mib << 20) / row_bytes)
    }

    fn plan(&self, rows: u64, dim: usize) -> Plan {
        let batches = (rows.min(self.rows) as usize / self.batch).max(1);
        Plan {
            rows,
            dim,
            batch: self.batch,
            threads: self.threads.threads.clone(),
            draw: Draw::Apart,
            rounds: self.rounds,
            batches,
            warm_up_batches: batches.min(64),
            seed: self.common.seed,
        }
    }

    pub(crate) fn budget_bytes(&self, rows: u64, dim: usize) -> u64 {
        self.budget.map_or_else(|| whole_budget_bytes(rows, dim), |mib| mib << 20)
    }
}

/// Returns a budget that holds every row in mutable memory: one and a half times the records, and
/// 16 bytes of index for each row. The part of it that the store does not use is not resident.
pub(crate) fn whole_budget_bytes(rows: u64, dim: usize) -> u64 {
    let row_bytes = record_bytes(dim * size_of::<f32>()) as u64 + 16;
    rows * row_bytes * 3 / 2 + (64 << 20)
}

/// A new directory for stores, which is removed when it is dropped.
///
/// # Errors
/// Fails if the directory can't be made.
pub(crate) fn scratch_in(directory: &Path) -> Result<tempfile::TempDir> {
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    tempfile::tempdir_in(directory)
        .with_context(|| format!("creating a directory in {}", directory.display()))
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, the store fails, an answer is wrong, or the store reads from disk.
pub(crate) fn run(args: Args) -> Result<()> {
    let output = args.common.output.clone();
    output.publish("In memory", &measure(args)?)
}

/// The figures.
///
/// # Errors
/// Fails as [`run`] does.
pub(crate) fn measure(mut args: Args) -> Result<Vec<Row>> {
    ensure!(
        args.rows > 0 && args.batch > 0 && args.rounds > 0,
        "--rows, --batch and --rounds must be positive"
    );
    ensure!(args.dims.iter().all(|&dim| dim > 0), "--dims must be positive");
    if args.common.quick {
        args.rows = args.rows.min(1_000_000);
        args.table_mib = args.table_mib.min(512);
        args.large_rows = args.large_rows.min(args.rows * 10);
        args.rounds = 3;
    }
    ensure!(
        args.dims.iter().all(|&dim| args.rows_of(dim) > 0),
        "--table-mib does not hold a row of the longest of --dims"
    );
    report::print_provenance();
    let mut figures = Vec::new();
    if args.threads_a_batch.is_empty() {
        println!(
            "workload  batches of {} uniform keys, {} rounds, seed {}",
            args.batch, args.rounds, args.common.seed
        );
        for &dim in &args.dims {
            row_length(&args, dim, &mut figures)?;
        }
        if args.large_rows > 0 {
            sizes(&args, &mut figures)?;
        }
    } else {
        println!("workload  uniform keys, {} rounds, seed {}", args.rounds, args.common.seed);
        for &dim in &args.dims {
            threads_a_batch::measure(&args, dim, &mut figures)?;
        }
    }
    println!("every row checked; no reads from disk");
    Ok(figures)
}

/// Measures rows of one length.
fn row_length(args: &Args, dim: usize, figures: &mut Vec<Row>) -> Result<()> {
    let directory = scratch_in(&args.common.directory)?;
    let rows = args.rows_of(dim);
    let plan = args.plan(rows, dim);
    let row_bytes = dim * size_of::<f32>();
    let ground = Ground::filled(rows as usize * record_bytes(row_bytes), Pages::Huge)?;
    let index = BareIndex::filled(rows)?;
    let gather = Gather::tuned(&ground, rows, row_bytes, args.batch);
    let behind_index = IndexAndRecord::tuned(&index, &ground, row_bytes, args.batch);

    let budget_bytes = args.budget_bytes(rows, dim);
    println!(
        "{row_bytes} B      {rows} rows, budget {} MiB each; gather: {}; index + record: {}; {} MiB in huge pages",
        budget_bytes >> 20,
        gather.ahead(),
        behind_index.how(),
        huge_page_bytes().map_or("?".to_owned(), |bytes| (bytes >> 20).to_string()),
    );
    let mut contenders: Vec<&dyn Contender> = vec![&gather, &behind_index];
    let label = format!("{row_bytes} B");
    let flips = || Mutex::new(Flips::new(rows));

    let path = directory.path().join("kv");
    let store = (args.only != Some(Level::Tables))
        .then(|| KvRows::load(&path, rows, dim, budget_bytes))
        .transpose()?;
    let store_flips = flips();
    let on_store = store.as_ref().map(|rows| {
        let put = KvGetPut {
            name: "kv get + put".to_owned(),
            rows,
            clock: true,
            flips: Some(&store_flips),
        };
        (KvGet { name: "kv get".to_owned(), rows }, put, KvPeek { rows })
    });
    if let Some((get, get_put, peek)) = &on_store {
        contenders.extend([get as &dyn Contender, get_put, peek]);
    }

    // Gives each bank one thread for a batch. The bare loops also have one processor for each
    // calling thread, so the comparison is fair.
    let options =
        BankOptions { memory_budget_bytes: budget_bytes, threads: 1, ..BankOptions::default() };
    let bank = (args.only != Some(Level::Store))
        .then(|| Bank::open(directory.path().join("bank"), options))
        .transpose()?;
    let table =
        bank.as_ref().map(|bank| load_table(bank, rows, dim, Optimizer::None)).transpose()?;
    let on_table = table.as_ref().map(|table| {
        let get_put = GetPut { table, flips: flips() };
        (Get { table, release: false }, get_put, Get { table, release: true }, Peek { table })
    });
    if let Some((get, get_put, get_release, peek)) = &on_table {
        contenders.extend([get as &dyn Contender, get_put, get_release, peek]);
    }

    let spreads = alternate(&plan, &contenders, &bar("measuring", 0))?;
    beside_limits(&label, &args.threads.threads, &contenders, spreads, figures);
    drop(contenders);
    let flips =
        |flips: Mutex<Flips>| flips.into_inner().expect("a thread that panicked has ended the run");
    if let (Some(bank), Some(table), Some((_, get_put, ..))) = (&bank, &table, on_table) {
        check_in_memory("bank", &bank.stats().store)?;
        check_table(table, rows, dim, &flips(get_put.flips))?;
    }
    drop(on_store);
    match store {
        None => Ok(()),
        Some(rows) => {
            check_in_memory("store", &rows.store.stats())?;
            rows.check_every_row(Some(&flips(store_flips)))
        }
    }
}

/// Makes a figure for each contender and number of threads. The first contender is the gather, the
/// second the loop behind an index. The figures of all others are compared with both. If the first
/// number of threads is one, every figure with more threads also has its ratio to the figure with
/// one thread.
fn beside_limits(
    label: &str,
    threads: &[usize],
    contenders: &[&dyn Contender],
    spreads: Vec<Vec<Spread>>,
    figures: &mut Vec<Row>,
) {
    let mut single: Vec<Row> = Vec::new();
    for (&threads, spreads) in threads.iter().zip(spreads) {
        let plural = if threads == 1 { "" } else { "s" };
        let mut rows: Vec<Row> = contenders
            .iter()
            .zip(spreads)
            .map(|(contender, spread)| {
                Row::rate(
                    format!("{label} x {threads} thread{plural}: {}", contender.name()),
                    spread,
                )
            })
            .collect();
        let (gather, rest) = rows.split_first_mut().expect("the gather comes first");
        let (floor, rest) = rest.split_first_mut().expect("the loop behind an index comes second");
        *floor = floor.clone().beside(gather);
        for row in rest {
            *row = row.clone().beside(gather).over_floor(floor);
        }
        let scaled: Vec<Row> =
            rows.iter().zip(&single).map(|(many, one)| Row::scaling(many, one)).collect();
        if threads == 1 {
            single.clone_from(&rows);
        }
        figures.extend(rows);
        if let Some((gather, rest)) = scaled.split_first() {
            let rest: Vec<Row> = rest.iter().map(|row| row.clone().beside(gather)).collect();
            figures.push(gather.clone());
            figures.extend(rest);
        }
    }
}

/// Measures `--large-rows` rows of 8 bytes, compared with `--rows` rows of 8 bytes.
fn sizes(args: &Args, figures: &mut Vec<Row>) -> Result<()> {
    let directory = scratch_in(&args.common.directory)?;
    let row_bytes = SIZES_DIM * size_of::<f32>();
    let plan = args.plan(args.large_rows, SIZES_DIM);
    let ground = Ground::filled(args.large_rows as usize * record_bytes(row_bytes), Pages::Huge)?;
    let (rows, large_rows) = (args.rows, args.large_rows);
    let (index, large_index) = (BareIndex::filled(rows)?, BareIndex::filled(large_rows)?);
    let tuned = |rows| Gather::tuned(&ground, rows, row_bytes, args.batch);
    let (gather, large_gather) = (tuned(rows), tuned(large_rows));
    let tuned = |index| IndexAndRecord::tuned(index, &ground, row_bytes, args.batch);
    let (behind, large_behind) = (tuned(&index), tuned(&large_index));
    let load = |name: &str, rows| {
        let budget_bytes = args.budget_bytes(rows, SIZES_DIM);
        KvRows::load(&directory.path().join(name), rows, SIZES_DIM, budget_bytes)
    };
    let (kv, large_kv) = (load("small", rows)?, load("large", large_rows)?);
    let get = KvGet { name: "kv get".to_owned(), rows: &kv };
    let large_get = KvGet { name: "kv get".to_owned(), rows: &large_kv };
    let contenders: [&dyn Contender; 6] =
        [&gather, &behind, &get, &large_gather, &large_behind, &large_get];
    let spreads = alternate(&plan, &contenders, &bar("sizes", 0))?;
    for (&threads, spreads) in args.threads.threads.iter().zip(spreads) {
        let names = [rows, large_rows].into_iter().flat_map(|rows| {
            ["gather", "index + record", "kv get"].map(move |what| {
                format!("8 B x {} million rows x {threads}: {what}", rows / 1_000_000)
            })
        });
        let rows: Vec<Row> = names.zip(spreads).map(|(n, spread)| Row::rate(n, spread)).collect();
        let (small, large) = rows.split_at(3);
        figures.extend_from_slice(small);
        figures.extend(large.iter().zip(small).map(|(large, small)| large.clone().beside(small)));
    }
    for (name, kv) in [("small", &kv), ("large", &large_kv)] {
        check_in_memory(name, &kv.store.stats())?;
        kv.check_every_row(None)?;
    }
    Ok(())
}

/// Prints how many rows were found in memory and on disk.
///
/// # Errors
/// Fails if the store read rows from the disk.
pub(crate) fn check_in_memory(name: &str, stats: &StoreStats) -> Result<()> {
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

/// Makes a table with a row for each key from 0 to `rows - 1`.
///
/// # Errors
/// Returns the bank's error.
pub(crate) fn load_table(
    bank: &Bank,
    rows: u64,
    dim: usize,
    optimizer: Optimizer,
) -> Result<Table> {
    let columns = u32::try_from(dim).context("--dims are too large")?;
    let config = TableConfig::new(columns).optimizer(optimizer).initializer(Initializer::Zeros);
    let table = bank.table("rows", config)?;
    for_all_rows("loading the table", rows, dim, |keys, values| {
        content::fill(keys, dim, values);
        Ok(table.put(keys, values)?)
    })?;
    Ok(table)
}

/// Reads every row once and checks that it is as the puts left it.
///
/// # Errors
/// Fails if an answer is wrong or the table fails.
pub(crate) fn check_table(table: &Table, rows: u64, dim: usize, flips: &Flips) -> Result<()> {
    for_all_rows("checking every row", rows, dim, |keys, values| {
        table.peek(keys, values, Missing::Error)?;
        for (&key, row) in keys.iter().zip(values.chunks_exact(dim)) {
            flips.check(key, content::sign(key, row)?)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(directory: &Path, rows: u64, budget: Option<u64>) -> Args {
        Args {
            rows,
            dims: vec![16],
            table_mib: 5 << 10,
            large_rows: 2 * rows,
            only: None,
            batch: 512,
            threads: Threads { threads: vec![1, 2] },
            threads_a_batch: Vec::new(),
            rounds: 2,
            budget,
            common: Common::of_test(9, directory),
        }
    }

    #[test]
    fn a_small_run_measures_and_checks_everything() {
        let directory = tempfile::tempdir().unwrap();
        run(args(directory.path(), 20_000, None)).unwrap();
        let text = fs::read_to_string(directory.path().join("rows.json")).unwrap();
        let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(rows.len(), 3 * 9 + 2 * 6);
        assert_eq!(rows[3]["name"], "64 B x 1 thread: kv get + put");
        assert_eq!(rows[3]["against"], "64 B x 1 thread: gather");
        assert_eq!(rows[3]["floor"], "64 B x 1 thread: index + record");
    }

    #[test]
    fn threads_a_batch_are_measured_beside_one_thread() {
        let directory = tempfile::tempdir().unwrap();
        let args = Args { threads_a_batch: vec![2], ..args(directory.path(), 70_000, None) };
        run(args).unwrap();
        let text = fs::read_to_string(directory.path().join("rows.json")).unwrap();
        let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(rows.len(), 3 * 2 * 4);
        let last = rows.last().unwrap();
        assert_eq!(last["name"], "64 B, batches of 32768, 2 threads a batch: table gradients");
        assert_eq!(last["against"], "64 B, batches of 32768, 1 thread a batch: table gradients");
    }

    #[test]
    fn long_rows_are_fewer_where_the_table_would_exceed_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let args = Args { table_mib: 1, ..args(directory.path(), 3_000, None) };
        assert_eq!(args.rows_of(16), 3_000);
        assert_eq!(args.rows_of(1_024), 256);
        let none = Args { dims: vec![1 << 19], ..args };
        let error = run(none).unwrap_err();
        assert!(format!("{error:#}").contains("--table-mib"), "{error:#}");
    }

    #[test]
    fn a_budget_that_does_not_hold_the_table_is_no_measurement_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let error = run(args(directory.path(), 200_000, Some(8))).unwrap_err();
        assert!(format!("{error:#}").contains("raise --budget"), "{error:#}");
    }
}
