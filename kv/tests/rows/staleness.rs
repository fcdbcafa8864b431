//! Tests staleness clocks, which count the outstanding gets of a row. Each test covers an error of
//! the public MLKV code or of this store.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{
    Add, GetAll, acquire, is_on_disk, options, peek, push_to_disk, put, release, value,
};
use embank_kv::{Clock, Store, TableId};

const BUDGET_BYTES: u64 = 256 << 10;
const VALUE_BYTES: usize = 24;
const KEY: u64 = 77;

struct Bank {
    store: Store,
    table: TableId,
    dir: tempfile::TempDir,
}

/// Makes a store with one row, of key `KEY`.
fn bank() -> Bank {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
    let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
    put(&store, table, &[KEY], 0, VALUE_BYTES);
    Bank { store, table, dir }
}

#[derive(Debug, Clone, Copy)]
enum Region {
    Mutable,
    ReadOnly,
    Disk,
}

const REGIONS: [Region; 3] = [Region::Mutable, Region::ReadOnly, Region::Disk];

impl Bank {
    /// Moves the row with its clock to a region.
    fn bring_to(&self, region: Region) {
        match region {
            Region::Mutable => {}
            Region::ReadOnly => {
                self.store.checkpoint(b"").unwrap();
            }
            Region::Disk => push_to_disk(&self.store, self.table, KEY),
        }
    }

    fn clock(&self) -> Option<u32> {
        self.store.clock_of(self.table, KEY).unwrap()
    }

    fn is_blocked(&self, bound: u32) -> bool {
        let outcome = acquire(&self.store, self.table, &[KEY], Some(bound)).unwrap();
        assert!(outcome.missing.is_empty());
        !outcome.blocked.is_empty()
    }
}

#[test]
fn the_bound_holds_in_every_region() {
    // The store MLKV did not check the bound for rows that it read from disk. Here the bound must
    // hold in each region.
    for region in REGIONS {
        let bank = bank();
        assert!(!bank.is_blocked(1));
        bank.bring_to(region);
        assert!(!bank.is_blocked(1), "{region:?}: one Get may be outstanding");
        bank.bring_to(region);
        assert_eq!(bank.clock(), Some(2), "{region:?}");
        let before = bank.store.stats();
        assert!(bank.is_blocked(1), "{region:?}: two are outstanding");
        assert!(bank.is_blocked(0), "{region:?}");
        let after = bank.store.stats();
        // The refused get changed nothing.
        assert_eq!(bank.clock(), Some(2), "{region:?}");
        assert_eq!(after.log_tail, before.log_tail, "{region:?}");
        assert_eq!(after.records_appended, before.records_appended, "{region:?}");
        assert!(!bank.is_blocked(2), "{region:?}");
    }
}

#[test]
fn a_blocked_row_is_not_read_and_its_neighbours_are() {
    for region in REGIONS {
        let bank = bank();
        put(&bank.store, bank.table, &[1, 2], 0, VALUE_BYTES);
        acquire(&bank.store, bank.table, &[KEY], None).unwrap();
        bank.bring_to(region);
        let mut values = vec![Vec::new(); 3];
        let clock = Clock::Acquire { bound: Some(0) };
        let outcome =
            bank.store.execute(bank.table, &[1, KEY, 2], clock, &mut GetAll(&mut values)).unwrap();
        assert_eq!(outcome.blocked, [1], "{region:?}");
        let expected = [value(1, 0, VALUE_BYTES), Vec::new(), value(2, 0, VALUE_BYTES)];
        assert_eq!(values, expected, "{region:?}");
        // An update of the blocked row is refused, and the row keeps its value.
        let mut add = Add { by: 1, insert: true };
        let outcome = bank.store.execute(bank.table, &[KEY], clock, &mut add).unwrap();
        assert_eq!(outcome.blocked, [0], "{region:?}");
        let rows = peek(&bank.store, bank.table, &[KEY]).unwrap();
        assert_eq!(rows, [Some(value(KEY, 0, VALUE_BYTES))], "{region:?}");
    }
}

#[test]
fn a_count_survives_eviction_and_comes_down_from_disk() {
    let bank = bank();
    for _ in 0..3 {
        assert!(!bank.is_blocked(9));
    }
    bank.bring_to(Region::Disk);
    assert!(is_on_disk(&bank.store, bank.table, KEY));
    assert_eq!(bank.clock(), Some(3));
    release(&bank.store, bank.table, &[KEY]).unwrap();
    assert_eq!(bank.clock(), Some(2));
    assert!(!is_on_disk(&bank.store, bank.table, KEY));
    bank.bring_to(Region::Disk);
    assert_eq!(bank.clock(), Some(2));
}

#[test]
fn a_promoted_row_keeps_its_count() {
    let bank = bank();
    assert!(!bank.is_blocked(0));
    bank.bring_to(Region::Disk);
    assert_eq!(bank.store.promote(bank.table, &[KEY]).unwrap().moved, 1);
    assert_eq!(bank.clock(), Some(1));
    assert!(bank.is_blocked(0));
}

#[test]
fn counts_are_zero_after_reopening() {
    // The store MLKV wrote clocks to disk and never reset them. After a crash of MLKV, a lease that
    // was held at the crash blocked its row for ever.
    for region in REGIONS {
        let bank = bank();
        for _ in 0..2 {
            assert!(!bank.is_blocked(9));
        }
        bank.bring_to(region);
        bank.store.checkpoint(b"").unwrap();
        let Bank { store, table, dir } = bank;
        drop(store);
        let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
        let bank = Bank { store, table, dir };
        assert_eq!(bank.clock(), Some(0), "{region:?}");
        assert!(!bank.is_blocked(0), "{region:?}");
        assert_eq!(bank.clock(), Some(1), "{region:?}");
        // The new lease counts, also after the row goes to disk.
        bank.bring_to(Region::Disk);
        assert!(bank.is_blocked(0), "{region:?}");
    }
}

#[test]
fn a_release_does_not_go_below_zero() {
    for region in REGIONS {
        let bank = bank();
        bank.bring_to(region);
        release(&bank.store, bank.table, &[KEY]).unwrap();
        release(&bank.store, bank.table, &[KEY]).unwrap();
        assert_eq!(bank.clock(), Some(0), "{region:?}");
        assert!(!bank.is_blocked(0), "{region:?}");
        assert!(bank.is_blocked(0), "{region:?}");
    }
}

#[test]
fn a_get_of_a_missing_key_leaves_no_record() {
    // In the store MLKV, a Get of a missing key left an empty record, and later Gets found that
    // record.
    let bank = bank();
    let before = bank.store.stats();
    for key in 1000..1010 {
        let outcome = acquire(&bank.store, bank.table, &[key], Some(0)).unwrap();
        assert_eq!(outcome.missing, [0]);
        let outcome = release(&bank.store, bank.table, &[key]).unwrap();
        assert_eq!(outcome.missing, [0]);
        let mut add = Add { by: 1, insert: false };
        let outcome = bank.store.execute(bank.table, &[key], Clock::Keep, &mut add).unwrap();
        assert_eq!(outcome.missing, [0]);
        assert_eq!(bank.store.clock_of(bank.table, key).unwrap(), None);
        assert_eq!(peek(&bank.store, bank.table, &[key]).unwrap(), [None]);
    }
    let after = bank.store.stats();
    assert_eq!(after.log_tail, before.log_tail);
    assert_eq!(after.records_appended, before.records_appended);
    assert_eq!(after.index_entries, before.index_entries);
}

#[test]
fn a_row_on_disk_is_never_reported_missing() {
    // The store MLKV reported rows on disk as missing.
    let bank = bank();
    let keys: Vec<u64> = (0..3000).collect();
    put(&bank.store, bank.table, &keys, 0, VALUE_BYTES);
    for key in [0, 999, 1500] {
        push_to_disk(&bank.store, bank.table, key);
        let outcome = acquire(&bank.store, bank.table, &keys, Some(9)).unwrap();
        assert!(outcome.missing.is_empty() && outcome.blocked.is_empty());
        assert!(outcome.disk_reads > 0);
        let outcome = release(&bank.store, bank.table, &keys).unwrap();
        assert!(outcome.missing.is_empty());
    }
    let rows = peek(&bank.store, bank.table, &keys).unwrap();
    assert!(rows.into_iter().zip(&keys).all(|(row, &k)| row == Some(value(k, 0, VALUE_BYTES))));
}

#[test]
fn an_inserting_get_counts_from_the_first() {
    let bank = bank();
    let clock = Clock::Acquire { bound: Some(0) };
    let mut add = Add { by: 1, insert: true };
    let outcome = bank.store.execute(bank.table, &[5], clock, &mut add).unwrap();
    assert!(outcome.missing.is_empty() && outcome.blocked.is_empty());
    assert_eq!(bank.store.clock_of(bank.table, 5).unwrap(), Some(1));
    let outcome = bank.store.execute(bank.table, &[5], clock, &mut add).unwrap();
    assert_eq!(outcome.blocked, [0]);
    assert_eq!(peek(&bank.store, bank.table, &[5]).unwrap()[0].as_ref().unwrap()[0], 1);
}

#[test]
fn a_lease_over_a_deletion_comes_down_wherever_the_tombstone_lies() {
    // A release that finds a tombstone must still lower the clock. Otherwise a row that is inserted
    // again stays blocked until the bank is opened again.
    for lies_when_deleted in REGIONS {
        for lies_when_released in REGIONS {
            let bank = bank();
            let place = format!("{lies_when_deleted:?}, then {lies_when_released:?}");
            assert!(!bank.is_blocked(0));
            bank.bring_to(lies_when_deleted);
            assert_eq!(bank.store.delete(bank.table, &[KEY]).unwrap(), 1);
            bank.bring_to(lies_when_released);
            release(&bank.store, bank.table, &[KEY]).unwrap();
            put(&bank.store, bank.table, &[KEY], 1, VALUE_BYTES);
            assert_eq!(bank.clock(), Some(0), "{place}");
            assert!(!bank.is_blocked(0), "{place}");
        }
    }
}

#[test]
fn a_waiting_reader_does_not_stop_the_store() {
    // In the store MLKV, a waiting reader stayed in its epoch, as a running batch does. The log
    // could then begin no new page, and all threads stopped.
    let bank = bank();
    assert!(!bank.is_blocked(0));
    let (waits, waiting) = mpsc::channel();
    let before = bank.store.stats();
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            assert!(bank.is_blocked(0));
            let ticket = bank.store.release_ticket(bank.table, KEY);
            assert!(bank.is_blocked(0));
            waits.send(()).unwrap();
            assert!(bank.store.wait_released(ticket, Instant::now() + Duration::from_secs(100)));
            assert!(!bank.is_blocked(0));
        });
        waiting.recv().unwrap();
        for batch in 0..3000u64 {
            let keys: Vec<u64> = (batch * 7..batch * 7 + 20).map(|key| key % 9000 + 100).collect();
            let mut add = Add { by: 1, insert: true };
            bank.store.execute(bank.table, &keys, Clock::Keep, &mut add).unwrap();
            if batch % 1000 == 500 {
                bank.store.checkpoint(b"").unwrap();
            }
        }
        let after = bank.store.stats();
        assert_eq!(after.checkpoints, 3);
        assert!(after.log_head > before.log_tail, "pages were turned and evicted: {after:?}");
        assert!(!reader.is_finished());
        release(&bank.store, bank.table, &[KEY]).unwrap();
        reader.join().unwrap();
    });
    assert_eq!(bank.clock(), Some(1));
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let bank = bank();
    assert!(!bank.is_blocked(0));
    for wait in [Duration::ZERO, Duration::from_millis(5)] {
        let ticket = bank.store.release_ticket(bank.table, KEY);
        assert!(bank.is_blocked(0));
        let deadline = Instant::now() + wait;
        assert!(!bank.store.wait_released(ticket, deadline));
        assert!(Instant::now() >= deadline);
    }
}

#[test]
fn a_release_after_the_ticket_is_not_missed() {
    let bank = bank();
    assert!(!bank.is_blocked(0));
    let ticket = bank.store.release_ticket(bank.table, KEY);
    release(&bank.store, bank.table, &[KEY]).unwrap();
    // The release came after the ticket and before the wait, so the wait must end at once.
    assert!(bank.store.wait_released(ticket, Instant::now()));
}

#[test]
fn leases_pass_between_threads_by_tickets_alone() {
    // Four threads take turns on one row with bound 0. A lost wake-up would make a wait reach its
    // deadline.
    const TURNS: u64 = 500;
    let bank = bank();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..TURNS {
                    loop {
                        let ticket = bank.store.release_ticket(bank.table, KEY);
                        if !bank.is_blocked(0) {
                            break;
                        }
                        let deadline = Instant::now() + Duration::from_secs(60);
                        assert!(bank.store.wait_released(ticket, deadline), "a wake was lost");
                    }
                    release(&bank.store, bank.table, &[KEY]).unwrap();
                }
            });
        }
    });
    assert_eq!(bank.clock(), Some(0));
}
