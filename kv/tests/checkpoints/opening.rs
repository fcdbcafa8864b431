//! Tests the opening of a bank: which files it makes, and when it is refused. A refused opening
//! leaves no files.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(all(target_os = "linux", not(miri)))]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::put;
use crate::common::reading::keys;
use embank_kv::{CompactionOptions, DeviceChoice, Error, Store, StoreOptions};

const BYTES: usize = 16;

fn options(budget_bytes: u64) -> StoreOptions {
    let compaction = CompactionOptions { background: false, ..CompactionOptions::default() };
    StoreOptions { memory_budget_bytes: budget_bytes, compaction, ..StoreOptions::default() }
}

fn must_exist() -> StoreOptions {
    StoreOptions { create: false, ..options(1 << 20) }
}

fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect()
}

fn refused(dir: &Path, options: &StoreOptions) -> String {
    Store::open(dir, options).unwrap_err().to_string()
}

/// Regression test: a typo in the path, or a file system that was not mounted, made training begin
/// with an empty bank.
#[test]
fn a_bank_that_must_be_there_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("runs/clicks.bnak");
    let error = refused(&typo, &must_exist());
    assert!(error.contains("no such directory") && error.contains("mounted"), "{error}");
    assert_eq!(names(dir.path()), [""; 0], "nothing is made");
    // An empty directory may be a mount point without its file system, so it is refused too.
    let error = refused(dir.path(), &must_exist());
    assert!(error.contains("the directory is empty"), "{error}");
    assert_eq!(names(dir.path()), [""; 0], "no LOCK either");
    // A directory with only a LOCK file is no bank. A process that is killed early leaves this
    // file.
    fs::write(dir.path().join("LOCK"), "").unwrap();
    refused(dir.path(), &must_exist());
    let error = refused(&dir.path().join("LOCK"), &must_exist());
    assert!(error.contains("is a file"), "{error}");
    drop(Store::open(dir.path(), &options(1 << 20)).unwrap());
    Store::open(dir.path(), &must_exist()).unwrap();
}

/// Regression test: a refused opening left a `LOCK` file, or the directory of a bank that it had
/// not made.
#[test]
fn a_refused_open_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "mine").unwrap();
    let error = refused(dir.path(), &options(1 << 20));
    assert!(error.contains("thesis.tex"), "{error}");
    assert_eq!(names(dir.path()), ["thesis.tex"]);
    let bank = dir.path().join("bank");
    Store::open(&bank, &options(1 << 20)).unwrap().checkpoint(b"").unwrap();
    Store::copy_checkpoint(&bank, None, dir.path()).unwrap_err();
    assert_eq!(names(dir.path()), ["bank", "thesis.tex"]);
    let new = dir.path().join("a/b/c");
    let wrong = [
        StoreOptions { checkpoints_kept: 0, ..options(1 << 20) },
        StoreOptions { page_size_bytes: Some(5000), ..options(1 << 20) },
        StoreOptions { segment_size_bytes: Some(5000), ..options(1 << 20) },
        StoreOptions { disk_quota_bytes: Some(1), ..options(1 << 20) },
        options(1000),
        StoreOptions { page_size_bytes: Some(4 << 20), ..options(1 << 20) },
        // The system refuses the address space for this budget. The opening has already made files
        // before it asks for the address space.
        options(1 << 50),
    ];
    for options in wrong {
        let error = refused(&new, &options);
        assert!(!dir.path().join("a").exists(), "{error}");
        fs::create_dir_all(&new).unwrap();
        refused(&new, &options);
        assert_eq!(names(&new), [""; 0], "{error}");
        fs::remove_dir_all(dir.path().join("a")).unwrap();
    }
    // The device refuses to open after the store has made the bank's files.
    let failed = Store::open_on(&new, &options(1 << 20), |_| {
        Err(Error::DeviceUnavailable { device: "io_uring", reason: "EPERM".into() })
    });
    failed.unwrap_err();
    assert!(!dir.path().join("a").exists());
}

/// An opening that finds the bank locked must not remove files that the other opening made.
#[test]
fn an_open_that_finds_the_bank_locked_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(1 << 20)).unwrap();
    let before = names(dir.path());
    let error = Store::open(dir.path(), &options(1 << 20)).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    assert_eq!(names(dir.path()), before);
    store.checkpoint(b"").unwrap();
}

/// An opening removes the segments of a bank that has no checkpoint. It must leave other files in
/// the log's folder.
#[test]
fn files_of_a_user_in_the_log_of_a_new_bank_stay() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path(), &options(1 << 20)).unwrap());
    let own = ["notes.seg", "0123.seg", "+00000000000000f.seg", "probe.tmp", "x.new"];
    for name in own {
        fs::write(dir.path().join("log").join(name), "mine").unwrap();
    }
    let stale = dir.path().join("log/0000000000000000.seg");
    fs::write(&stale, "stale").unwrap();
    drop(Store::open(dir.path(), &options(1 << 20)).unwrap());
    for name in own {
        assert_eq!(fs::read_to_string(dir.path().join("log").join(name)).unwrap(), "mine");
    }
    assert!(!stale.exists());
}

/// Regression test: the error about a small budget named a needed budget that was too small itself.
/// The next opening with that budget failed, and a scan needed an even larger budget.
#[test]
fn the_budget_that_is_asked_for_is_the_last() {
    for (page_bytes, rows) in [
        (8 << 10, 100),
        (64 << 10, 60_000),
        (256 << 10, 400_000),
        (1 << 20, 900_000),
        (4 << 20, 300_000),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let large = StoreOptions { page_size_bytes: Some(page_bytes), ..options(512 << 20) };
        let store = Store::open(dir.path(), &large).unwrap();
        let table = store.create_table("rows", BYTES as u32, b"").unwrap();
        put(&store, table, &keys(rows), 1, BYTES);
        store.checkpoint(b"").unwrap();
        drop(store);
        for budget_bytes in [1 << 10, 300 << 10, 8 << 20, 40 << 20] {
            let place = format!("pages of {page_bytes}, {rows} rows, {budget_bytes}");
            let needed_bytes = match Store::open(dir.path(), &options(budget_bytes)) {
                Err(Error::BudgetTooSmall { needed_bytes, .. }) => needed_bytes,
                Err(error) => panic!("{place}: {error}"),
                // A budget that suffices to open the bank may be too small for a scan.
                Ok(store) => match store.scan(table) {
                    Err(Error::BudgetTooSmall { needed_bytes, .. }) => needed_bytes,
                    Err(error) => panic!("{place}: {error}"),
                    Ok(_) => continue,
                },
            };
            let store = Store::open(dir.path(), &options(needed_bytes))
                .unwrap_or_else(|error| panic!("{place}: {needed_bytes}: {error}"));
            let mut scan = store
                .scan(table)
                .unwrap_or_else(|error| panic!("{place}: {needed_bytes}: {error}"));
            assert!(scan.next_row().unwrap().is_some());
            drop(scan);
            put(&store, table, &keys(rows), 2, BYTES);
        }
    }
}

/// If the user has no permission to read a file of the bank, the error says so. The test covers
/// each file.
#[test]
fn a_bank_that_may_not_be_read_says_so() {
    if !rustix::process::geteuid().is_root() {
        return println!("left out: it takes two users");
    }
    for private in [
        ".",
        "BANK",
        "log",
        "checkpoints",
        "checkpoints/0000000001",
        "checkpoints/0000000001/manifest",
        "checkpoints/0000000001/blob",
        "checkpoints/0000000001/index.0000000001",
        "log/0000000000000000.seg",
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let bank = dir.path().join("bank");
        let store = Store::open(&bank, &options(1 << 20)).unwrap();
        let table = store.create_table("rows", BYTES as u32, b"").unwrap();
        put(&store, table, &keys(5_000), 1, BYTES);
        store.checkpoint(b"").unwrap();
        let denied = bank.join(private);
        let mode = if denied.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(&denied, Permissions::from_mode(mode)).unwrap();
        let path = bank.clone();
        let opened = std::thread::spawn(move || {
            // SAFETY: the call takes no pointers. It changes only this thread and the threads that
            // it starts.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
            assert_eq!(done, 0);
            let device = DeviceChoice::Threads;
            let reader = StoreOptions { device, ..options(1 << 20) };
            Store::open_read_only(&path, &reader, None).map(drop).unwrap_err().to_string()
        });
        let error = opened.join().unwrap();
        assert!(error.contains("Permission denied"), "{private}: {error}");
        assert!(error.contains("bank"), "{private}: {error}");
    }
}
