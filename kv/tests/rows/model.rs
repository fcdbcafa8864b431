//! Tests that random sequences of operations and reopenings give the same results as a `HashMap`.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{HashMap, VecDeque};

use crate::common::{
    Add, GetAll, GetEach, PutAll, PutEach, Turn, options, peek, peek_each, rows, turned, value,
};
use crate::hints::{NoteHints, PeekBy};
use embank_kv::{
    Access, Clock, DeviceChoice, Hints, Operation, RowHints, Store, StoreOptions, TableId,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Put {
        table: usize,
        first: u64,
        count: u64,
        version: u64,
    },
    Add {
        table: usize,
        first: u64,
        count: u64,
        insert: bool,
    },
    Get {
        table: usize,
        first: u64,
        count: u64,
    },
    /// Gets rows of a table of fixed width and records hints of where they lie.
    Hint {
        table: usize,
        first: u64,
        count: u64,
    },
    /// Adds to the rows of an earlier `Hint`. Rows may have moved, have been deleted or have been
    /// inserted again since, and the store may have been reopened.
    AddByHints {
        which: usize,
    },
    Peek {
        table: usize,
        first: u64,
        count: u64,
    },
    Delete {
        table: usize,
        first: u64,
        count: u64,
    },
    Promote {
        table: usize,
        first: u64,
        count: u64,
    },
    Drop {
        table: usize,
    },
    Compact,
    Checkpoint,
    Reopen,
}

const KEYS: u64 = 6000;
/// Largest value length of each table in bytes. The last table has variable width.
const VALUE_BYTES: [u32; 3] = [72, 12, 201];
const VARIABLE: usize = 2;

/// Returns the length of a value that a step puts. Most values are short; some are empty, and some
/// have the largest length.
fn value_bytes(table: usize, key: u64, version: u64) -> usize {
    let most = VALUE_BYTES[table] as usize;
    let mixed = (key ^ version.wrapping_mul(0xD1B5_4A32_D192_ED03)) >> 20;
    match (table, mixed % 16) {
        (VARIABLE, 0) => most,
        (VARIABLE, 1) => (mixed >> 4) as usize % (most + 1),
        (VARIABLE, _) => (mixed >> 4) as usize % 40,
        _ => most,
    }
}

/// Does to a row what `Add { by: 3, .. }` does.
fn add_to(row: &mut [u8]) {
    let now = u64::from_le_bytes(row[..8].try_into().unwrap());
    row[..8].copy_from_slice(&(now.wrapping_add(3)).to_le_bytes());
}

fn create(store: &Store, table: usize) -> TableId {
    let bytes = VALUE_BYTES[table];
    let name = format!("t{bytes}");
    let created = match table {
        VARIABLE => store.create_variable_table(&name, bytes, b"d"),
        _ => store.create_table(&name, bytes, b"d"),
    };
    created.unwrap()
}

fn step() -> impl Strategy<Value = Step> {
    let span = (0..3usize, 0..KEYS, 1..2500u64);
    prop_oneof![
        4 => (span.clone(), 0..1000u64).prop_map(|((table, first, count), version)| Step::Put { table, first, count, version }),
        3 => (span.clone(), any::<bool>()).prop_map(|((table, first, count), insert)| Step::Add { table, first, count, insert }),
        2 => span.clone().prop_map(|(table, first, count)| Step::Get { table, first, count }),
        2 => span.clone().prop_map(|(table, first, count)| Step::Hint { table: table % VARIABLE, first, count }),
        3 => (0..3usize).prop_map(|which| Step::AddByHints { which }),
        2 => span.clone().prop_map(|(table, first, count)| Step::Peek { table, first, count }),
        1 => span.clone().prop_map(|(table, first, count)| Step::Delete { table, first, count }),
        1 => span.prop_map(|(table, first, count)| Step::Promote { table, first, count }),
        1 => (0..8usize).prop_map(|table| match table {
            0..=2 => Step::Drop { table },
            _ => Step::Compact,
        }),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
    ]
}

type Rows = HashMap<(usize, u64), Vec<u8>>;

struct Pair {
    store: Option<Store>,
    dir: tempfile::TempDir,
    options: StoreOptions,
    tables: Vec<TableId>,
    rows: Rows,
    /// The rows of the newest checkpoint.
    durable: Option<Rows>,
    /// The hints of the newest `Hint` steps, the oldest first.
    hinted: VecDeque<Hinted>,
}

/// The keys of a `Hint` step, and the hints of their rows.
struct Hinted {
    table: usize,
    keys: Vec<u64>,
    hints: RowHints,
}

/// Number of `Hint` steps whose hints are kept.
const HINTED_MAX: usize = 3;

/// Adds 3 to the rows that exist. Finds the rows by hints.
struct AddByHints<'a>(Hints<'a>);

impl Operation for AddByHints<'_> {
    const ACCESS: Access = Access::Update;
    fn update(&mut self, i: usize, value: &mut [u8]) {
        Add { by: 3, insert: false }.update(i, value);
    }
    fn hints(&self) -> Option<Hints<'_>> {
        Some(self.0)
    }
}

impl Pair {
    fn new(options: StoreOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut pair = Pair {
            store: None,
            dir,
            options,
            tables: Vec::new(),
            rows: Rows::new(),
            durable: None,
            hinted: VecDeque::new(),
        };
        pair.open();
        pair
    }

    fn open(&mut self) {
        self.store = None;
        let store = Store::open(self.dir.path(), &self.options).unwrap();
        self.rows = self.durable.clone().unwrap_or_default();
        self.tables = match self.durable {
            Some(_) => {
                let tables = store.tables();
                let find = |bytes| {
                    let table = tables.iter().find(|table| table.name == format!("t{bytes}"));
                    table.unwrap().id
                };
                VALUE_BYTES.iter().map(find).collect()
            }
            None => (0..VALUE_BYTES.len()).map(|table| create(&store, table)).collect(),
        };
        self.store = Some(store);
    }

    fn expected(&self, table: usize, keys: &[u64]) -> Vec<Option<Vec<u8>>> {
        keys.iter().map(|&key| self.rows.get(&(table, key)).cloned()).collect()
    }

    fn apply(&mut self, step: &Step) {
        let keys = |first: u64, count: u64| -> Vec<u64> {
            // The keys are not sorted and spread over all 64-bit numbers.
            (first..first + count).map(|i| (i % KEYS).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
        };
        let store = self.store.as_ref().unwrap();
        match *step {
            Step::Put { table, first, count, version } => {
                let keys = keys(first, count);
                let of = |&key| value(key, version, value_bytes(table, key, version));
                let values: Vec<_> = keys.iter().map(of).collect();
                let id = self.tables[table];
                let outcome = match table {
                    VARIABLE => store.execute(id, &keys, Clock::Keep, &mut PutEach(&values)),
                    _ => store.execute(id, &keys, Clock::Keep, &mut PutAll(&values)),
                };
                let outcome = outcome.unwrap();
                assert!(outcome.missing.is_empty());
                for (key, value) in keys.into_iter().zip(values) {
                    self.rows.insert((table, key), value);
                }
            }
            Step::Add { table: VARIABLE, first, count, insert } => {
                let keys = keys(first, count);
                let max = VALUE_BYTES[VARIABLE] as usize;
                let mut turn = Turn { max, insert };
                store.execute(self.tables[VARIABLE], &keys, Clock::Keep, &mut turn).unwrap();
                for key in keys {
                    let old = self.rows.get(&(VARIABLE, key));
                    if old.is_some() || insert {
                        let new = turned(old.map(Vec::as_slice), max);
                        self.rows.insert((VARIABLE, key), new);
                    }
                }
            }
            Step::Add { table, first, count, insert } => {
                let keys = keys(first, count);
                store
                    .execute(self.tables[table], &keys, Clock::Keep, &mut Add { by: 3, insert })
                    .unwrap();
                for key in keys {
                    let bytes = VALUE_BYTES[table] as usize;
                    let row = match self.rows.entry((table, key)) {
                        std::collections::hash_map::Entry::Occupied(row) => row.into_mut(),
                        std::collections::hash_map::Entry::Vacant(row) if insert => {
                            row.insert(vec![0; bytes])
                        }
                        std::collections::hash_map::Entry::Vacant(_) => continue,
                    };
                    add_to(row);
                }
            }
            Step::Get { table, first, count } => {
                let keys = keys(first, count);
                let mut values = vec![Vec::new(); keys.len()];
                let id = self.tables[table];
                let outcome = match table {
                    VARIABLE => store.execute(id, &keys, Clock::Keep, &mut GetEach(&mut values)),
                    _ => store.execute(id, &keys, Clock::Keep, &mut GetAll(&mut values)),
                };
                assert_eq!(rows(values, &outcome.unwrap()), self.expected(table, &keys));
            }
            Step::Hint { table, first, count } => {
                let mut keys = keys(first, count);
                // Keeps the keys that have a row: a chunk of a batch uses hints only if each of its
                // keys has a hint.
                keys.retain(|&key| self.rows.contains_key(&(table, key)));
                let mut noted = NoteHints(RowHints::none_of(keys.len()));
                let id = self.tables[table];
                let outcome = store.execute(id, &keys, Clock::Keep, &mut noted).unwrap();
                assert!(outcome.missing.is_empty());
                assert!((0..keys.len()).all(|i| noted.0.get(i).is_some()));
                self.hinted.push_back(Hinted { table, keys, hints: noted.0 });
                if self.hinted.len() > HINTED_MAX {
                    self.hinted.pop_front();
                }
            }
            Step::AddByHints { which } => {
                let Some(Hinted { table, keys, hints }) = self.hinted.get(which) else { return };
                let id = self.tables[*table];
                let mut peek = PeekBy { hints: hints.all(), values: vec![None; keys.len()] };
                store.execute(id, keys, Clock::Keep, &mut peek).unwrap();
                assert_eq!(peek.values, self.expected(*table, keys));
                let mut add = AddByHints(hints.all());
                let outcome = store.execute(id, keys, Clock::Keep, &mut add).unwrap();
                let missing = |key: &u64| !self.rows.contains_key(&(*table, *key));
                assert_eq!(outcome.missing.len(), keys.iter().filter(|key| missing(key)).count());
                for key in keys {
                    let Some(row) = self.rows.get_mut(&(*table, *key)) else { continue };
                    add_to(row);
                }
            }
            Step::Peek { table, first, count } => {
                let keys = keys(first, count);
                assert_eq!(self.peek(table, &keys), self.expected(table, &keys));
            }
            Step::Delete { table, first, count } => {
                let keys = keys(first, count);
                let there =
                    keys.iter().filter(|&&key| self.rows.remove(&(table, key)).is_some()).count()
                        as u64;
                assert_eq!(store.delete(self.tables[table], &keys).unwrap(), there);
            }
            Step::Promote { table, first, count } => {
                let keys = keys(first, count);
                let promoted = store.promote(self.tables[table], &keys).unwrap();
                // The single counts are not predictable, because compaction may move a row before
                // the promotion.
                let total =
                    promoted.moved + promoted.resident + promoted.missing + promoted.overtaken;
                assert_eq!(total, keys.len() as u64);
            }
            Step::Drop { table } => {
                let dropped = self.tables[table];
                store.drop_table(dropped).unwrap();
                assert!(peek(store, dropped, &[1]).is_err());
                assert!(peek_each(store, dropped, &[1]).is_err());
                self.rows.retain(|(of, _), _| *of != table);
                self.tables[table] = create(store, table);
                assert_ne!(self.tables[table], dropped);
            }
            Step::Compact => {
                store.compact().unwrap();
            }
            Step::Checkpoint => {
                store.checkpoint(&(self.rows.len() as u64).to_le_bytes()).unwrap();
                self.durable = Some(self.rows.clone());
            }
            Step::Reopen => {
                self.open();
                let recovered = self.store.as_ref().unwrap().recovered().map(|r| r.blob.clone());
                let expected =
                    self.durable.as_ref().map(|rows| (rows.len() as u64).to_le_bytes().to_vec());
                assert_eq!(recovered, expected);
            }
        }
    }

    fn check_all(&self) {
        let stats = self.store.as_ref().unwrap().stats();
        assert_eq!(stats.live_rows, self.rows.len() as u64);
        assert_eq!(stats.compaction_stopped, None);
        let bytes = |value: &Vec<u8>| 32 + value.len().next_multiple_of(8) as u64;
        assert_eq!(stats.live_bytes, self.rows.values().map(bytes).sum::<u64>());
        for table in 0..VALUE_BYTES.len() {
            let keys: Vec<u64> = (0..KEYS).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
            assert_eq!(self.peek(table, &keys), self.expected(table, &keys));
        }
    }

    fn peek(&self, table: usize, keys: &[u64]) -> Vec<Option<Vec<u8>>> {
        let (store, id) = (self.store.as_ref().unwrap(), self.tables[table]);
        let rows = match table {
            VARIABLE => peek_each(store, id, keys),
            _ => peek(store, id, keys),
        };
        rows.unwrap()
    }

    /// Asserts that scans return the rows of the newest checkpoint.
    fn check_scans(&self) {
        let durable = self.durable.as_ref().unwrap();
        for (table, &id) in self.tables.iter().enumerate() {
            let mut scan = self.store.as_ref().unwrap().scan(id).unwrap();
            let mut rows = Rows::new();
            while let Some(row) = scan.next_row().unwrap() {
                assert_eq!(rows.insert((table, row.key), row.value.to_vec()), None);
            }
            let expected: Rows = durable
                .iter()
                .filter(|((of, _), _)| *of == table)
                .map(|(k, v)| (*k, v.clone()))
                .collect();
            assert_eq!(rows, expected);
        }
    }
}

fn run(options: StoreOptions, steps: &[Step]) {
    let mut pair = Pair::new(options);
    for step in steps {
        pair.apply(step);
    }
    pair.check_all();
    pair.apply(&Step::Checkpoint);
    pair.apply(&Step::Reopen);
    pair.check_all();
    pair.check_scans();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The 18,000 rows of up to 240 bytes exceed the budget of 512 KiB. Most rows are on disk, and
    /// keys share index slots.
    #[test]
    fn larger_than_memory(steps in prop::collection::vec(step(), 1..30)) {
        run(options(512 << 10), &steps);
    }

    #[test]
    fn larger_than_memory_on_the_thread_pool(steps in prop::collection::vec(step(), 1..15)) {
        run(StoreOptions { device: DeviceChoice::Threads, ..options(384 << 10) }, &steps);
    }

    #[test]
    fn within_memory(steps in prop::collection::vec(step(), 1..20)) {
        run(options(64 << 20), &steps);
    }
}
