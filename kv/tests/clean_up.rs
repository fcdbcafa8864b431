//! Tests the clean-up of a bank whose files can't be renamed or removed. The clean-up reports such
//! a file and continues with the next. The bank still opens.
//!
//! The tests of overlay file systems run in a process with its own mount namespace. They are
//! skipped with a message if the system forbids that.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(all(target_os = "linux", not(miri)))]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::reading::{by_hand, keys, rows_of};
use common::{peek, put};
use embank_kv::inspect::{VerifyOptions, summary, verify};
use embank_kv::{Store, StoreOptions};

const BYTES: usize = 120;
const FOUND: &str = "EMBANK_TEST_CLEAN_UP_MOUNT";
const NOBODY: libc::uid_t = 65_534;

fn options(kept: usize) -> StoreOptions {
    let segment_size_bytes = Some(64 << 10);
    StoreOptions { page_size_bytes: Some(8 << 10), segment_size_bytes, ..by_hand(kept) }
}

/// Makes a bank and takes `versions` checkpoints. Each checkpoint has a new version of all rows.
fn bank_of(dir: &Path, versions: u64, kept: usize) {
    let store = Store::open(dir, &options(kept)).unwrap();
    let table = store.create_table("rows", BYTES as u32, b"").unwrap();
    for version in 1..=versions {
        put(&store, table, &keys(500), version, BYTES);
        assert_eq!(store.checkpoint(&version.to_le_bytes()).unwrap(), version);
    }
}

/// For each version of `versions`, changes all rows, compacts, and takes one checkpoint.
fn go_on(store: &Store, versions: std::ops::RangeInclusive<u64>) {
    let table = store.tables()[0].id;
    for version in versions {
        put(store, table, &keys(500), version, BYTES);
        store.compact().unwrap();
        store.checkpoint(&version.to_le_bytes()).unwrap();
    }
}

fn is_at(dir: &Path, version: u64) {
    let store = Store::open(dir, &options(2)).unwrap();
    assert_eq!(store.recovered().unwrap().blob, version.to_le_bytes());
    let table = store.tables()[0].id;
    assert_eq!(peek(&store, table, &keys(500)).unwrap(), rows_of(&keys(500), version, BYTES));
    drop(store);
    let found = verify(dir, &VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(found.is_clean(), "{found:?}");
}

fn checkpoint_dir(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("checkpoints/{number:010}"))
}

fn names(dir: &Path) -> Vec<String> {
    let of = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(of).collect();
    names.sort();
    names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect()
}

fn numbers(dir: &Path) -> Vec<u64> {
    summary(dir).unwrap().checkpoints.iter().map(|checkpoint| checkpoint.number).collect()
}

/// Makes a directory read-only, so that only root can remove files from it.
fn lock_up(dir: &Path) {
    fs::set_permissions(dir, Permissions::from_mode(0o555)).unwrap();
}

/// Runs a test in a thread of an ordinary user, because root may remove every file.
fn as_a_user(test: impl FnOnce(&Path) + Send + 'static) {
    let ran = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            // SAFETY: the call takes no pointers. Unlike the C library's function, this system call
            // changes only this thread and the threads that it starts.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(done, 0);
        }
        let dir = tempfile::tempdir().unwrap();
        test(dir.path());
        let opened = Command::new("chmod").args(["-R", "u+rwX"]).arg(dir.path()).status();
        assert!(opened.unwrap().success());
    });
    ran.join().unwrap();
}

/// Regression test: opening a bank failed if a checkpoint directory of another user could not be
/// removed.
#[test]
fn what_another_user_left_does_not_keep_a_bank_from_opening() {
    as_a_user(|dir| {
        bank_of(dir, 4, 4);
        // Simulates an interrupted removal of checkpoint 2 and an interrupted checkpoint 5.
        let partial = dir.join("checkpoints/0000000002.partial");
        fs::rename(checkpoint_dir(dir, 2), &partial).unwrap();
        let unfinished = dir.join("checkpoints/0000000005.partial");
        fs::create_dir(&unfinished).unwrap();
        fs::write(unfinished.join("blob"), "half").unwrap();
        lock_up(&partial);
        lock_up(&unfinished);
        let store = Store::open(dir, &options(2)).unwrap();
        let told = store.stats().not_removed;
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("0000000002.partial") || told[1].contains("0000000002.partial"));
        assert!(told.iter().all(|line| line.contains("Permission denied")), "{told:?}");
        // The next checkpoint gets number 5, the number of the interrupted one.
        go_on(&store, 5..=8);
        assert_eq!(numbers(dir), [7, 8]);
        let left = summary(dir).unwrap().not_removed;
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left[0].file_bytes > 0);
        drop(store);
        is_at(dir, 8);
        // Once the directories can be removed, the next opening removes them and reports no
        // failure.
        for path in [&partial, &unfinished] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        let store = Store::open(dir, &options(2)).unwrap();
        assert_eq!(store.stats().not_removed, [""; 0]);
        assert_eq!(names(&dir.join("checkpoints")), ["0000000007", "0000000008"]);
    });
}

/// Regression test: pruning stopped at the first checkpoint that it could not remove. The log then
/// grew without limit.
#[test]
fn pruning_goes_on_where_one_checkpoint_cant_be_removed() {
    as_a_user(|dir| {
        bank_of(dir, 2, 2);
        lock_up(&checkpoint_dir(dir, 1));
        let store = Store::open(dir, &options(2)).unwrap();
        go_on(&store, 3..=12);
        assert_eq!(numbers(dir), [11, 12]);
        let stats = store.stats();
        assert_eq!(stats.not_removed.len(), 1, "{:?}", stats.not_removed);
        assert!(stats.not_removed[0].contains("0000000001"), "{:?}", stats.not_removed);
        // The log of the unremovable checkpoint 1 is freed. Only the log of the two kept
        // checkpoints is left.
        assert!(stats.log_disk_bytes < 16 * 500 * (BYTES as u64 + 32), "{}", stats.log_disk_bytes);
        drop(store);
        is_at(dir, 12);
    });
}

/// If the folder of the checkpoints is read-only, a checkpoint fails. The bank still opens and its
/// rows can be read.
#[test]
fn a_folder_that_takes_no_changes_is_told_and_harms_nothing() {
    as_a_user(|dir| {
        bank_of(dir, 3, 8);
        lock_up(&dir.join("checkpoints"));
        let store = Store::open(dir, &options(1)).unwrap();
        let error = store.checkpoint(b"").unwrap_err();
        assert!(error.to_string().contains("Permission denied"), "{error}");
        drop(store);
        fs::set_permissions(dir.join("checkpoints"), Permissions::from_mode(0o755)).unwrap();
        is_at(dir, 3);
    });
}

/// Regression test: if one segment could not be removed, all later segments stayed too.
#[test]
fn segments_of_the_log_that_stay_do_not_keep_others() {
    if !rustix::process::geteuid().is_root() {
        return println!("left out: it takes two users");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    bank_of(dir.path(), 2, 2);
    // The log's folder gets the sticky bit, and the first segment belongs to root. So the ordinary
    // user can't remove that segment.
    let log = dir.path().join("log");
    let first = names(&log)[0].clone();
    let chowned = Command::new("chown").arg("-R").arg(NOBODY.to_string()).arg(dir.path()).status();
    assert!(chowned.unwrap().success());
    let status = Command::new("chown").arg("0").arg(&log).arg(log.join(&first)).status();
    assert!(status.unwrap().success());
    fs::set_permissions(&log, Permissions::from_mode(0o1777)).unwrap();
    let path = dir.path().to_owned();
    as_a_user(move |_| {
        let store = Store::open(&path, &options(1)).unwrap();
        go_on(&store, 3..=9);
        let stats = store.stats();
        assert_eq!(stats.not_removed.len(), 1, "{:?}", stats.not_removed);
        assert!(stats.not_removed[0].contains(&first), "{:?}", stats.not_removed);
        assert!(stats.segments_freed > 5, "{}", stats.segments_freed);
        assert_eq!(stats.compaction_stopped, None);
        drop(store);
        is_at(&path, 9);
    });
}

/// Regression test: an opening that could not remove a segment after the log's end cut it to length
/// 0, even if it also belonged to a copy of the bank.
#[test]
fn a_segment_that_a_copy_shares_is_not_cut_where_it_cant_be_removed() {
    for by_hand in [false, true] {
        as_a_user(move |dir| {
            let (bank, copy) = (dir.join("bank"), dir.join("copy"));
            bank_of(&bank, 14, 14);
            let segments = names(&bank.join("log"));
            assert!(segments.len() > 4, "{segments:?}");
            if by_hand {
                // Hard links that no copier of the store made.
                fs::create_dir(&copy).unwrap();
                for name in &segments {
                    fs::hard_link(bank.join("log").join(name), copy.join(name)).unwrap();
                }
            } else {
                Store::copy_checkpoint(&bank, None, &copy).unwrap();
            }
            let log = if by_hand { copy.clone() } else { copy.join("log") };
            let contents = || -> Vec<_> {
                names(&log).iter().map(|name| fs::read(log.join(name)).unwrap()).collect()
            };
            let before = contents();
            assert!(Store::roll_back(&bank, 2).unwrap().len() > 2);
            lock_up(&bank.join("log"));
            let error = Store::open(&bank, &options(2)).unwrap_err().to_string();
            assert!(error.contains("remove") && error.contains("Permission denied"), "{error}");
            assert!(contents() == before, "the opening has changed the copy");
            fs::set_permissions(bank.join("log"), Permissions::from_mode(0o755)).unwrap();
            is_at(&bank, 2);
            assert!(contents() == before, "the opening has changed the copy");
            if !by_hand {
                is_at(&copy, 14);
            }
        });
    }
}

/// After a run as root, `LOCK`, the log's last segment and the checkpoints' files belong to root.
/// The owner of the folders must still be able to continue with the bank.
#[test]
fn the_owner_of_the_folders_goes_on_after_a_run_as_root() {
    if !rustix::process::geteuid().is_root() {
        return println!("left out: it takes two users");
    }
    let dir = tempfile::tempdir().unwrap();
    bank_of(dir.path(), 3, 8);
    let folders = [dir.path().to_owned(), dir.path().join("log"), dir.path().join("checkpoints")];
    let chowned = Command::new("chown").arg(NOBODY.to_string()).args(folders).status();
    assert!(chowned.unwrap().success());
    let path = dir.path().to_owned();
    as_a_user(move |_| {
        let store = Store::open(&path, &options(2)).unwrap();
        go_on(&store, 4..=6);
        // The folders' owner can rename root's checkpoint directories, but can't remove the files
        // in them.
        assert_eq!(store.stats().not_removed.len(), 3, "{:?}", store.stats().not_removed);
        drop(store);
        is_at(&path, 6);
    });
}

/// The removal of a checkpoint begins with a mark, the file `.removed`. The test simulates a crash
/// at each later step of the removal.
#[test]
fn a_half_removed_checkpoint_never_looks_like_a_whole_one() {
    for (n, state) in ["whole", "no manifest", "empty", "gone"].into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        bank_of(dir.path(), 3, 8);
        fs::write(dir.path().join("checkpoints/0000000003.removed"), "").unwrap();
        let last = checkpoint_dir(dir.path(), 3);
        match n {
            0 => {}
            1 => fs::remove_file(last.join("manifest")).unwrap(),
            2 => {
                fs::remove_dir_all(&last).unwrap();
                fs::create_dir(&last).unwrap();
            }
            _ => fs::remove_dir_all(&last).unwrap(),
        }
        assert_eq!(numbers(dir.path()), [1, 2], "{state}");
        let reader = Store::open_read_only(dir.path(), &options(1), None).unwrap();
        assert_eq!(reader.reading().unwrap().checkpoint, 2, "{state}");
        assert!(Store::open_read_only(dir.path(), &options(1), Some(3)).is_err(), "{state}");
        drop(reader);
        is_at(dir.path(), 2);
        let left = names(&dir.path().join("checkpoints"));
        assert_eq!(left, ["0000000001", "0000000002"], "{state}");
        // A new checkpoint gets number 3 again. The old mark must not apply to it.
        let store = Store::open(dir.path(), &options(8)).unwrap();
        go_on(&store, 7..=7);
        drop(store);
        assert_eq!(numbers(dir.path()), [1, 2, 3], "{state}");
        is_at(dir.path(), 7);
    }
}

/// The store leaves files alone whose names it does not use.
#[test]
fn files_of_a_user_beside_checkpoints_and_segments_stay() {
    let dir = tempfile::tempdir().unwrap();
    bank_of(dir.path(), 2, 2);
    let own = [
        "checkpoints/notes.partial",
        "checkpoints/5x.partial",
        "checkpoints/mine.removed",
        "log/plan.new",
        "log/0123.new",
        "log/+000000000000001.new",
    ];
    for name in own {
        fs::write(dir.path().join(name), "a user's").unwrap();
    }
    is_at(dir.path(), 2);
    for name in own {
        assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), "a user's", "{name}");
    }
}

/// Runs an ignored test of this file in a process that may mount file systems.
fn in_own_namespace(test: &str) {
    let dir = tempfile::tempdir().unwrap();
    // If this process is not root, the child becomes root of a new user namespace.
    let flags: &[&[&str]] = &[&["-m"], &["-r", "-m"]];
    let mount = "mkdir -p $0/l $0/u $0/w $0/m && mount -t tmpfs none $0/u && mkdir $0/u/u $0/u/w && \
                 mount -t overlay overlay -o lowerdir=$0/l,upperdir=$0/u/u,workdir=$0/u/w $0/m";
    let may = |flags: &&&[&str]| {
        let mut tried = Command::new("unshare");
        tried.args(**flags).args(["sh", "-c", mount]).arg(dir.path());
        tried.output().is_ok_and(|done| done.status.success())
    };
    let Some(flags) = flags.iter().find(may) else {
        println!("left out: no overlay can be mounted here");
        return;
    };
    bank_of(&dir.path().join("l/b"), 4, 2);
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new("unshare");
    child.args(*flags).args(["sh", "-c", &format!("{mount} && exec \"$@\"")]).arg(dir.path());
    child.arg(program).args([test, "--exact", "--ignored", "--nocapture"]);
    let done = child.env(FOUND, dir.path().join("m/b")).output().unwrap();
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(done.status.success(), "{test} fails: {}", text.concat());
    assert!(text[0].contains("1 passed"), "there is no test {test}: {}", text.concat());
}

/// In the child process, returns the path of the bank. Its files are on the overlay's lower layer.
/// Returns `None` in an ordinary run.
fn overlaid() -> Option<PathBuf> {
    std::env::var_os(FOUND).map(Into::into)
}

/// Regression test on an overlay file system: a bank that was to keep 2 checkpoints kept all 24.
/// The log grew without limit.
#[test]
fn a_bank_of_a_lower_layer_lets_go_of_its_checkpoints() {
    in_own_namespace("prunes_on_an_overlay");
}

#[test]
#[ignore = "runs in a mount namespace of its own"]
fn prunes_on_an_overlay() {
    let Some(dir) = overlaid() else { return };
    let renamed = fs::rename(checkpoint_dir(&dir, 3), dir.join("elsewhere"));
    if renamed.is_ok() {
        // This kernel can rename directories of the lower layer, so the store's fallback is not
        // used.
        fs::rename(dir.join("elsewhere"), checkpoint_dir(&dir, 3)).unwrap();
    }
    let store = Store::open(&dir, &options(2)).unwrap();
    go_on(&store, 5..=24);
    assert_eq!(numbers(&dir), [23, 24]);
    assert_eq!(names(&dir.join("checkpoints")), ["0000000023", "0000000024"]);
    let stats = store.stats();
    assert_eq!(stats.not_removed, [""; 0]);
    assert!(stats.log_disk_bytes < 16 * 500 * (BYTES as u64 + 32), "{}", stats.log_disk_bytes);
    drop(store);
    is_at(&dir, 24);
}

#[test]
fn a_bank_of_a_lower_layer_is_rolled_back() {
    in_own_namespace("rolls_back_on_an_overlay");
}

#[test]
#[ignore = "runs in a mount namespace of its own"]
fn rolls_back_on_an_overlay() {
    let Some(dir) = overlaid() else { return };
    assert_eq!(numbers(&dir), [3, 4]);
    assert_eq!(Store::roll_back(&dir, 3).unwrap(), [4]);
    assert_eq!(names(&dir.join("checkpoints")), ["0000000003"]);
    is_at(&dir, 3);
    let store = Store::open(&dir, &options(2)).unwrap();
    go_on(&store, 9..=9);
    drop(store);
    assert_eq!(numbers(&dir), [3, 4]);
    is_at(&dir, 9);
}

/// A reader holds a checkpoint on the lower layer. The checkpoint must stay until the reader is
/// closed.
#[test]
fn a_checkpoint_of_a_lower_layer_that_is_read_stays() {
    in_own_namespace("is_read_on_an_overlay");
}

#[test]
#[ignore = "runs in a mount namespace of its own"]
fn is_read_on_an_overlay() {
    let Some(dir) = overlaid() else { return };
    let reader = Store::open_read_only(&dir, &options(1), Some(3)).unwrap();
    let table = reader.tables()[0].id;
    let store = Store::open(&dir, &options(1)).unwrap();
    go_on(&store, 5..=6);
    assert_eq!(peek(&reader, table, &keys(500)).unwrap(), rows_of(&keys(500), 3, BYTES));
    assert_eq!(numbers(&dir), [3, 6]);
    drop(reader);
    go_on(&store, 7..=7);
    assert_eq!(numbers(&dir), [7]);
}
