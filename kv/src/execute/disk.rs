//! The keys of a chunk whose rows are on disk.
//!
//! First the row cache is asked for all of them, with its cache misses overlapped. What it does not have is
//! read in bursts: sorted by address, neighbours in one block joined into one read, as
//! many at once as a read buffer holds. A record found under a slot may belong to another key of the
//! chain; then the search goes on at its previous address in the next round. Rows that an operation
//! uses go to the tail, where their update will fall; a peek leaves them where they are and a copy in the
//! cache.

use super::{Batch, GROUP_KEYS, Mode, Pending, Step, Work};
use crate::address::Address;
use crate::cache::Demand;
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

/// What a verified record means for the key that led to it.
enum Found {
    /// It is the key's.
    Row,
    /// The search goes on, or needs more bytes.
    Further,
    /// The key is nowhere.
    Missing,
}

/// Where a record came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Disk,
    Cache,
}

impl<W: Work> Batch<'_, W> {
    /// Finds and completes everything that is pending, in the cache or on disk.
    pub(super) fn read_pending(&mut self) -> Result<()> {
        if self.scratch.pending.is_empty() {
            return Ok(());
        }
        let core = self.core;
        let mut demand = Demand::default();
        let mut pending = std::mem::take(&mut self.scratch.pending);
        let done = self.read_all(&mut pending, &mut demand);
        pending.clear();
        self.scratch.pending = pending;
        core.cache.resize(&demand, &core.log);
        done
    }

    fn read_all(&mut self, pending: &mut Vec<Pending>, demand: &mut Demand) -> Result<()> {
        let core = self.core;
        self.serve_cached(pending, demand)?;
        if pending.is_empty() {
            return Ok(());
        }
        let mut buffer = core.buffers.take();
        // Ends: a round takes every search it reads at least one record further down its chain.
        while !pending.is_empty() {
            pending.sort_unstable_by_key(|p| (p.address, p.i));
            let (spans, places) = self.plan_burst(pending, buffer.len());
            self.read_burst(&spans, &mut buffer)?;
            let later = pending.split_off(places.len());
            self.complete_burst(pending, &places, &buffer, demand)?;
            self.serve_cached(pending, demand)?;
            pending.extend(later);
        }
        Ok(())
    }

    /// Deals with the keys whose records are in the cache; leaves those that must be read.
    fn serve_cached(&mut self, pending: &mut Vec<Pending>, demand: &mut Demand) -> Result<()> {
        let cache = &self.core.cache;
        let head = self.core.log.view().head;
        let near = head.saturating_sub(cache.near_bytes());
        let mut cached = std::mem::take(&mut self.scratch.cached);
        let mut kept = 0;
        for group in (0..pending.len()).step_by(GROUP_KEYS) {
            let group = group..pending.len().min(group + GROUP_KEYS);
            for p in &pending[group.clone()] {
                cache.prefetch_index(p.address);
            }
            for p in &pending[group.clone()] {
                cache.prefetch_row(p.address);
            }
            for k in group {
                // Ends: each round takes the search further down its chain.
                let found = loop {
                    let address = pending[k].address;
                    demand.lookups += 1;
                    if !cache.get(address, &mut cached) {
                        demand.near_head += u64::from(address.raw() >= near);
                        break Found::Further;
                    }
                    let image = RecordImage::of_words(&cached);
                    match self.follow(&mut pending[k], image)? {
                        Found::Further => {}
                        Found::Row => {
                            if self.use_row(&pending[k], image, Source::Cache)? {
                                // In memory it would have been changed in place.
                                demand.near_head += u64::from(address.raw() >= near);
                                cache.remove(address);
                            }
                            break Found::Row;
                        }
                        Found::Missing => {
                            self.use_missing(&pending[k])?;
                            break Found::Missing;
                        }
                    }
                };
                if let Found::Further = found {
                    pending.swap(kept, k);
                    kept += 1;
                }
            }
        }
        pending.truncate(kept);
        self.scratch.cached = cached;
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

    /// Deals with the keys of a burst; leaves those whose search goes on.
    fn complete_burst(
        &mut self,
        burst: &mut Vec<Pending>,
        places: &[usize],
        buffer: &[u8],
        demand: &mut Demand,
    ) -> Result<()> {
        let mut kept = 0;
        for (k, &place) in places.iter().enumerate() {
            let address = burst[k].address;
            let Some(image) = self.check(&mut burst[k], &buffer[place..])? else {
                burst.swap(kept, k);
                kept += 1;
                continue;
            };
            let found = self.follow(&mut burst[k], image)?;
            let superseded = match found {
                Found::Row => self.use_row(&burst[k], image, Source::Disk)?,
                Found::Missing => {
                    self.use_missing(&burst[k])?;
                    false
                }
                Found::Further => false,
            };
            if !superseded {
                self.core.cache.insert(address, image.bytes(), demand);
            }
            if let Found::Further = found {
                burst.swap(kept, k);
                kept += 1;
            }
        }
        burst.truncate(kept);
        Ok(())
    }

    /// Says what a verified record means for the key, and where its search goes on.
    fn follow(&self, pending: &mut Pending, image: RecordImage<'_>) -> Result<Found> {
        if image.is(self.table, self.keys[pending.i as usize]) {
            let has_value = image.padded_value().len() == self.scratch.value.len() * 8;
            if !has_value && !image.link().is_tombstone() {
                return Err(self.damaged(pending.address, "its length is not the table's"));
            }
            return Ok(Found::Row);
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

    /// No chain holds the key.
    fn use_missing(&mut self, pending: &Pending) -> Result<()> {
        self.pinned_until_done(|batch, _| {
            let step = batch.on_missing(pending.i as usize, pending.hash, &pending.searched);
            if let Step::Moved = step? {
                batch.scratch.redo.push(pending.i);
            }
            Ok(())
        })
    }

    /// The key's own record has been found. True if the row moved to the tail, so that nobody will look
    /// for it here again.
    fn use_row(
        &mut self,
        pending: &Pending,
        image: RecordImage<'_>,
        source: Source,
    ) -> Result<bool> {
        if W::MODE == Mode::Peek {
            self.peek_at(pending, image, source);
            return Ok(false);
        }
        let copied = self.tally.copied;
        self.pinned_until_done(|batch, _| batch.bring_to_tail(pending, image, source))?;
        Ok(self.tally.copied > copied)
    }

    /// Counts do not survive a restart: only this session's records tell them.
    fn outstanding(&self, pending: &Pending, image: RecordImage<'_>) -> u32 {
        let current = pending.address.raw() >= self.core.session_start;
        if current { image.clock().outstanding() } else { 0 }
    }

    fn peek_at(&mut self, pending: &Pending, image: RecordImage<'_>, source: Source) {
        let i = pending.i as usize;
        if image.link().is_tombstone() {
            self.note_missing(i);
            self.outcome.disk_reads += u64::from(source == Source::Disk);
            return;
        }
        let value = &image.padded_value()[..self.value_bytes];
        match self.work.destination(i) {
            Some(to) => {
                let bytes = to.len().min(value.len());
                to[..bytes].copy_from_slice(&value[..bytes]);
            }
            None => self.work.read(i, value),
        }
        self.work.clock(self.outstanding(pending, image));
        self.note_hit(source);
    }

    fn bring_to_tail(
        &mut self,
        pending: &Pending,
        image: RecordImage<'_>,
        source: Source,
    ) -> std::result::Result<(), PageFull> {
        let i = pending.i as usize;
        let tombstone = image.link().is_tombstone();
        if tombstone && !self.make_missing_value(i) {
            self.note_missing(i);
            self.outcome.disk_reads += u64::from(source == Source::Disk);
            return Ok(());
        }
        let outstanding = if tombstone { 0 } else { self.outstanding(pending, image) };
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
            _ => self.note_hit(source),
        }
        Ok(())
    }

    fn note_hit(&mut self, source: Source) {
        match source {
            Source::Disk => {
                self.tally.hits_disk += 1;
                self.outcome.disk_reads += 1;
            }
            Source::Cache => self.tally.hits_cache += 1,
        }
    }
}

const _: () = assert!(size_of::<ClockWord>() == 8);
