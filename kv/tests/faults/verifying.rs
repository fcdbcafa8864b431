//! Tests verification. A sound bank has no findings, each damage is found and named, and no file
//! changes.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::banks::{ClosedBank, Rows};
use crate::common::{Random, options, put};
use embank_kv::inspect::{TableReader, VerifyOptions, VerifyReport, summary, verify};
use embank_kv::{Error, Store};

fn check(dir: &Path) -> VerifyReport {
    verify(dir, &VerifyOptions::default(), &mut |_| {}).unwrap()
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                all.insert(path.clone(), fs::read(path).unwrap());
            }
        }
    }
    all
}

fn read_all(dir: &Path, checkpoint: u64, of: &Rows) {
    for (name, rows) in of {
        let mut reader = TableReader::open(dir, Some(checkpoint), name).unwrap();
        let mut found = BTreeMap::new();
        let damage = reader.for_each_row(&mut |key, value| {
            assert_eq!(found.insert(key, value.to_vec()), None, "{name} {key} came twice");
            true
        });
        assert_eq!(damage.unwrap(), []);
        assert_eq!(&found, rows, "{name} of checkpoint {checkpoint}");
        let keys: Vec<u64> = (0..rows.len() as u64 + 10).step_by(97).collect();
        let wanted: Vec<_> = keys.iter().map(|key| rows.get(key).cloned()).collect();
        assert_eq!(reader.get(&keys).unwrap(), wanted, "{name} of checkpoint {checkpoint}");
    }
}

#[test]
fn a_whole_bank_is_clean_and_its_rows_can_be_read_at_each_checkpoint() {
    let mut random = Random::new();
    // The second budget is too small for one index entry per row, so rows share chains.
    for (rows, budget_bytes) in [(2_000, 16 << 20), (20_000, 300 << 10)] {
        let bank = ClosedBank::new(&mut random, rows, budget_bytes);
        fs::create_dir(bank.path().join("checkpoints/0000000009.partial")).unwrap();
        let before = contents(bank.path());
        let report = check(bank.path());
        assert!(report.is_clean(), "{:#?}", &report.damage[..report.damage.len().min(5)]);
        for (checkpoint, rows) in report.checkpoints.iter().zip(&bank.rows) {
            assert!(checkpoint.indexed && checkpoint.entries_lost == 0);
            for table in &checkpoint.tables {
                let expected = rows[&table.name].len() as u64;
                assert_eq!((table.rows, table.sound), (expected, expected), "{}", table.name);
            }
        }
        // With little memory, verification reads the index in several windows. The result must be
        // the same.
        let small = VerifyOptions { memory_bytes: 64 << 10, ..VerifyOptions::default() };
        let again = verify(bank.path(), &small, &mut |_| {}).unwrap();
        assert!(again.is_clean());
        assert_eq!((again.pages, again.records), (report.pages, report.records));
        for (number, rows) in (1..).zip(&bank.rows) {
            read_all(bank.path(), number, rows);
        }
        let summary = summary(bank.path()).unwrap();
        assert_eq!(summary.checkpoints.len(), 2);
        let rows: u64 = bank.rows[1].values().map(|rows| rows.len() as u64).sum();
        assert_eq!(summary.checkpoints[1].rows(), rows);
        assert_eq!(contents(bank.path()), before, "looking changed a file");
    }
}

/// True if `file` is a segment of the log and no checkpoint of the bank uses the byte at offset
/// `at` of that segment.
fn is_harmless(bank: &Path, file: &Path, at: u64) -> bool {
    let Some(name) = file.file_name().and_then(|name| name.to_str()?.strip_suffix(".seg")) else {
        return false;
    };
    let address = u64::from_str_radix(name, 16).unwrap() + at;
    let summary = summary(bank).unwrap();
    let within = |checkpoint: &embank_kv::inspect::CheckpointSummary| {
        (checkpoint.log_begin..checkpoint.log_end).contains(&address)
    };
    !summary.checkpoints.iter().any(within)
}

#[test]
fn every_flipped_bit_is_reported_with_its_file_and_page_or_harmless() {
    let mut random = Random::new();
    let bank = ClosedBank::new(&mut random, 1_000, 1 << 20);
    let page_bytes = summary(bank.path()).unwrap().checkpoints[0].page_bytes;
    let mut harmless = 0;
    for file in bank.files() {
        let good = fs::read(&file).unwrap();
        let is_log = file.extension().is_some_and(|extension| extension == "seg");
        for _ in 0..if is_log { 150 } else { 40 } {
            let (at, bit) = (random.below(good.len() as u64), random.below(8));
            if is_harmless(bank.path(), &file, at) {
                harmless += 1;
                continue;
            }
            let mut bytes = good.clone();
            bytes[at as usize] ^= 1 << bit;
            fs::write(&file, &bytes).unwrap();
            let report = check(bank.path());
            let named = report.damage.iter().any(|damage| {
                damage.path == file && (!is_log || damage.page == Some(at / page_bytes))
            });
            assert!(named, "{}: bit {bit} of byte {at}: {:?}", file.display(), report.damage);
        }
        fs::write(&file, good).unwrap();
    }
    println!("{harmless} flips were in parts of the log that no checkpoint names");
    assert!(check(bank.path()).is_clean());
}

#[test]
fn every_cut_is_reported() {
    let mut random = Random::new();
    let bank = ClosedBank::new(&mut random, 1_000, 1 << 20);
    for file in bank.files() {
        let good = fs::read(&file).unwrap();
        for turn in 0..12 {
            let cut = if turn == 0 { 0 } else { random.below(good.len() as u64) } as usize;
            if is_harmless(bank.path(), &file, cut as u64) {
                continue;
            }
            fs::write(&file, &good[..cut]).unwrap();
            let report = check(bank.path());
            let named = report.damage.iter().any(|damage| damage.path == file);
            assert!(named, "{} cut at {cut}: {:?}", file.display(), report.damage);
        }
        fs::remove_file(&file).unwrap();
        let report = check(bank.path());
        assert!(report.damage.iter().any(|damage| damage.path == file), "{}", file.display());
        fs::write(&file, good).unwrap();
    }
}

#[test]
fn all_damage_is_listed_not_the_first_of_it() {
    let mut random = Random::new();
    let bank = ClosedBank::new(&mut random, 3_000, 1 << 20);
    let older = bank.path().join("checkpoints/0000000001/manifest");
    let files: Vec<_> = bank.files().into_iter().filter(|file| *file != older).collect();
    for file in &files {
        let mut bytes = fs::read(file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 8;
        fs::write(file, bytes).unwrap();
    }
    let segment = files.last().unwrap();
    let mut bytes = fs::read(segment).unwrap();
    bytes[100] ^= 1;
    fs::write(segment, bytes).unwrap();
    let report = check(bank.path());
    for file in &files {
        let found = report.damage.iter().filter(|damage| damage.path == *file).count();
        let expected = if file == segment { 2 } else { 1 };
        assert!(found == expected, "{}: {:?}", file.display(), report.damage);
    }
    assert_eq!(report.unchecked, [2]);
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let bank = ClosedBank::new(&mut Random::new(), 500, 1 << 20);
    let only = VerifyOptions { checkpoint: Some(7), ..VerifyOptions::default() };
    let refused = verify(bank.path(), &only, &mut |_| {}).unwrap_err();
    assert!(
        matches!(&refused, Error::NoSuchCheckpoint { number: Some(7), kept, .. } if *kept == [1, 2]),
        "{refused}"
    );
    let refused = verify(&bank.path().join("log"), &VerifyOptions::default(), &mut |_| {});
    assert!(refused.unwrap_err().to_string().contains("is not a bank"));
}

#[test]
fn a_bank_is_verified_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(1 << 20)).unwrap();
    let table = store.create_table("t", 40, b"").unwrap();
    assert!(check(dir.path()).is_clean(), "a bank without a checkpoint");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for version in 0..30 {
                put(&store, table, &(0..3_000).collect::<Vec<_>>(), version, 40);
                store.checkpoint(b"").unwrap();
            }
        });
        let mut verified = 0;
        while !writer.is_finished() {
            // The writer keeps two checkpoints and may remove both during a verification. Such an
            // attempt fails and is skipped.
            let Ok(report) = verify(dir.path(), &VerifyOptions::default(), &mut |_| {}) else {
                continue;
            };
            assert!(report.is_clean(), "{:?}", report.damage);
            verified += report.checkpoints.len();
        }
        println!("{verified} checkpoints were verified during the writes");
        writer.join().unwrap();
    });
    assert!(check(dir.path()).is_clean());
}
