//! How a batch completes the keys whose rows are on disk.
//!
//! The batch first looks for these rows in the read cache. It overlaps the cache misses of a group
//! of keys.
//!
//! It reads the remaining rows as one stream. The reads are sorted by address, and reads of
//! neighbouring records are joined. As many reads are in flight as the device and the read buffer
//! hold. The batch works on each row when the row arrives, while the device reads the next rows.
//! The record to which a bucket leads may belong to another key of the chain. The batch then reads
//! the previous record of the chain in this stream too.
//!
//! An operation that uses a row copies it to the tail of the log, where the row can be changed in
//! place. A peek leaves the row where it is and puts a copy into the read cache.
//!
//! **Room.** Rows need room at the tail, and a batch may have to wait until compaction has made
//! room (`Headroom::await_space`). A batch must not wait during a stream, because it then holds a
//! read buffer and a ring of the device. Compaction needs both, and a few waiting batches would
//! hold all of them. So a batch that lacks room begins no more reads. For the rows that are already
//! being read, it takes pages without waiting, even beyond the log's size limit. It exceeds the
//! limit by at most the size of the read buffer, which holds all of these rows. After the stream
//! has ended, the batch waits for room. The next stream then reads the remaining rows.
//!
//! **Length.** The length of a record of variable width stands in the record's header. The first
//! read of such a record brings twice the table's mean length. If the record is longer, a second
//! read brings the rest.

use super::reads::{BRIDGED_BYTES_MAX, JOINED_BYTES_MAX, Joins, Reading};
use super::scratch::Searched;
use super::succession::{Old, Predecessor, Succession, Tier};
use super::{Batch, Effect, GROUP_KEYS, Pending, Room, Step, Work};
use crate::cache::Demand;
use crate::device::AlignedBuffer;
use crate::error::{Error, Result};
use crate::log::PageFull;
use crate::operation::Operation;
use crate::record::address::Address;
use crate::record::check::{self, Checked, Site};
use crate::record::clock::ClockWord;
use crate::record::layout::RecordImage;

/// The reason why a stream of reads ended early.
struct Failed {
    error: Error,
    /// True if a read of the stream included bytes between two requested records.
    bridged: bool,
}

/// What a verified record means for the key whose search read the record.
pub(super) enum Found {
    /// The record is the key's row.
    Row,
    /// The search continues at another record, or needs more bytes of this record.
    Further,
    /// No chain holds the key.
    Missing,
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// Completes the keys that the batch has set aside, with their rows from the cache or from
    /// disk. If the batch has to wait for room, it completes only some of the keys.
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
        // A stream takes pages of the log without waiting, also beyond the log's size limit. So the
        // batch begins a stream only if there is room. Otherwise each batch that fails for lack of
        // room would first lengthen the log by the size of a read buffer.
        if W::APPENDS && W::ROOM == Room::Awaited && self.core.headroom().is_short() {
            self.await_space()?;
        }
        let read = self.with_buffer(|batch, buffer| {
            let read = batch.read_stream(buffer, pending, demand, BRIDGED_BYTES_MAX);
            if let Err(Failed { error: Error::Io { .. }, bridged: true }) = read {
                // The unreadable bytes may lie between the rows. The second stream reads no bytes
                // between rows.
                pending.retain(|p| !p.done);
                return batch.read_stream(buffer, pending, demand, 0);
            }
            read
        });
        match read {
            Ok(deepest) => {
                let most = self.tally.disk_queue_depth_max.max(deepest);
                self.tally.disk_queue_depth_max = most;
                // Keeps the keys whose reads were not begun.
                pending.retain(|p| !p.done);
            }
            Err(Failed { error, .. }) if self.search_again(pending, &error) => pending.clear(),
            Err(Failed { error, .. }) => return Err(error),
        }
        if std::mem::take(&mut self.owes_wait) { self.await_space() } else { Ok(()) }
    }

    /// Calls `read` with a read buffer.
    pub(super) fn with_buffer<R>(
        &mut self,
        read: impl FnOnce(&mut Self, &mut AlignedBuffer) -> R,
    ) -> R {
        let core = self.core;
        let mut own = self.scratch.own_buffer.take();
        let mut pooled = None;
        let buffer: &mut AlignedBuffer = match &mut own {
            Some(own) => own,
            None => pooled.insert(core.buffers.take()).memory(),
        };
        let done = read(self, buffer);
        self.scratch.own_buffer = own;
        done
    }

    /// Reads the rows of `pending` as one stream. Returns the largest number of reads that were in
    /// flight at once.
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
        let joins = Joins { joined_bytes_max, bridged_bytes_max };
        let mut reading = Reading::new(self, pending, demand, joins);
        reading.batch.streaming = true;
        let read = core.log.device.read_stream(buffer, &mut reading);
        let bridged = reading.has_bridged();
        self.streaming = false;
        read.map_err(|error| Failed { error, bridged })
    }

    /// Handles a failed read. Compaction may have moved a row and removed the part of the log where
    /// the row was. Then the keys that are not completed are searched again from the index, and the
    /// function returns true. Returns false if compaction moved no row: the caller then returns the
    /// error.
    ///
    /// The caller does not retry forever: each retry needs a log beginning that has advanced since
    /// the search. A successful read needs no such check. A removed file stays whole for a process
    /// that has it open. A range that compaction has given back reads as zeros, and zeros are no
    /// valid record (`Reading::record`).
    #[cold]
    fn search_again(&mut self, pending: &[Pending], error: &Error) -> bool {
        // A removed file causes only failed or short reads. For any other error, `Reading::record`
        // has already checked whether the row had moved.
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

    /// Completes the keys whose records are in the cache. Leaves in `pending` the keys whose
    /// records must be read from disk.
    fn serve_cached(&mut self, pending: &mut Vec<Pending>, demand: &mut Demand) -> Result<()> {
        let cache = &self.core.cache;
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
                if !self.served(&mut pending[k], &mut cached, demand)? {
                    pending.swap(kept, k);
                    kept += 1;
                }
            }
        }
        pending.truncate(kept);
        self.scratch.cached = cached;
        Ok(())
    }

    /// Follows a key's chain through the cache and completes the key if its row is found. Returns
    /// false if a record of the chain must be read from disk.
    pub(super) fn served(
        &mut self,
        pending: &mut Pending,
        cached: &mut Vec<u64>,
        demand: &mut Demand,
    ) -> Result<bool> {
        let cache = &self.core.cache;
        // The loop ends: each round goes to a lower address of the chain, or to one of the finitely
        // many other chains.
        loop {
            let address = pending.address;
            demand.lookups += u64::from(W::EFFECT == Effect::Peek && W::FILLS_CACHE);
            if !cache.get(address, cached) {
                return Ok(false);
            }
            let image = RecordImage::of_words(cached);
            match self.follow(pending, image)? {
                Found::Further => {}
                Found::Row => {
                    if self.use_row(pending, image, Old::Cached)? {
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

    /// Returns what a verified record means for the key, and moves `pending` to the next record of
    /// the search.
    pub(super) fn follow(&self, pending: &mut Pending, image: RecordImage<'_>) -> Result<Found> {
        if image.is(self.table.number, self.keys[pending.i as usize]) {
            let has_value = if VARIABLE {
                image.value_bytes().is_some_and(|bytes| bytes <= self.value_bytes)
            } else {
                image.padded_value().len() == self.scratch.value.len() * 8
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
                pending.entry = entry;
                pending.address = address;
                Ok(Found::Further)
            }
            None => Ok(Found::Missing),
        }
    }

    /// Returns the verified record at the pending address. `None` if more bytes must be read first.
    pub(super) fn check<'b>(
        &self,
        pending: &mut Pending,
        bytes: &'b [u8],
    ) -> Result<Option<RecordImage<'b>>> {
        let page_bytes = self.core.log.page_bytes();
        let address = pending.address;
        let site = Site {
            address,
            origin: self.core.log.lineage().origin(address),
            room_bytes: (page_bytes - address.raw() % page_bytes) as usize,
            record_bytes_max: self.core.tables.record_bytes_max,
        };
        match check::check(bytes, site) {
            Ok(Checked::Sound(image)) => Ok(Some(image)),
            Ok(Checked::Needs(record_bytes)) => {
                pending.bytes = record_bytes;
                Ok(None)
            }
            Err(unsound) => Err(self.damaged(address, &unsound.to_string())),
        }
    }

    #[cold]
    fn damaged(&self, address: Address, what: &str) -> Error {
        let (path, offset) = self.core.log.device.locate(address.raw());
        let page = address.raw() / self.core.log.page_bytes();
        let table = self.core.tables.name(self.table);
        let what = format!("page {page}, a record looked up for table {table:?}: {what}");
        Error::Damaged { path, offset, what }
    }

    /// Completes a key that is in no chain, or sets it aside for a search of the cold tier.
    pub(super) fn use_missing(&mut self, pending: &Pending) -> Result<()> {
        let Pending { i, hash, ref searched, .. } = *pending;
        if !self.asks_cold() {
            return self.insert_missing(i, hash, searched, false);
        }
        if !W::BLIND {
            self.set_aside_cold(i, hash, searched.clone());
            return Ok(());
        }
        self.pinned_until_done(|batch, _| {
            if let Step::Moved = batch.beyond_log(i, hash, searched)? {
                batch.scratch.redo.push(i);
            }
            Ok(())
        })
    }

    /// Completes a key without a row. `uncounted` is the mark of its newest version, a tombstone in
    /// the cold tier.
    pub(super) fn insert_missing(
        &mut self,
        i: u32,
        hash: u64,
        searched: &Searched,
        uncounted: bool,
    ) -> Result<()> {
        self.pinned_until_done(|batch, _| {
            if let Step::Moved = batch.on_missing(i as usize, hash, searched, uncounted)? {
                batch.scratch.redo.push(i);
            }
            Ok(())
        })
    }

    /// Completes a key whose own record was found. Returns true if the batch copied the row to the
    /// tail, so that no later search reaches this record.
    pub(super) fn use_row(
        &mut self,
        pending: &Pending,
        image: RecordImage<'_>,
        place: Old,
    ) -> Result<bool> {
        if W::EFFECT == Effect::Peek {
            self.peek_at(pending, image, place);
            return Ok(false);
        }
        let copied = self.tally.copied;
        self.pinned_until_done(|batch, _| batch.bring_to_tail(pending, image, place))?;
        Ok(self.tally.copied > copied)
    }

    fn peek_at(&mut self, pending: &Pending, image: RecordImage<'_>, place: Old) {
        let i = pending.i as usize;
        if image.link().is_tombstone() {
            self.note_missing(i);
            self.outcome.disk_reads += u64::from(place == Old::OnDisk);
            return;
        }
        let outstanding = self.core.word_on_disk(image, pending.address).outstanding();
        self.give_value(i, self.value_of(image), outstanding);
        self.note_hit(place);
    }

    /// Gives the operation the value of a row outside memory, and the row's clock.
    pub(super) fn give_value(&mut self, i: usize, value: &[u8], outstanding: u32) {
        match if VARIABLE { None } else { self.work.caller().destination(i) } {
            Some(to) => {
                let bytes = to.len().min(value.len());
                to[..bytes].copy_from_slice(&value[..bytes]);
            }
            None => self.work.caller().read(i, value),
        }
        self.work.caller().seen(i, outstanding);
    }

    /// Returns the value of a record that `follow` has found to be the key's row.
    fn value_of<'b>(&self, image: RecordImage<'b>) -> &'b [u8] {
        let value_bytes = if VARIABLE {
            image.value_bytes().expect("`follow` has checked it")
        } else {
            self.value_bytes
        };
        &image.padded_value()[..value_bytes]
    }

    fn bring_to_tail(
        &mut self,
        pending: &Pending,
        image: RecordImage<'_>,
        place: Old,
    ) -> std::result::Result<(), PageFull> {
        let i = pending.i as usize;
        let is_tombstone = image.link().is_tombstone();
        let word = if is_tombstone {
            ClockWord::at_rest(0)
        } else {
            self.core.word_on_disk(image, pending.address)
        };
        if W::EFFECT == Effect::Move && !self.work.wants(i, pending.address, word) {
            return Ok(());
        }
        if !self.clock.admits(word.outstanding()) {
            self.outcome.blocked.push(pending.i);
            return Ok(());
        }
        let old = Predecessor {
            place,
            hash: pending.hash,
            tier: Tier::Hot {
                entry: pending.entry,
                address: pending.address,
                previous: image.link().previous(),
            },
            value: (!is_tombstone).then(|| self.value_of(image)),
            word,
            uncounted: image.link().is_uncounted(),
            record_bytes: image.shape().record_bytes(),
        };
        match self.succeed(i, &old)? {
            Succession::Replaced(new) => self.note_succession(i, &old, new),
            Succession::LeftAlone => {}
            Succession::Moved => self.scratch.redo.push(pending.i),
        }
        Ok(())
    }
}
