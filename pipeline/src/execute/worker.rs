//! The work of each thread of a run.

use std::sync::Arc;

use embank::locks::Mutex;

use super::blocks::Blocks;
use super::commit::Committer;
use super::offload::{Offload, OpenChunk};
use super::order::Order;
use super::rows::{ChunkReader, RowReader};
use super::setup::Setup;
use super::work::Work;
use crate::decode::{BadRow, Fault};
use crate::error::Result;
use crate::input::{ChunkRows, Claim};
use crate::plan::Plan;
use crate::trace::{ReadBusy, Stage, Stopwatch};
use crate::vocabulary::ValueCounts;

/// Data that the threads of a run share.
pub(super) struct Shared<'a, 'i, 'c> {
    pub(super) setup: &'a Setup<'a, 'i>,
    /// The counts of each finished thread, for each vocabulary.
    pub(super) counted: Mutex<Vec<Vec<Option<ValueCounts>>>>,
    pub(super) order: Order<(Claim<'i>, Result<Work>)>,
    /// Committed work, for reuse.
    pub(super) pool: Mutex<Vec<Work>>,
    /// Measures when threads read, if the run is traced.
    pub(super) reading: ReadBusy,
    pub(super) committer: Mutex<Committer<'c>>,
}

impl<'i> Shared<'_, 'i, '_> {
    /// Returns work for a chunk, from committed work if there is some.
    fn work(&self) -> Work {
        self.pool.lock().pop().unwrap_or_else(|| Work::new(self.setup))
    }

    /// Hands a chunk over to its commit.
    fn finish(&self, claim: Claim<'i>, outcome: Result<Work>) {
        self.order.finish(claim.sequence, (claim, outcome), |(claim, outcome)| {
            let committed = self.committer.lock().commit(self.setup, &claim, outcome);
            let goes_on = committed.is_some();
            self.pool.lock().extend(committed);
            goes_on
        });
    }
}

/// Ends the run when it is dropped, so that the other threads do not wait for this thread. A panic
/// or a failure drops the guard. A thread that finishes normally forgets the guard (`mem::forget`).
/// The guard can't ask `std::thread::panicking`: the run may be part of a drop during unwinding.
/// Then `panicking` is true although this thread's work has not panicked.
struct EndOnPanic<'a, 'i, 'c>(&'a Shared<'a, 'i, 'c>);

impl Drop for EndOnPanic<'_, '_, '_> {
    fn drop(&mut self) {
        self.0.order.end();
    }
}

/// Works on chunks until no chunk is left or the run has ended.
pub(super) fn work<'i>(shared: &Shared<'_, 'i, '_>) {
    let guard = EndOnPanic(shared);
    let setup = shared.setup;
    let mut worker = match Worker::new(setup, &shared.reading) {
        Ok(worker) => worker,
        Err(error) => {
            shared.committer.lock().failure.get_or_insert(error);
            return;
        }
    };
    if setup.decoders.is_empty() {
        while let Some(mut claim) = worker.claim() {
            if !shared.order.begin(claim.sequence) {
                break;
            }
            let mut done = shared.work();
            let outcome = worker.transform(&mut claim, &mut done).map(|()| done);
            shared.finish(claim, outcome);
        }
    } else {
        let worked = Offload::new(setup).and_then(|mut offload| {
            let worked = worker.work_offloaded(shared, &mut offload);
            shared.committer.lock().arrays.add(offload.counts());
            worked
        });
        if let Err(error) = worked {
            shared.committer.lock().failure.get_or_insert(error);
            return;
        }
    }
    shared.committer.lock().stopwatch.add(&worker.stopwatch);
    if setup.generates {
        shared.counted.lock().push(worker.blocks.counts);
    }
    std::mem::forget(guard);
}

struct Worker<'a, 'i> {
    setup: &'a Setup<'a, 'i>,
    reading: &'a ReadBusy,
    rows: RowReader,
    buffer: Vec<u8>,
    /// The kept rows of a chunk, if the run leaves rows out.
    kept: Vec<u8>,
    stopwatch: Stopwatch,
    blocks: Blocks<'a, 'i>,
}

impl<'a, 'i> Worker<'a, 'i> {
    fn new(setup: &'a Setup<'a, 'i>, reading: &'a ReadBusy) -> Result<Self> {
        Ok(Self {
            setup,
            reading,
            rows: RowReader::new(setup.plan, setup.format, setup.options.level),
            buffer: Vec::new(),
            kept: Vec::new(),
            stopwatch: Stopwatch::new(setup.options.trace),
            blocks: Blocks::new(setup)?,
        })
    }

    /// Claims the next chunk. If the input is a stream, also reads the chunk.
    fn claim(&mut self) -> Option<Claim<'i>> {
        self.stopwatch.start();
        let reading = self.stopwatch.is_on().then(|| self.reading.begin());
        let claim = self.setup.chunks.claim(&mut self.buffer);
        drop(reading);
        self.stopwatch.lap(Stage::Read);
        claim
    }

    /// Switches to another plan, for an input with another header.
    fn change_plan(&mut self, plan: &Arc<Plan>) {
        if !Arc::ptr_eq(&self.blocks.plan, plan) {
            self.rows.change_plan(plan);
            self.blocks.change_plan(plan);
        }
    }

    /// Does all work on a chunk that does not depend on earlier chunks.
    fn transform(&mut self, claim: &mut Claim<'i>, done: &mut Work) -> Result<()> {
        self.read(claim, done, |blocks, done, stopwatch, _| blocks.finish(done, stopwatch))
    }

    /// Reads the rows of a chunk, and calls `each` for each block of them.
    fn read(
        &mut self,
        claim: &mut Claim<'i>,
        done: &mut Work,
        mut each: impl FnMut(
            &mut Blocks<'a, 'i>,
            &mut Work,
            &mut Stopwatch,
            &ChunkReader<'_>,
        ) -> Result<()>,
    ) -> Result<()> {
        self.change_plan(&claim.plan);
        self.stopwatch.start();
        let reading = self.stopwatch.is_on().then(|| self.reading.begin());
        let mut rows = claim.rows(&mut self.buffer)?;
        let mut skip = claim.begin.bytes;
        if let (Some(kept), ChunkRows::Bytes(bytes)) = (self.setup.kept, &rows) {
            let name = self.setup.chunks.name(claim.input);
            kept.copy(claim, name, &bytes[skip..], &mut self.kept)?;
            (rows, skip) = (ChunkRows::Bytes(&self.kept), 0);
        }
        drop(reading);
        self.stopwatch.lap(Stage::Read);
        done.clear();
        // The chunk before may have ended in an error.
        self.blocks.bad.clear();
        let mut reader = self.rows.begin(rows, skip, &mut done.bad);
        self.blocks.reserve(reader.rows, done);
        while reader.next(&mut self.blocks.block, &mut self.blocks.bad) {
            self.stopwatch.lap(Stage::Decode);
            done.bad.add_block(&mut self.blocks.bad, |bad| reader.place(bad));
            each(&mut self.blocks, done, &mut self.stopwatch, &reader)?;
        }
        done.bad.shift(claim.begin.lines);
        done.lines = claim.begin.lines + reader.lines;
        Ok(())
    }

    /// Reads the rows of a chunk, and submits the values of its arrays.
    fn begin_offloaded(
        &mut self,
        shared: &Shared<'_, 'i, '_>,
        offload: &mut Offload<'i>,
        mut claim: Claim<'i>,
    ) {
        let mut done = shared.work();
        let mut blocks = Vec::new();
        let mut places = Vec::new();
        let read = self.read(&mut claim, &mut done, |reading, _, _, reader| {
            let fresh = reading.plan.block();
            let block = std::mem::replace(&mut reading.block, fresh);
            places.extend((0..block.rows).map(|row| {
                let line = block.line(row);
                let mut place =
                    BadRow { line, lines: reader.lines_of(line), fault: Fault::no_array() };
                reader.place(&mut place);
                place
            }));
            blocks.push(block);
            Ok(())
        });
        if let Err(error) = read {
            return shared.finish(claim, Err(error));
        }
        places.iter_mut().for_each(|place| place.line += claim.begin.lines);
        self.stopwatch.start();
        offload.submit(self.setup, OpenChunk::new(claim, done, blocks, places));
        self.stopwatch.lap(Stage::Array);
    }

    /// Runs the steps that come after the arrays, and hands the chunk over to its commit.
    fn complete(&mut self, shared: &Shared<'_, 'i, '_>, chunk: OpenChunk<'i>) {
        let (claim, done) = chunk.into_parts();
        let outcome = done.and_then(|(mut done, blocks)| {
            self.change_plan(&claim.plan);
            self.stopwatch.start();
            for block in blocks {
                self.blocks.block = block;
                self.blocks.finish(&mut done, &mut self.stopwatch)?;
            }
            Ok(done)
        });
        shared.finish(claim, outcome);
    }

    /// Works on chunks with arrays until no chunk is left or the run has ended.
    ///
    /// # Errors
    /// [`Error::Decoder`](crate::Error::Decoder) if no chunk is open to which the failure belongs.
    fn work_offloaded(
        &mut self,
        shared: &Shared<'_, 'i, '_>,
        offload: &mut Offload<'i>,
    ) -> Result<()> {
        let mut held = None;
        let mut has_more = true;
        // The loop ends: each round claims or begins a chunk, or waits for the oldest open chunk,
        // for a limited time. The input has a limited number of chunks.
        while !shared.order.has_ended() {
            if held.is_none() && has_more && offload.has_free_units() {
                held = self.claim();
                has_more = held.is_some();
            }
            let begins = match &held {
                None => None,
                Some(claim) if offload.is_empty() => Some(shared.order.begin(claim.sequence)),
                Some(claim) => shared.order.try_begin(claim.sequence),
            };
            let taken_back = match (begins, held.take()) {
                (Some(false), _) => return Ok(()),
                (Some(true), Some(claim)) => {
                    self.begin_offloaded(shared, offload, claim);
                    self.timed(|| offload.drain())
                }
                (_, None) if offload.is_empty() => return Ok(()),
                (_, claim) => {
                    held = claim;
                    let setup = self.setup;
                    self.timed(|| offload.wait(setup, || shared.order.has_ended()))
                }
            };
            if let Err(error) = taken_back {
                // The failure ends the run at the oldest chunk, before the other chunks count.
                let Some(oldest) = offload.take_oldest() else { return Err(error) };
                shared.finish(oldest, Err(error));
                return Ok(());
            }
            while let Some(chunk) = offload.take_complete(self.setup) {
                self.complete(shared, chunk);
            }
        }
        Ok(())
    }

    /// Counts the time of `call` as that of making arrays.
    fn timed(&mut self, call: impl FnOnce() -> Result<()>) -> Result<()> {
        self.stopwatch.start();
        let called = call();
        self.stopwatch.lap(Stage::Array);
        called
    }
}
