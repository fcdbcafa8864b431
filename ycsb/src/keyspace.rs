//! Rows, their keys, and which of them may be asked for.
//!
//! Rows are numbered in the order of their insertion. A row's key is its number, mixed unless the
//! run wants the order kept (the reference's `insertorder`): with mixed keys, rows that are hot
//! together do not lie together in a store that sorts. A row is asked for once its insertion has
//! returned *and those of all rows before it have*, so that no reader ever asks for a row that is
//! not there yet (the reference's `AcknowledgedCounterGenerator`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::random::mix;

/// How a row's number becomes its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyOrder {
    /// Mixed by a bijection: neighbours by number lie apart
    Hashed,
    /// The number itself
    Ordered,
}

/// The rows of a run.
#[derive(Debug)]
pub(crate) struct Keyspace {
    order: KeyOrder,
    reserved: AtomicU64,
    acknowledged: AtomicU64,
    /// Ranges that were inserted before an earlier one was; by their start.
    early: Mutex<BTreeMap<u64, u64>>,
}

impl Keyspace {
    /// With `rows` rows in the store.
    pub(crate) fn new(order: KeyOrder, rows: u64) -> Self {
        Keyspace {
            order,
            reserved: AtomicU64::new(rows),
            acknowledged: AtomicU64::new(rows),
            early: Mutex::default(),
        }
    }

    /// A row's key.
    #[inline]
    pub(crate) fn key(&self, row: u64) -> u64 {
        match self.order {
            KeyOrder::Hashed => mix(row),
            KeyOrder::Ordered => row,
        }
    }

    /// Rows that may be asked for: all below this number.
    pub(crate) fn rows(&self) -> u64 {
        // Acquire: what `acknowledge` released; the insertions have returned.
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Numbers for new rows; the first of them.
    pub(crate) fn reserve(&self, count: u64) -> u64 {
        self.reserved.fetch_add(count, Ordering::Relaxed)
    }

    /// The rows from `start` on have been inserted.
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
