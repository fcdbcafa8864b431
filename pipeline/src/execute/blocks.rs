//! Turns a decoded block of rows into rows of the batch.

use std::sync::Arc;

use super::setup::Setup;
use super::work::Work;
use super::write_out::write_out;
use crate::arrays::{ArrayDecoder, NoArray, Place};
use crate::batch::Values;
use crate::decode::{BLOCK_ROWS, BadRow, Block, Fault, Slot};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::trace::{Stage, Stopwatch};
use crate::vocabulary::{BankLookUp, RunIds, RunNumbering, UnseenList, ValueCounts};

/// Bytes of a path that a report shows.
const NAME_BYTES_MAX: usize = 200;

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
    arrays: ArrayDecoder,
    /// The array of a row that no batch gets, in a run that only counts.
    uncounted: Vec<u8>,
    /// For each row of a block true if all its arrays could be made.
    kept: Vec<bool>,
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
            arrays: ArrayDecoder::new(),
            uncounted: Vec::new(),
            kept: Vec::new(),
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

    /// Makes the arrays of the block's rows, in the batch. Rows with a value that can't be decoded
    /// go to `bad`, and leave the block. `lines_of` returns the number of lines of a row at a line.
    ///
    /// # Errors
    /// [`Error::Io`] if a file can't be read.
    pub(super) fn make_arrays(
        &mut self,
        done: &mut Work,
        lines_of: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let Self { setup, plan, block, bad, arrays, uncounted, kept, .. } = self;
        if plan.arrays.is_empty() {
            return Ok(());
        }
        kept.clear();
        let mut next = done.batch.rows;
        for row in 0..block.rows {
            let mut fault = None;
            for array in &plan.arrays {
                let Values::Bytes(values) = &mut done.batch.matrices[array.output] else {
                    unreachable!("pictures are bytes")
                };
                let bytes = array.bytes();
                let into = if setup.generates {
                    // The rows count as they would with a batch, so bad ones must be known.
                    uncounted.resize(bytes, 0);
                    &mut uncounted[..]
                } else {
                    &mut values[next * bytes..][..bytes]
                };
                let (Place::Bytes(column) | Place::File(column)) = array.place;
                let value = block.bytes[column].get(row);
                match arrays.decode(array, value, setup.root, into) {
                    Ok(()) => {}
                    Err(NoArray::Failed(error)) => return Err(error),
                    Err(NoArray::Bad(why)) => {
                        let name = match array.place {
                            Place::File(_) => value[..value.len().min(NAME_BYTES_MAX)].to_vec(),
                            Place::Bytes(_) => Vec::new(),
                        };
                        fault = Some(Fault::Array { field: array.field, name, why });
                        break;
                    }
                }
            }
            kept.push(fault.is_none());
            match fault {
                None => next += 1,
                Some(fault) => {
                    let line = block.line(row);
                    bad.push(BadRow { line, lines: lines_of(line), fault });
                }
            }
        }
        if kept.contains(&false) {
            block.retain(kept);
        }
        Ok(())
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
