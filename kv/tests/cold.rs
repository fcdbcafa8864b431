//! Tests of a bank in two tiers: rows leave the log for runs and the base, and come back.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::HashMap;

use common::{
    Add, GetAll, GetEach, PutAll, PutEach, Random, Turn, acquire, options, peek, peek_each,
    release, rows, turned, value,
};
use embank_kv::{Clock, CompactionOptions, Store, StoreOptions, TableId, TierLimits};

/// Largest value length of each table in bytes. The last table has variable width, and its longest
/// rows are longer than a block of a part.
const VALUE_BYTES: [usize; 3] = [64, 12, 5000];
const VARIABLE: usize = 2;
const KEYS: u64 = 4000;
/// The address of the first part.
const COLD_BEGIN: u64 = 1 << 49;

/// The rows of a bank, by table and key.
type Rows = HashMap<(usize, u64), Vec<u8>>;

/// A bank in two tiers, and the rows that it must have.
struct Twin {
    store: Option<Store>,
    dir: tempfile::TempDir,
    options: StoreOptions,
    limits: TierLimits,
    tables: Vec<TableId>,
    rows: Rows,
    /// The rows of the newest checkpoint.
    durable: Rows,
    random: Random,
}

impl Twin {
    fn new(options: StoreOptions, limits: TierLimits) -> Self {
        let mut twin = Twin {
            store: None,
            dir: tempfile::tempdir().unwrap(),
            options,
            limits,
            tables: Vec::new(),
            rows: Rows::new(),
            durable: Rows::new(),
            random: Random::new(),
        };
        twin.open();
        let store = twin.store();
        let fixed = VALUE_BYTES[..VARIABLE].iter();
        let make =
            |&bytes: &usize| store.create_table(&format!("t{bytes}"), bytes as u32, b"").unwrap();
        let mut tables: Vec<TableId> = fixed.map(make).collect();
        tables.push(store.create_variable_table("t", VALUE_BYTES[VARIABLE] as u32, b"").unwrap());
        twin.tables = tables;
        twin.checkpoint();
        twin
    }

    fn open(&mut self) {
        self.store = None;
        let store = Store::open(self.dir.path(), &self.options).unwrap();
        store.begin_second_tier(self.limits);
        self.store = Some(store);
    }

    fn checkpoint(&mut self) {
        self.store().checkpoint(b"").unwrap();
        self.durable = self.rows.clone();
    }

    /// Opens the bank again, at its newest checkpoint.
    fn reopen(&mut self) {
        self.open();
        self.rows = self.durable.clone();
        let store = self.store();
        let tables: Vec<TableId> = store.tables().iter().map(|table| table.id).collect();
        self.tables = tables;
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// Returns a table, and distinct keys.
    fn keys(&mut self) -> (usize, Vec<u64>) {
        let table = self.random.below(VALUE_BYTES.len() as u64) as usize;
        let first = self.random.below(KEYS);
        let count = 1 + self.random.below(400) * self.random.below(2);
        let key = |i: u64| (i % KEYS).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (table, (first..first + count).map(key).collect())
    }

    fn value(&mut self, table: usize, key: u64) -> Vec<u8> {
        let version = self.random.next();
        let most = VALUE_BYTES[table];
        let bytes = match (table, version % 16) {
            (VARIABLE, 0) => version as usize / 16 % (most + 1),
            (VARIABLE, _) => version as usize / 16 % 60,
            _ => most,
        };
        value(key, version, bytes)
    }

    fn put(&mut self) {
        let (table, keys) = self.keys();
        let values: Vec<_> = keys.iter().map(|&key| self.value(table, key)).collect();
        let (id, store) = (self.tables[table], self.store());
        match table {
            VARIABLE => store.execute(id, &keys, Clock::Keep, &mut PutEach(&values)),
            _ => store.execute(id, &keys, Clock::Keep, &mut PutAll(&values)),
        }
        .unwrap();
        self.rows.extend(keys.iter().map(|&key| (table, key)).zip(values));
    }

    fn change(&mut self) {
        let (table, keys) = self.keys();
        let insert = self.random.below(2) == 0;
        let (id, store, max) = (self.tables[table], self.store(), VALUE_BYTES[table]);
        match table {
            VARIABLE => store.execute(id, &keys, Clock::Keep, &mut Turn { max, insert }),
            _ => store.execute(id, &keys, Clock::Keep, &mut Add { by: 3, insert }),
        }
        .unwrap();
        for key in keys {
            let old = self.rows.get(&(table, key));
            if old.is_none() && !insert {
                continue;
            }
            let new = match table {
                VARIABLE => turned(old.map(Vec::as_slice), max),
                _ => {
                    let mut new = old.cloned().unwrap_or_else(|| vec![0; max]);
                    let (number, _) = new.split_first_chunk_mut::<8>().unwrap();
                    *number = u64::from_le_bytes(*number).wrapping_add(3).to_le_bytes();
                    new
                }
            };
            self.rows.insert((table, key), new);
        }
    }

    fn get(&mut self) {
        let (table, keys) = self.keys();
        let mut values = vec![Vec::new(); keys.len()];
        let (id, store) = (self.tables[table], self.store());
        let outcome = match table {
            VARIABLE => store.execute(id, &keys, Clock::Keep, &mut GetEach(&mut values)),
            _ => store.execute(id, &keys, Clock::Keep, &mut GetAll(&mut values)),
        };
        assert_eq!(rows(values, &outcome.unwrap()), self.expected(table, &keys));
    }

    fn promote(&mut self) {
        let (table, keys) = self.keys();
        self.store().promote(self.tables[table], &keys).unwrap();
    }

    fn delete(&mut self) {
        let (table, keys) = self.keys();
        let deleted = self.store().delete(self.tables[table], &keys).unwrap();
        let removed = keys.iter().filter(|&&key| self.rows.remove(&(table, key)).is_some());
        assert_eq!(deleted, removed.count() as u64);
    }

    /// Leases rows, and moves the log on until they have left memory.
    fn lease(&mut self) {
        let (_, keys) = self.keys();
        let id = self.tables[0];
        let there: Vec<u64> =
            keys.into_iter().filter(|&key| self.rows.contains_key(&(0, key))).collect();
        acquire(self.store(), id, &there, None).unwrap();
        (0..8).for_each(|_| self.put());
        self.compact();
        let store = self.store();
        // A put keeps the clock of its row.
        assert!(there.iter().all(|&key| store.clock_of(id, key).unwrap() == Some(1)));
        release(store, id, &there).unwrap();
        assert!(there.iter().all(|&key| store.clock_of(id, key).unwrap() == Some(0)));
    }

    fn expected(&self, table: usize, keys: &[u64]) -> Vec<Option<Vec<u8>>> {
        keys.iter().map(|&key| self.rows.get(&(table, key)).cloned()).collect()
    }

    fn check(&self) {
        let store = self.store();
        assert_eq!(store.stats().live_rows, self.rows.len() as u64);
        assert_eq!(store.stats().compaction_stopped, None);
        for (table, &id) in self.tables.iter().enumerate() {
            let keys: Vec<u64> = (0..KEYS).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
            let there = match table {
                VARIABLE => peek_each(store, id, &keys),
                _ => peek(store, id, &keys),
            };
            let there = there.unwrap();
            for ((key, row), expected) in keys.iter().zip(there).zip(self.expected(table, &keys)) {
                assert_eq!(row, expected, "table {table}, key {key}");
            }
        }
    }

    /// Returns the addresses of the parts whose files the bank has.
    fn parts(&self) -> Vec<u64> {
        let files = std::fs::read_dir(self.dir.path().join("log")).unwrap();
        let address = |file: std::io::Result<std::fs::DirEntry>| {
            let name = file.unwrap().file_name().into_string().unwrap();
            u64::from_str_radix(name.strip_suffix(".seg").unwrap(), 16).unwrap()
        };
        files.map(address).filter(|&address| address >= COLD_BEGIN).collect()
    }

    fn step(&mut self) {
        match self.random.below(18) {
            0..=4 => self.put(),
            5..=7 => self.change(),
            8..=10 => self.get(),
            11 => self.promote(),
            12 | 13 => self.delete(),
            14 => self.lease(),
            15 => self.checkpoint(),
            16 if self.random.below(2) == 0 => self.reopen(),
            _ => self.compact(),
        }
    }

    /// Compacts, unless a compaction thread does.
    fn compact(&self) {
        if !self.options.compaction.background {
            self.store().compact().unwrap();
        }
    }
}

fn by_hand(budget_bytes: u64) -> StoreOptions {
    let compaction = CompactionOptions { background: false, ..CompactionOptions::default() };
    StoreOptions { compaction, ..options(budget_bytes) }
}

fn limits(log_bytes: u64) -> TierLimits {
    TierLimits { log_bytes, sort_buffer_bytes: 32 << 10, base_part_bytes: 200 << 10 }
}

#[test]
fn a_bank_whose_rows_go_to_the_cold_tier_and_back_keeps_them() {
    let limits = limits(64 << 10);
    let mut twin = Twin::new(by_hand(512 << 10), limits);
    let mut most = 0;
    for round in 0..6 {
        (0..40).for_each(|_| twin.step());
        twin.store().compact().unwrap();
        twin.check();
        let parts = twin.parts();
        let number = |address: u64| (address - COLD_BEGIN) >> 28;
        let last = parts.iter().copied().map(number).max().unwrap_or(0);
        println!("round {round}: {} rows, {} of {last} parts", twin.rows.len(), parts.len());
        most = most.max(last);
    }
    assert!(most > 0, "no spill has written a second part");
    twin.checkpoint();
    twin.reopen();
    twin.check();
}

#[test]
fn a_compaction_thread_moves_rows_to_the_cold_tier_beside_batches() {
    let limits = limits(128 << 10);
    let mut twin = Twin::new(options(512 << 10), limits);
    for _ in 0..4 {
        (0..40).for_each(|_| twin.step());
        twin.check();
    }
    // Writers wait for spills while the log is more than half too long. So the log begins after its
    // first page by now, and only spills move its beginning.
    (0..60).for_each(|_| twin.put());
    assert!(twin.store().stats().log_begin > 0 && !twin.parts().is_empty());
    twin.check();
}
