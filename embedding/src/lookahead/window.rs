//! The window: announced rows in mutable memory that should stay there until they are used.
//!
//! The window is a ring of fixed capacity. A new row replaces the oldest row, whose batch has
//! probably come. The window stores each row's place in the log and its use count. The place shows
//! whether the row will leave memory soon. The use count, compared with the record's present count,
//! shows whether the row was used since its announcement. A use of a row therefore does not have to
//! inform the window.

use std::collections::VecDeque;

use embank_kv::mechanisms::{Mechanism, is_on};
use embank_kv::{RowMark, TableId};

/// The worker keeps an unused row in memory at most this number of times. Each time it writes a
/// record to the log.
const LAPS_MAX: u8 = 3;

/// An announced row in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) key: u64,
    pub(crate) mark: RowMark,
    pub(crate) table: TableId,
    /// Number of times that the row was kept in memory.
    laps: u8,
}

/// The window of a bank.
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

    /// Remembers a row again at its new place in the log, after it was kept in memory.
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

    /// Removes and returns the rows below an address. They are sorted by table, and within a table
    /// in order of announcement.
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

    /// Removes the chosen rows.
    pub(crate) fn forget(&mut self, chosen: impl Fn(TableId, u64) -> bool) {
        self.rows.retain(|row| !chosen(row.table, row.key));
    }
}
