//! The state of one table number: the table's entry, its row count and the total size of its
//! records, and what says if the number of a dropped table is free.

use super::numbers::{Named, Reach};
use crate::checkpoint::manifest::TableEntry;
use crate::operation::Width;
use crate::record::address::{TableId, TableNumber};
use crate::record::layout::{HEADER_BYTES, record_bytes};
use crate::sync::{AtomicU64, Ordering};

#[cfg(test)]
thread_local! {
    /// The number of table numbers that this thread has examined in search of a free one.
    pub(super) static EXAMINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A table with its row count.
#[derive(Debug)]
pub(super) struct TableState {
    pub(super) entry: TableEntry,
    /// The table's row count. A batch adds its inserted rows minus its deleted rows before it
    /// unpins, so the sum is exact while batches are paused. At other times it may be off, and even
    /// below zero.
    pub(super) rows: AtomicU64,
    /// Number of versions with the mark *uncounted* that were written.
    pub(super) marked: AtomicU64,
    /// Number of these versions that a call of `Store::compact` has counted. The difference to
    /// `marked` bounds how far off `rows` is. Merges may have counted more of them.
    pub(super) marks_ended: AtomicU64,
    /// Total size in bytes of the records of the table's rows, if the rows are of variable width.
    /// Updated together with `rows`.
    pub(super) record_bytes: AtomicU64,
    /// Number of tables that had this table number before, in this store object.
    incarnation: u32,
    /// Where all rows of the dropped table end. Zero if the table never had a row. `None` if the
    /// table is not dropped, or if the end is not known yet.
    rows_end: Option<Reach>,
    /// True if the checkpoint at which the store was opened says that the dropped table has no
    /// records left.
    was_gone: bool,
    /// The oldest and the newest checkpoint that may have the table or its records.
    named: Option<(u64, u64)>,
}

impl TableState {
    /// Returns the state of a new table.
    pub(super) fn new(entry: TableEntry, incarnation: u32) -> Self {
        TableState {
            rows: entry.rows.into(),
            marked: AtomicU64::new(0),
            marks_ended: AtomicU64::new(0),
            record_bytes: entry.record_bytes.into(),
            incarnation,
            rows_end: None,
            was_gone: false,
            named: None,
            entry,
        }
    }

    /// Returns the state of a table in the checkpoint at which the store is opened. The
    /// checkpoint's rows end at `end`.
    pub(super) fn recovered(
        entry: TableEntry,
        incarnation: u32,
        end: Reach,
        uncounted: u64,
        named: &Named,
    ) -> Self {
        // The mark that a table is gone is proof for parts: no build without the rule of
        // `has_no_row` has written parts.
        let part = if entry.is_gone() { 0 } else { end.part };
        TableState {
            rows_end: entry.dropped.then_some(Reach { part, ..end }),
            was_gone: entry.is_gone(),
            named: named.get(&entry.number).copied(),
            marked: uncounted.into(),
            ..Self::new(entry, incarnation)
        }
    }

    pub(super) fn id(&self) -> TableId {
        TableId { number: TableNumber(self.entry.number), incarnation: self.incarnation }
    }

    /// Returns the id for the next table with this number. `None` after 4 billion tables.
    pub(super) fn next_id(&self) -> Option<TableId> {
        let incarnation = self.incarnation.checked_add(1)?;
        Some(TableId { incarnation, ..self.id() })
    }

    /// Returns the id for the table with this number in the manifest of a later checkpoint, whose
    /// entry is `entry`. The id is this table's own if both are the same table, or if the later
    /// table is dropped. `None` after 4 billion tables.
    pub(super) fn id_of_later(&self, entry: &TableEntry) -> Option<TableId> {
        let of = |entry: &TableEntry| (entry.width(), entry.value_bytes, entry.dropped);
        let is_same = of(entry) == of(&self.entry)
            && (&entry.name, &entry.descriptor) == (&self.entry.name, &self.entry.descriptor);
        if is_same || entry.dropped { Some(self.id()) } else { self.next_id() }
    }

    /// True if the table was dropped and the end of its rows is not known yet.
    pub(super) fn is_unsettled(&self) -> bool {
        self.entry.dropped && self.rows_end.is_none()
    }

    /// Notes that all rows of the dropped table lie below `end`. If `was_written` is false, the
    /// table has no rows.
    pub(super) fn settle(&mut self, end: Reach, was_written: bool) {
        self.rows_end = Some(if was_written { end } else { Reach::default() });
    }

    /// True if the table was dropped, and neither the log nor the parts from `begin` on have a row
    /// of it now or later.
    fn has_no_row(&self, begin: Reach) -> bool {
        let before = |end: Reach| end.log <= begin.log && end.part <= begin.part;
        self.entry.dropped && self.rows_end.is_some_and(before)
    }

    /// True if another table can get this number. The store's rows begin at `begin`. `checkpoints`
    /// lists the checkpoints that are on disk or being taken.
    pub(super) fn is_free(&self, begin: Reach, checkpoints: &[u64]) -> bool {
        #[cfg(test)]
        EXAMINED.set(EXAMINED.get() + 1);
        let has_it = |(oldest, newest)| checkpoints.iter().any(|at| (oldest..=newest).contains(at));
        self.has_no_row(begin) && !self.named.is_some_and(has_it) && self.next_id().is_some()
    }

    /// Returns the table's entry for the manifest of checkpoint `number`, whose rows begin at
    /// `begin`.
    pub(super) fn cut(&mut self, number: u64, begin: Reach) -> TableEntry {
        // If the table has no row left, an open does not need the length of its records.
        let gone = self.entry.dropped && (self.was_gone || self.has_no_row(begin));
        if !gone {
            let oldest = self.named.map_or(number, |(oldest, _)| oldest);
            self.named = Some((oldest, number));
        }
        let count =
            |of: &AtomicU64| if self.entry.dropped { 0 } else { of.load(Ordering::Relaxed) };
        TableEntry {
            value_bytes: match (gone, self.entry.dropped) {
                (true, _) => 0,
                // At least 1, because 0 means that the table has no record left.
                (false, true) => self.entry.value_bytes.max(1),
                (false, false) => self.entry.value_bytes,
            },
            rows: count(&self.rows),
            record_bytes: count(&self.record_bytes),
            ..self.entry.clone()
        }
    }

    /// Returns a bound on the number of versions with the mark *uncounted*. While it is 0, the row
    /// count is exact; otherwise the count is off by at most this number.
    pub(super) fn uncounted(&self) -> u64 {
        // Ended first: it never exceeds what `marked` had before.
        let ended = self.marks_ended.load(Ordering::Relaxed);
        self.marked.load(Ordering::Relaxed).saturating_sub(ended)
    }

    /// Returns the row count; 0 if it is below zero, because the count of a deletion arrived before
    /// the count of another thread's insertion of the row.
    pub(super) fn rows_now(&self) -> u64 {
        self.rows.load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Returns the length in bytes of a record; of the longest record if the width is variable.
    pub(super) fn record_bytes_max(&self) -> u64 {
        record_bytes(self.entry.value_bytes as usize) as u64
    }

    /// Returns the total size in bytes of the table's records. `rows` is the table's row count.
    pub(super) fn live_bytes(&self, rows: u64) -> u64 {
        let longest = self.record_bytes_max();
        match self.entry.width() {
            Width::Fixed => rows * longest,
            Width::Variable => {
                // While batches run, the total size and the row count may not fit each other.
                let bytes = self.record_bytes.load(Ordering::Relaxed);
                let bytes = bytes.cast_signed().max(0).cast_unsigned();
                bytes.clamp(rows * HEADER_BYTES as u64, rows * longest)
            }
        }
    }
}
