//! Edits the files of a small bank and uses the bank. An input either leaves the checksums as they
//! were, or corrects them after the edits. The store must not panic, hang or exceed its memory
//! budget. With uncorrected checksums, the store must not return a wrong row.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use arbitrary::Arbitrary;
use embank_kv::device::{self, DeviceOptions};
use embank_kv::inspect::{SalvageOptions, TableReader, VerifyOptions, salvage, summary, verify};
use embank_kv::{Clock, CompactionOptions, DeviceChoice, Error, Store, StoreOptions, Width};

use super::rows::{get, peek, put, value};
use super::seals;

const PAGE_BYTES: usize = 8 << 10;
const BUDGET_BYTES: u64 = 256 << 10;
pub(super) const EDITS_MAX: usize = 6;
const BLOB: &[u8] = b"the caller's own";

/// An edit of one file. Offsets are taken modulo the file's length.
#[derive(Debug, Arbitrary)]
pub enum Edit {
    Flip { file: u8, at: u16, by: u8 },
    Cut { file: u8, at: u16 },
    Copy { file: u8, from: u16, to: u16, bytes: u8 },
    Zero { file: u8, at: u16, bytes: u8 },
    Byte { file: u8, at: u16, value: u8 },
    Word { file: u8, at: u16, value: u64 },
    Insert { file: u8, at: u16, bytes: [u8; 4] },
    Remove { file: u8, at: u16, bytes: u8 },
    Append { file: u8, bytes: [u8; 4] },
    Lose { file: u8 },
}

/// What the target does with the edited bank. One input does one thing only, because each thing
/// takes milliseconds.
#[derive(Debug, Arbitrary)]
enum Then {
    Look,
    Salvage,
    Read,
    Work,
    GoBack,
}

/// The input of the fuzz target: the edits, and the use of the edited bank.
#[derive(Debug, Arbitrary)]
pub struct Damage {
    /// True if the checksums are corrected after the edits.
    seal: bool,
    then: Then,
    edits: Vec<Edit>,
}

pub(super) type Rows = BTreeMap<u64, Vec<u8>>;

/// The files of a closed bank, and the rows of its newest checkpoint.
pub struct Bank {
    files: BTreeMap<PathBuf, Vec<u8>>,
    pub(super) tables: BTreeMap<String, (Width, Rows)>,
    id: u64,
    /// The files of a copy of the bank at checkpoint 1. `tables_before` is the copy's content, and
    /// applying `delta` to the copy gives checkpoint 2.
    pub(super) copy: BTreeMap<PathBuf, Vec<u8>>,
    pub(super) tables_before: BTreeMap<String, (Width, Rows)>,
    pub(super) delta: Vec<u8>,
}

fn options() -> StoreOptions {
    StoreOptions {
        memory_budget_bytes: BUDGET_BYTES,
        page_size_bytes: Some(PAGE_BYTES as u32),
        compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
        device: DeviceChoice::Threads,
        ..StoreOptions::default()
    }
}

pub(super) fn open(dir: &Path) -> embank_kv::Result<Store> {
    Store::open_on(dir, &options(), |segment_size_bytes| {
        let options = DeviceOptions { segment_size_bytes, threads: 0, ..DeviceOptions::default() };
        device::open(dir, DeviceChoice::Threads, &options)
    })
}

fn read_all(dir: &Path, below: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(dir.join(below)).expect("a directory") {
        let entry = entry.expect("an entry");
        let name = below.join(entry.file_name());
        if entry.path().is_dir() {
            read_all(dir, &name, files);
        } else {
            files.insert(name, fs::read(entry.path()).expect("a file"));
        }
    }
}

impl Bank {
    /// Makes a bank with two checkpoints. The second checkpoint has two index files. The bank has
    /// tables of fixed and of variable width, changed rows and deleted rows.
    pub fn new(folder: &Path) -> Self {
        let dir = tempfile::tempdir_in(folder).expect("a directory");
        let store = open(dir.path()).expect("a new bank");
        let made = [
            ("rows", store.create_table("rows", 24, b"settings"), Width::Fixed),
            ("words", store.create_variable_table("words", 90, b""), Width::Variable),
            ("gone", store.create_table("gone", 16, b""), Width::Fixed),
        ];
        let made = made.map(|(name, id, width)| (name, id.expect("a table"), width));
        let bytes = |name: &str, key: u64| match name {
            "rows" => 24,
            "words" => (key * 7 % 91) as usize,
            _ => 16,
        };
        let mut tables: BTreeMap<String, (Width, Rows)> = BTreeMap::new();
        let mut tables_before = BTreeMap::new();
        for (version, range) in [(1, 0..60), (2, 55..65)] {
            for &(name, id, width) in &made {
                if version == 2 && name == "gone" {
                    continue;
                }
                let keys: Vec<u64> = range.clone().collect();
                let values = keys.iter().map(|&key| value(key, version, bytes(name, key)));
                let values: Vec<_> = values.collect();
                put(&store, (id, width), &keys, &values).expect("put");
                let (_, rows) = tables.entry(name.into()).or_insert((width, Rows::new()));
                rows.extend(keys.into_iter().zip(values));
                store.delete(id, &[version, version + 10]).expect("delete");
                rows.retain(|&key, _| key != version && key != version + 10);
            }
            if version == 2 {
                store.drop_table(made[2].1).expect("drop");
                tables.remove("gone");
            }
            store.checkpoint(BLOB).expect("checkpoint");
            if version == 1 {
                tables_before = tables.clone();
            }
        }
        drop(store);
        let beside = tempfile::tempdir_in(folder).expect("a directory");
        let (to, file) = (beside.path().join("copy"), beside.path().join("delta"));
        Store::copy_checkpoint(dir.path(), Some(1), &to).expect("a copy");
        Store::export_delta(dir.path(), 1, None, &file, &mut |_| {}).expect("a delta");
        let (mut files, mut copy) = (BTreeMap::new(), BTreeMap::new());
        read_all(dir.path(), Path::new(""), &mut files);
        read_all(&to, Path::new(""), &mut copy);
        files.retain(|name, _| !name.ends_with("LOCK"));
        copy.retain(|name, _| !name.ends_with("LOCK"));
        let id = &files[Path::new("log/0000000000000000.seg")][16..24];
        let id = u64::from_le_bytes(id.try_into().expect("eight bytes"));
        let delta = fs::read(&file).expect("a file");
        Bank { files, tables, id, copy, tables_before, delta }
    }

    fn name(&self, file: u8) -> PathBuf {
        let i = usize::from(file) % self.files.len();
        self.files.keys().nth(i).expect("one of them").clone()
    }

    /// Returns the bank's files after the edits.
    fn edited(&self, damage: &Damage) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = self.files.clone();
        for edit in damage.edits.iter().take(EDITS_MAX) {
            let (Edit::Flip { file, .. }
            | Edit::Cut { file, .. }
            | Edit::Copy { file, .. }
            | Edit::Zero { file, .. }
            | Edit::Byte { file, .. }
            | Edit::Word { file, .. }
            | Edit::Insert { file, .. }
            | Edit::Remove { file, .. }
            | Edit::Append { file, .. }
            | Edit::Lose { file }) = *edit;
            let name = self.name(file);
            if matches!(edit, Edit::Lose { .. }) {
                files.remove(&name);
            } else if let Some(bytes) = files.get_mut(&name) {
                change(bytes, edit);
                if damage.seal {
                    seal(&name, bytes, self.id);
                }
            }
        }
        files
    }
}

pub(super) fn change(bytes: &mut Vec<u8>, edit: &Edit) {
    let length = bytes.len();
    if length == 0 {
        return;
    }
    let place = |at: u16| usize::from(at) % length;
    match *edit {
        Edit::Flip { at, by, .. } => bytes[place(at)] ^= by,
        Edit::Cut { at, .. } => bytes.truncate(place(at)),
        Edit::Copy { from, to, bytes: count, .. } => {
            let (from, to) = (place(from), place(to));
            let count = usize::from(count).min(length - from).min(length - to);
            bytes.copy_within(from..from + count, to);
        }
        Edit::Zero { at, bytes: count, .. } => {
            let end = length.min(place(at) + usize::from(count));
            bytes[place(at)..end].fill(0);
        }
        Edit::Byte { at, value, .. } => bytes[place(at)] = value,
        Edit::Word { at, value, .. } => {
            let end = length.min(place(at) + 8);
            bytes[place(at)..end].copy_from_slice(&value.to_le_bytes()[..end - place(at)]);
        }
        Edit::Insert { at, bytes: new, .. } => _ = bytes.splice(place(at)..place(at), new),
        Edit::Remove { at, bytes: count, .. } => {
            let end = length.min(place(at) + usize::from(count));
            bytes.drain(place(at)..end);
        }
        Edit::Append { bytes: new, .. } => bytes.extend(new),
        Edit::Lose { .. } => {}
    }
}

fn seal(name: &Path, bytes: &mut [u8], bank: u64) {
    let is =
        |what: &str| name.file_name().is_some_and(|name| name.to_string_lossy().starts_with(what));
    if is("manifest") || is("BANK") {
        seals::metadata(bytes);
    } else if is("index") || is("blob") {
        seals::stream(bytes);
    } else {
        for (i, page) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
            seals::page(page, bank, (i * PAGE_BYTES) as u64);
        }
    }
}

pub(super) fn write(files: &BTreeMap<PathBuf, Vec<u8>>, dir: &Path) {
    for (name, bytes) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::write(path, bytes).expect("a file");
    }
}

fn refused<T>(result: embank_kv::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        // The machine failed, so the test can't tell how the store handles the edits.
        Err(Error::Io { source, .. }) if source.raw_os_error().is_some_and(|code| code != 2) => {
            panic!("{source}")
        }
        Err(_) => None,
    }
}

impl Bank {
    /// Asserts that the found rows of a table are right. Accepts any rows if the checksums were
    /// corrected.
    fn check(
        &self,
        damage: &Damage,
        name: &str,
        found: impl Iterator<Item = (u64, Option<Vec<u8>>)>,
    ) {
        if damage.seal {
            found.for_each(drop);
            return;
        }
        let (_, rows) = &self.tables[name];
        for (key, row) in found {
            assert_eq!(row.as_ref(), rows.get(&key), "key {key} of {name}");
        }
    }

    fn read(&self, damage: &Damage, store: &Store) {
        let keys: Vec<u64> = (0..70).collect();
        for table in store.tables() {
            let of = (table.id, table.width);
            for key in &keys {
                let found = refused(peek(store, of, &[*key]));
                self.check(
                    damage,
                    &table.name,
                    found.into_iter().map(|rows| (*key, rows[0].clone())),
                );
            }
            if let Some(rows) = refused(peek(store, of, &keys)) {
                self.check(damage, &table.name, keys.iter().copied().zip(rows));
            }
            if let Some(mut scan) = refused(store.scan(table.id)) {
                while let Some(Some(row)) = refused(scan.next_row()) {
                    let found = (row.key, Some(row.value.to_vec()));
                    self.check(damage, &table.name, [found].into_iter());
                }
            }
        }
    }

    /// Reads and changes rows of an open bank, and takes a checkpoint.
    fn work(&self, damage: &Damage, dir: &Path, store: Store) {
        self.read(damage, &store);
        let keys: Vec<u64> = (0..70).collect();
        for table in store.tables() {
            let of = (table.id, table.width);
            for key in &keys {
                let found = refused(get(&store, of, &[*key], Clock::Keep));
                self.check(
                    damage,
                    &table.name,
                    found.into_iter().map(|rows| (*key, rows[0].clone())),
                );
            }
            let bytes = if table.width == Width::Fixed { table.value_bytes as usize } else { 5 };
            let values = [vec![1; bytes], vec![2; bytes]];
            refused(put(&store, of, &[3, 200], &values));
            refused(store.delete(table.id, &[5, 6]));
        }
        refused(store.compact());
        if refused(store.checkpoint(b"after")).is_none() {
            return;
        }
        refused(store.compact());
        drop(store);
        refused(open(dir));
    }

    /// Edits a copy of the bank below `folder`, and uses the copy as `damage.then` says.
    pub fn run(&self, damage: &Damage, folder: &Path) {
        let files = self.edited(damage);
        let dir = tempfile::tempdir_in(folder).expect("a directory");
        let (bank, new) = (dir.path().join("bank"), dir.path().join("new"));
        fs::create_dir(&bank).expect("a directory");
        write(&files, &bank);
        match damage.then {
            Then::Look => self.look(damage, &bank),
            Then::Salvage => self.salvage(damage, &bank, &new),
            Then::Read => {
                let store = refused(Store::open_read_only(&bank, &options(), None));
                if let Some(store) =
                    store.filter(|store| store.reading().is_some_and(|at| at.checkpoint == 2))
                {
                    self.read(damage, &store);
                }
            }
            Then::Work => {
                let store = refused(open(&bank));
                if let Some(store) =
                    store.filter(|store| store.recovered().is_some_and(|at| at.checkpoint == 2))
                {
                    self.work(damage, &bank, store);
                }
            }
            Then::GoBack => {
                refused(Store::roll_back(&bank, 1));
                refused(open(&bank));
            }
        }
    }

    fn look(&self, damage: &Damage, bank: &Path) {
        refused(summary(bank));
        let report = refused(verify(bank, &VerifyOptions::default(), &mut |_| {}));
        if damage.edits.is_empty() {
            assert!(report.expect("nothing has changed").is_clean());
        }
        let keys = [7, 58, 1000];
        for name in self.tables.keys() {
            let Some(mut reader) = refused(TableReader::open(bank, None, name)) else { continue };
            let newest = reader.checkpoint() == 2;
            let mut found = Vec::new();
            refused(reader.for_each_row(&mut |key, value| {
                found.push((key, Some(value.to_vec())));
                true
            }));
            let values = refused(reader.get(&keys));
            if newest {
                self.check(damage, name, found.into_iter());
                let values = values.into_iter().flatten();
                self.check(damage, name, keys.into_iter().zip(values));
            }
        }
    }

    fn salvage(&self, damage: &Damage, bank: &Path, new: &Path) {
        let budget = SalvageOptions { memory_budget_bytes: Some(1 << 20) };
        if let Some(report) = refused(salvage(bank, new, &budget, &mut |_| {})) {
            let store = open(new).expect("a salvaged bank is whole");
            if report.is_complete() {
                self.read(damage, &store);
            }
        }
    }
}
