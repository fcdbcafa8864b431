//! Tests a bank in a process whose root directory has no other files: a `chroot` without `/dev` and
//! `/proc`. The process is this test binary, run again. The tests are skipped with a message if the
//! system forbids a change of the root directory.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(all(target_os = "linux", not(miri)))]

use std::fs;
use std::path::Path;
use std::process::Command;

use embank_kv::{Error, Store, StoreOptions};

const ROOT: &str = "EMBANK_TEST_CHANGED_ROOT";
const FORBIDDEN: &str = "the system forbids chroot";

/// Changes the root directory of this process. False if the system forbids it.
fn change_root(root: &Path) -> bool {
    let user = rustix::process::geteuid();
    if !user.is_root() {
        // In a user namespace of its own, this process may change its root.
        // SAFETY: `unshare` takes no pointers.
        unsafe { libc::unshare(libc::CLONE_NEWUSER) };
    }
    let path = std::ffi::CString::new(root.to_str().unwrap()).unwrap();
    // SAFETY: the path is a valid C string that lives for the call.
    let changed = unsafe { libc::chroot(path.as_ptr()) } == 0;
    changed && std::env::set_current_dir("/").is_ok()
}

/// Runs an ignored test of this file in a process of its own, in the root directory `root`.
fn in_root(root: &Path, test: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--ignored", "--nocapture", "--test-threads", "1"]);
    let done = child.env(ROOT, root).output().unwrap();
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if text[0].contains(FORBIDDEN) {
        return println!("left out: {FORBIDDEN}");
    }
    assert!(done.status.success(), "{test} fails: {}", text.concat());
    assert!(text[0].contains("done"), "{test} did nothing: {}", text.concat());
}

/// Regression test: an opening failed with "No such file or directory" and the bank's name, because
/// there was no `/dev/null`, and left an empty directory.
#[test]
fn a_bank_needs_no_file_outside_its_directory() {
    let root = tempfile::tempdir().unwrap();
    in_root(root.path(), "works_in_an_empty_root");
    let names: Vec<_> = fs::read_dir(root.path()).unwrap().collect();
    assert!(names.len() <= 1, "{names:?}");
}

#[test]
#[ignore = "runs in a process of its own"]
fn works_in_an_empty_root() {
    let Some(root) = std::env::var_os(ROOT) else { return };
    if !change_root(Path::new(&root)) {
        return println!("{FORBIDDEN}");
    }
    let (bank, copy) = (Path::new("/bank"), Path::new("/copy"));
    let options = StoreOptions { memory_budget_bytes: 8 << 20, ..StoreOptions::default() };
    let store = Store::open(bank, &options).unwrap();
    store.create_table("rows", 8, b"").unwrap();
    store.checkpoint(b"first").unwrap();
    let error = Store::open(bank, &options).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    // A forked child gives up the locks of its parent.
    // SAFETY: the child calls only `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: the status pointer may be null.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    drop(store);
    let store = Store::open(bank, &options).unwrap();
    assert_eq!(store.recovered().unwrap().blob, b"first");
    Store::copy_checkpoint(bank, None, copy).unwrap();
    drop(store);
    fs::remove_dir_all(copy).unwrap();
    println!("done");
}

/// Regression test: an opening that failed before it had the bank's lock left the directories that
/// it had made. Two kinds of failure: no descriptor for the lock, and none for the directory.
#[test]
fn an_opening_that_fails_early_leaves_no_directory() {
    let root = tempfile::tempdir().unwrap();
    in_root(root.path(), "fails_without_descriptors");
}

#[test]
#[ignore = "runs in a process of its own"]
fn fails_without_descriptors() {
    let Some(root) = std::env::var_os(ROOT) else { return };
    let bank = Path::new(&root).join("folder/bank");
    let open = || {
        Store::open(
            &bank,
            &StoreOptions { memory_budget_bytes: 8 << 20, ..StoreOptions::default() },
        )
    };
    let used = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let mut failures = 0;
    for free in 0..64 {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointers lead to a local variable.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = used + free;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        let opened = open();
        match opened {
            Ok(store) => {
                drop(store);
                break;
            }
            Err(error) => {
                failures += 1;
                let folder = bank.parent().unwrap();
                assert!(!folder.exists(), "{free} free descriptors: {error}");
            }
        }
    }
    assert!(failures > 2, "{failures}");
    println!("done");
}
