//! What the engine keeps of each table: its name and number, its count of rows, their bytes.

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

/// A table and its count of rows.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) entry: TableEntry,
    /// Batches add what they inserted less what they deleted before they unpin, so the sum is
    /// exact while they are paused. Between the counts of two batches it may be off, even
    /// below zero.
    pub(crate) rows: AtomicU64,
    /// Bytes of those rows' records, where the width is variable; counted in the same way.
    pub(crate) record_bytes: AtomicU64,
    /// How many tables had the number in this store object before.
    incarnation: u32,
    /// All records of the dropped table lie below, and none will come; 0 if there never was one.
    /// `None` while the table is there, and until the first such moment after its drop.
    records_end: Option<u64>,
    /// The checkpoint that the store was opened at says that no record is left.
    was_gone: bool,
    /// The oldest and the newest checkpoint that may have the table or a record of it.
    named: Option<(u64, u64)>,
}

impl TableState {
    /// A table that is new.
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

    /// A table of the checkpoint that the store is opened at, whose log ends at `log_end`.
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

    /// The id of the table that gets the number next; `None` after 4 billion of them.
    pub(crate) fn next_id(&self) -> Option<TableId> {
        let incarnation = self.incarnation.checked_add(1)?;
        Some(TableId { incarnation, ..self.id() })
    }

    /// The id that the table of another checkpoint's manifest has beside this one of the same
    /// number.
    pub(crate) fn id_of_later(&self, entry: &TableEntry) -> Option<TableId> {
        let of = |entry: &TableEntry| (entry.width(), entry.value_bytes, entry.dropped);
        let is_same = of(entry) == of(&self.entry)
            && (&entry.name, &entry.descriptor) == (&self.entry.name, &self.entry.descriptor);
        if is_same || entry.dropped { Some(self.id()) } else { self.next_id() }
    }

    /// True if the table was dropped and it is not known yet where its last record can be.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.entry.dropped && self.records_end.is_none()
    }

    /// Notes that all records of the dropped table lie below `log_end`, of which there are any only
    /// if it `was_written`.
    pub(crate) fn settle(&mut self, log_end: u64, was_written: bool) {
        self.records_end = Some(if was_written { log_end } else { 0 });
    }

    /// True if the table was dropped, and if no record of it lies, or can come to lie, in the log
    /// from `log_begin` on.
    fn has_no_record(&self, log_begin: u64) -> bool {
        self.entry.dropped && self.records_end.is_some_and(|end| end <= log_begin)
    }

    /// Whether another table can get the number. `checkpoints` are those on disk or about to be.
    pub(crate) fn is_free(&self, log_begin: u64, checkpoints: &[u64]) -> bool {
        let is_named = |&(oldest, newest): &(u64, u64)| {
            checkpoints.iter().any(|checkpoint| (oldest..=newest).contains(checkpoint))
        };
        self.has_no_record(log_begin)
            && self.named.as_ref().is_none_or(|named| !is_named(named))
            && self.next_id().is_some()
    }

    /// The table as checkpoint `number` holds it, whose log begins at `log_begin`.
    pub(crate) fn cut(&mut self, number: u64, log_begin: u64) -> TableEntry {
        // Once no record of the table is left, an open does not need the records' length.
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
                // 0 would say that no record is left.
                (false, true) => self.entry.value_bytes.max(1),
                (false, false) => self.entry.value_bytes,
            },
            rows: count(&self.rows),
            record_bytes: count(&self.record_bytes),
            ..self.entry.clone()
        }
    }

    /// Bytes of a record; of the longest one, where the width is variable.
    pub(crate) fn record_bytes_max(&self) -> u64 {
        record_bytes(self.entry.value_bytes as usize) as u64
    }

    /// Bytes of the records of `rows` rows, which are all rows of the table.
    pub(crate) fn live_bytes(&self, rows: u64) -> u64 {
        let longest = self.record_bytes_max();
        match self.entry.width() {
            Width::Fixed => rows * longest,
            Width::Variable => {
                // Counts of batches under way may not fit each other.
                let bytes = self.record_bytes.load(Ordering::Relaxed);
                let bytes = bytes.cast_signed().max(0).cast_unsigned();
                bytes.clamp(rows * HEADER_BYTES as u64, rows * longest)
            }
        }
    }
}

/// The most tables that a bank has at a time: 0 is no table's number.
pub(crate) const NUMBERS_MAX: u16 = u16::MAX;

/// Which numbers the next tables get.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// [`NUMBERS_MAX`], or fewer in tests.
    pub(crate) max: AtomicU32,
    /// Where the search for a number of a dropped table goes on, so that each is used as seldom as
    /// any other. Changes only under the lock of the tables.
    pub(crate) next: AtomicU32,
}

impl Default for Numbers {
    fn default() -> Self {
        Numbers { max: AtomicU32::new(NUMBERS_MAX.into()), next: AtomicU32::new(0) }
    }
}

/// Of each number, the oldest and the newest checkpoint on disk that has the table or a record of
/// it.
pub(crate) type Named = BTreeMap<u16, (u64, u64)>;
