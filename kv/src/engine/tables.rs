//! The state that the engine keeps of each table: name and number, row count, and total size of the
//! records.

use crate::checkpoint::manifest::TableEntry;
use crate::operation::Width;
use crate::record::address::TableId;
use crate::record::address::TableNumber;
use crate::record::layout::HEADER_BYTES;
use crate::record::layout::record_bytes;
use crate::sync::AtomicU32;
use crate::sync::AtomicU64;
use crate::sync::Ordering;
use std::collections::BTreeMap;

#[cfg(test)]
thread_local! {
    /// The number of table numbers that this thread has examined in search of a free one.
    pub(crate) static EXAMINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A table with its row count.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) entry: TableEntry,
    /// The table's row count. A batch adds its inserted rows minus its deleted rows before it
    /// unpins, so the sum is exact while batches are paused. At other times it may be off, and even
    /// below zero.
    pub(crate) rows: AtomicU64,
    /// Total size in bytes of the records of the table's rows, if the rows are of variable width.
    /// Updated together with `rows`.
    pub(crate) record_bytes: AtomicU64,
    /// Number of tables that had this table number before, in this store object.
    incarnation: u32,
    /// The address below which all records of the dropped table lie. 0 if the table never had a
    /// record. `None` if the table is not dropped, or if this address is not known yet.
    records_end: Option<u64>,
    /// True if the checkpoint at which the store was opened says that the dropped table has no
    /// records left.
    was_gone: bool,
    /// The oldest and the newest checkpoint that may have the table or its records.
    named: Option<(u64, u64)>,
}

impl TableState {
    /// Returns the state of a new table.
    pub(crate) fn new(entry: TableEntry, incarnation: u32) -> Self {
        TableState {
            rows: entry.rows.into(),
            record_bytes: entry.record_bytes.into(),
            incarnation,
            records_end: None,
            was_gone: false,
            named: None,
            entry,
        }
    }

    /// Returns the state of a table in the checkpoint at which the store is opened. The
    /// checkpoint's log ends at `log_end`.
    pub(crate) fn recovered(
        entry: TableEntry,
        incarnation: u32,
        log_end: u64,
        named: &Named,
    ) -> Self {
        TableState {
            records_end: entry.dropped.then_some(log_end),
            was_gone: entry.is_gone(),
            named: named.get(&entry.number).copied(),
            ..Self::new(entry, incarnation)
        }
    }

    pub(crate) fn id(&self) -> TableId {
        TableId { number: TableNumber(self.entry.number), incarnation: self.incarnation }
    }

    /// Returns the id for the next table with this number. `None` after 4 billion tables.
    pub(crate) fn next_id(&self) -> Option<TableId> {
        let incarnation = self.incarnation.checked_add(1)?;
        Some(TableId { incarnation, ..self.id() })
    }

    /// Returns the id for the table with this number in the manifest of a later checkpoint, whose
    /// entry is `entry`. The id is this table's own if both are the same table, or if the later
    /// table is dropped. `None` after 4 billion tables.
    pub(crate) fn id_of_later(&self, entry: &TableEntry) -> Option<TableId> {
        let of = |entry: &TableEntry| (entry.width(), entry.value_bytes, entry.dropped);
        let is_same = of(entry) == of(&self.entry)
            && (&entry.name, &entry.descriptor) == (&self.entry.name, &self.entry.descriptor);
        if is_same || entry.dropped { Some(self.id()) } else { self.next_id() }
    }

    /// True if the table was dropped and `records_end` is not known yet.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.entry.dropped && self.records_end.is_none()
    }

    /// Notes that all records of the dropped table lie below `log_end`. If `was_written` is false,
    /// the table has no records.
    pub(crate) fn settle(&mut self, log_end: u64, was_written: bool) {
        self.records_end = Some(if was_written { log_end } else { 0 });
    }

    /// True if the table was dropped, and the log from `log_begin` on has no record of it now or
    /// later.
    fn has_no_record(&self, log_begin: u64) -> bool {
        self.entry.dropped && self.records_end.is_some_and(|end| end <= log_begin)
    }

    /// True if another table can get this number. `checkpoints` lists the checkpoints that are on
    /// disk or being taken.
    pub(crate) fn is_free(&self, log_begin: u64, checkpoints: &[u64]) -> bool {
        #[cfg(test)]
        EXAMINED.set(EXAMINED.get() + 1);
        let is_named = |&(oldest, newest): &(u64, u64)| {
            checkpoints.iter().any(|checkpoint| (oldest..=newest).contains(checkpoint))
        };
        self.has_no_record(log_begin)
            && self.named.as_ref().is_none_or(|named| !is_named(named))
            && self.next_id().is_some()
    }

    /// Returns the table's entry for the manifest of checkpoint `number`, whose log begins at
    /// `log_begin`.
    pub(crate) fn cut(&mut self, number: u64, log_begin: u64) -> TableEntry {
        // If the table has no record left, an open does not need the length of its records.
        let gone = self.entry.dropped && (self.was_gone || self.has_no_record(log_begin));
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

    /// Returns the length in bytes of a record; of the longest record if the width is variable.
    pub(crate) fn record_bytes_max(&self) -> u64 {
        record_bytes(self.entry.value_bytes as usize) as u64
    }

    /// Returns the total size in bytes of the table's records. `rows` is the table's row count.
    pub(crate) fn live_bytes(&self, rows: u64) -> u64 {
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

/// Largest number of tables that a bank has at a time. Tables are numbered from 1; no table gets
/// the number 0.
pub(crate) const NUMBERS_MAX: u16 = u16::MAX;

/// State for choosing the numbers of new tables.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// The largest table number: [`NUMBERS_MAX`], or less in tests.
    pub(crate) max: AtomicU32,
    /// The place in the list of tables at which the search for a free number continues, so all
    /// numbers are reused equally often. Changes only under the lock of the tables.
    pub(crate) next: AtomicU32,
}

impl Default for Numbers {
    fn default() -> Self {
        Numbers { max: AtomicU32::new(NUMBERS_MAX.into()), next: AtomicU32::new(0) }
    }
}

/// For each table number, the oldest and the newest checkpoint on disk that has the table or its
/// records.
pub(crate) type Named = BTreeMap<u16, (u64, u64)>;
