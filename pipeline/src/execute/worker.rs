//! The work of each thread of a run.

use std::sync::Arc;

use embank::locks::Mutex;

use super::blocks::Blocks;
use super::commit::Committer;
use super::order::Order;
use super::rows::RowReader;
use super::setup::Setup;
use super::work::Work;
use crate::error::Result;
use crate::input::Claim;
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
    while let Some(mut claim) = worker.claim() {
        let number = claim.sequence;
        if !shared.order.begin(number) {
            break;
        }
        let mut done = shared.pool.lock().pop().unwrap_or_else(|| Work::new(setup));
        let outcome = worker.transform(&mut claim, &mut done).map(|()| done);
        shared.order.finish(number, (claim, outcome), |(claim, outcome)| {
            let committed = shared.committer.lock().commit(setup, &claim, outcome);
            let goes_on = committed.is_some();
            shared.pool.lock().extend(committed);
            goes_on
        });
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
        self.change_plan(&claim.plan);
        self.stopwatch.start();
        let reading = self.stopwatch.is_on().then(|| self.reading.begin());
        let rows = claim.rows(&mut self.buffer)?;
        drop(reading);
        self.stopwatch.lap(Stage::Read);
        done.clear();
        // The chunk before may have ended in an error.
        self.blocks.bad.clear();
        let mut reader = self.rows.begin(rows, claim.begin.bytes, &mut done.bad);
        self.blocks.reserve(reader.rows, done);
        while reader.next(&mut self.blocks.block, &mut self.blocks.bad) {
            self.stopwatch.lap(Stage::Decode);
            self.blocks.make_arrays(done, |line| reader.lines_of(line))?;
            self.stopwatch.lap(Stage::Array);
            done.bad.add_block(&mut self.blocks.bad, |bad| reader.place(bad));
            self.blocks.finish(done, &mut self.stopwatch)?;
        }
        done.bad.shift(claim.begin.lines);
        done.lines = claim.begin.lines + reader.lines;
        Ok(())
    }
}
