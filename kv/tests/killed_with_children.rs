//! Tests a process that is killed while its forked child lives. The child must not keep the
//! parent's lock on a bank or the parent's hold on a checkpoint.
//!
//! The process is this test binary, run again.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(all(unix, not(miri)))]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use common::put;
use common::reading::by_hand;
use embank_kv::{Error, Store, StoreOptions};

const ROLE: &str = "EMBANK_TEST_KILLED_ROLE";
const BYTES: usize = 16;

/// A process that has forked a child. The child lives until `lives` is dropped, even if the process
/// is killed.
struct Forker {
    process: Child,
    lives: Option<ChildStdin>,
}

impl Forker {
    /// Starts the process, and waits until it has opened the bank and forked.
    fn start(role: &str, dir: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "forker", "--nocapture"])
            .env(ROLE, format!("{role}:{}", dir.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lives = process.stdin.take();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        // The loop ends: the process prints the line, or it ends and `lines` ends.
        let forked = lines.any(|line| line.unwrap().ends_with("forked"));
        assert!(forked, "the process ended early");
        Forker { process, lives }
    }

    fn id(&self) -> u32 {
        self.process.id()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Forker {
    fn drop(&mut self) {
        drop(self.lives.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Forks a child that does nothing until its standard input is closed. Returns when the fork has
/// returned in the child: until then, the child has its parent's locks.
fn fork_a_child() {
    let (mut forked, tell) = std::io::pipe().unwrap();
    // SAFETY: the child has one thread. It only uses descriptors and then ends.
    let id = unsafe { libc::fork() };
    assert!(id >= 0, "{}", std::io::Error::last_os_error());
    if id == 0 {
        let mut byte = 0u8;
        // SAFETY: `write` and `read` get a local variable of one byte. `_exit` ends the process
        // without running code that may need the parent's threads.
        unsafe {
            libc::write(tell.as_raw_fd(), (&raw const byte).cast(), 1);
            libc::read(0, (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    forked.read_exact(&mut [0]).unwrap();
}

/// Runs in the process that the tests kill. Does nothing in an ordinary run of the tests.
#[test]
fn forker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, dir) = role.split_once(':').unwrap();
    let dir = Path::new(dir);
    let done = AtomicBool::new(false);
    let store = match role {
        "writer" => open(dir),
        "reader" => Store::open_read_only(dir, &StoreOptions::default(), None).unwrap(),
        // Forks while another thread opens and closes the bank.
        _ => std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                let mut store = None;
                while !done.load(Ordering::Relaxed) {
                    drop(store.take());
                    store = Some(open(dir));
                }
                store.unwrap()
            });
            for _ in 0..300 {
                fork_a_child();
            }
            done.store(true, Ordering::Relaxed);
            opening.join().unwrap()
        }),
    };
    if role != "forks" {
        fork_a_child();
    }
    println!("\nforked");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    drop(store);
}

fn open(dir: &Path) -> Store {
    let store = Store::open(dir, &by_hand(1)).unwrap();
    if store.tables().is_empty() {
        let table = store.create_table("rows", BYTES as u32, b"").unwrap();
        put(&store, table, &[1], 1, BYTES);
        store.checkpoint(b"").unwrap();
    }
    store
}

/// Regression test: after a writer was killed, its bank stayed locked until its child ended.
#[test]
fn a_killed_writers_bank_opens_while_its_child_lives() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Forker::start("writer", dir.path());
    let error = Store::open(dir.path(), &by_hand(1)).unwrap_err();
    let Error::Locked { holders, .. } = &error else { panic!("{error}") };
    if cfg!(target_os = "linux") {
        assert_eq!(holders.0[0].process, writer.id());
        let told = format!("process {} (", writer.id());
        assert!(error.to_string().contains(&told), "{error}");
        assert!(error.to_string().contains("killed_with_children"), "{error}");
    }
    writer.kill();
    Store::open(dir.path(), &by_hand(1)).expect("the writer is dead");
}

/// Another thread may fork after the lock file is opened and before it is locked. The child must
/// not keep that file open.
#[test]
fn a_bank_that_was_opened_during_forks_opens_after_the_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Forker::start("forks", dir.path());
    writer.kill();
    Store::open(dir.path(), &by_hand(1)).expect("the writer is dead");
}

/// Regression test: after a reader was killed, its checkpoint stayed held until its child ended.
#[test]
fn a_killed_readers_checkpoint_is_let_go_while_its_child_lives() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let checkpoints = || std::fs::read_dir(dir.path().join("checkpoints")).unwrap().count();
    let mut reader = Forker::start("reader", dir.path());
    store.checkpoint(b"").unwrap();
    assert_eq!(checkpoints(), 2, "the reader holds one");
    reader.kill();
    store.checkpoint(b"").unwrap();
    assert_eq!(checkpoints(), 1);
}
