//! The processor's part of `cold`: what a lookup, a spilled row and a merged row cost.
//!
//! Estimate, from the design, written before measuring: a lookup in the filters of 15 runs and of
//! the base takes 0.9 us, a key's filter 80 to 250 ns, a row's sort 28 ns, and its part in a merge
//! of 16 runs 27 ns.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;

use crate::ground::loading::bar;
use crate::ground::report::Row;
use crate::ground::rounds::Spread;
use crate::measure::cold::lookup::{BASE_COLUMNS, Filters, GROUP_ROWS, RUN_COLUMNS, Tier};
use crate::measure::cold::merge::{Merged, RUNS, merge};
use crate::measure::cold::ribbon::Builder;
use crate::measure::cold::rows::{
    BlockWriter, ROW_HEADER_BYTES, block_bytes, check_block, fill_row, hash_of, key_of,
    rows_a_block, rows_of, version_of,
};
use crate::measure::cold::run::Run;
use crate::measure::cold::sort::Sorter;
use crate::measure::store::growth::processor_time;

/// Runs that a lookup asks.
const PROBED_RUNS: usize = 15;
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

/// Returns `count` random hashes in ascending order.
fn hashes(random: &mut Rng, count: usize) -> Vec<u64> {
    let mut hashes: Vec<u64> = (0..count).map(|_| random.u64(..)).collect();
    hashes.sort_unstable();
    hashes
}

/// The filters of a part, and some of its hashes.
struct Built<const COLUMNS: usize> {
    filters: Filters<COLUMNS>,
    sample: Vec<u64>,
    nanoseconds_a_key: f64,
}

fn build<const COLUMNS: usize>(
    random: &mut Rng,
    keys: usize,
    samples: usize,
    builder: &mut Builder,
) -> Built<COLUMNS> {
    let hashes = hashes(random, keys);
    let began = processor_time();
    let filters = Filters::build(&hashes, builder);
    let nanoseconds_a_key = per_thing(processor_time() - began, keys);
    let sample = (0..samples).map(|_| hashes[random.usize(..keys)]).collect();
    Built { filters, sample, nanoseconds_a_key }
}

/// Filters: building, false positives, lookups.
fn filters(sizes: &Sizes, seed: u64, figures: &mut Vec<Row>) -> Result<()> {
    let random = &mut Rng::with_seed(seed);
    let builder = &mut Builder::default();
    let (mut runs, mut built, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PROBED_RUNS {
        let run = build::<RUN_COLUMNS>(random, sizes.run_keys, 10_000, builder);
        built.push(run.nanoseconds_a_key);
        kept.push(run.sample);
        runs.push(run.filters);
    }
    let base = build::<BASE_COLUMNS>(random, sizes.base_keys, sizes.lookups, builder);
    let tier = Tier { runs, base: base.filters };
    let run_bytes: usize = tier.runs.iter().map(Filters::bytes).sum();
    let bytes_a_key = run_bytes as f64 / (PROBED_RUNS * sizes.run_keys) as f64;
    let runs_name = format!("filters of runs, {RUN_COLUMNS} columns");
    let base_name = format!("filters of the base, {BASE_COLUMNS} columns");
    let built = Row::of(format!("{runs_name}: build"), "ns/key", Spread::of(built), 1.0);
    figures.push(beside_design(built, 250.0));
    let memory = Row::count(format!("{runs_name}: memory"), "bytes/key", bytes_a_key);
    figures.push(beside_design(memory, 10.1 / 8.0));
    let once = Spread::of(vec![base.nanoseconds_a_key]);
    let built = Row::of(format!("{base_name}: build"), "ns/key", once, 1.0);
    figures.push(beside_design(built, 250.0));
    let bytes_a_key = tier.base.bytes() as f64 / sizes.base_keys as f64;
    let memory = Row::count(format!("{base_name}: memory"), "bytes/key", bytes_a_key);
    figures.push(beside_design(memory, 4.5 / 8.0));

    // No key may be denied by the filter that holds it.
    for (number, (run, sample)) in tier.runs.iter().zip(&kept).enumerate() {
        ensure!(
            sample.iter().all(|&hash| run.may_hold(hash)),
            "wrong answer: the filters of run {number} deny one of its keys"
        );
    }
    let absent: Vec<u64> = (0..sizes.lookups).map(|_| random.u64(..)).collect();
    let mut candidates = vec![0u32; sizes.lookups];
    for (what, hashes) in [("present in the base", &base.sample), ("absent", &absent)] {
        let spread = nanoseconds(sizes.rounds, hashes.len(), || {
            tier.probe(hashes, &mut candidates);
            black_box(&mut candidates);
            Ok(())
        })?;
        let mib = (run_bytes + tier.base.bytes()) >> 20;
        let name = format!("lookup in {PROBED_RUNS} runs and the base, {mib} MiB: {what}");
        figures.push(beside_design(Row::of(name, "us", spread, 1e-3), 0.9));
        check_candidates(what, &candidates, figures)?;
    }
    Ok(())
}

/// Checks the candidates of lookups: the base has the keys that are present in it, and other
/// filters let through as many keys as their columns allow.
fn check_candidates(what: &str, candidates: &[u32], figures: &mut Vec<Row>) -> Result<()> {
    let lookups = candidates.len() as f64;
    let in_base = candidates.iter().filter(|&&found| found >> PROBED_RUNS & 1 == 1).count() as f64;
    let in_runs: u32 =
        candidates.iter().map(|found| (found & ((1 << PROBED_RUNS) - 1)).count_ones()).sum();
    let mut rate = |part: &str, passed: f64, asked: f64, columns: usize| {
        let expected = asked / f64::from(1 << columns);
        // Five standard deviations of a count above the largest excess.
        let most = expected * EXCESS_MAX + 5.0 * expected.sqrt();
        ensure!(passed <= most, "wrong answer: {passed} false positives of {part}, above {most}");
        let figure =
            Row::count(format!("{what}: false positives of {part}"), "a lookup", passed / lookups);
        figures.push(beside_design(figure, expected / lookups));
        Ok(())
    };
    rate("15 runs", f64::from(in_runs), lookups * PROBED_RUNS as f64, RUN_COLUMNS)?;
    if what == "absent" {
        rate("the base", in_base, lookups, BASE_COLUMNS)?;
    } else {
        ensure!(in_base == lookups, "wrong answer: the base's filters deny one of its keys");
    }
    Ok(())
}

/// The label of rows of `ROW` bytes.
fn label<const ROW: usize>() -> String {
    format!("{} B", ROW - ROW_HEADER_BYTES)
}

/// The sort buffer: sorting, and writing the sorted rows as blocks.
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
    let mut checked = Vec::new();
    let written = nanoseconds(sizes.rounds, count, || {
        checked.clear();
        let mut writer = BlockWriter::new(|unit: &[u8]| checked.push(black_box(unit)[4]));
        let written = sorter.write(&rows, &mut writer);
        writer.finish();
        ensure!(written == count, "wrong answer: {written} of {count} rows written");
        Ok(())
    })?;
    Run::<ROW>::of(sorter.newest(&rows)).check()?;
    let (name, mib) = (label::<ROW>(), sizes.sort_mib);
    let sorted = Row::of(format!("{name}: sort of a buffer of {mib} MiB"), "ns/row", sorted, 1.0);
    figures.push(if ROW == ROW_64 { beside_design(sorted, 28.0) } else { sorted });
    let name = format!("{name}: sorted rows to blocks with checksums");
    figures.push(Row::of(name, "ns/row", written, 1.0));
    Ok(())
}

/// Merges, and lookups in the blocks of a run.
fn merges<const ROW: usize>(sizes: &Sizes, seed: u64, figures: &mut Vec<Row>) -> Result<()> {
    let random = &mut Rng::with_seed(seed);
    let count = (sizes.merge_mib << 20) / ROW / RUNS;
    // Of 8 keys of a run, one is also in the run before.
    let mut keys: Vec<u64> = Vec::new();
    let runs: [Run<ROW>; RUNS] = std::array::from_fn(|number| {
        let shared: Vec<u64> = keys.iter().copied().step_by(8).collect();
        let others = (shared.len()..count).map(|_| random.u64(..));
        keys = shared.iter().copied().chain(others).collect();
        run_of(&keys, number as u64)
    });
    let all: usize = runs.iter().map(|run| run.rows).sum();
    let mut merged = Merged::default();
    let spread = nanoseconds(sizes.rounds, all, || {
        let mut units = 0;
        merged.clear();
        let mut writer = BlockWriter::new(|unit: &[u8]| units += black_box(unit).len());
        merge(&runs, &mut writer, &mut merged)?;
        writer.finish();
        let blocks = merged.hashes.len().div_ceil(const { rows_a_block::<ROW>() });
        ensure!(units == blocks * const { block_bytes::<ROW>() }, "wrong answer: {units} bytes");
        Ok(())
    })?;
    let newest = merged.hashes.len();
    check_merge(&runs, newest)?;
    let label = label::<ROW>();
    let figure = Row::of(format!("{label}: merge of {RUNS} runs"), "ns/row", spread, 1.0);
    figures.push(if ROW == ROW_64 { beside_design(figure, 27.0) } else { figure });
    let fences = merged.fences.bytes() as f64 / newest as f64;
    figures.push(Row::count(format!("{label}: memory of fences"), "bytes/row", fences));
    lookups(sizes, random, &runs[0], figures)
}

/// Makes a run of keys, whose rows have `version` as their version.
fn run_of<const ROW: usize>(keys: &[u64], version: u64) -> Run<ROW> {
    let mut rows = vec![[0; ROW]; keys.len()];
    for (row, &key) in rows.iter_mut().zip(keys) {
        fill_row(key, version, row);
    }
    let mut sorter = Sorter::default();
    sorter.sort(&rows);
    Run::of(sorter.newest(&rows))
}

/// Merges once more and checks every row: in order, with the value of its newest version.
fn check_merge<const ROW: usize>(runs: &[Run<ROW>; RUNS], newest: usize) -> Result<()> {
    let (mut rows, mut last, mut outcome) = (0, None, Ok(()));
    let mut check = |row: &[u8; ROW]| {
        let (key, version) = (key_of(row), version_of(row)? as usize);
        ensure!(last < Some(hash_of(key)), "wrong answer: a merged row out of order");
        last = Some(hash_of(key));
        rows += 1;
        // The row is in the run of its version, and in no newer one. One row in 64 is looked up.
        if hash_of(key).is_multiple_of(64) {
            let mut blocks = 0;
            for (number, run) in runs.iter().enumerate().take(version + 1) {
                let found = run.find(key, false, &mut blocks)?.is_some();
                ensure!(
                    found == (number == version),
                    "wrong answer: key {key:#x} of run {version}"
                );
            }
        }
        Ok(())
    };
    let mut writer = BlockWriter::new(|unit: &[u8]| {
        for block in unit.chunks(const { block_bytes::<ROW>() }) {
            for row in rows_of::<ROW>(block) {
                if outcome.is_ok() {
                    outcome = check(row);
                }
            }
        }
    });
    merge(runs, &mut writer, &mut Merged::default())?;
    writer.finish();
    outcome?;
    ensure!(rows == newest, "wrong answer: {rows} of {newest} rows merged");
    Ok(())
}

/// Lookups in a run whose blocks lie in memory: the fences alone, the block's checksum, the row.
fn lookups<const ROW: usize>(
    sizes: &Sizes,
    random: &mut Rng,
    run: &Run<ROW>,
    figures: &mut Vec<Row>,
) -> Result<()> {
    let count = sizes.lookups.min(run.rows);
    let keys: Vec<u64> = (0..count)
        .map(|_| {
            let (block, _) = run.block(random.usize(..run.block_count()));
            let rows = rows_of::<ROW>(block);
            key_of(&rows[random.usize(..rows.len())])
        })
        .collect();
    let label = label::<ROW>();
    let mut push = |what: &str, unit, spread| {
        figures.push(Row::of(format!("{label}: {what}"), unit, spread, 1.0));
    };
    let spread = nanoseconds(sizes.rounds, count, || {
        let blocks = keys.iter().map(|&key| *run.fences().find(hash_of(key)).end());
        black_box(blocks.sum::<usize>());
        Ok(())
    })?;
    push("a block by its fence", "ns/lookup", spread);
    let mut blocks = 0;
    for checked in [false, true] {
        let spread = nanoseconds(sizes.rounds, count, || {
            blocks = 0;
            for &key in &keys {
                let row = run.find(key, checked, &mut blocks)?;
                ensure!(row.is_some_and(|row| key_of(row) == key), "wrong answer: no key {key:#x}");
            }
            Ok(())
        })?;
        let what = if checked { "fence, checksum and row" } else { "fence and row" };
        push(what, "ns/lookup", spread);
    }
    let blocks = blocks as f64 / count as f64;
    push("blocks", "a lookup", Spread { median: blocks, min: blocks, max: blocks });
    let spread = nanoseconds(sizes.rounds, run.block_count(), || {
        (0..run.block_count()).try_for_each(|number| {
            let (block, address) = run.block(number);
            check_block(block, address)
        })
    })?;
    push("checksum of a block, in order", "ns/block", spread);
    Ok(())
}

const _: () = assert!(GROUP_ROWS == 64 * rows_a_block::<ROW_64>());
