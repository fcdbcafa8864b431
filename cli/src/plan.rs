//! `embank plan`: estimates the memory, disk space and drive life of a table.
//!
//! The formulas come from docs/architecture.md (the memory budget, disk space) and docs/format.md
//! (records). If a number was measured and not derived, the output says so and names the machine.

use anyhow::{Result, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use embank::{DIM_MAX, Dtype, Optimizer, TableConfig};
use serde::Serialize;

use crate::Ending;
use crate::output::{self, bytes, count, parse_scaled};

/// Bytes of index memory for each row.
const INDEX_BYTES_PER_ROW: f64 = 15.1;
/// Bytes that a row takes in a checkpoint's image of the whole index, a file on disk.
const IMAGE_BYTES_PER_ROW: f64 = 9.6;
/// A checkpoint writes an image of the whole index, or an image of the changes since the last
/// image. It writes the whole index again if the images of changes would exceed this part of it.
const CHANGES_PART: f64 = 0.25;
/// Largest number of images of changes after one image of the whole index.
const CHANGE_IMAGES_MAX: f64 = 64.0;
/// Average number of rows in an index bucket.
const ROWS_PER_BUCKET: f64 = 5.0;
/// Bytes of the header that each record has.
const RECORD_HEADER_BYTES: u64 = 32;
/// The size of the log divided by the size of its rows, with background compaction.
const SPACE_AMPLIFICATION: f64 = 1.5;
/// Bytes that compaction, at its default target, writes for each byte that updates write.
const COMPACTION_WRITES: f64 = 1.0;
/// The part of a memory budget that holds pages. The rest is the lookahead queue (1/32), read
/// buffers (1/16) and pages in flight.
const FRAMES_PART: f64 = 0.85;

/// Options of `plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows: 1000000, 100M
    #[arg(long, value_parser = parse_scaled)]
    rows: u64,
    /// Values per row
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(DIM_MAX)))]
    dim: u32,
    /// How values are stored
    #[arg(long, value_parser = dtypes(), default_value = "f32")]
    dtype: Dtype,
    /// The optimizer, which decides what state a row has
    #[arg(long, value_parser = optimizers(), default_value = "none")]
    optimizer: Optimizer,
    /// Number of rows that are updated in a second, to estimate the bytes written
    #[arg(long, value_name = "N", value_parser = parse_scaled)]
    updates_per_second: Option<u64>,
    /// Seconds between checkpoints. Each checkpoint writes the index or its changed part, and after
    /// it the next update of each row writes a new record
    #[arg(long, value_name = "S", default_value_t = 600)]
    checkpoint_every: u64,
    /// Number of checkpoints to keep
    #[arg(long, value_name = "K", default_value_t = 2)]
    checkpoints_kept: u64,
    /// The part of the rows that the memory should hold, from 0 to 1
    #[arg(long, value_name = "PART", default_value_t = 0.25)]
    in_memory: f64,
    /// Terabytes that may be written to the drive in its life (its TBW), to estimate how long it
    /// lasts
    #[arg(long, value_name = "TB")]
    drive_tbw: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses the library's dtypes by the names of their variants.
fn dtypes() -> impl TypedValueParser<Value = Dtype> {
    one_of(Dtype::ALL.iter().map(|&dtype| Choice {
        name: format!("{dtype:?}").to_lowercase(),
        row_bytes: TableConfig::new(16).dtype(dtype).value_bytes(),
        value: dtype,
    }))
}

/// Parses the library's optimizers by their names. Any learning rate serves here, because it does
/// not change the size of a row's state.
fn optimizers() -> impl TypedValueParser<Value = Optimizer> {
    one_of(Optimizer::each_kind(0.1).map(|optimizer| Choice {
        name: optimizer.name().to_lowercase().replace(' ', "-"),
        row_bytes: TableConfig::new(16).optimizer(optimizer).value_bytes(),
        value: optimizer,
    }))
}

/// A possible value of an option.
#[derive(Clone)]
struct Choice<T> {
    name: String,
    /// Bytes of a row with 16 values, for the help text.
    row_bytes: u32,
    value: T,
}

/// Parses a choice by its name.
fn one_of<T: Copy + Send + Sync + 'static>(
    choices: impl Iterator<Item = Choice<T>>,
) -> impl TypedValueParser<Value = T> {
    let choices: Vec<_> = choices.collect();
    let names = choices.iter().map(|choice| {
        let help = format!("{} bytes a row of 16 values", choice.row_bytes);
        PossibleValue::new(&choice.name).help(help)
    });
    PossibleValuesParser::new(names.collect::<Vec<_>>()).try_map(move |name| {
        let chosen = choices.iter().find(|choice| choice.name == name);
        chosen.map(|choice| choice.value).ok_or("there is no such choice")
    })
}

#[derive(Debug, Serialize)]
struct Plan {
    rows: u64,
    value_bytes: u64,
    record_bytes: u64,
    rows_bytes: u64,
    index_bytes: u64,
    memory_budget_all_bytes: u64,
    memory_budget_part_bytes: u64,
    in_memory: f64,
    log_disk_bytes: u64,
    checkpoint_bytes: u64,
    disk_bytes: u64,
    written_per_day: Option<Written>,
}

#[derive(Debug, Serialize)]
struct Written {
    updates_bytes: u64,
    compaction_bytes: u64,
    checkpoints_bytes: u64,
    total_bytes: u64,
    drive_days: Option<f64>,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if an option is out of range.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    ensure!(args.rows > 0, "--rows must be positive");
    ensure!((0.0..=1.0).contains(&args.in_memory), "--in-memory goes from 0 to 1");
    ensure!(args.checkpoint_every > 0, "--checkpoint-every must be positive");
    let plan = plan(args);
    if args.json {
        output::json(&plan);
    } else {
        output::print(&text(args, &plan));
    }
    Ok(Ending::Good)
}

fn scaled(bytes: u64, by: f64) -> u64 {
    (bytes as f64 * by).round() as u64
}

fn plan(args: &Args) -> Plan {
    let table = TableConfig::new(args.dim).dtype(args.dtype).optimizer(args.optimizer);
    let value_bytes = u64::from(table.value_bytes());
    let record_bytes = RECORD_HEADER_BYTES + value_bytes;
    let rows_bytes = args.rows * record_bytes;
    let index_bytes = scaled(args.rows, INDEX_BYTES_PER_ROW);
    let budget = |part: f64| {
        let kept = scaled(rows_bytes, part) + index_bytes;
        // The index takes at most 65% of the budget: a quarter stays for the log, and the rest for
        // buffers.
        scaled(kept, 1.0 / FRAMES_PART).max(scaled(index_bytes, 1.0 / 0.65)).max(1 << 20)
    };
    let checkpoint_bytes = scaled(args.rows, IMAGE_BYTES_PER_ROW);
    let log_disk_bytes = scaled(rows_bytes, SPACE_AMPLIFICATION);
    Plan {
        rows: args.rows,
        value_bytes,
        record_bytes,
        rows_bytes,
        index_bytes,
        memory_budget_all_bytes: budget(1.0),
        memory_budget_part_bytes: budget(args.in_memory),
        in_memory: args.in_memory,
        log_disk_bytes,
        checkpoint_bytes,
        disk_bytes: log_disk_bytes
            + scaled((args.checkpoints_kept + 1) * checkpoint_bytes, 1.0 + CHANGES_PART),
        written_per_day: args
            .updates_per_second
            .map(|rate| written(args, rate, record_bytes, checkpoint_bytes)),
    }
}

fn written(args: &Args, rate: u64, record_bytes: u64, checkpoint_bytes: u64) -> Written {
    const DAY: u64 = 86_400;
    // The worst case is assumed: the updates are spread evenly, so each one meets a row outside
    // mutable memory and writes a new record.
    let updates_bytes = rate.saturating_mul(DAY).saturating_mul(record_bytes);
    let compaction_bytes = scaled(updates_bytes, COMPACTION_WRITES);
    let changed = rate as f64 * args.checkpoint_every as f64 / args.rows as f64;
    let checkpoints_bytes =
        scaled((DAY / args.checkpoint_every) * checkpoint_bytes, image_part(changed));
    let total_bytes = updates_bytes + compaction_bytes + checkpoints_bytes;
    let drive_days = args.drive_tbw.map(|terabytes| terabytes * 1e12 / total_bytes as f64);
    Written { updates_bytes, compaction_bytes, checkpoints_bytes, total_bytes, drive_days }
}

/// Returns the average part of the index that a checkpoint writes. `updates_per_row` is the number
/// of updates for each row between two checkpoints. The updates are spread evenly.
fn image_part(updates_per_row: f64) -> f64 {
    let buckets = 1.0 - (-ROWS_PER_BUCKET * updates_per_row).exp();
    if buckets > CHANGES_PART {
        return 1.0;
    }
    // A checkpoint writes the whole index. The next checkpoints write only the buckets that have
    // changed since, until one more image of changes would exceed a limit.
    let changes = (CHANGES_PART / buckets.max(1e-6)).floor().min(CHANGE_IMAGES_MAX);
    (1.0 + changes * buckets) / (1.0 + changes)
}

fn text(args: &Args, plan: &Plan) -> String {
    let mut lines = vec![
        (
            "record",
            bytes(plan.record_bytes),
            "32 and the row with its state, in whole 8 bytes".into(),
        ),
        ("rows", bytes(plan.rows_bytes), format!("{} of them", count(plan.rows))),
        (
            "index in memory",
            bytes(plan.index_bytes),
            "15.1 a row; measured: `footprint`, 10 and 100 million rows".into(),
        ),
        (
            "memory budget, all rows",
            bytes(plan.memory_budget_all_bytes),
            "everything in memory".into(),
        ),
        (
            "memory budget, a part",
            bytes(plan.memory_budget_part_bytes),
            format!("{:.0}% of the rows in memory", plan.in_memory * 100.0),
        ),
        (
            "log on disk",
            bytes(plan.log_disk_bytes),
            "1.5 times the rows, with compaction in the background, beside what checkpoints hold"
                .into(),
        ),
        (
            "a checkpoint",
            bytes(plan.checkpoint_bytes),
            "at most: 9.6 a row for the index, beside the log and your blob; measured".into(),
        ),
        (
            "disk in all",
            bytes(plan.disk_bytes),
            format!(
                "{} checkpoints kept and one being written, beside the log that they hold",
                args.checkpoints_kept
            ),
        ),
    ];
    if let Some(written) = &plan.written_per_day {
        let rate = args.updates_per_second.unwrap_or(0);
        lines.extend([
            (
                "written a day",
                bytes(written.total_bytes),
                format!(
                    "at {} updates a second spread evenly; skewed ones write less",
                    count(rate)
                ),
            ),
            (
                "  updates",
                bytes(written.updates_bytes),
                "a record each; measured: 38 to 40 bytes for records of 40".into(),
            ),
            (
                "  compaction",
                bytes(written.compaction_bytes),
                "as much again, at a log of 1.4 times its rows".into(),
            ),
            (
                "  checkpoints",
                bytes(written.checkpoints_bytes),
                format!("one every {} s", args.checkpoint_every),
            ),
        ]);
        if let Some(days) = written.drive_days {
            lines.push(("the drive lasts", format!("{days:.0} days"), "by its TBW".into()));
        }
    }
    let width = lines.iter().map(|(_, value, _)| value.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (what, value, why) in lines {
        text += &format!("{what:<24} {value:>width$}  {why}\n");
    }
    text += "\nMeasured numbers: docs/benchmarks.md. Formulas: docs/architecture.md, \"The memory budget\" and \
             \"Disk space\".\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_follows_the_documented_numbers() {
        let args = Args {
            rows: 1_000_000,
            dim: 16,
            dtype: Dtype::F32,
            optimizer: Optimizer::adagrad(0.1),
            updates_per_second: Some(10_000),
            checkpoint_every: 600,
            checkpoints_kept: 2,
            in_memory: 0.25,
            drive_tbw: Some(600.0),
            json: false,
        };
        let plan = plan(&args);
        // docs/format.md: a record of dim 16 with Adagrad has 160 bytes.
        assert_eq!((plan.value_bytes, plan.record_bytes), (128, 160));
        assert!((14_000_000..16_000_000).contains(&plan.index_bytes));
        // README: 10,000 rows of 160 bytes a second are 138 GB a day.
        let written = plan.written_per_day.as_ref().unwrap();
        assert_eq!(written.updates_bytes / 1_000_000_000, 138);
        assert!(written.total_bytes > 2 * written.updates_bytes);
        assert!(text(&args, &plan).contains("the drive lasts"));
    }

    /// The command derives the names of dtypes and optimizers from the library's variants. Scripts
    /// use the names, so they must not change.
    #[test]
    fn choices_have_the_names_that_the_command_takes() {
        fn names<T>(parser: &impl TypedValueParser<Value = T>) -> Vec<String> {
            let values = parser.possible_values().into_iter().flatten();
            values.map(|value| value.get_name().to_owned()).collect()
        }
        assert_eq!(names(&dtypes()), ["f32", "f16", "bf16", "int8"]);
        assert_eq!(
            names(&optimizers()),
            ["none", "sgd", "adagrad", "row-wise-adagrad", "adam", "adamw", "ftrl"]
        );
    }

    #[test]
    fn images_cost_what_changed_and_a_whole_one_at_times() {
        assert_eq!(image_part(1.0), 1.0);
        assert!((image_part(0.0) - 1.0 / 65.0).abs() < 1e-4);
        // Each checkpoint changes 4.9% of the buckets. Five images of changes follow an image of
        // the whole index, because six would exceed a quarter of it.
        let part = image_part(0.01);
        assert!((part - (1.0 + 5.0 * 0.0488) / 6.0).abs() < 1e-3, "{part}");
    }
}
