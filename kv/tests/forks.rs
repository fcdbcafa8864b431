//! Tests a forked child that inherits a bank's open files, does not use them, and outlives the
//! parent's use of the bank.

#![expect(clippy::unwrap_used, reason = "a test")]
#![cfg(unix)]

mod common;

use std::io::{PipeReader, PipeWriter, Read, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use common::reading::by_hand;
use common::{peek, put, value};
use embank_kv::crew::Crew;
use embank_kv::{Error, Store, StoreOptions};

const BYTES: usize = 16;

/// A child that begins its work when the test tells it to.
struct Child {
    id: libc::pid_t,
    /// Closing this pipe lets the child begin.
    go: Option<PipeWriter>,
}

impl Child {
    fn fork(work: impl FnOnce() -> bool) -> Self {
        let (begun, go) = pipe().unwrap();
        // SAFETY: the child has one thread. It runs `work`, which needs no other threads, and ends.
        let id = unsafe { libc::fork() };
        assert!(id >= 0, "{}", std::io::Error::last_os_error());
        if id == 0 {
            // SAFETY: `alarm` sets a timer of the child, which ends the child if `work` waits for
            // ever.
            unsafe { libc::alarm(60) };
            drop(go);
            let done = catch_unwind(AssertUnwindSafe(|| {
                wait_for_the_end(begun);
                work()
            }));
            // SAFETY: `_exit` ends the process without running code that may need the parent's
            // threads.
            unsafe { libc::_exit(i32::from(!done.unwrap_or(false))) }
        }
        Self { id, go: Some(go) }
    }

    /// Lets the child begin and waits for it. Returns true if its work succeeded.
    fn join(mut self) -> bool {
        drop(self.go.take());
        let mut status = 0;
        // SAFETY: the child belongs to this test, and `status` is a local variable.
        let id = unsafe { libc::waitpid(self.id, &raw mut status, 0) };
        assert_eq!(id, self.id);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

fn wait_for_the_end(mut pipe: PipeReader) {
    assert_eq!(pipe.read(&mut [0]).unwrap(), 0);
}

fn open(dir: &Path) -> Store {
    let store = Store::open(dir, &by_hand(1)).unwrap();
    let table = store.create_table("rows", BYTES as u32, b"").unwrap();
    put(&store, table, &[1], 1, BYTES);
    store.checkpoint(b"").unwrap();
    store
}

// This file has one test only. A forked child has only the forking thread, so a lock that another
// test's thread held would stay locked.
#[test]
fn a_child_keeps_no_bank_locked_and_no_checkpoint_held() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();

    // When the writer closes the bank, its lock ends. The child can then lock the bank.
    let store = open(dir);
    let child = Child::fork(|| {
        let store = Store::open(dir, &by_hand(1)).unwrap();
        let table = store.tables()[0].id;
        put(&store, table, &[1], 2, BYTES);
        store.checkpoint(b"").is_ok()
    });
    drop(store);
    drop(Store::open(dir, &by_hand(1)).expect("the child knows nothing of the bank"));
    assert!(child.join(), "only the child has the bank open");

    // While the parent has the bank open, the child can't lock it.
    let store = Store::open(dir, &by_hand(1)).unwrap();
    let table = store.tables()[0].id;
    assert_eq!(peek(&store, table, &[1]).unwrap(), [Some(value(1, 2, BYTES))]);
    let child = Child::fork(|| matches!(Store::open(dir, &by_hand(1)), Err(Error::Locked { .. })));
    assert!(child.join());

    // When a reader is closed, its hold on its checkpoint ends, although the child lives.
    let checkpoints = || std::fs::read_dir(dir.join("checkpoints")).unwrap().count();
    let reader = Store::open_read_only(dir, &StoreOptions::default(), None).unwrap();
    store.checkpoint(b"").unwrap();
    assert_eq!(checkpoints(), 2);
    let child = Child::fork(|| true);
    drop(reader);
    store.checkpoint(b"").unwrap();
    assert_eq!(checkpoints(), 1);
    assert!(child.join());
    drop(store);

    a_child_may_drop_what_its_parent_has_open(dir);
}

/// The child aborted, because it joined threads that it did not have.
fn a_child_may_drop_what_its_parent_has_open(dir: &Path) {
    for background in [false, true] {
        let mut options = by_hand(1);
        options.compaction.background = background;
        let store = Store::open(dir, &options).unwrap();
        let table = store.tables()[0].id;
        let reader = Store::open_read_only(dir, &StoreOptions::default(), None).unwrap();
        let crew = Crew::start(2, |number| format!("helper-{number}")).unwrap();
        let loan = store.lend_memory(4096).unwrap();
        let mut inherited = Some((loan, crew, reader, store));
        let child = Child::fork(|| {
            drop(inherited.take());
            true
        });
        assert!(child.join(), "background: {background}");

        let (loan, crew, reader, store) = inherited.take().unwrap();
        drop(loan);
        crew.turn().unwrap().run(2, || ());
        drop((crew, reader));
        put(&store, table, &[1], 3, BYTES);
        store.checkpoint(b"").unwrap();
        assert_eq!(peek(&store, table, &[1]).unwrap(), [Some(value(1, 3, BYTES))]);
    }
}
