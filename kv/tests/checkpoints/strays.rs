//! Tests of files and directories that other programs and people put into a bank's folders. The
//! bank counts only names that it writes itself, and loses no checkpoint because of the others.
//! `verify` reports every name that an opening refuses.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::reading::{by_hand, keys, rows_of};
use crate::common::{peek, put};
use embank_kv::inspect::{summary, verify};
use embank_kv::{Error, Store, StoreOptions};

const BYTES: usize = 120;

fn options() -> StoreOptions {
    let segment_size_bytes = Some(64 << 10);
    StoreOptions { page_size_bytes: Some(8 << 10), segment_size_bytes, ..by_hand(2) }
}

/// Puts all rows and takes a checkpoint.
fn train(store: &Store, version: u64) -> u64 {
    let table = store.tables().first().map(|table| table.id);
    let table = table.unwrap_or_else(|| store.create_table("rows", BYTES as u32, b"").unwrap());
    put(store, table, &keys(500), version, BYTES);
    store.checkpoint(&version.to_le_bytes()).unwrap()
}

/// Makes a bank with `versions` checkpoints, and closes it.
fn bank(dir: &Path, versions: u64) {
    let store = Store::open(dir, &options()).unwrap();
    (1..=versions).for_each(|version| assert_eq!(train(&store, version), version));
}

/// Makes a pipe with a name.
fn make_fifo(path: &Path) {
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name is a valid C string that lives for the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

fn is_at(dir: &Path, version: u64) {
    let store = Store::open(dir, &options()).unwrap();
    assert_eq!(store.recovered().unwrap().blob, version.to_le_bytes());
    let table = store.tables()[0].id;
    assert_eq!(peek(&store, table, &keys(500)).unwrap(), rows_of(&keys(500), version, BYTES));
}

fn numbers(dir: &Path) -> Vec<u64> {
    summary(dir).unwrap().checkpoints.iter().map(|checkpoint| checkpoint.number).collect()
}

/// Returns the paths and the texts of the damage that `verify` finds.
fn damage(dir: &Path) -> Vec<(PathBuf, String)> {
    let report = verify(dir, &Default::default(), &mut |_| {}).unwrap();
    report.damage.into_iter().map(|damage| (damage.path, damage.what)).collect()
}

/// Asserts that an opening fails with an error that names `path` and a cure, that `verify` reports
/// the same path, and that the bank opens at `version` when the path is moved away.
fn is_refused_until_moved(dir: &Path, path: &Path, version: u64) {
    let before = damage(dir);
    let error = Store::open(dir, &options()).unwrap_err().to_string();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(error.contains(name) && error.contains("move it out of"), "{error}");
    assert!(
        before.iter().any(|(found, what)| found.starts_with(path) && what.contains("move it out")),
        "{before:?}"
    );
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(damage(dir), before, "the failed opening has changed the bank");
    fs::rename(path, dir.with_extension("moved")).unwrap();
    assert!(damage(dir).is_empty());
    is_at(dir, version);
}

/// Regression test: two folders named by a date counted as the newest checkpoints. Each checkpoint
/// was removed as soon as it was complete, so the bank had none at the next opening.
#[test]
fn folders_with_numbers_for_names_end_no_checkpoint() {
    for names in [["20261127", "20261128"], ["2026112712", "2026112713"], ["7", "00000000009"]] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("bank");
        let store = Store::open(&dir, &options()).unwrap();
        train(&store, 1);
        let strays = names.map(|name| dir.join("checkpoints").join(name));
        for stray in &strays {
            fs::create_dir(stray).unwrap();
            fs::write(stray.join("notes"), "a user's").unwrap();
        }
        for version in 2..=5 {
            assert_eq!(train(&store, version), version, "{names:?}");
        }
        assert_eq!(numbers(&dir), [4, 5], "{names:?}");
        let told = store.stats().not_removed;
        drop(store);
        let has_ten_digits = names[0].len() == 10;
        assert_eq!(told.len(), if has_ten_digits { 2 } else { 0 }, "{told:?}");
        if has_ten_digits {
            // Only the store and its user know that these are no checkpoints.
            assert!(told[0].contains("move it out of"), "{told:?}");
            let error = Store::open(&dir, &options()).unwrap_err().to_string();
            assert!(error.contains("2026112713"), "{error}");
            let reader = Store::open_read_only(&dir, &options(), None).unwrap_err().to_string();
            assert!(reader.contains("move it out of"), "{reader}");
            assert_eq!(damage(&dir).len(), 2);
            strays.iter().for_each(|stray| {
                fs::rename(stray, dir.with_extension(stray.file_name().unwrap())).unwrap()
            });
        }
        assert!(damage(&dir).is_empty());
        is_at(&dir, 5);
    }
}

/// A dangling link under the name of the next checkpoint's mark once removed that checkpoint.
#[test]
fn names_like_marks_remove_no_checkpoint() {
    let kinds: [fn(&Path); 5] = [
        |path| symlink("nowhere", path).unwrap(),
        |path| symlink(path.with_file_name("0000000001"), path).unwrap(),
        make_fifo,
        |path| fs::create_dir(path).unwrap(),
        |path| fs::write(path, "notes").unwrap(),
    ];
    for (kind, make) in kinds.iter().enumerate() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        bank(dir, 2);
        let marks = dir.join("checkpoints");
        (1..=4).for_each(|number| make(&marks.join(format!("{number:010}.removed"))));
        assert_eq!(numbers(dir), [1, 2], "{kind}");
        let store = Store::open(dir, &options()).unwrap();
        let made = [train(&store, 3), train(&store, 4)];
        assert_eq!(made, [5, 6], "a checkpoint takes no number of a mark: {kind}");
        drop(store);
        is_at(dir, 4);
        assert_eq!(numbers(dir), [5, 6], "{kind}");
        assert!((1..=4).all(|n| marks.join(format!("{n:010}.removed")).symlink_metadata().is_ok()));
    }
}

/// A mark beside a link to another bank's checkpoint once removed the manifest of that checkpoint.
#[test]
fn a_mark_beside_a_link_changes_no_other_bank() {
    let scratch = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| scratch.path().join(name));
    bank(&one, 2);
    bank(&other, 3);
    let checkpoints = one.join("checkpoints");
    for number in [1, 2, 3, 9] {
        let name = format!("{number:010}");
        fs::write(checkpoints.join(format!("{name}.removed")), "").unwrap();
        if number > 2 {
            symlink(other.join("checkpoints/0000000003"), checkpoints.join(name)).unwrap();
        }
    }
    fs::remove_file(checkpoints.join("0000000002.removed")).unwrap();
    is_at(&one, 2);
    assert_eq!(numbers(&one), [2]);
    train(&Store::open(&one, &options()).unwrap(), 3);
    is_at(&one, 3);
    is_at(&other, 3);
    assert!(damage(&other).is_empty());
}

/// Regression test: a name of another program between the checkpoints counted as one of the newest
/// that are kept, and kept all of the log.
#[test]
fn a_name_without_a_manifest_is_no_checkpoint_to_keep() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join("checkpoints").join(name);
    let store = Store::open(dir.path(), &options()).unwrap();
    train(&store, 1);
    fs::create_dir(path("0000000002")).unwrap();
    fs::create_dir(path("0000000003")).unwrap();
    fs::write(path("0000000003/notes"), "a user's").unwrap();
    fs::write(path("0000000004"), "a user's").unwrap();
    symlink("nowhere", path("0000000005")).unwrap();
    assert_eq!(train(&store, 2), 6);
    assert_eq!(numbers(dir.path()), [1, 6]);
    for version in 3..=6 {
        train(&store, version);
        store.compact().unwrap();
    }
    assert_eq!(train(&store, 7), 11);
    assert_eq!(numbers(dir.path()), [10, 11]);
    assert!(!path("0000000002").exists(), "an empty directory goes with its neighbours");
    assert_eq!(fs::read_to_string(path("0000000003/notes")).unwrap(), "a user's");
    assert_eq!(fs::read_to_string(path("0000000004")).unwrap(), "a user's");
    let stats = store.stats();
    assert_eq!(stats.not_removed.len(), 3, "{:?}", stats.not_removed);
    assert!(stats.log_disk_bytes < 16 * 500 * (BYTES as u64 + 32), "{}", stats.log_disk_bytes);
    store.pin(3).unwrap_err();
    drop(store);
    assert_eq!(damage(dir.path()).len(), 3);
    is_at(dir.path(), 7);
}

/// Regression test: `verify` found no damage where an opening failed without a cure.
#[test]
fn what_an_opening_refuses_is_reported_with_the_cure() {
    /// The name of a stray, and what makes it.
    type Stray = (&'static str, fn(&Path));
    let make: [Stray; 10] = [
        ("checkpoints/0000000099", |path| fs::create_dir(path).unwrap()),
        ("checkpoints/0000000099", |path| fs::write(path, "a user's").unwrap()),
        ("checkpoints/0000000099", |path| symlink("nowhere", path).unwrap()),
        ("checkpoints/1764345600", |path| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("notes"), "a user's").unwrap();
        }),
        ("log/00000000deadbeef.seg", |path| fs::write(path, "a user's").unwrap()),
        ("log/0000000000001d01.seg", |path| symlink("nowhere", path).unwrap()),
        ("log/0000000000010000.seg", |path| fs::create_dir(path).unwrap()),
        ("log/0000000100000000.seg", |path| fs::write(path, vec![1; 100_000]).unwrap()),
        ("log/0000000100000000.seg", |path| fs::create_dir(path).unwrap()),
        ("log/0000000100000000.seg", make_fifo),
    ];
    for (name, make) in make {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("bank");
        bank(&dir, 3);
        let path = dir.join(name);
        if path.exists() {
            // The log needs a segment of this name, so its pages are missing too.
            continue;
        }
        make(&path);
        // These must end, too: an opening of a FIFO could wait for a writer without end.
        Store::open_read_only(&dir, &options(), None).unwrap_err();
        if name.starts_with("log") || path.join("notes").exists() {
            Store::roll_back(&dir, 2).unwrap_err();
        }
        is_refused_until_moved(&dir, &path, 3);
    }
}

/// Regression test: an opening of a bank whose newest checkpoint a person had renamed failed
/// without a cure, and `verify` found no damage. At the older checkpoint, the opening would cut the
/// log that the renamed one needs.
#[test]
fn a_renamed_checkpoint_is_named_with_the_cure() {
    for name in ["6", "0000000006.bak", "best"] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("bank");
        bank(&dir, 6);
        let checkpoints = dir.join("checkpoints");
        let renamed = checkpoints.join(name);
        fs::rename(checkpoints.join("0000000006"), &renamed).unwrap();
        let error = Store::open(&dir, &options()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("rename it to 0000000006"), "{error}");
        let found = damage(&dir);
        assert!(found.len() == 1 && found[0].0 == renamed, "{found:?}");
        fs::rename(&renamed, checkpoints.join("0000000006")).unwrap();
        is_at(&dir, 6);
        // Out of the folder, the renamed checkpoint does not matter.
        fs::rename(checkpoints.join("0000000006"), dir.with_extension("moved")).unwrap();
        is_at(&dir, 5);
    }
}

/// An old copy of a checkpoint's directory in the folder harms nothing: no opening cuts its log.
#[test]
fn a_copy_of_an_older_checkpoint_under_another_name_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    bank(dir.path(), 3);
    let checkpoints = dir.path().join("checkpoints");
    let aside = checkpoints.join("0000000002.bak");
    fs::create_dir(&aside).unwrap();
    for entry in fs::read_dir(checkpoints.join("0000000002")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, aside.join(path.file_name().unwrap())).unwrap();
    }
    assert!(damage(dir.path()).is_empty());
    is_at(dir.path(), 3);
    let store = Store::open(dir.path(), &options()).unwrap();
    (4..=9).for_each(|version| _ = train(&store, version));
    drop(store);
    is_at(dir.path(), 9);
    assert!(aside.join("manifest").exists());
}

/// Names in the log's folder that only look like segments' names count nowhere.
#[test]
fn names_that_only_look_like_segments_count_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    bank(dir.path(), 3);
    let before = summary(dir.path()).unwrap();
    for name in ["5.seg", "+000000000100000.seg", "000000000010000F.seg", "x.seg", "0.seg.seg"] {
        fs::write(dir.path().join("log").join(name), vec![7; 9000]).unwrap();
    }
    let after = summary(dir.path()).unwrap();
    assert_eq!(after.log_file_bytes, before.log_file_bytes);
    assert_eq!(after.segments, before.segments);
    assert!(damage(dir.path()).is_empty());
    is_at(dir.path(), 3);
    // A missing segment is still reported if another name gives its offset.
    let first = dir.path().join("log/0000000000000000.seg");
    fs::rename(&first, dir.path().join("log/0.seg")).unwrap();
    assert!(!damage(dir.path()).is_empty());
}
