//! `utf8`, `binary` and `threads`: rows/s of PIPER's nine operators over rows of the Criteo format
//! in memory.
//!
//! Estimates, written before measuring, for two cores of 3 to 4 GHz. A row of text has 230 bytes.
//! Decoding it takes 45 ns of a core with AVX-512 (10 ns to find its separators, 35 ns to make
//! numbers) and 100 ns with AVX2. Its operators take 10 ns, and putting the row together takes 10
//! ns. Its 26 look-ups take 15 ns if the tables are in the second-level cache, and 60 ns otherwise.
//! So the two cores make 20 to 25 million rows/s with vocabularies of 5,000 values, and 13 to 16
//! million with a million values. Packed rows need no decoding, but turning them into columns takes
//! 10 ns. They reach 40 million rows/s with 5,000 values and 20 million with a million values.

use std::time::Instant;

use anyhow::{Result, ensure};
use embank_pipeline::{Batch, Format, Input, Level, Pipeline, RunOptions, Spec};

use super::Common;
use super::generate;
use super::python;
use super::reference::Reference;
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::Spread;

/// What the consumer does with the batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Gives each batch back, so that the pipeline reuses its memory.
    Nothing,
    /// Keeps all batches, so that the pipeline needs new memory for each.
    All,
}

/// The settings of one way to run the pipeline.
#[derive(Debug, Clone, Copy)]
struct Way {
    modulus: u32,
    threads: usize,
    level: Level,
    format: Format,
    kept: Kept,
    chunk_bytes: usize,
}

impl Way {
    fn pipeline(&self) -> Result<Pipeline> {
        let options = RunOptions {
            threads: self.threads,
            level: self.level,
            format: self.format,
            chunk_bytes: self.chunk_bytes,
            ..RunOptions::default()
        };
        Ok(Pipeline::new(&Spec::criteo(self.modulus), &options)?)
    }

    /// Makes a pipeline with empty vocabularies, runs it once, and returns the rows/s.
    fn run(&self, bytes: &[u8], rows: u64) -> Result<f64> {
        let started = Instant::now();
        let mut pipeline = self.pipeline()?;
        let mut batches = Vec::new();
        let report = pipeline.run(&[Input::memory("rows", bytes)], &mut |batch: &mut Batch| {
            if self.kept == Kept::All {
                batches.push(batch.take());
            }
            Ok(())
        })?;
        let elapsed = started.elapsed();
        ensure!(report.rows == rows, "{} rows came out of {rows}", report.rows);
        Ok(rows as f64 / elapsed.as_secs_f64())
    }

    /// Checks every row against the reference in Rust, and the first `--python-rows` rows against
    /// the reference in Python.
    fn check(&self, bytes: &[u8], common: &Common) -> Result<()> {
        let (rows, python_rows) = (common.rows, common.rows.min(common.python_rows));
        let mut reference = Reference::new(common.seed, self.modulus);
        let mut first = Vec::new();
        self.pipeline()?.run(&[Input::memory("rows", bytes)], &mut |batch: &mut Batch| {
            let values = batch.bits32(0).expect("the one output has 32 bits");
            let wanted = (40 * python_rows as usize).saturating_sub(first.len());
            first.extend_from_slice(&values[..wanted.min(values.len())]);
            reference.check(values).map_err(Into::into)
        })?;
        ensure!(reference.checked() == rows, "{} rows were checked of {rows}", reference.checked());
        if python_rows > 0 {
            python::check(self.format, self.modulus, common.seed, python_rows, &first)?;
        }
        Ok(())
    }
}

/// Measures the ways by turns, round after round. The first round warms up and does not count.
fn measure(ways: &[(String, Way)], bytes: &[u8], common: &Common) -> Result<Vec<Row>> {
    let mut rates = vec![Vec::new(); ways.len()];
    for round in 0..=common.rounds {
        for ((_, way), rates) in ways.iter().zip(&mut rates) {
            let rate = way.run(bytes, common.rows)?;
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    let rows = ways.iter().zip(rates);
    Ok(rows.map(|((name, _), rates)| Row::rate(name, Spread::of(rates))).collect())
}

/// If `--check` is set, checks the rows of each way against the references. A way that keeps all
/// batches is left out, because it computes the rows as another way does.
fn check(ways: &[(String, Way)], bytes: &[u8], common: &Common) -> Result<()> {
    for (name, way) in ways.iter().filter(|(_, way)| common.check && way.kept == Kept::Nothing) {
        way.check(bytes, common)?;
        let in_python = common.rows.min(common.python_rows);
        println!("checked: {name}, every row, and the first {in_python} in Python");
    }
    Ok(())
}

/// Returns each modulus with its name in the table: 5000 is 5K.
fn named(moduli: &[u32]) -> Vec<(u32, String)> {
    let name = |modulus: u32| match modulus {
        1_000_000.. if modulus.is_multiple_of(1_000_000) => format!("{}M", modulus / 1_000_000),
        1000.. if modulus.is_multiple_of(1000) => format!("{}K", modulus / 1000),
        _ => modulus.to_string(),
    };
    moduli.iter().map(|&modulus| (modulus, name(modulus))).collect()
}

/// Returns the instruction levels, the best first. The portable level is slow, so it is included
/// only if no other level exists or `--portable` is set.
fn levels(common: &Common) -> Vec<Level> {
    let mut levels = Level::available();
    levels.reverse();
    if !common.portable && levels.len() > 1 {
        levels.pop();
    }
    levels
}

/// Runs `utf8`.
pub(super) fn utf8(common: &Common) -> Result<()> {
    print_provenance();
    let chunk_bytes = common.chunk_kib << 10;
    let text = generate::rows(common.seed, common.rows, generate::write_text);
    println!("{} rows of text, {} MiB", common.rows, text.len() >> 20);
    let mut ways = Vec::new();
    for (modulus, name) in named(&common.moduli) {
        for level in levels(common) {
            let way = Way {
                modulus,
                threads: 2,
                level,
                format: Format::TSV,
                kept: Kept::Nothing,
                chunk_bytes,
            };
            ways.push((format!("{name}, {level}"), way));
        }
        let level = Level::detect();
        let way =
            Way { modulus, threads: 2, level, format: Format::TSV, kept: Kept::All, chunk_bytes };
        ways.push((format!("{name}, {level}, fresh memory for the output"), way));
    }
    check(&ways, &text, common)?;
    let figures = measure(&ways, &text, common)?;
    common.output.publish("Pipeline, text", &figures)
}

/// Runs `binary`.
pub(super) fn binary(common: &Common) -> Result<()> {
    print_provenance();
    let chunk_bytes = common.chunk_kib << 10;
    let packed = generate::rows(common.seed, common.rows, generate::write_packed);
    println!("{} packed rows, {} MiB", common.rows, packed.len() >> 20);
    let mut ways = Vec::new();
    for (modulus, name) in named(&common.moduli) {
        for kept in [Kept::Nothing, Kept::All] {
            let level = Level::detect();
            let fresh = if kept == Kept::All { ", fresh memory for the output" } else { "" };
            let way = Way { modulus, threads: 2, level, format: Format::Packed, kept, chunk_bytes };
            ways.push((format!("{name}{fresh}"), way));
        }
    }
    check(&ways, &packed, common)?;
    let limit = copy_rate(&packed, common)?;
    let mut figures = measure(&ways, &packed, common)?;
    figures = figures.into_iter().map(|row| row.beside(&limit)).collect();
    figures.insert(0, limit);
    common.output.publish("Pipeline, packed rows", &figures)
}

/// Measures the limit of memory: two threads copy the bytes into memory that is reused.
fn copy_rate(packed: &[u8], common: &Common) -> Result<Row> {
    const PART: usize = 256 << 10;
    let mut rates = Vec::new();
    for _ in 0..common.rounds {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for half in packed.chunks(packed.len().div_ceil(2).max(1)) {
                scope.spawn(move || {
                    let mut into = vec![0; PART];
                    for part in half.chunks(PART) {
                        into[..part.len()].copy_from_slice(part);
                        std::hint::black_box(&mut into);
                    }
                });
            }
        });
        rates.push(common.rows as f64 / started.elapsed().as_secs_f64());
    }
    Ok(Row::rate("memory: the same bytes copied", Spread::of(rates)))
}

/// Runs `threads`.
pub(super) fn threads(common: &Common) -> Result<()> {
    print_provenance();
    let chunk_bytes = common.chunk_kib << 10;
    let text = generate::rows(common.seed, common.rows, generate::write_text);
    let level = Level::detect();
    let way = |modulus, threads| Way {
        modulus,
        threads,
        level,
        format: Format::TSV,
        kept: Kept::Nothing,
        chunk_bytes,
    };
    let mut figures = Vec::new();
    for (modulus, name) in named(&common.moduli) {
        let ways: Vec<_> = [1, 2]
            .map(|threads| (format!("{name}, {threads} threads"), way(modulus, threads)))
            .into();
        let rows = measure(&ways, &text, common)?;
        let scaling = Row::scaling(&rows[1], &rows[0]);
        let busy = beside_a_busy_process(&ways[1].1, &text, common)?;
        let busy =
            Row::rate(format!("{name}, 2 threads beside a busy process"), busy).beside(&rows[1]);
        figures.extend(rows);
        figures.extend([scaling, busy]);
    }
    // Measures the gain of a second thread for work that touches no memory.
    figures.push(arithmetic_scaling(common)?);
    common.output.publish("Pipeline, threads", &figures)
}

/// Rows/s while another process keeps one core busy.
fn beside_a_busy_process(way: &Way, text: &[u8], common: &Common) -> Result<Spread> {
    let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?;
    let rates: Result<Vec<f64>> = (0..common.rounds).map(|_| way.run(text, common.rows)).collect();
    busy.kill()?;
    busy.wait()?;
    Ok(Spread::of(rates?))
}

fn arithmetic_scaling(common: &Common) -> Result<Row> {
    fn work() -> f64 {
        let started = Instant::now();
        let mut lanes = [1_u64, 2, 3, 4, 5, 6, 7, 8];
        for _ in 0..50_000_000_u64 {
            for lane in &mut lanes {
                *lane = lane.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            }
        }
        std::hint::black_box(lanes);
        started.elapsed().as_secs_f64()
    }
    let mut ratios = Vec::new();
    for _ in 0..common.rounds {
        let one = work();
        let two = std::thread::scope(|scope| {
            let other = scope.spawn(work);
            let own = work();
            own.max(other.join().expect("arithmetic does not fail"))
        });
        ratios.push(2.0 * one / two);
    }
    let row = Row::of("machine: arithmetic, 2 threads", "x one thread", Spread::of(ratios), 1.0);
    Ok(row)
}
