//! Tests deltas between checkpoints. A delta changes a copy of the bank to exactly the later
//! checkpoint, or does not change the copy at all.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::reading::{by_hand, keys, rows_of, scanned};
use crate::common::{PutEach, Random, peek, put, value};
use embank_kv::inspect::{VerifyOptions, summary, verify};
use embank_kv::{Clock, Delta, Error, Result, Store, StoreOptions, TableId};

const SEGMENT: u64 = 64 << 10;
const BYTES: usize = 120;

fn options(checkpoints_kept: usize) -> StoreOptions {
    StoreOptions {
        page_size_bytes: Some(8 << 10),
        segment_size_bytes: Some(SEGMENT),
        ..by_hand(checkpoints_kept)
    }
}

fn export(bank: &Path, from: u64, to: Option<u64>, file: &Path) -> Result<Delta> {
    let mut last = None;
    let made = Store::export_delta(bank, from, to, file, &mut |progress| {
        assert!(progress.done_bytes <= progress.total_bytes);
        last = Some(progress);
    })?;
    if let Some(last) = last {
        assert_eq!((last.done_bytes, last.total_bytes), (made.log_bytes, made.log_bytes));
    }
    assert_eq!(made.file_bytes, fs::metadata(file).unwrap().len());
    Ok(made)
}

fn apply(bank: &Path, file: &Path) -> Result<Delta> {
    Store::apply_delta(bank, file, 2, &mut |_| ())
}

/// The content of the newest checkpoint: the rows of each table, and the blob.
type Content = (BTreeMap<String, BTreeMap<u64, Vec<u8>>>, Vec<u8>);

fn content(dir: &Path) -> Content {
    let store = Store::open_read_only(dir, &options(2), None).unwrap();
    let tables = store.tables();
    let rows = tables.iter().map(|table| (table.name.clone(), scanned(&store, table.id)));
    (rows.collect(), store.reading().unwrap().blob.clone())
}

fn is_whole(dir: &Path) {
    let report = verify(dir, &VerifyOptions::default(), &mut |_| ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

/// A bank with a table of `rows` rows and a checkpoint of version 1, and a copy of the bank.
struct Pair {
    dir: tempfile::TempDir,
    bank: PathBuf,
    copy: PathBuf,
    store: Store,
    table: TableId,
    rows: u64,
}

impl Pair {
    fn new(rows: u64, checkpoints_kept: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (bank, copy) = (dir.path().join("bank"), dir.path().join("copy"));
        let store = Store::open(&bank, &options(checkpoints_kept)).unwrap();
        let table = store.create_table("rows", BYTES as u32, b"settings").unwrap();
        let pair = Pair { dir, bank, copy, store, table, rows };
        pair.checkpoint(1);
        Store::copy_checkpoint(&pair.bank, None, &pair.copy).unwrap();
        pair
    }

    fn checkpoint(&self, version: u64) {
        put(&self.store, self.table, &keys(self.rows), version, BYTES);
        self.store.checkpoint(&version.to_le_bytes()).unwrap();
    }

    fn delta(&self, from: u64, to: u64) -> PathBuf {
        let file = self.dir.path().join(format!("{from}-to-{to}"));
        export(&self.bank, from, Some(to), &file).unwrap();
        file
    }

    /// Asserts that the copy's rows and blob have `version`.
    fn copy_is_at(&self, version: u64) {
        let (rows, blob) = content(&self.copy);
        assert_eq!(blob, version.to_le_bytes());
        let expected = rows_of(&keys(self.rows), version, BYTES);
        assert_eq!(rows["rows"].values().cloned().map(Some).collect::<Vec<_>>(), expected);
        is_whole(&self.copy);
    }
}

/// The bank's changes cover rows of fixed and of variable width, deletions, new and dropped tables,
/// and compaction. Some deltas cover several checkpoints.
#[test]
fn deltas_in_order_make_the_same_checkpoints() {
    const STEPS: u64 = 40;
    let mut random = Random::new();
    let dir = tempfile::tempdir().unwrap();
    let (bank, copy) = (dir.path().join("bank"), dir.path().join("copy"));
    let store = Store::open(&bank, &options(64)).unwrap();
    let rows = store.create_table("rows", BYTES as u32, b"").unwrap();
    let words = store.create_variable_table("words", 300, b"").unwrap();
    let mut passing = None;
    let (mut at, mut small, mut freed) = (0, 0, 0);
    for step in 1..=STEPS {
        for _ in 0..random.below(4) {
            let from = random.below(6_000);
            let some: Vec<u64> =
                (from..from + random.below(if step < 20 { 3_000 } else { 60 })).collect();
            match random.below(4) {
                0 => {
                    store.delete(rows, &some).unwrap();
                }
                1 => {
                    let values: Vec<_> = some
                        .iter()
                        .map(|&key| value(key, step, (key * step) as usize % 301))
                        .collect();
                    store.execute(words, &some, Clock::Keep, &mut PutEach(&values)).unwrap();
                }
                _ => {
                    put(&store, rows, &some, step, BYTES);
                }
            }
        }
        if step % 9 == 4 || random.below(9) == 0 {
            store.compact().unwrap();
        }
        if step % 7 == 3 {
            let table = store.create_table("passing", 8, b"").unwrap();
            put(&store, table, &keys(100), step, 8);
            passing = Some(table);
        } else if step % 7 == 5 {
            store.drop_table(passing.unwrap()).unwrap();
        }
        let number = store.checkpoint(&value(0, step, random.below(200_000) as usize)).unwrap();
        if at == 0 {
            Store::copy_checkpoint(&bank, None, &copy).unwrap();
            at = number;
        }
        if (random.below(3) > 0 || step == STEPS) && at < number {
            let file = dir.path().join(format!("{at}-to-{number}"));
            let made = export(&bank, at, None, &file).unwrap();
            assert_eq!((made.from, made.to), (at, number));
            assert_eq!(apply(&copy, &file).unwrap(), made);
            let names =
                fs::read_dir(copy.join(format!("checkpoints/{number:010}"))).unwrap().count();
            small += usize::from(names > 3);
            assert!(content(&copy) == content(&bank), "after checkpoint {number}");
            is_whole(&copy);
            at = number;
            let copied = summary(&copy).unwrap().checkpoints;
            assert!(copied.len() <= 2);
            freed = freed.max(copied[0].log_begin);
        }
    }
    assert!(small > 3, "images that add to others: {small}");
    assert!(freed > 2 * SEGMENT, "the log's begin has moved: {freed}");
    assert!(!copy.join("log/0000000000000000.seg").exists(), "space came back");
    // Both the bank and the copy must still accept writes.
    let store_of_copy = Store::open(&copy, &options(2)).unwrap();
    for store in [&store, &store_of_copy] {
        put(store, rows, &keys(5_000), 99, BYTES);
        store.checkpoint(b"on").unwrap();
    }
    drop((store, store_of_copy));
    assert!(content(&copy) == content(&bank));
    is_whole(&copy);
}

#[test]
fn only_the_delta_that_follows_is_taken() {
    let pair = Pair::new(500, 8);
    for version in 2..=4 {
        pair.checkpoint(version);
    }
    let [to_2, to_3, to_4] = [2, 3, 4].map(|to| pair.delta(to - 1, to));
    let refused = |file: &Path| match apply(&pair.copy, file).unwrap_err() {
        Error::DeltaMismatch { path, what } if path == file => what,
        other => panic!("{other}"),
    };
    assert!(
        refused(&to_3)
            .contains("follows checkpoint 2, and the bank is at 1: apply those in between")
    );
    pair.copy_is_at(1);
    apply(&pair.copy, &to_2).unwrap();
    assert!(refused(&to_2).contains("is at checkpoint 2, to which it leads, already"));
    assert!(refused(&to_4).contains("apply those in between"));
    apply(&pair.copy, &to_3).unwrap();
    assert!(refused(&to_2).contains("follows checkpoint 1, and the bank is at 3"));
    pair.copy_is_at(3);
    // A delta of another bank is refused.
    let other = Pair::new(10, 8);
    for version in 2..=4 {
        other.checkpoint(version);
    }
    assert!(refused(&other.delta(3, 4)).contains("is of bank"));
    // The copy is opened for writing and takes its own checkpoint 4. A delta from the bank's
    // checkpoint 4 must then be refused.
    let copied = Store::open(&pair.copy, &options(2)).unwrap();
    let locked = apply(&pair.copy, &to_4).unwrap_err();
    assert!(matches!(locked, Error::Locked { .. }), "{locked}");
    assert_eq!(copied.checkpoint(b"mine").unwrap(), 4);
    drop(copied);
    pair.checkpoint(5);
    assert!(refused(&pair.delta(4, 5)).contains("of another lineage"));
    // After a roll back to checkpoint 3, which bank and copy share, the delta to checkpoint 4 can
    // be applied.
    Store::roll_back(&pair.copy, 3).unwrap();
    apply(&pair.copy, &to_4).unwrap();
    pair.copy_is_at(4);
}

#[test]
fn a_bank_that_was_rolled_back_is_of_another_lineage() {
    let pair = Pair::new(500, 8);
    pair.checkpoint(2);
    apply(&pair.copy, &pair.delta(1, 2)).unwrap();
    let Pair { dir, bank, copy, store, .. } = pair;
    drop(store);
    Store::roll_back(&bank, 1).unwrap();
    let store = Store::open(&bank, &options(8)).unwrap();
    for number in 2..=3 {
        assert_eq!(store.checkpoint(b"anew").unwrap(), number);
    }
    let file = dir.path().join("2-to-3 anew");
    export(&bank, 2, None, &file).unwrap();
    let error = apply(&copy, &file).unwrap_err().to_string();
    assert!(error.contains("of another lineage") && error.contains("make a new copy"), "{error}");
    assert_eq!(content(&copy).1, 2_u64.to_le_bytes());
}

/// With each kind of damage, the delta is refused and the copy stays unchanged. It then accepts the
/// undamaged delta.
#[test]
fn a_damaged_delta_is_an_error_and_changes_nothing() {
    let mut random = Random::new();
    let pair = Pair::new(300, 8);
    pair.checkpoint(2);
    let good = pair.delta(1, 2);
    let bytes = fs::read(&good).unwrap();
    let bad = pair.dir.path().join("bad");
    for case in 0..150 {
        let at = match case {
            0..40 => case,
            _ => random.below(bytes.len() as u64) as usize,
        };
        let mut damaged = bytes.clone();
        match case % 3 {
            0 => damaged.truncate(at),
            1 => damaged.push(7),
            _ => damaged[at] ^= 1 << random.below(8),
        }
        fs::write(&bad, damaged).unwrap();
        let error = apply(&pair.copy, &bad).unwrap_err();
        let named = matches!(&error, Error::Damaged { path, .. } | Error::Truncated { path, .. } if *path == bad);
        assert!(named, "case {case} at {at}: {error}");
        assert_eq!(summary(&pair.copy).unwrap().checkpoints.len(), 1);
    }
    pair.copy_is_at(1);
    apply(&pair.copy, &good).unwrap();
    pair.copy_is_at(2);
}

#[test]
fn what_can_not_be_exported_is_refused_and_leaves_no_file() {
    let pair = Pair::new(2_000, 2);
    pair.checkpoint(2);
    let file = pair.dir.path().join("delta");
    let refused = |from, to| export(&pair.bank, from, to, &file).unwrap_err().to_string();
    let refused_as =
        |bank: &Path, file: &Path| export(bank, 1, None, file).unwrap_err().to_string();
    assert!(refused(2, None).contains("checkpoint 2 does not come after 2"));
    assert!(refused(2, Some(1)).contains("checkpoint 1 does not come after 2"));
    assert!(refused(7, None).contains("those that are kept are [1, 2]"));
    // An export checks the log that it writes into the delta.
    let segment = pair.bank.join(format!("log/{:016x}.seg", 6 * SEGMENT));
    let whole = fs::read(&segment).unwrap();
    let mut bytes = whole.clone();
    bytes[777] ^= 4;
    fs::write(&segment, bytes).unwrap();
    let error = export(&pair.bank, 1, None, &file).unwrap_err();
    assert!(matches!(&error, Error::Damaged { path, .. } if *path == segment), "{error}");
    let mut left: Vec<_> =
        fs::read_dir(pair.dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["bank", "copy"]);
    fs::write(&segment, whole).unwrap();
    assert!(refused_as(&pair.bank, Path::new("/")).contains("is there already"));
    assert!(refused_as(&pair.bank, &pair.dir.path().join("..")).contains("is there already"));
    export(&pair.bank, 1, None, &file).unwrap();
    assert!(refused(1, None).contains("is there already"));
    assert!(matches!(apply(pair.dir.path(), &file), Err(Error::NotABank { .. })));
    let none = Store::apply_delta(&pair.copy, &file, 0, &mut |_| ()).unwrap_err();
    assert!(none.to_string().contains("checkpoints_kept"), "{none}");
    let empty = pair.dir.path().join("empty");
    drop(Store::open(&empty, &options(2)).unwrap());
    assert!(apply(&empty, &file).unwrap_err().to_string().contains("has no checkpoint"));
}

/// Simulates serving: another process trains, and deltas arrive. A reader of the copy keeps its
/// checkpoint until it refreshes.
#[test]
fn readers_of_the_copy_move_on_when_they_want() {
    let pair = Pair::new(3_000, 8);
    let reader = Store::open_read_only(&pair.copy, &options(2), None).unwrap();
    let all = keys(pair.rows);
    for version in 2..=6 {
        pair.store.compact().unwrap();
        pair.checkpoint(version);
        apply(&pair.copy, &pair.delta(version - 1, version)).unwrap();
        let before = peek(&reader, pair.table, &all).unwrap();
        assert_eq!(before, rows_of(&all, version - 1, BYTES));
        assert_eq!(reader.refresh().unwrap(), version);
        assert_eq!(peek(&reader, pair.table, &all).unwrap(), rows_of(&all, version, BYTES));
    }
    drop(reader);
    pair.copy_is_at(6);
}
