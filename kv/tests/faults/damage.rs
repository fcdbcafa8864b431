//! Tests that reads from a bank with damaged files give an error or the right row. They must never
//! give a wrong value, zeros or a missing row.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{GetAll, Random, options, peek, put, value};
use embank_kv::{Clock, Error, Store, TableId};

const BUDGET_BYTES: u64 = 256 << 10;
const ROWS: u64 = 700;
const VALUE_BYTES: [usize; 2] = [40, 100];
const BLOB: &[u8] = b"the step, and whatever else the caller keeps";
/// Rows from this key on are put again before the second checkpoint. They are so few that the
/// second checkpoint's index consists of the first checkpoint's image and a delta.
const SECOND_FROM: u64 = ROWS - 25;

fn version(key: u64) -> u64 {
    if key < SECOND_FROM { 1 } else { 2 }
}

/// A closed bank with two checkpoints and two tables.
struct Bank {
    dir: tempfile::TempDir,
    tables: [TableId; 2],
    files: Vec<PathBuf>,
}

fn keys() -> Vec<u64> {
    (0..ROWS).collect()
}

impl Bank {
    fn new() -> Self {
        Self::with_versions(0)
    }

    /// Makes a bank as `new` does, with all versions higher by `ahead`.
    fn with_versions(ahead: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
        let tables =
            ["a", "b"].map(|name| store.create_table(name, width(name) as u32, b"").unwrap());
        for (table, bytes) in tables.into_iter().zip(VALUE_BYTES) {
            put(&store, table, &keys(), 1 + ahead, bytes);
        }
        store.checkpoint(b"old").unwrap();
        for (table, bytes) in tables.into_iter().zip(VALUE_BYTES) {
            put(&store, table, &keys()[SECOND_FROM as usize..], 2 + ahead, bytes);
        }
        store.checkpoint(BLOB).unwrap();
        drop(store);
        let newest = dir.path().join("checkpoints/0000000002");
        let names = ["manifest", "index.0000000002", "blob", "index.0000000001"];
        let mut files: Vec<PathBuf> = names.iter().map(|name| newest.join(name)).collect();
        let segments = fs::read_dir(dir.path().join("log")).unwrap();
        files.extend(segments.map(|entry| entry.unwrap().path()));
        assert!(files.len() >= 5 && files.iter().all(|file| file.is_file()), "{files:?}");
        Bank { dir, tables, files }
    }

    /// Reads all rows. Returns the number of damaged rows, or 1 if the bank does not open. Each
    /// error must name `file`.
    fn examine(&self, file: &Path, what: &str) -> usize {
        let named = |error: Error| {
            let text = error.to_string();
            assert!(text.contains(file.to_str().unwrap()), "{what}: {text}");
            assert!(
                matches!(error, Error::Damaged { .. } | Error::Truncated { .. }),
                "{what}: {error:?}"
            );
        };
        let store = match Store::open(self.dir.path(), &options(BUDGET_BYTES)) {
            Ok(store) => store,
            Err(error) => {
                named(error);
                return 1;
            }
        };
        assert_eq!(store.recovered().unwrap().blob, BLOB, "{what}");
        assert_eq!(store.tables().len(), 2, "{what}");
        let mut errors = 0;
        for (table, bytes) in self.tables.into_iter().zip(VALUE_BYTES) {
            // Peeks all rows in one batch. A batch that fails is split in two, down to single
            // damaged rows.
            let all = keys();
            let mut batches: Vec<&[u64]> = vec![&all];
            while let Some(batch) = batches.pop() {
                match peek(&store, table, batch) {
                    Ok(rows) => {
                        for (&key, row) in batch.iter().zip(rows) {
                            let row = row.unwrap_or_else(|| panic!("{what}: {key} is missing"));
                            assert_eq!(row, value(key, version(key), bytes), "{what}: {key}");
                        }
                        continue;
                    }
                    Err(error) => named(error),
                }
                if batch.len() > 1 {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    batches.extend([first, second]);
                    continue;
                }
                // A get for training must fail too, and must not insert the row.
                let mut values = [Vec::new()];
                let get = store.execute(table, batch, Clock::Keep, &mut GetAll(&mut values));
                named(get.unwrap_err());
                errors += 1;
            }
        }
        errors
    }

    /// Overwrites a file with `bytes`, examines the bank, and restores the file.
    fn with(&self, file: &Path, bytes: &[u8], what: &str) -> usize {
        let good = fs::read(file).unwrap();
        fs::write(file, bytes).unwrap();
        let errors = self.examine(file, what);
        fs::write(file, good).unwrap();
        errors
    }
}

fn width(table: &str) -> usize {
    VALUE_BYTES[usize::from(table == "b")]
}

#[test]
fn a_flipped_bit_anywhere_is_an_error_or_harmless() {
    let bank = Bank::new();
    let mut random = Random::new();
    for file in &bank.files {
        let good = fs::read(file).unwrap();
        let is_log = file.extension().is_some_and(|extension| extension == "seg");
        let mut noticed = 0;
        let flips = if is_log { 250 } else { 80 };
        for _ in 0..flips {
            let (at, bit) = (random.below(good.len() as u64) as usize, random.below(8));
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            let what = format!("{}: bit {bit} of byte {at}", file.display());
            let errors = bank.with(file, &bytes, &what);
            noticed += usize::from(errors > 0);
            // A flip in the log may hit a superseded row, which is never read. A flip in metadata
            // must be found.
            assert!(is_log || errors > 0, "{what} went unnoticed");
        }
        println!("{}: {noticed} of {flips} flips noticed", file.display());
        assert!(noticed * 2 > flips, "{}: {noticed} of {flips} noticed", file.display());
    }
    assert_eq!(bank.examine(&bank.files[0], "restored"), 0);
}

#[test]
fn a_file_cut_short_anywhere_is_an_error() {
    let bank = Bank::new();
    let mut random = Random::new();
    for file in &bank.files {
        let good = fs::read(file).unwrap();
        let mut cuts = vec![0, 1, good.len() / 2, good.len() - 1];
        cuts.extend((0..25).map(|_| random.below(good.len() as u64) as usize));
        for cut in cuts {
            let what = format!("{}: cut at {cut} of {}", file.display(), good.len());
            assert!(bank.with(file, &good[..cut], &what) > 0, "{what} went unnoticed");
        }
    }
}

#[test]
fn blocks_that_were_lost_swapped_or_repeated_are_errors() {
    // Disks have other faults than flipped bits: a sector of zeros, a write to the wrong place, an
    // old page.
    const BLOCK: usize = 512;
    let bank = Bank::new();
    let mut random = Random::new();
    let segment = bank.files.last().unwrap();
    let good = fs::read(segment).unwrap();
    let blocks = (good.len() / BLOCK) as u64;
    let mut noticed = 0;
    for round in 0..60 {
        let (from, to) = (random.below(blocks) as usize, random.below(blocks) as usize);
        let (from, to) = (from * BLOCK, to * BLOCK);
        let mut bytes = good.clone();
        let what = match round % 3 {
            0 => {
                bytes[to..to + BLOCK].fill(0);
                format!("zeros at {to}")
            }
            1 => {
                bytes.copy_within(from..from + BLOCK, to);
                format!("{from} repeated at {to}")
            }
            _ => {
                let page = 8192;
                let (from, to) = (from / page * page, to / page * page);
                bytes.copy_within(from..from + page, to);
                format!("page at {from} repeated at {to}")
            }
        };
        noticed += usize::from(bank.with(segment, &bytes, &what) > 0);
    }
    println!("{noticed} of 60 noticed");
    // About 41 of the 60 faults are usually noticed. Some blocks have equal content, and some are
    // never read.
    assert!(noticed > 20);
}

#[test]
fn bytes_after_the_end_of_metadata_are_errors() {
    let bank = Bank::new();
    for file in &bank.files[..4] {
        let mut bytes = fs::read(file).unwrap();
        bytes.extend([0; 8]);
        let what = format!("{} is longer", file.display());
        assert!(bank.with(file, &bytes, &what) > 0, "{what} went unnoticed");
    }
}

#[test]
fn a_file_of_another_checkpoint_is_an_error() {
    // Regression test: the store accepted the index of an older checkpoint in place of the index of
    // the newest checkpoint. It then returned old rows.
    let bank = Bank::new();
    let older = bank.dir.path().join("checkpoints/0000000001");
    for file in &bank.files[..3] {
        let name = file.file_name().unwrap().to_str().unwrap().replace('2', "1");
        let bytes = fs::read(older.join(name)).unwrap();
        let what = format!("{} of the checkpoint before", file.display());
        assert!(bank.with(file, &bytes, &what) > 0, "{what} went unnoticed");
    }
}

#[test]
fn a_page_of_another_bank_is_an_error() {
    // A read of a single row does not read the page's header. The row's checksum must therefore
    // identify the bank.
    let (bank, other) = (Bank::new(), Bank::with_versions(5));
    let segment = bank.files.last().unwrap();
    let (mut bytes, theirs) =
        (fs::read(segment).unwrap(), fs::read(other.files.last().unwrap()).unwrap());
    assert_eq!(bytes.len(), theirs.len());
    bytes[8192..2 * 8192].copy_from_slice(&theirs[8192..2 * 8192]);
    assert!(bank.with(segment, &bytes, "page 1 of another bank") > 0);
}

#[test]
fn a_lost_file_is_an_error_that_names_it() {
    let bank = Bank::new();
    for file in &bank.files {
        let good = fs::read(file).unwrap();
        fs::remove_file(file).unwrap();
        let error = Store::open(bank.dir.path(), &options(BUDGET_BYTES)).unwrap_err();
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
        // Overwrites any file that the device made in place of the lost one.
        fs::write(file, good).unwrap();
    }
    assert_eq!(bank.examine(&bank.files[0], "restored"), 0);
}
