//! Table numbers, and the conditions under which a dropped table's number is given to a new table.
//!
//! **Problem.** A table number has 16 bits. Each table has one, and records and checkpoints
//! identify the table by it. Programs make and drop tables without end: a renumbered vocabulary
//! takes three numbers. Each generation of counts before admission (Gets of keys without a row)
//! takes one. So the number of a dropped table must be given to a new table. No row of the old
//! table may ever appear in the new table.
//!
//! **Approach.** A bank gives out unused numbers first. Most banks never use a number twice. When
//! all numbers have been used, the bank gives out the number of a dropped table if four conditions
//! hold:
//!
//! 1. **No holder of the old table reaches the new table.** A handle of the old table has a
//!    [`TableId`], which contains the number's incarnation. The new table has the next incarnation,
//!    and each call on the store compares the whole id. So old handles, leases, lookahead workers,
//!    vocabularies and counts before admission get an error forever. They are not redirected to the
//!    new table.
//! 2. **No thread appends a record of the old table any more.** The drop clears the table's word. A
//!    batch that began before the drop looks the table up again after each pin (`lengths`).
//!    Compaction and retention look it up before they copy. An `epoch::barrier` waits for all
//!    threads that were pinned before it, and later pins find the table gone. So after such a
//!    barrier all records of the table lie below the log's tail. That address is `records_end`. A
//!    checkpoint's pause contains such a barrier. If numbers run out, `create_table` calls a
//!    barrier itself (`settle_dropped`).
//! 3. **Log and parts have no record of the old table.** The log begins at or after `records_end`.
//!    If no record was ever written, `records_end` is 0. The parts of the cold tier have the
//!    numbers from `parts_end` on, which is the next part's number when `records_end` is noted. A
//!    spill or a merge takes a part's number, and then writes only rows of tables that exist. If it
//!    wrote a row of the old table, it took the number before the drop, so the number is below
//!    `parts_end`. The numbers of parts only grow. A bank in two tiers therefore gets a number back
//!    when merges have rewritten all parts.
//! 4. **No checkpoint has the old table or a record of it.** This covers the kept checkpoints and
//!    the checkpoint that is being taken, and so all checkpoints that a reader or a copy holds. The
//!    checkpoints that have the table are a range (`named`). The range goes from the first
//!    checkpoint after the table was made to the last checkpoint before its records were gone.
//!
//! **Why no row gets into the new table.** Let A be the old table, B the new table, n their number,
//! and E the `records_end` of A. B is used only after its creation, which saw `begin >= E`. So each
//! `View` in a call on B has a begin of E or more. The creation also saw a view of the cold tier
//! whose parts have no row of A. Views that a call on B uses are as new or newer.
//!
//! - *The index* may still have entries that lead to records of A, and a record of B may link to
//!   one. Those records lie below `begin`. Each search in B ends there, in memory and on disk
//!   (`View::in_memory`, `walk`, `follow`).
//! - *The read cache* is searched by address, and an address is never used twice.
//! - *Compaction* works on a page at or above E by then, and such a page has no record of A.
//!   Compaction is done with all pages below E. *Retention* copies a row only if it finds the row
//!   at the same address at which it saw the row.
//! - *Clocks* are part of records. All tables share the waiters' stripes: a thread that waits with
//!   a ticket of A wakes up and gets an error.
//! - *Row counts* of a batch on A are added to the state of A's incarnation, or to no state.
//! - *A scan* reads the log of its checkpoint between two addresses. The checkpoint either has A or
//!   does not have A. The scan looks its table up while no other checkpoint can complete.
//! - *A reader* holds its checkpoint P. If P has A, condition 4 keeps n from B. After a refresh,
//!   the manifest of the later checkpoint may show another table under n: its name, descriptor,
//!   width or value length differs, or P had n as dropped. The reader then takes the next
//!   incarnation, so its older handles get an error too.
//! - *An open* reads from the manifests of the kept checkpoints which of them have A. It cuts off
//!   the log after the newest checkpoint, so records of a B that is in no checkpoint are gone. A
//!   rollback is an open at an older checkpoint.
//! - *A copy* that takes deltas may keep checkpoints longer than its source. `apply_delta` removes
//!   the checkpoints that have A before it accepts B.
//! - *Salvage* may read newer records with an older manifest. If that manifest has n as gone, a
//!   later record of n belongs to an unknown table (`inspect::walk`). If it has A, condition 4 kept
//!   n from B.
//!
//! A manifest marks a dropped table without remaining records with `value_bytes` 0. This mark is
//! not proof: builds before this module also wrote 0 for dropped tables with values of length 0,
//! and did not wait for running batches. So the bank does not rely on the mark when it reuses
//! numbers. After an open at a checkpoint, it reuses the number of a dropped table only once the
//! log begins at or after the end of that checkpoint's log.

use std::collections::BTreeMap;

use super::Tables;
use super::state::TableState;
use crate::checkpoint::Checkpoints;
use crate::checkpoint::manifest::{Manifest, TableEntry};
use crate::epoch;
use crate::error::{Error, Result};
use crate::record::address::TableId;

/// Largest number of tables that a bank has at a time. Tables are numbered from 1; no table gets
/// the number 0.
pub(crate) const NUMBERS_MAX: u16 = u16::MAX;

/// A position in both tiers of a store's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// An address of the log.
    pub(crate) log: u64,
    /// The number of a part of the cold tier.
    pub(crate) part: u64,
}

/// For each table number, the oldest and the newest checkpoint on disk that has the table or its
/// records.
pub(crate) type Named = BTreeMap<u16, (u64, u64)>;

/// Reads from the manifests on disk which checkpoints have which table numbers. A checkpoint whose
/// manifest cannot be read counts as having each of `tables`.
pub(crate) fn named(checkpoints: &Checkpoints, tables: &[TableEntry]) -> Result<Named> {
    let mut named = Named::new();
    let mut note = |number: u16, checkpoint: u64| {
        let range = named.entry(number).or_insert((checkpoint, checkpoint));
        *range = (range.0.min(checkpoint), range.1.max(checkpoint));
    };
    for checkpoint in checkpoints.numbers_with_manifest()? {
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

impl Tables {
    /// Waits until no thread appends records of the dropped tables any more, and notes where their
    /// rows end: calls `rows_end` after the wait. Must be called without the lock of the
    /// tables, because a pinned batch may wait for that lock. Does nothing inside an operation's
    /// callback, because it would wait for the callback's own batch.
    pub(crate) fn settle_dropped(&self, rows_end: impl FnOnce() -> Reach) {
        if epoch::is_pinned() {
            return;
        }
        let unsettled = |state: &&TableState| state.is_unsettled();
        let dropped: Vec<TableId> =
            self.list.read().dropped_from(0).filter(unsettled).map(TableState::id).collect();
        if dropped.is_empty() {
            return;
        }
        epoch::barrier();
        let rows_end = rows_end();
        let mut list = self.list.write();
        for id in dropped {
            let state = &mut list.states[usize::from(id.number.0) - 1];
            // Another call may have settled the table, and its number may belong to another table
            // by now.
            if state.id() == id && state.is_unsettled() {
                state.settle(rows_end, self.was_written(id.number));
            }
        }
    }

    /// Returns the incarnations of a newer checkpoint's tables. An incarnation counts how often a
    /// table number was given to another table. `self` has the tables that a read-only store shows
    /// now.
    pub(crate) fn incarnations(&self, newer: &[TableEntry]) -> Result<Vec<u32>> {
        let list = self.list.read();
        let known = newer.iter().zip(&list.states).map(|(entry, before)| {
            before.id_of_later(entry).map(TableId::incarnation).ok_or_else(|| Error::Inconsistent {
                what: format!("table number {} was used too many times", entry.number),
            })
        });
        known.collect()
    }

    /// Limits the number of tables to `max`. Only for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn limit_numbers(&self, max: u16) {
        self.list.write().number_max = max;
    }

    pub(crate) fn no_number_left(&self) -> Error {
        let list = self.list.read();
        let dropped = list.dropped_count();
        let all = list.states.len();
        let there = all - dropped;
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
    use crate::engine::space::options::CompactionOptions;
    use crate::engine::tables::state::EXAMINED;
    use crate::{Access, Clock, NewTable, Operation, Store, StoreOptions, Width};

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

    /// Regression test: the short path for a single key found rows below the log's beginning if
    /// their pages were still in memory. Such a row could belong to a dropped table whose number
    /// another table now has.
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
        // An older build may have left records of a table although the manifest that it wrote says
        // that the records are gone.
        let named = Named::from([(3, (4, 6))]);
        let at = |log| Reach { log, part: 5 };
        let mut state = TableState::recovered(entry.clone(), 0, at(4096), 0, &named);
        assert!(!state.is_free(at(0), &[]));
        assert!(!state.is_free(at(4095), &[]));
        assert!(state.is_free(at(4096), &[]));
        assert!(state.is_free(at(4096), &[1, 3, 7]));
        for named in 4..=6 {
            assert!(!state.is_free(at(4096), &[1, named, 9]));
        }
        assert!(state.is_free(Reach { log: 4096, part: 0 }, &[]), "no part ever had its rows");
        assert_eq!(state.cut(8, at(0)).value_bytes, 0, "what it was");
        // If a dropped table still has records, `value_bytes` is not 0 in the manifest.
        let entry = TableEntry { value_bytes: 1, ..entry };
        let mut state = TableState::recovered(entry.clone(), 0, at(4096), 0, &Named::new());
        assert!(!state.cut(8, at(4095)).is_gone());
        assert!(!state.is_free(at(4096), &[8]));
        assert!(state.cut(9, at(4096)).is_gone());
        assert!(state.is_free(at(4096), &[9]) && !state.is_free(at(4096), &[8, 9]));
        // A part that is older than the end of the table's rows may have a row of it.
        let mut state = TableState::recovered(entry, 0, at(4096), 0, &Named::new());
        let older = Reach { log: 1 << 20, part: 4 };
        assert!(!state.is_free(older, &[]) && !state.cut(8, older).is_gone());
        assert!(state.is_free(at(4096), &[]) && !state.is_free(at(4096), &[8]));
        assert!(state.cut(9, at(4096)).is_gone());
        assert_eq!(state.next_id().map(TableId::incarnation), Some(1));
    }

    /// Regression test: to find a free number, or a name, the store looked at all tables. Making
    /// and dropping tables took time in proportion to the square of their number.
    #[test]
    fn a_free_number_is_found_without_a_look_at_the_tables_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let store = opened(dir.path());
        let count = 3000;
        store.limit_table_numbers(count);
        let make = |i: u16| store.create_table(&format!("table {i}"), 8, b"").unwrap();
        let mut tables: Vec<TableId> = (0..count).map(make).collect();
        assert_eq!(EXAMINED.take(), 0);
        // One table at a time: the call examines it before and after it has settled.
        for i in 0..500_u16 {
            store.drop_table(tables[usize::from(i)]).unwrap();
            tables[usize::from(i)] = make(i);
        }
        assert_eq!(EXAMINED.take(), 1000);
        // Many tables: the first call examines all of them, and settles them.
        for i in 0..1000_u16 {
            store.drop_table(tables[usize::from(i)]).unwrap();
        }
        for i in 0..1000_u16 {
            make(i);
        }
        assert_eq!(EXAMINED.take(), 2000);
    }

    /// Regression test: a call that failed took numbers, which then counted as those of dropped
    /// tables. A free number whose earlier table had records was not free any more.
    #[test]
    fn a_call_that_makes_no_table_takes_no_number() {
        let new = |name| NewTable { name, width: Width::Fixed, value_bytes: 8, descriptor: b"" };
        let dir = tempfile::tempdir().unwrap();
        let store = opened(dir.path());
        let written = store.create_table("written", 8, b"").unwrap();
        let last = store.create_table("last", 8, b"").unwrap();
        let fails = || {
            assert!(store.create_tables(&[new("c"), new("last")]).is_err());
            assert!(store.create_tables(&[new("c"), new("c")]).is_err());
            assert!(store.create_tables(&[new("c"), new("d"), new("e")]).is_err());
        };
        store.limit_table_numbers(4);
        fails();
        assert_eq!(store.core().tables.list.read().states.len(), 2);
        store.execute(written, &[1], Clock::Keep, &mut Put(0)).unwrap();
        store.drop_table(written).unwrap();
        store.limit_table_numbers(2);
        // The table's number becomes free when neither the log nor a kept checkpoint has the table.
        store.checkpoint(b"").unwrap();
        store.core().log.set_begin(store.core().log.flushed());
        store.checkpoint(b"").unwrap();
        store.checkpoint(b"").unwrap();
        fails();
        let again = store.create_table("c", 8, b"").unwrap();
        assert_eq!((again.number(), again.incarnation()), (written.number(), 1));
        assert_eq!(last.number(), 2);
    }
}
