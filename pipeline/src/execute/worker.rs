//! What each thread of a run does.

use std::sync::Arc;

use embank::locks::Mutex;

use super::RunOptions;
use super::commit::{Committer, Work};
use super::order::Order;
use super::rows::RowReader;
use super::write_out::write_out;
use crate::batch::MatrixInfo;
use crate::decode::{BLOCK_ROWS, BadRow, Block, Slot};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::input::{Chunks, Claim};
use crate::plan::Plan;
use crate::trace::{ReadBusy, Stage, Stopwatch};
use crate::vocabulary::{BankLookUp, Ids, RunNumbering, ValueCounts};

/// What all threads of a run see.
pub(super) struct Shared<'a, 'b> {
    /// Of rows that have the fields in the pipeline's order. Vocabularies, look-ups and outputs are those of all plans.
    pub(super) plan: &'a Arc<Plan>,
    /// Of the inputs.
    pub(super) format: Format,
    pub(super) options: &'a RunOptions,
    pub(super) infos: &'a Arc<[MatrixInfo]>,
    pub(super) numberings: &'a [RunNumbering],
    /// Whether vocabularies are made and counted, and nothing comes out.
    pub(super) generates: bool,
    /// What each thread has counted, by vocabulary.
    pub(super) counted: &'a Mutex<Vec<Vec<Option<ValueCounts>>>>,
    pub(super) chunks: &'a Chunks<'b>,
    pub(super) order: &'a Order<(Claim<'b>, Result<Work>)>,
    /// Work that was committed, to be used again.
    pub(super) pool: &'a Mutex<Vec<Work>>,
    /// When threads read, where that is measured.
    pub(super) reading: &'a ReadBusy,
    pub(super) committer: &'a Mutex<Committer<'b>>,
}

/// Ends the run if it is dropped, as unwinding and failures do, so that the others do not wait for this thread.
/// Whoever comes to its end forgets it: whether the thread unwinds can't be asked, since a run may be part of a drop
/// that is.
struct EndOnPanic<'a, 'b>(&'a Shared<'a, 'b>);

impl Drop for EndOnPanic<'_, '_> {
    fn drop(&mut self) {
        self.0.order.end();
    }
}

/// Works until there are no more chunks, or the run has ended.
pub(super) fn work(shared: &Shared<'_, '_>) {
    let guard = EndOnPanic(shared);
    let mut worker = match Worker::new(shared) {
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
        let mut done = shared.pool.lock().pop().unwrap_or_else(|| Work::new(shared));
        let outcome = worker.transform(&mut claim, &mut done).map(|()| done);
        shared.order.finish(number, (claim, outcome), |(claim, outcome)| {
            shared.committer.lock().commit(shared, &claim, outcome)
        });
    }
    shared.committer.lock().stopwatch.add(&worker.stopwatch);
    if shared.generates {
        shared.counted.lock().push(worker.blocks.counts);
    }
    std::mem::forget(guard);
}

struct Worker<'a, 'b> {
    shared: &'a Shared<'a, 'b>,
    rows: RowReader,
    buffer: Vec<u8>,
    stopwatch: Stopwatch,
    blocks: Blocks<'a, 'b>,
}

/// What takes blocks from their fields to the batch.
struct Blocks<'a, 'b> {
    shared: &'a Shared<'a, 'b>,
    /// Of the rows at hand.
    plan: Arc<Plan>,
    block: Block,
    /// The block's bad rows.
    bad: Vec<BadRow>,
    bank: BankLookUp,
    /// For each vocabulary that is counted by value.
    counts: Vec<Option<ValueCounts>>,
}

impl<'a, 'b> Worker<'a, 'b> {
    fn new(shared: &'a Shared<'a, 'b>) -> Result<Self> {
        let plan = shared.plan;
        let counts = |(place, numbering): (usize, &RunNumbering)| match &numbering.ids {
            Ids::Direct { table, .. } if numbering.counts => {
                let counts = ValueCounts::new(table.range());
                let (name, bytes) = (&plan.vocabularies[place].name, table.range() as u64 * 4);
                let told = |source| Error::OutOfMemory { name: name.clone(), bytes, source };
                counts.map(Some).map_err(told)
            }
            Ids::Direct { .. } | Ids::Bank { .. } => Ok(None),
        };
        let blocks = Blocks {
            shared,
            plan: Arc::clone(plan),
            block: plan.block(),
            bad: Vec::new(),
            bank: BankLookUp::default(),
            counts: shared.numberings.iter().enumerate().map(counts).collect::<Result<_>>()?,
        };
        Ok(Self {
            shared,
            rows: RowReader::new(plan, shared.format, shared.options.level),
            buffer: Vec::new(),
            stopwatch: Stopwatch::new(shared.options.trace),
            blocks,
        })
    }

    /// The next chunk; of a stream, its bytes too.
    fn claim(&mut self) -> Option<Claim<'b>> {
        self.stopwatch.start();
        let reading = self.stopwatch.is_on().then(|| self.shared.reading.begin());
        let claim = self.shared.chunks.claim(&mut self.buffer);
        drop(reading);
        self.stopwatch.lap(Stage::Read);
        claim
    }

    /// Makes ready for rows of another plan: those of an input with another header.
    fn change_plan(&mut self, plan: &Arc<Plan>) {
        if !Arc::ptr_eq(&self.blocks.plan, plan) {
            self.rows.change_plan(plan);
            self.blocks.block = plan.block();
            self.blocks.plan = Arc::clone(plan);
        }
    }

    /// Does everything with a chunk that can be done before its turn comes.
    fn transform(&mut self, claim: &mut Claim<'b>, done: &mut Work) -> Result<()> {
        self.change_plan(&claim.plan);
        self.stopwatch.start();
        let reading = self.stopwatch.is_on().then(|| self.shared.reading.begin());
        let rows = claim.rows(&mut self.buffer)?;
        drop(reading);
        self.stopwatch.lap(Stage::Read);
        done.clear();
        let mut reader = self.rows.begin(rows, claim.begin.bytes, &mut done.bad);
        self.blocks.reserve(reader.rows, done);
        while reader.next(&mut self.blocks.block, &mut self.blocks.bad) {
            self.stopwatch.lap(Stage::Decode);
            done.bad.add_block(&mut self.blocks.bad, |bad| reader.place(bad));
            self.blocks.finish(done, &mut self.stopwatch)?;
        }
        done.bad.shift(claim.begin.lines);
        done.lines = claim.begin.lines + reader.lines;
        Ok(())
    }
}

impl Blocks<'_, '_> {
    fn reserve(&self, rows: usize, done: &mut Work) {
        done.batch.reserve(if self.shared.generates { 0 } else { rows });
    }

    /// All that follows on decoding.
    fn finish(&mut self, done: &mut Work, stopwatch: &mut Stopwatch) -> Result<()> {
        let shared = self.shared;
        for kernel in &self.plan.kernels {
            kernel.run(shared.options.level, &mut self.block);
        }
        stopwatch.lap(Stage::Transform);
        self.look_up(done)?;
        stopwatch.lap(Stage::LookUp);
        if shared.generates {
            done.batch.rows += self.block.rows;
        } else {
            write_out(&self.plan, shared.options.level, &self.block, &mut done.batch);
            stopwatch.lap(Stage::Concatenate);
        }
        Ok(())
    }

    /// Numbers the block's values, as far as they are known.
    fn look_up(&mut self, done: &mut Work) -> Result<()> {
        let shared = self.shared;
        let first_row = done.batch.rows as u32;
        for (place, look_up) in self.plan.look_ups.iter().enumerate() {
            let numbering = &shared.numberings[look_up.vocabulary];
            match (&numbering.ids, look_up.ids) {
                (&Ids::Direct { ref table, limit }, Slot::Word(column)) => {
                    let values = self.block.word_mut(column);
                    if let Some(counts) = &mut self.counts[look_up.vocabulary] {
                        counts.count(values);
                    }
                    let (level, pending) = (shared.options.level, &mut done.pending[place]);
                    table.look_up(level, values, (first_row, limit), &mut done.found, pending);
                }
                (&Ids::Bank { ref vocabulary, limit }, _) => {
                    let how = (numbering.unseen, numbering.counts);
                    let (unknown, block) = (&mut done.unknown[place], &mut self.block);
                    self.bank.run((vocabulary, limit), how, look_up, block, first_row, unknown)?;
                }
                _ => unreachable!("a table's ids are words"),
            }
        }
        Ok(())
    }
}

const _: () = assert!(BLOCK_ROWS <= u32::MAX as usize, "rows of a block have numbers of 32 bits");
