//! `embank plan`: estimates the memory, disk space and drive life of a table, or of the shards of a
//! fleet.
//!
//! - `estimate`: the formulas. `two_tiers`: those of a bank in two tiers.
//! - `table`: the option `--table`, and the names of dtypes and optimizers.
//! - `shards`: the sums over the tables of each shard.

mod estimate;
mod shards;
mod table;
mod two_tiers;

use anyhow::{Result, ensure};
use embank::fleet::BUCKETS;
use embank::{DIM_MAX, Dtype, Optimizer, TableConfig};
use serde::Serialize;

use self::estimate::{Estimate, Load, Memory, Running, estimate, record_bytes};
use self::table::{PlannedTable, dtypes, optimizers};
use crate::Ending;
use crate::output::{self, bytes, count, parse_scaled};

/// Options of `plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows: 1000000, 100M
    #[arg(long, value_parser = parse_scaled, required_unless_present = "tables")]
    rows: Option<u64>,
    /// Values per row
    #[arg(
        long, value_parser = clap::value_parser!(u32).range(1..=i64::from(DIM_MAX)),
        required_unless_present = "tables"
    )]
    dim: Option<u32>,
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
    /// Number of checkpoints to keep; of a fleet, the number of sets
    #[arg(long, value_name = "K", default_value_t = 2)]
    checkpoints_kept: u64,
    /// The part of the rows that the memory should hold, from 0 to 1
    #[arg(long, value_name = "PART", default_value_t = 0.25)]
    in_memory: f64,
    /// The memory budget of the bank, in place of --in-memory; of a fleet, that of each shard
    #[arg(long, value_name = "BYTES", value_parser = parse_scaled, conflicts_with = "in_memory")]
    memory_budget: Option<u64>,
    /// Plans for a bank that is opened with cold_tier="auto": it has two tiers if its index would
    /// take more than a quarter of its budget
    #[arg(long)]
    cold_tier: bool,
    /// Terabytes that may be written to the drive in its life (its TBW), to estimate how long it
    /// lasts
    #[arg(long, value_name = "TB")]
    drive_tbw: Option<f64>,
    /// Number of shards of a fleet: prints what each shard needs, with its part of every table
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(BUCKETS)))]
    shards: Option<u32>,
    /// A table of the fleet, in place of --rows and --dim; repeat it for each table. NAME and the
    /// options of a table: user,rows=100M,dim=16,optimizer=adagrad,updates-per-second=10k. With
    /// shard=0 the whole table is on shard 0
    #[arg(
        long = "table", value_name = "NAME,OPTION=VALUE,...", value_parser = table::parse, requires = "shards",
        conflicts_with_all = ["rows", "dim", "dtype", "optimizer", "updates_per_second"]
    )]
    tables: Vec<PlannedTable>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Returns the tables: at least one.
    fn planned(&self) -> Result<Vec<PlannedTable>> {
        let (Some(rows), Some(dim)) = (self.rows, self.dim) else { return Ok(self.tables.clone()) };
        ensure!(rows > 0, "--rows must be positive");
        Ok(vec![PlannedTable {
            name: "table".into(),
            rows,
            config: TableConfig::new(dim).dtype(self.dtype).optimizer(self.optimizer),
            updates_per_second: self.updates_per_second.unwrap_or(0) as f64,
            shard: None,
        }])
    }

    fn running(&self) -> Running {
        Running {
            memory: self.memory_budget.map_or(Memory::Part(self.in_memory), Memory::Budget),
            checkpoints: self.checkpoints_kept.saturating_add(1),
            checkpoint_every: self.checkpoint_every,
            drive_tbw: self.drive_tbw,
            one_tier: !self.cold_tier,
        }
    }
}

/// What a table in a bank of its own needs.
#[derive(Debug, Serialize)]
struct Plan {
    rows: u64,
    value_bytes: u64,
    record_bytes: u64,
    #[serde(flatten)]
    bank: Estimate,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if an option is out of range.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    ensure!((0.0..=1.0).contains(&args.in_memory), "--in-memory goes from 0 to 1");
    ensure!(args.checkpoint_every > 0, "--checkpoint-every must be positive");
    let tables = args.planned()?;
    let mut running = args.running();
    if let Some(shards) = args.shards {
        // An outdated set loses its pin after the next set, and its checkpoint goes at the one
        // after that.
        running.checkpoints = running.checkpoints.saturating_add(1);
        let fleet = shards::plan(&tables, shards, &running)?;
        match args.json {
            true => output::json(&fleet),
            false => output::print(&shards::text(&fleet, &running)),
        }
        return Ok(Ending::Good);
    }
    let plan = plan(&tables[0], &running);
    if args.json {
        output::json(&plan);
    } else {
        output::print(&text(args, &tables[0], &plan));
    }
    Ok(Ending::Good)
}

fn plan(table: &PlannedTable, running: &Running) -> Plan {
    Plan {
        rows: table.rows,
        value_bytes: u64::from(table.config.value_bytes()),
        record_bytes: record_bytes(&table.config),
        bank: estimate(&Load::of(&table.config, table.rows, table.updates_per_second), running),
    }
}

/// Returns a part as percents, with two digits at least.
fn percent(part: f64) -> String {
    match part {
        part if part >= 0.1 => format!("{:.0}%", part * 100.0),
        part if part >= 0.01 => format!("{:.1}%", part * 100.0),
        part => format!("{:.2}%", part * 100.0),
    }
}

/// Returns the line that says how many tiers the bank has.
fn tiers_line(bank: &Estimate) -> (&'static str, String, String) {
    let why = match bank.tiers {
        1 => "each row has an index entry in memory",
        _ => {
            "the index would take more than a quarter of the budget, so rows at rest have no entry"
        }
    };
    ("tiers", bank.tiers.to_string(), why.into())
}

fn text(args: &Args, table: &PlannedTable, plan: &Plan) -> String {
    let mut lines = vec![
        (
            "record",
            bytes(plan.record_bytes),
            "32 and the row with its state, in whole 8 bytes".into(),
        ),
        ("rows", bytes(plan.bank.rows_bytes), format!("{} of them", count(plan.rows))),
        tiers_line(&plan.bank),
        (
            "index in memory",
            bytes(plan.bank.index_bytes),
            match plan.bank.tiers {
                1 => "15.1 a row; measured: `footprint`, 10 and 100 million rows".into(),
                _ => "15.1 a row of the log, which has the rows in memory".into(),
            },
        ),
        (
            "memory budget, all rows",
            bytes(plan.bank.memory_budget_all_bytes),
            "everything in memory".into(),
        ),
        (
            match args.memory_budget {
                None => "memory budget, a part",
                Some(_) => "memory budget, given",
            },
            bytes(plan.bank.memory_budget_part_bytes),
            format!("{} of the rows in memory", percent(plan.bank.in_memory)),
        ),
        match plan.bank.tiers {
            1 => (
                "log on disk",
                bytes(plan.bank.log_disk_bytes),
                "1.5 times the rows, with compaction in the background, beside what checkpoints hold"
                    .into(),
            ),
            _ => (
                "log and parts on disk",
                bytes(plan.bank.log_disk_bytes),
                "the log and the cold tier, beside what checkpoints hold".into(),
            ),
        },
        (
            "a checkpoint",
            bytes(plan.bank.checkpoint_bytes),
            "at most: 9.6 a row for the index, beside the log and your blob; measured".into(),
        ),
        (
            "disk in all",
            bytes(plan.bank.disk_bytes),
            format!(
                "{} checkpoints kept and one being written, beside the log that they hold",
                args.checkpoints_kept
            ),
        ),
    ];
    if plan.bank.tiers > 1 {
        lines.push((
            "fences and filters",
            bytes(plan.bank.cold_memory_bytes),
            "memory of the cold tier, at most half of the budget".into(),
        ));
    }
    if plan.bank.rows_per_index_entry > 1.0 {
        let enough = Running { memory: Memory::Part(0.0), one_tier: true, ..args.running() };
        let enough = estimate(&Load::of(&table.config, table.rows, 0.0), &enough);
        lines.push((
            "rows an index entry",
            format!("{:.1}", plan.bank.rows_per_index_entry),
            format!(
                "the index does not fit, so a row takes several reads; a budget of {} holds it; or plan with --cold-tier",
                bytes(enough.memory_budget_part_bytes)
            ),
        ));
    }
    if let Some(reads) = plan.bank.reads_per_day {
        lines.push((
            "reads a day",
            count(reads),
            "at most: rows that are not in memory; neighbours in a batch share a read".into(),
        ));
    }
    if let Some(written) = &plan.bank.written_per_day {
        let rate = args.updates_per_second.unwrap_or(0);
        lines.extend([
            (
                "written a day",
                bytes(written.total_bytes),
                format!(
                    "at {} updates a second spread evenly; of skew: docs/memory.md, Compaction",
                    count(rate)
                ),
            ),
            (
                "  updates",
                bytes(written.updates_bytes),
                match plan.bank.tiers {
                    1 => "a record for each row that is not in mutable memory".into(),
                    _ => "at checkpoints, at most the rows in memory each time".into(),
                },
            ),
            (
                if plan.bank.tiers == 1 { "  compaction" } else { "  spills and merges" },
                bytes(written.compaction_bytes),
                match plan.bank.tiers {
                    1 => "0.9 times that, at a log of 1.4 times its rows; measured: 0.77 to 0.90",
                    _ => "rows leave the log in sorted runs, which are merged; skewed updates write less",
                }
                .into(),
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
            rows: Some(1_000_000),
            dim: Some(16),
            dtype: Dtype::F32,
            optimizer: Optimizer::adagrad(0.1),
            updates_per_second: Some(10_000),
            checkpoint_every: 600,
            checkpoints_kept: 2,
            in_memory: 0.25,
            memory_budget: None,
            drive_tbw: Some(600.0),
            cold_tier: false,
            shards: None,
            tables: Vec::new(),
            json: false,
        };
        let table = &args.planned().unwrap()[0];
        let planned = plan(table, &args.running());
        // docs/format.md: a record of dim 16 with Adagrad has 160 bytes.
        assert_eq!((planned.value_bytes, planned.record_bytes), (128, 160));
        assert!((14_000_000..16_000_000).contains(&planned.bank.index_bytes));
        // Each row changes 6 times between two checkpoints. Once a quarter of the rows is in
        // memory, three quarters of the updates write a record: 4.53 records of 6 updates.
        let written = planned.bank.written_per_day.as_ref().unwrap();
        assert_eq!(written.updates_bytes / 1_000_000_000, 104);
        assert_eq!(planned.bank.reads_per_day, Some(648_000_000));
        assert!(text(&args, table, &planned).contains("the drive lasts"));
        // Without memory, 10,000 records of 160 bytes a second are 138 GB a day (README).
        let little = Running { memory: Memory::Part(0.0), one_tier: true, ..args.running() };
        let planned = plan(table, &little);
        assert_eq!(planned.bank.written_per_day.unwrap().updates_bytes / 1_000_000_000, 138);

        let small = Args { memory_budget: Some(8 << 20), ..args };
        let planned = plan(table, &small.running());
        assert_eq!(planned.bank.tiers, 1);
        let shown = text(&small, table, &planned);
        assert!(shown.contains("the index does not fit") && shown.contains("22.15 MiB"), "{shown}");
        let two_tiers = Args { cold_tier: true, ..small };
        let planned = plan(table, &two_tiers.running());
        assert_eq!(planned.bank.tiers, 2);
        let shown = text(&two_tiers, table, &planned);
        assert!(shown.contains("rows at rest have no entry"), "{shown}");
    }
}
