//! How a batch completes the keys whose rows are in the cold tier.
//!
//! A key that the log does not have may have a row in the cold tier. The batch sets such keys
//! aside, and later takes one view of the parts for all of them. A key's newest version is in the
//! newest run that has the key, or else in the base. Filters say which runs do not have a key. The
//! batch reads the first block that may have the row. If the block does not have it, the search
//! continues with the next older run.
//!
//! A peek copies the row out. Any other operation gives the row a record at the tail, whose value
//! then equals the version in the part; the record is *clean* until an operation changes it.
//!
//! A blind put (`Operation::BLIND`) gives a key that the log does not have a record at once, and
//! reads no part (`beyond_log`). Runs, the log and the base have an order, so the record is the
//! newest version wherever the older ones lie. In one tier this would not do: compaction judges by
//! the index alone which record of a key is current.
//!
//! Peeks look for a row in the read cache first, and put the rows that they read there. A cached
//! row has a name in place of a log address (`cache_name`). A merge moves rows to new parts, whose
//! names differ, so a peek reads each of these rows once more.
//!
//! The batch holds a view only while it reads. A view keeps the files of parts that a merge has
//! replaced, and a batch that waits for space must not keep space from being freed.
//!
//! **Why the newest version is found.** A spill first publishes the view with the new run, then
//! moves the log's beginning, and then removes entries of the index (`engine::space`). The batch
//! looks in these places in the opposite order: in the index, and then in the view. So if the
//! search of the index misses a record because of a spill, the view has that record's row.
//! `Batch::insert` says why a record that the batch inserts does not hide a newer one.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::scratch::Searched;
use super::succession::{Old, Predecessor, Succession, Tier};
use super::{Batch, Effect, GROUP_KEYS, Room, Step, Work};
use crate::cache::Demand;
use crate::cold::filter::MixedHash;
use crate::cold::part::{BlockPlace, Found, Part};
use crate::cold::row::ColdRow;
use crate::device::{Priority, ReadStream};
use crate::engine::cold::view::ColdView;
use crate::error::{Error, Result};
use crate::log::PageFull;
use crate::memory::cpu_hint;
use crate::operation::Clock;
use crate::record::address::Address;
use crate::record::clock::ClockWord;
use crate::record::layout::{Link, RecordImage, Shape, record_bytes};

/// Largest length in bytes of a read that covers several blocks.
const JOINED_BYTES_MAX: u64 = 64 << 10;
/// An odd number with random bits, by which names are mixed.
const MIXER: u64 = 0x9E37_79B9_7F4A_7C15;

/// A key that the log does not have.
#[derive(Debug)]
pub(super) struct ColdKey {
    i: u32,
    hash: u64,
    searched: Searched,
    /// The block to read next, and the part that has it.
    place: Option<(Arc<Part>, BlockPlace)>,
    /// Position in the view of the run that the search probes next. The base comes last.
    next: usize,
    /// True if the key is completed, or will be searched again from the index.
    done: bool,
}

impl ColdKey {
    fn new(i: u32, hash: u64, searched: Searched) -> Self {
        ColdKey { i, hash, searched, place: None, next: 0, done: false }
    }

    /// Moves to the next block that may have the row. False if no other block may have it.
    fn advance(&mut self, view: &ColdView) -> bool {
        let mixed = MixedHash::of(self.hash);
        self.place = None;
        while let Some((next, part)) = view.part_after(self.hash, self.next) {
            self.next = next;
            let window = part.prefetch(self.hash, mixed);
            if part.may_have_at(window, mixed)
                && let Some(place) = part.block_of(self.hash)
            {
                self.place = Some((Arc::clone(part), place));
                return true;
            }
        }
        false
    }

    fn place(&self) -> BlockPlace {
        self.place.as_ref().expect("a key that waits for a block has a place").1
    }

    fn part(&self) -> &Part {
        &self.place.as_ref().expect("a key that waits for a block has a place").0
    }

    /// Returns the name under which the read cache has the row of this hash in this part. Bit 50
    /// sets the names apart from log addresses. Two rows may have equal names, so the copy also has
    /// the part and the key.
    fn cache_name(&self) -> Address {
        let mixed = (self.hash ^ self.part().head().number.wrapping_mul(MIXER)).wrapping_mul(MIXER);
        Address::new(1 << 50 | (mixed >> 17) << 3)
    }
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// True if a key that the log does not have may have a row in the cold tier. The caller has
    /// searched the index before.
    #[inline]
    pub(super) fn asks_cold(&self) -> bool {
        W::ASKS_COLD && self.core.cold.has_rows()
    }

    /// Handles a key that the log does not have, but perhaps the cold tier. A blind put gives the
    /// key a record at once; other works set the key aside.
    ///
    /// A blind put does not know whether the row exists, so its record is uncounted. If the base is
    /// empty and the filters of all runs deny the key, the row surely does not exist. The view that
    /// says so is taken after the search of the index. A version that has come to the cold tier
    /// since then was published after the search, and `insert` fails.
    pub(super) fn beyond_log(
        &mut self,
        i: u32,
        hash: u64,
        searched: &Searched,
    ) -> std::result::Result<Step, PageFull> {
        if W::BLIND
            && matches!(self.clock, Clock::Keep | Clock::Release)
            && let Some(value_bytes) = self.make_missing_value(i as usize)
        {
            let is_missing = !self.core.cold.has_base()
                && !ColdKey::new(i, hash, Searched::default()).advance(&self.core.cold.view());
            let (i, uncounted) = (i as usize, !is_missing);
            let Some(new) = self.insert_made(i, value_bytes, hash, searched, uncounted)? else {
                return Ok(Step::Moved);
            };
            match uncounted {
                true => self.tally.blind += 1,
                false => self.note_inserted(new),
            }
            return Ok(Step::Done);
        }
        self.set_aside_cold(i, hash, searched.clone());
        Ok(Step::Done)
    }

    #[cold]
    pub(super) fn set_aside_cold(&mut self, i: u32, hash: u64, searched: Searched) {
        self.scratch.cold.push(ColdKey::new(i, hash, searched));
    }

    /// Reports the keys that may have rows in the cold tier. Asks the filters, and reads nothing.
    pub(super) fn locate_cold(&mut self) {
        if self.scratch.cold.is_empty() {
            return;
        }
        let view = self.core.cold.view();
        let mut keys = std::mem::take(&mut self.scratch.cold);
        for mut key in keys.drain(..) {
            if key.advance(&view) {
                self.work.elsewhere(key.i as usize);
            } else {
                self.note_missing(key.i as usize);
            }
        }
        self.scratch.cold = keys;
    }

    /// Completes the keys that the log does not have. If the batch has to wait for room, it
    /// completes only some of the keys.
    pub(super) fn read_cold(&mut self) -> Result<()> {
        if self.scratch.cold.is_empty() {
            return Ok(());
        }
        let mut keys = std::mem::take(&mut self.scratch.cold);
        let done = self.complete_cold(&mut keys);
        keys.retain(|key| done.is_ok() && !key.done);
        self.scratch.cold = keys;
        done
    }

    fn complete_cold(&mut self, keys: &mut [ColdKey]) -> Result<()> {
        if W::APPENDS && W::ROOM == Room::Awaited && self.core.headroom().is_short() {
            self.await_space()?;
        }
        let mut demand = Demand::default();
        let found = {
            let view = self.core.cold.view();
            let found = find_blocks(&view, keys);
            let unread = self.serve_cold_cached(&mut keys[..found], &mut demand)?;
            if unread > 0 {
                self.read_blocks(&view, &mut keys[..unread], &mut demand)?;
            }
            found
        };
        for key in &mut *keys {
            key.place = None;
        }
        self.core.cache.resize(&demand, &self.core.log);
        for key in &mut keys[found..] {
            self.insert_missing(key.i, key.hash, &key.searched, false)?;
            key.done = true;
        }
        if std::mem::take(&mut self.owes_wait) { self.await_space() } else { Ok(()) }
    }

    /// Completes the peeks whose rows are in the read cache. The other keys come first afterwards.
    /// Returns their number.
    fn serve_cold_cached(&mut self, keys: &mut [ColdKey], demand: &mut Demand) -> Result<usize> {
        if W::EFFECT != Effect::Peek {
            return Ok(keys.len());
        }
        let cache = &self.core.cache;
        let mut cached = std::mem::take(&mut self.scratch.cached);
        let mut unread = 0;
        for start in (0..keys.len()).step_by(GROUP_KEYS) {
            let group = start..keys.len().min(start + GROUP_KEYS);
            for key in &keys[group.clone()] {
                cache.prefetch_index(key.cache_name());
            }
            for key in &keys[group.clone()] {
                cache.prefetch_row(key.cache_name());
            }
            for k in group {
                let key = &mut keys[k];
                demand.lookups += 1;
                if cache.get(key.cache_name(), &mut cached)
                    && let image = RecordImage::of_words(&cached)
                    && image.is(self.table.number, self.keys[key.i as usize])
                    && image.link().previous() == part_name(key.part())
                {
                    let value = self.cold_value(key, image.padded_value(), image.unused_bytes())?;
                    self.give_value(key.i as usize, value, 0);
                    self.note_hit(Old::Cached);
                    key.done = true;
                } else {
                    keys.swap(unread, k);
                    unread += 1;
                }
            }
        }
        self.scratch.cached = cached;
        Ok(unread)
    }

    /// Reads the blocks of `keys` as one stream, and completes the keys.
    fn read_blocks(
        &mut self,
        view: &ColdView,
        keys: &mut [ColdKey],
        demand: &mut Demand,
    ) -> Result<()> {
        keys.sort_unstable_by_key(|key| (key.place().address, key.i));
        let device = Arc::clone(&self.core.log.device);
        let deepest = self.with_buffer(|batch, buffer| {
            batch.streaming = true;
            let joined_bytes_max = JOINED_BYTES_MAX.min(buffer.len() as u64 / 4);
            let reading = &mut ColdReading::new(batch, view, keys, demand, joined_bytes_max);
            let read = device.read_stream(buffer, reading);
            batch.streaming = false;
            read
        })?;
        self.tally.disk_queue_depth_max = self.tally.disk_queue_depth_max.max(deepest);
        Ok(())
    }

    /// Completes a key whose newest version was found in a part.
    fn use_cold_row(
        &mut self,
        key: &ColdKey,
        row: &ColdRow<'_>,
        demand: &mut Demand,
    ) -> Result<()> {
        if row.flags.tombstone {
            let uncounted = row.flags.uncounted;
            return self.insert_missing(key.i, key.hash, &key.searched, uncounted);
        }
        let value = self.cold_value(key, row.value, usize::from(row.unused_bytes))?;
        if W::EFFECT == Effect::Peek {
            self.give_value(key.i as usize, value, 0);
            self.note_hit(Old::OnDisk);
            if W::FILLS_CACHE {
                self.cache_cold(key, row, demand);
            }
            return Ok(());
        }
        self.pinned_until_done(|batch, _| batch.bring_from_cold(key, value, row))
    }

    /// Gives a row of the cold tier a record at the tail.
    fn bring_from_cold(
        &mut self,
        key: &ColdKey,
        value: &[u8],
        row: &ColdRow<'_>,
    ) -> std::result::Result<(), PageFull> {
        let i = key.i as usize;
        // A row with outstanding Gets stays in the log, so the count of a row at rest is 0.
        let word = ClockWord::at_rest(0).inherited(0, u32::from(row.uses)).with_clean(true);
        if !self.clock.admits(0) {
            self.outcome.blocked.push(key.i);
            return Ok(());
        }
        let old = Predecessor {
            place: Old::OnDisk,
            hash: key.hash,
            tier: Tier::Cold { searched: &key.searched },
            value: Some(value),
            word,
            uncounted: row.flags.uncounted,
            record_bytes: record_bytes(value.len()),
        };
        match self.succeed(i, &old)? {
            Succession::Replaced(new) => self.note_succession(i, &old, new),
            Succession::LeftAlone => {}
            Succession::Moved => self.scratch.redo.push(key.i),
        }
        Ok(())
    }

    /// Puts a row that was read from a part into the read cache, in the form of a record. The part
    /// stands in the place of the previous record's address.
    fn cache_cold(&mut self, key: &ColdKey, row: &ColdRow<'_>, demand: &mut Demand) {
        let link = Link::new(part_name(key.part()), usize::from(row.unused_bytes));
        let shape = Shape::new(row.table, row.value.len());
        let header = [link.0, ClockWord::at_rest(0).bits(), row.key, shape.0];
        let image = &mut self.scratch.image;
        image.clear();
        image.extend(header.iter().flat_map(|word| word.to_le_bytes()));
        image.extend_from_slice(row.value);
        self.core.cache.insert(key.cache_name(), image, demand);
    }

    /// Returns the value of a row without padding.
    fn cold_value<'b>(&self, key: &ColdKey, padded: &'b [u8], unused: usize) -> Result<&'b [u8]> {
        let value_bytes = match VARIABLE {
            true => padded.len().checked_sub(unused).filter(|&bytes| bytes <= self.value_bytes),
            false => (padded.len() == self.scratch.value.len() * 8).then_some(self.value_bytes),
        };
        value_bytes.map(|bytes| &padded[..bytes]).ok_or_else(|| {
            let (path, offset) = self.core.log.device.locate(key.place().address);
            let what = "the length of a row is not its table's".to_owned();
            self.of_table(Error::Damaged { path, offset, what })
        })
    }

    /// Adds the table's name to an error about a damaged block.
    #[cold]
    fn of_table(&self, error: Error) -> Error {
        match error {
            Error::Damaged { path, offset, what } => {
                let table = self.core.tables.name(self.table);
                let what = format!("{what}, in a lookup for table {table:?}");
                Error::Damaged { path, offset, what }
            }
            error => error,
        }
    }
}

/// Returns the number of a part as an address.
fn part_name(part: &Part) -> Address {
    Address::new(part.head().number << 3)
}

/// Finds the first block that may have the row of each key. The keys without such a block have no
/// row; they come last. Returns the number of the other keys. The cache misses of the filters of a
/// group of keys overlap.
fn find_blocks(view: &ColdView, keys: &mut [ColdKey]) -> usize {
    let mut found = 0;
    for start in (0..keys.len()).step_by(GROUP_KEYS) {
        let group = start..keys.len().min(start + GROUP_KEYS);
        for key in &keys[group.clone()] {
            view.prefetch(key.hash);
        }
        for k in group {
            // An earlier view had the runs at other positions.
            keys[k].next = 0;
            if keys[k].advance(view) {
                keys.swap(found, k);
                found += 1;
            }
        }
    }
    found
}

/// One read: its first byte, and the keys that need its blocks.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    /// Index in `ColdReading::keys` of the read's first key.
    first: u32,
    count: u32,
}

/// The stream of reads of the cold tier's blocks.
struct ColdReading<'s, 'a, W, const VARIABLE: bool> {
    batch: &'s mut Batch<'a, W, VARIABLE>,
    view: &'s ColdView,
    /// The keys of the stream, sorted by their blocks' addresses at the start.
    keys: &'s mut [ColdKey],
    demand: &'s mut Demand,
    joined_bytes_max: u64,
    /// Number of keys whose first read has begun.
    begun: usize,
    /// Indices in `keys` of the keys that need a further read.
    again: Vec<u32>,
    /// The reads that have begun; the index is the read's number.
    spans: Vec<Span>,
}

impl<'s, 'a, W: Work, const VARIABLE: bool> ColdReading<'s, 'a, W, VARIABLE> {
    fn new(
        batch: &'s mut Batch<'a, W, VARIABLE>,
        view: &'s ColdView,
        keys: &'s mut [ColdKey],
        demand: &'s mut Demand,
        joined_bytes_max: u64,
    ) -> Self {
        let (again, spans) = (Vec::new(), Vec::new());
        ColdReading { batch, view, keys, demand, joined_bytes_max, begun: 0, again, spans }
    }

    /// Looks for the row of a key in the block that has arrived.
    fn block(&mut self, k: usize, span: Span, bytes: &[u8]) -> Result<()> {
        let ColdReading { batch, view, keys, demand, again, .. } = self;
        let key = &mut keys[k];
        let (part, place) = key.place.clone().expect("a key that waits for a block has a place");
        let block = &bytes[(place.address - span.start) as usize..][..place.bytes as usize];
        let device = &batch.core.log.device;
        let number = batch.keys[key.i as usize];
        let locate = || device.locate(place.address);
        let found = part.find(place, block, key.hash, batch.table.number, number, locate);
        let found = found.map_err(|error| batch.of_table(error))?;
        batch.tally.cold_blocks_read += 1;
        batch.tally.cold_false_reads += u64::from(!matches!(found, Found::Row(_)));
        match found {
            Found::Row(row) => {
                batch.use_cold_row(key, &row, demand)?;
                key.done = true;
            }
            Found::Before(place) => {
                key.place = Some((part, place));
                again.push(k as u32);
            }
            Found::Missing if key.advance(view) => again.push(k as u32),
            Found::Missing => {
                batch.insert_missing(key.i, key.hash, &key.searched, false)?;
                key.done = true;
            }
        }
        Ok(())
    }
}

impl<W: Work, const VARIABLE: bool> ReadStream for ColdReading<'_, '_, W, VARIABLE> {
    fn priority(&self) -> Priority {
        if W::AHEAD { Priority::Background } else { Priority::Foreground }
    }

    fn next(&mut self) -> Option<(u64, usize)> {
        // Only first reads are joined, because they come in order of address.
        let (first, in_order) = match self.again.pop() {
            Some(k) => (k as usize, false),
            None if self.begun < self.keys.len() && !self.batch.owes_wait => {
                self.begun += 1;
                (self.begun - 1, true)
            }
            None => return None,
        };
        let BlockPlace { address: start, bytes, .. } = self.keys[first].place();
        let mut end = start + u64::from(bytes);
        let mut count = 1;
        while in_order && self.begun < self.keys.len() {
            let next = self.keys[self.begun].place();
            let next_end = end.max(next.address + u64::from(next.bytes));
            // Reads of equal and of neighbouring blocks are joined. Both blocks belong to one part,
            // because another part begins with its header.
            if next.address > end || next_end - start > self.joined_bytes_max.max(end - start) {
                break;
            }
            end = next_end;
            count += 1;
            self.begun += 1;
        }
        self.spans.push(Span { start, first: first as u32, count });
        let tally = &mut self.batch.tally;
        tally.disk_reads += 1;
        tally.disk_reads_joined += u64::from(count) - 1;
        tally.disk_read_bytes += end - start;
        Some((start, (end - start) as usize))
    }

    fn arrived(&mut self, number: u64, bytes: &[u8]) {
        let Span { start, first, count } = self.spans[number as usize];
        let index = self.batch.core.index.outline();
        for key in &self.keys[first as usize..][..count as usize] {
            let block = &bytes[(key.place().address - start) as usize..];
            cpu_hint::line(block.as_ptr());
            // Prefetches the key's bucket, which `insert` will lock.
            if W::APPENDS {
                index.prefetch(key.hash);
            }
        }
    }

    fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        let span = self.spans[number as usize];
        for k in span.first..span.first + span.count {
            self.block(k as usize, span, bytes)?;
        }
        Ok(())
    }
}
