//! Spills: moves the rows of the oldest pages into a run of the cold tier.
//!
//! A bank in two tiers does not copy the rows of its oldest pages to the tail. It sorts them and
//! writes them as a new run, in which searches find them without an index entry.
//!
//! **Which records enter the run.** The index says which records may be current, as for compaction
//! in one tier. A dead record is left out. A record that may be in a chain enters without a walk of
//! the chain: if it is superseded, the newer record is in the log, in this run, or in a later run,
//! and searches find it first. A *clean* record is left out, because the cold tier has an equal
//! version. A tombstone enters, because it hides older versions in the cold tier. A row with
//! outstanding Gets of this opening is copied to the tail, so a cold row has no outstanding Gets.
//! For that, a record in a chain is walked to. If a training step's Gets fill the log, its limit
//! grows (`engine::space::pressure::Held`).
//!
//! **Order.** The spill publishes the view with the new run, then moves the log's beginning, then
//! removes the index entries that lead below it. A search loads the beginning, the index and the
//! view in this order. If it misses an entry, or finds that its chain ends below the beginning, it
//! therefore takes a view that has the row. The first two steps happen under one pin. A
//! checkpoint's pause waits for the pin, so a checkpoint has both or neither.
//!
//! **From memory.** The pages are settled. As a rule they are still in memory, and the log's writer
//! then never writes them (`log::regions`).
//!
//! **Writers beside a spill.** A settled record does not change. An operation on a row that is
//! being spilled appends a record above the spilled pages. That record stays the newest version.
//! A row whose entry is still there, but whose record lies below the beginning, is not to be
//! replaced through this entry: see `publish` of `engine::batch::succession` and `Index::insert`.
//!
//! **Failure.** If the run cannot be written, its file is removed. The log keeps its rows.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::rows::{Tombstones, Verdict, copy, verdict};
use super::{Compaction, GROUP_ROWS, Row};
use crate::cold::block::block_bits_for;
use crate::cold::head::{Kind, PartHead, part_address};
use crate::cold::part::Part;
use crate::cold::writer::PartWriter;
use crate::device::AlignedBuffer;
use crate::engine::cold::memory_plan::{RUN_COLUMNS, block_bits_max};
use crate::engine::cold::sort_buffer::SortBuffer;
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::log::{PageFull, TurnFor};
use crate::memory::budget::Budget;
use crate::record::address::Address;
use crate::record::layout::RecordImage;
use crate::sync::{Planted, planted};

impl Compaction<'_> {
    /// Moves the rows of the oldest pages into a new run, until the sort buffer is full or no page
    /// is settled. Returns the bytes of the rows that it has copied to the tail.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` if a page cannot be read or the run cannot be written.
    /// `DiskFull` if the disk has no room for the run. `BudgetTooSmall` if the budget has no memory
    /// for the sort buffer or the run's filters. `Poisoned` if the log cannot be written. After an
    /// error, the pages and their rows stay as they are.
    pub(in super::super) fn spill(&mut self) -> Result<u64> {
        let Core { log, counters, .. } = self.core;
        let started = Instant::now();
        let start = log.begin();
        let memory = self.core.reserve_for_tiers()?;
        let rows = self.pass.sort_buffer.take();
        let mut rows = rows.unwrap_or_else(|| SortBuffer::new(memory.sort_buffer_bytes as usize));
        rows.clear();
        let done = self.spill_into(&mut rows, start);
        self.pass.sort_buffer = Some(rows);
        let copied = done.map_err(|error| self.failure(error))?;
        let begin = log.begin();
        counters.compacted_bytes.add(begin - start);
        counters.compaction_copied_bytes.add(copied);
        let signal = &self.core.space.signal;
        signal.state.lock().held.note(start, copied, begin, log.tail_address());
        counters.compaction_us.add(started.elapsed().as_micros() as u64);
        self.fold_index();
        Ok(copied)
    }

    /// Returns the error of a spill or a merge that failed with `error`: `DiskFull` or
    /// `TooManyOpenFiles` if it lacked room or a descriptor. Poisons the log after a failed sync of
    /// the device, because pages of the log may be lost then.
    pub(super) fn failure(&self, error: Error) -> Error {
        if matches!(error, Error::Io { operation: "sync", .. }) {
            self.core.log.poison(&error);
        }
        error.want().map_or(error, Error::from)
    }

    /// Moves the rows of the oldest pages through `rows`. Returns the bytes of the rows that it has
    /// copied to the tail.
    fn spill_into(&mut self, rows: &mut SortBuffer, start: u64) -> Result<u64> {
        let core = self.core;
        self.pass.dead.clear();
        self.pass.chained.clear();
        let bytes = Budget::compaction_buffer_bytes_for(core.log.page_bytes()) as usize;
        let mut page = self.pass.buffer.take().unwrap_or_else(|| AlignedBuffer::zeroed(bytes));
        let collected = self.collect(rows, &mut page, start);
        // The walks of chains use the page's buffer for reads.
        self.pass.scratch.own_buffer = Some(page);
        let moved = collected.and_then(|(end, copied)| Ok((end, copied + self.move_chained()?)));
        self.pass.buffer = self.pass.scratch.own_buffer.take();
        let (end, copied) = moved?;
        rows.sort();
        if planted(Planted::SpillBeginFirst) {
            core.log.set_begin(end);
        }
        let run = if rows.is_empty() { None } else { Some(self.write_run(rows, start..end)?) };
        self.publish_run(run, end);
        let dead = std::mem::take(&mut self.pass.dead);
        self.clear_entries(rows.hashes().chain(dead.iter().copied()), end);
        self.pass.dead = dead;
        self.sweep_index(end, start..end);
        // After the index has lost the run's entries, because this may fail.
        self.core.give_way()?;
        Ok(copied)
    }

    /// Copies pages from `start` on, and adds their rows to `rows`, until `rows` is full. Returns
    /// the end of the pages, and the bytes of the rows that it has copied to the tail.
    fn collect(
        &mut self,
        rows: &mut SortBuffer,
        page: &mut [u8],
        start: u64,
    ) -> Result<(u64, u64)> {
        let Core { log, gate, .. } = self.core;
        let page = &mut page[..log.page_bytes() as usize];
        let mut end = start;
        let mut copied = 0;
        let has_room = |end: u64, rows: &SortBuffer, dead: usize, copied: u64| {
            // Copied rows count as if they took room. Otherwise a spill of a log whose rows all
            // have outstanding Gets would also pass the pages of its own copies, without end.
            let beside_rows = dead * size_of::<u64>() + copied as usize;
            // One page always has room, so that each spill makes progress.
            end == start || rows.has_room(log.page_bytes(), beside_rows)
        };
        // The loop ends: each round passes a page, and its rows take room or are dead.
        while end + log.page_bytes() <= log.settled()
            && has_room(end, rows, self.pass.dead.len(), copied)
        {
            let used = log.copy_page(page, end, gate)?;
            self.core.space.signal.note_work(log.page_bytes());
            self.list_records(&page[..used], end, Tombstones::Rows)?;
            let listed = std::mem::take(&mut self.pass.rows);
            let mut at = 0;
            // The loop ends: a round that passes no record has met a full page of the log's tail,
            // and the next round has an empty page.
            while at < listed.len() {
                let full = self.collect_group(&listed, &mut at, page, end, rows, &mut copied).err();
                if let Some(full) = full {
                    log.turn_page(full, TurnFor::Space)?;
                }
            }
            self.pass.rows = listed;
            end += log.page_bytes();
        }
        Ok((end, copied))
    }

    /// Adds a group of the records that `listed` has from `at` on to `rows`, under one pin. Leaves
    /// in `at` the first record that was not handled.
    fn collect_group(
        &mut self,
        listed: &[Row],
        at: &mut usize,
        page: &[u8],
        start: u64,
        rows: &mut SortBuffer,
        copied: &mut u64,
    ) -> std::result::Result<(), PageFull> {
        let Core { log, index, tables, gate, retention, counters, .. } = self.core;
        let has_index = self.has_index;
        let pass = &mut *self.pass;
        // Uses age with the log. Their age is that at the page's end, which is nearly that at the
        // end of the spill.
        let aged_to = Address::new(start + log.page_bytes());
        let end = listed.len().min(*at + GROUP_ROWS);
        // A checkpoint's pause waits for this pin, so the index does not change during the pause.
        let guard = gate.enter();
        let view = log.view();
        let outline = index.outline();
        for row in &listed[*at..end] {
            outline.prefetch(row.hash);
        }
        for row in &listed[*at..end] {
            let address = Address::new(start + u64::from(row.offset));
            let image = RecordImage::new(&page[row.offset as usize..]);
            let table = image.shape().table();
            let word = self.core.word_on_disk(image, address);
            let has_gets = word.outstanding() > 0 && !planted(Planted::SpillLeased);
            // The loop ends: a round repeats only if another thread has changed the row's entry.
            loop {
                let verdict = match has_index {
                    true => verdict(index, &mut pass.candidates, row.hash, address),
                    // Needs no entry of the index, and moves the record as a current one.
                    false => Verdict::Chained,
                };
                match verdict {
                    // Another thread may have dropped the table since the page was listed.
                    _ if tables.of(table).is_none() => pass.dead.push(row.hash),
                    Verdict::Dead => {}
                    Verdict::Current(entry) if has_gets => {
                        if !copy(self.core, view, image, address, (row.hash, entry))? {
                            continue;
                        }
                        *copied += image.shape().record_bytes() as u64;
                    }
                    Verdict::Chained if has_gets => {
                        let chained = pass.chained.entry(table).or_default();
                        chained.0.push(image.key());
                        chained.1.push(address);
                    }
                    _ if word.is_clean() => {
                        pass.dead.push(row.hash);
                        counters.spilled_clean_rows.add(1);
                    }
                    Verdict::Current(_) | Verdict::Chained => {
                        let uses = retention.inherited_uses(word, address, aged_to);
                        rows.push(row.hash, image, uses);
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

    /// Writes the rows as a run of level 0. `log` has the addresses from which they come.
    fn write_run(&self, rows: &SortBuffer, log: Range<u64>) -> Result<Arc<Part>> {
        let Core { cold, tables, counters, .. } = self.core;
        let run = cold.next_run();
        // The part gets its number before the tables of its rows are looked up: see
        // `engine::tables::numbers`.
        let head = PartHead {
            number: cold.next_part(),
            kind: Kind::Run,
            level: 0,
            block_bits: block_bits_for(rows.mean_row_bytes())
                .min(block_bits_max(self.core.budget.total_bytes())),
            runs: run..=run,
            hashes: 0..=u64::MAX,
            log,
            ..self.core.part_head()
        };
        let number = head.number;
        let unit_bytes = self.core.headroom().tier_memory().writer_bytes as usize;
        let work_unit_bytes = self.core.headroom().unit_bytes();
        let written = || {
            let site = self.core.part_site();
            let mut writer = PartWriter::with_unit(site, head, RUN_COLUMNS, unit_bytes);
            let mut noted = 0;
            for row in rows.rows() {
                if tables.of(row.table).is_some() {
                    writer.push(&row)?;
                }
                let bytes = writer.bytes_written() - noted;
                if bytes >= work_unit_bytes {
                    self.core.space.signal.note_work(bytes);
                    noted += bytes;
                }
            }
            self.core.space.signal.note_work(writer.bytes_written() - noted);
            writer.finish_within(cold)
        };
        let run = written().map(Arc::new).inspect_err(|_| self.remove_part(number))?;
        counters.disk_write_bytes.add(run.file_bytes());
        Ok(run)
    }

    /// Shows `run` to searches, and moves the log's beginning to `end`.
    fn publish_run(&self, run: Option<Arc<Part>>, end: u64) {
        let Core { log, cold, gate, counters, .. } = self.core;
        let guard = gate.enter();
        if let Some(run) = run {
            let (rows, file_bytes) = (run.rows(), run.file_bytes());
            let next = cold.view().changed(vec![run], &[]);
            cold.publish(next);
            counters.spilled_rows.add(rows);
            counters.spilled_bytes.add(file_bytes);
        }
        if log.begin() < end {
            log.set_begin(end);
        }
        drop(guard);
    }

    /// Removes the file of a part that no view has, after the part's memory has gone back to the
    /// budget. If that fails, the next opening removes the file.
    pub(super) fn remove_part(&self, number: u64) {
        let site = self.core.part_site();
        let _ = site.device.remove_part(part_address(number, site.segment_size_bytes));
        // A thread may wait for a frame of that memory.
        self.core.log.allowance_changed();
    }
}
