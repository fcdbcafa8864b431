//! Turns a decoded block of rows into rows of the batch.

use std::sync::Arc;

use super::setup::Setup;
use super::work::Work;
use super::write_out::write_out;
use crate::decode::{BLOCK_ROWS, BadRow, Block, Slot};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::trace::{Stage, Stopwatch};
use crate::vocabulary::{BankLookUp, RunIds, RunNumbering, UnseenList, ValueCounts};

/// A thread's block, with scratch space for look-ups.
pub(super) struct Blocks<'a, 'i> {
    setup: &'a Setup<'a, 'i>,
    /// The plan of the current chunk's rows.
    pub(super) plan: Arc<Plan>,
    pub(super) block: Block,
    /// Bad rows of the block.
    pub(super) bad: Vec<BadRow>,
    /// Scratch space for look-ups in tables.
    found: Box<[u32; BLOCK_ROWS]>,
    bank: BankLookUp,
    /// Counts for each vocabulary. `None` for a vocabulary whose values this run does not count in
    /// memory.
    pub(super) counts: Vec<Option<ValueCounts>>,
}

impl<'a, 'i> Blocks<'a, 'i> {
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for the counts.
    pub(super) fn new(setup: &'a Setup<'a, 'i>) -> Result<Self> {
        let plan = setup.plan;
        let vocabularies = plan.vocabularies.iter().zip(setup.numberings);
        let counts =
            vocabularies.map(|(vocabulary, numbering)| counts(&vocabulary.name, numbering));
        Ok(Self {
            setup,
            plan: Arc::clone(plan),
            block: plan.block(),
            bad: Vec::new(),
            found: Box::new([0; BLOCK_ROWS]),
            bank: BankLookUp::default(),
            counts: counts.collect::<Result<_>>()?,
        })
    }

    /// Switches to another plan, for an input with another header.
    pub(super) fn change_plan(&mut self, plan: &Arc<Plan>) {
        self.block = plan.block();
        self.plan = Arc::clone(plan);
    }

    /// Reserves space in the batch for the rows of a chunk.
    pub(super) fn reserve(&self, rows: usize, done: &mut Work) {
        done.batch.reserve(if self.setup.generates { 0 } else { rows });
    }

    /// Runs all steps that come after decoding.
    pub(super) fn finish(&mut self, done: &mut Work, stopwatch: &mut Stopwatch) -> Result<()> {
        let level = self.setup.options.level;
        for kernel in &self.plan.kernels {
            kernel.run(level, &mut self.block);
        }
        stopwatch.lap(Stage::Transform);
        self.look_up(done)?;
        stopwatch.lap(Stage::LookUp);
        if self.setup.generates {
            done.batch.rows += self.block.rows;
        } else {
            write_out(&self.plan, level, &self.block, &mut done.batch);
            stopwatch.lap(Stage::Concatenate);
        }
        Ok(())
    }

    /// Replaces the block's values by their ids, and collects the values without an id.
    fn look_up(&mut self, done: &mut Work) -> Result<()> {
        let level = self.setup.options.level;
        let first_row = done.batch.rows as u32;
        for (look_up, unseen) in self.plan.look_ups.iter().zip(&mut done.unseen) {
            let numbering = &self.setup.numberings[look_up.vocabulary];
            match (&numbering.ids, look_up.ids, unseen) {
                (
                    RunIds::Direct { table, limit },
                    Slot::Word(column),
                    UnseenList::Words(unseen),
                ) => {
                    let values = self.block.word_mut(column);
                    if let Some(counts) = &mut self.counts[look_up.vocabulary] {
                        counts.count(values);
                    }
                    table.look_up(level, values, *limit, &mut self.found, first_row, unseen);
                }
                (RunIds::Bank(ids), _, UnseenList::Values(unseen)) => {
                    self.bank.run(ids, numbering, look_up, &mut self.block, first_row, unseen)?;
                }
                _ => {
                    unreachable!("a table's ids are words, and each look-up has a list of its kind")
                }
            }
        }
        Ok(())
    }
}

/// Makes the counts of a vocabulary. `None` if the run does not count its values, or if a bank
/// counts them.
fn counts(name: &str, numbering: &RunNumbering) -> Result<Option<ValueCounts>> {
    let RunIds::Direct { table, .. } = &numbering.ids else { return Ok(None) };
    if !numbering.counts {
        return Ok(None);
    }
    let told = |source| Error::OutOfMemory {
        name: name.to_owned(),
        bytes: table.range() as u64 * 4,
        source,
    };
    ValueCounts::new(table.range()).map(Some).map_err(told)
}

const _: () = assert!(BLOCK_ROWS <= u32::MAX as usize, "rows of a block have numbers of 32 bits");
