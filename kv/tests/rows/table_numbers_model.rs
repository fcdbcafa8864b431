//! Tests that each table shows exactly its own rows after a random sequence of steps, although
//! tables reuse few numbers. The test also covers readers and reopenings.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use crate::common::reading::{by_hand, scanned};
use crate::common::{PutAll, PutEach, Random, acquire, peek, peek_each, release, value};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{Clock, Error, Result, Store, StoreOptions, TableId, Width};

/// Limit of the table numbers in use.
const NUMBERS: u16 = 5;
const NAMES: u64 = 6;
const KEYS: u64 = 300;
const KEPT: usize = 2;
const STEPS: u64 = 4_000;

/// The expected content of a table. Each table has a unique `uid`, which is part of all its values.
#[derive(Debug, Clone, PartialEq)]
struct Model {
    uid: u64,
    bytes: u32,
    variable: bool,
    rows: BTreeMap<u64, Vec<u8>>,
}

type Tables = BTreeMap<String, Model>;

struct Reader {
    store: Store,
    /// The ids of tables in all checkpoints that the reader has shown, and the `uid` of each table.
    handles: Vec<(TableId, u64)>,
}

struct World {
    random: Random,
    dir: tempfile::TempDir,
    store: Option<Store>,
    tables: Tables,
    ids: BTreeMap<String, TableId>,
    /// Ids of tables that were dropped since the bank was opened.
    old: Vec<TableId>,
    /// The tables of each checkpoint.
    checkpoints: BTreeMap<u64, Tables>,
    readers: Vec<Reader>,
    uids: u64,
    reused: u64,
    full: u64,
}

fn read(store: &Store, id: TableId, model: &Model) -> Result<Vec<Option<Vec<u8>>>> {
    let keys: Vec<u64> = (0..KEYS).collect();
    if model.variable { peek_each(store, id, &keys) } else { peek(store, id, &keys) }
}

fn check(store: &Store, id: TableId, model: &Model, what: &str) {
    let found = read(store, id, model).unwrap();
    for (key, row) in (0..KEYS).zip(found) {
        assert_eq!(row.as_ref(), model.rows.get(&key), "{what}: key {key} of {id:?}");
    }
    assert_eq!(store.rows(id).unwrap(), model.rows.len() as u64, "{what}");
}

fn is_refused(store: &Store, id: TableId, what: &str) {
    // `peek` reads rows of fixed width and `peek_each` rows of variable width. For an existing
    // table, one of the two would succeed or fail with an error other than `NoSuchTable`.
    for found in [peek(store, id, &[1]), peek_each(store, id, &[1]), peek(store, id, &[1, 2])] {
        assert!(matches!(found, Err(Error::NoSuchTable(_))), "{what}: {id:?}: {found:?}");
    }
}

impl World {
    fn options() -> StoreOptions {
        by_hand(KEPT)
    }

    fn new() -> Self {
        let mut world = World {
            random: Random::new(),
            dir: tempfile::tempdir().unwrap(),
            store: None,
            tables: Tables::new(),
            ids: BTreeMap::new(),
            old: Vec::new(),
            checkpoints: BTreeMap::new(),
            readers: Vec::new(),
            uids: 0,
            reused: 0,
            full: 0,
        };
        world.open();
        world
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// Opens the bank at its newest checkpoint, as after a crash.
    fn open(&mut self) {
        self.store = None;
        let store = Store::open(self.dir.path(), &Self::options()).unwrap();
        store.limit_table_numbers(NUMBERS);
        let newest = store.recovered().map(|of| of.checkpoint);
        self.tables = newest.map(|newest| self.checkpoints[&newest].clone()).unwrap_or_default();
        self.ids = store.tables().into_iter().map(|table| (table.name, table.id)).collect();
        assert!(self.ids.keys().eq(self.tables.keys()));
        self.old.clear();
        self.store = Some(store);
    }

    fn some_table(&mut self) -> Option<(String, TableId)> {
        let place = self.random.below(self.ids.len().max(1) as u64) as usize;
        self.ids.iter().nth(place).map(|(name, &id)| (name.clone(), id))
    }

    fn create(&mut self) {
        let name = format!("t{}", self.random.below(NAMES));
        if self.ids.contains_key(&name) {
            return;
        }
        let bytes = [0, 8, 24, 200][self.random.below(4) as usize];
        let variable = self.random.below(3) == 0;
        let store = self.store();
        let made = match variable {
            true => store.create_variable_table(&name, bytes, b""),
            false => store.create_table(&name, bytes, b""),
        };
        let id = match made {
            Ok(id) => id,
            Err(Error::Exhausted(what)) if what.contains("numbers of tables") => {
                self.full += 1;
                return;
            }
            Err(error) => panic!("{error}"),
        };
        self.reused += u64::from(id.incarnation() > 0);
        self.uids += 1;
        let model = Model { uid: self.uids, bytes, variable, rows: BTreeMap::new() };
        check(self.store(), id, &model, "a new table");
        self.tables.insert(name.clone(), model);
        self.ids.insert(name, id);
    }

    fn drop_one(&mut self) {
        let Some((name, id)) = self.some_table() else { return };
        self.store().drop_table(id).unwrap();
        self.tables.remove(&name);
        self.ids.remove(&name);
        self.old.push(id);
    }

    fn some_keys(&mut self) -> Vec<u64> {
        let first = self.random.below(KEYS);
        let count = if self.random.below(3) == 0 { 1 } else { 1 + self.random.below(120) };
        (first..KEYS.min(first + count)).collect()
    }

    fn put(&mut self) {
        let Some((name, id)) = self.some_table() else { return };
        let (keys, version) = (self.some_keys(), self.random.below(100));
        let model = self.tables.get_mut(&name).unwrap();
        let of = |&key: &u64| {
            let bytes = match model.variable {
                true => ((key ^ version) * 7 % (u64::from(model.bytes) + 1)) as usize,
                false => model.bytes as usize,
            };
            value(key, model.uid * 100 + version, bytes)
        };
        let values: Vec<_> = keys.iter().map(of).collect();
        let store = self.store.as_ref().unwrap();
        let outcome = match model.variable {
            true => store.execute(id, &keys, Clock::Keep, &mut PutEach(&values)),
            false => store.execute(id, &keys, Clock::Keep, &mut PutAll(&values)),
        };
        outcome.unwrap();
        model.rows.extend(keys.into_iter().zip(values));
    }

    fn delete(&mut self) {
        let Some((name, id)) = self.some_table() else { return };
        let keys = self.some_keys();
        let model = self.tables.get_mut(&name).unwrap();
        let there = keys.iter().filter(|key| model.rows.remove(key).is_some()).count();
        assert_eq!(self.store().delete(id, &keys).unwrap(), there as u64);
    }

    /// Gets rows and releases them, which moves the rows and changes their clocks.
    fn get(&mut self) {
        let Some((name, id)) = self.some_table() else { return };
        let keys = self.some_keys();
        let store = self.store();
        if self.tables[&name].variable {
            store.promote(id, &keys).unwrap();
            return;
        }
        acquire(store, id, &keys, None).unwrap();
        for &key in &keys[..keys.len().min(3)] {
            let there = self.tables[&name].rows.contains_key(&key);
            assert_eq!(store.clock_of(id, key).unwrap(), there.then_some(1));
        }
        release(store, id, &keys).unwrap();
    }

    fn use_old(&mut self) {
        if self.old.is_empty() {
            return;
        }
        let id = self.old[self.random.below(self.old.len() as u64) as usize];
        let store = self.store();
        is_refused(store, id, "a dropped table");
        let refused = [
            store.delete(id, &[1, 2]).map(drop),
            store.promote(id, &[1, 2]).map(drop),
            acquire(store, id, &[1], None).map(drop),
            release(store, id, &[1]).map(drop),
            store.execute(id, &[1], Clock::Keep, &mut PutAll(&[Vec::new()])).map(drop),
            store.scan(id).map(drop),
            store.drop_table(id),
            store.rows(id).map(drop),
        ];
        assert!(refused.iter().all(|of| matches!(of, Err(Error::NoSuchTable(_)))), "{refused:?}");
    }

    fn checkpoint(&mut self) {
        let number = self.store().checkpoint(b"").unwrap();
        self.checkpoints.insert(number, self.tables.clone());
        if self.random.below(4) == 0 {
            for (name, &id) in &self.ids {
                assert_eq!(scanned(self.store(), id), self.tables[name].rows);
            }
        }
    }

    fn roll_back(&mut self) {
        // Readers at newer checkpoints would prevent the roll back.
        self.readers.clear();
        self.store = None;
        let kept = embank_kv::inspect::summary(self.dir.path()).unwrap().checkpoints;
        if let Some(oldest) = kept.first().map(|of| of.number) {
            Store::roll_back(self.dir.path(), oldest).unwrap();
            self.checkpoints.retain(|&number, _| number <= oldest);
        }
        self.open();
    }

    fn note_handles(&mut self, place: usize) {
        let reader = &mut self.readers[place];
        let tables = &self.checkpoints[&reader.store.reading().unwrap().checkpoint];
        for table in reader.store.tables() {
            let of = (table.id, tables[&table.name].uid);
            if !reader.handles.contains(&of) {
                reader.handles.push(of);
            }
        }
    }

    fn open_reader(&mut self) {
        if self.checkpoints.is_empty() || self.readers.len() == 3 {
            return;
        }
        let store = Store::open_read_only(self.dir.path(), &Self::options(), None).unwrap();
        self.readers.push(Reader { store, handles: Vec::new() });
        self.note_handles(self.readers.len() - 1);
    }

    fn use_reader(&mut self) {
        if self.readers.is_empty() {
            return;
        }
        let place = self.random.below(self.readers.len() as u64) as usize;
        match self.random.below(6) {
            0 => drop(self.readers.swap_remove(place)),
            1 | 2 => {
                self.readers[place].store.refresh().unwrap();
                self.note_handles(place);
                self.check_reader(place);
            }
            _ => self.check_reader(place),
        }
    }

    fn check_reader(&self, place: usize) {
        let Reader { store, handles } = &self.readers[place];
        let tables = &self.checkpoints[&store.reading().unwrap().checkpoint];
        for &(id, uid) in handles {
            match tables.values().find(|model| model.uid == uid) {
                Some(model) => check(store, id, model, "a reader's table"),
                None => is_refused(store, id, "a reader's dropped table"),
            }
        }
    }

    fn check_all(&self, what: &str) {
        for (name, model) in &self.tables {
            check(self.store(), self.ids[name], model, what);
        }
        for table in self.store().tables() {
            let model = &self.tables[&table.name];
            assert_eq!(table.width == Width::Variable, model.variable);
        }
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..8 => self.create(),
            8..13 => self.drop_one(),
            13..20 => self.put(),
            20..22 => self.delete(),
            22..24 => self.get(),
            24..28 => self.use_old(),
            28..31 => self.checkpoint(),
            31..34 => drop(self.store().compact().unwrap()),
            34 => self.open_reader(),
            35..38 => self.use_reader(),
            38 => self.check_all("now and then"),
            _ => match self.random.below(6) {
                0 => self.roll_back(),
                1 | 2 => {
                    self.open();
                    self.check_all("after an open");
                }
                _ => self.check_all("now and then"),
            },
        }
    }
}

#[test]
fn tables_that_share_numbers_show_their_own_rows() {
    let mut world = World::new();
    for _ in 0..STEPS {
        world.step();
    }
    world.check_all("at the end");
    println!("{} reused, {} times full", world.reused, world.full);
    assert!(world.reused >= 100, "{} tables got a number again", world.reused);
    world.readers.clear();
    world.store = None;
    let found = verify(world.dir.path(), &VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(found.is_clean(), "{found:?}");
}
