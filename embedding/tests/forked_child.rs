//! Tests a forked child that drops the bank of its parent, for example because its `main` returns.
//! The drop must not wait for the parent's threads, and must leave the parent's bank as it is.
//!
//! This file has one test only. A forked child has only the forking thread, so a lock that another
//! test's thread held would stay locked.

#![cfg(unix)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{new_bank_with, push_to_disk, rows_of, small_options, table};
use embank::{BankOptions, CompactionOptions, Initializer, Optimizer, TableConfig};

/// Runs `work` in a forked child. True if it returns within a minute.
fn in_child(work: impl FnOnce()) -> bool {
    // SAFETY: the child has one thread. It runs `work`, which needs no other threads, and ends.
    let id = unsafe { libc::fork() };
    assert!(id >= 0, "{}", std::io::Error::last_os_error());
    if id == 0 {
        // SAFETY: `alarm` sets a timer of the child, which ends the child if `work` waits for ever.
        unsafe { libc::alarm(60) };
        let done = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: `_exit` ends the process without running code that may need the parent's threads.
        unsafe { libc::_exit(i32::from(done.is_err())) }
    }
    let mut status = 0;
    // SAFETY: the child belongs to this test, and `status` is a local variable.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// The child aborted, because it joined threads that it did not have.
#[test]
fn a_child_may_drop_what_its_parent_has_open() {
    // Without and with threads: the pool's, the one of lookahead, the compactor.
    for threads in [1, 3] {
        let mut options = BankOptions { threads, ..small_options() };
        let background = threads > 1;
        options.compaction = CompactionOptions { background, ..options.compaction };
        let test = new_bank_with(options);
        let config = TableConfig::new(1).optimizer(Optimizer::sgd(1.0));
        let table = table(&test.bank, config.initializer(Initializer::Zeros));
        let keys: Vec<u64> = (0..10_000).collect();
        table.put(&keys, &vec![1.0; keys.len()]).unwrap();
        if background {
            push_to_disk(&test.bank);
            table.lookahead(&keys).unwrap();
            test.bank.wait_lookahead(std::time::Duration::MAX);
        }
        let lease = table.get(&keys, &mut vec![0.0; keys.len()]).unwrap();
        test.bank.checkpoint(b"").unwrap();
        let scan = table.scan().unwrap();
        let prefetch = table.prefetch(&keys[..9]).unwrap();

        let mut inherited = Some((scan, prefetch, lease, table, test.bank));
        assert!(in_child(|| drop(inherited.take())), "{threads} threads");

        let (scan, prefetch, lease, table, bank) = inherited.take().unwrap();
        drop(scan);
        prefetch.wait(&mut [0.0; 9], embank::Missing::Error).unwrap();
        lease.apply(&vec![-1.0; keys.len()]).unwrap();
        assert_eq!(rows_of(&table, &[0, 9_999]), [2.0, 2.0]);
        assert_eq!(table.outstanding(0).unwrap(), Some(0));
        bank.checkpoint(b"").unwrap();
    }
}
