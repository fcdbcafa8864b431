//! Running a batch.
//!
//! **Problem.** One DRAM access takes as long as hundreds of instructions, one disk read as long as a
//! thousand DRAM accesses. Taken one after another, as single-key stores do, they add up.
//!
//! **Approach.** A batch goes through in chunks, a chunk in groups. For a group of keys the buckets are
//! prefetched, then all are probed and their records prefetched, then each row is worked on: many
//! misses are in flight at once, and each stage is a loop so short that the processor looks many keys
//! ahead. What bounds it is the page walk: a prefetch that misses the TLB can't retire before its walk has
//! ended, so only those few keys overlap whose instructions fit the reorder buffer (some 500). Hence
//! few instructions a key count more than anything: whatever a batch can look up once (`View`, `Outline`,
//! the record's length in lines) it does. Measured on 10 million rows of 64 bytes, beside a bare loop
//! over the same buckets and records that took 46 ns a row: groups of 32 took 60, groups of 16 took 68,
//! stages of different groups interleaved 60 to 62, keys one by one 67 to 73. Keys whose rows are on disk are set aside; when the
//! batch is through, they go to the device as one stream of reads (`disk`). Everything in memory happens under one pin of
//! the epoch; whatever may wait (a page to turn, the device) happens between pins, and the chunk then goes
//! on where it stopped. A single operation is a batch of one.

mod disk;
mod record_step;
mod single;
mod variable;

pub(crate) use single::{Hit, try_single};

use std::time::Instant;

use crate::address::{Address, TableId};
use crate::device::AlignedBuffer;
use crate::error::{Error, Result};
use crate::hash::hash;
use crate::index::{Candidates, Entry, Inserted};
use crate::log::{PageFull, View};
use crate::operation::{Access, Clock, Operation, Outcome, Width};
use crate::prefetch;
use crate::record::{RecordRef, record_bytes};
use crate::store::Core;

/// Keys that go through together.
pub(crate) const CHUNK_KEYS: usize = 1024;
/// Keys whose rows must be read are set aside until there are so many: bounds the scratch memory.
const PENDING_KEYS_MAX: usize = 4096;
/// A thread's scratch is nearly all keys set aside; docs/architecture.md says that it stays below this.
const SCRATCH_BYTES_MAX: usize = 1 << 20;
// A vector that grows by doubling.
const _: () = assert!(
    (PENDING_KEYS_MAX + CHUNK_KEYS).next_power_of_two() * size_of::<Pending>() < SCRATCH_BYTES_MAX
);
/// Keys that go through a stage together. Measured on 64-byte rows, 10 million of them: 32 and 64 are alike,
/// fewer hide less latency, more fall out of the first-level cache.
const GROUP_KEYS: usize = 32;
/// Cache lines of a record that are prefetched at most; the processor streams the rest.
const LINES_AHEAD_MAX: usize = 8;
const LINE_BYTES: usize = 64;

/// What the engine does, the store's own jobs included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Peek,
    Get,
    Update,
    Put,
    Delete,
    /// Brings rows into mutable memory.
    Promote,
    /// Copies rows to the tail that lie where compaction found them.
    Compact,
    /// Finds out which rows are not in mutable memory.
    Locate,
}

/// An operation as the engine runs it.
pub(crate) trait Work {
    const MODE: Mode;
    /// The tables that it is for.
    const WIDTH: Width;
    fn read(&mut self, _i: usize, _value: &[u8]) {}
    fn destination(&mut self, _i: usize) -> Option<&mut [u8]> {
        None
    }
    fn value_bytes(&mut self, _i: usize, _old: Option<&[u8]>) -> usize {
        0
    }
    fn update(&mut self, _i: usize, _value: &mut [u8]) {}
    fn insert(&mut self, _i: usize, _value: &mut [u8]) -> bool {
        false
    }
    /// Whether `Compact` is to move the row that it found at an address.
    fn wants(&self, _i: usize, _address: Address) -> bool {
        true
    }
    /// The clock of a row that is peeked at.
    fn clock(&mut self, _outstanding: u32) {}
}

/// A caller's operation.
pub(crate) struct Caller<'a, O>(pub(crate) &'a mut O);

impl<O: Operation> Work for Caller<'_, O> {
    const MODE: Mode = match O::ACCESS {
        Access::Peek => Mode::Peek,
        Access::Get => Mode::Get,
        Access::Update => Mode::Update,
        Access::Put => Mode::Put,
    };
    const WIDTH: Width = O::WIDTH;
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0.read(i, value);
    }
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        self.0.destination(i)
    }
    fn value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> usize {
        self.0.value_bytes(i, old)
    }
    fn update(&mut self, i: usize, value: &mut [u8]) {
        self.0.update(i, value);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.0.insert(i, value)
    }
}

/// The width of a store's own job, which there is for both.
const fn width(variable: bool) -> Width {
    if variable { Width::Variable } else { Width::Fixed }
}

pub(crate) struct Delete<const VARIABLE: bool>;
impl<const VARIABLE: bool> Work for Delete<VARIABLE> {
    const MODE: Mode = Mode::Delete;
    const WIDTH: Width = width(VARIABLE);
}

pub(crate) struct Promote<const VARIABLE: bool>;
impl<const VARIABLE: bool> Work for Promote<VARIABLE> {
    const MODE: Mode = Mode::Promote;
    const WIDTH: Width = width(VARIABLE);
}

pub(crate) struct Locate<const VARIABLE: bool>;
impl<const VARIABLE: bool> Work for Locate<VARIABLE> {
    const MODE: Mode = Mode::Locate;
    const WIDTH: Width = width(VARIABLE);
}

/// What a clock is when a row is peeked at.
pub(crate) struct ReadClock<const VARIABLE: bool>(pub(crate) Option<u32>);
impl<const VARIABLE: bool> Work for ReadClock<VARIABLE> {
    const MODE: Mode = Mode::Peek;
    const WIDTH: Width = width(VARIABLE);
    fn clock(&mut self, outstanding: u32) {
        self.0 = Some(outstanding);
    }
}

/// Moves rows that lie at these addresses, where compaction found them.
pub(crate) struct MoveChained<'a, const VARIABLE: bool>(pub(crate) &'a [Address]);
impl<const VARIABLE: bool> Work for MoveChained<'_, VARIABLE> {
    const MODE: Mode = Mode::Compact;
    const WIDTH: Width = width(VARIABLE);
    fn wants(&self, i: usize, address: Address) -> bool {
        self.0[i] == address
    }
}

/// What a step did with its key.
enum Step {
    /// The key is dealt with.
    Done,
    /// The row moved meanwhile: search again.
    Moved,
}

/// A row in memory, and how the index leads to it.
#[derive(Clone, Copy)]
struct Place<'g> {
    entry: Entry,
    record: RecordRef<'g>,
}

impl Place<'_> {
    /// Whether the row is the first of its chain.
    fn is_head(self) -> bool {
        self.record.address() == self.entry.address()
    }
}

/// A key whose search goes on at `address` on disk.
#[derive(Debug)]
struct Pending {
    i: u32,
    hash: u64,
    /// The slot whose chain is being searched, and the place reached in it.
    entry: Entry,
    address: Address,
    /// Where the log began when the chains were entered: a link below that is the end of its chain. (One
    /// below a later beginning is not: the row may have been moved while the search was on its way.)
    begin: u64,
    /// Bytes to read there.
    bytes: usize,
    /// Other chains of the key, and where they go on.
    rest: Vec<(Entry, Address)>,
    /// The key has been dealt with, or is to be searched again.
    done: bool,
    searched: Candidates,
}

/// Memory that batches of a thread use again and again.
#[derive(Default)]
pub(crate) struct Scratch {
    value: Vec<u64>,
    candidates: Candidates,
    pending: Vec<Pending>,
    redo: Vec<u32>,
    /// A record copied from the row cache.
    cached: Vec<u64>,
    /// To read into, in place of one from the pool: compaction must not wait for batches that wait for it.
    pub(crate) own_buffer: Option<AlignedBuffer>,
    /// Places of keys to be looked for in overflow buckets.
    deferred: Vec<u32>,
}

/// Keys that are on their way through the stages together: small enough to stay in the first-level cache
/// beside their rows.
struct Group {
    hashes: [u64; GROUP_KEYS],
    entries: [Entry; GROUP_KEYS],
}

impl Group {
    #[inline]
    fn new() -> Self {
        Group { hashes: [0; GROUP_KEYS], entries: [Entry::EMPTY; GROUP_KEYS] }
    }
}

/// Counts of one batch, added to the store's counters once.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) hits_mutable: u64,
    pub(crate) hits_read_only: u64,
    pub(crate) hits_disk: u64,
    pub(crate) hits_cache: u64,
    pub(crate) missing: u64,
    pub(crate) inserted: u64,
    pub(crate) deleted: u64,
    pub(crate) resident: u64,
    pub(crate) appended: u64,
    pub(crate) copied: u64,
    pub(crate) disk_reads: u64,
    /// Rows that came with the read of another.
    pub(crate) disk_reads_joined: u64,
    pub(crate) disk_queue_depth_max: u64,
    pub(crate) disk_read_bytes: u64,
    pub(crate) promoted: u64,
    /// Rows that a promotion brought to mutable memory, from disk or from the read-only region.
    pub(crate) moved: u64,
    /// Bytes of the records that `Compact` moved.
    pub(crate) moved_bytes: u64,
    /// By how much the records of the table's rows have grown (wrapping); of variable width only.
    pub(crate) grown_bytes: u64,
    pub(crate) promoted_used: u64,
    /// Where the oldest of those lay.
    pub(crate) promoted_used_from: Option<Address>,
    pub(crate) overtaken: u64,
}

/// A batch on its way.
pub(crate) struct Batch<'a, W> {
    core: &'a Core,
    table: TableId,
    /// The length of the table's values; their maximum where that varies.
    value_bytes: usize,
    keys: &'a [u64],
    clock: Clock,
    work: &'a mut W,
    scratch: &'a mut Scratch,
    /// What is read of a record on disk at first.
    read_bytes: usize,
    /// Where the prefetch of a record's lines ends, its last line apart.
    prefetch_bytes: usize,
    /// The offset of a record's last byte.
    last_byte: usize,
    /// Allocated under the present pin and not published: marked invalid, free for the next record
    /// of its size.
    spare: Option<(Address, usize)>,
    /// Rows inserted less rows deleted, as far as the table's count knows.
    rows_noted: u64,
    /// A stream of reads is under way, so a read buffer is held and perhaps a ring.
    streaming: bool,
    /// A page was taken meanwhile for which the batch should have waited, and will.
    owes_wait: bool,
    /// `Tally::grown_bytes`, likewise.
    grown_noted: u64,
    /// A place whose value would be longer than the table admits, and its length: the batch fails.
    too_long: Option<(usize, usize)>,
    outcome: &'a mut Outcome,
    tally: &'a mut Tally,
}

impl<'a, W: Work> Batch<'a, W> {
    pub(crate) fn new(
        core: &'a Core,
        (table, value_bytes): (TableId, usize),
        keys: &'a [u64],
        clock: Clock,
        work: &'a mut W,
        (scratch, outcome, tally): (&'a mut Scratch, &'a mut Outcome, &'a mut Tally),
    ) -> Self {
        if scratch.value.len() != value_bytes.div_ceil(8) {
            scratch.value.resize(value_bytes.div_ceil(8), 0);
        }
        // Padding is zero, whatever an earlier batch left.
        if let Some(last) = scratch.value.last_mut() {
            *last = 0;
        }
        // An earlier batch may have ended with an error.
        scratch.pending.clear();
        scratch.redo.clear();
        let (record_bytes, read_bytes) = match W::WIDTH {
            Width::Fixed => (record_bytes(value_bytes), record_bytes(value_bytes)),
            Width::Variable => variable::typical_bytes(core, table, value_bytes),
        };
        Batch {
            core,
            table,
            value_bytes,
            keys,
            clock,
            work,
            scratch,
            read_bytes,
            prefetch_bytes: (record_bytes / LINE_BYTES).min(LINES_AHEAD_MAX) * LINE_BYTES,
            last_byte: record_bytes - 1,
            spare: None,
            rows_noted: 0,
            streaming: false,
            owes_wait: false,
            grown_noted: 0,
            too_long: None,
            outcome,
            tally,
        }
    }

    /// Runs the whole batch.
    pub(crate) fn run(&mut self) -> Result<()> {
        if !matches!(W::MODE, Mode::Peek | Mode::Locate) {
            self.core.log.check_poison()?;
        }
        let mut start = 0;
        while start < self.keys.len() {
            let end = self.keys.len().min(start + CHUNK_KEYS);
            self.run_chunk(start, end)?;
            start = end;
            if start == self.keys.len() || self.scratch.pending.len() >= PENDING_KEYS_MAX {
                self.finish_pending()?;
            }
        }
        Ok(())
    }

    fn run_chunk(&mut self, start: usize, end: usize) -> Result<()> {
        let mut at = start;
        self.scratch.deferred.clear();
        while at < end {
            self.pinned(|batch, view| batch.pipeline(&mut at, end, view))?;
        }
        let mut deferred = std::mem::take(&mut self.scratch.deferred);
        let mut at = 0;
        while at < deferred.len() {
            self.pinned(|batch, view| batch.deferred_pipeline(&mut at, &deferred, view))?;
        }
        deferred.clear();
        self.scratch.deferred = deferred;
        if W::MODE == Mode::Locate {
            let places = self.scratch.pending.drain(..).map(|pending| pending.i);
            self.outcome.missing.extend(places);
            return Ok(());
        }
        self.make_room()
    }

    /// Reads what is set aside, and deals with the keys whose rows moved meanwhile.
    fn finish_pending(&mut self) -> Result<()> {
        if self.scratch.pending.is_empty() && self.scratch.redo.is_empty() {
            return Ok(());
        }
        // Ends: a key comes back only because another thread changed its row or its chain.
        while !(self.scratch.pending.is_empty() && self.scratch.redo.is_empty()) {
            self.read_pending()?;
            while let Some(i) = self.scratch.redo.pop() {
                let resident = self.tally.resident;
                self.pinned_until_done(|batch, view| batch.search(i as usize, view))?;
                // Promoting: what is in memory now was on disk a moment ago.
                self.tally.overtaken += self.tally.resident - resident;
                self.tally.resident = resident;
            }
        }
        self.make_room()
    }

    /// Lets the index grow with the rows that were inserted, and cache and log give way to it.
    fn make_room(&self) -> Result<()> {
        if self.tally.inserted > 0 {
            // Pinned, so that a checkpoint's pause keeps the index still.
            let guard = self.core.gate.enter();
            let growing = self.core.index.wants_growth().then(Instant::now);
            self.core.index.grow(&self.core.budget);
            drop(guard);
            self.core.cache.give_way(&self.core.log);
            self.core.log.give_way()?;
            if let Some(since) = growing {
                self.core.counters.growth_steps.note(since.elapsed());
            }
        }
        Ok(())
    }

    /// Runs `step` once under a pin; if it met a full page, turns it.
    fn pinned(
        &mut self,
        step: impl FnOnce(&mut Self, View<'_>) -> std::result::Result<(), PageFull>,
    ) -> Result<bool> {
        let guard = self.core.gate.enter();
        let view = self.core.log.view();
        let stopped = step(self, view);
        self.spare = None;
        self.note_rows();
        drop(guard);
        if W::WIDTH == Width::Variable {
            self.check_lengths()?;
        }
        match stopped {
            Ok(()) => Ok(true),
            Err(full) => self.turn_page(full).map(|()| false),
        }
    }

    /// Brings the table's count of rows up to date. Pinned, so that a checkpoint counts the rows that it
    /// holds.
    #[inline]
    fn note_rows(&mut self) {
        let rows = self.tally.inserted.wrapping_sub(self.tally.deleted);
        if rows != self.rows_noted {
            self.core.add_rows(self.table, rows.wrapping_sub(self.rows_noted));
            self.rows_noted = rows;
        }
        if W::WIDTH == Width::Variable {
            self.note_grown();
        }
    }

    #[cold]
    fn turn_page(&mut self, full: PageFull) -> Result<()> {
        // What gives space back does not wait for any.
        if !matches!(W::MODE, Mode::Delete | Mode::Compact) {
            if self.streaming {
                // Nor does who holds what compaction may need, to read; the stream ends soon, and then it waits.
                self.owes_wait |= self.core.must_await_space();
            } else {
                self.await_space()?;
            }
        }
        self.core.log.turn_page(full)
    }

    fn await_space(&self) -> Result<()> {
        match self.core.await_space() {
            // What was got comes to its end, or its counts would stand for ever: as many rows as are out.
            Err(Error::QuotaExceeded { .. }) if self.clock == Clock::Release => Ok(()),
            done => done,
        }
    }

    fn pinned_until_done(
        &mut self,
        mut step: impl FnMut(&mut Self, View<'_>) -> std::result::Result<(), PageFull>,
    ) -> Result<()> {
        while !self.pinned(&mut step)? {}
        Ok(())
    }

    /// Works on keys `at..end` with their cache misses overlapped; leaves `at` where it stopped.
    fn pipeline(
        &mut self,
        at: &mut usize,
        end: usize,
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        let index = self.core.index.outline();
        let mut group = Group::new();
        let start = *at;
        for start in (start..end).step_by(GROUP_KEYS) {
            let keys = &self.keys[start..end.min(start + GROUP_KEYS)];
            for (to, &key) in group.hashes.iter_mut().zip(keys) {
                *to = hash(self.table, key);
                index.prefetch(*to);
            }
            for ((to, &hash), _) in group.entries.iter_mut().zip(&group.hashes).zip(keys) {
                *to = index.first_match(hash);
                self.prefetch_record(*to, view);
            }
            for (k, (&entry, &key)) in group.entries.iter().zip(keys).enumerate() {
                if entry == Entry::BEYOND {
                    self.scratch.deferred.push((start + k) as u32);
                    continue;
                }
                if let Err(full) = self.step(start + k, key, entry, view) {
                    *at = start + k;
                    return Err(full);
                }
            }
        }
        *at = end;
        Ok(())
    }

    /// The keys whose slots are in overflow buckets, a few in a hundred: their records are prefetched
    /// all together, so that they too wait at once and not one after another.
    fn deferred_pipeline(
        &mut self,
        at: &mut usize,
        places: &[u32],
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        let mut group = Group::new();
        for places in places[*at..].chunks(GROUP_KEYS) {
            for (to, &i) in group.entries.iter_mut().zip(places) {
                let hash = hash(self.table, self.keys[i as usize]);
                *to = self.core.index.first_match_beyond(hash);
                self.prefetch_record(*to, view);
            }
            for (&entry, &i) in group.entries.iter().zip(places) {
                self.step(i as usize, self.keys[i as usize], entry, view)?;
                *at += 1;
            }
        }
        Ok(())
    }

    #[inline]
    fn prefetch_record(&self, entry: Entry, view: View<'_>) {
        if entry.is_nowhere() || !view.in_memory(entry.address()) {
            return;
        }
        let place = view.place(entry.address());
        let fetch = if matches!(W::MODE, Mode::Peek | Mode::Locate | Mode::Promote | Mode::Compact)
        {
            prefetch::read::<u8>
        } else {
            prefetch::write::<u8>
        };
        fetch(place);
        // The lines that the record touches, not one more: each costs a fill buffer. The last byte
        // stands for the last line; where that is the one before, asking twice costs nothing.
        let mut line = LINE_BYTES;
        while line < self.prefetch_bytes {
            fetch(place.wrapping_add(line));
            line += LINE_BYTES;
        }
        fetch(place.wrapping_add(self.last_byte));
    }

    /// Deals with one key whose first matching slot held `entry` a moment ago.
    #[inline(always)]
    fn step(
        &mut self,
        i: usize,
        key: u64,
        entry: Entry,
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        if !entry.is_empty() && view.in_memory(entry.address()) {
            // SAFETY: pinned, above the head; the address came from the index.
            let record = unsafe { view.record(entry.address()) };
            if record.is(self.table, key) {
                let step = if W::WIDTH == Width::Variable {
                    self.on_record(i, Place { entry, record }, view)?
                } else if W::MODE == Mode::Peek {
                    self.peek(i, record, view)
                } else if self.may_change_in_place(record, view) {
                    self.in_place(i, record)
                } else {
                    self.on_record(i, Place { entry, record }, view)?
                };
                if let Step::Done = step {
                    return Ok(());
                }
            }
        }
        self.search(i, view)
    }

    /// Looks for a key from the index on, through all chains that may hold it.
    #[inline(never)]
    fn search(&mut self, i: usize, mut view: View<'_>) -> std::result::Result<(), PageFull> {
        let hash = hash(self.table, self.keys[i]);
        // Ends: each further round means that another thread moved this row or changed this chain.
        loop {
            let mut candidates = std::mem::take(&mut self.scratch.candidates);
            self.core.index.candidates(hash, &mut candidates);
            let step = match self.walk(self.keys[i], &candidates, view) {
                Walk::Found(place) => self.on_record(i, place, view),
                Walk::Disk(entry, address, rest) => {
                    self.scratch.pending.push(Pending {
                        i: i as u32,
                        hash,
                        entry,
                        address,
                        begin: view.begin,
                        bytes: self.read_bytes,
                        rest,
                        done: false,
                        searched: candidates.clone(),
                    });
                    Ok(Step::Done)
                }
                Walk::Missing => self.on_missing(i, hash, &candidates),
            };
            self.scratch.candidates = candidates;
            if let Step::Done = step? {
                return Ok(());
            }
            // What was found may lie below the log's beginning by now (`publish`).
            view.begin = self.core.log.begin();
        }
    }

    /// Follows the chains as far as they are in memory.
    fn walk<'g>(&self, key: u64, candidates: &Candidates, view: View<'g>) -> Walk<'g> {
        let mut on_disk = Vec::new();
        for entry in candidates.iter() {
            let mut address = entry.address();
            // Ends: addresses go down along a chain, which ends at `NONE` or below the log's beginning.
            while address.raw() >= view.begin.max(1) {
                if !view.in_memory(address) {
                    on_disk.push((entry, address));
                    break;
                }
                // SAFETY: pinned, above the head; the address came from the index or a link.
                let record = unsafe { view.record(address) };
                if record.is(self.table, key) {
                    return Walk::Found(Place { entry, record });
                }
                address = record.link().previous();
            }
        }
        match on_disk.pop() {
            Some((entry, address)) => Walk::Disk(entry, address, on_disk),
            None => Walk::Missing,
        }
    }

    /// Space for a record with a value of `value_bytes`, its header written and marked invalid.
    fn begin_record(
        &mut self,
        key: u64,
        value_bytes: usize,
    ) -> std::result::Result<RecordRef<'a>, PageFull> {
        let bytes = record_bytes(value_bytes);
        let address = match self.spare.take() {
            Some((address, spare_bytes)) if spare_bytes == bytes => address,
            _ => {
                let address = self.core.log.allocate(bytes)?;
                self.tally.appended += 1;
                address
            }
        };
        // SAFETY: pinned; the space was allocated under this pin, so it is above the head, and it is
        // this thread's own until it is published.
        let record = unsafe { self.core.log.view().record(address) };
        record.begin(self.table, key, value_bytes);
        Ok(record)
    }

    /// Keeps an unpublished record's space for the next one.
    fn abandon(&mut self, record: RecordRef<'_>) {
        record.set_link(record.link().with_invalid(true));
        self.spare = Some((record.address(), record.shape().record_bytes()));
    }

    /// A key that is in none of the `searched` chains.
    fn on_missing(
        &mut self,
        i: usize,
        hash: u64,
        searched: &Candidates,
    ) -> std::result::Result<Step, PageFull> {
        let Some(value_bytes) = self.make_missing_value(i) else {
            self.note_missing(i);
            return Ok(Step::Done);
        };
        let record = self.begin_record(self.keys[i], value_bytes)?;
        record.store_value(&self.scratch.value[..value_bytes.div_ceil(8)]);
        self.finish_record(record, self.clock.after(0), false);
        let link = |previous| record.set_link(record.link().with_previous(previous));
        match self.core.index.insert(&self.core.budget, hash, searched, record.address(), link) {
            Inserted::Yes => {
                self.note_inserted(record_bytes(value_bytes));
                Ok(Step::Done)
            }
            Inserted::Changed => {
                self.abandon(record);
                Ok(Step::Moved)
            }
        }
    }

    /// Lets the caller fill a new value in the scratch; returns its length, or none if the row is to stay
    /// missing.
    fn make_missing_value(&mut self, i: usize) -> Option<usize> {
        match W::MODE {
            Mode::Peek | Mode::Delete | Mode::Promote | Mode::Compact | Mode::Locate => None,
            Mode::Get | Mode::Update | Mode::Put => {
                let value_bytes = self.next_value_bytes(i, None)?;
                self.scratch.value[..value_bytes.div_ceil(8)].fill(0);
                let value = bytes_of(&mut self.scratch.value, value_bytes);
                self.work.insert(i, value).then_some(value_bytes)
            }
        }
    }

    /// Bytes of a row's next value; none if the table does not admit it.
    #[inline]
    fn next_value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> Option<usize> {
        match W::WIDTH {
            Width::Fixed => Some(self.value_bytes),
            Width::Variable => self.asked_value_bytes(i, old),
        }
    }

    /// Counts a row that came to be, with a record of so many bytes.
    fn note_inserted(&mut self, record_bytes: usize) {
        self.tally.inserted += 1;
        self.tally.missing += 1;
        self.note_replaced(0, record_bytes);
    }

    /// Counts what a row's record is longer than the one before; 0 stands for no row.
    #[inline]
    fn note_replaced(&mut self, old_bytes: usize, new_bytes: usize) {
        if W::WIDTH == Width::Variable {
            let grown = (new_bytes as u64).wrapping_sub(old_bytes as u64);
            self.tally.grown_bytes = self.tally.grown_bytes.wrapping_add(grown);
        }
    }

    /// The first use of a row that had been promoted to `from`.
    fn note_promoted_used(&mut self, from: Address) {
        let tally = &mut *self.tally;
        tally.promoted_used += 1;
        tally.promoted_used_from =
            Some(tally.promoted_used_from.map_or(from, |oldest| oldest.min(from)));
    }

    fn note_missing(&mut self, i: usize) {
        if W::MODE == Mode::Compact {
            return;
        }
        self.tally.missing += 1;
        if W::MODE != Mode::Locate {
            self.outcome.missing.push(i as u32);
        }
    }

    fn finish_record(&self, record: RecordRef<'_>, outstanding: u32, tombstone: bool) {
        let clock = crate::clock::ClockWord::at_rest(outstanding);
        record.finish(clock.with_promoted(W::MODE == Mode::Promote), tombstone);
    }
}

/// Where a search through memory ended.
enum Walk<'g> {
    Found(Place<'g>),
    /// Not in memory; it goes on on disk, in this chain at this address, and in the others listed.
    Disk(Entry, Address, Vec<(Entry, Address)>),
    Missing,
}

/// The first `count` bytes of some words.
fn bytes_of(words: &mut [u64], count: usize) -> &mut [u8] {
    let available = size_of_val(words);
    assert!(count <= available);
    // SAFETY: any initialised words are valid bytes, in bounds by the assertion; the borrow carries over.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), count) }
}
