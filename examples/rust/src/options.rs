//! Options that all examples have.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use embank::{Bank, BankOptions};
use tempfile::TempDir;

const MEBI: u64 = 1 << 20;
/// Smallest memory budget, in bytes, that an example gives a bank. Smaller ones train slowly.
const BUDGET_BYTES_MIN: u64 = 2 * MEBI;
/// Bytes of a float32 weight and of its sum of squares.
pub const ADAGRAD_BYTES_PER_VALUE: u64 = 8;

/// Options that all examples have.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// Keep the rows in tensors in memory, not in the bank
    #[arg(long)]
    pub in_memory: bool,
    /// Memory budget as a share of the tables' bytes
    #[arg(long, default_value_t = 0.25, value_name = "X")]
    pub budget_share: f64,
    /// Batches announced ahead
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub lookahead: usize,
    /// Seed of everything random
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Threads of torch [default: chosen by torch]
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
}

impl Common {
    /// Makes a bank in a new folder, with a share of `table_bytes` as its budget, in whole MiB. The
    /// folder is removed when the returned `TempDir` is dropped.
    pub fn bank(&self, table_bytes: u64) -> Result<(Bank, TempDir)> {
        tch::manual_seed(self.seed as i64);
        if let Some(threads) = self.threads {
            tch::set_num_threads(threads as i32);
        }
        let share = (table_bytes as f64 * self.budget_share) as u64;
        let memory_budget_bytes = BUDGET_BYTES_MIN.max(share / MEBI * MEBI);
        let folder = tempfile::tempdir().context("making a folder for the bank")?;
        let options = BankOptions { memory_budget_bytes, ..BankOptions::default() };
        let bank = Bank::open(folder.path().join("bank"), options)?;
        let kind = if self.in_memory { "in memory" } else { "in a bank" };
        println!(
            "tables of {} MiB {kind}, budget {} MiB",
            table_bytes.div_ceil(MEBI),
            memory_budget_bytes / MEBI
        );
        Ok((bank, folder))
    }
}

/// Returns the path of a file or folder of data. It is `given`, or the path `usual` in
/// `$EMBANK_DATA` or in `shared/data` beside the clone. If there is nothing at the path, the error
/// says what to do.
pub fn data_path(given: Option<&Path>, usual: &str, what: &str) -> Result<PathBuf> {
    let path = given.map_or_else(|| data_folder().join(usual), Path::to_owned);
    ensure!(
        path.exists(),
        "{} is missing: put {what} there, or name it with --data",
        path.display()
    );
    Ok(path)
}

/// The folder of all data.
#[must_use]
pub fn data_folder() -> PathBuf {
    std::env::var_os("EMBANK_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    )
}
