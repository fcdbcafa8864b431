//! What each shard of a fleet needs: its part of the tables whose rows a hash spreads, and the
//! tables that are on this shard alone.

use anyhow::{Result, ensure};
use embank::fleet::BUCKETS;
use serde::Serialize;

use super::estimate::{Estimate, Load, Memory, Running, estimate};
use super::table::PlannedTable;
use crate::output::{self, bytes, count};

/// What a fleet needs.
#[derive(Debug, Serialize)]
pub(super) struct Fleet {
    /// By shard.
    pub(super) shards: Vec<ShardPlan>,
}

/// What one shard needs.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct ShardPlan {
    shard: u32,
    rows: u64,
    /// Names of the tables that are on this shard alone.
    whole_tables: Vec<String>,
    #[serde(flatten)]
    bank: Estimate,
}

impl ShardPlan {
    /// True if the shard needs what `other` needs.
    fn equals(&self, other: &ShardPlan) -> bool {
        (&self.whole_tables, self.bank) == (&other.whole_tables, other.bank)
    }
}

/// Plans a fleet of `shards` shards.
///
/// # Errors
/// Returns an error if a table is on a shard that the fleet does not have, or if two tables have
/// one name.
pub(super) fn plan(tables: &[PlannedTable], shards: u32, running: &Running) -> Result<Fleet> {
    for (at, table) in tables.iter().enumerate() {
        let name = &table.name;
        ensure!(tables[..at].iter().all(|of| of.name != *name), "--table {name} is given twice");
        if let Some(shard) = table.shard {
            ensure!(shard < shards, "--table {name}: shard must be below {shards}, not {shard}");
        }
    }
    let plan = |shard| {
        let mut load = Load::default();
        let mut whole_tables = Vec::new();
        for table in tables {
            // A shard has a whole number of buckets, so with many shards some have more rows than
            // the average.
            let (part, of) = match table.shard {
                None => (u64::from(BUCKETS.div_ceil(shards)), u64::from(BUCKETS)),
                Some(one) if one == shard => (1, 1),
                Some(_) => continue,
            };
            if table.shard.is_some() {
                whole_tables.push(table.name.clone());
            }
            let rows = (u128::from(table.rows) * u128::from(part)).div_ceil(u128::from(of)) as u64;
            let updates_per_second = table.updates_per_second * part as f64 / of as f64;
            load.add(Load::of(&table.config, rows, updates_per_second));
        }
        ShardPlan { shard, rows: load.rows, whole_tables, bank: estimate(&load, running) }
    };
    Ok(Fleet { shards: (0..shards).map(plan).collect() })
}

/// Returns the plan as text: one line for each run of equal shards.
pub(super) fn text(fleet: &Fleet, running: &Running) -> String {
    let all = &fleet.shards;
    let is_written = all.iter().any(|of| of.bank.written_per_day.is_some());
    let has_whole = all.iter().any(|of| !of.whole_tables.is_empty());
    let part = match running.memory {
        Memory::Part(part) => format!("memory, {:.0}%", part * 100.0),
        Memory::Budget(_) => "memory, given".to_owned(),
    };
    let mut rows = vec![vec!["shard", "rows", "memory, all rows", &part, "disk"]];
    if is_written {
        rows[0].push("written a day");
    }
    if is_written && running.drive_tbw.is_some() {
        rows[0].push("the drive lasts");
    }
    if has_whole {
        rows[0].push("whole tables");
    }
    let mut rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.into_iter().map(str::to_owned).collect()).collect();
    for run in all.chunk_by(ShardPlan::equals) {
        let (first, last) = (&run[0], run[run.len() - 1].shard);
        let bank = &first.bank;
        let mut row = vec![
            if run.len() == 1 { last.to_string() } else { format!("{} to {last}", first.shard) },
            count(first.rows),
            bytes(bank.memory_budget_all_bytes),
            bytes(bank.memory_budget_part_bytes),
            bytes(bank.disk_bytes),
        ];
        if is_written {
            row.push(bytes(bank.written_per_day.map_or(0, |written| written.total_bytes)));
        }
        if is_written && running.drive_tbw.is_some() {
            let days = bank.written_per_day.and_then(|written| written.drive_days);
            row.push(days.map_or("-".into(), |days| format!("{days:.0} days")));
        }
        if has_whole {
            row.push(first.whole_tables.join(", "));
        }
        rows.push(row);
    }
    let mut text = output::table(&rows);
    text += &format!(
        "\nEach line is what one shard needs. \"memory\" is the memory_budget of its rank: with all rows in memory, and\n\
         {}. \"disk\" holds the log and {} checkpoints: the sets that are kept, the one before them, and\n\
         the one being written. A hash spreads the rows: a shard has at most {} of the {BUCKETS} buckets.\n\
         Formulas: docs/architecture.md, \"The memory budget\" and \"Disk space\".\n",
        match running.memory {
            Memory::Part(part) => format!("with {:.0}% of them", part * 100.0),
            Memory::Budget(_) => "as given".to_owned(),
        },
        running.checkpoints,
        BUCKETS.div_ceil(all.len() as u32),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::table::parse;
    use super::*;

    const RUNNING: Running = Running {
        memory: Memory::Part(0.25),
        checkpoints: 4,
        checkpoint_every: 600,
        drive_tbw: Some(600.0),
        one_tier: true,
    };

    fn fleet(tables: &[&str], shards: u32) -> Result<Fleet> {
        let tables: Vec<PlannedTable> = tables.iter().map(|text| parse(text).unwrap()).collect();
        plan(&tables, shards, &RUNNING)
    }

    #[test]
    fn a_spread_table_is_divided_and_a_whole_one_is_on_its_shard() {
        let user = "user,rows=100M,dim=16,optimizer=adagrad,updates-per-second=10k";
        let spread = fleet(&[user], 4).unwrap().shards;
        assert!(spread.iter().all(|of| of.equals(&spread[0]) && of.rows == 25_000_000));
        let one = fleet(&[user], 1).unwrap().shards;
        assert_eq!(spread[0].bank.rows_bytes * 4, one[0].bank.rows_bytes);
        let daily = |of: &ShardPlan| of.bank.written_per_day.unwrap().updates_bytes;
        assert!((daily(&spread[0]) * 4).abs_diff(daily(&one[0])) <= 4);

        let both = fleet(&[user, "item,rows=1M,dim=64,shard=2"], 4).unwrap();
        let item = fleet(&["item,rows=1M,dim=64"], 1).unwrap().shards;
        for of in &both.shards {
            let expected = if of.shard == 2 { item[0].bank.rows_bytes } else { 0 };
            assert_eq!(of.bank.rows_bytes, spread[0].bank.rows_bytes + expected);
            assert_eq!(of.whole_tables.is_empty(), of.shard != 2);
        }
        let text = text(&both, &RUNNING);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("the drive lasts  whole tables"), "{text}");
        assert!(lines[1].starts_with("0 to 1  25,000,000 "), "{text}");
        assert!(
            lines[2].starts_with("2       26,000,000 ") && lines[2].ends_with("  item"),
            "{text}"
        );
        assert!(lines[3].starts_with("3       25,000,000 "), "{text}");
    }

    #[test]
    fn a_shard_without_rows_needs_the_smallest_bank() {
        let found = fleet(&["item,rows=1M,dim=64,shard=0,updates-per-second=1k"], 2).unwrap();
        let empty = &found.shards[1];
        assert_eq!((empty.rows, empty.bank.disk_bytes, empty.bank.written_per_day), (0, 0, None));
        assert_eq!(empty.bank.memory_budget_part_bytes, 1 << 20);
        assert!(text(&found, &RUNNING).lines().nth(2).unwrap().ends_with("0 B                -"));
    }

    /// 1,000 shards divide 4,096 buckets: some have 5, which is 22% more than the average.
    #[test]
    fn many_shards_have_whole_buckets() {
        let found = fleet(&["user,rows=4096M,dim=16"], 1000).unwrap();
        assert!(found.shards.iter().all(|of| of.rows == 5_000_000));
    }

    #[test]
    fn a_table_on_a_shard_that_is_not_there_is_refused() {
        let error = fleet(&["item,rows=1M,dim=64,shard=4"], 4).unwrap_err().to_string();
        assert!(error.contains("item: shard must be below 4, not 4"), "{error}");
        let twice = fleet(&["item,rows=1M,dim=64", "item,rows=1M,dim=64"], 4).unwrap_err();
        assert!(twice.to_string().contains("item is given twice"), "{twice}");
    }
}
