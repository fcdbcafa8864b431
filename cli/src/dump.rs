//! `embank dump`: prints rows of a table.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use embank::TableConfig;
use embank_kv::inspect::TableReader;
use serde::Serialize;

use crate::Ending;
use crate::output::{self, damage_lines};

/// Options of `dump`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bank's directory
    dir: PathBuf,
    /// The table's name
    table: String,
    /// Print only the row of this key; may be given several times. Missing rows are left out
    ///
    /// A negative key means the unsigned key with the same 64 bits, as in Python.
    #[arg(long = "key", value_name = "K", value_parser = key, allow_negative_numbers = true)]
    keys: Vec<u64>,
    /// Print only rows with keys from A on and below B; A or B may be left out
    #[arg(long, value_name = "A..B", conflicts_with = "keys", value_parser = range, allow_hyphen_values = true)]
    range: Option<(u64, Option<u64>)>,
    /// Print at most this many rows
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// The checkpoint to read [default: the newest]
    #[arg(long, value_name = "N")]
    checkpoint: Option<u64>,
    /// Print the optimizer's state too
    #[arg(long)]
    state: bool,
    /// How rows are printed
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Short for --format json
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The key, then the values
    Text,
    /// One JSON list
    Json,
    /// One JSON object in each line
    Jsonl,
}

/// A row as JSON.
#[derive(Debug, Serialize)]
struct Row {
    key: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    vector: Option<Vec<f32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Vec<f32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

fn key(text: &str) -> Result<u64> {
    let negative = || text.parse::<i64>().map(i64::cast_unsigned);
    text.parse().or_else(|_| negative()).with_context(|| format!("{text:?} is no key of 64 bits"))
}

/// Parses a range of keys `A..B`. The range does not contain `B`. A missing `A` means 0, and a
/// missing `B` means no end.
fn range(text: &str) -> Result<(u64, Option<u64>)> {
    let (from, to) = text.split_once("..").context("a range is written A..B")?;
    let number = |text: &str| match text {
        "" => Ok(None),
        text => key(text).map(Some),
    };
    let (from, to) = (number(from)?.unwrap_or(0), number(to)?);
    if let Some(to) = to.filter(|&to| from > to) {
        bail!("{from} is above {to}");
    }
    Ok((from, to))
}

/// Runs the subcommand.
///
/// # Errors
/// Returns an error if the directory is no bank, lacks the checkpoint or the table, or cannot be
/// read.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let mut reader = TableReader::open(&args.dir, args.checkpoint, &args.table)?;
    let table = reader.table();
    let config = TableConfig::from_descriptor(&table.name, &table.descriptor).ok();
    let format = if args.json { Format::Json } else { args.format };
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut printer = Printer {
        out: BufWriter::new(io::stdout().lock()),
        format,
        config,
        state: args.state,
        printed: 0,
    };
    let mut damage = Vec::new();
    // If a row cannot be printed, the command reads no further rows. Damage that it has found by
    // then still sets the exit status.
    let mut printed = printer.begin();
    if args.keys.is_empty() {
        damage = reader.for_each_row(&mut |key, value| {
            let wanted =
                args.range.is_none_or(|(from, to)| key >= from && to.is_none_or(|to| key < to));
            if printer.printed >= limit {
                return false;
            }
            if wanted && printed.is_ok() {
                printed = printer.row(key, value);
            }
            printed.is_ok() && printer.printed < limit
        })?;
    } else {
        let values = reader.get(&args.keys)?;
        for (&key, value) in args.keys.iter().zip(values) {
            if let Some(value) = value.filter(|_| printer.printed < limit && printed.is_ok()) {
                printed = printer.row(key, &value);
            }
        }
    }
    if let Err(error) = printed.and_then(|()| printer.end()) {
        output::failed(error);
    }
    if damage.is_empty() {
        return Ok(Ending::Good);
    }
    output::note(&format!(
        "rows that can't be read are left out; `embank verify` tells more:\n{}",
        damage_lines(&args.dir, &damage)
    ));
    Ok(Ending::Damage)
}

struct Printer<W: Write> {
    out: W,
    format: Format,
    /// The table's settings, which say how a value splits into vector and state. `None` for a table
    /// of plain bytes.
    config: Option<TableConfig>,
    /// True if the optimizer's values are printed too.
    state: bool,
    printed: u64,
}

impl<W: Write> Printer<W> {
    fn begin(&mut self) -> io::Result<()> {
        if self.format == Format::Json {
            writeln!(self.out, "[")?;
        }
        Ok(())
    }

    fn row(&mut self, key: u64, value: &[u8]) -> io::Result<()> {
        let row = row(key, value, self.config.as_ref(), self.state);
        match self.format {
            Format::Text => {
                write!(self.out, "{key}")?;
                if let Some(hex) = &row.hex {
                    write!(self.out, " {hex}")?;
                }
                for column in row.vector.iter().flatten() {
                    write!(self.out, " {column}")?;
                }
                if let Some(state) = &row.state {
                    write!(self.out, " |")?;
                    for column in state {
                        write!(self.out, " {column}")?;
                    }
                }
                if let Some(steps) = row.steps {
                    write!(self.out, " | {steps}")?;
                }
                writeln!(self.out)?;
            }
            Format::Json | Format::Jsonl => {
                if self.format == Format::Json && self.printed > 0 {
                    writeln!(self.out, ",")?;
                }
                serde_json::to_writer(&mut self.out, &row).map_err(io::Error::from)?;
                if self.format == Format::Jsonl {
                    writeln!(self.out)?;
                }
            }
        }
        self.printed += 1;
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        if self.format == Format::Json {
            writeln!(self.out, "{}]", if self.printed > 0 { "\n" } else { "" })?;
        }
        self.out.flush()?;
        Ok(())
    }
}

fn row(key: u64, value: &[u8], config: Option<&TableConfig>, state: bool) -> Row {
    match config.and_then(|config| config.decode_row(value)) {
        Some(row) => {
            let has_state = state && !(row.state.is_empty() && row.steps.is_none());
            Row {
                key,
                vector: Some(row.vector),
                state: has_state.then_some(row.state),
                steps: row.steps.filter(|_| state),
                hex: None,
            }
        }
        None => {
            let hex = value.iter().map(|byte| format!("{byte:02x}")).collect();
            Row { key, vector: None, state: None, steps: None, hex: Some(hex) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_may_be_open() {
        assert_eq!(range("3..9").unwrap(), (3, Some(9)));
        assert_eq!(range("..9").unwrap(), (0, Some(9)));
        assert_eq!(range("3..").unwrap(), (3, None));
        assert!(range("9..3").is_err() && range("9").is_err() && range("a..b").is_err());
        assert_eq!(range("-2..").unwrap(), (u64::MAX - 1, None));
    }

    #[test]
    fn a_negative_key_stands_for_the_same_64_bits() {
        assert_eq!((key("-1").unwrap(), key("7").unwrap()), (u64::MAX, 7));
        assert_eq!(key("18446744073709551615").unwrap(), u64::MAX);
        assert!(key("18446744073709551616").is_err() && key("-9223372036854775809").is_err());
    }
}
