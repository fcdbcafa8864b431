//! The option `--table` of `embank plan`, and the names of dtypes and optimizers.

use anyhow::{Result, bail, ensure};
use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use embank::{DIM_MAX, Dtype, Optimizer, TableConfig};

use crate::output::parse_scaled;

/// A table that is not made yet.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlannedTable {
    pub(super) name: String,
    /// 1 or more.
    pub(super) rows: u64,
    pub(super) config: TableConfig,
    pub(super) updates_per_second: f64,
    /// The shard that has the whole table. `None` if a hash spreads its rows.
    pub(super) shard: Option<u32>,
}

/// The value of `--table`, with its commas as spaces and `--` before each option.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Spec {
    name: String,
    #[arg(long, value_parser = parse_scaled)]
    rows: u64,
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(DIM_MAX)))]
    dim: u32,
    #[arg(long, value_parser = dtypes(), default_value = "f32")]
    dtype: Dtype,
    #[arg(long, value_parser = optimizers(), default_value = "none")]
    optimizer: Optimizer,
    #[arg(long, value_parser = parse_scaled, default_value = "0")]
    updates_per_second: u64,
    #[arg(long)]
    shard: Option<u32>,
}

/// Parses a value of `--table`, such as `user,rows=100M,dim=16,shard=0`.
///
/// # Errors
/// Returns an error for an option that is missing, unknown or out of range.
pub(super) fn parse(text: &str) -> Result<PlannedTable> {
    let mut words = text.split(',').map(str::trim);
    let name = words.next().unwrap_or_default().to_owned();
    ensure!(!name.is_empty() && !name.contains('='), "it must begin with the table's name");
    let options = words.map(|option| format!("--{option}"));
    let spec = match Spec::try_parse_from([name].into_iter().chain(options)) {
        Ok(spec) => spec,
        Err(error) => {
            // The rest of the text is the usage of a command line that does not exist.
            let text = error.to_string();
            let lines = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
            let what = lines.collect::<Vec<_>>().join(" ");
            bail!("{}", what.trim_start_matches("error: ").replace("--", ""))
        }
    };
    ensure!(spec.rows > 0, "rows must be positive");
    Ok(PlannedTable {
        config: TableConfig::new(spec.dim).dtype(spec.dtype).optimizer(spec.optimizer),
        name: spec.name,
        rows: spec.rows,
        updates_per_second: spec.updates_per_second as f64,
        shard: spec.shard,
    })
}

/// Parses the library's dtypes by the names of their variants.
pub(super) fn dtypes() -> impl TypedValueParser<Value = Dtype> {
    one_of(Dtype::ALL.iter().map(|&dtype| Choice {
        name: format!("{dtype:?}").to_lowercase(),
        row_bytes: TableConfig::new(16).dtype(dtype).value_bytes(),
        value: dtype,
    }))
}

/// Parses the library's optimizers by their names. Any learning rate serves here, because it does
/// not change the size of a row's state.
pub(super) fn optimizers() -> impl TypedValueParser<Value = Optimizer> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_name_and_options() {
        let found = parse("user, rows=100M,dim=16,dtype=f16,optimizer=adagrad,shard=3").unwrap();
        let config = TableConfig::new(16).dtype(Dtype::F16).optimizer(Optimizer::adagrad(0.1));
        assert_eq!((found.name.as_str(), found.rows, found.shard), ("user", 100_000_000, Some(3)));
        assert_eq!((found.config, found.updates_per_second), (config, 0.0));
        for (text, expected) in [
            ("user,rows=1M", "dim"),
            ("rows=1M,dim=4", "name"),
            ("", "name"),
            ("user,rows=0,dim=4", "rows must be positive"),
            ("user,rows=1M,dim=4,shards=2", "shards"),
            ("user,rows=1M,dim=4,dtype=f8", "f8"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("--"), "{text}: {error}");
        }
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
}
