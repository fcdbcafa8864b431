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

use std::sync::Arc;

use super::scratch::Searched;
use super::succession::{Old, Predecessor, Succession, Tier};
use super::{Batch, Effect, GROUP_KEYS, Room, Work};
use crate::cache::Demand;
use crate::cold::filter::MixedHash;
use crate::cold::part::{BlockPlace, Found, Part};
use crate::cold::row::ColdRow;
use crate::device::{Priority, ReadStream};
use crate::engine::cold::view::ColdView;
use crate::error::{Error, Result};
use crate::log::PageFull;
use crate::memory::cpu_hint;
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

    #[cold]
    pub(super) fn set_aside_cold(&mut self, i: u32, hash: u64, searched: Searched) {
        self.scratch.cold.push(ColdKey { i, hash, searched, place: None, next: 0, done: false });
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
            self.insert_missing(key.i, key.hash, &key.searched)?;
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
            return self.insert_missing(key.i, key.hash, &key.searched);
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
        self.pinned_until_done(|batch, _| batch.bring_from_cold(key, value, row.uses))
    }

    /// Gives a row of the cold tier a record at the tail.
    fn bring_from_cold(
        &mut self,
        key: &ColdKey,
        value: &[u8],
        uses: u8,
    ) -> std::result::Result<(), PageFull> {
        let i = key.i as usize;
        // A row with outstanding Gets stays in the log, so the count of a row at rest is 0.
        let word = ClockWord::at_rest(0).inherited(0, u32::from(uses)).with_clean(true);
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
        match found.map_err(|error| batch.of_table(error))? {
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
                batch.insert_missing(key.i, key.hash, &key.searched)?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cold::head::{Kind, PartHead, PartSite};
    use crate::cold::row::RowFlags;
    use crate::cold::writer::PartWriter;
    use crate::engine::core::Core;
    use crate::record::address::TableId;
    use crate::{Access, Clock, Operation, Store, StoreOptions, Width};

    /// Keys of the tests. The parts have 3 of 4 keys.
    const KEYS: u64 = 3000;

    /// Length of the value of a key at a version. Rows of a table of fixed width have 24 bytes.
    fn value_of(width: Width, key: u64, version: u64) -> Vec<u8> {
        let bytes = match width {
            Width::Fixed => 24,
            Width::Variable => ((key ^ version) % 50) as usize,
        };
        (0..bytes).map(|i| (key * 31 + version * 7) as u8 ^ i as u8).collect()
    }

    /// The versions of keys in one part. `None` stands for a tombstone.
    type Versions = BTreeMap<u64, Option<Vec<u8>>>;

    /// Writes a part with the versions of keys of one table.
    fn write_part(
        core: &Core,
        table: TableId,
        kind: Kind,
        run: u64,
        versions: &Versions,
    ) -> Arc<Part> {
        let bank = 77;
        let segment_size_bytes = crate::device::SEGMENT_SIZE_BYTES_DEFAULT;
        let device = &*core.log.device;
        let site = PartSite { device, segment_size_bytes, key_hash: core.key_hash };
        let runs = if kind == Kind::Base { 0..=run } else { run..=run };
        let (level, block_bits, hashes, log) = (0, 12, 0..=u64::MAX, 0..0);
        let number = core.cold.next_part();
        let salt = number + 99;
        let head = PartHead { bank, salt, number, kind, level, block_bits, runs, hashes, log };
        let columns = if kind == Kind::Base { 0 } else { 9 };
        let mut writer = PartWriter::new(site, head, columns);
        let mut rows: Vec<_> = versions.iter().collect();
        rows.sort_by_key(|&(&key, _)| core.key_hash.of(table.number, key));
        for (&key, value) in rows {
            let mut padded = value.clone().unwrap_or_default();
            let unused_bytes = (padded.len().next_multiple_of(8) - padded.len()) as u8;
            padded.resize(padded.len().next_multiple_of(8), 0);
            let row = ColdRow {
                table: table.number,
                key,
                hash: core.key_hash.of(table.number, key),
                flags: RowFlags { tombstone: value.is_none(), uncounted: false },
                unused_bytes,
                uses: 3,
                value: &padded,
            };
            writer.push(&row).unwrap();
        }
        Arc::new(writer.finish().unwrap())
    }

    /// Gives a table rows in a base part and two runs. Returns the rows.
    fn fill(store: &Store, table: TableId, width: Width) -> BTreeMap<u64, Vec<u8>> {
        let core = store.core();
        let value = |key, version| Some(value_of(width, key, version));
        let has = |key: &u64| key % 4 != 3;
        let base: Versions = (0..KEYS).filter(has).map(|key| (key, value(key, 1))).collect();
        let older = (0..KEYS).filter(|key| has(key) && key % 3 == 0);
        let older: Versions = older.map(|key| (key, value(key, 2))).collect();
        let newer = (0..KEYS).filter(|key| has(key) && key % 5 == 0);
        let newer: Versions =
            newer.map(|key| (key, if key % 2 == 0 { value(key, 3) } else { None })).collect();
        let all = [(Kind::Base, &base), (Kind::Run, &older), (Kind::Run, &newer)];
        let mut parts = Vec::new();
        let mut rows: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (kind, versions) in all {
            let run = if kind == Kind::Base { 0 } else { core.cold.next_run() };
            parts.push(write_part(&core, table, kind, run, versions));
            for (&key, value) in versions {
                match value {
                    Some(value) => rows.insert(key, value.clone()),
                    None => rows.remove(&key),
                };
            }
        }
        core.cold.publish(core.cold.view().changed(parts, &[])).unwrap();
        core.tables.add_rows(table, rows.len() as u64);
        rows
    }

    /// Reads, or writes `next` of each key.
    struct Op<'a, const ACCESS: u8, const VARIABLE: bool> {
        next: &'a dyn Fn(usize) -> Vec<u8>,
        read: Vec<Option<Vec<u8>>>,
        inserts: bool,
    }

    impl<const ACCESS: u8, const VARIABLE: bool> Operation for Op<'_, ACCESS, VARIABLE> {
        const ACCESS: Access = match ACCESS {
            0 => Access::Peek,
            1 => Access::Get,
            2 => Access::Update,
            _ => Access::Put,
        };
        const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
        fn read(&mut self, i: usize, value: &[u8]) {
            self.read[i] = Some(value.to_vec());
        }
        fn value_bytes(&mut self, i: usize, _: Option<&[u8]>) -> usize {
            (self.next)(i).len()
        }
        fn update(&mut self, i: usize, value: &mut [u8]) {
            value.copy_from_slice(&(self.next)(i));
        }
        fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
            if self.inserts {
                value.copy_from_slice(&(self.next)(i));
            }
            self.inserts
        }
    }

    fn run<const ACCESS: u8, const VARIABLE: bool>(
        store: &Store,
        table: TableId,
        keys: &[u64],
        next: &dyn Fn(usize) -> Vec<u8>,
        inserts: bool,
    ) -> (Vec<Option<Vec<u8>>>, crate::Outcome) {
        let mut op = Op::<ACCESS, VARIABLE> { next, read: vec![None; keys.len()], inserts };
        let outcome = store.execute(table, keys, Clock::Keep, &mut op).unwrap();
        (op.read, outcome)
    }

    /// Runs random batches over rows in parts, and compares each answer with a map.
    fn compare<const VARIABLE: bool>(seed: u64) {
        let width = if VARIABLE { Width::Variable } else { Width::Fixed };
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { memory_budget_bytes: 4 << 20, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &options).unwrap();
        let table = match width {
            Width::Fixed => store.create_table("rows", 24, b""),
            Width::Variable => store.create_variable_table("rows", 64, b""),
        }
        .unwrap();
        let mut rows = fill(&store, table, width);
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..60 {
            let some = random.usize(1..200);
            let mut keys: Vec<u64> = (0..some).map(|_| random.u64(0..KEYS)).collect();
            keys.sort_unstable();
            keys.dedup();
            random.shuffle(&mut keys);
            let next = |i: usize| value_of(width, keys[i], 10 + round);
            let expected = |rows: &BTreeMap<u64, Vec<u8>>| {
                keys.iter().map(|key| rows.get(key).cloned()).collect::<Vec<_>>()
            };
            match random.u8(0..6) {
                0 | 1 => {
                    let (read, outcome) = run::<0, VARIABLE>(&store, table, &keys, &next, false);
                    assert_eq!(read, expected(&rows), "seed {seed} round {round}");
                    let missing = read.iter().filter(|row| row.is_none()).count();
                    assert_eq!(outcome.missing.len(), missing, "seed {seed} round {round}");
                }
                2 => {
                    let (read, _) = run::<1, VARIABLE>(&store, table, &keys, &next, false);
                    assert_eq!(read, expected(&rows), "seed {seed} round {round}");
                }
                3 => {
                    let inserts = random.bool();
                    run::<2, VARIABLE>(&store, table, &keys, &next, inserts);
                    for (i, &key) in keys.iter().enumerate() {
                        if inserts || rows.contains_key(&key) {
                            rows.insert(key, next(i));
                        }
                    }
                }
                4 => {
                    run::<3, VARIABLE>(&store, table, &keys, &next, true);
                    for (i, &key) in keys.iter().enumerate() {
                        rows.insert(key, next(i));
                    }
                }
                _ => {
                    let there = keys.iter().filter(|key| rows.remove(key).is_some()).count();
                    let deleted = store.delete(table, &keys).unwrap();
                    assert_eq!(deleted, there as u64, "seed {seed} round {round}");
                }
            }
            assert_eq!(store.rows(table).unwrap(), rows.len() as u64, "seed {seed} round {round}");
        }
        let keys: Vec<u64> = (0..KEYS).collect();
        let (read, _) = run::<0, VARIABLE>(&store, table, &keys, &|_| Vec::new(), false);
        let expected: Vec<_> = keys.iter().map(|key| rows.get(key).cloned()).collect();
        assert_eq!(read, expected, "seed {seed}");
    }

    #[test]
    fn rows_in_parts_behave_as_rows_in_the_log() {
        for seed in 0..8 {
            compare::<false>(seed);
            compare::<true>(seed);
        }
    }

    /// Shows which records are clean: the copies of rows in parts, until a change.
    #[test]
    fn a_copy_of_a_row_in_a_part_is_clean_until_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        let table = store.create_table("rows", 24, b"").unwrap();
        let rows = fill(&store, table, Width::Fixed);
        let &key = rows.keys().next().unwrap();
        let core = store.core();
        let is_clean = || {
            let _pin = core.gate.enter();
            let hash = core.key_hash.of(table.number, key);
            let entry = core.index.outline().first_match(hash);
            // SAFETY: the duty is to pass the address of a complete record in memory. The thread is
            // pinned, no page has been evicted, and the address came from the index.
            let record = unsafe { core.log.view().record(entry.address()) };
            let word = record.clock().load(crate::sync::Ordering::Relaxed);
            ClockWord::from_bits(word).is_clean()
        };
        run::<1, false>(&store, table, &[key], &|_| Vec::new(), false);
        assert!(is_clean(), "a get copies the row");
        run::<1, false>(&store, table, &[key], &|_| Vec::new(), false);
        assert!(is_clean(), "a get of the copy changes nothing");
        run::<2, false>(&store, table, &[key], &|_| vec![1; 24], false);
        assert!(!is_clean(), "the value differs from that of the part");
    }

    /// Shows that a peek finds a row that an earlier peek read from a part in the read cache.
    #[test]
    fn peeks_of_rows_in_parts_fill_the_read_cache() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        let table = store.create_table("rows", 24, b"").unwrap();
        let rows = fill(&store, table, Width::Fixed);
        let keys: Vec<u64> = rows.keys().copied().collect();
        let expected: Vec<_> = rows.values().cloned().map(Some).collect();
        let mut reads = Vec::new();
        for _ in 0..6 {
            let (read, outcome) = run::<0, false>(&store, table, &keys, &|_| Vec::new(), false);
            assert_eq!(read, expected);
            reads.push(outcome.disk_reads);
        }
        assert_eq!(reads[0], keys.len() as u64);
        // A filter may send a lookup to a block without the row, which no peek puts into the cache.
        // Of 512 lookups in a run, one does so.
        assert!(reads[5] < reads[0] / 20, "{reads:?}");
    }

    /// Shows that a damaged block fails the lookups of its rows with the table's name, and no
    /// others.
    #[test]
    fn a_damaged_block_is_an_error_that_names_the_table() {
        let dir = tempfile::tempdir().unwrap();
        let options =
            StoreOptions { device: crate::DeviceChoice::Threads, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &options).unwrap();
        let table = store.create_table("users", 24, b"").unwrap();
        let rows = fill(&store, table, Width::Fixed);
        let core = store.core();
        let base = Arc::clone(&core.cold.view().base()[0]);
        let place = base.block_of(1 << 63).unwrap();
        let (path, offset) = core.log.device.locate(place.address);
        let mut bytes = std::fs::read(&path).unwrap();
        let block = offset as usize..(offset + u64::from(place.bytes)) as usize;
        bytes[block].fill(0x5A);
        std::fs::write(&path, &bytes).unwrap();
        let (mut damaged, mut sound) = (0, 0);
        for (&key, value) in &rows {
            let next = &|_| Vec::new();
            let mut op = Op::<0, false> { next, read: vec![None], inserts: false };
            match store.execute(table, &[key], Clock::Keep, &mut op) {
                Ok(_) => {
                    assert_eq!(op.read[0].as_ref(), Some(value));
                    sound += 1;
                }
                Err(Error::Damaged { path: named, what, .. }) => {
                    assert_eq!(named, path);
                    assert!(what.contains("for table \"users\""), "{what}");
                    damaged += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(damaged > 0 && sound > damaged, "{damaged} damaged, {sound} sound");
    }
}
