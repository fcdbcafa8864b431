//! Numbers of tables, and when a number becomes another table's.
//!
//! **Problem.** A number has 16 bits. Each table takes one, and records and checkpoints name the
//! table by it. Programs make and drop tables without end: a renumbered vocabulary takes three
//! numbers, a generation of counts takes one. So the number of a dropped table must become another
//! table's. No row of the one may ever show up in the other.
//!
//! **Approach.** A bank gives numbers that no table had, as long as there are any: most banks never
//! use a number again. After that it gives the number of a dropped table once four things hold:
//!
//! 1. **No holder reaches the new table.** A holder of the old one has a [`TableId`], which has the
//!    number's incarnation. The new table has the next incarnation, and each call on the store
//!    compares the whole id. So handles, leases, the worker of a lookahead, vocabularies and counts
//!    before admission are refused for good, not redirected.
//! 2. **No thread appends a record of the old table any more.** A batch that began before the drop
//!    looks the table up again after each pin ([`Lengths`](super::lengths::Lengths)), and so do
//!    compaction and retention before they copy. The drop clears the table's word. All that were
//!    pinned before are out after an `epoch::barrier`, and whatever pins later is refused. So at a
//!    moment after such a barrier all of the table's records lie below the log's tail: that is
//!    `records_end`. A checkpoint's pause has such a barrier. If numbers run out, `create_table`
//!    makes one.
//! 3. **The log has no record of the old table:** it begins at or after `records_end`. If none was
//!    ever written, `records_end` is 0.
//! 4. **No checkpoint has the old table or a record of it:** none that is kept or being taken, and
//!    so none that a reader or a copy holds. The checkpoints that have it are a range (`named`),
//!    from the first after the table was made to the last before its records were gone.
//!
//! **Why no row crosses.** Let A be the old table, B the new one, n their number, and E the
//! `records_end` of A. B's first call comes after its creation, which saw `begin >= E`; so each
//! `View` of B has a begin of E or more.
//!
//! - *The index* may still have entries that lead to records of A, and a record of B may link to
//!   one. Those lie below `begin`, where each search by B ends, in memory and on disk
//!   (`View::in_memory`, `walk`, `follow`).
//! - *The row cache* is asked by address, and an address is never used twice.
//! - *Compaction* is at a page at or above E by then, which has no record of A. A page that it went
//!   through before is below. *Retention* copies a row only if it finds the very address at which
//!   it saw the row.
//! - *Clocks* lie in records. The waiters' stripes are shared by all tables anyway: a ticket of A
//!   wakes up and is refused.
//! - *Counts of rows* of a batch on A go to the state of A's incarnation or nowhere.
//! - *A scan* reads the log of its checkpoint, which has A or does not, between two addresses. It
//!   looks its table up while no other checkpoint can be completed.
//! - *A reader* holds its checkpoint P. If P has A, condition 4 keeps n from B. If a refresh finds
//!   n live where it was not, or with other properties, the reader takes the next incarnation:
//!   handles from before are refused there, too.
//! - *An open* finds A in the kept checkpoints' manifests, or finds that none has it. It cuts off
//!   the log behind the newest one, so records of a B that no checkpoint has are gone. A roll back
//!   is an open at an older one.
//! - *A copy* that takes deltas may keep checkpoints longer than its source. `apply_delta` removes
//!   those that have A before it lets B in.
//! - *Salvage* may read newer records by an older manifest. If that has n as gone, a record of n
//!   behind it is of an unknown table (`inspect::walk`). If it has A, condition 4 kept n from B.
//!
//! A manifest says by `value_bytes` 0 that no record of a dropped table is left. Builds before this
//! module wrote 0 for dropped tables without value bytes, too, and did not wait for batches under
//! way. So after an open, the log must begin at or after that checkpoint's end before a number of
//! it is used again, whatever the manifest says.

use crate::engine::tables::Named;

use crate::checkpoint::Checkpoints;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::manifest::TableEntry;
use crate::engine::core::Core;
use crate::engine::tables::TableState;
use crate::epoch;
use crate::error::{Error, Result};
use crate::record::address::{TableId, TableNumber};
use crate::sync::Ordering;

/// Reads which checkpoints on disk have which numbers. A manifest that can't be read may have each
/// of `tables`.
pub(crate) fn named(checkpoints: &Checkpoints, tables: &[TableEntry]) -> Result<Named> {
    let mut named = Named::new();
    let mut note = |number: u16, checkpoint: u64| {
        let range = named.entry(number).or_insert((checkpoint, checkpoint));
        *range = (range.0.min(checkpoint), range.1.max(checkpoint));
    };
    for checkpoint in checkpoints.numbers()? {
        match checkpoints.manifest(checkpoint) {
            Ok(Manifest { tables, .. }) => {
                let there = tables.iter().filter(|table| !table.is_gone());
                there.for_each(|table| note(table.number, checkpoint));
            }
            Err(_) => tables.iter().for_each(|table| note(table.number, checkpoint)),
        }
    }
    Ok(named)
}

impl Core {
    /// The id of the next table; `None` if all numbers are taken. Called under the lock of the
    /// tables, which it gets.
    pub(crate) fn next_table(&self, tables: &[TableState]) -> Option<TableId> {
        let max = self.numbers.max.load(Ordering::Relaxed) as usize;
        if tables.len() < max {
            let number = u16::try_from(tables.len() + 1).ok()?;
            return Some(TableId { number: TableNumber(number), incarnation: 0 });
        }
        let begin = self.log.begin();
        let checkpoints = self.checkpoints_on_disk();
        let next = self.numbers.next.load(Ordering::Relaxed) as usize % tables.len().max(1);
        let mut places = (next..tables.len()).chain(0..next);
        let free = places.find(|&place| tables[place].is_free(begin, &checkpoints))?;
        self.numbers.next.store(free as u32 + 1, Ordering::Relaxed);
        tables[free].next_id()
    }

    /// Makes a moment after which no record of the tables that are dropped now is appended, and
    /// notes where the log ends then. Called without the lock of the tables, which a pinned batch
    /// may wait for. Does nothing in an operation's callback, whose own batch it would wait for.
    pub(crate) fn settle_dropped(&self) {
        if epoch::is_pinned() {
            return;
        }
        let unsettled = |state: &&TableState| state.is_unsettled();
        let dropped: Vec<TableId> =
            self.tables.read().iter().filter(unsettled).map(TableState::id).collect();
        if dropped.is_empty() {
            return;
        }
        epoch::barrier();
        let records_end = self.log.records_end();
        let mut tables = self.tables.write();
        for id in dropped {
            let state = &mut tables[usize::from(id.number.0) - 1];
            // Another call may have done it, and the number be another table's by now.
            if state.id() == id && state.is_unsettled() {
                state.settle(records_end, self.lengths.was_written(id.number));
            }
        }
    }

    /// The tables as checkpoint `number` holds them, whose log begins at `log_begin` and ends at
    /// `log_end`. Called while batches are paused: no thread appends a record of a dropped table
    /// until they go on, and afterwards none does. `tables` has been locked since before the
    /// checkpoint's pin.
    pub(crate) fn cut_tables(
        &self,
        tables: &mut [TableState],
        number: u64,
        (log_begin, log_end): (u64, u64),
    ) -> Vec<TableEntry> {
        let cut = tables.iter_mut().map(|state| {
            if state.is_unsettled() {
                state.settle(log_end, self.lengths.was_written(state.id().number));
            }
            state.cut(number, log_begin)
        });
        cut.collect()
    }

    /// For tests: no more tables at a time than `max`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn limit_table_numbers(&self, max: u16) {
        self.numbers.max.store(max.into(), Ordering::Relaxed);
    }

    pub(crate) fn no_number_left(&self) -> Error {
        let tables = self.tables.read();
        let dropped = tables.iter().filter(|state| state.entry.dropped).count();
        let all = tables.len();
        let there = tables.len() - dropped;
        Error::Exhausted(format!(
            "all {all} numbers of tables are taken: {there} tables have one each, and of {dropped} dropped tables records \
             or checkpoints are left. Drop tables; then compact, and take as many checkpoints as are kept: that frees the \
             numbers of dropped tables, but for those that a pinned checkpoint has, or one that a reader is at"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::compaction::options::CompactionOptions;
    use crate::{Access, Clock, Operation, Store, StoreOptions};

    struct Put(u8);

    impl Operation for Put {
        const ACCESS: Access = Access::Put;
        fn update(&mut self, _: usize, value: &mut [u8]) {
            value.fill(self.0);
        }
        fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
            self.update(i, value);
            true
        }
    }

    struct Peek;

    impl Operation for Peek {
        const ACCESS: Access = Access::Peek;
    }

    fn opened(dir: &std::path::Path) -> Store {
        let compaction = CompactionOptions { background: false, ..CompactionOptions::default() };
        let store = Store::open(dir, &StoreOptions { compaction, ..StoreOptions::default() });
        store.expect("a bank")
    }

    /// Entries of the index may lead below the log's beginning, where pages may still be in memory.
    /// A call that took the short way found the rows there: of a dropped table, if another one has
    /// its number.
    #[test]
    fn no_row_is_found_below_the_logs_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let store = opened(dir.path());
        let table = store.create_table("rows", 8, b"").unwrap();
        let keys: Vec<u64> = (0..100).collect();
        store.execute(table, &keys, Clock::Keep, &mut Put(1)).unwrap();
        store.checkpoint(b"").unwrap();
        let core = store.core();
        assert!(core.log.view().head < core.log.flushed(), "the rows are in memory");
        assert_eq!(store.execute(table, &[7], Clock::Keep, &mut Peek).unwrap().missing, []);
        core.log.set_begin(core.log.flushed());
        assert_eq!(store.execute(table, &[7], Clock::Keep, &mut Peek).unwrap().missing, [0]);
        assert_eq!(store.execute(table, &keys, Clock::Keep, &mut Peek).unwrap().missing.len(), 100);
        assert_eq!(store.delete(table, &keys).unwrap(), 0);
        assert_eq!(store.clock_of(table, 7).unwrap(), None);
        let get = Clock::Acquire { bound: None };
        store.execute(table, &[7], get, &mut Put(2)).unwrap();
        assert_eq!(store.clock_of(table, 7).unwrap(), Some(1));
    }

    #[test]
    fn a_number_is_free_only_when_nothing_has_it() {
        let entry = TableEntry {
            number: 3,
            name: String::new(),
            value_bytes: 0,
            variable: false,
            descriptor: Vec::new(),
            rows: 0,
            record_bytes: 0,
            dropped: true,
        };
        // A build before this rule may have left records of a table that it says is gone.
        let named = Named::from([(3, (4, 6))]);
        let mut state = TableState::recovered(entry.clone(), 0, 4096, &named);
        assert!(!state.is_free(0, &[]));
        assert!(!state.is_free(4095, &[]));
        assert!(state.is_free(4096, &[]));
        assert!(state.is_free(4096, &[1, 3, 7]));
        for named in 4..=6 {
            assert!(!state.is_free(4096, &[1, named, 9]));
        }
        assert_eq!(state.cut(8, 0).value_bytes, 0, "what it was");
        // Of one with records, the manifest says so whatever their length.
        let entry = TableEntry { value_bytes: 1, ..entry };
        let mut state = TableState::recovered(entry, 0, 4096, &Named::new());
        assert!(!state.cut(8, 4095).is_gone());
        assert!(!state.is_free(4096, &[8]));
        assert!(state.cut(9, 4096).is_gone());
        assert!(state.is_free(4096, &[9]) && !state.is_free(4096, &[8, 9]));
        assert_eq!(state.next_id().map(TableId::incarnation), Some(1));
    }
}
