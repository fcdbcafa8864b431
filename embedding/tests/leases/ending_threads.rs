//! Tests threads that use a bank while their thread locals are being destroyed.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::cell::RefCell;
use std::sync::mpsc;

use embank::{Bank, BankOptions, Lease, Missing, Table, TableConfig, VocabularyConfig};

const DIM: usize = 2;

/// Work that a thread does while its locals are destroyed, after the library's locals are gone.
struct AtTheEnd(Box<dyn FnOnce()>);

thread_local! {
    static AT_THE_END: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        std::mem::replace(&mut self.0, Box::new(|| ()))();
    }
}

/// Starts a thread that gets rows of the table, and runs `last` while that thread ends.
fn as_a_thread_ends(table: &Table, last: impl FnOnce() + Send + 'static) {
    let table = table.clone();
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        // Thread locals are destroyed in reverse order of registration, so `AT_THE_END` must be
        // registered before those of the library.
        let last = move || {
            last();
            done.send(()).unwrap();
        };
        AT_THE_END.set(Some(AtTheEnd(Box::new(last))));
        let rows = &mut [0.0; 3 * DIM];
        drop(table.get(&[3, 1, 3], rows).unwrap());
    })
    .join()
    .unwrap();
    is_done.recv().unwrap();
}

fn bank_and_table() -> (tempfile::TempDir, Bank, Table) {
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path().join("bank"), BankOptions::default()).unwrap();
    let config = TableConfig::new(DIM as u32).staleness_bound(Some(0));
    let table = bank.table("user", config).unwrap();
    (dir, bank, table)
}

/// Regression test: a lease was dropped while its thread ended, and an earlier version aborted the
/// process.
#[test]
fn a_lease_is_given_back_as_a_thread_ends() {
    thread_local! {
        static LEASE: RefCell<Option<Lease>> = const { RefCell::new(None) };
    }
    let (_dir, bank, table) = bank_and_table();
    let taken = table.clone();
    std::thread::spawn(move || {
        // Locals are destroyed in reverse order of registration, so `LEASE` must be registered
        // before the library's locals.
        LEASE.set(None);
        LEASE.set(Some(taken.get(&[3, 1, 3], &mut [0.0; 3 * DIM]).unwrap()));
    })
    .join()
    .unwrap();
    assert_eq!(bank.outstanding_leases(), []);
    // With bound 0, this Get would wait if the lease were still outstanding.
    drop(table.get(&[1, 3], &mut [0.0; 2 * DIM]).unwrap());
}

#[test]
fn rows_are_got_changed_and_read_as_a_thread_ends() {
    let (_dir, bank, table) = bank_and_table();
    let late = table.clone();
    as_a_thread_ends(&table, move || {
        let keys = [9, 8, 9];
        let rows = &mut [0.0; 3 * DIM];
        let lease = late.get(&keys, rows).unwrap();
        lease.put(&[1.0; 3 * DIM]).unwrap();
        late.put(&[5, 4, 5], &[2.0; 3 * DIM]).unwrap();
        late.lookahead(&keys).unwrap();
        let read = &mut [0.0; 2 * DIM];
        late.peek(&[5, 4], read, Missing::Error).unwrap();
        assert_eq!(read, &[2.0; 2 * DIM]);
        late.delete(&[4]).unwrap();
    });
    assert_eq!(bank.outstanding_leases(), []);
    let read = &mut [0.0; DIM];
    table.peek(&[5], read, Missing::Error).unwrap();
    assert_eq!(read, &[2.0; DIM]);
}

#[test]
fn a_bank_is_used_and_closed_as_a_thread_ends() {
    let (dir, bank, table) = bank_and_table();
    let path = dir.path().join("bank");
    let used = table.clone();
    drop(table);
    as_a_thread_ends(&used.clone(), move || {
        let vocabulary = bank.vocabulary("word", VocabularyConfig::u64()).unwrap();
        drop(vocabulary);
        bank.checkpoint(b"late").unwrap();
        drop(used);
        drop(bank);
    });
    let bank = Bank::open(path, BankOptions::default()).unwrap();
    assert_eq!(bank.recovered().unwrap().blob, b"late");
}
