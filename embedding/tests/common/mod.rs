//! Helpers of the behaviour tests: small banks, rows on disk, damaged files.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]
#![allow(dead_code, reason = "each test program uses its part")]

use std::time::Duration;

use embank::{Bank, BankOptions, Missing, Table, TableConfig};
use tempfile::TempDir;

/// The smallest memory budget that training must work with, in bytes.
pub(crate) const SMALL_BUDGET_BYTES: u64 = 1 << 20;

pub(crate) struct TestBank {
    pub(crate) bank: Bank,
    pub(crate) dir: TempDir,
}

pub(crate) fn small_options() -> BankOptions {
    BankOptions {
        memory_budget_bytes: SMALL_BUDGET_BYTES,
        wait_timeout: Duration::from_secs(120),
        ..Default::default()
    }
}

/// Makes a bank with the smallest budget, in its own directory.
pub(crate) fn new_bank() -> TestBank {
    new_bank_with(small_options())
}

pub(crate) fn new_bank_with(options: BankOptions) -> TestBank {
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path().join("bank"), options).unwrap();
    TestBank { bank, dir }
}

pub(crate) fn table(bank: &Bank, config: TableConfig) -> Table {
    bank.table("t", config).unwrap()
}

/// Returns the rows of `keys`, which must all exist.
pub(crate) fn rows_of(table: &Table, keys: &[u64]) -> Vec<f32> {
    let mut rows = vec![f32::NAN; keys.len() * table.dim()];
    table.peek(keys, &mut rows, Missing::Error).unwrap();
    rows
}

pub(crate) fn initial_of(table: &Table, keys: &[u64]) -> Vec<f32> {
    let mut rows = vec![f32::NAN; keys.len() * table.dim()];
    table.initial(keys, &mut rows).unwrap();
    rows
}

/// Writes rows of another table until the log has grown by several budgets. Every row written
/// before is then on disk.
pub(crate) fn push_to_disk(bank: &Bank) {
    let filler = bank.table("filler", TableConfig::new(64)).unwrap();
    let start = filler.stats().put_rows;
    let rows = vec![1.0; 500 * 64];
    for batch in 0..32 {
        let first = start + batch * 500;
        let keys: Vec<u64> = (first..first + 500).collect();
        filler.put(&keys, &rows).unwrap();
    }
}

/// Changes one byte of each occurrence of `bytes` in the files below `dir`. Returns their number.
pub(crate) fn damage_files_with(dir: &std::path::Path, bytes: &[u8]) -> usize {
    use std::os::unix::fs::FileExt;

    let mut found = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found += damage_files_with(&path, bytes);
            continue;
        }
        let content = std::fs::read(&path).unwrap();
        let places = content.windows(bytes.len()).enumerate();
        for (place, _) in places.filter(|(_, window)| *window == bytes) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[!bytes[0]], place as u64).unwrap();
            found += 1;
        }
    }
    found
}
