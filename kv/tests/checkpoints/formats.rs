//! Tests that banks of all supported on-disk formats can be opened (see docs/testing.md,
//! "Formats").
//!
//! `fixtures/format-<n>` is a bank that a build with metadata format `n` wrote. Next to the bank, a
//! text for each checkpoint describes the content. `write_a_fixture` makes such a fixture.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{GetAll, GetEach, PutEach, options, peek, peek_each, put, rows, value};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{Clock, CompactionOptions, Store, StoreOptions, TableId, Width};

const BUDGET_BYTES: u64 = 256 << 10;
const KEYS: u64 = 40;
const WORDS_MAX: u32 = 90;

/// A table of a checkpoint: its width, its largest value length in bytes, its descriptor and its
/// rows.
type HeldTable = (Width, u32, Vec<u8>, BTreeMap<u64, Vec<u8>>);

/// The content of a checkpoint according to the fixture's text.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    blob: Vec<u8>,
    /// The tables by their names.
    tables: BTreeMap<String, HeldTable>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("x"), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let text = text.strip_prefix('x').unwrap();
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

impl Held {
    fn to_text(&self) -> String {
        let mut text = format!("blob {}\n", hex(&self.blob));
        for (name, (width, bytes, descriptor, rows)) in &self.tables {
            let width = if *width == Width::Fixed { "fixed" } else { "variable" };
            writeln!(text, "table {name} {width} {bytes} {}", hex(descriptor)).unwrap();
            for (key, value) in rows {
                writeln!(text, "{key} {}", hex(value)).unwrap();
            }
        }
        text
    }

    fn from_text(text: &str) -> Self {
        let (mut held, mut name) = (Held::default(), String::new());
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["blob", blob] => held.blob = unhex(blob),
                ["table", of, width, bytes, descriptor] => {
                    let width = if width == "fixed" { Width::Fixed } else { Width::Variable };
                    let table = (width, bytes.parse().unwrap(), unhex(descriptor), BTreeMap::new());
                    name = of.into();
                    held.tables.insert(name.clone(), table);
                }
                [key, value] => {
                    let (.., rows) = held.tables.get_mut(&name).unwrap();
                    rows.insert(key.parse().unwrap(), unhex(value));
                }
                _ => panic!("{line:?}"),
            }
        }
        held
    }

    /// Returns all keys in the tables, and some keys without rows.
    fn keys(&self) -> Vec<u64> {
        let known = self.tables.values().flat_map(|(.., rows)| rows.keys().copied());
        let mut keys: Vec<u64> = known.chain(0..KEYS + 20).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Asserts by peeks and scans that the store has exactly this content.
    fn compare(&self, store: &Store, blob: &[u8]) {
        assert_eq!(blob, self.blob);
        assert_eq!(store.tables().len(), self.tables.len());
        for table in store.tables() {
            let (width, bytes, descriptor, expected) = &self.tables[&table.name];
            assert_eq!((table.width, table.value_bytes), (*width, *bytes), "{}", table.name);
            assert_eq!(table.descriptor, *descriptor);
            let keys = self.keys();
            let found = match width {
                Width::Fixed => peek(store, table.id, &keys),
                Width::Variable => peek_each(store, table.id, &keys),
            };
            let found = keys.into_iter().zip(found.unwrap());
            let found: BTreeMap<_, _> = found.filter_map(|(key, row)| Some((key, row?))).collect();
            assert_eq!(found, *expected, "{}", table.name);
            assert_eq!(
                crate::common::reading::scanned(store, table.id),
                *expected,
                "{}",
                table.name
            );
        }
    }
}

fn by_hand() -> StoreOptions {
    StoreOptions {
        page_size_bytes: Some(8 << 10),
        compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
        ..options(BUDGET_BYTES)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Returns the metadata format that this build writes.
fn version() -> u32 {
    let frame = embank_kv::metadata::encode(&());
    u32::from_le_bytes(frame[8..12].try_into().unwrap())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else if entry.file_name() != "LOCK" {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Returns the folders of the fixtures, each with the content of its checkpoints.
fn fixtures() -> Vec<(PathBuf, BTreeMap<u64, Held>)> {
    let fixture = |folder: PathBuf| {
        let mut held = BTreeMap::new();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "txt") {
                let number = path.file_stem().unwrap().to_str().unwrap();
                let number = number.strip_prefix("checkpoint-").unwrap().parse().unwrap();
                held.insert(number, Held::from_text(&fs::read_to_string(&path).unwrap()));
            }
        }
        (folder, held)
    };
    fs::read_dir(folder()).unwrap().map(|entry| fixture(entry.unwrap().path())).collect()
}

#[test]
fn the_format_of_this_build_has_a_fixture() {
    let there = folder().join(format!("format-{}/bank/BANK", version()));
    assert!(
        there.exists(),
        "the metadata format is {} now: write a fixture of it (docs/testing.md, \"Formats\")",
        version()
    );
}

#[test]
fn every_checkpoint_of_every_fixture_is_as_it_was() {
    for (folder, held) in fixtures() {
        let dir = tempfile::tempdir().unwrap();
        copy(&folder.join("bank"), dir.path());
        let report = verify(dir.path(), &VerifyOptions::default(), &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{}: {:?}", folder.display(), report.damage);
        let numbers: Vec<u64> = report.checkpoints.iter().map(|found| found.number).collect();
        assert_eq!(numbers, held.keys().copied().collect::<Vec<_>>());
        for (&number, held) in &held {
            let store = Store::open_read_only(dir.path(), &by_hand(), Some(number)).unwrap();
            held.compare(&store, &store.reading().unwrap().blob);
        }
    }
}

#[test]
fn a_bank_of_every_fixture_goes_on() {
    for (folder, mut held) in fixtures() {
        let dir = tempfile::tempdir().unwrap();
        copy(&folder.join("bank"), dir.path());
        let (_, mut held) = held.pop_last().unwrap();
        let store = Store::open(dir.path(), &by_hand()).unwrap();
        held.compare(&store, &store.recovered().unwrap().blob);
        for table in store.tables() {
            let (.., expected) = held.tables.get_mut(&table.name).unwrap();
            let keys: Vec<u64> = expected.keys().copied().collect();
            // The gets move all rows to memory. Then some rows are deleted, changed and inserted.
            let mut values = vec![Vec::new(); keys.len()];
            let outcome = match table.width {
                Width::Fixed => {
                    store.execute(table.id, &keys, Clock::Keep, &mut GetAll(&mut values))
                }
                Width::Variable => {
                    store.execute(table.id, &keys, Clock::Keep, &mut GetEach(&mut values))
                }
            };
            let found = rows(values, &outcome.unwrap());
            assert!(
                found.iter().zip(expected.values()).all(|(row, value)| row.as_ref() == Some(value))
            );
            assert_eq!(store.delete(table.id, &keys[..5]).unwrap(), 5);
            keys[..5].iter().for_each(|key| _ = expected.remove(key));
            let new: Vec<u64> = keys[5..10].iter().copied().chain(KEYS + 10..KEYS + 15).collect();
            expected.extend(write(&store, table.id, table.width, table.value_bytes, &new, 9));
        }
        store.compact().unwrap();
        held.blob = b"and on".to_vec();
        let number = store.checkpoint(&held.blob).unwrap();
        held.compare(&store, &held.blob);
        drop(store);
        let store = Store::open(dir.path(), &by_hand()).unwrap();
        assert_eq!(store.recovered().unwrap().checkpoint, number);
        held.compare(&store, &store.recovered().unwrap().blob);
        drop(store);
        let report = verify(dir.path(), &VerifyOptions::default(), &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{}: {:?}", folder.display(), report.damage);
    }
}

/// Puts rows and returns their keys and values.
fn write(
    store: &Store,
    table: TableId,
    width: Width,
    bytes: u32,
    keys: &[u64],
    version: u64,
) -> Vec<(u64, Vec<u8>)> {
    match width {
        Width::Fixed => {
            put(store, table, keys, version, bytes as usize);
            keys.iter().map(|&key| (key, value(key, version, bytes as usize))).collect()
        }
        Width::Variable => {
            let length =
                |key: u64| (key.wrapping_mul(7 + version) % (u64::from(bytes) + 1)) as usize;
            let values: Vec<_> = keys.iter().map(|&key| value(key, version, length(key))).collect();
            store.execute(table, keys, Clock::Keep, &mut PutEach(&values)).unwrap();
            keys.iter().copied().zip(values).collect()
        }
    }
}

/// Returns two keys of table 1 whose hashes have the same bucket and tag. Their records therefore
/// share a chain.
fn colliding_keys() -> [u64; 2] {
    // The hash function of docs/format.md, "Images of the index".
    let hash = |key: u64| {
        let x = key ^ 0x9E37_79B9_7F4A_7C15;
        let x = (x ^ (x >> 27)).wrapping_mul(0x3C79_AC49_2BA7_B653);
        let x = (x ^ (x >> 33)).wrapping_mul(0x1C69_B3F7_4AC4_AE35);
        x ^ (x >> 27)
    };
    let mut seen = HashMap::new();
    for key in 1000.. {
        if let Some(other) = seen.insert(hash(key) & 0xFF_FFFF, key) {
            return [other, key];
        }
    }
    unreachable!("there are 2^24 of these")
}

/// Writes a bank that uses every part of the present format: tables of fixed and of variable width,
/// a dropped table, changed and deleted rows, rows that share a chain, and a compacted log. Its
/// index consists of a whole image and two deltas.
#[test]
#[ignore = "writes files: run it when the format has changed"]
fn write_a_fixture() {
    let fixture = folder().join(format!("format-{}", version()));
    assert!(!fixture.exists(), "{} is there: a fixture never changes", fixture.display());
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &by_hand()).unwrap();
    let small = store.create_table("small", 12, b"settings").unwrap();
    let words = store.create_variable_table("words", WORDS_MAX, b"").unwrap();
    let gone = store.create_table("gone", 500, b"not long").unwrap();
    let late = store.create_table("late", 64, &[0, 255, 7]).unwrap();
    let tables = [("small", small), ("words", words), ("late", late)];
    let mut held = Held::default();
    for info in store.tables().into_iter().filter(|info| info.id != gone) {
        let table = (info.width, info.value_bytes, info.descriptor, BTreeMap::new());
        held.tables.insert(info.name, table);
    }
    let all: Vec<u64> = (0..KEYS).collect();
    let mut texts = BTreeMap::new();
    for version in 1..=4 {
        if version == 1 {
            put(&store, gone, &all, 1, 500);
        }
        for (name, id) in tables {
            let (width, bytes, _, rows) = held.tables.get_mut(name).unwrap();
            // Versions 1 and 2 change all rows; later versions change a few.
            let few = [version, version + 5, KEYS + version];
            let mut keys = if version <= 2 { all.clone() } else { few.to_vec() };
            if name == "small" && version != 2 {
                keys.extend(colliding_keys());
            }
            rows.extend(write(&store, id, *width, *bytes, &keys, version));
            let doomed = [3 * version, 3 * version + 1];
            store.delete(id, &doomed).unwrap();
            doomed.iter().for_each(|key| _ = rows.remove(key));
        }
        if version == 2 {
            store.drop_table(gone).unwrap();
            // Compaction moves the rows on disk to the tail. The log then begins at a higher
            // address.
            store.compact().unwrap();
        }
        held.blob = format!("step {version}").into_bytes();
        let number = store.checkpoint(&held.blob).unwrap();
        texts.insert(number, held.to_text());
    }
    drop(store);
    let summary = embank_kv::inspect::summary(dir.path()).unwrap();
    assert!(summary.checkpoints.iter().all(|checkpoint| checkpoint.log_begin > 0));
    let newest = dir.path().join("checkpoints/0000000004");
    let images = [2, 3, 4].map(|image| newest.join(format!("index.{image:010}")));
    assert!(images.iter().all(|image| image.exists()), "{:?}", fs::read_dir(newest));
    copy(dir.path(), &fixture.join("bank"));
    for checkpoint in &summary.checkpoints {
        let text = &texts[&checkpoint.number];
        let name = format!("checkpoint-{:010}.txt", checkpoint.number);
        fs::write(fixture.join(name), text).unwrap();
    }
}
