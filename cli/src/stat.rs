//! `embank stat`: prints the metadata of a bank.

use std::path::PathBuf;

use anyhow::Result;
use embank::{TableConfig, VocabularySummary};
use embank_kv::Width;
use embank_kv::inspect::{BankSummary, CheckpointSummary, TableSummary, summary};
use serde::Serialize;

use crate::Ending;
use crate::output::{self, DamageJson, bytes, count, damage_lines};

/// Options of `stat`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bank's directory
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    bank: Option<String>,
    checkpoint: Option<u64>,
    checkpoints: Vec<u64>,
    tables: Vec<TableJson>,
    vocabularies: Vec<VocabularyJson>,
    rows: u64,
    row_bytes: u64,
    checkpoint_bytes: u64,
    log_begin: u64,
    log_end: u64,
    page_bytes: u64,
    segments: u64,
    log_disk_bytes: u64,
    parts: u64,
    part_disk_bytes: u64,
    space_amplification: Option<f64>,
    table_numbers_left: u32,
    not_removed: Vec<NotRemovedJson>,
    damage: Vec<DamageJson>,
}

/// A directory of a removed checkpoint that the store could not delete, as JSON.
#[derive(Debug, Serialize)]
struct NotRemovedJson {
    path: String,
    bytes: u64,
}

/// A table as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct TableJson {
    number: u16,
    name: String,
    width: &'static str,
    value_bytes: u32,
    dim: Option<u32>,
    optimizer: Option<String>,
    rows: u64,
    row_bytes: u64,
}

impl TableJson {
    pub(crate) fn of(table: &TableSummary) -> Self {
        let config = TableConfig::from_descriptor(&table.name, &table.descriptor).ok();
        TableJson {
            number: table.number,
            name: table.name.clone(),
            width: match table.width {
                Width::Fixed => "fixed",
                Width::Variable => "variable",
            },
            value_bytes: table.value_bytes,
            dim: config.as_ref().map(|config| config.dim),
            optimizer: config.map(|config| format!("{:?}", config.optimizer)),
            rows: table.rows,
            row_bytes: table.record_bytes,
        }
    }
}

/// A vocabulary as JSON.
#[derive(Debug, Serialize)]
struct VocabularyJson {
    name: String,
    values: &'static str,
    ids: u64,
    first_id: u64,
    counts: bool,
    generation: u32,
    row_bytes: u64,
}

impl VocabularyJson {
    fn of(vocabulary: &VocabularySummary) -> Self {
        VocabularyJson {
            name: vocabulary.name.clone(),
            values: vocabulary.config.kind.name(),
            ids: vocabulary.rows,
            first_id: vocabulary.config.first_id,
            counts: vocabulary.config.counts,
            generation: vocabulary.generation,
            row_bytes: vocabulary.record_bytes,
        }
    }
}

/// Returns a checkpoint's tables without the tables of vocabularies, which are printed separately.
pub(crate) fn plain_tables(checkpoint: &CheckpointSummary) -> impl Iterator<Item = &TableSummary> {
    checkpoint.tables.iter().filter(|table| !VocabularySummary::owns(table))
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the directory is no bank or cannot be read.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let summary = summary(&args.dir)?;
    if args.json {
        output::json(&report(&summary));
    } else {
        output::print(&text(args, &summary));
    }
    Ok(if summary.damage.is_empty() { Ending::Good } else { Ending::Damage })
}

fn amplification(summary: &BankSummary, newest: &CheckpointSummary) -> Option<f64> {
    let live = newest.record_bytes();
    (live > 0).then(|| (summary.log_disk_bytes + summary.part_disk_bytes) as f64 / live as f64)
}

fn report(summary: &BankSummary) -> Report {
    let newest = summary.checkpoints.last();
    Report {
        bank: summary.bank.map(|bank| format!("{bank:016x}")),
        checkpoint: newest.map(|newest| newest.number),
        checkpoints: summary.checkpoints.iter().map(|checkpoint| checkpoint.number).collect(),
        tables: newest.map_or(Vec::new(), |of| plain_tables(of).map(TableJson::of).collect()),
        vocabularies: newest.map_or(Vec::new(), |of| {
            VocabularySummary::all(&of.tables).iter().map(VocabularyJson::of).collect()
        }),
        rows: newest.map_or(0, CheckpointSummary::rows),
        row_bytes: newest.map_or(0, CheckpointSummary::record_bytes),
        checkpoint_bytes: summary.checkpoint_bytes,
        log_begin: newest.map_or(0, |newest| newest.log_begin),
        log_end: newest.map_or(0, |newest| newest.log_end),
        page_bytes: newest.map_or(0, |newest| newest.page_bytes),
        segments: summary.segments,
        log_disk_bytes: summary.log_disk_bytes,
        parts: summary.parts,
        part_disk_bytes: summary.part_disk_bytes,
        space_amplification: newest.and_then(|newest| amplification(summary, newest)),
        table_numbers_left: summary.table_numbers_left,
        not_removed: summary
            .not_removed
            .iter()
            .map(|left| NotRemovedJson {
                path: left.path.display().to_string(),
                bytes: left.file_bytes,
            })
            .collect(),
        damage: DamageJson::all(&summary.damage),
    }
}

fn text(args: &Args, summary: &BankSummary) -> String {
    let mut text = format!("bank          {}", output::shown(args.dir.display()));
    if let Some(bank) = summary.bank {
        text += &format!(" ({bank:016x})");
    }
    text.push('\n');
    match summary.checkpoints.last() {
        None => text += "checkpoints   none that can be read: there are no rows to show\n",
        Some(newest) => {
            let kept: Vec<String> =
                summary.checkpoints.iter().map(|kept| kept.number.to_string()).collect();
            text += &format!(
                "checkpoints   {}; {} of manifests, indexes and blobs; what follows is {}\n",
                kept.join(", "),
                bytes(summary.checkpoint_bytes),
                newest.number
            );
            text += &format!(
                "rows          {}, {} with their headers\n",
                count(newest.rows()),
                bytes(newest.record_bytes())
            );
            let of = if summary.parts > 0 { "with the cold tier " } else { "" };
            let amplification = amplification(summary, newest)
                .map_or(String::new(), |times| format!(", {of}{times:.2} times the rows"));
            text += &format!(
                "log           {} on disk in {} segments{amplification}; addresses {} to {}, pages of {}\n",
                bytes(summary.log_disk_bytes),
                summary.segments,
                newest.log_begin,
                newest.log_end,
                bytes(newest.page_bytes)
            );
            if summary.parts > 0 {
                text += &format!(
                    "cold tier     {} on disk in {} parts\n",
                    bytes(summary.part_disk_bytes),
                    count(summary.parts)
                );
            }
            text += &format!(
                "tables        {}; {} numbers are left for new ones\n",
                count(newest.tables.len() as u64),
                count(u64::from(summary.table_numbers_left))
            );
            text.push('\n');
            text += &tables(plain_tables(newest));
            let found = VocabularySummary::all(&newest.tables);
            if !found.is_empty() {
                text.push('\n');
                text += &vocabularies(&found);
            }
        }
    }
    if !summary.not_removed.is_empty() {
        text += "\nnot removed: directories of checkpoints that are gone; remove them by hand if they stay\n";
        for left in &summary.not_removed {
            text += &format!("  {} ({})\n", left.path.display(), bytes(left.file_bytes));
        }
    }
    if !summary.damage.is_empty() {
        text += "\ndamaged; `embank verify` tells more:\n";
        text += &damage_lines(&args.dir, &summary.damage);
    }
    text
}

fn tables<'a>(tables: impl IntoIterator<Item = &'a TableSummary>) -> String {
    let head = ["table", "rows", "bytes", "value", "dim", "dtype", "optimizer"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for table in tables {
        let config = TableConfig::from_descriptor(&table.name, &table.descriptor).ok();
        let value = match table.width {
            Width::Fixed => bytes(u64::from(table.value_bytes)),
            Width::Variable => format!("up to {}", bytes(u64::from(table.value_bytes))),
        };
        let dash = || "-".to_owned();
        rows.push(vec![
            table.name.clone(),
            count(table.rows),
            bytes(table.record_bytes),
            value,
            config.as_ref().map_or_else(dash, |config| config.dim.to_string()),
            config.as_ref().map_or_else(dash, |config| config.dtype.name().to_owned()),
            config.map_or_else(dash, |config| config.optimizer.name().to_owned()),
        ]);
    }
    output::table(&rows)
}

fn vocabularies(vocabularies: &[VocabularySummary]) -> String {
    let head = ["vocabulary", "ids", "bytes", "values", "first_id", "counts", "generation"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for vocabulary in vocabularies {
        let config = &vocabulary.config;
        rows.push(vec![
            vocabulary.name.clone(),
            count(vocabulary.rows),
            bytes(vocabulary.record_bytes),
            config.kind.name().to_owned(),
            config.first_id.to_string(),
            if config.counts { "yes" } else { "no" }.to_owned(),
            vocabulary.generation.to_string(),
        ]);
    }
    output::table(&rows)
}

#[cfg(test)]
mod tests {
    use embank::{Bank, BankOptions, VocabularyConfig};

    use super::*;

    #[test]
    fn the_guide_shows_the_columns_there_are() {
        for (head, like) in [(tables(&[]), "table "), (vocabularies(&[]), "vocabulary ")] {
            let head: Vec<_> = head.split_whitespace().collect();
            let mut lines = include_str!("../../docs/cli.md").lines();
            let shown = lines.find(|line| line.starts_with(like) && line.contains("value"));
            let shown: Vec<_> = shown.unwrap_or_default().split_whitespace().collect();
            assert_eq!(shown, head);
        }
    }

    #[test]
    fn vocabularies_are_shown_as_such_and_not_as_tables() {
        let dir = tempfile::tempdir().unwrap();
        let bank = Bank::open(dir.path(), BankOptions::default()).unwrap();
        bank.table("user", TableConfig::new(1)).unwrap();
        let config = VocabularyConfig::bytes().counts(true).first_id(2);
        let words = bank.vocabulary("word", config).unwrap();
        let batch = embank::ByteBuffer::from_iter(["red", "green"]);
        words.ids_or_insert(&batch, &mut [0; 2]).unwrap();
        bank.checkpoint(b"").unwrap();
        let summary = summary(dir.path()).unwrap();
        let report = report(&summary);
        let names: Vec<_> = report.tables.iter().map(|table| &table.name[..]).collect();
        assert_eq!((names, report.vocabularies.len()), (vec!["user"], 1));
        let args = Args { dir: dir.path().to_owned(), json: false };
        let text = text(&args, &summary);
        let line = text.lines().find(|line| line.starts_with("word ")).unwrap();
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!((cells[1], &cells[4..]), ("2", &["bytes", "2", "yes", "0"][..]));
        assert!(!text.contains("(vocabulary"), "{text}");
    }
}
