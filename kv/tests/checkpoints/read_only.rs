//! Tests read-only stores. They show a checkpoint next to a writer, change no file, hold their
//! checkpoint, and refresh.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::reading::{BUDGET, by_hand, keys, rows_of, scanned};
use crate::common::{
    Add, PutAll, Random, acquire, options, peek, peek_each, push_to_disk, put, value,
};
use embank_kv::{Clock, DeviceChoice, Error, Store, StoreOptions};

/// Returns each file and folder with its path, its content and its time of change.
fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let changed = path.metadata().unwrap().modified().unwrap();
            if path.is_dir() {
                found.push((path.clone(), Vec::new(), changed));
                folders.push(path);
            } else {
                found.push((path.clone(), std::fs::read(&path).unwrap(), changed));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_reader_changes_not_a_byte_and_every_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let keys = keys(6_000);
    {
        let store = Store::open(dir.path(), &by_hand(3)).unwrap();
        let table = store.create_table("rows", 200, b"").unwrap();
        for version in 0..3 {
            put(&store, table, &keys, version, 200);
            store.checkpoint(&[version as u8]).unwrap();
        }
        put(&store, table, &keys, 9, 200);
        push_to_disk(&store, table, 0);
    }
    // A writer's opening would remove this unfinished checkpoint and cut the log after the last
    // checkpoint. A reader must leave both.
    let checkpoints = dir.path().join("checkpoints");
    std::fs::create_dir(checkpoints.join("0000000004.partial")).unwrap();
    let before = tree(dir.path());

    for (number, device) in [
        (Some(2), DeviceChoice::Threads),
        (None, DeviceChoice::Auto),
        (Some(1), DeviceChoice::Auto),
    ] {
        let options = StoreOptions { device, ..options(BUDGET) };
        let store = Store::open_read_only(dir.path(), &options, number).unwrap();
        let at = number.unwrap_or(3);
        assert!(store.is_read_only());
        assert_eq!(store.reading().unwrap().checkpoint, at);
        assert_eq!(store.reading().unwrap().blob, [at as u8 - 1]);
        let tables = store.tables();
        assert_eq!((tables.len(), tables[0].name.as_str()), (1, "rows"));
        let table = tables[0].id;
        // The first peek reads the disk. The second may find rows in the read cache.
        for _ in 0..2 {
            assert_eq!(peek(&store, table, &keys).unwrap(), rows_of(&keys, at - 1, 200));
        }
        assert_eq!(peek(&store, table, &[7]).unwrap(), rows_of(&[7], at - 1, 200));
        assert_eq!(peek(&store, table, &[6_001]).unwrap(), [None]);
        let rows: Vec<_> = scanned(&store, table).into_values().map(Some).collect();
        assert_eq!(rows, rows_of(&keys, at - 1, 200));
        let stats = store.stats();
        assert!(stats.hits_cache > 0, "{stats:?}");
        assert_eq!((stats.log_held_bytes, stats.live_rows, stats.disk_write_bytes), (0, 6_000, 0));

        let some = [value(1, 1, 200)];
        let refused: [(&str, Result<(), Error>); 10] = [
            ("put", store.execute(table, &[1], Clock::Keep, &mut PutAll(&some)).map(drop)),
            ("update", {
                store.execute(table, &[1], Clock::Keep, &mut Add { by: 1, insert: true }).map(drop)
            }),
            ("get", acquire(&store, table, &[1], None).map(drop)),
            ("get of a missing row", acquire(&store, table, &[6_001], None).map(drop)),
            ("delete", store.delete(table, &[1]).map(drop)),
            ("promote", store.promote(table, &[1]).map(drop)),
            ("create", store.create_table("more", 8, b"").map(drop)),
            ("drop", store.drop_table(table)),
            ("checkpoint", store.checkpoint(b"").map(drop)),
            ("compact", store.compact().map(drop)),
        ];
        for (what, result) in refused {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::ReadOnly { .. }), "{what}: {error}");
            assert!(error.to_string().contains("open it for writing"), "{error}");
        }
        if number.is_none() {
            assert_eq!(store.refresh().unwrap(), 3);
        }
        assert_eq!(peek(&store, table, &keys).unwrap(), rows_of(&keys, at - 1, 200));
    }
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn a_reader_keeps_its_checkpoint_whole_until_it_moves_on() {
    let dir = tempfile::tempdir().unwrap();
    let keys = keys(4_000);
    let writer = Store::open(dir.path(), &by_hand(1)).unwrap();
    let table = writer.create_table("rows", 200, b"").unwrap();
    let words = writer.create_variable_table("words", 64, b"").unwrap();
    put(&writer, table, &keys, 0, 200);
    let word = |version: u64| vec![version as u8; version as usize + 3];
    let put_word = |version| {
        let mut put = crate::common::PutEach(&[word(version)]);
        writer.execute(words, &[5], Clock::Keep, &mut put).unwrap();
    };
    put_word(0);
    writer.checkpoint(b"0").unwrap();

    let reader = Store::open_read_only(dir.path(), &options(BUDGET), None).unwrap();
    let scan_of_old = reader.scan(table).unwrap();
    // The writer rewrites all rows, compacts, and removes old checkpoints. It must keep the
    // reader's checkpoint.
    for version in 1..6 {
        put(&writer, table, &keys, version, 200);
        put_word(version);
        writer.compact().unwrap();
        writer.checkpoint(&[version as u8]).unwrap();
        writer.compact().unwrap();
    }
    assert!(writer.stats().log_held_bytes > 4_000 * 232, "{:?}", writer.stats());
    assert_eq!(peek(&reader, table, &keys).unwrap(), rows_of(&keys, 0, 200));
    assert_eq!(peek_each(&reader, words, &[5]).unwrap(), [Some(word(0))]);

    assert_eq!(reader.refresh().unwrap(), 6);
    assert_eq!(reader.reading().unwrap().blob, [5]);
    assert_eq!(peek(&reader, table, &keys).unwrap(), rows_of(&keys, 5, 200));
    assert_eq!(peek_each(&reader, words, &[5]).unwrap(), [Some(word(5))]);
    // The scan began before the refresh. It still shows and holds the old checkpoint.
    writer.checkpoint(b"").unwrap();
    let mut scan = scan_of_old;
    let mut rows = BTreeMap::new();
    while let Some(row) = scan.next_row().unwrap() {
        rows.insert(row.key, Some(row.value.to_vec()));
    }
    assert_eq!(rows.into_values().collect::<Vec<_>>(), rows_of(&keys, 0, 200));
    drop(scan);
    reader.refresh().unwrap();
    drop(reader);

    // The reader is closed. The writer's next checkpoint frees the log that the reader held.
    writer.compact().unwrap();
    writer.checkpoint(b"").unwrap();
    let held = writer.stats().log_held_bytes;
    assert!(held < writer.stats().page_size_bytes, "{held}");
    let left: Vec<_> = std::fs::read_dir(dir.path().join("checkpoints")).unwrap().collect();
    assert_eq!(left.len(), 1);
}

#[test]
fn a_writer_that_opens_the_bank_leaves_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let keys = keys(4_000);
    let writer = Store::open(dir.path(), &by_hand(1)).unwrap();
    let table = writer.create_table("rows", 200, b"").unwrap();
    put(&writer, table, &keys, 0, 200);
    writer.checkpoint(b"").unwrap();
    let reader = Store::open_read_only(dir.path(), &options(BUDGET), None).unwrap();
    for version in 1..3 {
        put(&writer, table, &keys, version, 200);
        writer.checkpoint(b"").unwrap();
    }
    drop(writer);
    let writer = Store::open(dir.path(), &by_hand(1)).unwrap();
    writer.compact().unwrap();
    put(&writer, table, &keys, 3, 200);
    writer.checkpoint(b"").unwrap();
    assert_eq!(peek(&reader, table, &keys).unwrap(), rows_of(&keys, 0, 200));
    let rows: Vec<_> = scanned(&reader, table).into_values().map(Some).collect();
    assert_eq!(rows, rows_of(&keys, 0, 200));
    assert_eq!(reader.refresh().unwrap(), 4);
    assert_eq!(peek(&reader, table, &keys).unwrap(), rows_of(&keys, 3, 200));
}

#[test]
fn tables_come_and_go_with_the_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Store::open(dir.path(), &by_hand(1)).unwrap();
    let old = writer.create_table("old", 8, b"").unwrap();
    put(&writer, old, &[1], 0, 8);
    writer.checkpoint(b"").unwrap();
    let reader = Store::open_read_only(dir.path(), &options(BUDGET), None).unwrap();
    writer.drop_table(old).unwrap();
    let new = writer.create_table("new", 16, b"").unwrap();
    put(&writer, new, &[1], 0, 16);
    writer.checkpoint(b"").unwrap();

    assert_eq!(peek(&reader, old, &[1]).unwrap(), rows_of(&[1], 0, 8));
    assert!(matches!(peek(&reader, new, &[1]), Err(Error::NoSuchTable(_))));
    reader.refresh().unwrap();
    assert!(matches!(peek(&reader, old, &[1]), Err(Error::NoSuchTable(_))));
    assert!(matches!(reader.scan(old), Err(Error::NoSuchTable(_))));
    assert_eq!(peek(&reader, new, &[1]).unwrap(), rows_of(&[1], 0, 16));
}

#[test]
fn opening_to_read_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |number, options: &StoreOptions| {
        Store::open_read_only(dir.path(), options, number).unwrap_err()
    };
    let says = |error: Error, what: &str| {
        assert!(error.to_string().contains(what), "{error}");
    };
    says(refused(None, &options(BUDGET)), "is not a bank");
    let writer = Store::open(dir.path(), &by_hand(2)).unwrap();
    says(refused(None, &options(BUDGET)), "take one first");
    let table = writer.create_table("rows", 200, b"").unwrap();
    put(&writer, table, &keys(100), 0, 200);
    writer.checkpoint(b"").unwrap();
    says(refused(Some(7), &options(BUDGET)), "has no checkpoint 7; those that are kept are [1]");
    let memory = StoreOptions { device: DeviceChoice::Memory, ..options(BUDGET) };
    says(refused(None, &memory), "give another device");
    assert!(matches!(refused(None, &options(4096)), Error::BudgetTooSmall { .. }));
    says(writer.refresh().unwrap_err(), "opened read-only");

    // If the newest checkpoint is damaged, a refresh fails and the reader keeps its checkpoint.
    let reader = Store::open_read_only(dir.path(), &options(BUDGET), None).unwrap();
    put(&writer, table, &keys(100), 1, 200);
    writer.checkpoint(b"").unwrap();
    let blob = dir.path().join("checkpoints/0000000002/blob");
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&blob, &bytes).unwrap();
    assert!(matches!(reader.refresh(), Err(Error::Damaged { .. })));
    assert_eq!(reader.reading().unwrap().checkpoint, 1);
    assert_eq!(peek(&reader, table, &keys(100)).unwrap(), rows_of(&keys(100), 0, 200));
    bytes[20] ^= 1;
    std::fs::write(&blob, &bytes).unwrap();
    assert_eq!(reader.refresh().unwrap(), 2);
    assert_eq!(peek(&reader, table, &keys(100)).unwrap(), rows_of(&keys(100), 1, 200));
}

/// A writer takes checkpoints while another thread refreshes the read-only store. Each batch and
/// each scan must read one checkpoint only.
#[test]
fn batches_show_one_checkpoint_while_the_store_moves_on() {
    let random = Random::new();
    let dir = tempfile::tempdir().unwrap();
    let all = keys(3_000);
    let writer =
        Store::open(dir.path(), &StoreOptions { checkpoints_kept: 1, ..options(BUDGET) }).unwrap();
    let table = writer.create_table("rows", 120, b"").unwrap();
    put(&writer, table, &all, 0, 120);
    writer.checkpoint(&0_u64.to_le_bytes()).unwrap();
    let reader = Store::open_read_only(dir.path(), &options(BUDGET), None).unwrap();
    let (done, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (all, reader, done, moved) = (&all, &reader, &done, &moved);
        for number in 0..2 {
            let mut random = random.stream(number);
            scope.spawn(move || {
                let mut newest = 0;
                // The loop ends: the writer stops after a fixed number of versions.
                while !done.load(Ordering::Relaxed) {
                    let some: Vec<u64> = (0..64).map(|_| random.below(3_000)).collect();
                    let rows = peek(reader, table, &some).unwrap();
                    let first = rows[0].clone().unwrap();
                    let version = (newest..=60).find(|&v| first == value(some[0], v, 120));
                    let version = version.expect("a version no older than one seen before");
                    assert_eq!(rows, rows_of(&some, version, 120));
                    newest = version;
                }
            });
        }
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let before = reader.reading().unwrap().checkpoint;
                let now = reader.refresh().unwrap();
                assert!(now >= before);
                moved.fetch_add(u64::from(now > before), Ordering::Relaxed);
                if now.is_multiple_of(8) {
                    let rows: Vec<_> = scanned(reader, table).into_values().map(Some).collect();
                    assert_eq!(rows, rows_of(all, now - 1, 120));
                }
            }
        });
        for version in 1..=60_u64 {
            put(&writer, table, all, version, 120);
            writer.checkpoint(&version.to_le_bytes()).unwrap();
            if version % 4 == 0 {
                writer.compact().unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(moved.load(Ordering::Relaxed) > 0);
    reader.refresh().unwrap();
    assert_eq!(peek(&reader, table, &all).unwrap(), rows_of(&all, 60, 120));
}
