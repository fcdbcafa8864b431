//! Concurrency models of a bank in two tiers. Rows go to the cold tier while other threads use
//! them.

use std::sync::Arc;

use super::store::{Bank, PAGES_IN_MEMORY, join, spawn};
use super::{explore, finds};
use crate::TierLimits;
use crate::sync::{Planted, quietly};

/// Number of pages that are filled before the threads of a model start.
const FILLED: u64 = PAGES_IN_MEMORY;
/// Number of lowest bits of the hash that the keys of a model agree in. Keys with equal tags share
/// a slot of the index.
const CHAIN_BITS: u32 = 18;

/// Gives the bank a second tier. Each run has the rows of two pages.
fn begin_second_tier(bank: &Bank) {
    let limits = TierLimits { log_bytes: 0, sort_buffer_bytes: 1536, base_part_bytes: 20 << 10 };
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
    let bank = Bank::new(|bank| {
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
