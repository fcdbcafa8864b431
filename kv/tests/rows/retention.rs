//! Tests that often used rows stay in memory with their values when their page is evicted.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Add, PutEach, options, peek, peek_each, put};
use embank_kv::{Access, Clock, Operation, Store, TableId};

const BUDGET_BYTES: u64 = 512 << 10;
const VALUE_BYTES: usize = 64;
/// Number of rows, several times the number that memory holds.
const ROWS: u64 = 16_000;
/// Approximate number of appended rows after which all pages in memory have been replaced.
const ROUND: u64 = 5_000;
const HOT: u64 = 400;

struct Touch;
impl Operation for Touch {
    const ACCESS: Access = Access::Get;
}

fn open(dir: &tempfile::TempDir) -> (Store, TableId) {
    let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &(0..ROWS).collect::<Vec<_>>(), 0, VALUE_BYTES);
    (store, table)
}

fn add(store: &Store, table: TableId, keys: &[u64]) {
    let done = store.execute(table, keys, Clock::Keep, &mut Add { by: 1, insert: false }).unwrap();
    assert!(done.missing.is_empty());
}

fn hot() -> Vec<u64> {
    (0..HOT).map(|n| n * 5).collect()
}

/// Uses `count` rows that are not hot, from number `from` on. Each use moves a row to the tail.
fn use_others(store: &Store, table: TableId, from: u64, count: u64) {
    let others: Vec<u64> =
        (from..from + count).map(|n| 2000 + n.wrapping_mul(31) % (ROWS - 2000)).collect();
    for keys in others.chunks(100) {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        add(store, table, &keys);
    }
}

/// Returns the number of rows that `peek` finds in memory.
fn in_memory(store: &Store, peek: impl FnOnce()) -> u64 {
    let before = store.stats();
    peek();
    let after = store.stats();
    after.hits_mutable + after.hits_read_only - before.hits_mutable - before.hits_read_only
}

/// Calls `use_some` on the hot rows in `times` rounds. In each round, a row is used five times in
/// sequence. Then enough other rows are used to push it out of memory.
fn in_bursts(store: &Store, table: TableId, times: u64, mut use_some: impl FnMut(&[u64])) {
    const PARTS: u64 = 20;
    for part in 0..times * PARTS {
        let of = (part % PARTS * HOT / PARTS) as usize..;
        (0..5).for_each(|_| use_some(&hot()[of.clone()][..(HOT / PARTS) as usize]));
        let others = 2 * ROUND / PARTS;
        use_others(store, table, part * others, others);
    }
}

fn add_in_bursts(store: &Store, table: TableId, times: u64) -> u64 {
    in_bursts(store, table, times, |keys| add(store, table, keys));
    5 * times
}

fn number(row: &[u8]) -> u64 {
    u64::from_le_bytes(row[..8].try_into().unwrap())
}

#[test]
fn rows_that_are_used_often_stay_and_others_go() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(&dir);
    let before: Vec<u64> = peek(&store, table, &hot())
        .unwrap()
        .iter()
        .map(|row| number(row.as_ref().unwrap()))
        .collect();
    let added = add_in_bursts(&store, table, 8);
    let stats = store.stats();
    let stay = in_memory(&store, || drop(peek(&store, table, &hot()).unwrap()));
    // Without retention about 20 hot rows are in memory. If the writer thread evicts a page before
    // its rows are retained, up to 20 hot rows are lost from memory.
    assert!(stay > HOT / 2, "{stay} of {HOT} are in memory: {stats:?}");
    // At most a quarter of an evicted page's rows is retained. In this test, few rows other than
    // the hot rows are retained.
    assert!(stats.retained > HOT && stats.retained * 4 < stats.records_appended, "{stats:?}");
    // The retained rows have the right values, also after the bank is opened again.
    store.checkpoint(b"").unwrap();
    // The second peek may find rows in the read cache.
    for _ in 0..2 {
        for (row, before) in peek(&store, table, &hot()).unwrap().into_iter().zip(&before) {
            assert_eq!(number(&row.unwrap()), before.wrapping_add(added));
        }
    }
    drop(store);
    let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
    let table = store.tables()[0].id;
    for (row, before) in peek(&store, table, &hot()).unwrap().into_iter().zip(&before) {
        assert_eq!(number(&row.unwrap()), before.wrapping_add(added));
    }
    // Hot rows that are no longer used must leave memory.
    for round in 0..200 {
        use_others(&store, table, round * ROUND, ROUND);
        if in_memory(&store, || drop(peek(&store, table, &hot()).unwrap())) == 0 {
            return;
        }
    }
    panic!("rows that are not used stay for ever: {:?}", store.stats());
}

#[test]
fn nothing_is_retained_where_all_rows_are_alike() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(&dir);
    let mut random = 1u64;
    for _ in 0..1000 {
        let mut keys: Vec<u64> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % ROWS
        })
        .take(100)
        .collect();
        keys.sort_unstable();
        keys.dedup();
        // The peek brings some of these rows into the read cache.
        peek(&store, table, &keys[..10]).unwrap();
        add(&store, table, &keys);
    }
    let stats = store.stats();
    assert!(stats.hits_disk > 10 * ROUND && stats.hits_cache > 1000, "{stats:?}");
    assert_eq!(stats.retained, 0, "{stats:?}");
}

#[test]
fn leases_outlive_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(&dir);
    add_in_bursts(&store, table, 4);
    add(&store, table, &hot());
    let acquire = Clock::Acquire { bound: Some(0) };
    let outcome = store.execute(table, &hot(), acquire, &mut Touch).unwrap();
    assert!(outcome.blocked.is_empty() && outcome.missing.is_empty());
    let retained = store.stats().retained;
    use_others(&store, table, 0, 4 * ROUND);
    assert!(store.stats().retained > retained + HOT, "{:?}", store.stats());
    assert!(hot().iter().all(|&key| store.clock_of(table, key).unwrap() == Some(1)));
    let outcome = store.execute(table, &hot(), acquire, &mut Touch).unwrap();
    assert_eq!(outcome.blocked.len(), hot().len());
    let mut by_one = Add { by: 1, insert: false };
    store.execute(table, &hot(), Clock::Release, &mut by_one).unwrap();
    assert!(hot().iter().all(|&key| store.clock_of(table, key).unwrap() == Some(0)));
}

#[test]
fn rows_of_variable_width_stay_and_those_of_dropped_tables_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(&dir);
    let texts = store.create_variable_table("texts", 300, b"").unwrap();
    let gone = store.create_table("gone", VALUE_BYTES as u32, b"").unwrap();
    let text = |key: u64, round: u64| vec![(key + round) as u8; 20 + (key % 50) as usize];
    put(&store, gone, &hot(), 0, VALUE_BYTES);
    let mut version = 0;
    for dropped in [false, true] {
        if dropped {
            store.drop_table(gone).unwrap();
        }
        in_bursts(&store, table, 4, |keys| {
            version += 1;
            let values: Vec<_> = keys.iter().map(|&key| text(key, version)).collect();
            store.execute(texts, keys, Clock::Keep, &mut PutEach(&values)).unwrap();
            if !dropped {
                add(&store, gone, keys);
            }
        });
    }
    let mut rows = Vec::new();
    let stay = in_memory(&store, || rows = peek_each(&store, texts, &hot()).unwrap());
    // Without retention only 20 rows would be in memory.
    assert!(stay > HOT / 4, "{stay} of {HOT}: {:?}", store.stats());
    // Each row has the version that its last use put.
    let version_of = |i: u64| version - (HOT - 20 - i / 20 * 20) / 20 * 5;
    let expected = (0..).zip(hot()).map(|(i, key)| Some(text(key, version_of(i))));
    assert!(rows.into_iter().eq(expected));
}

#[test]
fn nothing_is_lost_while_others_use_and_delete_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(&dir);
    let (store, hot) = (&store, &hot());
    add_in_bursts(store, table, 4);
    let before: Vec<u64> =
        peek(store, table, hot).unwrap().iter().map(|row| number(row.as_ref().unwrap())).collect();
    let retained = store.stats().retained;
    let coming: &Vec<u64> = &(ROWS..ROWS + HOT).collect();
    const ADDS: u64 = 400;
    let done = &AtomicBool::new(false);
    std::thread::scope(|s| {
        let adders: Vec<_> = (0..2)
            .map(|n| {
                s.spawn(move || {
                    for i in 0..ADDS {
                        add(
                            store,
                            table,
                            &hot[(i as usize + n) % 2 * hot.len() / 2..][..hot.len() / 2],
                        );
                        use_others(store, table, i * 100, 100);
                    }
                })
            })
            .collect();
        s.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for _ in 0..5 {
                    store
                        .execute(table, coming, Clock::Keep, &mut Add { by: 1, insert: true })
                        .unwrap();
                }
                use_others(store, table, 0, 3000);
                assert_eq!(store.delete(table, coming).unwrap(), HOT);
                assert!(peek(store, table, coming).unwrap().iter().all(Option::is_none));
            }
        });
        s.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                store.promote(table, hot).unwrap();
                store.checkpoint(b"").unwrap();
            }
        });
        let ended: Vec<_> = adders.into_iter().map(|adder| adder.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    for (row, before) in peek(store, table, hot).unwrap().into_iter().zip(before) {
        assert_eq!(number(&row.unwrap()), before.wrapping_add(ADDS));
    }
    assert!(peek(store, table, coming).unwrap().iter().all(Option::is_none));
    assert_eq!(store.stats().live_rows, ROWS);
    assert!(store.stats().retained > retained);
}
