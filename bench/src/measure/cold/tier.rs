//! The tier's part of `cold`: a store in two tiers, with many more rows than memory.
//!
//! The program loads a table by blind puts, changes rows that it draws uniformly, and reads rows
//! that it draws uniformly. It reports the memory of each row, the reads of the drive and the
//! processor time for each row that was not in memory, the bytes that the kernel has written for
//! each changed row, the size of the files over that of the rows, and the time to open the bank. It
//! also puts whole rows, with and without looking them up. Rows have a number that each change
//! raises; the program keeps the number of some keys, and compares it at the end and after a
//! reopening. Each checkpoint has these numbers. So a run that was killed can be followed by one of
//! the same bank, perhaps with another budget, which compares them first.
//!
//! Estimate, from the design, written before measuring, for rows of 64 bytes at 10 times the
//! budget: 0.6 bytes of memory, 1.05 reads, 365 bytes written for each changed row, 1.5 times the
//! rows. A put that looks its row up reads as often as a change; a blind put reads no part.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use embank_kv::bench::{ColdTier as ColdTierSizes, cold_tier};
use embank_kv::{Access, Clock, ColdTier, Operation, Store, StoreOptions, TableId};

use crate::ground::loading::bar;
use crate::ground::options::Common;
use crate::ground::report::Row;
use crate::measure::store::in_memory::scratch_in;

/// Keys of a batch.
const BATCH: usize = 4096;
/// The program keeps the number of changes of one key in this many.
const CHECKED: u64 = 1024;
/// Bytes of a row in a part beside its value.
const HEAD_BYTES: u64 = 16;
/// The bytes written are counted in this number of windows.
const WINDOWS: u64 = 5;

/// Options of the tier's part.
#[derive(Debug, clap::Args)]
pub(crate) struct Tier {
    /// tier: memory budget of the store, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    tier_budget: u64,
    /// tier: bytes of all rows' values over the budget, each ratio measured by itself [default:
    /// 10,100; with --quick 10]
    #[arg(long, value_delimiter = ',', hide_default_value = true)]
    tier_ratios: Vec<u64>,
    /// tier: bytes of a row, each length measured by itself
    #[arg(long, value_delimiter = ',', default_value = "64,512")]
    tier_row_bytes: Vec<usize>,
    /// tier: changes over the number of rows
    #[arg(long, default_value_t = 1.0)]
    tier_changes: f64,
    /// tier: keep the bank in this directory, and go on with the one that is there, which has the
    /// same rows. Takes one ratio and one length
    #[arg(long, value_name = "DIR")]
    tier_bank: Option<PathBuf>,
    /// tier: number of rows, in place of the ratio
    #[arg(long)]
    tier_rows: Option<u64>,
}

impl Tier {
    pub(crate) fn quicken(&mut self) {
        self.tier_budget = self.tier_budget.min(8);
        self.tier_row_bytes = vec![64];
        if self.tier_ratios.is_empty() {
            self.tier_ratios = vec![10];
        }
    }

    fn ratios(&self) -> &[u64] {
        if self.tier_ratios.is_empty() { &[10, 100] } else { &self.tier_ratios }
    }
}

/// Adds one to the number of each row. Inserts a row with the number 0.
struct Change;

impl Operation for Change {
    const ACCESS: Access = Access::Update;
    fn update(&mut self, _: usize, value: &mut [u8]) {
        write_number(value, number_of(value) + 1);
    }
}

/// Puts whole rows with this number.
struct Write<const BLIND: bool>(u64);

impl<const BLIND: bool> Operation for Write<BLIND> {
    const ACCESS: Access = Access::Put;
    const BLIND: bool = BLIND;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.fill(i as u8);
        write_number(value, self.0);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Reads the numbers of rows. `u64::MAX` stands for a missing row.
struct Numbers(Vec<u64>);

impl Operation for Numbers {
    const ACCESS: Access = Access::Peek;
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0[i] = number_of(value);
    }
}

fn number_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(*value.first_chunk().expect("a row has 8 bytes"))
}

fn write_number(value: &mut [u8], number: u64) {
    value[..8].copy_from_slice(&number.to_le_bytes());
}

/// Measures all and adds the figures.
///
/// # Errors
/// Fails if a store fails or an answer is wrong.
pub(crate) fn measure(tier: &Tier, common: &Common, figures: &mut Vec<Row>) -> Result<()> {
    ensure!(tier.tier_row_bytes.iter().all(|&bytes| bytes >= 8), "--tier-row-bytes is below 8");
    let cases = tier.tier_row_bytes.len() * tier.ratios().len();
    let is_one = cases == 1 || tier.tier_bank.is_none() && tier.tier_rows.is_none();
    ensure!(is_one, "--tier-bank and --tier-rows take one of --tier-ratios and --tier-row-bytes");
    for &row_bytes in &tier.tier_row_bytes {
        for &ratio in tier.ratios() {
            let by_ratio = (tier.tier_budget << 20) * ratio / row_bytes as u64;
            let rows = tier.tier_rows.unwrap_or(by_ratio);
            let scratch = scratch_in(&common.directory)?;
            let options = StoreOptions {
                memory_budget_bytes: tier.tier_budget << 20,
                cold_tier: ColdTier::Auto,
                ..StoreOptions::default()
            };
            let label = match tier.tier_rows {
                Some(rows) => format!("{row_bytes} B, {rows} rows in {} MiB", tier.tier_budget),
                None => format!("{row_bytes} B, R = {ratio}, uniform"),
            };
            let directory = tier.tier_bank.as_deref().unwrap_or(scratch.path());
            let case = Case { label, rows, row_bytes, directory, options };
            case.run((rows as f64 * tier.tier_changes) as u64, common.seed, figures)?;
        }
    }
    Ok(())
}

/// One measurement.
struct Case<'d> {
    label: String,
    rows: u64,
    row_bytes: usize,
    directory: &'d Path,
    options: StoreOptions,
}

impl Case<'_> {
    fn run(&self, changes: u64, seed: u64, figures: &mut Vec<Row>) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(seed);
        let (store, table, mut expected) = self.begin(figures)?;
        self.note(figures, self.change(&store, table, changes, &mut random, &mut expected)?);
        let name = format!("{}: longest wait of a batch for merges", self.label);
        figures.push(Row::count(name, "ms", store.stats().compaction_waits_us_max as f64 / 1e3));
        self.note(figures, self.read(&store, table, &mut random, &expected)?);
        for (name, put) in [("looked up", false), ("blind", true)] {
            let found = match put {
                false => self.put::<false>(&store, table, changes, &mut random, &mut expected)?,
                true => self.put::<true>(&store, table, changes, &mut random, &mut expected)?,
            };
            for (what, unit, value) in found {
                self.figure(
                    figures,
                    &format!("{name} puts of half of the rows: {what}"),
                    unit,
                    value,
                );
            }
        }
        self.note(figures, self.sizes(&cold_tier(&store), store.stats().memory_index_bytes));
        let begun = Instant::now();
        store.checkpoint(&blob_of(&expected))?;
        self.figure(figures, "checkpoint", "s", begun.elapsed().as_secs_f64());
        drop(store);
        self.reopen(figures)?;
        Ok(())
    }

    /// Loads the rows, or opens the bank that the directory has. Returns the numbers of some keys.
    fn begin(&self, figures: &mut Vec<Row>) -> Result<(Store, TableId, HashMap<u64, u64>)> {
        if self.directory.join("BANK").exists() {
            return self.reopen(figures);
        }
        let store = Store::open(self.directory, &self.options)?;
        let table = store.create_table("rows", self.row_bytes as u32, b"")?;
        self.note(figures, self.load(&store, table)?);
        let expected = (0..self.rows).step_by(CHECKED as usize).map(|key| (key, 0)).collect();
        store.checkpoint(&blob_of(&expected))?;
        Ok((store, table, expected))
    }

    /// Opens the bank, and compares the numbers with those of its checkpoint.
    fn reopen(&self, figures: &mut Vec<Row>) -> Result<(Store, TableId, HashMap<u64, u64>)> {
        let begun = Instant::now();
        let store = Store::open(self.directory, &self.options)?;
        self.figure(figures, "opening", "s", begun.elapsed().as_secs_f64());
        let table = store.tables().first().context("the table is gone")?.id;
        let recovered = store.recovered().context("the bank has no checkpoint")?;
        let (numbers, _) = recovered.blob.as_chunks();
        let keys = (0..self.rows).step_by(CHECKED as usize);
        ensure!(
            numbers.len() as u64 == self.rows.div_ceil(CHECKED),
            "the bank in {:?} has other rows",
            self.directory
        );
        let expected = keys.zip(numbers.iter().map(|bytes| u64::from_le_bytes(*bytes))).collect();
        self.check(&store, table, &expected)?;
        Ok((store, table, expected))
    }

    fn figure(&self, figures: &mut Vec<Row>, what: &str, unit: &'static str, value: f64) {
        figures.push(Row::count(format!("{}: {what}", self.label), unit, value));
    }

    fn note(&self, figures: &mut Vec<Row>, of: Vec<(&str, &'static str, f64)>) {
        for (what, unit, value) in of {
            self.figure(figures, what, unit, value);
        }
    }

    fn load(&self, store: &Store, table: TableId) -> Result<Vec<(&str, &'static str, f64)>> {
        let bar = bar("loading", self.rows);
        let begun = Instant::now();
        for first in (0..self.rows).step_by(BATCH) {
            let keys: Vec<u64> = (first..self.rows.min(first + BATCH as u64)).collect();
            store.execute(table, &keys, Clock::Keep, &mut Write::<true>(0))?;
            bar.inc(keys.len() as u64);
        }
        bar.finish_and_clear();
        let seconds = begun.elapsed().as_secs_f64();
        Ok(vec![("loading", "rows/s", self.rows as f64 / seconds)])
    }

    fn change(
        &self,
        store: &Store,
        table: TableId,
        changes: u64,
        random: &mut fastrand::Rng,
        expected: &mut HashMap<u64, u64>,
    ) -> Result<Vec<(&str, &'static str, f64)>> {
        let bar = bar("changing", changes);
        let mut windows = Vec::new();
        for _ in 0..WINDOWS {
            let (begun, before) = (Instant::now(), written_bytes()?);
            let mut done = 0;
            while done < changes / WINDOWS {
                let mut keys: Vec<u64> = (0..BATCH).map(|_| random.u64(0..self.rows)).collect();
                keys.sort_unstable();
                keys.dedup();
                random.shuffle(&mut keys);
                let outcome = store.execute(table, &keys, Clock::Keep, &mut Change)?;
                ensure!(outcome.missing.is_empty(), "{} rows are missing", outcome.missing.len());
                for key in &keys {
                    expected.entry(*key).and_modify(|number| *number += 1);
                }
                done += keys.len() as u64;
                bar.inc(keys.len() as u64);
            }
            let seconds = begun.elapsed().as_secs_f64();
            windows.push(((written_bytes()? - before) as f64 / done as f64, done as f64 / seconds));
        }
        bar.finish_and_clear();
        // The first windows fill runs that the load has left short.
        let settled = &windows[windows.len() / 2..];
        let mean =
            |of: fn(&(f64, f64)) -> f64| settled.iter().map(of).sum::<f64>() / settled.len() as f64;
        Ok(vec![
            ("bytes written per changed row", "bytes/row", mean(|window| window.0)),
            ("read-modify-writes", "rows/s", mean(|window| window.1)),
        ])
    }

    fn read(
        &self,
        store: &Store,
        table: TableId,
        random: &mut fastrand::Rng,
        expected: &HashMap<u64, u64>,
    ) -> Result<Vec<(&str, &'static str, f64)>> {
        let before = store.stats();
        let (begun, ran) = (Instant::now(), processor_time());
        let mut read = 0;
        while read < self.rows.min(2_000_000) {
            let keys: Vec<u64> = (0..BATCH).map(|_| random.u64(0..self.rows)).collect();
            self.compare(store, table, &keys, expected)?;
            read += keys.len() as u64;
        }
        let after = store.stats();
        let from_disk = (after.hits_disk - before.hits_disk) as f64;
        let reads = (after.disk_reads - before.disk_reads) as f64;
        let joined = (after.disk_reads_joined - before.disk_reads_joined) as f64;
        let ran = (processor_time() - ran).as_secs_f64();
        Ok(vec![
            ("blocks per row from disk", "blocks/row", (reads + joined) / from_disk),
            ("reads", "rows/s", read as f64 / begun.elapsed().as_secs_f64()),
            ("rows from disk", "rows/row", from_disk / read as f64),
            ("processor time per row", "us/row", ran * 1e6 / read as f64),
        ])
    }

    /// Reads rows and puts whole rows, in turns.
    fn put<const BLIND: bool>(
        &self,
        store: &Store,
        table: TableId,
        changes: u64,
        random: &mut fastrand::Rng,
        expected: &mut HashMap<u64, u64>,
    ) -> Result<Vec<(&'static str, &'static str, f64)>> {
        let (mut reads, mut ran, mut done) = (0, Duration::ZERO, 0);
        let (begun, all_ran) = (Instant::now(), processor_time());
        while done < changes / 2 {
            let mut draw = || (0..BATCH).map(|_| random.u64(0..self.rows)).collect::<Vec<u64>>();
            let read = draw();
            self.compare(store, table, &read, expected)?;
            let mut keys = draw();
            keys.sort_unstable();
            keys.dedup();
            random.shuffle(&mut keys);
            let (before, ran_before) = (store.stats(), processor_time());
            let number = 1_000_000 + done;
            store.execute(table, &keys, Clock::Keep, &mut Write::<BLIND>(number))?;
            ran += processor_time() - ran_before;
            reads += store.stats().disk_reads - before.disk_reads;
            for key in &keys {
                expected.entry(*key).and_modify(|known| *known = number);
            }
            done += keys.len() as u64;
        }
        let all_ran = (processor_time() - all_ran).as_secs_f64();
        Ok(vec![
            ("reads of the drive per put", "reads/row", reads as f64 / done as f64),
            ("processor time per put", "us/row", ran.as_secs_f64() * 1e6 / done as f64),
            ("processor time per row", "us/row", all_ran * 1e6 / (2 * done) as f64),
            ("rows per second", "rows/s", 2.0 * done as f64 / begun.elapsed().as_secs_f64()),
        ])
    }

    fn sizes(
        &self,
        tier: &ColdTierSizes,
        index_bytes: u64,
    ) -> Vec<(&'static str, &'static str, f64)> {
        let rows = self.rows as f64;
        let live = (self.rows * (self.row_bytes as u64 + HEAD_BYTES)) as f64;
        vec![
            ("memory per row: fences and filters", "bytes/row", tier.memory_bytes as f64 / rows),
            ("memory per row: buffers", "bytes/row", tier.buffers_bytes as f64 / rows),
            ("memory per row: index of the log", "bytes/row", index_bytes as f64 / rows),
            ("u, largest size of runs over base", "x", tier.run_share),
            ("columns of filters", "columns", f64::from(tier.columns)),
            ("blocks of a fence", "blocks", f64::from(tier.stride)),
            ("versions at rest per row", "versions/row", tier.versions as f64 / rows),
            ("runs", "runs", tier.runs as f64),
            ("parts", "parts", tier.parts as f64),
            ("space of the parts over the rows", "x", tier.disk_bytes as f64 / live),
        ]
    }

    /// Compares the numbers of all keys of `expected`.
    fn check(&self, store: &Store, table: TableId, expected: &HashMap<u64, u64>) -> Result<()> {
        let keys: Vec<u64> = expected.keys().copied().collect();
        for keys in keys.chunks(BATCH) {
            self.compare(store, table, keys, expected)?;
        }
        Ok(())
    }

    fn compare(
        &self,
        store: &Store,
        table: TableId,
        keys: &[u64],
        expected: &HashMap<u64, u64>,
    ) -> Result<()> {
        let mut numbers = Numbers(vec![u64::MAX; keys.len()]);
        store.execute(table, keys, Clock::Keep, &mut numbers)?;
        for (key, &number) in keys.iter().zip(&numbers.0) {
            ensure!(number != u64::MAX, "row {key} is missing");
            let right = expected.get(key).is_none_or(|&expected| expected == number);
            ensure!(right, "row {key} has the number {number}, not {:?}", expected.get(key));
        }
        Ok(())
    }
}

/// Returns the bytes by which a checkpoint keeps these numbers: 8 for each key, in order.
fn blob_of(expected: &HashMap<u64, u64>) -> Vec<u8> {
    let mut numbers: Vec<_> = expected.iter().collect();
    numbers.sort_unstable();
    numbers.into_iter().flat_map(|(_, number)| number.to_le_bytes()).collect()
}

/// Returns the bytes that this process has written to storage.
fn written_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io").context("reading /proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.context("the kernel counts no written bytes")?.trim().parse().context("write_bytes")
}

/// Returns the processor time of this process.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the duty is to pass a place for the time. `time` is one.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
