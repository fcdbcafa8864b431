//! Counts of a batch. The batch adds them to the store's counters at its end.

use super::{Batch, Effect, Work};
use crate::operation::Operation;
use crate::record::layout::RecordRef;
use crate::stats::Counters;

/// Counts of one batch, which are added to the store's counters once.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) hits_mutable: u64,
    pub(crate) hits_read_only: u64,
    pub(crate) hits_disk: u64,
    pub(crate) hits_cache: u64,
    pub(crate) missing: u64,
    pub(crate) inserted: u64,
    pub(crate) deleted: u64,
    /// Rows that the batch put without looking for older versions. They count as neither found nor
    /// inserted.
    pub(crate) blind: u64,
    /// Number of `inserted` rows minus number of `deleted` rows whose versions are uncounted
    /// (wrapping). The table's row count does not have them.
    pub(crate) uncounted: u64,
    /// New records with the mark *uncounted*.
    pub(crate) marked: u64,
    pub(crate) resident: u64,
    pub(crate) appended: u64,
    pub(crate) copied: u64,
    pub(crate) disk_reads: u64,
    /// Rows that shared a read of the drive with another row.
    pub(crate) disk_reads_joined: u64,
    pub(crate) disk_queue_depth_max: u64,
    pub(crate) disk_read_bytes: u64,
    pub(crate) cold_blocks_read: u64,
    /// Blocks of the cold tier that did not have the row for which they were read.
    pub(crate) cold_false_reads: u64,
    pub(crate) promoted: u64,
    /// Rows that a job copied to the tail, from disk or from the read-only region.
    pub(crate) moved: u64,
    /// Total size in bytes of the records that a job has moved.
    pub(crate) moved_bytes: u64,
    /// Growth of the total size of the table's records, in bytes (wrapping). Stays 0 in tables of
    /// fixed width.
    pub(crate) grown_bytes: u64,
    /// Promoted rows that this batch used for the first time since their promotion.
    pub(crate) promoted_used: u64,
    pub(crate) overtaken: u64,
}

impl Tally {
    /// Adds the counts of a batch of `keys` keys to the store's counters.
    pub(super) fn add_to<W: Work>(&self, counters: &Counters, keys: u64) {
        counters.batches.add(1);
        // Number of rows that the batch worked on. After an error this is less than the number of
        // keys.
        let found = self.hits_mutable + self.hits_read_only + self.hits_disk + self.hits_cache;
        let changed = match W::EFFECT {
            Effect::Peek => {
                counters.peek_keys.add(keys);
                0
            }
            Effect::Get => {
                counters.get_keys.add(keys);
                self.inserted
            }
            Effect::Update | Effect::Touch => {
                counters.update_keys.add(keys);
                found + self.inserted
            }
            Effect::Put => {
                counters.put_keys.add(keys);
                found + self.inserted + self.blind
            }
            Effect::Delete => {
                counters.delete_keys.add(keys);
                self.deleted
            }
            // These jobs are not operations on rows. The counter `promoted` counts the rows that
            // lookahead moves.
            Effect::Move | Effect::Locate => 0,
        };
        counters.changed.add(if W::Caller::CHANGES && W::EFFECT != Effect::Touch {
            changed
        } else {
            0
        });
        counters.deleted.add(self.deleted);
        counters.hits_mutable.add(self.hits_mutable);
        counters.hits_read_only.add(self.hits_read_only);
        counters.hits_disk.add(self.hits_disk);
        counters.hits_cache.add(self.hits_cache);
        counters.missing.add(self.missing);
        counters.inserted.add(self.inserted);
        counters.records_appended.add(self.appended);
        counters.copied_to_tail.add(self.copied);
        counters.disk_reads.add(self.disk_reads);
        counters.disk_reads_joined.add(self.disk_reads_joined);
        counters.disk_queue_depth_max.raise(self.disk_queue_depth_max);
        counters.disk_read_bytes.add(self.disk_read_bytes);
        counters.cold_blocks_read.add(self.cold_blocks_read);
        counters.cold_false_reads.add(self.cold_false_reads);
        counters.promoted.add(self.promoted);
        counters.promoted_used.add(self.promoted_used);
        counters.overtaken.add(self.overtaken);
    }
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// Brings the table's row count up to date, and marks the table as a table with records. Must
    /// be called while pinned, so that a checkpoint counts the rows whose records it includes.
    #[inline]
    pub(super) fn note_rows(&mut self) {
        if self.tally.appended > 0 && !self.written_noted {
            self.core.tables.note_written(self.table);
            self.written_noted = true;
        }
        let Tally { inserted, deleted, uncounted, marked, .. } = *self.tally;
        let rows = inserted.wrapping_sub(deleted).wrapping_sub(uncounted);
        if rows != self.rows_noted {
            self.core.tables.add_rows(self.table, rows.wrapping_sub(self.rows_noted));
            self.rows_noted = rows;
        }
        if marked != self.marked_noted {
            self.core.tables.add_uncounted(self.table, marked - self.marked_noted);
            self.marked_noted = marked;
        }
        if VARIABLE {
            self.note_grown();
        }
    }

    /// Counts a new row with the record `new`.
    pub(super) fn note_inserted(&mut self, new: RecordRef<'_>) {
        self.tally.inserted += 1;
        self.tally.missing += 1;
        if new.link().is_uncounted() {
            self.tally.uncounted = self.tally.uncounted.wrapping_add(1);
        }
        self.note_replaced(0, new.shape().record_bytes());
    }

    /// Counts a row that was deleted and had a record of `record_bytes` bytes. `uncounted` is its
    /// mark.
    pub(super) fn note_deleted(&mut self, record_bytes: usize, uncounted: bool) {
        self.tally.deleted += 1;
        if uncounted {
            self.tally.uncounted = self.tally.uncounted.wrapping_sub(1);
        }
        self.note_replaced(record_bytes, 0);
    }

    /// Counts a new record that was published.
    #[inline]
    pub(super) fn note_published(&mut self, new: RecordRef<'_>) {
        self.tally.marked += u64::from(new.link().is_uncounted());
    }

    /// Adds the difference between the lengths of a row's new and old record. A length of 0 means
    /// that there is no such record.
    #[inline]
    pub(super) fn note_replaced(&mut self, old_bytes: usize, new_bytes: usize) {
        if VARIABLE {
            let grown = (new_bytes as u64).wrapping_sub(old_bytes as u64);
            self.tally.grown_bytes = self.tally.grown_bytes.wrapping_add(grown);
        }
    }

    pub(super) fn note_missing(&mut self, i: usize) {
        self.tally.missing += 1;
        self.outcome.missing.push(i as u32);
    }
}
