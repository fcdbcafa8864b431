//! Running a batch.
//!
//! **Problem.** One DRAM access takes as long as hundreds of instructions, one disk read as long as a
//! thousand DRAM accesses. Taken one after another, as single-key stores do, they add up.
//!
//! **Approach.** A batch goes through in chunks, a chunk in groups. For a group of keys the buckets are
//! prefetched, then all are probed and their records' headers prefetched, then the records' other lines, then
//! each row is worked on: many misses are in flight at once, and each stage is a loop so short that the
//! processor looks many keys ahead. What bounds it is the page walk: a prefetch that misses the TLB can't
//! retire before its walk has ended, so only those few keys overlap whose instructions fit the reorder buffer
//! (some 500). Hence few instructions a key count more than anything: whatever a batch can look up once
//! (`View`, `Outline`, the record's length in lines) it does, and a record's first line, which needs the walk,
//! is asked for in another loop than the rest, which need fill buffers. The next group's buckets are asked for
//! before those rest: their walks pass while the fill buffers are what is short. Measured on 10 million rows of
//! 64 bytes, all of a record in one loop, beside a bare loop over the same buckets and records that took 46 ns a
//! row: groups of 32 took 60, groups of 16 took 68, stages of different groups interleaved 60 to 62, keys one by
//! one 67 to 73. Measured on 3 million rows of 512 bytes, beside a bare loop of about 105 ns: all of a record in
//! one loop took 151 ns a get, this 145; with a put of the same row 294 and 275. (Fewer lines ahead, groups of 8
//! and 16, keys one by one, and prefetches to the second level only were no faster.) Of a get's time
//! there, with its buckets in a stage in front, those took 11 ns, the probes with the records' first lines 42, the
//! other lines 55, the copies 32, and the 7 keys in 100 that are in overflow buckets 13.
//!
//! Keys whose rows are on disk are set aside; when the batch is through, they go to the device as one stream of
//! reads (`disk`). Everything in memory happens under one pin of the epoch; whatever may wait (a page to turn, the
//! device) happens between pins, and the chunk then goes on where it stopped. A single operation is a batch of one.

mod disk;
mod new_record;
mod reads;
mod row;
pub(crate) mod scratch;
mod single;
mod stages;
mod succession;
mod tally;
mod variable;
mod work;

use crate::engine::batch::scratch::CHUNK_KEYS;
use scratch::{PENDING_KEYS_MAX, Pending};
pub(crate) use scratch::{Scratch, give_back_scratch, take_scratch};
pub(crate) use single::{Hit, try_single};
pub(crate) use tally::Tally;
pub(crate) use work::{
    Announce, Delete, DeleteIf, Effect, MoveChained, Promote, PromoteUnused, ReadClock, Retain,
    Room, Work, is_variable,
};

use std::time::Instant;

use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::index::{Entry, Look};
use crate::log::view::View;
use crate::log::{PageFull, TurnFor};
use crate::operation::{Clock, Outcome, Shortage, Width};
use crate::process::cpu_time;
use crate::record::address::{Address, TableId};
use crate::record::layout::{RecordRef, record_bytes};

/// Keys that go through a stage together. Measured on 64-byte rows, 10 million of them: 32 and 64 are alike,
/// fewer hide less latency, more fall out of the first-level cache.
const GROUP_KEYS: usize = 32;
/// Cache lines of a record that are prefetched at most; the processor streams the rest.
const LINES_AHEAD_MAX: usize = 8;
const LINE_BYTES: usize = 64;
/// A growth step's processor time is taken from so many inserted rows on: asking costs as much as a row.
const CPU_TIMED_ROWS_MIN: u64 = 64;

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

/// Which rows a batch works on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) table: TableId,
    /// The length of the table's values, or of the longest one.
    pub(crate) value_bytes: usize,
}

/// What a batch works with.
pub(crate) struct BatchMemory<'a> {
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) outcome: &'a mut Outcome,
    pub(crate) tally: &'a mut Tally,
}

impl Core {
    /// Runs one of the store's own jobs over a table's rows.
    ///
    /// # Errors
    /// Those of [`Store::execute`](crate::Store::execute).
    pub(crate) fn run_job<W: Work>(
        &self,
        table: TableId,
        keys: &[u64],
        work: &mut W,
        memory: BatchMemory<'_>,
    ) -> Result<()> {
        let width = self.width(table)?;
        let rows = Rows { table, value_bytes: self.value_bytes(table, width)? };
        self.run_job_over(width, rows, keys, work, memory)
    }

    /// As [`run_job`](Self::run_job), for a table that has been looked up. Here a table's width chooses the code.
    ///
    /// # Errors
    /// Those of [`Store::execute`](crate::Store::execute).
    pub(crate) fn run_job_over<W: Work>(
        &self,
        width: Width,
        rows: Rows,
        keys: &[u64],
        work: &mut W,
        memory: BatchMemory<'_>,
    ) -> Result<()> {
        match width {
            Width::Fixed => self.run_batch::<W, false>(rows, keys, Clock::Keep, work, memory),
            Width::Variable => self.run_batch::<W, true>(rows, keys, Clock::Keep, work, memory),
        }
    }

    /// Runs a batch over a table that has been looked up.
    ///
    /// # Errors
    /// Those of [`Store::execute`](crate::Store::execute).
    #[inline]
    pub(crate) fn run_batch<W: Work, const VARIABLE: bool>(
        &self,
        rows: Rows,
        keys: &[u64],
        clock: Clock,
        work: &mut W,
        memory: BatchMemory<'_>,
    ) -> Result<()> {
        Batch::<W, VARIABLE>::new(self, rows, keys, clock, work, memory).run()
    }
}

/// A batch on its way.
///
/// `VARIABLE`: the table's values differ in length.
pub(crate) struct Batch<'a, W, const VARIABLE: bool> {
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
    /// Rows inserted less rows deleted, as far as the table's count knows.
    rows_noted: u64,
    /// A stream of reads is under way, so a read buffer is held and perhaps a ring.
    streaming: bool,
    /// A page was taken meanwhile for which the batch should have waited, and will.
    owes_wait: bool,
    /// The program has ended a wait of this batch, which goes on to its end.
    waits_no_more: bool,
    /// The table is known to have records in the log.
    written_noted: bool,
    /// `Tally::grown_bytes`, likewise.
    grown_noted: u64,
    /// `Tally::appended` when rows were last `retain`ed.
    appended_noted: u64,
    /// The same when a page was last turned; none before the first.
    appended_at_turn: Option<u64>,
    /// A place whose value would be longer than the table admits, and its length: the batch fails.
    too_long: Option<(usize, usize)>,
    outcome: &'a mut Outcome,
    tally: &'a mut Tally,
}

impl<'a, W: Work, const VARIABLE: bool> Batch<'a, W, VARIABLE> {
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };

    fn new(
        core: &'a Core,
        rows: Rows,
        keys: &'a [u64],
        clock: Clock,
        work: &'a mut W,
        memory: BatchMemory<'a>,
    ) -> Self {
        let Rows { table, value_bytes } = rows;
        let BatchMemory { scratch, outcome, tally } = memory;
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
        let (record_bytes, read_bytes) = if VARIABLE {
            variable::typical_bytes(core, table, value_bytes)
        } else {
            (record_bytes(value_bytes), record_bytes(value_bytes))
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
            rows_noted: 0,
            streaming: false,
            owes_wait: false,
            waits_no_more: false,
            written_noted: false,
            grown_noted: 0,
            appended_noted: 0,
            appended_at_turn: None,
            too_long: None,
            outcome,
            tally,
        }
    }

    /// Runs the whole batch.
    fn run(&mut self) -> Result<()> {
        if W::APPENDS {
            self.core.log.check_poison()?;
        }
        if self.clock != Clock::Release
            && self.work.shortage() == Shortage::Whole
            && self.core.was_short_of_room()
        {
            self.core.await_space()?;
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
            self.pinned(|batch, view| batch.run_stages(&mut at, end, view))?;
        }
        let mut deferred = std::mem::take(&mut self.scratch.deferred);
        let mut at = 0;
        while at < deferred.len() {
            self.pinned(|batch, view| batch.run_deferred_stages(&mut at, &deferred, view))?;
        }
        deferred.clear();
        self.scratch.deferred = deferred;
        if W::IN_MEMORY {
            for pending in self.scratch.pending.drain(..) {
                self.work.elsewhere(pending.i as usize);
            }
        }
        if !W::APPENDS {
            return Ok(());
        }
        self.make_room();
        self.retain();
        Ok(())
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
        self.make_room();
        self.retain();
        Ok(())
    }

    /// Has rows looked after that are about to leave memory, in proportion to what the batch has appended.
    fn retain(&mut self) {
        // What gives space back takes none, and compaction has rows of its own to move.
        if W::ROOM != Room::Awaited {
            return;
        }
        let appended = self.tally.appended - self.appended_noted;
        if appended > 0 {
            self.appended_noted = self.tally.appended;
            self.core.retain(appended);
        }
    }

    /// Lets the index grow with the rows that were inserted. What it took, the cache gives up now, and the log
    /// when its writer comes to it: nobody waits.
    fn make_room(&self) {
        if self.tally.inserted == 0 {
            return;
        }
        if self.core.index.wants_growth() {
            // Pinned, so that a checkpoint's pause keeps the index still.
            let _guard = self.core.gate.enter();
            let view = self.core.log.view();
            let look = |address: Address| {
                if address.raw() < view.begin {
                    return Look::Nowhere;
                }
                if !view.in_memory(address) {
                    return Look::Unseen;
                }
                // SAFETY: pinned, above the head; the address came from the index or a link.
                let record = unsafe { view.record(address) };
                let hash = self.core.key_hash.of(record.shape().table(), record.key());
                Look::Record(hash, record.link().previous())
            };
            let timed = self.tally.inserted >= CPU_TIMED_ROWS_MIN;
            let began = Instant::now();
            let ran = timed.then(cpu_time::of_this_thread);
            if self.core.index.grow(&self.core.budget, look) {
                self.core.counters.growth_steps.note(began.elapsed());
                if let Some(before) = ran {
                    let ran = cpu_time::of_this_thread().saturating_sub(before);
                    self.core.counters.growth_steps_cpu_us_max.raise(ran.as_micros() as u64);
                }
            }
        }
        self.core.index.wait_for_image();
        if self.core.budget.is_over() {
            self.core.cache.give_way(&self.core.log);
            self.core.log.allowance_changed();
        }
    }

    /// Runs `step` once under a pin; if it met a full page, turns it.
    fn pinned(
        &mut self,
        step: impl FnOnce(&mut Self, View<'_>) -> std::result::Result<(), PageFull>,
    ) -> Result<bool> {
        let guard = self.core.gate.enter();
        // The table may have been dropped while this batch was not pinned. After this look, no
        // other table gets its number before the pin has gone (`engine::numbers`).
        if self.core.value_bytes_if(self.table, Self::WIDTH).is_none() {
            drop(guard);
            return Err(self.core.no_such_table(self.table));
        }
        let view = self.core.log.view();
        let stopped = step(Counting(self).0, view);
        drop(guard);
        // A batch that retains may be within one that reads, which waits when it is through.
        if !self.streaming && W::APPENDS && W::ROOM != Room::Spare {
            self.core.index.wait_for_image();
        }
        if VARIABLE {
            self.check_lengths()?;
        }
        match stopped {
            Ok(()) => Ok(true),
            Err(full) => self.turn_page(full).map(|()| false),
        }
    }

    #[cold]
    fn turn_page(&mut self, full: PageFull) -> Result<()> {
        match W::ROOM {
            Room::Ending => return self.core.log.turn_page(full, TurnFor::Ending),
            Room::Compaction => return self.core.log.turn_page(full, TurnFor::Space),
            Room::Spare => {
                self.core.check_room()?;
                return self.core.log.turn_page(full, TurnFor::Rows);
            }
            // The batch holds a ring and a read buffer, which compaction may need. It waits when the stream has ended.
            Room::Awaited if self.streaming => self.owes_wait |= self.core.must_await_space(),
            Room::Awaited => self.await_space()?,
        }
        // Not again because of what that has appended: a batch goes on whatever stays.
        if self.appended_at_turn.replace(self.tally.appended) != Some(self.tally.appended) {
            self.core.retain_before_turn();
        }
        let turn_for = if self.goes_on() { TurnFor::Ending } else { TurnFor::Rows };
        self.core.log.turn_page(full, turn_for)
    }

    /// True if a batch that has begun completes although the disk lacks room. The end of a lease must complete, or its
    /// counts would stand for ever. An update must complete, because the caller can neither take half of it back nor
    /// repeat it. Such a batch exceeds the limit by its own rows at most.
    fn goes_on(&self) -> bool {
        self.clock == Clock::Release || self.work.shortage() != Shortage::Stops
    }

    fn await_space(&mut self) -> Result<()> {
        if self.waits_no_more {
            return self.core.log.check_poison();
        }
        match self.core.await_space() {
            Err(Error::QuotaExceeded { .. } | Error::DiskFull { .. }) if self.goes_on() => Ok(()),
            Err(Error::Interrupted { .. }) if self.goes_on() => {
                self.waits_no_more = true;
                Ok(())
            }
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
}

/// Brings the count of rows up to date when a step of a batch is over, pinned still, and when a callback unwinds out
/// of it.
struct Counting<'a, 'b, W: Work, const VARIABLE: bool>(&'a mut Batch<'b, W, VARIABLE>);

impl<W: Work, const VARIABLE: bool> Drop for Counting<'_, '_, W, VARIABLE> {
    fn drop(&mut self) {
        self.0.note_rows();
    }
}

/// The first `count` bytes of some words.
fn bytes_of(words: &mut [u64], count: usize) -> &mut [u8] {
    let available = size_of_val(words);
    assert!(count <= available);
    // SAFETY: any initialised words are valid bytes, in bounds by the assertion; the borrow carries over.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), count) }
}
