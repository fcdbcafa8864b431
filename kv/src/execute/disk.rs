//! The keys of a chunk whose rows are on disk.
//!
//! All of them are read in bursts: sorted by address, neighbours in one block joined into one read, as
//! many at once as a read buffer holds. A record found under a slot may belong to another key of the
//! chain; then the search goes on at its previous address in the next round. Rows that an operation
//! uses go to the tail, where their update will fall; a peek leaves them where they are.

use super::{Batch, Mode, Pending, Step, Work};
use crate::address::Address;
use crate::clock::ClockWord;
use crate::device::{BLOCK_BYTES, Read};
use crate::error::{Error, Result};
use crate::log::PageFull;
use crate::record::{HEADER_BYTES, RecordImage};

/// Neighbours are joined into reads up to this long.
const JOINED_BYTES_MAX: u64 = 64 << 10;

/// One read: where it lies in the log and in the buffer.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
    buffer_at: usize,
}

/// What a record read from disk means for its key.
enum Found<'b> {
    /// It is the key's.
    Row(RecordImage<'b>),
    /// The search goes on, or needs more bytes.
    Further,
    /// The key is nowhere.
    Missing,
}

impl<W: Work> Batch<'_, W> {
    /// Reads and completes everything that is pending.
    pub(super) fn read_pending(&mut self) -> Result<()> {
        if self.scratch.pending.is_empty() {
            return Ok(());
        }
        let core = self.core;
        let mut buffer = core.buffers.take();
        let mut pending = std::mem::take(&mut self.scratch.pending);
        // Ends: a round takes every search it reads at least one record further down its chain.
        while !pending.is_empty() {
            pending.sort_unstable_by_key(|p| (p.address, p.i));
            let (spans, places) = self.plan_burst(&pending, buffer.len());
            self.read_burst(&spans, &mut buffer)?;
            let later = pending.split_off(places.len());
            let mut further = self.complete_burst(pending, &places, &buffer)?;
            further.extend(later);
            pending = further;
        }
        self.scratch.pending = pending;
        Ok(())
    }

    /// The reads for as many of the first pending keys as fit the buffer, and each key's place in it.
    fn plan_burst(&self, pending: &[Pending], buffer_bytes: usize) -> (Vec<Span>, Vec<usize>) {
        let page_bytes = self.core.log.page_bytes();
        let block = BLOCK_BYTES as u64;
        let mut spans: Vec<Span> = Vec::new();
        let mut places = Vec::with_capacity(pending.len());
        let mut used = 0;
        for p in pending {
            let address = p.address.raw();
            let start = address / block * block;
            // A record never crosses its page, so neither does a read.
            let page_end = (address / page_bytes + 1) * page_bytes;
            let end = (address + p.bytes as u64).next_multiple_of(block).min(page_end);
            let joins = spans.last().is_some_and(|last| {
                start <= last.end
                    && start / page_bytes == last.start / page_bytes
                    && end.max(last.end) - last.start <= JOINED_BYTES_MAX
            });
            let (span_start, more) = match spans.last() {
                Some(last) if joins => (last.start, end.saturating_sub(last.end) as usize),
                _ => (start, (end - start) as usize),
            };
            if used + more > buffer_bytes {
                break;
            }
            match spans.last_mut() {
                Some(last) if joins => last.end = last.end.max(end),
                _ => spans.push(Span { start, end, buffer_at: used }),
            }
            used += more;
            let buffer_at = spans.last().map_or(0, |span| span.buffer_at);
            places.push(buffer_at + (address - span_start) as usize);
        }
        (spans, places)
    }

    fn read_burst(&mut self, spans: &[Span], buffer: &mut [u8]) -> Result<()> {
        let mut reads = Vec::with_capacity(spans.len());
        let mut rest = buffer;
        for span in spans {
            let bytes = (span.end - span.start) as usize;
            let (now, later) = rest.split_at_mut(bytes);
            reads.push(Read { offset: span.start, buffer: now });
            rest = later;
            self.tally.disk_read_bytes += bytes as u64;
        }
        self.tally.disk_reads += reads.len() as u64;
        self.core.log.device.read_many(&mut reads)
    }

    /// Deals with the keys of a burst; returns those whose search goes on.
    fn complete_burst(
        &mut self,
        burst: Vec<Pending>,
        places: &[usize],
        buffer: &[u8],
    ) -> Result<Vec<Pending>> {
        let mut further = Vec::new();
        for (mut pending, &place) in burst.into_iter().zip(places) {
            match self.examine(&mut pending, &buffer[place..])? {
                Found::Further => further.push(pending),
                Found::Row(image) => {
                    self.pinned_until_done(|batch, _| batch.on_disk_row(&pending, image))?;
                }
                Found::Missing => self.pinned_until_done(|batch, _| {
                    let step =
                        batch.on_missing(pending.i as usize, pending.hash, &pending.searched);
                    if let Step::Moved = step? {
                        batch.scratch.redo.push(pending.i);
                    }
                    Ok(())
                })?,
            }
        }
        Ok(further)
    }

    /// Checks a record and says what it means for the key.
    fn examine<'b>(&self, pending: &mut Pending, bytes: &'b [u8]) -> Result<Found<'b>> {
        let image = self.check(pending, bytes)?;
        let Some(image) = image else { return Ok(Found::Further) };
        if image.is(self.table, self.keys[pending.i as usize]) {
            let has_value = image.padded_value().len() == self.scratch.value.len() * 8;
            if !has_value && !image.link().is_tombstone() {
                return Err(self.damaged(pending.address, "its length is not the table's"));
            }
            return Ok(Found::Row(image));
        }
        pending.bytes = crate::record::record_bytes(self.value_bytes);
        let previous = image.link().previous();
        if previous >= pending.address {
            return Err(self.damaged(pending.address, "its chain does not go back"));
        }
        if !previous.is_none() {
            pending.address = previous;
            return Ok(Found::Further);
        }
        match pending.rest.pop() {
            Some((entry, address)) => {
                (pending.entry, pending.address) = (entry, address);
                Ok(Found::Further)
            }
            None => Ok(Found::Missing),
        }
    }

    /// The verified record at the pending address; none if more bytes must be read first.
    fn check<'b>(&self, pending: &mut Pending, bytes: &'b [u8]) -> Result<Option<RecordImage<'b>>> {
        let image = RecordImage::new(&bytes[..pending.bytes.min(bytes.len())]);
        let wanted = image.shape().record_bytes();
        let page_bytes = self.core.log.page_bytes();
        let room = page_bytes - pending.address.raw() % page_bytes;
        if wanted as u64 > room || wanted > self.core.record_bytes_max() {
            return Err(self.damaged(pending.address, "its length runs past its page"));
        }
        if wanted > pending.bytes {
            pending.bytes = wanted;
            return Ok(None);
        }
        let image = RecordImage::new(&bytes[..wanted.max(HEADER_BYTES)]);
        let (stored, computed) = image.checksums(self.core.log.bank(), pending.address);
        if stored != computed {
            let what = format!("its checksum is {computed:#010x}, not {stored:#010x}");
            return Err(self.damaged(pending.address, &what));
        }
        Ok(Some(image))
    }

    #[cold]
    fn damaged(&self, address: Address, what: &str) -> Error {
        let (path, offset) = self.core.log.device.locate(address.raw());
        let page = address.raw() / self.core.log.page_bytes();
        let table = self.core.table_name(self.table);
        let what = format!("page {page}, a record looked up for table {table:?}: {what}");
        Error::Damaged { path, offset, what }
    }

    /// The key's own record has been read.
    fn on_disk_row(
        &mut self,
        pending: &Pending,
        image: RecordImage<'_>,
    ) -> std::result::Result<(), PageFull> {
        let i = pending.i as usize;
        let tombstone = image.link().is_tombstone();
        if tombstone && !self.make_missing_value(i) {
            self.note_missing(i);
            self.outcome.disk_reads += 1;
            return Ok(());
        }
        // Counts do not survive a restart: only this session's records tell them.
        let current = pending.address.raw() >= self.core.session_start;
        let outstanding = if current && !tombstone { image.clock().outstanding() } else { 0 };
        if W::MODE == Mode::Peek {
            let value = &image.padded_value()[..self.value_bytes];
            match self.work.destination(i) {
                Some(to) => {
                    let bytes = to.len().min(value.len());
                    to[..bytes].copy_from_slice(&value[..bytes]);
                }
                None => self.work.read(i, value),
            }
            self.work.clock(outstanding);
            self.note_disk_hit();
            return Ok(());
        }
        if !self.clock.admits(outstanding) {
            self.outcome.blocked.push(pending.i);
            return Ok(());
        }
        let value_bytes = if W::MODE == Mode::Delete { 0 } else { self.value_bytes };
        let new = self.begin_record(self.keys[i], value_bytes)?;
        if tombstone {
            new.store_value(&self.scratch.value);
        } else {
            self.fill_successor(i, new, &image.padded_value()[..self.value_bytes]);
        }
        let is_head = pending.address == pending.entry.address();
        let after_head = is_head.then(|| image.link().previous());
        let outstanding = self.clock.after(outstanding);
        if !self.publish(pending.hash, pending.entry, after_head, new, outstanding) {
            self.abandon(new);
            self.scratch.redo.push(pending.i);
            return Ok(());
        }
        self.tally.copied += 1;
        match W::MODE {
            _ if tombstone => {
                self.tally.inserted += 1;
                self.tally.missing += 1;
            }
            Mode::Promote => {
                self.tally.promoted += 1;
                self.tally.moved += 1;
            }
            Mode::Delete => self.tally.deleted += 1,
            _ => self.note_disk_hit(),
        }
        Ok(())
    }

    fn note_disk_hit(&mut self) {
        self.tally.hits_disk += 1;
        self.outcome.disk_reads += 1;
    }
}

const _: () = assert!(size_of::<ClockWord>() == 8);
