//! What each thread of a run does.

use std::sync::Arc;

use embank::locks::Mutex;

use super::RunOptions;
use super::commit::{Committer, Work};
use super::concatenate::concatenate;
use super::order::Order;
use crate::batch::{Batch, MatrixInfo, Values};
use crate::decode::{
    BLOCK_ROWS, BadList, BadRow, Block, Decoder, Level, Slot, Unquoted, row_bytes, unpack,
};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::input::{Chunks, Claim};
use crate::plan::{OutputFrom, Plan, WidenedSlot};
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
    decoder: Decoder,
    /// A chunk of which fields are quoted.
    unquoted: Unquoted,
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
        let decoder = Decoder::new(Arc::clone(&plan.layout), shared.options.level);
        let (unquoted, buffer) = (Unquoted::default(), Vec::new());
        let stopwatch = Stopwatch::new(shared.options.trace);
        Ok(Self { shared, decoder, unquoted, buffer, stopwatch, blocks })
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
            self.decoder = Decoder::new(Arc::clone(&plan.layout), self.shared.options.level);
            self.blocks.block = plan.block();
            self.blocks.plan = Arc::clone(plan);
        }
    }

    /// Everything that can be done with a chunk before it is next.
    fn transform(&mut self, claim: &mut Claim<'b>, done: &mut Work) -> Result<()> {
        let shared = self.shared;
        self.change_plan(&claim.plan);
        let stopwatch = &mut self.stopwatch;
        stopwatch.start();
        #[cfg(feature = "parquet")]
        if let crate::input::Held::Columns(batch) = &claim.held {
            done.clear();
            return self.blocks.columns(batch, done, stopwatch);
        }
        let reading = stopwatch.is_on().then(|| shared.reading.begin());
        let begin = claim.begin;
        let rows = claim.rows(&mut self.buffer)?;
        drop(reading);
        stopwatch.lap(Stage::Read);
        done.clear();
        let Format::Text { separator, quote, .. } = shared.format else {
            return self.blocks.packed(rows, done, stopwatch);
        };
        let mut text = &rows[begin.bytes..];
        // A chunk without quotes is text as any other.
        let quote = quote.filter(|&quote| memchr::memchr(quote, text).is_some());
        let (original, how) = (text, (separator, quote));
        let lines = if quote.is_some() || separator.has_several_bytes() {
            let layout = &claim.plan.layout;
            let lines = self.unquoted.read(text, how, layout, &mut done.bad);
            self.blocks.reserve(self.unquoted.rows(), done);
            let mut misfits = BadList::default();
            self.decoder.begin_unquoted(&mut self.unquoted, &mut misfits);
            let unquoted = &self.unquoted;
            let place = |bad: &mut BadRow| unquoted.place(original, how, bad);
            done.bad.add_all(&mut misfits, place);
            text = &unquoted.text;
            while self.decoder.next(text, &mut self.blocks.block, &mut self.blocks.bad) {
                stopwatch.lap(Stage::Decode);
                self.blocks.bad.iter_mut().for_each(|bad| bad.lines = unquoted.lines_of(bad.line));
                done.bad.add_block(&mut self.blocks.bad, place);
                self.blocks.finish(done, stopwatch)?;
            }
            lines
        } else {
            let lines = self.decoder.begin(text, &mut done.bad);
            self.blocks.reserve(self.decoder.rows(), done);
            while self.decoder.next(text, &mut self.blocks.block, &mut self.blocks.bad) {
                stopwatch.lap(Stage::Decode);
                done.bad.add_block(&mut self.blocks.bad, |_| {});
                self.blocks.finish(done, stopwatch)?;
            }
            lines
        };
        done.bad.shift(begin.lines);
        done.lines = begin.lines + lines;
        Ok(())
    }
}

impl Blocks<'_, '_> {
    fn packed(&mut self, rows: &[u8], done: &mut Work, stopwatch: &mut Stopwatch) -> Result<()> {
        let (layout, level) = (&self.shared.plan.layout, self.shared.options.level);
        let row_bytes = row_bytes(layout.fields());
        self.reserve(rows.len() / row_bytes, done);
        let mut rows = rows;
        while !rows.is_empty() {
            let count = unpack(rows, layout, level, &mut self.block);
            rows = &rows[count * row_bytes..];
            stopwatch.lap(Stage::Decode);
            self.finish(done, stopwatch)?;
        }
        Ok(())
    }

    #[cfg(feature = "parquet")]
    fn columns(
        &mut self,
        batch: &arrow_array::RecordBatch,
        done: &mut Work,
        stopwatch: &mut Stopwatch,
    ) -> Result<()> {
        let (names, layout) = (&self.shared.plan.field_names, &self.shared.plan.layout);
        done.lines = batch.num_rows();
        self.reserve(done.lines, done);
        for begin in (0..done.lines).step_by(BLOCK_ROWS) {
            let rows = begin..(begin + BLOCK_ROWS).min(done.lines);
            let (block, bad) = (&mut self.block, &mut self.bad);
            crate::columns::read_columns(batch, rows, names, layout, block, bad);
            stopwatch.lap(Stage::Decode);
            done.bad.add_block(bad, |_| {});
            self.finish(done, stopwatch)?;
        }
        Ok(())
    }

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

/// Appends the block's rows to the batch's matrices.
fn write_out(plan: &Plan, level: Level, block: &Block, batch: &mut Batch) {
    let rows = block.rows;
    for (output, values) in plan.outputs.iter().zip(&mut batch.matrices) {
        match (&output.from, values) {
            (OutputFrom::Words(columns), Values::Words(into)) => {
                let into = &mut into[batch.rows * columns.len()..][..rows * columns.len()];
                concatenate(level, block.words(), columns, rows, into);
            }
            (OutputFrom::Wides(columns), Values::Wides(into)) => {
                let into = &mut into[batch.rows * columns.len()..][..rows * columns.len()];
                for (place, &WidenedSlot { slot, signed }) in columns.iter().enumerate() {
                    widen(
                        block,
                        slot,
                        signed,
                        &mut into[place.min(rows * columns.len())..],
                        columns.len(),
                    );
                }
            }
            _ => unreachable!("a matrix is as wide as its plan says"),
        }
    }
    batch.rows += rows;
}

/// Writes a column into every `stride`-th place.
fn widen(block: &Block, slot: Slot, signed: bool, into: &mut [u64], stride: usize) {
    let into = into.iter_mut().step_by(stride);
    match slot {
        Slot::Word(column) if signed => {
            for (value, into) in block.word(column).iter().zip(into) {
                *into = i64::from(value.cast_signed()).cast_unsigned();
            }
        }
        Slot::Word(column) => {
            for (value, into) in block.word(column).iter().zip(into) {
                *into = u64::from(*value);
            }
        }
        Slot::Wide(column) => {
            for (value, into) in block.wide(column).iter().zip(into) {
                *into = *value;
            }
        }
        Slot::Bytes(_) => unreachable!("the plan refuses to show text"),
    }
}

const _: () = assert!(BLOCK_ROWS <= u32::MAX as usize, "rows of a block have numbers of 32 bits");
