//! Tests salvage, which copies the readable rows of a damaged bank to a new bank. Each row that is
//! on no damaged page is copied with its value. The report counts the rows that may have an older
//! value.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::common::banks::{BLOBS, ClosedBank, Rows};
use crate::common::{Random, options};
use embank_kv::inspect::{
    Blob, RowSource, SalvageOptions, SalvageReport, TableReader, VerifyOptions, salvage, summary,
    verify,
};
use embank_kv::{Error, Store};

const MEMORY: SalvageOptions = SalvageOptions { memory_budget_bytes: Some(4 << 20) };

/// Salvages a bank. Asserts that the new bank is sound, can be opened and has the blob.
fn salvaged(dir: &Path) -> (SalvageReport, Rows) {
    let new = tempfile::tempdir().unwrap();
    let report = salvage(dir, new.path(), &MEMORY, &mut |_| {}).unwrap();
    assert!(verify(new.path(), &VerifyOptions::default(), &mut |_| {}).unwrap().is_clean());
    let store = Store::open(new.path(), &options(4 << 20)).unwrap();
    if let Blob::Kept(_) = report.blob {
        assert_eq!(store.recovered().unwrap().blob, BLOBS[report.checkpoint as usize - 1]);
    }
    drop(store);
    let mut rows = Rows::new();
    for table in &summary(new.path()).unwrap().checkpoints[0].tables {
        let mut reader = TableReader::open(new.path(), None, &table.name).unwrap();
        let rows = rows.entry(table.name.clone()).or_default();
        let visit = &mut |key, value: &[u8]| rows.insert(key, value.to_vec()).is_none();
        assert_eq!(reader.for_each_row(visit).unwrap(), []);
        assert_eq!(rows.len() as u64, table.rows);
    }
    (report, rows)
}

/// Returns the page of each row's newest record. Reads the log as docs/format.md describes it. A
/// key's last record is its newest, because records were written in order.
fn pages_of_rows(bank: &ClosedBank) -> BTreeMap<(u16, u64), u64> {
    let page_bytes = summary(bank.path()).unwrap().checkpoints[0].page_bytes as usize;
    let log = fs::read(bank.files().pop().unwrap()).unwrap();
    let mut pages = BTreeMap::new();
    for (number, page) in log.chunks_exact(page_bytes).enumerate() {
        let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        let (mut at, end) = (64, word(24) as u32 as usize);
        while at + 32 <= end {
            let (key, shape) = (word(at + 16), word(at + 24));
            pages.insert(((shape >> 32) as u16, key), number as u64);
            at += 32 + (shape >> 48) as usize * 8;
        }
    }
    pages
}

/// Returns the rows of the newest checkpoint whose newest record is on no page of `pages`.
fn rows_off(bank: &ClosedBank, of_rows: &BTreeMap<(u16, u64), u64>, pages: &BTreeSet<u64>) -> Rows {
    let tables = &summary(bank.path()).unwrap().checkpoints[1].tables;
    let mut off = bank.rows[1].clone();
    for (name, rows) in &mut off {
        let number = tables.iter().find(|table| &table.name == name).unwrap().number;
        rows.retain(|key, _| !pages.contains(&of_rows[&(number, *key)]));
    }
    off
}

/// Asserts that `found` has every row of `whole` with the same value.
fn assert_holds(found: &Rows, whole: &Rows, what: &str) {
    for (name, rows) in whole {
        for (key, row) in rows {
            assert_eq!(found[name].get(key), Some(row), "{what}: {name} {key}");
        }
    }
}

#[test]
fn a_whole_bank_comes_back_whole_by_its_index_and_by_its_log() {
    let mut random = Random::new();
    for (rows, budget_bytes) in [(1_500, 16 << 20), (15_000, 300 << 10)] {
        let bank = ClosedBank::new(&mut random, rows, budget_bytes);
        let (report, found) = salvaged(bank.path());
        assert!(report.is_complete() && report.rows_by == RowSource::Index, "{report:?}");
        assert_eq!(found, bank.rows[1]);

        // Without the index, salvage reads the log. It must find the same rows and apply the
        // deletions.
        let newest = bank.path().join("checkpoints/0000000002");
        for file in fs::read_dir(newest).unwrap().map(|file| file.unwrap().path()) {
            if file.file_name().unwrap().to_str().unwrap().starts_with("index") {
                fs::remove_file(file).unwrap();
            }
        }
        let (report, found) = salvaged(bank.path());
        assert_eq!(report.rows_by, RowSource::Log);
        assert_eq!(found, bank.rows[1]);
        assert!(report.notes[0].contains("index of checkpoint 2"), "{:?}", report.notes);
    }
}

#[test]
fn a_lost_manifest_takes_another_ones_tables_and_a_lost_checkpoint_the_one_before() {
    let bank = ClosedBank::new(&mut Random::new(), 1_000, 1 << 20);
    let newest = bank.path().join("checkpoints/0000000002");
    let mut bytes = fs::read(newest.join("manifest")).unwrap();
    bytes[40] ^= 1;
    fs::write(newest.join("manifest"), bytes).unwrap();
    let (report, found) = salvaged(bank.path());
    assert_eq!((report.checkpoint, report.rows_by), (2, RowSource::Index));
    assert_holds(&found, &bank.rows[1], "without a manifest");
    for (name, rows) in &bank.rows[1] {
        assert_eq!(found[name].len(), rows.len(), "{name}");
    }

    fs::remove_dir_all(&newest).unwrap();
    fs::create_dir(&newest).unwrap();
    let (report, found) = salvaged(bank.path());
    assert_eq!((report.checkpoint, report.newest), (1, 2));
    assert!(!report.is_complete());
    assert_eq!(found, bank.rows[0]);

    fs::remove_dir_all(bank.path().join("checkpoints/0000000001")).unwrap();
    let new = tempfile::tempdir().unwrap();
    let refused = salvage(bank.path(), new.path(), &MEMORY, &mut |_| {}).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
}

#[test]
fn rows_off_the_damaged_pages_all_come_back() {
    let mut random = Random::new();
    for (rows, budget_bytes) in [(1_500, 2 << 20), (15_000, 300 << 10)] {
        let bank = ClosedBank::new(&mut random, rows, budget_bytes);
        let page_bytes = summary(bank.path()).unwrap().checkpoints[0].page_bytes;
        let of_rows = pages_of_rows(&bank);
        let mut rows_wanted = 0;
        let segment = bank.files().pop().unwrap();
        let good = fs::read(&segment).unwrap();
        let pages_in_all = good.len() as u64 / page_bytes;
        for round in 0..8 {
            let mut bytes = good.clone();
            let mut pages = BTreeSet::new();
            for _ in 0..=round {
                let page = random.below(pages_in_all);
                let start = (page * page_bytes) as usize;
                pages.insert(page);
                match random.below(3) {
                    0 => bytes[start + random.below(page_bytes) as usize] ^= 1 << random.below(8),
                    1 => bytes[start..start + page_bytes as usize].fill(0xA5),
                    _ => {
                        let at = start + random.below(page_bytes - 512) as usize;
                        bytes[at..at + 512].fill(0);
                    }
                }
            }
            if round % 4 == 3 {
                let cut = random.below(pages_in_all);
                bytes.truncate((cut * page_bytes + random.below(page_bytes)) as usize);
                pages.extend(cut..pages_in_all);
            }
            let sound = rows_off(&bank, &of_rows, &pages);
            rows_wanted += sound.values().map(|rows| rows.len()).sum::<usize>();
            fs::write(&segment, &bytes).unwrap();
            let (report, found) = salvaged(bank.path());
            let what = format!("{rows} rows, round {round}, pages {pages:?}");
            assert_holds(&found, &sound, &what);
            for (name, found) in &found {
                let table = report.tables.iter().find(|table| &table.name == name).unwrap();
                let expected = &bank.rows[1][name];
                let other = found.iter().filter(|(key, row)| expected.get(key) != Some(row));
                assert!(other.count() as u64 <= table.uncertain, "{what}: {name}");
                assert_eq!(table.expected, Some(expected.len() as u64));
            }
            fs::write(&segment, &good).unwrap();
        }
        assert!(rows_wanted > 0);
    }
}

/// Regression test: salvage gave smaller numbers to tables after a dropped table. Their expiry
/// times, which the bank keeps by table number, then applied to other tables.
#[test]
fn tables_keep_their_numbers() {
    let (dir, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(dir.path(), &options(4 << 20)).unwrap();
    let dropped = store.create_table("dropped", 8, b"").unwrap();
    store.create_table("fixed", 8, b"").unwrap();
    store.create_variable_table("words", 80, b"").unwrap();
    store.drop_table(dropped).unwrap();
    store.checkpoint(b"").unwrap();
    let numbers = |store: &Store| -> BTreeMap<String, u16> {
        store.tables().into_iter().map(|table| (table.name, table.id.number())).collect()
    };
    let before = numbers(&store);
    drop(store);
    salvage(dir.path(), new.path(), &MEMORY, &mut |_| {}).unwrap();
    let store = Store::open(new.path(), &options(4 << 20)).unwrap();
    assert_eq!(numbers(&store), before);
}
