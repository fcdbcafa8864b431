//! Tests of a bank in two tiers: rows leave the log for runs and the base, and come back.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::HashMap;

use common::{
    Add, GetAll, GetEach, PutAll, PutBlind, PutEach, Random, Turn, acquire, options, peek,
    peek_each, release, rows, turned, value,
};
use embank_kv::inspect::{VerifyOptions, verify};
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

/// Returns the key with this number. There are `KEYS` keys.
fn key(i: u64) -> u64 {
    (i % KEYS).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

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
        self.verify();
        self.open();
        self.rows = self.durable.clone();
        let store = self.store();
        let tables: Vec<TableId> = store.tables().iter().map(|table| table.id).collect();
        self.tables = tables;
    }

    /// Asserts that a verification finds no damage, and the rows of the newest checkpoint.
    fn verify(&mut self) {
        self.store = None;
        let report = verify(self.dir.path(), &VerifyOptions::default(), &mut |_| ()).unwrap();
        assert_eq!(report.damage, []);
        let tables = &report.checkpoints.last().unwrap().tables;
        for (place, table) in tables.iter().enumerate() {
            let rows = self.durable.keys().filter(|&&(of, _)| of == place).count() as u64;
            assert_eq!((table.rows, table.sound), (rows, rows), "table {place}");
        }
    }

    /// Asserts that a scan returns the rows of the newest checkpoint, and bounds their number.
    fn scan(&mut self) {
        self.checkpoint();
        for (table, &id) in self.tables.iter().enumerate() {
            let mut scan = self.store().scan(id).unwrap();
            let (most, is_exact) = (scan.rows(), scan.has_exact_rows());
            let mut found = 0;
            while let Some(row) = scan.next_row().unwrap() {
                found += 1;
                assert_eq!(self.rows.get(&(table, row.key)).map(Vec::as_slice), Some(row.value));
            }
            let rows = self.rows.keys().filter(|&&(of, _)| of == table).count() as u64;
            assert_eq!(found, rows, "table {table}");
            assert!(most == rows || most > rows && !is_exact, "{most} for {rows}");
        }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// Returns a table, and distinct keys.
    fn keys(&mut self) -> (usize, Vec<u64>) {
        let table = self.random.below(VALUE_BYTES.len() as u64) as usize;
        let first = self.random.below(KEYS);
        let count = 1 + self.random.below(400) * self.random.below(2);
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
        let is_blind = self.random.below(2) == 0;
        let (id, store) = (self.tables[table], self.store());
        match table {
            VARIABLE => store.execute(id, &keys, Clock::Keep, &mut PutEach(&values)),
            _ if is_blind => store.execute(id, &keys, Clock::Keep, &mut PutBlind(&values)),
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

    /// Checks values and counts. Counts are exact after a compaction.
    fn check(&self) {
        let store = self.store();
        store.compact().unwrap();
        assert_eq!(store.stats().live_rows, self.rows.len() as u64);
        assert_eq!(store.stats().compaction_stopped, None);
        for (table, &id) in self.tables.iter().enumerate() {
            let rows = self.rows.keys().filter(|&&(of, _)| of == table).count() as u64;
            assert_eq!(store.rows(id).unwrap(), rows, "table {table}");
            let keys: Vec<u64> = (0..KEYS).map(key).collect();
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
    TierLimits {
        log_bytes,
        sort_buffer_bytes: 32 << 10,
        base_part_bytes: 200 << 10,
        level_runs: 16,
    }
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

/// Returns the number of rows of a table that the store knows.
fn known(twin: &Twin, table: usize) -> u64 {
    twin.store().rows(twin.tables[table]).unwrap()
}

fn put_blindly(twin: &mut Twin, table: usize, keys: impl IntoIterator<Item = u64>) {
    let keys: Vec<u64> = keys.into_iter().map(key).collect();
    let values: Vec<_> = keys.iter().map(|&key| twin.value(table, key)).collect();
    let store = twin.store();
    let outcome = store.execute(twin.tables[table], &keys, Clock::Keep, &mut PutBlind(&values));
    assert!(outcome.unwrap().missing.is_empty());
    twin.rows.extend(keys.iter().map(|&key| (table, key)).zip(values));
}

fn delete(twin: &mut Twin, table: usize, keys: std::ops::Range<u64>) {
    let keys: Vec<u64> = keys.map(key).collect();
    let deleted = twin.store().delete(twin.tables[table], &keys).unwrap();
    let gone = keys.iter().filter(|&&key| twin.rows.remove(&(table, key)).is_some()).count();
    assert_eq!(deleted, gone as u64);
}

/// A blind put of a row in the cold tier reads nothing, and the count of rows stays as it is until
/// merges know. Before the first part, and of keys that all filters deny, it is an ordinary put.
#[test]
fn a_blind_put_reads_nothing_and_counts_late() {
    let mut twin = Twin::new(by_hand(4 << 20), limits(64 << 10));
    put_blindly(&mut twin, 0, 0..2000);
    assert_eq!(known(&twin, 0), 2000, "without parts, a key that the index does not have is new");
    twin.checkpoint();
    twin.store().compact().unwrap();
    let reads = |twin: &Twin| twin.store().stats().disk_reads;
    let before = reads(&twin);
    put_blindly(&mut twin, 0, 1000..3000);
    assert_eq!(reads(&twin), before);
    let known_now = known(&twin, 0);
    assert!((2000..=3000).contains(&known_now), "{known_now}");
    twin.check();
    assert_eq!(known(&twin, 0), 3000);

    // Now the base has all rows, and no put knows. Deletes of such rows do not count either.
    let before = reads(&twin);
    put_blindly(&mut twin, 0, 2500..3500);
    delete(&mut twin, 0, 2600..2700);
    delete(&mut twin, 0, 3200..3300);
    put_blindly(&mut twin, 0, 3250..3260);
    assert_eq!((reads(&twin), known(&twin, 0)), (before, 3000));
    // A row that was read from the cold tier is counted.
    delete(&mut twin, 0, 0..10);
    assert_eq!(known(&twin, 0), 2990);
    twin.checkpoint();
    twin.reopen();
    assert_eq!(known(&twin, 0), 2990);
    twin.check();
    assert_eq!(known(&twin, 0), twin.rows.len() as u64);
}

/// A scan gives each row once, and its number of rows is a bound.
#[test]
fn a_scan_after_blind_puts_has_each_row_once() {
    let mut twin = Twin::new(by_hand(16 << 20), limits(64 << 10));
    for round in 0..4 {
        put_blindly(&mut twin, 0, round * 500..round * 500 + 1000);
        put_blindly(&mut twin, 1, (0..2000).step_by(7));
        delete(&mut twin, 1, round * 300..round * 300 + 450);
        twin.scan();
        if round < 2 {
            twin.store().compact().unwrap();
        }
        twin.checkpoint();
        twin.verify();
        twin.reopen();
        twin.scan();
    }
    twin.check();
    twin.scan();
}

/// Asserts the change of the count of rows by each row of the table in `record::layout`.
#[test]
fn the_mark_of_a_blind_put_changes_the_count_as_its_table_says() {
    let mut twin = Twin::new(by_hand(4 << 20), limits(64 << 10));
    put_blindly(&mut twin, 0, 0..2000);
    // The checkpoint writes all pages, so that the compaction moves them.
    twin.checkpoint();
    twin.store().compact().unwrap();
    // The second compaction counts this put, so the base has all rows then.
    put_blindly(&mut twin, 0, 0..10);
    twin.store().compact().unwrap();
    assert_eq!(known(&twin, 0), 2000);
    let [old, new, counted, inserted] = [1, 2001, 2, 2002];
    let put = |twin: &mut Twin, i: u64| {
        let value = twin.value(0, key(i));
        let id = twin.tables[0];
        let values = std::slice::from_ref(&value);
        twin.store().execute(id, &[key(i)], Clock::Keep, &mut PutAll(values)).unwrap();
        twin.rows.insert((0, key(i)), value);
    };
    let blind = |twin: &mut Twin, i: u64| put_blindly(twin, 0, [i]);
    let gone = |twin: &mut Twin, i: u64| delete(twin, 0, i..i + 1);
    let promote = |twin: &mut Twin, i: u64| {
        twin.store().promote(twin.tables[0], &[key(i)]).unwrap();
    };
    type Step<'s> = &'s dyn Fn(&mut Twin, u64);
    let steps: [(&str, Step<'_>, u64, i64); 19] = [
        ("a blind put over a row at rest", &blind, old, 0),
        ("a blind put of a new row", &blind, new, 0),
        ("a put over an uncounted row", &put, old, 0),
        ("a blind put over an uncounted row", &blind, new, 0),
        ("a promotion of an uncounted row", &promote, new, 0),
        ("a delete of an uncounted row", &gone, old, 0),
        ("a delete of an uncounted new row", &gone, new, 0),
        ("a put over an uncounted tombstone", &put, old, 0),
        ("a blind put over an uncounted tombstone", &blind, new, 0),
        ("another delete", &gone, new, 0),
        ("a put over a row at rest", &put, counted, 0),
        ("a delete of a counted row", &gone, counted, -1),
        ("a blind put over a counted tombstone", &blind, counted, 1),
        ("a blind put over a counted row", &blind, counted, 0),
        ("a second delete of a counted row", &gone, counted, -1),
        ("a put over a counted tombstone", &put, counted, 1),
        ("an insert", &put, inserted, 1),
        ("a delete of a row at rest", &gone, 3, -1),
        ("a blind put over its tombstone", &blind, 3, 1),
    ];
    for (what, step, i, change) in steps {
        let before = known(&twin, 0);
        step(&mut twin, i);
        assert_eq!(known(&twin, 0).wrapping_sub(before).cast_signed(), change, "{what}");
    }
    // A checkpoint keeps the marks.
    twin.checkpoint();
    twin.reopen();
    twin.check();
}
