//! Tests that rows are found in each region (mutable, read-only, disk), and that the statistics
//! count the right region.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::Arc;

use crate::common::{Add, GetAll, PutAll, is_on_disk, options, peek, put, value};
use embank_kv::device::{Device, DeviceOptions, FaultyDevice, MemoryDevice};
use embank_kv::{Clock, DeviceChoice, Promoted, Store, StoreOptions, StoreStats, TableId};

const BUDGET_BYTES: u64 = 256 << 10;
const VALUE_BYTES: usize = 64;
const ROWS: u64 = 10_000;
const DEVICES: [DeviceChoice; 3] =
    [DeviceChoice::Auto, DeviceChoice::Threads, DeviceChoice::Memory];

/// A store with a checkpoint and a log that is nearly four times as long as its memory budget. All
/// rows in memory are read-only, so the region of each row is known.
struct Loaded {
    store: Store,
    table: TableId,
    _dir: tempfile::TempDir,
}

fn keys() -> Vec<u64> {
    (0..ROWS).collect()
}

fn load(device: DeviceChoice) -> Loaded {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { device, ..options(BUDGET_BYTES) };
    let store = Store::open(dir.path(), &options).unwrap();
    assert!(!store.has_rows_on_disk());
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &keys(), 0, VALUE_BYTES);
    store.checkpoint(b"").unwrap();
    Loaded { store, table, _dir: dir }
}

fn get(store: &Store, table: TableId, keys: &[u64]) -> Vec<Vec<u8>> {
    let mut values = vec![Vec::new(); keys.len()];
    let outcome = store.execute(table, keys, Clock::Keep, &mut GetAll(&mut values)).unwrap();
    assert!(outcome.missing.is_empty());
    values
}

/// Returns the keys of the rows on disk and the keys of the rows in memory, each in ascending
/// order.
fn split(loaded: &Loaded) -> (Vec<u64>, Vec<u64>) {
    keys().into_iter().partition(|&key| is_on_disk(&loaded.store, loaded.table, key))
}

/// Returns the number of rows that were found on disk or in the read cache. Peeks bring rows into
/// the cache, also rows that share an index entry with the row that they look for.
fn below_head(stats: &StoreStats) -> u64 {
    stats.hits_disk + stats.hits_cache
}

fn expected(keys: &[u64]) -> Vec<Vec<u8>> {
    keys.iter().map(|&key| value(key, 0, VALUE_BYTES)).collect()
}

#[test]
fn a_peek_finds_rows_in_memory_and_on_disk_and_counts_each_once() {
    for device in DEVICES {
        let Loaded { store, table, _dir } = load(device);
        assert!(store.has_rows_on_disk());
        let before = store.stats();
        let rows = peek(&store, table, &keys()).unwrap();
        let after = store.stats();
        for (key, row) in keys().into_iter().zip(rows) {
            assert_eq!(row.as_deref(), Some(&value(key, 0, VALUE_BYTES)[..]), "key {key}");
        }
        let disk = below_head(&after) - below_head(&before);
        let read_only = after.hits_read_only - before.hits_read_only;
        assert!(disk > 0 && read_only > 0, "{after:?}");
        // The checkpoint made all rows read-only.
        assert_eq!(after.hits_mutable, before.hits_mutable);
        assert_eq!(disk + read_only, ROWS);
    }
}

#[test]
fn neighbours_on_disk_are_read_together() {
    for device in DEVICES {
        let loaded = load(device);
        let (on_disk, _) = split(&loaded);
        let before = loaded.store.stats();
        peek(&loaded.store, loaded.table, &on_disk).unwrap();
        let after = loaded.store.stats();
        let reads = after.disk_reads - before.disk_reads;
        assert_eq!(below_head(&after) - below_head(&before), on_disk.len() as u64);
        assert!(reads > 0);
        // Rows of 96 bytes were written in order, so a page of 8 KiB has 84 of them.
        assert!(reads * 20 < on_disk.len() as u64, "{reads} reads for {} rows", on_disk.len());
        // Only a block that two consecutive reads share is read twice.
        let bytes = after.disk_read_bytes - before.disk_read_bytes;
        assert!(bytes <= after.log_head * 9 / 8, "{bytes} bytes for {}", after.log_head);
    }
}

/// Writes rows of 96 bytes to disk in the order of their keys. Returns a function that opens this
/// bank.
fn in_order(dir: &Path, budget_bytes: u64) -> impl Fn() -> (Store, Arc<FaultyDevice>) {
    let options = StoreOptions { device: DeviceChoice::Memory, ..options(budget_bytes) };
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap());
    let open = move || {
        let device = Arc::new(FaultyDevice::new(Arc::clone(&disk)));
        let wrapped: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&device);
        (Store::open_on(dir, &options, |_| Ok(wrapped)).unwrap(), device)
    };
    let (store, _) = open();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    // Each row is put alone, because a batch does not keep the order of its keys.
    for key in keys() {
        put(&store, table, &[key], 0, VALUE_BYTES);
    }
    store.checkpoint(b"").unwrap();
    drop(store);
    open
}

/// Uses pages of 512 KiB, so that rows of one page can be far apart.
#[test]
fn rows_with_little_between_them_are_read_together() {
    let dir = tempfile::tempdir().unwrap();
    let open = in_order(dir.path(), 64 << 20);
    // Rows whose keys differ by 150 lie less than 16 KiB apart in the log, and are read together.
    // Rows whose keys differ by 200 lie further apart, and are read separately.
    for (apart, bridged) in [(150, true), (200, false)] {
        let wanted: Vec<u64> = keys().into_iter().step_by(apart).take(40).collect();
        // The number of the read that fails. 0 means that no read fails.
        for fails in 0..4 {
            let (store, device) = open();
            if fails > 0 {
                device.fail_read(fails, std::io::ErrorKind::Other);
            }
            let table = store.tables()[0].id;
            let rows = peek(&store, table, &wanted);
            let stats = store.stats();
            if fails == 0 {
                let (reads, bytes) = (stats.disk_reads, stats.disk_read_bytes);
                // The bank's hash has a random seed, so a row may share its slot with a newer row.
                // The newer row is read too, possibly together with a nearby row.
                assert!(if bridged { reads <= 15 } else { reads >= 38 }, "{stats:?}");
                let bytes_max =
                    if bridged { reads * (64 << 10) } else { (40 * 1024) + (128 << 10) };
                assert!(bytes <= bytes_max, "{stats:?}");
            } else if bridged {
                // The failed read covered bytes between two rows. The batch then reads each row
                // alone.
                assert!(stats.disk_reads > 40, "{stats:?}");
            } else if let Err(error) = &rows {
                assert!(error.to_string().contains("injected"));
                continue;
            } else {
                // A newer row of the same slot lay near another row, and the failed read covered
                // both. The batch then read each row alone.
                assert!(stats.disk_reads_joined > 0, "{stats:?}");
            }
            let rows: Vec<_> = rows.unwrap().into_iter().map(Option::unwrap).collect();
            assert_eq!(rows, expected(&wanted));
        }
    }
}

/// The buffer has room for four reads. A later read can therefore fail after the batch has used
/// some rows.
#[test]
fn rows_that_are_read_again_after_a_failure_are_used_once() {
    let dir = tempfile::tempdir().unwrap();
    let open = in_order(dir.path(), BUDGET_BYTES);
    // A page of 8 KiB has several of these rows.
    let wanted: Vec<u64> = keys().into_iter().step_by(20).collect();
    let rows = wanted.len() as u64;
    for fails in [1, 10, 50, 150] {
        let (store, device) = open();
        device.fail_read(fails, std::io::ErrorKind::Other);
        let table = store.tables()[0].id;
        assert_eq!(get(&store, table, &wanted), expected(&wanted));
        let stats = store.stats();
        assert_eq!((stats.hits_disk, stats.copied_to_tail), (rows, rows), "{stats:?}");
        let in_memory = (stats.hits_mutable, stats.hits_read_only, stats.hits_cache);
        assert_eq!(in_memory, (0, 0, 0), "read {fails} failed: {stats:?}");
        assert!(stats.disk_reads_joined > 0, "{stats:?}");
    }
}

#[test]
fn scattered_rows_cost_at_most_one_read_each() {
    let loaded = load(DeviceChoice::Auto);
    let (on_disk, _) = split(&loaded);
    let scattered: Vec<u64> = on_disk.iter().copied().step_by(97).collect();
    let before = loaded.store.stats();
    let rows = peek(&loaded.store, loaded.table, &scattered).unwrap();
    let after = loaded.store.stats();
    let values: Vec<_> = rows.into_iter().map(Option::unwrap).collect();
    assert_eq!(values, expected(&scattered));
    let reads = after.disk_reads - before.disk_reads;
    assert!(reads <= scattered.len() as u64, "{reads} reads for {} rows", scattered.len());
}

/// Returns the counts that stay the same if a batch writes nothing.
fn written(stats: &StoreStats) -> (u64, u64, u64, u64, u64) {
    (
        stats.log_tail,
        stats.records_appended,
        stats.copied_to_tail,
        stats.disk_write_bytes,
        stats.log_read_only,
    )
}

#[test]
fn a_peek_writes_nothing() {
    let Loaded { store, table, _dir } = load(DeviceChoice::Auto);
    let before = store.stats();
    for _ in 0..2 {
        peek(&store, table, &keys()).unwrap();
        let rows = peek(&store, table, &[ROWS, ROWS + 1]).unwrap();
        assert_eq!(rows, [None, None]);
    }
    let after = store.stats();
    assert_eq!(written(&after), written(&before));
    assert_eq!(after.index_entries, before.index_entries);
}

#[test]
fn a_get_brings_rows_from_disk_into_mutable_memory() {
    for device in DEVICES {
        let loaded = load(device);
        let (on_disk, _) = split(&loaded);
        let (store, table) = (&loaded.store, loaded.table);
        let wanted = &on_disk[..300];
        let before = store.stats();
        assert_eq!(get(store, table, wanted), expected(wanted));
        let first = store.stats();
        assert_eq!(below_head(&first) - below_head(&before), 300);
        assert_eq!(first.copied_to_tail - before.copied_to_tail, 300);
        assert_eq!(get(store, table, wanted), expected(wanted));
        let second = store.stats();
        assert_eq!(second.hits_mutable - first.hits_mutable, 300);
        assert_eq!(second.disk_reads, first.disk_reads);
        assert_eq!(second.records_appended, first.records_appended);
    }
}

#[test]
fn a_get_brings_read_only_rows_into_mutable_memory() {
    let loaded = load(DeviceChoice::Auto);
    let (_, in_memory) = split(&loaded);
    let (store, table) = (&loaded.store, loaded.table);
    // These rows fit into one page, so no page is evicted.
    let wanted = &in_memory[in_memory.len() - 50..];
    let before = store.stats();
    assert_eq!(get(store, table, wanted), expected(wanted));
    let first = store.stats();
    assert_eq!(first.hits_read_only - before.hits_read_only, 50);
    assert_eq!(first.copied_to_tail - before.copied_to_tail, 50);
    assert_eq!(get(store, table, wanted), expected(wanted));
    let second = store.stats();
    assert_eq!(second.hits_mutable - first.hits_mutable, 50);
    assert_eq!(second.records_appended, first.records_appended);
}

#[test]
fn an_update_in_each_region_changes_the_row_once() {
    let loaded = load(DeviceChoice::Auto);
    let (on_disk, in_memory) = split(&loaded);
    let (store, table) = (&loaded.store, loaded.table);
    let newest = &in_memory[in_memory.len() - 100..];
    for wanted in [&on_disk[..100], newest] {
        // First the rows are read-only or on disk. The second update finds them at the tail and
        // changes them in place.
        for version in 1..=2 {
            let mut add = Add { by: 5, insert: false };
            store.execute(table, wanted, Clock::Keep, &mut add).unwrap();
            for (key, row) in wanted.iter().zip(peek(store, table, wanted).unwrap()) {
                let old = value(*key, 0, VALUE_BYTES);
                let row = row.unwrap();
                let number = |row: &[u8]| u64::from_le_bytes(row[..8].try_into().unwrap());
                assert_eq!(number(&row), number(&old).wrapping_add(5 * version));
                assert_eq!(row[8..], old[8..]);
            }
        }
    }
}

#[test]
fn a_key_twice_in_a_batch_is_worked_on_twice_wherever_it_lies() {
    let loaded = load(DeviceChoice::Auto);
    let (on_disk, in_memory) = split(&loaded);
    let (store, table) = (&loaded.store, loaded.table);
    let missing = ROWS + 7;
    let newest = *in_memory.last().unwrap();
    let batch = [on_disk[0], missing, newest, on_disk[0], newest, missing, on_disk[0]];
    store.execute(table, &batch, Clock::Keep, &mut Add { by: 1, insert: true }).unwrap();
    let rows = peek(store, table, &[on_disk[0], newest, missing]).unwrap();
    let number = |row: &[u8]| u64::from_le_bytes(row[..8].try_into().unwrap());
    let numbers: Vec<u64> = rows.iter().map(|row| number(row.as_ref().unwrap())).collect();
    let old = |key| number(&value(key, 0, VALUE_BYTES));
    assert_eq!(numbers, [old(on_disk[0]).wrapping_add(3), old(newest).wrapping_add(2), 2]);
}

#[test]
fn a_put_in_each_region_replaces_the_whole_row() {
    let loaded = load(DeviceChoice::Auto);
    let (on_disk, in_memory) = split(&loaded);
    let (store, table) = (&loaded.store, loaded.table);
    let mut wanted = on_disk[..200].to_vec();
    wanted.extend(&in_memory[in_memory.len() - 200..]);
    for version in 1..=2 {
        let values: Vec<_> = wanted.iter().map(|&key| value(key, version, VALUE_BYTES)).collect();
        let outcome = store.execute(table, &wanted, Clock::Keep, &mut PutAll(&values)).unwrap();
        assert!(outcome.missing.is_empty());
        let rows = peek(store, table, &wanted).unwrap();
        assert!(rows.into_iter().map(Option::unwrap).eq(values));
    }
    assert_eq!(store.stats().inserted, ROWS);
}

#[test]
fn a_deleted_row_is_missing_in_each_region_and_can_come_back() {
    let loaded = load(DeviceChoice::Auto);
    let (on_disk, in_memory) = split(&loaded);
    let (store, table) = (&loaded.store, loaded.table);
    let mut wanted = on_disk[..50].to_vec();
    wanted.extend(&in_memory[in_memory.len() - 50..]);
    for version in 1..=3 {
        assert_eq!(store.delete(table, &wanted).unwrap(), 100);
        assert_eq!(store.delete(table, &wanted).unwrap(), 0);
        assert!(peek(store, table, &wanted).unwrap().iter().all(Option::is_none));
        assert_eq!(store.clock_of(table, wanted[0]).unwrap(), None);
        if version == 2 {
            // In the second round, the tombstones go to disk too.
            crate::common::push_to_disk(store, table, wanted[0]);
            assert!(peek(store, table, &wanted).unwrap().iter().all(Option::is_none));
        }
        put(store, table, &wanted, version, VALUE_BYTES);
        for (&key, row) in wanted.iter().zip(peek(store, table, &wanted).unwrap()) {
            assert_eq!(row.unwrap(), value(key, version, VALUE_BYTES));
        }
    }
}

#[test]
fn promote_moves_rows_to_mutable_memory_and_says_so() {
    for device in DEVICES {
        let loaded = load(device);
        let (on_disk, in_memory) = split(&loaded);
        let (store, table) = (&loaded.store, loaded.table);
        let mut wanted = on_disk[..100].to_vec();
        wanted.extend(&in_memory[in_memory.len() - 20..]);
        wanted.extend([ROWS, ROWS + 1]);
        let promoted = store.promote(table, &wanted).unwrap();
        // The 20 rows in memory are read-only, and the log evicts them next. Promotion therefore
        // moves them too.
        let expected_counts = Promoted { moved: 120, resident: 0, missing: 2, overtaken: 0 };
        assert_eq!(promoted, expected_counts);
        let again = store.promote(table, &wanted).unwrap();
        assert_eq!(again, Promoted { moved: 0, resident: 120, missing: 2, overtaken: 0 });
        let before = store.stats();
        assert_eq!(get(store, table, &on_disk[..100]), expected(&on_disk[..100]));
        let after = store.stats();
        assert_eq!(after.hits_mutable - before.hits_mutable, 100);
        assert_eq!(after.disk_reads, before.disk_reads);
        assert_eq!(after.promoted_used, 100);
    }
}

#[test]
fn operations_are_counted_by_kind_and_changes_by_row() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &[1, 2, 3], 0, VALUE_BYTES);
    get(&store, table, &[1, 2]);
    peek(&store, table, &[1, 9]).unwrap();
    // One row is changed, one stays missing, and one is inserted.
    store.execute(table, &[3, 8], Clock::Keep, &mut Add { by: 1, insert: false }).unwrap();
    store.execute(table, &[7], Clock::Keep, &mut Add { by: 1, insert: true }).unwrap();
    assert_eq!(store.delete(table, &[2, 5]).unwrap(), 1);
    let stats = store.stats();
    assert_eq!(stats.batches, 6);
    assert_eq!((stats.put_keys, stats.get_keys, stats.peek_keys), (3, 2, 2));
    assert_eq!((stats.update_keys, stats.delete_keys), (3, 2));
    assert_eq!((stats.changed, stats.inserted, stats.deleted), (3 + 1 + 1 + 1, 4, 1));
    // A batch with one key is counted like any other batch.
    put(&store, table, &[1], 0, VALUE_BYTES);
    get(&store, table, &[1]);
    peek(&store, table, &[1]).unwrap();
    store.execute(table, &[3], Clock::Keep, &mut Add { by: 1, insert: false }).unwrap();
    let after = store.stats();
    assert_eq!(after.batches - stats.batches, 4);
    assert_eq!(after.hits_mutable - stats.hits_mutable, 4);
    let counts = |s: &StoreStats| [s.put_keys, s.get_keys, s.peek_keys, s.update_keys];
    let (before, after_counts) = (counts(&stats), counts(&after));
    assert!(before.iter().zip(after_counts).all(|(before, after)| before + 1 == after));
    assert_eq!(after.changed - stats.changed, 2);
}

#[test]
fn stalls_are_counted_and_timed() {
    let Loaded { store, table, _dir } = load(DeviceChoice::Auto);
    let stats = store.stats();
    assert!(stats.growth_steps > 0, "{stats:?}");
    assert!(stats.growth_steps_us_max <= stats.growth_steps_us + 1, "{stats:?}");
    assert_eq!(stats.checkpoints, 1);
    assert!(stats.checkpoint_pauses_us_max >= stats.last_checkpoint_pause_us, "{stats:?}");
    assert!(stats.written_bytes_per_changed_row() >= VALUE_BYTES as f64, "{stats:?}");
    put(&store, table, &keys(), 1, VALUE_BYTES);
    assert_eq!(store.stats().changed, 2 * ROWS);
}

/// Regression test: `promote` counted a deleted row as resident if its tombstone was in mutable
/// memory.
#[test]
fn a_deleted_row_is_missing_to_a_promote_in_every_region() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
    let table = store.create_table("t", 64, b"").unwrap();
    let keys: Vec<u64> = (0..20).collect();
    put(&store, table, &keys, 1, 64);
    store.delete(table, &keys[..10]).unwrap();
    let missing = |store: &Store| store.promote(table, &keys).unwrap().missing;
    assert_eq!(missing(&store), 10);
    // The checkpoint makes all rows read-only.
    store.checkpoint(b"").unwrap();
    assert_eq!(missing(&store), 10);
    crate::common::push_to_disk(&store, table, 10);
    assert_eq!(missing(&store), 10);
}

/// `promote_unused` does not report rows that were used after they were marked, because those rows
/// are already at the tail.
#[test]
fn rows_that_others_moved_are_not_reported_as_kept() {
    for device in DEVICES {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { device, ..options(1 << 20) };
        let store = Store::open(dir.path(), &options).unwrap();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        let keys: Vec<u64> = (0..50).collect();
        put(&store, table, &keys, 0, VALUE_BYTES);
        let (mut wanted, mut resident) = (Vec::new(), Vec::new());
        store.announce(table, &keys, &mut wanted, &mut resident).unwrap();
        let marks: Vec<_> = resident.iter().map(|&(_, mark)| mark).collect();
        assert_eq!((wanted.len(), marks.len()), (0, 50));
        store.checkpoint(b"").unwrap();
        // These rows are used, so they move to the tail.
        put(&store, table, &keys[..20], 1, VALUE_BYTES);
        get(&store, table, &keys[20..30]);
        let mut moved = Vec::new();
        store.promote_unused(table, &keys, &marks, &mut moved).unwrap();
        let mut places: Vec<usize> = moved.iter().map(|&(place, _)| place).collect();
        places.sort_unstable();
        assert_eq!(places, (30..50).collect::<Vec<_>>());
        // Each moved row has a new mark with a higher address.
        assert!(moved.iter().all(|&(place, mark)| mark.address() > marks[place].address()));
    }
}
