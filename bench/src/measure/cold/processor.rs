//! The processor's part of `cold`: what a lookup, a spilled row and a merged row cost.
//!
//! Estimate, from the design, written before measuring: a lookup in the filters of 15 runs takes
//! 1 us, a row's memory is 0.9 bytes, its sort 28 ns, and its part in a merge of 16 runs 27 ns.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, ensure};
use embank_kv::bench::cold::{ColdPart, Shelf, hash_of, key_of, probe};
use fastrand::Rng;

use crate::ground::loading::bar;
use crate::ground::report::Row;
use crate::ground::rounds::Spread;
use crate::measure::cold::rows::{ROW_HEADER_BYTES, fill_row, version_of};
use crate::measure::cold::sort::Sorter;
use crate::measure::store::growth::processor_time;

/// Runs that a lookup asks.
const PROBED_RUNS: usize = 15;
/// Runs that a merge joins.
const MERGED_RUNS: usize = 16;
/// Columns of a run's filters: 1 of 512 absent keys passes.
const RUN_COLUMNS: u32 = 9;
/// Bytes of a row of 64 and of 512 bytes with its header.
const ROW_64: usize = 64 + ROW_HEADER_BYTES;
const ROW_512: usize = 512 + ROW_HEADER_BYTES;
/// Largest excess of the false positives over 2^-columns.
const EXCESS_MAX: f64 = 1.25;

/// Options of the processor's part.
#[derive(Debug, clap::Args)]
pub(crate) struct Sizes {
    /// processor: keys of each of the 15 probed runs
    #[arg(long, default_value_t = 2_000_000)]
    run_keys: usize,
    /// processor: keys of the base
    #[arg(long, default_value_t = 30_000_000)]
    base_keys: usize,
    /// processor: lookups of a round
    #[arg(long, default_value_t = 1_000_000)]
    lookups: usize,
    /// processor: bytes of the sort buffer, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    sort_mib: usize,
    /// processor: bytes of the rows that a merge reads, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    merge_mib: usize,
    /// processor: rounds; the median counts
    #[arg(long = "count", default_value_t = 5)]
    rounds: usize,
}

impl Sizes {
    pub(crate) fn quicken(&mut self) {
        self.run_keys = self.run_keys.min(200_000);
        self.base_keys = self.base_keys.min(3_000_000);
        self.lookups = self.lookups.min(200_000);
        self.merge_mib = self.merge_mib.min(32);
        self.rounds = self.rounds.min(3);
    }
}

/// Measures all and adds the figures.
///
/// # Errors
/// Fails if an answer is wrong.
pub(crate) fn measure(sizes: &Sizes, seed: u64, figures: &mut Vec<Row>) -> Result<()> {
    let positive =
        [sizes.run_keys, sizes.base_keys, sizes.lookups, sizes.sort_mib, sizes.merge_mib];
    ensure!(positive.iter().all(|&size| size > 0) && sizes.rounds > 0, "sizes must be positive");
    let progress = bar("the processor", 6);
    filters(sizes, seed, figures)?;
    progress.inc(2);
    sorts::<ROW_64>(sizes, seed, figures)?;
    sorts::<ROW_512>(sizes, seed, figures)?;
    progress.inc(2);
    merges::<ROW_64>(sizes, seed, figures)?;
    merges::<ROW_512>(sizes, seed, figures)?;
    progress.finish_and_clear();
    Ok(())
}

/// Times a closure once for each round, after one round that does not count, and returns
/// nanoseconds of processor time for each of `count` things.
fn nanoseconds(
    rounds: usize,
    count: usize,
    mut once: impl FnMut() -> Result<()>,
) -> Result<Spread> {
    once()?;
    let timed = (0..rounds).map(|_| {
        let began = processor_time();
        once()?;
        Ok(per_thing(processor_time() - began, count))
    });
    Ok(Spread::of(timed.collect::<Result<_>>()?))
}

fn per_thing(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count as f64
}

/// Compares a figure with the design's.
fn beside_design(mut figure: Row, design: f64) -> Row {
    figure.against = Some("the design".to_owned());
    (figure.against_value, figure.ratio) = (Some(design), Some(figure.value / design));
    figure
}

/// Random hashes in ascending order: their distances are those of evenly spread random numbers.
struct Ascending<'r> {
    random: &'r mut Rng,
    mean: f64,
    last: f64,
    left: usize,
}

impl<'r> Ascending<'r> {
    /// Returns about `count` hashes.
    fn new(random: &'r mut Rng, count: usize) -> Self {
        // Five standard deviations of the last hash: it lies within 64 bits almost always.
        let spare = 5.0 * (count as f64).sqrt();
        Ascending { random, mean: 2f64.powi(64) / (count as f64 + spare), last: 0.0, left: count }
    }
}

impl Iterator for Ascending<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        // A number of 53 bits can't name each hash. The lower bits are random.
        self.last += self.mean * -(1.0 - self.random.f64()).ln() + 4096.0;
        (self.last < 2f64.powi(64)).then(|| self.last as u64 & !4095 | self.random.u64(..4096))
    }
}

/// A part that was written, some of its hashes, and nanoseconds of processor time for each row.
struct Built {
    part: ColdPart,
    sample: Vec<u64>,
    nanoseconds_a_row: f64,
}

/// Writes a part of `rows` rows of 64 bytes and keeps about `samples` of their hashes.
fn build(
    shelf: &Shelf,
    random: &mut Rng,
    rows: usize,
    columns: u32,
    samples: usize,
) -> Result<Built> {
    let step = (rows / samples.max(1)).max(1);
    let mut sample = Vec::new();
    let value = [7; ROW_64 - ROW_HEADER_BYTES];
    let hashes = Ascending::new(random, rows).enumerate().map(|(number, hash)| {
        if number.is_multiple_of(step) {
            sample.push(hash);
        }
        (hash, key_of(hash), &value[..])
    });
    let began = processor_time();
    let part = shelf.write(columns, value.len(), hashes)?;
    let nanoseconds_a_row = per_thing(processor_time() - began, rows);
    ensure!(part.rows() as f64 > 0.99 * rows as f64, "wrong answer: {} rows", part.rows());
    Ok(Built { part, sample, nanoseconds_a_row })
}

/// Filters and fences: building, memory, false positives, lookups.
fn filters(sizes: &Sizes, seed: u64, figures: &mut Vec<Row>) -> Result<()> {
    let random = &mut Rng::with_seed(seed);
    let shelf = Shelf::new(false);
    let (mut runs, mut built, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PROBED_RUNS {
        let run = build(&shelf, random, sizes.run_keys, RUN_COLUMNS, 10_000)?;
        built.push(run.nanoseconds_a_row);
        kept.push(run.sample);
        runs.push(run.part);
    }
    let base = build(&shelf, random, sizes.base_keys, 0, sizes.lookups)?;
    let mut without: Vec<f64> = Vec::new();
    for _ in 0..sizes.rounds {
        without.push(build(&shelf, random, sizes.run_keys, 0, 1)?.nanoseconds_a_row);
    }
    let of_runs = format!("part of a run, 64 B, {RUN_COLUMNS} columns");
    let mut push = |name: String, spread| figures.push(Row::of(name, "ns/row", spread, 1.0));
    push(format!("{of_runs}: write"), Spread::of(built));
    push("part, 64 B, no filters: write".to_owned(), Spread::of(without));
    let bytes = |parts: &[ColdPart]| parts.iter().map(ColdPart::memory_bytes).sum::<usize>() as f64;
    let rows = |parts: &[ColdPart]| parts.iter().map(ColdPart::rows).sum::<u64>() as f64;
    let base_parts = std::slice::from_ref(&base.part);
    let mut memory = |name: String, value, design| {
        figures.push(beside_design(Row::count(name, "bytes/row", value), design));
    };
    memory(format!("{of_runs}: memory"), bytes(&runs) / rows(&runs), 0.05 + 10.1 / 8.0);
    memory(
        "base without filters, 64 B: memory".to_owned(),
        bytes(base_parts) / rows(base_parts),
        0.05,
    );
    let all = rows(&runs) + rows(base_parts);
    let share = rows(&runs) / rows(base_parts);
    memory(
        format!("tier of {:.0} million rows, runs are {share:.2} of the base: memory", all / 1e6),
        (bytes(&runs) + bytes(base_parts)) / all,
        0.9,
    );

    // No key may be denied by the filter that has it.
    for (number, (run, sample)) in runs.iter().zip(&kept).enumerate() {
        ensure!(
            sample.iter().all(|&hash| run.may_have(hash)),
            "wrong answer: the filters of run {number} deny one of its keys"
        );
    }
    let mut present = base.sample;
    random.shuffle(&mut present);
    let absent: Vec<u64> = (0..sizes.lookups).map(|_| random.u64(..)).collect();
    for (what, hashes) in [("present in the base", &present), ("absent", &absent)] {
        let mut candidates = vec![0u32; hashes.len()];
        let spread = nanoseconds(sizes.rounds, hashes.len(), || {
            probe(&runs, hashes, &mut candidates);
            black_box(&mut candidates);
            Ok(())
        })?;
        let mib = bytes(&runs) / f64::from(1 << 20);
        let name = format!("lookup in {PROBED_RUNS} runs, {mib:.0} MiB: {what}");
        figures.push(beside_design(Row::of(name, "us", spread, 1e-3), 1.0));
        check_candidates(what, &candidates, figures)?;
    }
    let spread = nanoseconds(sizes.rounds, present.len(), || {
        black_box(present.iter().fold(0, |all, &hash| all ^ base.part.block_of(hash)));
        Ok(())
    })?;
    figures.push(Row::of("a block of the base by its fence", "ns/lookup", spread, 1.0));
    Ok(())
}

/// Checks that filters let through as many other keys as their columns allow.
fn check_candidates(what: &str, candidates: &[u32], figures: &mut Vec<Row>) -> Result<()> {
    let lookups = candidates.len() as f64;
    let passed: u32 = candidates.iter().map(|found| found.count_ones()).sum();
    let expected = lookups * PROBED_RUNS as f64 / f64::from(1 << RUN_COLUMNS);
    // Five standard deviations of a count above the largest excess.
    let most = expected * EXCESS_MAX + 5.0 * expected.sqrt();
    ensure!(f64::from(passed) <= most, "wrong answer: {passed} false positives, above {most}");
    let name = format!("{what}: false positives of {PROBED_RUNS} runs");
    let figure = Row::count(name, "a lookup", f64::from(passed) / lookups);
    figures.push(beside_design(figure, expected / lookups));
    Ok(())
}

/// The label of rows of `ROW` bytes.
fn label<const ROW: usize>() -> String {
    format!("{} B", ROW - ROW_HEADER_BYTES)
}

/// The sort buffer: sorting, and writing the sorted rows as a part.
fn sorts<const ROW: usize>(sizes: &Sizes, seed: u64, figures: &mut Vec<Row>) -> Result<()> {
    let random = &mut Rng::with_seed(seed);
    let count = (sizes.sort_mib << 20) / ROW;
    let mut rows = vec![[0; ROW]; count];
    for (number, row) in rows.iter_mut().enumerate() {
        fill_row(random.u64(..), number as u64, row);
    }
    let mut sorter = Sorter::default();
    let sorted = nanoseconds(sizes.rounds, count, || {
        sorter.sort(black_box(&rows));
        Ok(())
    })?;
    let shelf = Shelf::new(false);
    let written = nanoseconds(sizes.rounds, count, || {
        let part = shelf.write(RUN_COLUMNS, ROW - ROW_HEADER_BYTES, sorter.newest(&rows))?;
        ensure!(part.rows() == count as u64, "wrong answer: {} of {count} rows", part.rows());
        Ok(())
    })?;
    let (name, mib) = (label::<ROW>(), sizes.sort_mib);
    let sorted = Row::of(format!("{name}: sort of a buffer of {mib} MiB"), "ns/row", sorted, 1.0);
    figures.push(if ROW == ROW_64 { beside_design(sorted, 28.0) } else { sorted });
    let name = format!("{name}: sorted rows to a part with filters");
    figures.push(Row::of(name, "ns/row", written, 1.0));
    Ok(())
}

/// Merges, and lookups in the blocks of a run.
fn merges<const ROW: usize>(sizes: &Sizes, seed: u64, figures: &mut Vec<Row>) -> Result<()> {
    let random = &mut Rng::with_seed(seed);
    let count = (sizes.merge_mib << 20) / ROW / MERGED_RUNS;
    let shelf = Shelf::new(true);
    // Of 8 keys of a run, one is also in the run before.
    let mut keys: Vec<u64> = Vec::new();
    let mut runs = Vec::new();
    for number in 0..MERGED_RUNS {
        let shared: Vec<u64> = keys.iter().copied().step_by(8).collect();
        let others: Vec<u64> = (shared.len()..count).map(|_| random.u64(..)).collect();
        keys = shared.into_iter().chain(others).collect();
        runs.push(run_of::<ROW>(&shelf, &keys, number as u64)?);
    }
    let all: u64 = runs.iter().map(ColdPart::rows).sum();
    let mut last = None;
    let spread = nanoseconds(sizes.rounds, all as usize, || {
        let merged = shelf.consolidate(&runs, RUN_COLUMNS)?;
        ensure!(merged.len() == 1, "wrong answer: {} parts", merged.len());
        if let Some(before) = last.replace(merged[0].clone()) {
            shelf.remove(&before);
        }
        Ok(())
    })?;
    let merged = last.expect("at least one merge");
    check_merge(&shelf, &runs, &merged)?;
    let label = label::<ROW>();
    let figure = Row::of(
        format!("{label}: merge of {MERGED_RUNS} runs, with filters"),
        "ns/row",
        spread,
        1.0,
    );
    figures.push(if ROW == ROW_64 { beside_design(figure, 27.0) } else { figure });
    let bytes = merged.file_bytes() as f64 / merged.rows() as f64;
    figures.push(Row::count(format!("{label}: bytes of a merged part"), "bytes/row", bytes));
    lookups::<ROW>(sizes, random, &shelf, &runs[0], figures)?;
    let spread = nanoseconds(sizes.rounds, runs[0].rows() as usize, || {
        shelf.read(&runs[0], |key, value| {
            black_box((key, value));
        })?;
        Ok(())
    })?;
    figures.push(Row::of(format!("{label}: reading a part in order"), "ns/row", spread, 1.0));
    Ok(())
}

/// Writes a run of keys, whose rows have `version` as their version.
fn run_of<const ROW: usize>(shelf: &Shelf, keys: &[u64], version: u64) -> Result<ColdPart> {
    let mut rows = vec![[0; ROW]; keys.len()];
    for (row, &key) in rows.iter_mut().zip(keys) {
        fill_row(key, version, row);
    }
    let mut sorter = Sorter::default();
    sorter.sort(&rows);
    Ok(shelf.write(RUN_COLUMNS, ROW - ROW_HEADER_BYTES, sorter.newest(&rows))?)
}

/// Checks every merged row: in order, with the value of its newest version.
fn check_merge(shelf: &Shelf, runs: &[ColdPart], merged: &ColdPart) -> Result<()> {
    let images: Vec<Vec<u8>> = runs.iter().map(|run| shelf.bytes(run)).collect();
    let (mut rows, mut last, mut outcome) = (0, None, Ok(()));
    let mut check = |key: u64, value: &[u8]| {
        let version = version_of(key, value)? as usize;
        ensure!(last < Some(hash_of(key)), "wrong answer: a merged row out of order");
        last = Some(hash_of(key));
        rows += 1;
        // The row is in the run of its version, and in no newer one. One row in 64 is looked up.
        if hash_of(key).is_multiple_of(64) {
            for (number, (run, image)) in runs.iter().zip(&images).enumerate().take(version + 1) {
                let found = run.find(image, key, &mut 0)?.is_some();
                ensure!(
                    found == (number == version),
                    "wrong answer: key {key:#x} of run {version}"
                );
            }
        }
        Ok(())
    };
    shelf.read(merged, |key, value| {
        if outcome.is_ok() {
            outcome = check(key, value);
        }
    })?;
    outcome?;
    ensure!(rows == merged.rows(), "wrong answer: {rows} of {} rows merged", merged.rows());
    Ok(())
}

/// Lookups in a run whose blocks lie in memory: the fences alone, and with checksum and row.
fn lookups<const ROW: usize>(
    sizes: &Sizes,
    random: &mut Rng,
    shelf: &Shelf,
    run: &ColdPart,
    figures: &mut Vec<Row>,
) -> Result<()> {
    let image = shelf.bytes(run);
    let mut keys = Vec::new();
    shelf.read(run, |key, _| keys.push(key))?;
    random.shuffle(&mut keys);
    keys.truncate(sizes.lookups);
    let label = label::<ROW>();
    let mut push = |what: &str, unit, spread| {
        figures.push(Row::of(format!("{label}: {what}"), unit, spread, 1.0));
    };
    let spread = nanoseconds(sizes.rounds, keys.len(), || {
        black_box(keys.iter().fold(0, |all, &key| all ^ run.block_of(hash_of(key))));
        Ok(())
    })?;
    push("a block by its fence", "ns/lookup", spread);
    let mut blocks = 0;
    let spread = nanoseconds(sizes.rounds, keys.len(), || {
        blocks = 0;
        for &key in &keys {
            let value = run.find(&image, key, &mut blocks)?;
            ensure!(value.is_some_and(|value| value[0] == 0), "wrong answer: no key {key:#x}");
        }
        Ok(())
    })?;
    push("fence, checksum and row", "ns/lookup", spread);
    let blocks = blocks as f64 / keys.len() as f64;
    push("blocks", "a lookup", Spread { median: blocks, min: blocks, max: blocks });
    let absent: Vec<u64> = keys.iter().map(|_| random.u64(..)).collect();
    let spread = nanoseconds(sizes.rounds, absent.len(), || {
        for &key in &absent {
            ensure!(run.find(&image, key, &mut 0)?.is_none(), "wrong answer: key {key:#x}");
        }
        Ok(())
    })?;
    push("a missing row, with the checksum of its block", "ns/lookup", spread);
    Ok(())
}
