//! Models of a record's lock and clock, and of the threads that wait for the record.

use std::sync::Arc;
use std::time::Instant;

use super::{explore, finds};
use crate::engine::waiters::Waiters;
use crate::operation::Clock;
use crate::record::address::{Address, TableNumber};
use crate::record::clock::{self, ClockWord};
use crate::record::layout::{RecordRef, record_bytes};
use crate::sync::{AtomicU64, CountingU64, Ordering, Planted, quietly, thread};

const TABLE: TableNumber = TableNumber(1);
const KEY: u64 = 7;
const VALUE_WORDS: usize = 2;

/// A row in memory, and counts that the model keeps in addition to the row's clock.
struct Row {
    words: Vec<AtomicU64>,
    waiters: Waiters,
    /// Number of gets that are not yet answered by a put.
    out: CountingU64,
    updates: CountingU64,
}

impl Row {
    fn new() -> Arc<Row> {
        quietly(|| {
            let words = record_bytes(VALUE_WORDS * 8) / 8;
            let row = Row {
                words: (0..words).map(|_| AtomicU64::new(0)).collect(),
                waiters: Waiters::new(crate::record::hash::KeyHash::new(7)),
                out: CountingU64::new(0),
                updates: CountingU64::new(0),
            };
            row.record().begin(TABLE, KEY, VALUE_WORDS * 8);
            row.record().finish(ClockWord::at_rest(0), false);
            Arc::new(row)
        })
    }

    fn record(&self) -> RecordRef<'_> {
        // SAFETY: `words` has the length of this record.
        unsafe { RecordRef::new(self.words.as_ptr(), Address::new(64)) }
    }

    /// Locks the row, changes its clock as an operation with `clock` does, and unlocks it. Returns
    /// false if the bound refuses the operation. If `change` is true, also adds 1 to the value and
    /// asserts that no update was lost.
    fn work(&self, clock: Clock, change: bool) -> bool {
        let record = self.record();
        let Ok(locked) = clock::lock(record.clock(), |word| clock.admits(word.outstanding()))
        else {
            return false;
        };
        let before = locked.word();
        let out = self.out.load(Ordering::SeqCst);
        assert_eq!(u64::from(before.outstanding()), out, "the clock counts those that are out");
        if let Clock::Acquire { bound: Some(bound) } = clock {
            assert!(out <= u64::from(bound), "{out} are out");
        }
        let after = clock.after(before.outstanding());
        self.out.store(after.into(), Ordering::SeqCst);
        let after = before.with_outstanding(after);
        if !change {
            locked.unlock_unchanged(after);
            return true;
        }
        let updates = self.updates.fetch_add(1, Ordering::SeqCst);
        let mut value = [0; VALUE_WORDS];
        record.load_value(&mut value);
        assert_eq!(value, [updates; VALUE_WORDS], "an update was lost");
        clock::fence_before_change();
        record.store_value(&[updates + 1; VALUE_WORDS]);
        locked.unlock_changed(after);
        true
    }

    fn peek(&self, at_least: u64) -> u64 {
        let mut value = [0; VALUE_WORDS];
        assert!(clock::read_unlocked(self.record().clock(), || self
            .record()
            .load_value(&mut value)));
        assert!(value.iter().all(|&word| word == value[0]), "torn: {value:?}");
        assert!(value[0] >= at_least, "an old value came back");
        value[0]
    }

    /// Waits for the row as the crate `embank` does.
    fn acquire(&self, bound: u32) {
        let clock = Clock::Acquire { bound: Some(bound) };
        while !self.work(clock, false) {
            let ticket = self.waiters.ticket(TABLE, KEY);
            if self.work(clock, false) {
                return;
            }
            // In a model a wait has no timeout, so a lost wake-up shows as a deadlock.
            assert!(ticket.wait(Instant::now()));
        }
    }

    fn release(&self) {
        assert!(self.work(Clock::Release, true));
        self.waiters.released(TABLE, &[KEY]);
    }
}

/// Threads get and put the row under a bound. Another thread reads the row without the lock.
fn gets_puts_and_peeks() {
    let row = Row::new();
    let trainers = [0, 1].map(|bound| {
        let row = Arc::clone(&row);
        thread::spawn(move || {
            for _ in 0..2 {
                if row.work(Clock::Acquire { bound: Some(bound) }, false) {
                    assert!(row.work(Clock::Release, true));
                }
            }
        })
    });
    let reader = {
        let row = Arc::clone(&row);
        thread::spawn(move || {
            let first = row.peek(0);
            row.peek(first);
        })
    };
    trainers.into_iter().chain([reader]).for_each(|thread| thread.join().unwrap());
    assert_eq!(row.peek(0), row.updates.load(Ordering::SeqCst));
    assert_eq!(ClockWord::from_bits(row.record().clock().load(Ordering::Relaxed)).outstanding(), 0);
}

/// Three trainers wait for a row that only one trainer at a time may hold. In the end each trainer
/// has had the row.
fn waiting_for_a_row() {
    let row = Row::new();
    let trainers = [2, 1, 1].map(|rounds| {
        let row = Arc::clone(&row);
        thread::spawn(move || {
            for _ in 0..rounds {
                row.acquire(0);
                row.release();
            }
        })
    });
    trainers.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(row.peek(4), 4);
}

#[test]
fn no_value_is_torn_and_no_bound_exceeded() {
    explore("gets, puts and peeks", gets_puts_and_peeks);
}

#[test]
fn no_wake_up_is_lost() {
    explore("waiting for a row", waiting_for_a_row);
}

#[test]
fn planted_a_lock_that_does_not_compare_is_found() {
    finds(Planted::ExchangeUncompared, gets_puts_and_peeks);
}

#[test]
fn planted_a_reader_that_ignores_the_lock_is_found() {
    finds(Planted::ReadThroughLock, gets_puts_and_peeks);
}

#[test]
fn planted_a_release_that_does_not_count_is_found() {
    finds(Planted::ReleaseUncounted, waiting_for_a_row);
}
