//! Copies the current rows of a page to the tail. No row then needs the page.

use super::{Compaction, Fill, GROUP_ROWS, Row};
use crate::engine::batch::{MoveChained, Tally};
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::index::{Candidates, Entry, Index};
use crate::log::page::PAGE_HEADER_BYTES;
use crate::log::view::View;
use crate::log::{PageFull, TurnFor};
use crate::record::address::Address;
use crate::record::layout::{HEADER_BYTES, RecordImage};

/// What a record that stands for a deleted row is to compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tombstones {
    /// A record without a row: the records that it hides lie below it, so they are gone first.
    Dead,
    /// A row: it hides a row of the cold tier.
    Rows,
}

/// The state of a record according to the index.
pub(super) enum Verdict {
    /// The record is current: this entry leads to it and to no other record.
    Current(Entry),
    /// The record may be in a chain, so a walk of the chain must decide.
    Chained,
    Dead,
}

impl Compaction<'_> {
    /// Reads the page and copies the rows to which an entry without a chain leads. Lists the other
    /// records in `pass`.
    pub(super) fn move_rows(&mut self, buffer: &mut [u8], start: u64) -> Result<u64> {
        let log = &self.core.log;
        let page = &mut buffer[..log.page_bytes() as usize];
        let used = log.read_page(page, start)?;
        self.pass.dead.clear();
        self.pass.chained.clear();
        self.list_records(&page[..used], start, Tombstones::Dead)?;
        let rows = std::mem::take(&mut self.pass.rows);
        let mut at = 0;
        let mut copied = 0;
        // The loop ends: a round that copies no row has met a full page, and the next round has an
        // empty page.
        while at < rows.len() {
            if let Err(full) = self.move_group(&rows, &mut at, page, start, &mut copied) {
                log.turn_page(full, TurnFor::Space)?;
            }
        }
        self.pass.rows = rows;
        Ok(copied)
    }

    /// Lists the records of the page that begins at `start`. `page` is the used part of the page.
    pub(super) fn list_records(
        &mut self,
        page: &[u8],
        start: u64,
        tombstones: Tombstones,
    ) -> Result<()> {
        let Core { log, tables, key_hash, .. } = self.core;
        let pass = &mut *self.pass;
        pass.rows.clear();
        // If the longest record still fits after the used part, a checkpoint ended the page early.
        // Then only the used part counts as needed. Otherwise the whole page counts, because the
        // unused end is too short for a record.
        let used = page.len() as u64;
        let room = log.page_bytes() - used;
        let taken = if room < tables.longest_record() as u64 { log.page_bytes() } else { used };
        pass.fill = Fill { records: used - PAGE_HEADER_BYTES, pages: taken };
        let mut offset = PAGE_HEADER_BYTES as usize;
        // The loop ends: each record is at least as long as its header.
        while offset + HEADER_BYTES <= page.len() {
            let image = RecordImage::new(&page[offset..]);
            let table = image.shape().table();
            let bytes = image.shape().record_bytes();
            if offset + bytes > page.len() {
                let number = start / log.page_bytes();
                let (path, offset) = log.device.locate(start + offset as u64);
                let what = format!("page {number}: a record runs past its end");
                return Err(Error::Damaged { path, offset, what });
            }
            if !image.link().is_invalid() && table.0 != 0 {
                let row = Row { offset: offset as u32, hash: key_hash.of(table, image.key()) };
                // A table that this bank does not know was dropped, or was made after the
                // checkpoint at which the bank was opened. Its records are dead.
                let gone = tables.of(table).is_none();
                let is_dead = image.link().is_tombstone() && tombstones == Tombstones::Dead;
                if gone || is_dead {
                    pass.dead.push(row.hash);
                } else {
                    pass.rows.push(row);
                }
            }
            offset += bytes;
        }
        Ok(())
    }

    /// Copies a group of rows from `at` on under one pin. Leaves in `at` the first row that was not
    /// handled.
    fn move_group(
        &mut self,
        rows: &[Row],
        at: &mut usize,
        page: &[u8],
        start: u64,
        copied: &mut u64,
    ) -> std::result::Result<(), PageFull> {
        let Core { log, index, tables, gate, .. } = self.core;
        let pass = &mut *self.pass;
        let end = rows.len().min(*at + GROUP_ROWS);
        // A checkpoint's pause waits for this pin, so the index does not change during the pause.
        let guard = gate.enter();
        let view = log.view();
        let outline = index.outline();
        for row in &rows[*at..end] {
            outline.prefetch(row.hash);
        }
        for row in &rows[*at..end] {
            let address = Address::new(start + u64::from(row.offset));
            let image = RecordImage::new(&page[row.offset as usize..]);
            // Another thread may have dropped the table since the page was listed. If the table
            // still exists here, no other table gets its number before this pin is released
            // (`engine::tables::numbers`).
            if tables.of(image.shape().table()).is_none() {
                pass.dead.push(row.hash);
                *at += 1;
                continue;
            }
            // The loop ends: a round repeats only if another thread has changed the row's entry.
            loop {
                match verdict(index, &mut pass.candidates, row.hash, address) {
                    Verdict::Dead => {}
                    Verdict::Chained => {
                        let table = pass.chained.entry(image.shape().table()).or_default();
                        table.0.push(image.key());
                        table.1.push(address);
                    }
                    Verdict::Current(entry) => {
                        if !copy(self.core, view, image, address, (row.hash, entry))? {
                            continue;
                        }
                        *copied += image.shape().record_bytes() as u64;
                    }
                }
                break;
            }
            *at += 1;
        }
        drop(guard);
        index.wait_for_image();
        Ok(())
    }

    /// Walks the chains that may have records of the page, and copies those records that are
    /// current.
    pub(super) fn move_chained(&mut self) -> Result<u64> {
        let Core { tables, counters, .. } = self.core;
        let pass = &mut *self.pass;
        let mut moved_bytes = 0;
        for (&number, (keys, addresses)) in &pass.chained {
            // If the table was dropped, its rows are dead. No other table has the number, because
            // this page still has records with it.
            let Some(table) = tables.of(number) else { continue };
            let mut tally = Tally::default();
            let (job, scratch) = (&mut MoveChained(addresses), &mut pass.scratch);
            let done = self.core.run_within(table, keys, job, scratch, &mut tally);
            counters.records_appended.add(tally.appended);
            counters.disk_reads.add(tally.disk_reads);
            counters.disk_read_bytes.add(tally.disk_read_bytes);
            moved_bytes += tally.moved_bytes;
            match done {
                // Another thread dropped the table during the batch, so the rows that the batch has
                // moved are dead.
                Err(Error::NoSuchTable(_)) | Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(moved_bytes)
    }
}

pub(super) fn verdict(
    index: &Index,
    candidates: &mut Candidates,
    hash: u64,
    address: Address,
) -> Verdict {
    index.candidates(hash, candidates);
    let mut verdict = Verdict::Dead;
    for entry in candidates.iter() {
        if entry.is_chained() && entry.address() >= address {
            verdict = Verdict::Chained;
        } else if entry.address() == address {
            return Verdict::Current(entry);
        }
    }
    verdict
}

/// Copies a row to the tail and makes its index entry lead to the copy. Returns false if another
/// thread has changed the entry.
pub(super) fn copy(
    core: &Core,
    view: View<'_>,
    image: RecordImage<'_>,
    address: Address,
    (hash, entry): (u64, Entry),
) -> std::result::Result<bool, PageFull> {
    let value = image.padded_value();
    let value_bytes = value.len() - image.unused_bytes();
    let new = core.log.begin_record(view, image.shape().table(), image.key(), value_bytes)?;
    core.counters.records_appended.add(1);
    // SAFETY: the duty is that no other thread uses the value, and that it lies in the record. This
    // thread has not published the record, and the record is as long as the image.
    unsafe { new.value_mut(value.len()) }.copy_from_slice(value);
    let word = core.word_on_disk(image, address);
    let uses = core.retention.inherited_uses(word, address, new.address());
    let uncounted = image.link().is_uncounted();
    if uncounted {
        new.mark_uncounted();
    }
    new.finish(word.inherited(word.outstanding(), uses), false);
    let published = core.index.replace(hash, entry, new.address(), true);
    if !published {
        new.abandon();
    } else if uncounted && let Some(table) = core.tables.of(image.shape().table()) {
        core.tables.add_uncounted(table, 1);
    }
    Ok(published)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AlignedBuffer;
    use crate::engine::space::options::CompactionOptions;
    use crate::{Access, Clock, Operation, Store, StoreOptions};

    struct Put;

    impl Operation for Put {
        const ACCESS: Access = Access::Put;
        fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
            true
        }
    }

    /// Regression test: compaction copied rows of a table that was dropped after the page was
    /// listed. The copies lay above `records_end`, below which all records of a dropped table must
    /// lie.
    #[test]
    fn rows_of_a_table_that_is_dropped_meanwhile_are_not_copied() {
        let dir = tempfile::tempdir().unwrap();
        let compaction = CompactionOptions { background: false, ..CompactionOptions::default() };
        let options = StoreOptions { compaction, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &options).unwrap();
        let table = store.create_table("rows", 8, b"").unwrap();
        let other = store.create_table("other", 8, b"").unwrap();
        let keys: Vec<u64> = (0..10).collect();
        store.execute(table, &keys, Clock::Keep, &mut Put).unwrap();
        store.execute(other, &keys, Clock::Keep, &mut Put).unwrap();
        store.checkpoint(b"").unwrap();
        let core = store.core();
        let start = core.log.begin();
        let mut compaction = Compaction::begin(&core);
        let mut page = AlignedBuffer::zeroed(core.log.page_bytes() as usize);
        let used = core.log.read_page(&mut page, start).unwrap();
        compaction.list_records(&page[..used], start, Tombstones::Dead).unwrap();
        let rows = std::mem::take(&mut compaction.pass.rows);
        assert_eq!(rows.len(), 20);
        let is_row = |row: &Row| RecordImage::new(&page[row.offset as usize..]);
        for row in rows.iter().filter(|row| is_row(row).shape().table() == table.number) {
            let chained = compaction.pass.chained.entry(table.number).or_default();
            chained.0.push(is_row(row).key());
            chained.1.push(Address::new(start + u64::from(row.offset)));
        }
        store.drop_table(table).unwrap();
        let mut at = 0;
        let mut copied = 0;
        let moved = compaction.move_group(&rows, &mut at, &page, start, &mut copied);
        assert!(moved.is_ok());
        let record_bytes = HEADER_BYTES as u64 + 8;
        assert_eq!((at, copied, compaction.pass.dead.len()), (20, 10 * record_bytes, 10));
        assert_eq!(compaction.move_chained().unwrap(), 0);
        assert_eq!(store.rows(other).unwrap(), 10);
    }
}
