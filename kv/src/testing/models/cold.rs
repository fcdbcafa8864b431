//! Concurrency models of a bank in two tiers. Rows go to the cold tier while other threads use
//! them.

use std::sync::Arc;

use super::store::{Bank, PAGES_IN_MEMORY, join, spawn};
use super::{explore, finds};
use crate::TierLimits;
use crate::sync::{Planted, quietly};

/// Memory budget of the banks in bytes.
const BUDGET_BYTES: u64 = 32 << 10;
/// Number of pages that are filled before the threads of a model start.
const FILLED: u64 = 2 * PAGES_IN_MEMORY;
/// Number of lowest bits of the hash that the keys of a model agree in. Keys with equal tags share
/// a slot of the index.
const CHAIN_BITS: u32 = 18;

/// Gives the bank a second tier. Each run has the rows of two pages.
fn begin_second_tier(bank: &Bank) {
    let limits = TierLimits {
        log_bytes: 0,
        sort_buffer_bytes: 1536,
        base_part_bytes: 20 << 10,
        level_runs: 16,
    };
    bank.store.begin_second_tier(limits);
}

/// Returns keys of the table `rows` whose records are in one chain.
fn chain_of<const N: usize>(bank: &Bank) -> [u64; N] {
    let low_bits = |key: u64| bank.store.key_hash(bank.rows, key) & ((1 << CHAIN_BITS) - 1);
    let of_all = low_bits(0);
    let mut keys = (0..).filter(|&key| low_bits(key) == of_all);
    [(); N].map(|()| keys.next().unwrap())
}

/// Asserts the values and the clocks of rows: as they are now, and after they have gone to the cold
/// tier.
fn check(bank: Arc<Bank>, rows: &[(u64, Option<u64>)], filled: u64) {
    let check = |bank: &Bank| {
        for &(key, value) in rows {
            assert_eq!(bank.peek(key), value, "key {key}");
            assert_eq!(bank.clock_of(key), value.map(|_| 0), "key {key}");
        }
        let there = rows.iter().filter(|(_, value)| value.is_some()).count() as u64;
        assert_eq!(bank.row_count(), there + filled);
        bank.assert_filled(0..filled);
    };
    check(&bank);
    bank.fill(0..filled);
    bank.store.compact().unwrap();
    check(&bank);
}

/// Spills move the rows of one chain to the cold tier, and some of them a second time. Meanwhile
/// other threads add to the rows, delete them, insert them again, peek and train.
fn spilling_among_writers() {
    let mut chain = [0; 5];
    let bank = Bank::with_budget(BUDGET_BYTES, |bank| {
        begin_second_tier(bank);
        chain = chain_of(bank);
        let [added, deleted, peeked, missing, trained] = chain;
        [added, deleted, peeked, missing, trained].into_iter().for_each(|key| bank.put(key, 1));
        bank.fill([0]);
        assert!(bank.get(trained, 0));
        assert_eq!(bank.store.delete(bank.rows, &[missing]).unwrap(), 1);
        bank.fill(1..FILLED);
    });
    let [added, deleted, peeked, missing, trained] = chain;
    let threads = [
        spawn(&bank, |bank| {
            bank.store.compact().unwrap();
        }),
        spawn(&bank, move |bank| {
            bank.add(added);
            assert_eq!(bank.store.delete(bank.rows, &[deleted]).unwrap(), 1);
            bank.add(deleted);
            bank.add(missing);
        }),
        spawn(&bank, move |bank| {
            assert!(!bank.get(trained, 0), "a thread has the row");
            bank.train(trained);
            bank.add(added);
            assert_eq!(bank.peek(peeked), Some(1));
        }),
    ];
    join(threads);
    let rows = [(added, 3), (deleted, 1), (peeked, 1), (missing, 1), (trained, 2)];
    quietly(|| check(bank, &rows.map(|(key, value)| (key, Some(value))), FILLED));
}

/// Rows come back from the cold tier, change or stay equal, and go there again.
fn spilling_rows_that_came_back() {
    let mut chain = [0; 3];
    let bank = Bank::with_budget(BUDGET_BYTES, |bank| {
        begin_second_tier(bank);
        chain = chain_of(bank);
        chain.into_iter().for_each(|key| bank.put(key, 1));
        bank.fill(0..FILLED);
        bank.store.compact().unwrap();
    });
    let [trained, equal, deleted] = chain;
    let threads = [
        spawn(&bank, move |bank| {
            assert!(bank.get(trained, 0) && bank.get(equal, 0));
            bank.train(trained);
            bank.release(equal);
            bank.fill(0..8);
        }),
        spawn(&bank, move |bank| {
            bank.store.promote(bank.rows, &[deleted, equal]).unwrap();
            bank.fill(8..16);
            assert_eq!(bank.store.delete(bank.rows, &[deleted]).unwrap(), 1);
            bank.store.compact().unwrap();
            assert_eq!(bank.peek(deleted), None);
        }),
    ];
    join(threads);
    quietly(|| {
        bank.fill(0..FILLED);
        check(bank, &[(trained, Some(2)), (equal, Some(1)), (deleted, None)], FILLED);
    });
}

/// Merges join runs and base parts, and old parts go. Meanwhile other threads read rows from the
/// parts and change some.
fn merging_among_readers() {
    const ROWS: u64 = 12;
    let bank = Bank::with_budget(BUDGET_BYTES, |bank| {
        begin_second_tier(bank);
        (0..ROWS).for_each(|key| bank.put(key, 1));
        bank.fill(0..FILLED);
        bank.store.compact().unwrap();
        (0..ROWS).for_each(|key| bank.put(key, 2));
        bank.fill(0..FILLED);
    });
    let threads = [
        spawn(&bank, |bank| {
            bank.store.compact().unwrap();
        }),
        spawn(&bank, |bank| {
            for key in (0..ROWS).step_by(3) {
                assert_eq!(bank.peek(key), Some(2), "key {key}");
            }
            bank.add(1);
        }),
        spawn(&bank, |bank| {
            bank.assert_filled([0, 5, 10]);
            assert_eq!(bank.peek(0), Some(2));
            assert_eq!(bank.store.delete(bank.rows, &[2]).unwrap(), 1);
        }),
    ];
    join(threads);
    let value = |key| match key {
        1 => Some(3),
        2 => None,
        _ => Some(2),
    };
    let rows: Vec<_> = (0..ROWS).map(|key| (key, value(key))).collect();
    quietly(|| check(bank, &rows, FILLED));
}

/// Two threads add to a missing row. Meanwhile the row goes to the cold tier. The bank has parts,
/// so a thread searches them between its search of the log and its insert, and is not pinned then.
/// All that the second thread does has to happen in this moment of the first one. So the scheduler
/// switches threads only where the second thread waits.
fn inserting_beside_a_spill() {
    const KEY: u64 = 7;
    let bank = Bank::with_budget(BUDGET_BYTES, |bank| {
        begin_second_tier(bank);
        bank.fill(0..FILLED);
        bank.store.compact().unwrap();
    });
    let threads = [
        spawn(&bank, |bank| bank.add(KEY)),
        spawn(&bank, |bank| {
            quietly(|| {
                bank.add(KEY);
                bank.fill(0..FILLED);
                bank.store.compact().unwrap();
            });
        }),
    ];
    join(threads);
    quietly(|| assert_eq!(bank.peek(KEY), Some(2)));
}

/// Two threads put missing rows blindly and delete some, so that they are new in the eyes of both.
/// The bank has no base yet, so the filters of its runs may say that a row is new for sure.
/// Meanwhile rows go to the cold tier and merge. Then the count of rows is right.
fn putting_blindly_beside_spills() {
    const NEW: u64 = 7;
    const OLD: u64 = 8;
    const GOING: u64 = 9;
    let bank = Bank::with_budget(BUDGET_BYTES, |bank| {
        begin_second_tier(bank);
        bank.put(OLD, 1);
        bank.fill(0..FILLED);
        bank.store.compact().unwrap();
    });
    let threads = [
        spawn(&bank, |bank| {
            bank.put_blind(NEW, 2);
            bank.put_blind(OLD, 2);
            bank.put_blind(GOING, 2);
        }),
        spawn(&bank, |bank| {
            bank.put_blind(NEW, 3);
            quietly(|| {
                bank.fill(0..FILLED);
                bank.store.compact().unwrap();
            });
            bank.put_blind(GOING, 3);
            bank.add(OLD);
        }),
    ];
    join(threads);
    quietly(|| {
        let old = bank.peek(OLD);
        assert!(matches!(old, Some(2 | 3)), "{old:?}");
        assert!(matches!(bank.peek(NEW), Some(2 | 3)));
        assert_eq!(bank.store.delete(bank.rows, &[GOING]).unwrap(), 1);
        bank.put_blind(NEW, 4);
        // A compaction counts what blind puts have left uncounted.
        bank.store.compact().unwrap();
        check(bank, &[(NEW, Some(4)), (OLD, old), (GOING, None)], FILLED);
    });
}

/// A thread reads a row from a part, while a merge replaces the part.
fn reading_beside_a_merge() {
    const KEY: u64 = 7;
    let bank = Bank::with_budget(BUDGET_BYTES, |bank| {
        begin_second_tier(bank);
        bank.put(KEY, 1);
        bank.fill(0..FILLED);
        bank.store.compact().unwrap();
        bank.fill(0..FILLED);
    });
    let threads = [
        spawn(&bank, |bank| assert_eq!(bank.peek(KEY), Some(1))),
        spawn(&bank, |bank| {
            bank.store.compact().unwrap();
        }),
    ];
    join(threads);
    quietly(|| assert_eq!(bank.peek(KEY), Some(1)));
}

/// A thread turns pages, while merges take memory for new parts and give back that of old ones.
fn turning_pages_beside_merges() {
    let bank = Bank::with_budget(BUDGET_BYTES, |bank| {
        begin_second_tier(bank);
        bank.fill(0..FILLED);
        bank.store.compact().unwrap();
        bank.fill(0..FILLED);
    });
    let threads = [
        spawn(&bank, |bank| bank.fill(0..FILLED)),
        spawn(&bank, |bank| {
            bank.store.compact().unwrap();
        }),
    ];
    join(threads);
    quietly(|| bank.assert_filled(0..FILLED));
}

#[test]
fn no_row_is_lost_by_spills() {
    explore("spilling among writers", spilling_among_writers);
}

#[test]
fn planted_a_beginning_that_moves_before_the_view_is_found() {
    finds(Planted::SpillBeginFirst, spilling_among_writers);
}

#[test]
fn planted_a_spill_of_leased_rows_is_found() {
    finds(Planted::SpillLeased, spilling_among_writers);
}

#[test]
#[ignore = "needs some 10,000 schedules, which take minutes"]
fn planted_a_record_that_follows_one_below_the_beginning_is_found() {
    finds(Planted::RowBelowBegin, spilling_among_writers);
}

#[test]
fn no_row_that_came_back_is_lost_by_spills() {
    explore("spilling rows that came back", spilling_rows_that_came_back);
}

#[test]
fn planted_a_changed_row_that_counts_as_equal_is_found() {
    finds(Planted::CleanKept, spilling_rows_that_came_back);
}

#[test]
fn no_row_is_lost_by_merges() {
    explore("merging among readers", merging_among_readers);
}

#[test]
fn planted_a_run_that_is_dropped_early_is_found() {
    finds(Planted::RunDroppedEarly, merging_among_readers);
}

#[test]
fn no_insert_hides_a_row_that_went_to_the_cold_tier() {
    explore("inserting beside a spill", inserting_beside_a_spill);
}

#[test]
fn planted_an_insert_that_does_not_look_at_the_beginning_is_found() {
    finds(Planted::InsertStale, inserting_beside_a_spill);
}

#[test]
fn the_count_of_rows_is_right_after_blind_puts() {
    explore("putting blindly beside spills", putting_blindly_beside_spills);
}

#[test]
fn planted_a_spill_that_loses_the_mark_of_blind_puts_is_found() {
    finds(Planted::CountsApart, putting_blindly_beside_spills);
}

#[test]
fn no_part_goes_while_a_thread_reads_it() {
    explore("reading beside a merge", reading_beside_a_merge);
}

#[test]
#[ignore = "needs some 10,000 schedules, which take minutes"]
fn planted_a_part_that_is_removed_under_a_reader_is_found() {
    finds(Planted::PartRemovedEarly, reading_beside_a_merge);
}

#[test]
fn who_waits_for_memory_is_woken_when_a_part_gives_it_back() {
    explore("turning pages beside merges", turning_pages_beside_merges);
}

#[test]
fn planted_memory_of_parts_that_goes_back_untold_is_found() {
    finds(Planted::PartMemoryUntold, turning_pages_beside_merges);
}
