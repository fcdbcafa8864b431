//! `explain`: runs pipelines with a known slow stage, and checks what the trace of a short run says
//! about each.
//!
//! By turns, each pipeline runs traced and untraced. The traced run has two threads. It reads a
//! quarter of the rows, or all rows if the pipeline reads from disk. The explanation of its trace
//! names the slowest stage and predicts the speed with a number of threads. The untraced run reads
//! all rows with that number of threads. The explanation must name the stage that was made slow. If
//! the explanation names the processor or the disk as the limit, the median of the measured speeds
//! must be within 20% of the median of the predicted speeds.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embank_pipeline::{
    Batch, Bound, Column, Dtype, Explanation, Field, FieldKind, Input, Level, Operator, Output,
    Pipeline, RunOptions, RunReport, Spec, Stage, Value,
};

use super::Common;
use super::generate;
use super::slow_drive::SlowDrive;
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::Spread;

/// Largest allowed difference of the measured speed from the predicted speed, as a part of the
/// predicted speed.
const WITHIN: f64 = 0.2;
/// A traced run reads all rows divided by this number.
const TRACED_PART: usize = 4;
/// The time that the slow consumer waits in each batch.
const CONSUMER_WAITS: Duration = Duration::from_millis(4);
/// Bytes a second of the slow drive. This is a tenth of what the processor can take, so reading is
/// the slowest stage.
const DRIVE_BYTES_PER_S: u64 = 300_000_000;
/// Number of boundaries of the slow operator.
const BOUNDARIES: u16 = 5000;

/// The consumer of the batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Consumer {
    Takes,
    Waits,
}

/// A pipeline with a slow stage.
struct Case {
    name: &'static str,
    slow: Stage,
    bound: Bound,
    spec: Spec,
    level: Level,
    consumer: Consumer,
    from_disk: bool,
}

fn cases() -> Vec<Case> {
    let case = |name, slow, bound, spec| Case {
        name,
        slow,
        bound,
        spec,
        level: Level::detect(),
        consumer: Consumer::Takes,
        from_disk: false,
    };
    let criteo = || Spec::criteo(5000);
    vec![
        Case { level: Level::Portable, ..case("decode", Stage::Decode, Bound::Cpu, criteo()) },
        case("transform", Stage::Transform, Bound::Cpu, bucketized()),
        case("look-up", Stage::LookUp, Bound::Cpu, scattered()),
        Case {
            consumer: Consumer::Waits,
            ..case("consumer", Stage::Consume, Bound::Serial, criteo())
        },
        Case { from_disk: true, ..case("disk", Stage::Read, Bound::Disk, criteo()) },
    ]
}

/// A specification that buckets every integer by [`BOUNDARIES`] boundaries.
fn bucketized() -> Spec {
    let mut spec = Spec::criteo(5000);
    let boundaries: Vec<f32> = (0..BOUNDARIES).map(f32::from).collect();
    for column in &mut spec.columns[1..14] {
        column.operators.truncate(1);
        column.operators.push(Operator::Bucketize(boundaries.clone()));
    }
    spec
}

/// A specification with only look-ups, in tables larger than any cache.
fn scattered() -> Spec {
    let name = |i: usize| format!("C{i}");
    let skipped = (0..14).map(|i| Field::new(format!("skipped {i}"), FieldKind::Skip));
    let column = |(table, i): (usize, usize)| {
        Column { name: format!("{table} {i}"), ..Column::field(name(i)) }
            .then(Operator::FillMissing(Value::Int(0)))
            .then(Operator::Hash { seed: table as u64 })
            .then(Operator::Modulus(1 << 23))
            .then(Operator::Vocabulary(format!("{table} {i}")))
    };
    let categories = [3, 4, 12, 16, 21];
    let all = (0..4).flat_map(|table| categories.map(|i| (table, i)));
    let columns: Vec<_> = all.map(column).collect();
    let names: Vec<_> = columns.iter().map(|column| column.name.clone()).collect();
    Spec {
        fields: skipped.chain((1..=26).map(|i| Field::new(name(i), FieldKind::Hex32))).collect(),
        outputs: vec![Output::new("row", Dtype::Bits32, names)],
        columns,
        ..Spec::default()
    }
}

/// Runs `explain`.
pub(super) fn run(common: &Common) -> Result<()> {
    print_provenance();
    let text = generate::rows(common.seed, common.rows, generate::write_text);
    let directory = crate::measure::store::in_memory::scratch_in(Path::new("target/bench"))?;
    let path = directory.path().join("rows.tsv");
    File::create(&path)?.write_all(&text)?;
    let mut figures = Vec::new();
    let mut wrong = Vec::new();
    for case in cases() {
        let slow = case.from_disk.then(|| SlowDrive::new(&path, DRIVE_BYTES_PER_S)).transpose();
        let slow = match slow {
            Ok(slow) => slow,
            Err(error) => {
                println!("\n{}: left out, as the drive can't be slowed: {error:#}", case.name);
                continue;
            }
        };
        let (explanations, rates) = measure(&case, &text, &path, common)?;
        drop(slow);
        let last = explanations.last().expect("there is a round");
        println!("\n{}: the slow stage is `{}`\n{last}", case.name, case.slow.name());
        let predicted = explanations.iter().map(|explanation| explanation.predicted_rows_per_s);
        let measured = Row::rate(format!("{}: measured", case.name), Spread::of(rates));
        let predicted_row =
            Row::rate(format!("{}: predicted", case.name), Spread::of(predicted.collect()));
        let off = measured.value / predicted_row.value - 1.0;
        for Explanation { bottleneck, .. } in &explanations {
            if *bottleneck != case.slow {
                wrong.push(format!("{}: named {bottleneck:?}", case.name));
            }
        }
        if case.bound != Bound::Serial && off.abs() > WITHIN {
            wrong.push(format!("{}: {:.0}% from what was predicted", case.name, off * 100.0));
        }
        figures.push(predicted_row.clone());
        figures.push(measured.beside(&predicted_row));
    }
    println!();
    common.output.publish("Pipeline, explained", &figures)?;
    ensure!(wrong.is_empty(), "FAILED: {}", wrong.join("; "));
    println!(
        "each slow stage was named; speeds within {:.0}% of what was predicted",
        WITHIN * 100.0
    );
    Ok(())
}

fn measure(
    case: &Case,
    text: &[u8],
    path: &Path,
    common: &Common,
) -> Result<(Vec<Explanation>, Vec<f64>)> {
    let quarter = text.len() / TRACED_PART;
    let line_end = text[quarter..].iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let part = &text[..quarter + line_end];
    let input = |path, text| {
        if case.from_disk { Input::file(path) } else { Input::memory("rows", text) }
    };
    let mut traced = pipeline(case, 2, true)?;
    // Two unmeasured runs fill the vocabularies, which are full during most of a long run. If the
    // pipeline reads from disk, the second run reads the file once.
    consume(case, &mut traced, &[Input::memory("rows", text)])?;
    forget(path)?;
    consume(case, &mut traced, &[input(path, text)])?;
    let (mut explanations, mut rates) = (Vec::new(), Vec::new());
    let mut untraced: Option<(usize, Pipeline)> = None;
    for _ in 0..common.rounds {
        forget(path)?;
        let report = consume(case, &mut traced, &[input(path, part)])?;
        let trace = report.trace.expect("it was asked for");
        let explanation = if case.from_disk {
            forget(path)?;
            trace.explain_with_input(2, traced.read_rate(&[Input::file(path)])?)
        } else {
            trace.explain(2)
        };
        let threads = explanation.threads;
        explanations.push(explanation);
        let (_, pipeline) = match untraced.take().filter(|(known, _)| *known == threads) {
            Some(known) => untraced.insert(known),
            None => {
                let mut pipeline = pipeline(case, threads, false)?;
                consume(case, &mut pipeline, &[Input::memory("rows", text)])?;
                untraced.insert((threads, pipeline))
            }
        };
        forget(path)?;
        let started = Instant::now();
        consume(case, pipeline, &[input(path, text)])?;
        rates.push(common.rows as f64 / started.elapsed().as_secs_f64());
    }
    Ok((explanations, rates))
}

fn pipeline(case: &Case, threads: usize, trace: bool) -> Result<Pipeline> {
    let options = RunOptions { threads, level: case.level, trace, ..RunOptions::default() };
    Ok(Pipeline::new(&case.spec, &options)?)
}

fn consume(case: &Case, pipeline: &mut Pipeline, inputs: &[Input<'_>]) -> Result<RunReport> {
    Ok(pipeline.run(inputs, &mut |_: &mut Batch| {
        if case.consumer == Consumer::Waits {
            std::thread::sleep(CONSUMER_WAITS);
        }
        Ok(())
    })?)
}

/// Removes a file from the system's page cache, so that the next read comes from the disk.
fn forget(path: &Path) -> Result<()> {
    use std::os::fd::AsRawFd;
    let file = File::open(path)?;
    file.sync_all()?;
    // SAFETY: the descriptor must be open during the call, and `file` keeps it open. The call
    // touches no memory of this process.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    ensure!(result == 0, "posix_fadvise: {}", std::io::Error::from_raw_os_error(result));
    Ok(())
}
