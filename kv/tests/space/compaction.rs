//! Tests that compaction frees the space of dead records and has no other effect.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::before_sync::before_sync;
use crate::common::compacting::{RECORD_BYTES, VALUE_BYTES, by_hand, check, ends, open};
use crate::common::{Random, options, peek, put};
use embank_kv::{Error, Store};

/// Returns the bytes of disk that the log's files occupy, without holes.
fn log_bytes_on_disk(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(dir.join("log")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
}

/// Overwrites random rows many times. After each batch, asserts that the log is not too large for
/// its rows.
fn hold_space(budget_bytes: u64, rows: u64, checkpoint_every: Option<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &options(budget_bytes));
    let mut random = Random::new();
    let mut versions = HashMap::new();
    let all: Vec<u64> = (0..rows).collect();
    put(&store, table, &all, 0, VALUE_BYTES);
    versions.extend(all.iter().map(|&key| (key, 0)));
    let live = rows * RECORD_BYTES;
    let page = store.stats().page_size_bytes;
    let (mut written, mut highest) = (0, 0.0_f64);
    for version in 1..=(12 * rows / 512) {
        let mut keys: Vec<u64> = (0..512).map(|_| random.below(rows)).collect();
        keys.sort_unstable();
        keys.dedup();
        put(&store, table, &keys, version, VALUE_BYTES);
        versions.extend(keys.iter().map(|&key| (key, version)));
        written += keys.len() as u64 * RECORD_BYTES;
        if checkpoint_every.is_some_and(|bytes| written >= bytes) {
            store.checkpoint(b"").unwrap();
            written = 0;
        }
        let stats = store.stats();
        assert_eq!(stats.live_bytes, live);
        // Kept checkpoints hold more space, which the next complete checkpoint may free.
        let held = stats.log_held_bytes as f64 / live as f64;
        assert!(held < 0.25, "a checkpoint for each 2.5% of the rows' bytes holds {held:.3}");
        highest = highest.max(stats.space_amplification() - held);
        let limit = 1.5 + held + (8 * page) as f64 / live as f64;
        assert!(
            stats.space_amplification() < limit,
            "{:.3} after batch {version}: {stats:?}",
            stats.space_amplification()
        );
    }
    let stats = store.stats();
    println!(
        "{highest:.3} at most; compacted {} bytes, copied {}, at {:.0} bytes/s, {} waits",
        stats.compacted_bytes,
        stats.compaction_copied_bytes,
        stats.compaction_bytes_per_s(),
        stats.compaction_waits
    );
    assert_eq!(stats.compaction_stopped, None);
    assert!(stats.freed_bytes > 5 * live, "{stats:?}");
    // The file system must support holes in files. Each file may occupy one block more.
    let on_disk = log_bytes_on_disk(dir.path());
    assert!(on_disk <= stats.log_disk_bytes + 16 * page, "{on_disk} {stats:?}");
    check(&store, table, &versions, 0..rows + 10);
    store.checkpoint(b"end").unwrap();
    drop(store);
    let (store, table) = open(dir.path(), &options(budget_bytes));
    assert_eq!(store.stats().live_bytes, live);
    check(&store, table, &versions, 0..rows + 10);
}

#[test]
fn a_log_without_checkpoints_stays_below_one_and_a_half_of_its_rows() {
    hold_space(2 << 20, 100_000, None);
}

#[test]
fn a_log_with_checkpoints_stays_below_one_and_a_half_of_its_rows_beside_what_they_hold() {
    hold_space(2 << 20, 100_000, Some(100_000 * RECORD_BYTES / 40));
}

#[test]
fn a_log_whose_keys_share_slots_is_compacted_too() {
    hold_space(384 << 10, 30_000, None);
}

#[test]
fn deleted_rows_give_their_space_and_their_slots_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &by_hand(1 << 20));
    let all: Vec<u64> = (0..50_000).collect();
    put(&store, table, &all, 3, VALUE_BYTES);
    store.checkpoint(b"full").unwrap();
    let full = log_bytes_on_disk(dir.path());
    assert_eq!(store.delete(table, &all[100..]).unwrap(), 49_900);
    assert_eq!(store.stats().live_rows, 100);
    // A checkpoint keeps its log until the checkpoint is removed. Only the second compaction can
    // free the tombstones.
    for _ in 0..4 {
        store.checkpoint(b"less").unwrap();
        store.compact().unwrap();
    }
    store.checkpoint(b"least").unwrap();
    let stats = store.stats();
    let left = log_bytes_on_disk(dir.path());
    assert!(left < full / 20, "{left} of {full} bytes are left: {stats:?}");
    assert!(stats.index_entries <= 100, "{stats:?}");
    let versions: HashMap<_, _> = all[..100].iter().map(|&key| (key, 3)).collect();
    check(&store, table, &versions, 0..50_000);
    drop(store);
    let (store, table) = open(dir.path(), &by_hand(1 << 20));
    assert_eq!(store.stats().live_rows, 100);
    check(&store, table, &versions, 0..50_000);
}

#[test]
fn a_dropped_table_is_gone_at_once_and_its_space_later() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &by_hand(1 << 20));
    let other = store.create_table("other", VALUE_BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    put(&store, table, &keys, 1, VALUE_BYTES);
    put(&store, other, &keys[..500], 2, VALUE_BYTES);
    store.checkpoint(b"both").unwrap();
    let full = log_bytes_on_disk(dir.path());
    store.drop_table(table).unwrap();
    assert!(matches!(store.drop_table(table), Err(Error::NoSuchTable(_))));
    assert!(matches!(peek(&store, table, &[1]), Err(Error::NoSuchTable(_))));
    assert!(matches!(store.delete(table, &[1]), Err(Error::NoSuchTable(_))));
    assert_eq!(store.stats().live_rows, 500);
    // No checkpoint has the drop yet. After a crash the table must exist with all its rows, even
    // though the log was compacted.
    store.compact().unwrap();
    drop(store);
    let (store, again) = open(dir.path(), &by_hand(1 << 20));
    assert_eq!((again, store.stats().live_rows), (table, 20_500));
    let versions: HashMap<_, _> = keys.iter().map(|&key| (key, 1)).collect();
    check(&store, table, &versions, 0..20_001);
    store.drop_table(table).unwrap();
    for _ in 0..3 {
        store.checkpoint(b"one").unwrap();
        store.compact().unwrap();
    }
    store.checkpoint(b"one").unwrap();
    assert!(log_bytes_on_disk(dir.path()) < full / 5);
    assert!(store.stats().index_entries <= 500);
    // A new table may have the name, and gets a new number.
    let table = store.create_table("rows", 8, b"").unwrap();
    assert_eq!(table.number(), 3);
    drop(store);
    let (store, _) = open(dir.path(), &by_hand(1 << 20));
    assert_eq!(store.tables().len(), 1);
    assert_eq!(store.create_table("rows", 8, b"").unwrap().number(), 3);
    let versions: HashMap<_, _> = keys[..500].iter().map(|&key| (key, 2)).collect();
    check(&store, other, &versions, 0..1000);
}

#[test]
fn clocks_go_along_with_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (store, table) = open(dir.path(), &by_hand(512 << 10));
    let keys: Vec<u64> = (0..2000).collect();
    put(&store, table, &keys, 1, VALUE_BYTES);
    crate::common::acquire(&store, table, &keys[..50], None).unwrap();
    crate::common::acquire(&store, table, &keys[..20], None).unwrap();
    crate::common::push_to_disk(&store, table, 0);
    for _ in 0..3 {
        assert!(store.compact().unwrap().copied_bytes > 0);
        for key in [0, 19, 20, 49, 50, 1999] {
            let count = u32::from(key < 20) + u32::from(key < 50);
            assert_eq!(store.clock_of(table, key).unwrap(), Some(count), "key {key}");
        }
    }
}

/// Long and short rows alternate, so pages stay half empty although no record is dead. Compaction
/// can't gain this space, and no writer may wait for it.
#[test]
fn badly_filled_pages_are_not_copied_around_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), &options(512 << 10)).unwrap());
    assert_eq!(store.stats().page_size_bytes, 8192);
    let long = store.create_table("long", 7300, b"").unwrap();
    let short = store.create_table("short", 1200, b"").unwrap();
    let busy = Arc::clone(&store);
    let ended = ends(60, move || {
        for key in 0..400 {
            put(&busy, long, &[key], 0, 7300);
            put(&busy, short, &[key], 0, 1200);
        }
    });
    let stats = store.stats();
    assert!(ended, "stuck: {stats:?}");
    assert!(stats.compaction_copied_bytes < 2 * stats.live_bytes, "{stats:?}");
    // Deleted rows let compaction free space.
    store.delete(long, &(0..400).collect::<Vec<_>>()).unwrap();
    let ended = ends(60, {
        let store = Arc::clone(&store);
        move || {
            while store.stats().log_disk_bytes > stats.live_bytes / 2 {
                std::thread::yield_now();
            }
        }
    });
    assert!(ended, "{:?}", store.stats());
}

#[test]
fn a_dropped_table_of_long_rows_asks_for_no_memory_once_they_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = Store::open(dir.path(), &by_hand(4 << 20)).unwrap();
        let long = store.create_table("long", 60_000, b"").unwrap();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        put(&store, long, &[1, 2, 3], 0, 60_000);
        put(&store, table, &[1, 2, 3], 4, VALUE_BYTES);
        store.checkpoint(b"").unwrap();
        store.drop_table(long).unwrap();
        store.checkpoint(b"").unwrap();
    }
    // The dropped table still has records, which need memory.
    Store::open(dir.path(), &by_hand(768 << 10)).unwrap_err();
    {
        let store = Store::open(dir.path(), &by_hand(4 << 20)).unwrap();
        for _ in 0..3 {
            store.compact().unwrap();
            store.checkpoint(b"").unwrap();
        }
    }
    let store = Store::open(dir.path(), &by_hand(768 << 10)).unwrap();
    let [table] = &store.tables()[..] else { panic!("one table is left") };
    let versions: HashMap<_, _> = (1..4).map(|key| (key, 4)).collect();
    check(&store, table.id, &versions, 0..5);
}

#[test]
fn a_checkpoint_that_failed_holds_no_space() {
    let dir = tempfile::tempdir().unwrap();
    // A directory that gets the checkpoint's name during the checkpoint makes it fail. A later
    // checkpoint passes over the name.
    let name = dir.path().join("checkpoints/0000000001");
    let file = name.join("x");
    let make = move || {
        std::fs::create_dir_all(&name).unwrap();
        std::fs::write(name.join("x"), "x").unwrap();
    };
    let device = before_sync(dir.path(), make);
    let store = Store::open_on(dir.path(), &by_hand(512 << 10), device).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    put(&store, table, &keys, 0, VALUE_BYTES);
    store.checkpoint(b"").unwrap_err();
    assert!(file.exists());
    for version in 1..6 {
        put(&store, table, &keys, version, VALUE_BYTES);
    }
    store.compact().unwrap();
    let stats = store.stats();
    assert!(stats.freed_bytes > 0, "{stats:?}");
    assert_eq!(stats.log_held_bytes, 0, "{stats:?}");
    assert_eq!(store.checkpoint(b"").unwrap(), 2);
}
