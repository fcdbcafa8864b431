//! Prints the counts of a run and writes them to a file, in the JSON format of the project's other
//! measurements. Also chooses the seed and the directory of a run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// A count with its name and unit.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    value: f64,
    unit: &'static str,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Row { name: name.into(), value, unit }
    }
}

/// Prints the counts. If `json` is given, writes them to that file as well.
pub(crate) fn publish(rows: &[Row], json: Option<&Path>) -> Result<()> {
    for Row { name, value, unit } in rows {
        println!("{name:44} {value:>12} {unit}");
    }
    if let Some(path) = json {
        let mut text = serde_json::to_string_pretty(rows).context("rows to JSON")?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Makes a directory for the tested banks. It lies in the requested directory, or else in memory
/// (/dev/shm), or else in the system's directory for temporary files.
pub(crate) fn scratch(asked_for: Option<&PathBuf>) -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let found = match asked_for {
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
            tempfile::tempdir_in(dir)
        }
        None => tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()),
    };
    found.context("making a temporary directory")
}

/// Returns the requested seed, or else a random one. Prints the seed, so that the caller can repeat
/// the run.
pub(crate) fn seed(asked_for: Option<u64>) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let seed = asked_for.unwrap_or_else(|| RandomState::new().hash_one(0) % 1_000_000);
    println!("seed      {seed} (--seed {seed} runs the same again)");
    seed
}
