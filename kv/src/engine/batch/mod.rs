//! How the store runs a batch: one operation on many keys.
//!
//! **Words.** The *tail* is the end of the log, where new records are appended. The newest pages in
//! memory are the *mutable region*, where rows change in place. The older pages in memory are the
//! *read-only region*. A row's *clock* counts its outstanding Gets, which still await an update. A
//! *promotion* brings a row to mutable memory before an operation needs it. A *tombstone* is the
//! record of a deleted row.
//!
//! **Problem.** One access to memory takes as long as hundreds of instructions, and one read of the
//! drive as long as a thousand accesses to memory. A store that handles one key after another waits
//! for each of these accesses.
//!
//! **Approach.** A batch handles its keys in chunks of 1,024 keys, and each chunk in groups of 32
//! keys. A group passes four stages:
//! 1. Hash the keys, and prefetch the buckets of the index.
//! 2. Probe the buckets, and then prefetch the first line of each record.
//! 3. Prefetch the other lines of the records.
//! 4. Work on each row.
//!
//! Each stage consists of short loops, so the processor has many cache misses in flight at once.
//! The stages of successive groups alternate: group 2 passes the second stage, group 3 the first
//! stage, group 2 the third stage, and group 1 the fourth stage. So the records of a group arrive
//! while the batch works on the rows of the group before it. The page walks for the buckets overlap
//! with the loop that uses the fill buffers.
//!
//! **What limits the speed.** A prefetch that misses the TLB cannot retire before its page walk has
//! ended. So the cache misses of two keys overlap only if both keys' instructions fit the reorder
//! buffer (about 500 instructions). Fewer instructions a key let more keys overlap. Therefore the
//! loop that prefetches first lines does nothing else. The other lines of a record need fill
//! buffers and no page walk, so another loop prefetches them. The batch looks up once the
//! values that hold for all keys (`View`, `Outline`, the number of lines of a record). The work on
//! the usual row is inlined into one loop (`stages::step_in_place`), because the instructions of a
//! row take about as much time as its cache misses.
//!
//! **Hints.** If the operation knows the addresses of its rows, the batch does not search the index
//! (`hinted`).
//!
//! **Rows on disk.** The batch sets aside the keys whose rows are on disk. After it has worked on
//! the other keys, it reads these rows as one stream (`disk`). The batch pins the epoch while it
//! works in memory. It releases the pin before it waits for a new page of the log or for the drive.
//! The chunk then continues at the first key that is not completed. A single operation is a batch
//! of one key.
//!
//! **The path of a batch**, from the store to the log:
//!
//! | step | place |
//! |---|---|
//! | `Store::execute` takes an operation; a single key of fixed width takes the short path | `single` |
//! | `Core::run` counts the batch and wakes the threads that wait for its rows | this file |
//! | `Batch::run` divides the keys into chunks, pins, and makes room | this file |
//! | the stages find the record of each key: from the index, or from a hint | `stages`, `hinted` |
//! | the work on a record in memory | `row` |
//! | a row that is not in mutable memory gets a new record at the tail | `succession` |
//! | a key without a row gets one | `new_record` |
//! | the rows on disk: what is read, and how it is divided into reads | `disk`, `reads` |
//! | the keys that the log does not have, in the cold tier | `cold` |
//!
//! `work` says what a batch does, `scratch` has the memory that a thread keeps, `tally` the counts,
//! and `variable` the rows of variable width.

mod cold;
mod disk;
mod hinted;
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
pub(crate) use scratch::Scratch;
use scratch::{PENDING_KEYS_MAX, Pending, give_back_scratch, take_scratch};
pub(crate) use tally::Tally;
pub(crate) use work::{
    Announce, Delete, DeleteIf, Effect, MoveChained, Promote, PromoteUnused, ReadClock, Retain,
    Room, SeenClock, Work,
};

use std::time::Instant;

use crate::engine::core::Core;
use crate::engine::tables::no_such_table;
use crate::engine::waiters::Waiters;
use crate::error::{Error, Result};
use crate::index::{Entry, Look};
use crate::log::view::View;
use crate::log::{PageFull, TurnFor};
use crate::memory::cpu_hint::RecordLines;
use crate::operation::{Clock, Operation, Outcome, Shortage, Width, check_batch};
use crate::process::cpu_time;
use crate::record::address::{Address, TableId};
use crate::record::layout::{HEADER_BYTES, RecordRef, record_bytes};

/// Number of keys that pass a stage together. A smaller group hides less latency. If a batch
/// prefetches into the first-level cache, the records of two larger groups would not fit that
/// cache.
const GROUP_KEYS: usize = 32;
/// A batch measures the processor time that it takes to grow the index only if it has inserted at
/// least this number of rows. Reading the processor time costs as much as one row.
const CPU_TIMED_ROWS_MIN: u64 = 64;

/// The result of one step of a search.
enum Step {
    /// The key is completed, or set aside.
    Done,
    /// Another thread moved the row during the search. The caller searches again.
    Moved,
}

/// A row in memory, with the index entry whose chain has it.
#[derive(Clone, Copy)]
struct Place<'g> {
    entry: Entry,
    record: RecordRef<'g>,
}

/// The table whose rows a batch works on.
#[derive(Debug, Clone, Copy)]
struct Rows {
    table: TableId,
    width: Width,
    /// The length of the table's values in bytes; the largest length if the lengths vary.
    value_bytes: usize,
}

/// A guard that wakes the threads that wait for rows of this batch when it is dropped. The guard
/// does so even if the batch ends with an error or a panic, because such a batch may have released
/// rows.
struct Released<'a> {
    waiters: &'a Waiters,
    table: TableId,
    keys: &'a [u64],
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.waiters.released(self.table.number, self.keys);
    }
}

impl Core {
    /// Runs `work` over a batch of keys. Adds the batch's counts to `tally`, which is empty, and to
    /// the counters. Then wakes the threads that wait for the rows that the batch released.
    ///
    /// # Errors
    /// The errors of [`Store::execute`](crate::Store::execute).
    #[inline(never)]
    pub(crate) fn run<W: Work>(
        &self,
        table: TableId,
        keys: &[u64],
        clock: Clock,
        work: &mut W,
        tally: &mut Tally,
    ) -> Result<Outcome> {
        // Checked first, because the guard below reads all keys when it is dropped.
        check_batch(keys.len())?;
        let rows = self.rows_of::<W>(table)?;
        let releases = clock == Clock::Release || W::EFFECT == Effect::Delete;
        let _released = releases.then(|| Released { waiters: &self.waiters, table, keys });
        let mut scratch = take_scratch();
        let outcome = self.run_over(rows, keys, clock, work, &mut scratch, tally);
        give_back_scratch(scratch);
        tally.add_to::<W>(&self.counters, keys.len() as u64);
        outcome
    }

    /// Runs `work` over a batch of keys as a part of a larger job, which counts the batch.
    ///
    /// # Errors
    /// The errors of [`Store::execute`](crate::Store::execute).
    pub(crate) fn run_within<W: Work>(
        &self,
        table: TableId,
        keys: &[u64],
        work: &mut W,
        scratch: &mut Scratch,
        tally: &mut Tally,
    ) -> Result<Outcome> {
        self.run_over(self.rows_of::<W>(table)?, keys, Clock::Keep, work, scratch, tally)
    }

    /// Looks a table up for `W`.
    fn rows_of<W: Work>(&self, table: TableId) -> Result<Rows> {
        let width = W::WIDTH.map_or_else(|| self.tables.width(table), Ok)?;
        Ok(Rows { table, width, value_bytes: self.tables.value_bytes(table, width)? })
    }

    #[inline]
    fn run_over<W: Work>(
        &self,
        rows: Rows,
        keys: &[u64],
        clock: Clock,
        work: &mut W,
        scratch: &mut Scratch,
        tally: &mut Tally,
    ) -> Result<Outcome> {
        // The batch fills this value through a reference. Peeks are one or two percent slower if
        // the batch owns it.
        let mut outcome = Outcome::default();
        let lent = Lent { scratch, outcome: &mut outcome, tally };
        // The constants keep the compiler from making the variant that no operation uses.
        let done = if const { matches!(W::WIDTH, Some(Width::Fixed)) } {
            Batch::<W, false>::new(self, rows, keys, clock, work, lent).run()
        } else if const { matches!(W::WIDTH, Some(Width::Variable)) }
            || rows.width == Width::Variable
        {
            Batch::<W, true>::new(self, rows, keys, clock, work, lent).run()
        } else {
            Batch::<W, false>::new(self, rows, keys, clock, work, lent).run()
        };
        done.map(|()| outcome)
    }
}

/// Memory that is lent to a batch.
struct Lent<'a> {
    scratch: &'a mut Scratch,
    outcome: &'a mut Outcome,
    tally: &'a mut Tally,
}

/// A running batch.
///
/// `VARIABLE` is true if the table's values differ in length.
pub(crate) struct Batch<'a, W, const VARIABLE: bool> {
    core: &'a Core,
    table: TableId,
    /// The length of the table's values in bytes; the largest length if the lengths vary.
    value_bytes: usize,
    keys: &'a [u64],
    clock: Clock,
    work: &'a mut W,
    scratch: &'a mut Scratch,
    /// Number of bytes that the first read of a record on disk brings.
    read_bytes: usize,
    /// Says which cache lines of a record the batch prefetches.
    lines: RecordLines,
    /// The part of the batch's row count (rows inserted minus rows deleted) that the table's row
    /// count already includes.
    rows_noted: u64,
    /// The part of `Tally::marked` that the table's count of uncounted versions already includes.
    marked_noted: u64,
    /// True while the batch reads a stream. The batch then holds a read buffer, and perhaps a ring
    /// of the device.
    streaming: bool,
    /// True if the batch took a page during a stream although there was no room. The batch waits
    /// for room after the stream has ended.
    owes_wait: bool,
    /// True if the program has ended a wait of this batch. The batch then completes without waiting
    /// again.
    waits_no_more: bool,
    /// True if this batch has marked its table as a table with records in the log.
    written_noted: bool,
    /// The part of `Tally::grown_bytes` that the table's byte count already includes.
    grown_noted: u64,
    /// The value of `Tally::appended` when the batch last looked for rows to `retain`.
    appended_noted: u64,
    /// The value of `Tally::appended` when the batch last turned a page (began a new page at the
    /// log's tail). `None` before the first turn.
    appended_at_turn: Option<u64>,
    /// Index and length of a value that is longer than the table admits. The batch then fails.
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
        Lent { scratch, outcome, tally }: Lent<'a>,
    ) -> Self {
        let Rows { table, value_bytes, .. } = rows;
        if scratch.value.len() != value_bytes.div_ceil(8) {
            scratch.value.resize(value_bytes.div_ceil(8), 0);
        }
        // The padding after the value must be zero. An earlier batch may have left other bytes
        // there.
        if let Some(last) = scratch.value.last_mut() {
            *last = 0;
        }
        // An earlier batch that ended with an error may have left keys here.
        scratch.pending.clear();
        scratch.redo.clear();
        scratch.cold.clear();
        let (record_bytes, read_bytes) = if VARIABLE {
            variable::typical_bytes(core, table, value_bytes)
        } else {
            (record_bytes(value_bytes), record_bytes(value_bytes))
        };
        let reads_headers_alone = match W::EFFECT {
            Effect::Locate | Effect::Touch => true,
            Effect::Get => !work.caller().reads_values(),
            Effect::Peek | Effect::Update | Effect::Put | Effect::Delete | Effect::Move => false,
        };
        let prefetched_bytes = if reads_headers_alone { HEADER_BYTES } else { record_bytes };
        Batch {
            core,
            table,
            value_bytes,
            keys,
            clock,
            work,
            scratch,
            read_bytes,
            lines: RecordLines::of(prefetched_bytes),
            rows_noted: 0,
            marked_noted: 0,
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
            && self.work.caller().shortage() == Shortage::Whole
            && self.core.headroom().was_short()
        {
            self.core.headroom().await_space()?;
        }
        let mut start = 0;
        while start < self.keys.len() {
            let end = self.keys.len().min(start + CHUNK_KEYS);
            if W::APPENDS && W::ROOM == Room::Awaited && self.core.headroom().is_far_ahead() {
                self.await_merges()?;
            }
            self.run_chunk(start, end)?;
            start = end;
            let set_aside = self.scratch.pending.len() + self.scratch.cold.len();
            if start == self.keys.len() || set_aside >= PENDING_KEYS_MAX {
                self.finish_pending()?;
            }
        }
        Ok(())
    }

    fn run_chunk(&mut self, start: usize, end: usize) -> Result<()> {
        let mut at = start;
        self.scratch.deferred.clear();
        while at < end {
            self.pinned(|batch, view| match batch.has_hints(at..end, view) {
                true => batch.run_hinted(&mut at, end, view),
                false => batch.run_stages(&mut at, end, view),
            })?;
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
            self.locate_cold();
        }
        if !W::APPENDS {
            return Ok(());
        }
        self.make_room();
        self.retain();
        Ok(())
    }

    /// Reads the rows of the keys that the batch has set aside, and searches again for the keys
    /// whose rows moved.
    fn finish_pending(&mut self) -> Result<()> {
        if !self.scratch.has_set_aside() {
            return Ok(());
        }
        // The loop ends: a key is searched again only if another thread has changed its row or its
        // chain. So in each round some thread of the program makes progress.
        while self.scratch.has_set_aside() {
            self.read_pending()?;
            // After the searches of the log, so that the view has each row that they missed.
            self.read_cold()?;
            while let Some(i) = self.scratch.redo.pop() {
                let resident = self.tally.resident;
                self.pinned_until_done(|batch, view| batch.search(i as usize, view))?;
                // `overtaken` counts the promoted rows that another operation brought to memory
                // during the read.
                self.tally.overtaken += self.tally.resident - resident;
                self.tally.resident = resident;
            }
        }
        self.make_room();
        self.retain();
        Ok(())
    }

    /// Looks for rows to retain among the rows that are evicted next. The number of rows inspected
    /// is proportional to the number of records that the batch appended.
    fn retain(&mut self) {
        // Only a caller's batch retains rows. A job that frees space must not use space for
        // retained rows, and compaction moves the current rows anyway.
        if W::ROOM != Room::Awaited {
            return;
        }
        let appended = self.tally.appended - self.appended_noted;
        if appended > 0 {
            self.appended_noted = self.tally.appended;
            self.core.retention.retain(self.core, appended);
        }
    }

    /// Lets the index grow after the batch has inserted rows. If the memory budget is then
    /// exceeded, the read cache releases memory at once. The log's writer releases memory of the
    /// log when it evicts the next page, and no batch waits for that.
    fn make_room(&self) {
        if self.tally.inserted + self.tally.blind == 0 {
            return;
        }
        if self.core.index.wants_growth() {
            // A checkpoint can pause the gate. While this pin is held, no pause is in effect, so
            // the checkpoint does not see the index change.
            let _guard = self.core.gate.enter();
            let view = self.core.log.view();
            let look = |address: Address| {
                if address.raw() < view.begin {
                    return Look::Nowhere;
                }
                if !view.in_memory(address) {
                    return Look::Unseen;
                }
                // SAFETY: the duty is to pass the address of a complete record in memory. The
                // thread is pinned, the address is above the head, and it came from the index or
                // from a link.
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

    /// Runs `step` once under a pin. If `step` met a full page, turns the page after the pin is
    /// released.
    fn pinned(
        &mut self,
        step: impl FnOnce(&mut Self, View<'_>) -> std::result::Result<(), PageFull>,
    ) -> Result<bool> {
        let guard = self.core.gate.enter();
        // Another thread may have dropped the table while this batch was not pinned. If the table
        // still exists here, no other table gets its number before this pin is released
        // (`engine::tables::numbers`).
        if self.core.tables.value_bytes_if(self.table, Self::WIDTH).is_none() {
            drop(guard);
            return Err(no_such_table(self.table));
        }
        let view = self.core.log.view();
        let stopped = step(Counting(self).0, view);
        drop(guard);
        // A batch that reads a stream does not wait here, because it holds a read buffer. A batch
        // with `Room::Spare` copies retained rows, and may run within a batch that reads a stream.
        // The outer batch waits here after its stream has ended.
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
                self.core.headroom().check()?;
                return self.core.log.turn_page(full, TurnFor::Rows);
            }
            // The batch holds a ring and a read buffer, which compaction may need. So the batch
            // notes the wait here, and waits after the stream has ended.
            Room::Awaited if self.streaming => {
                self.owes_wait |= self.core.headroom().must_await_space()
            }
            Room::Awaited => self.await_space()?,
        }
        // If the batch has appended no record of its own since it last began a page, retained rows
        // have filled that page. The batch then begins the next page without retaining more rows.
        if self.appended_at_turn.replace(self.tally.appended) != Some(self.tally.appended) {
            self.core.retention.retain_before_turn(self.core);
        }
        let turn_for = if self.goes_on() { TurnFor::Ending } else { TurnFor::Rows };
        self.core.log.turn_page(full, turn_for)
    }

    /// True if a batch that has begun must complete even if the disk lacks room. The end of a lease
    /// must complete, because otherwise its Gets would stay outstanding forever. An update must
    /// complete, because the caller can neither undo nor repeat half of it. Such a batch exceeds
    /// the available room by at most its own rows.
    fn goes_on(&mut self) -> bool {
        self.clock == Clock::Release || self.work.caller().shortage() != Shortage::Stops
    }

    fn await_space(&mut self) -> Result<()> {
        if self.waits_no_more {
            return self.core.log.check_poison();
        }
        match self.core.headroom().await_space() {
            Err(Error::QuotaExceeded { .. }) if self.goes_on() => Ok(()),
            Err(error) if error.is_shortage() && self.goes_on() => Ok(()),
            Err(Error::Interrupted { .. }) if self.goes_on() => {
                self.waits_no_more = true;
                Ok(())
            }
            done => done,
        }
    }

    /// Waits for spills and merges, which are far behind. The batch may need no further page, so a
    /// lack of room is no error here: the next page turn finds it.
    #[cold]
    fn await_merges(&mut self) -> Result<()> {
        match self.await_space() {
            Err(Error::QuotaExceeded { .. }) => Ok(()),
            Err(error) if error.is_shortage() => Ok(()),
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

/// A guard that brings the table's row count up to date when it is dropped. A step of the batch
/// drops the guard at its end, while the batch is still pinned. The drop also runs if a callback of
/// the operation panics, so the count stays right.
struct Counting<'a, 'b, W: Work, const VARIABLE: bool>(&'a mut Batch<'b, W, VARIABLE>);

impl<W: Work, const VARIABLE: bool> Drop for Counting<'_, '_, W, VARIABLE> {
    fn drop(&mut self) {
        self.0.note_rows();
    }
}

/// Returns the first `count` bytes of `words`.
fn bytes_of(words: &mut [u64], count: usize) -> &mut [u8] {
    let available = size_of_val(words);
    assert!(count <= available);
    // SAFETY: the duty is to pass initialised memory in bounds. Initialised words are valid bytes,
    // the assertion checks the bounds, and the slice keeps the borrow of `words`.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), count) }
}
