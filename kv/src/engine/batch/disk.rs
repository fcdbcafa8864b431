//! The keys of a batch whose rows are on disk.
//!
//! First the row cache is asked for all of them, with its cache misses overlapped. What it does not have is
//! read as one stream: sorted by address, neighbours joined into one read, and as many in flight at once as
//! device and read buffer hold. Rows are worked on as they come, while the device is busy with the next. A
//! record found under a slot may belong to another key of the chain; then its previous address is read in the
//! same stream. Rows that an operation uses go to the tail, where their update will fall; a peek leaves them
//! where they are and a copy in the cache.
//!
//! Rows need room at the tail, and for that a batch may have to wait until compaction has made some
//! (`Core::await_space`). It does not do so in the midst of a stream: it would hold a read buffer and a ring of
//! the device, compaction reads too, and a few such batches would hold all the rings there are. Then it
//! begins no more reads, takes the pages that those on their way need (as many bytes at most as the
//! read buffer, with all batches as all read buffers), and waits when the stream is at its end. What was not begun
//! is the next stream's.
//!
//! How long a record of variable width is only its header tells. For those, as much is asked for as is twice
//! the table's mean; where a record is longer than what came, the rest is read with it a second time.
//!
//! A read brings the blocks of 512 bytes that its records touch: the device here did 138 thousand random reads a
//! second of 512 bytes, and 127 thousand of 4 KiB (fio, depth 256 and 128). Up to 16 KiB between two records are read
//! too, if one read then does for both: it costs the thread 3 us, however long it is, and drives that count reads more
//! than bytes a place in their queue. With Lookahead, tables of four times the budget (means of three runs of each, by
//! turns; a virtual drive with 75,000 reads a second, which varied by a tenth):
//!
//! | bridged, at most | | 0 | 8 KiB | 16 KiB | 32 KiB |
//! |---|---|---|---|---|---|
//! | reads a step | DLRM | 3,507 | 3,110 | 2,802 | 2,394 |
//! | | DistMult, drive-bound | 1,402 | 1,379 | 1,357 | 1,322 |
//! | | GraphSAGE, drive-bound | 2,349 | 2,249 | 2,165 | 2,053 |
//! | samples/s | DLRM, of itself in memory | 0.81 | 0.82 | 0.84 | 0.84 |
//! | | DistMult, drive-bound | 25,400 | 25,300 | 25,100 | 25,300 |
//! | | GraphSAGE, drive-bound | 7,160 | 7,620 | 7,700 | 7,440 |
//!
//! The more rows a stream has, the nearer they lie. So what is announced together is read together, and batches are
//! announced by threes. Reads a step, with a stream for every 1,024 rows of a batch, for one batch, for two, three, and
//! four:
//!
//! | | 1,024 rows | one batch | two | three | four |
//! |---|---|---|---|---|---|
//! | DLRM, a few hundred rows a table | 2,870 | 2,870 | 2,350 | 1,900 | 1,670 |
//! | DistMult, drive-bound | 1,337 | 1,184 | 1,212 | 1,156 | 1,165 |
//! | GraphSAGE, drive-bound | 2,320 | 2,070 | 2,047 | 1,962 | 2,030 |
//!
//! What lies between is looked at by nobody, and must not do harm: where such a read fails, the rows are read again,
//! without what lies between them.

use super::{Batch, GROUP_KEYS, LINE_BYTES, Mode, Pending, Step, Work, row};
use crate::cache::Demand;
use crate::device::{AlignedBuffer, BLOCK_BYTES, Priority, ReadStream};
use crate::error::{Error, Result};
use crate::log::PageFull;
use crate::memory::cpu_hint;
use crate::operation::Width;
use crate::record::address::Address;
use crate::record::clock::ClockWord;
use crate::record::layout::{HEADER_BYTES, RecordImage};

/// Neighbours are joined into reads up to this long.
const JOINED_BYTES_MAX: u64 = 64 << 10;
/// So much may lie between them.
const BRIDGED_BYTES_MAX: u64 = 16 << 10;
/// So much of a record is fetched into the cache before the first of a group of reads is worked on: most are shorter.
const FETCHED_OF_RECORD_MAX: usize = 1024;
/// So much of a read: a group's fit the second-level cache.
const FETCHED_OF_READ_MAX: usize = 8192;

/// One read: where it begins in the log, and whose it is.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    /// Places in `Reading::pending`.
    first: u32,
    count: u32,
}

/// Why a stream of reads ended early.
struct Failed {
    error: Error,
    /// Reads brought more than the records that were asked for.
    bridged: bool,
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
    /// Finds and completes what is pending, in the cache or on disk: everything, unless the batch has to wait
    /// for space; then something.
    pub(super) fn read_pending(&mut self) -> Result<()> {
        if self.scratch.pending.is_empty() {
            return Ok(());
        }
        let core = self.core;
        let mut demand = Demand::default();
        let mut pending = std::mem::take(&mut self.scratch.pending);
        let done = self.read_all(&mut pending, &mut demand);
        if done.is_err() {
            pending.clear();
        }
        self.scratch.pending = pending;
        core.cache.resize(&demand, &core.log);
        done
    }

    fn read_all(&mut self, pending: &mut Vec<Pending>, demand: &mut Demand) -> Result<()> {
        self.serve_cached(pending, demand)?;
        if pending.is_empty() {
            return Ok(());
        }
        // What a stream takes beyond the quota it takes without waiting, so with no room it does not begin: or the
        // log would grow by what each of many refused batches had under way.
        if !matches!(W::MODE, Mode::Peek | Mode::Delete | Mode::Compact) && self.core.has_no_room()
        {
            self.await_space()?;
        }
        let core = self.core;
        let mut own = self.scratch.own_buffer.take();
        let mut pooled = None;
        let buffer: &mut AlignedBuffer = match &mut own {
            Some(own) => own,
            None => pooled.insert(core.buffers.take()).memory(),
        };
        let mut read = self.read_stream(buffer, pending, demand, BRIDGED_BYTES_MAX);
        if let Err(Failed { error: Error::Io { .. }, bridged: true }) = read {
            // Perhaps it was what lies between the rows.
            pending.retain(|p| !p.done);
            read = self.read_stream(buffer, pending, demand, 0);
        }
        self.scratch.own_buffer = own;
        drop(pooled);
        match read {
            Ok(deepest) => {
                let most = self.tally.disk_queue_depth_max.max(deepest);
                self.tally.disk_queue_depth_max = most;
                // All but what was not begun.
                pending.retain(|p| !p.done);
            }
            Err(Failed { error, .. }) if self.search_again(pending, &error) => pending.clear(),
            Err(Failed { error, .. }) => return Err(error),
        }
        if std::mem::take(&mut self.owes_wait) { self.await_space() } else { Ok(()) }
    }

    /// Reads what is pending as one stream; returns how deep the device's queue was.
    fn read_stream(
        &mut self,
        buffer: &mut AlignedBuffer,
        pending: &mut [Pending],
        demand: &mut Demand,
        bridged_bytes_max: u64,
    ) -> std::result::Result<u64, Failed> {
        pending.sort_unstable_by_key(|p| (p.address, p.i));
        let core = self.core;
        let joined_bytes_max = JOINED_BYTES_MAX.min(buffer.len() as u64 / 4);
        let mut reading = Reading {
            batch: self,
            pending,
            demand,
            joined_bytes_max,
            bridged_bytes_max,
            bridged: false,
            begun: 0,
            again: Vec::new(),
            spans: Vec::new(),
        };
        reading.batch.streaming = true;
        let read = core.log.device.read_stream(buffer, &mut reading);
        let bridged = reading.bridged;
        self.streaming = false;
        read.map_err(|error| Failed { error, bridged })
    }

    /// A read failed. Compaction may have given the place back, having moved the row before: then what is not
    /// done is searched again from the index. False if no row was moved, so that the failure counts.
    ///
    /// Each time `begin` has moved on since the search, so this comes to an end. A read without a failure
    /// needs no such look: a file that is removed stays whole for who has it open, and a range that is
    /// given back reads as zeros, which fail as records (`Reading::record`).
    #[cold]
    fn search_again(&mut self, pending: &[Pending], error: &Error) -> bool {
        // What else there is, damage among it, was found in what had been read (`Reading::record`).
        if !matches!(error, Error::Io { .. } | Error::Truncated { .. }) {
            return false;
        }
        let begin = self.core.log.begin();
        let left = || pending.iter().filter(|p| !p.done);
        let moved = left().any(|p| p.address.raw() < begin);
        if moved {
            self.scratch.redo.extend(left().map(|p| p.i));
        }
        moved
    }

    /// Deals with the keys whose records are in the cache; leaves those that must be read.
    fn serve_cached(&mut self, pending: &mut Vec<Pending>, demand: &mut Demand) -> Result<()> {
        let cache = &self.core.cache;
        let head = self.core.log.view().head;
        // What is peeked at the cache can keep; what moves to the tail only a larger log would have had.
        let near = match W::MODE {
            Mode::Peek => u64::MAX,
            _ => head.saturating_sub(cache.near_bytes()),
        };
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
                if !self.served(&mut pending[k], near, &mut cached, demand)? {
                    pending.swap(kept, k);
                    kept += 1;
                }
            }
        }
        pending.truncate(kept);
        self.scratch.cached = cached;
        Ok(())
    }

    /// Follows a key through the cache; false if it has to be read.
    fn served(
        &mut self,
        pending: &mut Pending,
        near: u64,
        cached: &mut Vec<u64>,
        demand: &mut Demand,
    ) -> Result<bool> {
        let cache = &self.core.cache;
        // Ends: each round takes the search further down its chain.
        loop {
            let address = pending.address;
            demand.lookups += 1;
            if !cache.get(address, cached) {
                demand.near_head += u64::from(address.raw() >= near);
                return Ok(false);
            }
            let image = RecordImage::of_words(cached);
            match self.follow(pending, image)? {
                Found::Further => {}
                Found::Row => {
                    if self.use_row(pending, image, Source::Cache)? {
                        // In memory it would have been changed in place.
                        demand.near_head += u64::from(address.raw() >= near);
                        cache.remove(address);
                    }
                    return Ok(true);
                }
                Found::Missing => {
                    self.use_missing(pending)?;
                    return Ok(true);
                }
            }
        }
    }

    /// Says what a verified record means for the key, and where its search goes on.
    fn follow(&self, pending: &mut Pending, image: RecordImage<'_>) -> Result<Found> {
        if image.is(self.table.number, self.keys[pending.i as usize]) {
            let has_value = match W::WIDTH {
                Width::Fixed => image.padded_value().len() == self.scratch.value.len() * 8,
                Width::Variable => image.value_bytes().is_some_and(|n| n <= self.value_bytes),
            };
            if !has_value && !image.link().is_tombstone() {
                return Err(self.damaged(pending.address, "its length is not the table's"));
            }
            return Ok(Found::Row);
        }
        pending.bytes = self.read_bytes;
        let previous = image.link().previous();
        if previous >= pending.address {
            return Err(self.damaged(pending.address, "its chain does not go back"));
        }
        if previous.raw() >= pending.begin.max(1) {
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
        let page_bytes = self.core.log.page_bytes();
        let room = page_bytes - pending.address.raw() % page_bytes;
        if room < HEADER_BYTES as u64 {
            return Err(self.damaged(pending.address, "no record fits there"));
        }
        let image = RecordImage::new(bytes);
        let wanted = image.shape().record_bytes();
        if wanted as u64 > room || wanted > self.core.record_bytes_max() {
            return Err(self.damaged(pending.address, "its length runs past its page"));
        }
        if wanted > bytes.len() {
            pending.bytes = wanted;
            return Ok(None);
        }
        let image = RecordImage::new(&bytes[..wanted]);
        let origin = self.core.log.lineage().origin(pending.address);
        let (stored, computed) = image.checksums(origin, pending.address);
        #[cfg(feature = "bench")]
        for _ in 0..crate::testing::bench::extra_checksums() {
            std::hint::black_box(image.checksums(origin, pending.address));
        }
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
        let value = self.value_of(image);
        let destination = match W::WIDTH {
            Width::Fixed => self.work.destination(i),
            Width::Variable => None,
        };
        match destination {
            Some(to) => {
                let bytes = to.len().min(value.len());
                to[..bytes].copy_from_slice(&value[..bytes]);
            }
            None => self.work.read(i, value),
        }
        self.work.clock(i, self.outstanding(pending, image));
        self.note_hit(source);
    }

    /// The value of a record that `follow` has found to be the key's row.
    fn value_of<'b>(&self, image: RecordImage<'b>) -> &'b [u8] {
        let value_bytes = match W::WIDTH {
            Width::Fixed => self.value_bytes,
            Width::Variable => image.value_bytes().expect("`follow` has checked it"),
        };
        &image.padded_value()[..value_bytes]
    }

    fn bring_to_tail(
        &mut self,
        pending: &Pending,
        image: RecordImage<'_>,
        source: Source,
    ) -> std::result::Result<(), PageFull> {
        let i = pending.i as usize;
        let tombstone = image.link().is_tombstone();
        let outstanding = if tombstone { 0 } else { self.outstanding(pending, image) };
        if matches!(W::MODE, Mode::Compact | Mode::Promote) {
            let unwanted = !self.work.wants(i, pending.address, ClockWord::at_rest(outstanding));
            if unwanted || tombstone && W::MODE == Mode::Compact {
                return Ok(());
            }
        }
        if !self.clock.admits(outstanding) {
            self.outcome.blocked.push(pending.i);
            return Ok(());
        }
        let old = (!tombstone).then(|| self.value_of(image));
        if W::MODE == Mode::Delete
            && let Some(value) = old
            && !self.work.deletes(i, value, outstanding)
        {
            self.note_hit(source);
            return Ok(());
        }
        let Some(new) = self.make_successor(i, old)? else {
            self.note_missing(i);
            self.outcome.disk_reads += u64::from(source == Source::Disk);
            return Ok(());
        };
        let is_head = pending.address == pending.entry.address();
        let after_head = is_head.then(|| image.link().previous());
        let seen = outstanding;
        let uses = match source {
            _ if tombstone => 0,
            Source::Disk => {
                let word = image.clock().with_outstanding(seen);
                self.core.inherited_uses(word, pending.address, new.address())
            }
            // Which keeps no other part of the clock.
            Source::Cache => self.core.mean_uses(),
        };
        let word = ClockWord::at_rest(seen).inherited(self.clock.after(seen), uses);
        let tombstone_at = tombstone.then_some(pending.address);
        if !self.publish(pending.hash, pending.entry, after_head, new, word, tombstone_at) {
            self.abandon(new);
            self.scratch.redo.push(pending.i);
            return Ok(());
        }
        let (old_bytes, new_bytes) = (image.shape().record_bytes(), new.shape().record_bytes());
        if W::MODE == Mode::Compact {
            self.tally.moved += 1;
            self.tally.moved_bytes += new_bytes as u64;
            return Ok(());
        }
        self.tally.copied += 1;
        self.work.settled(i);
        match W::MODE {
            _ if tombstone => self.note_inserted(new_bytes),
            Mode::Promote => {
                self.tally.promoted += 1;
                self.tally.moved += 1;
                self.work.moved(i, row::mark_of(new));
            }
            Mode::Delete => {
                self.tally.deleted += 1;
                self.note_replaced(old_bytes, 0);
                self.note_hit(source);
            }
            _ => {
                if W::MODE == Mode::Get {
                    self.work.clock(i, seen);
                }
                self.note_replaced(old_bytes, new_bytes);
                self.note_hit(source);
            }
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

/// The reads of a batch on their way.
struct Reading<'s, 'a, W> {
    batch: &'s mut Batch<'a, W>,
    /// Sorted by address at the start; each changes as its search goes on.
    pending: &'s mut [Pending],
    demand: &'s mut Demand,
    joined_bytes_max: u64,
    bridged_bytes_max: u64,
    /// A read brings what lies between records.
    bridged: bool,
    /// So many of `pending` have been asked for a first time.
    begun: usize,
    /// Places in `pending` of searches that go on.
    again: Vec<u32>,
    /// By number of read.
    spans: Vec<Span>,
}

impl<W: Work> Reading<'_, '_, W> {
    /// The blocks of the log that the record of a search lies in.
    fn blocks(&self, pending: &Pending) -> (u64, u64) {
        let page_bytes = self.batch.core.log.page_bytes();
        let block = BLOCK_BYTES as u64;
        let address = pending.address.raw();
        // A record never crosses its page, so neither does a read.
        let page_end = (address / page_bytes + 1) * page_bytes;
        let end = (address + pending.bytes as u64).next_multiple_of(block).min(page_end);
        (address / block * block, end)
    }

    fn record(&mut self, i: usize, span: Span, bytes: &[u8]) -> Result<()> {
        let Reading { batch, pending, demand, again, .. } = self;
        let pending = &mut pending[i];
        let address = pending.address;
        let place = (address.raw() - span.start) as usize;
        let image = match batch.check(pending, &bytes[place..]) {
            Ok(Some(image)) => image,
            Ok(None) => {
                again.push(i as u32);
                return Ok(());
            }
            // Given back by compaction, and so moved before.
            Err(_) if address.raw() < batch.core.log.begin() => {
                pending.done = true;
                batch.scratch.redo.push(pending.i);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let superseded = match batch.follow(pending, image)? {
            Found::Row => {
                let superseded = batch.use_row(pending, image, Source::Disk)?;
                pending.done = true;
                superseded
            }
            Found::Missing => {
                batch.use_missing(pending)?;
                pending.done = true;
                false
            }
            Found::Further => {
                let mut cached = std::mem::take(&mut batch.scratch.cached);
                if batch.served(pending, u64::MAX, &mut cached, demand)? {
                    pending.done = true;
                } else {
                    again.push(i as u32);
                }
                batch.scratch.cached = cached;
                false
            }
        };
        if !superseded && W::MODE != Mode::Compact {
            batch.core.cache.insert(address, image.bytes(), demand);
        }
        Ok(())
    }
}

impl<W: Work> ReadStream for Reading<'_, '_, W> {
    fn priority(&self) -> Priority {
        if W::AHEAD { Priority::Background } else { Priority::Foreground }
    }

    fn next(&mut self) -> Option<(u64, usize)> {
        // A search that goes on may do so anywhere, so only those in order are joined.
        let (first, in_order) = match self.again.pop() {
            Some(i) => (i as usize, false),
            None if self.begun < self.pending.len() && !self.batch.owes_wait => {
                self.begun += 1;
                (self.begun - 1, true)
            }
            None => return None,
        };
        let (start, mut end) = self.blocks(&self.pending[first]);
        let mut count = 1;
        while in_order && self.begun < self.pending.len() {
            let (next_start, next_end) = self.blocks(&self.pending[self.begun]);
            let page_bytes = self.batch.core.log.page_bytes();
            let joins = next_start <= end + self.bridged_bytes_max
                && next_start / page_bytes == start / page_bytes
                && next_end.max(end) - start <= self.joined_bytes_max;
            if !joins {
                break;
            }
            self.bridged |= next_start > end;
            end = end.max(next_end);
            count += 1;
            self.begun += 1;
        }
        self.spans.push(Span { start, first: first as u32, count: count as u32 });
        let tally = &mut self.batch.tally;
        tally.disk_reads += 1;
        tally.disk_reads_joined += count as u64 - 1;
        tally.disk_read_bytes += end - start;
        Some((start, (end - start) as usize))
    }

    fn arrived(&mut self, number: u64, bytes: &[u8]) {
        let span = self.spans[number as usize];
        let index = self.batch.core.index.outline();
        let mut fetched = 0;
        for pending in &self.pending[span.first as usize..][..span.count as usize] {
            let place = (pending.address.raw() - span.start) as usize;
            let end = bytes.len().min(place + pending.bytes.min(FETCHED_OF_RECORD_MAX));
            if fetched < FETCHED_OF_READ_MAX {
                for line in (place / LINE_BYTES * LINE_BYTES..end).step_by(LINE_BYTES) {
                    cpu_hint::line(&raw const bytes[line]);
                }
                fetched += end - place;
            }
            // The bucket that `publish` will lock.
            if W::MODE != Mode::Peek {
                index.prefetch(pending.hash);
            }
        }
    }

    fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        let span = self.spans[number as usize];
        for i in span.first..span.first + span.count {
            self.record(i as usize, span, bytes)?;
        }
        Ok(())
    }
}

const _: () = assert!(size_of::<ClockWord>() == 8);
