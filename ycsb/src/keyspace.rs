//! The numbers and keys of rows, and the rows that readers may request.
//!
//! Rows are numbered in the order of their insertion. A row's key is a hash of its number, or the
//! number itself (YCSB's property `insertorder`). With hashed keys, hot rows are not neighbours in
//! a sorted store. A reader may request a row after the insertions of this row *and of all earlier
//! rows* have returned. So a reader never requests a missing row. YCSB has the class
//! `AcknowledgedCounterGenerator` for this.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::random::mix;

/// The rule that makes a row's key from its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyOrder {
    /// A hash of the number, unique for each row: rows with neighbouring numbers lie apart
    Hashed,
    /// The number itself
    Ordered,
}

/// The row numbers of a run.
#[derive(Debug)]
pub(crate) struct Keyspace {
    order: KeyOrder,
    reserved: AtomicU64,
    acknowledged: AtomicU64,
    /// Inserted ranges that wait for the insertion of an earlier range. A range is the number of
    /// its first row and its count of rows.
    early: Mutex<BTreeMap<u64, u64>>,
}

impl Keyspace {
    /// Makes the key space of a store with `rows` rows.
    pub(crate) fn new(order: KeyOrder, rows: u64) -> Self {
        Keyspace {
            order,
            reserved: AtomicU64::new(rows),
            acknowledged: AtomicU64::new(rows),
            early: Mutex::default(),
        }
    }

    /// Returns the key of row number `row`.
    #[inline]
    pub(crate) fn key(&self, row: u64) -> u64 {
        match self.order {
            KeyOrder::Hashed => mix(row),
            KeyOrder::Ordered => row,
        }
    }

    /// Returns the limit of the row numbers that readers may request. All rows below it exist.
    pub(crate) fn rows(&self) -> u64 {
        // Acquire: pairs with the Release in `acknowledge`, so the insertions of these rows have
        // returned.
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Reserves `count` numbers for new rows and returns the first of them.
    pub(crate) fn reserve(&self, count: u64) -> u64 {
        self.reserved.fetch_add(count, Ordering::Relaxed)
    }

    /// Notes that the insertion of `count` rows from `start` on has returned.
    pub(crate) fn acknowledge(&self, start: u64, count: u64) {
        let mut early = self.early.lock();
        early.insert(start, count);
        let mut end = self.acknowledged.load(Ordering::Relaxed);
        while let Some(count) = early.remove(&end) {
            end += count;
        }
        self.acknowledged.store(end, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_asked_for_once_all_before_it_are_there() {
        let keyspace = Keyspace::new(KeyOrder::Hashed, 10);
        let first = keyspace.reserve(5);
        let second = keyspace.reserve(2);
        keyspace.acknowledge(second, 2);
        assert_eq!(keyspace.rows(), 10);
        keyspace.acknowledge(first, 5);
        assert_eq!(keyspace.rows(), 17);
    }
}
