//! Compacts one page at the log's beginning: copies its current rows to the tail. No row then needs
//! the page.

use crate::engine::batch::BatchMemory;
use crate::engine::compaction::space::Pass;
use crate::engine::compaction::space::Row;
use std::time::Instant;

use super::Turn;
use crate::device::{AlignedBuffer, Read};
use crate::engine::batch::{MoveChained, Scratch, Tally};
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::index::{Candidates, Entry};
use crate::log::page::{PAGE_HEADER_BYTES, check_image};
use crate::log::view::View;
use crate::log::{PageFull, TurnFor};
use crate::memory::budget::Budget;
use crate::operation::Outcome;
use crate::record::address::{Address, TableId};
use crate::record::layout::{HEADER_BYTES, RecordImage};
use crate::sync::{Planted, planted};

/// Number of rows that are copied under one pin. The cache misses of their index lookups overlap.
const GROUP_ROWS: usize = 32;
/// Number of concurrent requests that read one page. Each request has at least `READ_BYTES_MIN`
/// bytes, so a small page takes fewer requests.
const READS: usize = 4;
const READ_BYTES_MIN: usize = 64 << 10;

/// The state of a record according to the index.
enum Verdict {
    /// The record is current: this entry leads to it and to no other record.
    Current(Entry),
    /// The record may be in a chain, so a walk of the chain must decide.
    Chained,
    Dead,
}

impl Core {
    /// Compacts the page at the log's beginning, which is on the device. Returns the number of
    /// bytes copied.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` if the page cannot be read. The page then stays as it is.
    /// `Poisoned` if the log cannot be written.
    pub(super) fn compact_page(&self, pass: &mut Pass) -> Result<u64> {
        let started = Instant::now();
        let start = self.log.begin();
        let end = start + self.log.page_bytes();
        let bytes = Budget::compaction_buffer_bytes_for(self.log.page_bytes()) as usize;
        if planted(Planted::BeginEarly) {
            self.log.set_begin(end);
        }
        let mut buffer = pass.buffer.take().unwrap_or_else(|| AlignedBuffer::zeroed(bytes));
        let copied = self.move_rows(pass, &mut buffer, start);
        // The rows of the page have been copied. So the walks of chains can use the page's buffer
        // for reads.
        pass.scratch.own_buffer = Some(buffer);
        let copied = copied.and_then(|copied| Ok(copied + self.move_chained(pass)?));
        pass.buffer = pass.scratch.own_buffer.take();
        let copied = copied?;
        self.clear_entries(pass, start, end);
        self.note_turn(pass.fill);
        self.log.set_begin(end);
        self.counters.compacted_bytes.add(end - start);
        self.counters.compaction_copied_bytes.add(copied);
        self.counters.compaction_us.add(started.elapsed().as_micros() as u64);
        Ok(copied)
    }

    /// Reads the page and copies the rows to which an entry without a chain leads. Lists the other
    /// records in `pass`.
    fn move_rows(&self, pass: &mut Pass, buffer: &mut [u8], start: u64) -> Result<u64> {
        let page = &mut buffer[..self.log.page_bytes() as usize];
        self.read_page(page, start)?;
        self.list_records(pass, page, start)?;
        let rows = std::mem::take(&mut pass.rows);
        let mut at = 0;
        let mut copied = 0;
        // The loop ends: a round that copies no row has met a full page, and the next round has an
        // empty page.
        while at < rows.len() {
            let full = self.move_group(pass, &rows, &mut at, page, start, &mut copied);
            if let Err(full) = full {
                self.log.turn_page(full, TurnFor::Space)?;
            }
        }
        pass.rows = rows;
        Ok(copied)
    }

    /// Reads a page of the log and verifies it.
    pub(crate) fn read_page(&self, page: &mut [u8], start: u64) -> Result<()> {
        let each = page.len().div_ceil(READS).next_multiple_of(4096).max(READ_BYTES_MIN);
        let mut reads = Vec::with_capacity(READS);
        let mut offset = start;
        for buffer in page.chunks_mut(each) {
            let length = buffer.len() as u64;
            reads.push(Read { offset, buffer });
            offset += length;
        }
        self.counters.disk_reads.add(reads.len() as u64);
        self.counters.disk_read_bytes.add(page_bytes_of(&reads));
        self.log.device.read_many_behind(&mut reads)
    }

    fn list_records(&self, pass: &mut Pass, page: &[u8], start: u64) -> Result<()> {
        let number = start / self.log.page_bytes();
        let identity = self.log.lineage().page(number);
        let used = check_image(page, identity, || self.log.device.locate(start))? as usize;
        pass.rows.clear();
        pass.dead.clear();
        pass.chained.clear();
        // If the longest record still fits after the used part, a checkpoint ended the page early.
        // Then only the used part counts as needed. Otherwise the whole page counts, because the
        // unused end is too short for a record.
        let room = page.len() - used;
        let taken = if room < self.tables.longest_record() { page.len() } else { used };
        let records = used as u64 - PAGE_HEADER_BYTES;
        pass.fill = Turn { records, pages: taken as u64 };
        let mut offset = PAGE_HEADER_BYTES as usize;
        // The loop ends: each record is at least as long as its header.
        while offset + HEADER_BYTES <= used {
            let image = RecordImage::new(&page[offset..]);
            let table = image.shape().table();
            let bytes = image.shape().record_bytes();
            if offset + bytes > used {
                let (path, offset) = self.log.device.locate(start + offset as u64);
                let what = format!("page {number}: a record runs past its end");
                return Err(Error::Damaged { path, offset, what });
            }
            if !image.link().is_invalid() && table.0 != 0 {
                let hash = self.key_hash.of(table, image.key());
                let row = Row { offset: offset as u32, hash };
                // A table that this bank does not know was dropped, or was made after the
                // checkpoint at which the bank was opened. Its records are dead.
                let gone = self.tables.of(table).is_none();
                let list = if gone || image.link().is_tombstone() {
                    &mut pass.dead
                } else {
                    &mut pass.rows
                };
                list.push(row);
            }
            offset += bytes;
        }
        Ok(())
    }

    /// Copies a group of rows from `at` on under one pin. Leaves in `at` the first row that was not
    /// handled.
    fn move_group(
        &self,
        pass: &mut Pass,
        rows: &[Row],
        at: &mut usize,
        page: &[u8],
        start: u64,
        copied: &mut u64,
    ) -> std::result::Result<(), PageFull> {
        let end = rows.len().min(*at + GROUP_ROWS);
        // A checkpoint's pause waits for this pin, so the index does not change during the pause.
        let guard = self.gate.enter();
        let view = self.log.view();
        let outline = self.index.outline();
        for row in &rows[*at..end] {
            outline.prefetch(row.hash);
        }
        for row in &rows[*at..end] {
            let address = Address::new(start + u64::from(row.offset));
            let image = RecordImage::new(&page[row.offset as usize..]);
            // Another thread may have dropped the table since the page was listed. If the table
            // still exists here, no other table gets its number before this pin is released
            // (`engine::tables::numbers`).
            if self.tables.of(image.shape().table()).is_none() {
                pass.dead.push(*row);
                *at += 1;
                continue;
            }
            // The loop ends: a round repeats only if another thread has changed the row's entry.
            loop {
                match self.verdict(&mut pass.candidates, row.hash, address) {
                    Verdict::Dead => {}
                    Verdict::Chained => {
                        let table = pass.chained.entry(image.shape().table()).or_default();
                        table.0.push(image.key());
                        table.1.push(address);
                    }
                    Verdict::Current(entry) => {
                        if !self.copy(view, image, address, (row.hash, entry))? {
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
        self.index.wait_for_image();
        Ok(())
    }

    fn verdict(&self, candidates: &mut Candidates, hash: u64, address: Address) -> Verdict {
        self.index.candidates(hash, candidates);
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

    /// Copies a row to the tail and makes its index entry lead to the copy. Returns false if
    /// another thread has changed the entry.
    fn copy(
        &self,
        view: View<'_>,
        image: RecordImage<'_>,
        address: Address,
        (hash, entry): (u64, Entry),
    ) -> std::result::Result<bool, PageFull> {
        let value = image.padded_value();
        let value_bytes = value.len() - image.unused_bytes();
        let new = self.begin_record(view, image.shape().table(), image.key(), value_bytes)?;
        self.counters.records_appended.add(1);
        // SAFETY: the duty is that no other thread uses the value, and that it lies in the record.
        // This thread has not published the record, and the record is as long as the image.
        unsafe { new.value_mut(value.len()) }.copy_from_slice(value);
        let word = self.word_on_disk(image, address);
        let uses = self.inherited_uses(word, address, new.address());
        new.finish(word.inherited(word.outstanding(), uses), false);
        let published = self.index.replace(hash, entry, new.address(), true);
        if !published {
            new.abandon();
        }
        Ok(published)
    }

    /// Walks the chains that may have records of the page, and copies those records that are
    /// current.
    fn move_chained(&self, pass: &mut Pass) -> Result<u64> {
        let mut copied = 0;
        for (&number, (keys, addresses)) in &pass.chained {
            // If the table was dropped, its rows are dead. No other table has the number, because
            // this page still has records with it.
            let Some(table) = self.tables.of(number) else { continue };
            copied += self.move_chained_of(table, keys, addresses, &mut pass.scratch)?;
        }
        Ok(copied)
    }

    fn move_chained_of(
        &self,
        table: TableId,
        keys: &[u64],
        addresses: &[Address],
        scratch: &mut Scratch,
    ) -> Result<u64> {
        let mut outcome = Outcome::default();
        let mut tally = Tally::default();
        let memory = BatchMemory { scratch, outcome: &mut outcome, tally: &mut tally };
        let result = self.run_job(table, keys, &mut MoveChained(addresses), memory);
        self.counters.records_appended.add(tally.appended);
        self.counters.disk_reads.add(tally.disk_reads);
        self.counters.disk_read_bytes.add(tally.disk_read_bytes);
        match result {
            // Another thread dropped the table during the batch, so the rows that the batch has
            // moved are dead.
            Err(Error::NoSuchTable(_)) => Ok(tally.moved_bytes),
            done => done.map(|()| tally.moved_bytes),
        }
    }

    /// Removes index entries that lead nowhere, because every row below `end` has been moved. These
    /// are entries of the page's tombstones, entries of dropped tables, and entries that a sweep
    /// over the index finds.
    fn clear_entries(&self, pass: &mut Pass, start: u64, end: u64) {
        for group in pass.dead.chunks(GROUP_ROWS) {
            // A checkpoint's pause waits for this pin, so the index does not change during the
            // pause.
            let guard = self.gate.enter();
            for row in group {
                self.index.candidates(row.hash, &mut pass.candidates);
                for entry in pass.candidates.iter().filter(|entry| entry.address().raw() < end) {
                    self.index.remove(row.hash, entry);
                }
            }
            drop(guard);
            self.index.wait_for_image();
        }
        // The sweep passes the whole index in the time in which compaction passes the whole log.
        let pages = (self.log.tail_address() - start) / self.log.page_bytes() + 1;
        let mut left = self.index.bucket_count() / pages + 1;
        while left > 0 {
            let count = left.min(4096);
            let guard = self.gate.enter();
            pass.sweep = self.index.purge(start, pass.sweep, count);
            drop(guard);
            self.index.wait_for_image();
            left -= count;
        }
    }
}

fn page_bytes_of(reads: &[Read<'_>]) -> u64 {
    reads.iter().map(|read| read.buffer.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::compaction::options::CompactionOptions;
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
        let mut pass = Pass::default();
        let mut page = AlignedBuffer::zeroed(core.log.page_bytes() as usize);
        core.read_page(&mut page, start).unwrap();
        core.list_records(&mut pass, &page, start).unwrap();
        let rows = std::mem::take(&mut pass.rows);
        assert_eq!(rows.len(), 20);
        let is_row = |row: &Row| RecordImage::new(&page[row.offset as usize..]);
        for row in rows.iter().filter(|row| is_row(row).shape().table() == table.number) {
            let chained = pass.chained.entry(table.number).or_default();
            chained.0.push(is_row(row).key());
            chained.1.push(Address::new(start + u64::from(row.offset)));
        }
        store.drop_table(table).unwrap();
        let mut at = 0;
        let mut copied = 0;
        let moved = core.move_group(&mut pass, &rows, &mut at, &page, start, &mut copied);
        assert!(moved.is_ok());
        let record_bytes = HEADER_BYTES as u64 + 8;
        assert_eq!((at, copied, pass.dead.len()), (20, 10 * record_bytes, 10));
        assert_eq!(core.move_chained(&mut pass).unwrap(), 0);
        assert_eq!(store.rows(other).unwrap(), 10);
    }
}
