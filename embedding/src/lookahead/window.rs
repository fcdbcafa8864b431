//! Announced rows in mutable memory, which are to stay in memory until they are used.
//!
//! A ring of fixed capacity: the newest row pushes out the oldest one, whose batch has probably
//! come. Each row is remembered with its place in the log and its count of uses. So a comparison of
//! addresses tells if the row will leave memory soon, and the row's own count tells if it was used
//! since. A use of a row costs nothing more.

use std::collections::VecDeque;

use embank_kv::mechanisms::{Mechanism, is_on};
use embank_kv::{RowMark, TableId};

/// An unused row is kept in memory at most this many times. Each time costs a record in the log.
const LAPS_MAX: u8 = 3;

/// An announced row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) key: u64,
    pub(crate) mark: RowMark,
    pub(crate) table: TableId,
    /// The number of times that it was kept in memory.
    laps: u8,
}

/// The announced rows of a bank.
#[derive(Debug)]
pub(crate) struct Window {
    rows: VecDeque<Remembered>,
    capacity: usize,
}

impl Window {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { rows: VecDeque::with_capacity(capacity), capacity }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn remember(&mut self, table: TableId, rows: &[(u64, RowMark)]) {
        for &(key, mark) in rows {
            self.push(Remembered { key, mark, table, laps: 0 });
        }
    }

    /// Notes a kept row at its new place.
    pub(crate) fn remember_again(&mut self, row: &Remembered, mark: RowMark) {
        if row.laps + 1 < LAPS_MAX {
            self.push(Remembered { mark, laps: row.laps + 1, ..*row });
        }
    }

    fn push(&mut self, row: Remembered) {
        if self.capacity == 0 || !is_on(Mechanism::Window) {
            return;
        }
        if self.rows.len() == self.capacity {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
    }

    /// Takes out the rows below an address, by table, in the order in which they were announced.
    pub(crate) fn take_below(&mut self, address: u64) -> Vec<Remembered> {
        let mut below = Vec::new();
        self.rows.retain(|row| {
            let stays = row.mark.address() >= address;
            if !stays {
                below.push(*row);
            }
            stays
        });
        below.sort_by_key(|row| row.table);
        below
    }

    /// Takes out the chosen rows.
    pub(crate) fn forget(&mut self, chosen: impl Fn(TableId, u64) -> bool) {
        self.rows.retain(|row| !chosen(row.table, row.key));
    }
}
