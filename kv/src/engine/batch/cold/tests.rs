//! Tests of lookups in hand-made parts: compares batches with a map.

use std::collections::BTreeMap;

use super::*;
use crate::cold::head::{Kind, PartHead, PartSite};
use crate::cold::keep::{KeepSome, PartMemory};
use crate::cold::row::RowFlags;
use crate::cold::writer::PartWriter;
use crate::engine::core::Core;
use crate::record::address::TableId;
use crate::{Access, Clock, Operation, Store, StoreOptions, Width};

/// Keys of the tests. The parts have 3 of 4 keys.
const KEYS: u64 = 3000;

/// Length of the value of a key at a version. Rows of a table of fixed width have 24 bytes.
fn value_of(width: Width, key: u64, version: u64) -> Vec<u8> {
    let bytes = match width {
        Width::Fixed => 24,
        Width::Variable => ((key ^ version) % 50) as usize,
    };
    (0..bytes).map(|i| (key * 31 + version * 7) as u8 ^ i as u8).collect()
}

/// The versions of keys in one part. `None` stands for a tombstone.
type Versions = BTreeMap<u64, Option<Vec<u8>>>;

/// Writes a part with the versions of keys of one table.
fn write_part(core: &Core, table: TableId, kind: Kind, run: u64, versions: &Versions) -> Arc<Part> {
    let bank = 77;
    let segment_size_bytes = crate::device::SEGMENT_SIZE_BYTES_DEFAULT;
    let device = &*core.log.device;
    let site = PartSite { device, segment_size_bytes, key_hash: core.key_hash };
    let runs = if kind == Kind::Base { 0..=run } else { run..=run };
    let (level, block_bits, hashes, log) = (0, 12, 0..=u64::MAX, 0..0);
    let number = core.cold.next_part();
    let salt = number + 99;
    let head = PartHead { bank, salt, number, kind, level, block_bits, runs, hashes, log };
    let columns = if kind == Kind::Base { 0 } else { 9 };
    let mut writer = PartWriter::new(site, head, columns);
    let mut rows: Vec<_> = versions.iter().collect();
    rows.sort_by_key(|&(&key, _)| core.key_hash.of(table.number, key));
    for (&key, value) in rows {
        let mut padded = value.clone().unwrap_or_default();
        let unused_bytes = (padded.len().next_multiple_of(8) - padded.len()) as u8;
        padded.resize(padded.len().next_multiple_of(8), 0);
        let row = ColdRow {
            table: table.number,
            key,
            hash: core.key_hash.of(table.number, key),
            flags: RowFlags { tombstone: value.is_none(), uncounted: false },
            unused_bytes,
            uses: 3,
            value: &padded,
        };
        writer.push(&row).unwrap();
    }
    // Without filters, a search would read blocks of runs for nothing.
    let memory: &dyn PartMemory = if kind == Kind::Base { &KeepSome } else { &core.cold };
    Arc::new(writer.finish_within(memory).unwrap())
}

/// Gives a table rows in a base part and two runs. Returns the rows.
fn fill(store: &Store, table: TableId, width: Width) -> BTreeMap<u64, Vec<u8>> {
    let core = store.core();
    let value = |key, version| Some(value_of(width, key, version));
    let has = |key: &u64| key % 4 != 3;
    let base: Versions = (0..KEYS).filter(has).map(|key| (key, value(key, 1))).collect();
    let older = (0..KEYS).filter(|key| has(key) && key % 3 == 0);
    let older: Versions = older.map(|key| (key, value(key, 2))).collect();
    let newer = (0..KEYS).filter(|key| has(key) && key % 5 == 0);
    let newer: Versions =
        newer.map(|key| (key, if key % 2 == 0 { value(key, 3) } else { None })).collect();
    let all = [(Kind::Base, &base), (Kind::Run, &older), (Kind::Run, &newer)];
    let mut parts = Vec::new();
    let mut rows: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (kind, versions) in all {
        let run = if kind == Kind::Base { 0 } else { core.cold.next_run() };
        parts.push(write_part(&core, table, kind, run, versions));
        for (&key, value) in versions {
            match value {
                Some(value) => rows.insert(key, value.clone()),
                None => rows.remove(&key),
            };
        }
    }
    core.cold.publish(core.cold.view().changed(parts, &[]));
    core.tables.add_rows(table, rows.len() as u64);
    rows
}

/// Reads, or writes `next` of each key.
struct Op<'a, const ACCESS: u8, const VARIABLE: bool> {
    next: &'a dyn Fn(usize) -> Vec<u8>,
    read: Vec<Option<Vec<u8>>>,
    inserts: bool,
}

impl<const ACCESS: u8, const VARIABLE: bool> Operation for Op<'_, ACCESS, VARIABLE> {
    const ACCESS: Access = match ACCESS {
        0 => Access::Peek,
        1 => Access::Get,
        2 => Access::Update,
        _ => Access::Put,
    };
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
    fn read(&mut self, i: usize, value: &[u8]) {
        self.read[i] = Some(value.to_vec());
    }
    fn value_bytes(&mut self, i: usize, _: Option<&[u8]>) -> usize {
        (self.next)(i).len()
    }
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&(self.next)(i));
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        if self.inserts {
            value.copy_from_slice(&(self.next)(i));
        }
        self.inserts
    }
}

fn run<const ACCESS: u8, const VARIABLE: bool>(
    store: &Store,
    table: TableId,
    keys: &[u64],
    next: &dyn Fn(usize) -> Vec<u8>,
    inserts: bool,
) -> (Vec<Option<Vec<u8>>>, crate::Outcome) {
    let mut op = Op::<ACCESS, VARIABLE> { next, read: vec![None; keys.len()], inserts };
    let outcome = store.execute(table, keys, Clock::Keep, &mut op).unwrap();
    (op.read, outcome)
}

/// Runs random batches over rows in parts, and compares each answer with a map.
fn compare<const VARIABLE: bool>(seed: u64) {
    let width = if VARIABLE { Width::Variable } else { Width::Fixed };
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { memory_budget_bytes: 4 << 20, ..StoreOptions::default() };
    let store = Store::open(dir.path(), &options).unwrap();
    let table = match width {
        Width::Fixed => store.create_table("rows", 24, b""),
        Width::Variable => store.create_variable_table("rows", 64, b""),
    }
    .unwrap();
    let mut rows = fill(&store, table, width);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..60 {
        let some = random.usize(1..200);
        let mut keys: Vec<u64> = (0..some).map(|_| random.u64(0..KEYS)).collect();
        keys.sort_unstable();
        keys.dedup();
        random.shuffle(&mut keys);
        let next = |i: usize| value_of(width, keys[i], 10 + round);
        let expected = |rows: &BTreeMap<u64, Vec<u8>>| {
            keys.iter().map(|key| rows.get(key).cloned()).collect::<Vec<_>>()
        };
        match random.u8(0..6) {
            0 | 1 => {
                let (read, outcome) = run::<0, VARIABLE>(&store, table, &keys, &next, false);
                assert_eq!(read, expected(&rows), "seed {seed} round {round}");
                let missing = read.iter().filter(|row| row.is_none()).count();
                assert_eq!(outcome.missing.len(), missing, "seed {seed} round {round}");
            }
            2 => {
                let (read, _) = run::<1, VARIABLE>(&store, table, &keys, &next, false);
                assert_eq!(read, expected(&rows), "seed {seed} round {round}");
            }
            3 => {
                let inserts = random.bool();
                run::<2, VARIABLE>(&store, table, &keys, &next, inserts);
                for (i, &key) in keys.iter().enumerate() {
                    if inserts || rows.contains_key(&key) {
                        rows.insert(key, next(i));
                    }
                }
            }
            4 => {
                run::<3, VARIABLE>(&store, table, &keys, &next, true);
                for (i, &key) in keys.iter().enumerate() {
                    rows.insert(key, next(i));
                }
            }
            _ => {
                let there = keys.iter().filter(|key| rows.remove(key).is_some()).count();
                let deleted = store.delete(table, &keys).unwrap();
                assert_eq!(deleted, there as u64, "seed {seed} round {round}");
            }
        }
        assert_eq!(store.rows(table).unwrap(), rows.len() as u64, "seed {seed} round {round}");
    }
    let keys: Vec<u64> = (0..KEYS).collect();
    let (read, _) = run::<0, VARIABLE>(&store, table, &keys, &|_| Vec::new(), false);
    let expected: Vec<_> = keys.iter().map(|key| rows.get(key).cloned()).collect();
    assert_eq!(read, expected, "seed {seed}");
}

#[test]
fn rows_in_parts_behave_as_rows_in_the_log() {
    for seed in 0..8 {
        compare::<false>(seed);
        compare::<true>(seed);
    }
}

/// Shows which records are clean: the copies of rows in parts, until a change.
#[test]
fn a_copy_of_a_row_in_a_part_is_clean_until_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
    let table = store.create_table("rows", 24, b"").unwrap();
    let rows = fill(&store, table, Width::Fixed);
    let &key = rows.keys().next().unwrap();
    let core = store.core();
    let is_clean = || {
        let _pin = core.gate.enter();
        let hash = core.key_hash.of(table.number, key);
        let entry = core.index.outline().first_match(hash);
        // SAFETY: the duty is to pass the address of a complete record in memory. The thread is
        // pinned, no page has been evicted, and the address came from the index.
        let record = unsafe { core.log.view().record(entry.address()) };
        let word = record.clock().load(crate::sync::Ordering::Relaxed);
        ClockWord::from_bits(word).is_clean()
    };
    run::<1, false>(&store, table, &[key], &|_| Vec::new(), false);
    assert!(is_clean(), "a get copies the row");
    run::<1, false>(&store, table, &[key], &|_| Vec::new(), false);
    assert!(is_clean(), "a get of the copy changes nothing");
    run::<2, false>(&store, table, &[key], &|_| vec![1; 24], false);
    assert!(!is_clean(), "the value differs from that of the part");
}

/// Shows that a peek finds a row that an earlier peek read from a part in the read cache.
#[test]
fn peeks_of_rows_in_parts_fill_the_read_cache() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
    let table = store.create_table("rows", 24, b"").unwrap();
    let rows = fill(&store, table, Width::Fixed);
    let keys: Vec<u64> = rows.keys().copied().collect();
    let expected: Vec<_> = rows.values().cloned().map(Some).collect();
    let mut reads = Vec::new();
    for _ in 0..6 {
        let (read, outcome) = run::<0, false>(&store, table, &keys, &|_| Vec::new(), false);
        assert_eq!(read, expected);
        reads.push(outcome.disk_reads);
    }
    assert_eq!(reads[0], keys.len() as u64);
    // A filter may send a lookup to a block without the row, which no peek puts into the cache.
    // Of 512 lookups in a run, one does so.
    assert!(reads[5] < reads[0] / 20, "{reads:?}");
}

/// Shows that a damaged block fails the lookups of its rows with the table's name, and no
/// others.
#[test]
fn a_damaged_block_is_an_error_that_names_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { device: crate::DeviceChoice::Threads, ..StoreOptions::default() };
    let store = Store::open(dir.path(), &options).unwrap();
    let table = store.create_table("users", 24, b"").unwrap();
    let rows = fill(&store, table, Width::Fixed);
    let core = store.core();
    let base = Arc::clone(&core.cold.view().base()[0]);
    let place = base.block_of(1 << 63).unwrap();
    let (path, offset) = core.log.device.locate(place.address);
    let mut bytes = std::fs::read(&path).unwrap();
    let block = offset as usize..(offset + u64::from(place.bytes)) as usize;
    bytes[block].fill(0x5A);
    std::fs::write(&path, &bytes).unwrap();
    let (mut damaged, mut sound) = (0, 0);
    for (&key, value) in &rows {
        let next = &|_| Vec::new();
        let mut op = Op::<0, false> { next, read: vec![None], inserts: false };
        match store.execute(table, &[key], Clock::Keep, &mut op) {
            Ok(_) => {
                assert_eq!(op.read[0].as_ref(), Some(value));
                sound += 1;
            }
            Err(Error::Damaged { path: named, what, .. }) => {
                assert_eq!(named, path);
                assert!(what.contains("for table \"users\""), "{what}");
                damaged += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(damaged > 0 && sound > damaged, "{damaged} damaged, {sound} sound");
}
