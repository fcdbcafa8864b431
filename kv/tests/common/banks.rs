//! Makes closed banks with all kinds of content, and remembers that content. The tests read or
//! damage the files of these banks.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use embank_kv::{CompactionOptions, Store, StoreOptions, TableId};

use super::{PutEach, Random, put, value};

/// The values of rows, by table name and key.
pub(crate) type Rows = BTreeMap<String, BTreeMap<u64, Vec<u8>>>;

/// A closed bank with two checkpoints. It has tables of fixed and of variable width, a dropped
/// table, deleted rows, and rows that share chains.
pub(crate) struct ClosedBank {
    pub(crate) dir: tempfile::TempDir,
    /// The rows of checkpoints 1 and 2.
    pub(crate) rows: [Rows; 2],
    /// Keys that were deleted before the newest checkpoint.
    pub(crate) deleted: BTreeMap<String, BTreeSet<u64>>,
}

pub(crate) const BLOBS: [&[u8]; 2] =
    [b"the step before", b"the step, and what else the caller keeps"];

impl ClosedBank {
    /// Makes a bank with `rows` rows in each table. With a budget of 256 KiB and about 5,000 rows
    /// or more, rows share chains.
    pub(crate) fn new(random: &mut Random, rows: u64, budget_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            memory_budget_bytes: budget_bytes,
            compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
            ..StoreOptions::default()
        };
        let store = Store::open(dir.path(), &options).unwrap();
        let mut model = Rows::new();
        let fixed = [("small", 8), ("vectors", 96)];
        let fixed = fixed.map(|(name, bytes)| {
            model.insert(name.into(), BTreeMap::new());
            (name, store.create_table(name, bytes, b"settings").unwrap(), bytes as usize)
        });
        let dropped = store.create_table("dropped", 24, b"").unwrap();
        let words = store.create_variable_table("words", 200, b"").unwrap();
        model.insert("words".into(), BTreeMap::new());
        let mut deleted: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        let mut held = Vec::new();
        for (turn, blob) in BLOBS.into_iter().enumerate() {
            for round in 0..3 {
                let version = turn as u64 * 10 + round;
                let keys = |random: &mut Random| -> Vec<u64> {
                    let some: BTreeSet<u64> = (0..rows).map(|_| random.below(rows)).collect();
                    some.into_iter().collect()
                };
                for (name, table, bytes) in fixed {
                    let some = keys(random);
                    put(&store, table, &some, version, bytes);
                    let model = model.get_mut(name).unwrap();
                    model.extend(some.iter().map(|&key| (key, value(key, version, bytes))));
                    let gone = deleted.entry(name.into()).or_default();
                    some.iter().for_each(|key| _ = gone.remove(key));
                }
                let some = keys(random);
                let values: Vec<_> =
                    some.iter().map(|&key| value(key, version, (key * 7 % 201) as usize)).collect();
                put_each(&store, words, &some, &values);
                model.get_mut("words").unwrap().extend(some.iter().copied().zip(values));
                let gone = deleted.entry("words".into()).or_default();
                some.iter().for_each(|key| _ = gone.remove(key));
                if turn == 0 {
                    put(&store, dropped, &some, version, 24);
                }
                for (name, table) in
                    [(fixed[0].0, fixed[0].1), (fixed[1].0, fixed[1].1), ("words", words)]
                {
                    let doomed: Vec<u64> = (0..rows / 16).map(|_| random.below(rows)).collect();
                    store.delete(table, &doomed).unwrap();
                    for key in doomed {
                        if model.get_mut(name).unwrap().remove(&key).is_some() {
                            deleted.get_mut(name).unwrap().insert(key);
                        }
                    }
                }
            }
            if turn == 0 {
                model.insert("dropped".into(), dropped_rows(&store, dropped, rows));
            } else {
                store.drop_table(dropped).unwrap();
                model.remove("dropped");
            }
            store.checkpoint(blob).unwrap();
            held.push(model.clone());
        }
        drop(store);
        let rows = held.try_into().unwrap();
        ClosedBank { dir, rows, deleted }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns each file of the bank once, even if it has several names. The log's last segment
    /// comes last.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![self.path().join("BANK")];
        for folder in ["checkpoints/0000000002", "checkpoints/0000000001", "log"] {
            let entries = std::fs::read_dir(self.path().join(folder)).unwrap();
            let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            found.sort();
            files.extend(found);
        }
        let mut seen = BTreeSet::new();
        files.retain(|file| seen.insert(std::fs::metadata(file).unwrap().ino()));
        files
    }
}

fn put_each(store: &Store, table: TableId, keys: &[u64], values: &[Vec<u8>]) {
    use embank_kv::Clock;
    store.execute(table, keys, Clock::Keep, &mut PutEach(values)).unwrap();
}

fn dropped_rows(store: &Store, table: TableId, rows: u64) -> BTreeMap<u64, Vec<u8>> {
    let keys: Vec<u64> = (0..rows).collect();
    let found = super::peek(store, table, &keys).unwrap();
    keys.into_iter().zip(found).filter_map(|(key, row)| Some((key, row?))).collect()
}
