//! Runs a sequence of calls on a store, including reopenings and roll backs. After each read,
//! compares the store with a map.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use arbitrary::Arbitrary;
use embank_kv::device::{self, Device, DeviceOptions, MemoryDevice};
use embank_kv::inspect::{VerifyOptions, summary, verify};
use embank_kv::{
    Clock, CompactionOptions, DeviceChoice, Error, Store, StoreOptions, TableId, Width,
};

use super::rows::{add, get, peek, put, value};

/// Number of keys of a table.
const KEYS: u64 = 1000;
/// Largest value length of each table in bytes. The last table has variable width.
const VALUE_BYTES: [u32; 3] = [72, 1000, 201];
const NAMES: [&str; 3] = ["rows", "long rows", "words"];
const TABLES: usize = VALUE_BYTES.len();
const STEPS_MAX: usize = 60;
const READER_BUDGET_BYTES: u64 = 256 << 10;

/// The keys of a batch: `count` + 1 consecutive keys from number `first` on.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Span {
    table: u8,
    first: u16,
    count: u8,
}

/// A call on the store.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Step {
    Put(Span, u8),
    Add(Span),
    Get(Span),
    Lease(Span, Option<u8>),
    Peek(Span),
    Delete(Span),
    Promote(Span),
    Drop(u8),
    Compact,
    Checkpoint(u8),
    Reopen,
    RollBack(u8),
    Scan(u8),
    OpenReader(Option<u8>),
    Refresh,
    PeekReader(Span),
    ScanReader(u8),
    Verify,
}

/// The input of the fuzz target: options of the store, and the calls.
#[derive(Debug, Arbitrary)]
pub struct Life {
    /// True if the log is in memory. This is faster, but no reader can open the bank.
    in_memory: bool,
    large_budget: bool,
    checkpoints_kept: u8,
    steps: Vec<Step>,
}

type Rows = HashMap<(usize, u64), Vec<u8>>;

/// The content of a checkpoint.
#[derive(Clone)]
struct Held {
    rows: Rows,
    blob: Vec<u8>,
    tables: Vec<TableId>,
}

struct Pair<'a> {
    dir: &'a Path,
    options: StoreOptions,
    memory: Option<Arc<dyn Device>>,
    store: Option<Store>,
    reader: Option<(Store, u64)>,
    tables: Vec<TableId>,
    rows: Rows,
    held: BTreeMap<u64, Held>,
}

fn width(table: usize) -> Width {
    if table == TABLES - 1 { Width::Variable } else { Width::Fixed }
}

fn keys(span: Span) -> Vec<u64> {
    let first = u64::from(span.first);
    let key = |i: u64| ((first + i) % KEYS).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..u64::from(span.count) + 1).map(key).collect()
}

fn value_of(table: usize, key: u64, version: u8) -> Vec<u8> {
    let most = VALUE_BYTES[table] as usize;
    let bytes = match width(table) {
        Width::Fixed => most,
        Width::Variable => (key >> 30) as usize % (most + 1) * usize::from(version) / 255,
    };
    value(key, version.into(), bytes)
}

/// Returns the rows of a table, which it reads by a scan.
fn scanned(store: &Store, id: TableId, table: usize) -> Rows {
    let mut scan = store.scan(id).expect("a table that the checkpoint has");
    let (mut rows, mut count) = (Rows::new(), 0);
    while let Some(row) = scan.next_row().expect("a row") {
        assert_eq!(rows.insert((table, row.key), row.value.to_vec()), None, "each row once");
        count += 1;
    }
    assert_eq!(count, scan.rows());
    rows
}

fn of_table(rows: &Rows, table: usize) -> Rows {
    let rows = rows.iter().filter(|((of, _), _)| *of == table);
    rows.map(|(key, value)| (*key, value.clone())).collect()
}

impl Pair<'_> {
    fn store(&self) -> &Store {
        self.store.as_ref().expect("it is open between steps")
    }

    fn open(&mut self) {
        self.store = None;
        let (dir, memory) = (self.dir, &self.memory);
        let store = Store::open_on(dir, &self.options, |segment_size_bytes| match memory {
            Some(memory) => Ok(Arc::clone(memory)),
            None => {
                let options =
                    DeviceOptions { segment_size_bytes, threads: 0, ..DeviceOptions::default() };
                device::open(dir, DeviceChoice::Threads, &options)
            }
        });
        let store = store.expect("a whole bank opens");
        match self.held.last_key_value() {
            Some((number, held)) => {
                let recovered = store.recovered().expect("there is a checkpoint");
                assert_eq!((recovered.checkpoint, &recovered.blob), (*number, &held.blob));
                (self.rows, self.tables) = (held.rows.clone(), held.tables.clone());
            }
            None => {
                assert!(store.recovered().is_none());
                self.rows = Rows::new();
                self.tables = (0..TABLES).map(|table| create(&store, table)).collect();
            }
        }
        self.store = Some(store);
    }

    fn id(&self, table: usize) -> (TableId, Width) {
        (self.tables[table], width(table))
    }

    fn expected(&self, table: usize, keys: &[u64]) -> Vec<Option<Vec<u8>>> {
        keys.iter().map(|&key| self.rows.get(&(table, key)).cloned()).collect()
    }

    fn apply(&mut self, step: Step) {
        let of = |table: u8| usize::from(table) % TABLES;
        match step {
            Step::Put(span, version) => {
                let (table, keys) = (of(span.table), keys(span));
                let values: Vec<_> =
                    keys.iter().map(|&key| value_of(table, key, version)).collect();
                put(self.store(), self.id(table), &keys, &values).expect("put");
                self.rows.extend(keys.iter().map(|&key| (table, key)).zip(values));
            }
            Step::Add(span) => {
                let (table, keys) = (of(span.table), keys(span));
                add(self.store(), self.id(table), &keys).expect("add");
                for key in keys {
                    if let Some(row) = self.rows.get_mut(&(table, key)) {
                        row.iter_mut().for_each(|byte| *byte = byte.wrapping_add(3));
                    }
                }
            }
            Step::Get(span) => {
                let (table, keys) = (of(span.table), keys(span));
                let found = get(self.store(), self.id(table), &keys, Clock::Keep).expect("get");
                assert_eq!(found, self.expected(table, &keys));
            }
            Step::Lease(span, bound) => self.lease(of(span.table), keys(span), bound),
            Step::Peek(span) => {
                let (table, keys) = (of(span.table), keys(span));
                let found = peek(self.store(), self.id(table), &keys).expect("peek");
                assert_eq!(found, self.expected(table, &keys));
            }
            Step::Delete(span) => {
                let (table, keys) = (of(span.table), keys(span));
                let gone = keys.iter().filter(|&&key| self.rows.remove(&(table, key)).is_some());
                let gone = gone.count() as u64;
                assert_eq!(self.store().delete(self.tables[table], &keys).expect("delete"), gone);
            }
            Step::Promote(span) => {
                let (table, keys) = (of(span.table), keys(span));
                let missing = keys.iter().filter(|&&key| !self.rows.contains_key(&(table, key)));
                let missing = missing.count() as u64;
                let promoted = self.store().promote(self.tables[table], &keys).expect("promote");
                assert_eq!(promoted.missing, missing);
            }
            Step::Drop(table) => {
                let table = of(table);
                self.store().drop_table(self.tables[table]).expect("drop");
                let gone = peek(self.store(), self.id(table), &[1]);
                assert!(matches!(gone, Err(Error::NoSuchTable(_))));
                self.rows.retain(|(of, _), _| *of != table);
                self.tables[table] = create(self.store(), table);
            }
            Step::Compact => {
                self.store().compact().expect("compact");
            }
            Step::Checkpoint(blob) => {
                let blob = vec![blob; usize::from(blob)];
                let number = self.store().checkpoint(&blob).expect("checkpoint");
                self.held.insert(
                    number,
                    Held { rows: self.rows.clone(), blob, tables: self.tables.clone() },
                );
                self.forget_pruned();
            }
            Step::Reopen => self.open(),
            Step::RollBack(back) => self.roll_back(back),
            Step::Scan(table) => self.scan(of(table)),
            Step::OpenReader(back) => self.open_reader(back),
            Step::Refresh => self.refresh(),
            Step::PeekReader(span) => {
                let Some((reader, number)) = &self.reader else { return };
                let (table, keys) = (of(span.table), keys(span));
                let held = &self.held[number];
                let found = peek(reader, (held.tables[table], width(table)), &keys).expect("peek");
                let expected = keys.iter().map(|&key| held.rows.get(&(table, key)).cloned());
                assert_eq!(found, expected.collect::<Vec<_>>());
            }
            Step::ScanReader(table) => {
                let (Some((reader, number)), table) = (&self.reader, of(table)) else { return };
                let held = &self.held[number];
                assert_eq!(scanned(reader, held.tables[table], table), of_table(&held.rows, table));
            }
            Step::Verify => self.verify(),
        }
    }

    /// Gets rows, which raises their staleness clocks (counts of outstanding gets). Then lowers the
    /// clocks again.
    fn lease(&self, table: usize, keys: Vec<u64>, bound: Option<u8>) {
        let bound = bound.map(u32::from);
        let there = |&key: &u64| self.rows.contains_key(&(table, key));
        let keys: Vec<u64> = keys.into_iter().filter(there).collect();
        let (id, width) = self.id(table);
        let Some(&first) = keys.first() else { return };
        let store = self.store();
        let acquire = Clock::Acquire { bound };
        let found = get(store, (id, width), &keys, acquire).expect("acquire");
        assert_eq!(found, self.expected(table, &keys));
        assert_eq!(store.clock_of(id, first).expect("clock"), Some(1));
        get(store, (id, width), &keys, Clock::Release).expect("release");
        assert_eq!(store.clock_of(id, first).expect("clock"), Some(0));
    }

    fn scan(&self, table: usize) {
        let Some(held) = self.held.last_key_value().map(|(_, held)| held) else { return };
        if held.tables[table] == self.tables[table] {
            let found = scanned(self.store(), self.tables[table], table);
            assert_eq!(found, of_table(&held.rows, table));
        }
    }

    /// Asserts that the disk has all checkpoints that must be kept, and the reader's checkpoint.
    /// Then forgets the removed checkpoints.
    fn forget_pruned(&mut self) {
        let summary = summary(self.dir).expect("a whole bank");
        assert!(summary.damage.is_empty(), "{:?}", summary.damage);
        let there: Vec<u64> = summary.checkpoints.iter().map(|found| found.number).collect();
        assert!(there.len() >= self.held.len().min(self.options.checkpoints_kept));
        assert!(self.reader.iter().all(|(_, number)| there.contains(number)));
        self.held.retain(|number, _| there.contains(number));
        assert!(there.iter().all(|number| self.held.contains_key(number)));
    }

    fn roll_back(&mut self, back: u8) {
        // A roll back needs a log in files.
        if self.memory.is_some() || self.held.is_empty() {
            return;
        }
        let target =
            *self.held.keys().rev().nth(usize::from(back) % self.held.len()).expect("one of them");
        self.store = None;
        let newer: Vec<u64> =
            self.held.keys().rev().copied().take_while(|&number| number > target).collect();
        let read = self.reader.as_ref().is_some_and(|(_, number)| *number > target);
        match Store::roll_back(self.dir, target) {
            Ok(gone) => {
                assert!(!read, "a checkpoint that is read is gone");
                assert_eq!(gone, newer);
                self.held.retain(|&number, _| number <= target);
            }
            Err(Error::BeingRead { .. }) => {
                assert!(read, "no reader has a checkpoint that the roll back removes")
            }
            Err(error) => panic!("{error}"),
        }
        self.open();
    }

    fn open_reader(&mut self, back: Option<u8>) {
        if self.memory.is_some() || self.held.is_empty() {
            return;
        }
        self.reader = None;
        let number = back.map(|back| {
            *self.held.keys().rev().nth(usize::from(back) % self.held.len()).expect("one of them")
        });
        let options = StoreOptions {
            memory_budget_bytes: READER_BUDGET_BYTES,
            device: DeviceChoice::Threads,
            ..StoreOptions::default()
        };
        let reader = Store::open_read_only(self.dir, &options, number).expect("a reader");
        let at = reader.reading().expect("it reads");
        let newest = *self.held.keys().next_back().expect("not empty");
        assert_eq!(at.checkpoint, number.unwrap_or(newest));
        assert_eq!(at.blob, self.held[&at.checkpoint].blob);
        self.reader = Some((reader, at.checkpoint));
    }

    fn refresh(&mut self) {
        let Some((reader, number)) = &mut self.reader else { return };
        let newest = *self.held.keys().next_back().expect("what is read is held");
        assert_eq!(reader.refresh().expect("refresh"), newest);
        *number = newest;
    }

    fn verify(&self) {
        if self.memory.is_some() {
            return;
        }
        let report = verify(self.dir, &VerifyOptions::default(), &mut |_| {}).expect("verify");
        assert!(report.is_clean(), "{:?}", report.damage);
    }

    fn check_all(&self) {
        let store = self.store();
        assert_eq!(store.stats().live_rows, self.rows.len() as u64);
        let bytes = |value: &Vec<u8>| 32 + value.len().next_multiple_of(8) as u64;
        assert_eq!(store.stats().live_bytes, self.rows.values().map(bytes).sum::<u64>());
        for table in 0..TABLES {
            let keys: Vec<u64> = (0..KEYS).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
            let found = peek(store, self.id(table), &keys).expect("peek");
            assert_eq!(found, self.expected(table, &keys));
            self.scan(table);
        }
    }
}

fn create(store: &Store, table: usize) -> TableId {
    let (name, bytes) = (NAMES[table], VALUE_BYTES[table]);
    let created = match width(table) {
        Width::Fixed => store.create_table(name, bytes, b"settings"),
        Width::Variable => store.create_variable_table(name, bytes, b"settings"),
    };
    created.expect("a new table")
}

/// Runs the calls of `life` in a new directory below `folder`.
pub fn run(life: &Life, folder: &Path) {
    let dir = tempfile::tempdir_in(folder).expect("a directory");
    let memory = life.in_memory.then(|| -> Arc<dyn Device> {
        Arc::new(MemoryDevice::new(&DeviceOptions::default()).expect("memory"))
    });
    let mut pair = Pair {
        dir: dir.path(),
        options: StoreOptions {
            memory_budget_bytes: if life.large_budget { 1 << 20 } else { 256 << 10 },
            page_size_bytes: Some(8 << 10),
            checkpoints_kept: usize::from(life.checkpoints_kept % 4) + 1,
            compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
            ..StoreOptions::default()
        },
        memory,
        store: None,
        reader: None,
        tables: Vec::new(),
        rows: Rows::new(),
        held: BTreeMap::new(),
    };
    pair.open();
    for &step in life.steps.iter().take(STEPS_MAX) {
        pair.apply(step);
    }
    pair.check_all();
    pair.apply(Step::Checkpoint(1));
    pair.apply(Step::Reopen);
    pair.check_all();
    pair.verify();
}
