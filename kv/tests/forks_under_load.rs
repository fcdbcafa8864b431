//! Tests children that are forked while other threads of the parent use stores. Each child opens
//! its own bank.
//!
//! The forking process is this test binary, run again, so that it has only the threads of this
//! test. `EMBANK_TEST_FORKS` sets the number of forks: `EMBANK_TEST_FORKS=5000 cargo test --package
//! embank-kv --test forks_under_load`.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(all(unix, not(miri)))]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};

use common::threads::{await_no_thread_named, await_thread_named};
use common::{Random, options, peek, put, value};
use embank_kv::{DeviceChoice, Store, StoreOptions};

const ROLE: &str = "EMBANK_TEST_FORKER";
/// If this variable is set, threads read the banks. Otherwise `io_uring` reads them, if the system
/// has it.
const BY_THREADS: &str = "EMBANK_TEST_BY_THREADS";
const BYTES: usize = 256;
/// Number of rows. Their records take more than four times the memory budget.
const ROWS: u64 = 16_000;
/// Seconds after which a child counts as hung.
const CHILD_S_MAX: u32 = 60;

fn forks() -> u64 {
    std::env::var("EMBANK_TEST_FORKS").map_or(150, |forks| forks.parse().unwrap())
}

fn by_threads() -> bool {
    std::env::var_os(BY_THREADS).is_some()
}

fn small() -> StoreOptions {
    let device = if by_threads() { DeviceChoice::Threads } else { DeviceChoice::Auto };
    StoreOptions { device, ..options(1 << 20) }
}

/// The work of a child: it uses a bank of its own.
fn child(dir: &Path) {
    let store = Store::open(dir, &small()).unwrap();
    let table = store.create_table("rows", BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..4_000).collect();
    put(&store, table, &keys, 1, BYTES);
    store.checkpoint(b"").unwrap();
    assert_eq!(peek(&store, table, &[17]).unwrap(), [Some(value(17, 1, BYTES))]);
    drop(store);
    let store = Store::open(dir, &small()).unwrap();
    assert_eq!(store.stats().live_rows, 4_000);
    if by_threads() {
        // Peeks rows that the reopened bank has on disk. The child must start its own reading
        // threads, because a fork does not copy the parent's threads.
        peek(&store, table, &keys[..64]).unwrap();
        await_thread_named("embank-read-");
        drop(store);
        await_no_thread_named("embank-read-");
    }
}

/// Forks a child and waits for it. The error names the signal or the exit status.
fn fork_and_wait(dir: &Path) -> Result<(), String> {
    // SAFETY: the child has one thread, runs `child` and ends. An alarm ends it if it hangs.
    let id = unsafe { libc::fork() };
    assert!(id >= 0, "{}", std::io::Error::last_os_error());
    if id == 0 {
        // SAFETY: `alarm` takes a number and only requests a signal.
        unsafe { libc::alarm(CHILD_S_MAX) };
        let done = catch_unwind(AssertUnwindSafe(|| child(dir)));
        // SAFETY: `_exit` ends the process without running code that may need the parent's threads.
        unsafe { libc::_exit(i32::from(done.is_err())) }
    }
    let mut status = 0;
    // SAFETY: the call waits for a child of this process, and `status` is a local variable.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        return Ok(());
    }
    Err(if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM {
        "hangs".to_owned()
    } else {
        format!("ended with status {status}")
    })
}

/// Runs `work` in a thread that the C library starts. A thread of the standard library takes a lock
/// when it begins and ends. A child that is forked while the lock is held could start no thread.
fn in_a_new_thread(work: &(dyn Fn() + Sync)) {
    extern "C" fn begin(work: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: `in_a_new_thread` passes a reference to `work`, and waits for this thread.
        let work = unsafe { &*work.cast::<&(dyn Fn() + Sync)>() };
        work();
        std::ptr::null_mut()
    }
    let mut thread = std::mem::MaybeUninit::uninit();
    let argument = (&raw const work).cast_mut().cast();
    // SAFETY: `begin` gets the argument that it expects. The argument lives until this function has
    // joined the thread.
    unsafe {
        let started = libc::pthread_create(thread.as_mut_ptr(), std::ptr::null(), begin, argument);
        assert_eq!(started, 0);
        libc::pthread_join(thread.assume_init(), std::ptr::null_mut());
    }
}

/// Runs in the forking process. Does nothing in an ordinary run of the tests.
#[test]
fn forker() {
    let Ok(dir) = std::env::var(ROLE) else { return };
    let dir = Path::new(&dir);
    let parent = dir.join("parent");
    let options = StoreOptions { checkpoints_kept: 1, ..small() };
    let store = Store::open(&parent, &options).unwrap();
    let table = store.create_table("rows", BYTES as u32, b"").unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    put(&store, table, &keys, 1, BYTES);
    let stop = AtomicBool::new(false);
    let going = || !stop.load(Ordering::Relaxed);
    let (store, going) = (&store, &going);
    let failed = std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let mut random = Random::new();
                for round in 2.. {
                    if !going() {
                        break;
                    }
                    let keys: Vec<u64> = (0..64).map(|_| random.below(ROWS)).collect();
                    match thread {
                        0 => drop(put(store, table, &keys, round, BYTES)),
                        1 => drop(peek(store, table, &keys).unwrap()),
                        _ => drop(store.promote(table, &keys).unwrap()),
                    }
                }
            });
        }
        scope.spawn(|| {
            while going() {
                store.checkpoint(b"").unwrap();
            }
        });
        // Threads that begin and end take and release the store's per-thread slots and memory
        // during the forks.
        scope.spawn(|| {
            while going() {
                in_a_new_thread(&|| drop(peek(store, table, &[1]).unwrap()));
            }
        });
        let mut failed = Vec::new();
        for number in 0..forks() {
            let own = dir.join(number.to_string());
            failed.extend(fork_and_wait(&own).err().map(|how| format!("child {number} {how}")));
            let _ = std::fs::remove_dir_all(&own);
            if failed.len() > 2 {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        failed
    });
    assert!(failed.is_empty(), "{failed:?}");
}

fn run(way: &str, by_threads: bool) -> ExitStatus {
    let dir = tempfile::tempdir().unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "forker", "--nocapture"])
        .env(ROLE, dir.path())
        .env("EMBANK_PINS", way)
        .envs(by_threads.then_some((BY_THREADS, "1")))
        .status()
        .unwrap()
}

/// Regression test: 1 of 100 children hung in the fork handler. The handler unlocked a lock for
/// which a thread of the parent waited.
#[test]
fn no_child_hangs() {
    assert!(run("slots", false).success());
}

/// Regression test: each child hung in its first barrier, which waits for pinned threads. The child
/// waited for pins of threads that exist only in the parent.
#[test]
fn no_child_hangs_that_pins_by_the_portable_way() {
    assert!(run("portable", false).success());
}

/// The banks of a process share reading threads, which a child does not inherit. A child must not
/// rely on these threads, or wait for a lock that one of them held at the fork.
#[test]
fn no_child_hangs_that_reads_by_threads() {
    assert!(run("slots", true).success());
}
